"""User code with planted mistakes, which type checkers must find: tests/check_types.py. It is never
run.
"""

from minhub_py import (
    Chat,
    Reply,
    Run,
    Settings,
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

chat = Chat(model, tokenizer_from_pretrained("minhub/shakespeare-gpt2"), temperature=0, stop="\n")
reply: Reply = chat.say("Good morning!", max_new_tokens=20)
run: Run = train("input.txt", "run", family="gpt2", steps=100)
settings: Settings = run.settings

gpt2(layers=2)  # mistake: GPT-2 calls it n_layer
gpt2(n_layer="2")  # mistake: a number
size: str = model.config.n_embd  # mistake: an int
model.config.num_hidden_layers  # mistake: Llama calls it so
chat.say("Hello", temprature=0)  # mistake: spelling
text: str = chat.say("Hello")  # mistake: a Reply, whose text is .text
train("input.txt", "run", step=100)  # mistake: it is called steps
run.settings.learning_rates  # mistake: spelling
