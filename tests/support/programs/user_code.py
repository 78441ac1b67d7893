"""User code with planted mistakes, which type checkers must find: tests/check_types.py. It is never
run.
"""

from minhub_py import (
    Chat,
    Reply,
    Run,
    Settings,
    from_config,
    from_pretrained,
    gpt2,
    gpt2_from_pretrained,
    llama,
    lstm_from_config,
    tokenizer_from_pretrained,
    train,
)

model = gpt2_from_pretrained("minhub/shakespeare-gpt2", dtype="float32")
layers: int = model.config.n_layer
small = gpt2(n_layer=2, n_embd=64, n_head=4)
rotary = llama(hidden_size=64, rope_theta=1e6)
recurrent: int | None = lstm_from_config("minhub/shakespeare-lstm").config.embedding_size
mixtral = from_config("mixtral", num_local_experts=2, hidden_size=64)
deep = from_config("Qwen/Qwen3-0.6B", num_hidden_layers=2, local_files_only=True)
quantized = from_pretrained("gpt2", device="cpu", quantize="int8")
context: int | None = max(mixtral, deep, quantized, key=id).config.context_length

chat = Chat(model, tokenizer_from_pretrained("minhub/shakespeare-gpt2"), temperature=0, stop="\n")
reply: Reply = chat.say("Good morning!", max_new_tokens=20)
run: Run = train("input.txt", "run", family="gpt2", steps=100)
settings: Settings = run.settings

gpt2(layers=2)  # mistake: GPT-2 calls it n_layer
gpt2(n_layer="2")  # mistake: a number
size: str = model.config.n_embd  # mistake: an int
model.config.num_hidden_layers  # mistake: Llama calls it so
mixtral.config.n_embd  # mistake: the settings that all architectures have
from_pretrained("gpt2", torch_dtype="float16")  # mistake: it is called dtype
from_config("mixtral", revision=1)  # mistake: a str
gpt2_from_pretrained("gpt2", device=0)  # mistake: a str
chat.say("Hello", temprature=0)  # mistake: spelling
text: str = chat.say("Hello")  # mistake: a Reply, whose text is .text
train("input.txt", "run", step=100)  # mistake: it is called steps
run.settings.learning_rates  # mistake: spelling
