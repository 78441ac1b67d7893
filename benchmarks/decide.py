"""How much does the shared text of several questions save? 200 texts, three questions, random weights.

    python benchmarks/decide.py [TEXTS]

Compares one call of `decide` with one call for each question, and with transformers' pipeline: the
tokens that the decoder computes, and the processor time of one thread. The model has 5 million
parameters, and a text 60 words.
"""

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from machine import announce
from tokenizers import AddedToken

from minhub_py import (
    decide,
    from_config,
    from_pretrained,
    save_pretrained,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe
from minhub_py.inference.native_runner import NativeRunner

TEXT = Path(__file__).parents[1] / "README.md"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Is a refund requested?"},
    "tone": {"type": "choice", "instructions": "Tone?", "criteria": {"calm": None, "angry": None}},
    "urgency": {"type": "score", "instructions": "Urgent?", "criteria": ["No", "Soon", "Now"]},
}


def write_model(folder: Path) -> None:
    """A random chat model."""
    tokenizer = train_byte_level_bpe([TEXT.read_text(encoding="utf-8")], 1000)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens([AddedToken("Yes"), AddedToken("No")])
    torch.manual_seed(0)
    model = from_config(
        "llama",
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    save_pretrained(model, folder, tokenizer)
    settings = {"chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


class Counting(NativeRunner):
    """Counts the tokens that the decoder computes."""

    computed = 0

    def forward(self, texts, cache, **settings):  # type: ignore[no-untyped-def]
        Counting.computed += sum(map(len, texts.values()))
        return super().forward(texts, cache, **settings)


def main() -> None:
    from minhub_py.analysis import predictions

    announce()
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    words = TEXT.read_text(encoding="utf-8").split()
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, 60)) for _ in range(count)]
    predictions.runner_of = Counting  # type: ignore[attr-defined,assignment]
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(name)
        decide(model, tokenizer, texts[:2], QUESTIONS)  # opens the decoder
        computed: dict[str, int] = {}
        for way, groups in (
            ("one call", [QUESTIONS]),
            ("a call per question", [{name: question} for name, question in QUESTIONS.items()]),
        ):
            Counting.computed, started = 0, time.process_time()
            for questions in groups:
                decide(model, tokenizer, texts, questions)
            computed[way] = Counting.computed
            print(
                f"{way:22}{time.process_time() - started:8.1f} s of CPU time,"
                f" {Counting.computed / computed['one call']:.2f} × tokens",
                flush=True,
            )
        from transformers import pipeline as pipeline_of

        pipeline = pipeline_of("decision", model=name, dtype=torch.float32)
        pipeline({"state": texts[0], "questions": QUESTIONS})
        started = time.process_time()
        for text in texts:
            pipeline({"state": text, "questions": QUESTIONS})
        print(f"{'transformers':22}{time.process_time() - started:8.1f} s of CPU time")


if __name__ == "__main__":
    main()
