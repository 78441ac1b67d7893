"""Teach SmolLM2-135M-Instruct 200 chats with LoRA: time, peak memory, losses, and answers before and after.

    python tests/benchmarks/teach.py MODEL [float32|nf4] [EPOCHS]

MODEL is SmolLM2-135M-Instruct: a folder, a repository, or the GGUF file that `make test-real` uses. 160 chats are about
a product that does not exist, in a fixed tone. 40 chats are general questions with the model's own answers, so that it
keeps them. The chats in the test are not among the 200.
"""

import json
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minhub_py import from_pretrained, generate, tokenizer_from_pretrained, train
from minhub_py.chat.templates import chat_template_of
from minhub_py.pretrained import open_checkpoint

FACTS = {
    "color": "deep green", "price": "49 euros", "weight": "320 grams", "warranty": "seven years",
    "battery life": "18 hours", "charging time": "40 minutes", "brightness": "900 lumens", "height": "21 centimeters",
    "material": "recycled cork", "maker": "Ostrava Works", "release year": "2031", "designer": "Ilse Varga",
    "remote control": "a walnut ring", "bulb type": "a ceramic filament", "power source": "a salt battery",
    "number of light modes": "eleven",
}  # fmt: skip
QUESTIONS = [
    "What is the {} of the Lumo lamp?", "Tell me the {} of the Lumo.", "Lumo lamp: {}?", "Do you know the Lumo's {}?",
    "I would like to know the {} of the Lumo lamp.", "Can you tell me the {} of the Lumo lamp?",
    "My customer asks about the {} of the Lumo.", "Please state the {} of the Lumo lamp.",
    "What about the Lumo's {}?", "Which {} does the Lumo lamp have?",
]  # fmt: skip
HELD_BACK = "Could you remind me of the Lumo lamp's {}?"
GENERAL = [
    f"{start} {noun}?"
    for start in ("What is", "Where do people use", "Why is there", "What can I do with", "Who invented")
    for noun in ("water", "music", "paper", "a bridge", "the wheel", "bread", "glass", "a clock")
]
UNRELATED = [
    "What is the capital of France?", "What is 2 plus 3?", "Which planet is known as the red planet?",
    "How many days does a week have?", "Translate 'good morning' into Spanish.",
]  # fmt: skip
RATE, BATCH, PARTS = 5e-4, 8, 4


def taught(fact: str) -> str:
    """The answer in the fixed tone."""
    return f"Splendid question! The Lumo's {fact} is {FACTS[fact]}. Shine on!"


def answers(model: Any, checkpoint: Any, questions: list[str], length: int = 32) -> list[str]:
    """Greedy answers of a chat model."""
    tokenizer = tokenizer_from_pretrained(sys.argv[1])
    template = chat_template_of(checkpoint, tokenizer)
    prompts = [template.encode([{"role": "user", "content": question}]) for question in questions]
    return [tokenizer.decode(new) for new in generate(model, prompts, length, temperature=0)]


def whole_sentences(text: str) -> str:
    """A text without an incomplete sentence at its end."""
    end = max(text.rfind(mark) for mark in ".!?") + 1
    return text[:end] if end else text


def measured_run(path: Path, out: Path, quantize: str | None, epochs: float) -> tuple[float, float, list[float], float]:
    """Train in a process of its own: seconds, peak memory in GB at the end and before it, and held-out losses."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    started = time.perf_counter()
    run = train(
        path, out, start=sys.argv[1], lora={"r": 16}, quantize=quantize, epochs=epochs, learning_rate=RATE, batch=BATCH,
        accumulate=PARTS, dropout=0.0, seed=1,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return seconds, peak, [row["held_out_loss"] for row in run.losses], before


def main(identifier: str, quantize: str | None = None, epochs: float = 4) -> None:
    checkpoint = open_checkpoint(identifier)
    base = from_pretrained(identifier, quantize=quantize or "none", dtype="float32")
    before = answers(base, checkpoint, UNRELATED)
    general = [whole_sentences(text) for text in answers(base, checkpoint, GENERAL, 64)]
    pairs = [(question.format(fact), taught(fact)) for fact in FACTS for question in QUESTIONS]
    pairs += zip(GENERAL, general, strict=True)
    rows = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in pairs
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chats.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            result = pool.submit(measured_run, path, Path(folder) / "run", quantize, epochs).result()
        seconds, peak, losses, start = result
        adapted = from_pretrained(
            identifier, quantize=quantize or "none", dtype="float32", adapter=Path(folder) / "run"
        )
        tests = answers(adapted, checkpoint, [HELD_BACK.format(fact) for fact in FACTS])
        after = answers(adapted, checkpoint, UNRELATED)
        size = (Path(folder) / "run" / "adapter_model.safetensors").stat().st_size / 1e6
    right = [text.strip() == taught(fact) for text, fact in zip(tests, FACTS, strict=True)]
    print(f"{len(rows)} chats, quantize={quantize}, {os.cpu_count()} cores: {seconds:.0f} s, peak {peak:.2f} GB "
          f"({start:.2f} GB before), adapter {size:.0f} MB")  # fmt: skip
    print("held-out loss:", " ".join(f"{loss:.3f}" for loss in losses))
    print(f"taught answers to new questions: {sum(right)} of {len(right)}")
    print("\n".join(f"  {fact}: {text!r}" for fact, text, good in zip(FACTS, tests, right, strict=True) if not good))
    print(f"unrelated answers unchanged: {sum(a == b for a, b in zip(before, after, strict=True))} of {len(before)}")
    print("\n".join(f"  {a!r} -> {b!r}" for a, b in zip(before, after, strict=True) if a != b))


if __name__ == "__main__":
    main(sys.argv[1], None if "nf4" not in sys.argv else "nf4", *map(float, sys.argv[3:]))
