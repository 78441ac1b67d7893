"""An encoder-decoder on one page: FLAN-T5 translates, summarizes, follows instructions, and chooses
between answers.

    python examples/answer_text.py
    python examples/answer_text.py --model google/flan-t5-base

The first call downloads google/flan-t5-small (300 MB); larger models give better answers. The
encoder processes the prompt once, with bidirectional attention; the decoder generates the answer.
The prompt states the task.
"""

import argparse

from minhub_py import (
    decode_stream,
    from_pretrained,
    generate,
    score,
    stream,
    tokenizer_from_pretrained,
)

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--model", default="google/flan-t5-small", help="repository or folder")
parser.add_argument("--new-tokens", type=int, default=60)
args = parser.parse_args()

model = from_pretrained(args.model)
tokenizer = tokenizer_from_pretrained(args.model)

# A translation, streamed. The tokenizer appends </s> to the prompt, as the model expects.
prompt = tokenizer.encode(
    "translate English to German: The house is small, and the garden is large."
).ids
print("translation: ", end="")
for piece in decode_stream(tokenizer, stream(model, prompt, args.new_tokens, temperature=0)):
    print(piece, end="", flush=True)
print()

# Several tasks in one batch, with the same results as alone.
tasks = {
    "summary": (
        "summarize: The tower is 324 metres tall, about the same height as an 81-storey building."
        " During its construction it became the tallest structure in the world, a title that it"
        " held for 41 years."
    ),
    "instruction": "Answer the question. Which animal says meow?",
    "premise": (
        "Premise: No one was at home. Hypothesis: The house was empty. Does the premise entail the"
        " hypothesis?"
    ),
}
ids = [tokenizer.encode(task).ids for task in tasks.values()]
for name, answer in zip(tasks, generate(model, ids, args.new_tokens, temperature=0), strict=True):
    print(f"{name}: {tokenizer.decode(answer)}")

# The likelihood of given answers, in nats per token: the smallest number is the model's choice.
question = tokenizer.encode(
    "Review: I would see this film again tomorrow. Is the review positive or negative?"
).ids
answers = ["positive", "negative"]
targets = [tokenizer.encode(answer).ids for answer in answers]
for answer, logprobs in zip(
    answers, score(model, [question] * len(answers), targets=targets), strict=True
):
    print(f"{answer}: {-logprobs.mean():.3f} nats per token")
