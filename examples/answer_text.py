"""An encoder-decoder on one page: FLAN-T5 translates, summarizes, follows instructions, and chooses between answers.

    python examples/answer_text.py
    python examples/answer_text.py --model google/flan-t5-base

The first call downloads google/flan-t5-small (300 MB); larger ones write better. The encoder reads a prompt once, both
ways; the decoder writes a text of its own, which ends where the model ends it. What is to be done, the prompt says.
"""

import argparse

from minhub_py import decode_stream, from_pretrained, generate, score, stream, tokenizer_from_pretrained

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="google/flan-t5-small", help="repository or folder")
parser.add_argument("--new-tokens", type=int, default=60)
args = parser.parse_args()

model = from_pretrained(args.model)
tokenizer = tokenizer_from_pretrained(args.model)

# A translation, as it is written. The tokenizer puts </s> after a prompt, as the model expects.
prompt = tokenizer.encode("translate English to German: The house is small, and the garden is large.").ids
print("translation: ", end="")
for piece in decode_stream(tokenizer, stream(model, prompt, args.new_tokens, temperature=0)):
    print(piece, end="", flush=True)
print()

# Several tasks at once: each row gets what it gets alone.
tasks = {
    "summary": "summarize: The tower is 324 metres tall, about the same height as an 81-storey building. During its "
    "construction it became the tallest structure in the world, a title that it held for 41 years.",
    "instruction": "Answer the question. Which animal says meow?",
    "premise": "Premise: No one was at home. Hypothesis: The house was empty. Does the premise entail the hypothesis?",
}
ids = [tokenizer.encode(task).ids for task in tasks.values()]
for name, answer in zip(tasks, generate(model, ids, args.new_tokens, temperature=0), strict=True):
    print(f"{name}: {tokenizer.decode(answer)}")

# How likely is each of some answers? Nats per token: the smallest is the model's choice.
question = tokenizer.encode("Review: I would see this film again tomorrow. Is the review positive or negative?").ids
answers = ["positive", "negative"]
targets = [tokenizer.encode(answer).ids for answer in answers]
for answer, logprobs in zip(answers, score(model, [question] * len(answers), targets=targets), strict=True):
    print(f"{answer}: {-logprobs.mean():.3f} nats per token")
