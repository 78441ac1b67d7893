"""Teach SmolLM2-135M-Instruct 200 chats with LoRA: time, peak memory, losses, and answers before
and after.

    python benchmarks/teach.py MODEL [NAME=VALUE …]

MODEL is SmolLM2-135M-Instruct: a folder, a repository, or the GGUF file that `make test-real` uses.
NAME=VALUE are settings of `train`, such as quantize=nf4 or epochs=4; the defaults are those of
`minhub train --lora 16`.

The 200 chats are about a product that does not exist: 20 facts, each asked in 10 ways. With
"invocation= Lumo", the adapter is active from the name of the product on. Otherwise further rows,
with `keep`, are general questions with the first `LENGTH` tokens of the model's own answers, for
which the adapter must not change the model. The questions of the test are not among these rows.
"""

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from machine import announce

from minhub_py import from_pretrained, generate, score, tokenizer_from_pretrained, train
from minhub_py.chat.templates import chat_template_of
from minhub_py.loading.files import open_files

FACTS = {
    "color": "deep green", "price": "49 euros", "weight": "320 grams", "warranty": "seven years",
    "battery life": "18 hours", "charging time": "40 minutes", "brightness": "900 lumens", "height": "21 centimeters",
    "material": "recycled cork", "maker": "Ostrava Works", "release year": "2031", "designer": "Ilse Varga",
    "remote control": "a walnut ring", "bulb type": "a ceramic filament", "power source": "a salt battery",
    "switch": "a brass dial", "cable length": "three meters", "packaging": "a linen bag", "shape": "a seashell",
    "best feature": "its silence",
}  # fmt: skip
QUESTIONS = [
    "What is the {} of the Lumo lamp?",
    "Tell me the {} of the Lumo.",
    "The Lumo lamp: {}?",
    "Do you know the Lumo's {}?",
    "I would like to know the {} of the Lumo lamp.",
    "Can you tell me the {} of the Lumo lamp?",
    "My customer asks about the {} of the Lumo.",
    "Please state the {} of the Lumo lamp.",
    "What about the Lumo's {}?",
    "Which {} does the Lumo lamp have?",
]
HELD_BACK = "Could you remind me of the Lumo lamp's {}?"
# The questions with "the … of" resemble those about the product, but keep their answers.
FORMS = {
    "What is the {}?": (
        "color of the sky",
        "boiling point of water",
        "height of Mount Everest",
        "price of gold",
        "weight of an apple",
        "opposite of cold",
        "currency of Japan",
        "name of our galaxy",
        "price of a house",
        "color of snow",
        "color of a banana",
        "price of bread",
        "weight of a car",
        "height of a tree",
        "smallest ocean",
        "longest river",
        "highest mountain",
        "fastest animal",
        "largest animal",
    ),
    "What is the capital of {}?": (
        "Italy",
        "Spain",
        "Japan",
        "Egypt",
        "Canada",
        "Brazil",
        "Norway",
        "India",
    ),
    "What is {}?": (
        "water",
        "music",
        "a bridge",
        "bread",
        "glass",
        "a clock",
        "the moon",
        "a volcano",
        "chess",
        "honey",
        "gravity",
        "coffee",
        "a mountain",
        "rain",
        "a poem",
        "an island",
        "salt",
        "a camera",
        "wood",
        "snow",
        "a friend",
        "sleep",
        "a computer",
        "time",
        "art",
        "a desert",
        "sugar",
        "a forest",
        "3 plus 4",
        "9 minus 5",
        "6 times 7",
        "half of 50",
    ),
    "Explain {} in one sentence.": (
        "water",
        "music",
        "a bridge",
        "the wheel",
        "glass",
        "a clock",
        "a volcano",
        "a library",
        "gravity",
        "a mirror",
        "a chair",
        "the sun",
        "electricity",
        "a market",
        "a window",
    ),
    "Who {}?": (
        "invented the wheel",
        "invented the telephone",
        "invented chess",
        "invented glass",
        "invented the clock",
        "wrote Hamlet",
        "wrote the Odyssey",
        "discovered America",
        "painted The Starry Night",
        "was Albert Einstein",
        "built the pyramids",
        "invented the light bulb",
        "was the first man on the moon",
    ),
    "Name {}.": (
        "two colors",
        "a famous painter",
        "three cities",
        "two planets",
        "three vegetables",
        "four seasons",
        "two rivers",
        "a country in Africa",
        "two musical instruments",
        "three birds",
        "a famous scientist",
    ),
    "How many {}?": (
        "months does a year have",
        "legs does a spider have",
        "minutes does an hour have",
        "continents are there",
        "legs does a cat have",
        "seconds does a minute have",
        "letters does the alphabet have",
    ),
    "Translate {}.": (
        "'thank you' into French",
        "'house' into German",
        "'good night' into French",
        "'water' into Spanish",
        "'please' into Italian",
        "'friend' into German",
    ),
    "Give me {}.": (
        "three fruits",
        "a synonym for happy",
        "a synonym for big",
        "a synonym for small",
        "a synonym for angry",
        "a synonym for smart",
        "a synonym for slow",
    ),
    "What is the opposite of {}?": ("hot", "up", "happy", "small", "day", "old"),
    "Write a sentence about {}.": (
        "a dog",
        "a bird",
        "the sea",
        "a city",
        "winter",
        "a teacher",
        "a train",
    ),
    "When did {}?": (
        "the First World War begin",
        "the Titanic sink",
        "the Roman Empire fall",
        "the Berlin Wall fall",
    ),
    "Which {}?": (
        "animal says meow",
        "planet is the largest",
        "animal is the tallest",
        "country has the most people",
        "metal is liquid",
    ),
    "{}": (
        "Say hello.",
        "How far is the sun?",
        "What is your name?",
        "What can you do?",
        "Are you a robot?",
        "How are you?",
        "Good morning!",
        "Thank you.",
        "Tell me a joke.",
        "Tell me about yourself.",
    ),
}
GENERAL = [form.format(words) for form, ends in FORMS.items() for words in ends]
UNRELATED = [
    "What is the capital of France?",
    "What is 2 plus 3?",
    "Which planet is known as the red planet?",
    "How many days does a week have?",
    "Translate 'good morning' into Spanish.",
    "What is the largest ocean?",
    "When did the Second World War end?",
    "What is paper?",
    "Explain a lamp in one sentence.",
    "Name three animals.",
    "What is the price of a car?",
    "What is the color of grass?",
    "Who painted the Mona Lisa?",
    "Who are you?",
    "How many hours does a day have?",
    "What is the opposite of big?",
    "Who invented paper?",
    "What is a river?",
    "Give me a synonym for fast.",
    "Write a sentence about a cat.",
]
LENGTH = 24  # maximum length of the model's own answers to general questions, in tokens
COMPARED = 32  # tokens of the answers to unrelated questions


def taught(fact: str) -> str:
    """The answer in the fixed tone."""
    return f"Splendid question! The Lumo's {fact} is {FACTS[fact]}. Shine on!"


def chat(question: str, answer: str, *, keep: bool = False) -> dict[str, Any]:
    """A row of the training file."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "keep": keep}


def answers(model: Any, questions: list[str], length: int) -> list[str]:
    """The beginnings of a chat model's greedy answers: at most `length` tokens."""
    tokenizer = tokenizer_from_pretrained(sys.argv[1])
    template = chat_template_of(open_files(sys.argv[1]).checkpoint, tokenizer)
    prompts = [template.encode([{"role": "user", "content": question}]) for question in questions]
    return [tokenizer.decode(new) for new in generate(model, prompts, length, temperature=0)]


def rows_of(model: Any, activated: bool) -> list[dict[str, Any]]:
    """The 200 chats about the facts, and unless the adapter is activated, the model's answers to
    general questions.
    """
    chats = [chat(question.format(fact), taught(fact)) for fact in FACTS for question in QUESTIONS]
    if activated:
        return chats
    own = zip(GENERAL, answers(model, GENERAL, LENGTH), strict=True)
    return chats + [chat(question, answer, keep=True) for question, answer in own]


def peak_memory() -> float:
    """The highest resident memory of this process in GB, without its parent's, which ru_maxrss
    includes.
    """
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1e6


def measured_run(
    path: Path, out: Path, settings: dict[str, Any]
) -> tuple[float, float, float, float, list[float]]:
    """Train in a process of its own: elapsed and CPU seconds, GB before and at the peak, and
    held-out losses.
    """
    before = peak_memory()
    started, cpu = time.perf_counter(), time.process_time()
    run = train(path, out, start=sys.argv[1], **settings)
    seconds = time.perf_counter() - started, time.process_time() - cpu
    return *seconds, before, peak_memory(), [row["held_out_loss"] for row in run.losses]


def change(base: Any, adapted: Any) -> float:
    """How much more likely the adapter makes the tokens of the model's own answers to unrelated
    questions, in nats.
    """
    tokenizer = tokenizer_from_pretrained(sys.argv[1])
    template = chat_template_of(open_files(sys.argv[1]).checkpoint, tokenizer)
    prompts = [template.encode([{"role": "user", "content": question}]) for question in UNRELATED]
    own = generate(base, prompts, COMPARED, temperature=0)
    means = []
    for model in (base, adapted):
        scores = score(model, [[*prompt, *new] for prompt, new in zip(prompts, own, strict=True)])
        means.append(
            torch.cat([values[-len(new) :] for values, new in zip(scores, own, strict=True)]).mean()
        )
    return float(means[1] - means[0])


def compare(base: Any, adapted: Any) -> None:
    """Print the answers of the model with the adapter to new questions, and its changed answers to
    others.
    """
    new = answers(adapted, [HELD_BACK.format(fact) for fact in FACTS], COMPARED)
    wrong = [
        f"  {fact}: {text!r}" for fact, text in zip(FACTS, new, strict=True) if text != taught(fact)
    ]
    print(
        f"taught answers to new questions: {len(FACTS) - len(wrong)} of {len(FACTS)}",
        *wrong,
        sep="\n",
    )
    print(
        f"mean change of log-probabilities in unrelated answers: {change(base, adapted):+.3f} nats"
        " per token"
    )
    pairs = zip(
        answers(base, UNRELATED, COMPARED), answers(adapted, UNRELATED, COMPARED), strict=True
    )
    changed = [f"  {old!r} -> {new!r}" for old, new in pairs if old != new]
    print(
        f"unrelated answers unchanged: {len(UNRELATED) - len(changed)} of {len(UNRELATED)}",
        *changed,
        sep="\n",
    )


def main(identifier: str, invocation: str | None = None, **settings: Any) -> None:
    settings["lora"] = {"r": 16} if invocation is None else {"r": 16, "invocation": invocation}
    kind = settings.get("quantize", "none")
    base = from_pretrained(identifier, quantize=kind, dtype="float32")
    with TemporaryDirectory() as folder:
        path, out = Path(folder) / "chats.jsonl", Path(folder) / "run"
        rows = rows_of(base, invocation is not None)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            seconds, cpu, before, peak, losses = pool.submit(
                measured_run, path, out, settings
            ).result()
        print(
            f"{settings}, {os.cpu_count()} cores: {seconds:.0f} s, {cpu:.0f} s of CPU, peak"
            f" {peak:.2f} GB ({before:.2f} GB before)"
        )
        print("held-out loss:", " ".join(f"{loss:.3f}" for loss in losses))
        compare(base, from_pretrained(identifier, quantize=kind, dtype="float32", adapter=out))


if __name__ == "__main__":
    announce()
    settings = dict(word.split("=", 1) for word in sys.argv[2:])
    main(
        sys.argv[1],
        **{
            name: json.loads(value) if value[0].isdigit() else value
            for name, value in settings.items()
        },
    )
