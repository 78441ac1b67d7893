"""T5 at FLAN-T5 small's shape compared with CTranslate2: greedy text of one prompt, one thread,
interleaved.

    python benchmarks/t5.py

Random weights: they take as long as trained ones. Prints the new tokens per second of both, and
their ratio.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import ctranslate2  # type: ignore[import-untyped]
import torch
from ctranslate2.converters import TransformersConverter  # type: ignore[import-untyped]
from machine import announce

from minhub_py import from_config, from_pretrained, generate, save_pretrained
from minhub_py.models.registry import T5_SIZES

SOURCE, NEW, ROUNDS = 32, 128, 7


class Numbers:
    """A tokenizer for the converter: each token is its ID as text."""

    pad_token, eos_token, unk_token = "0", "1", "2"

    def get_vocab(self) -> dict[str, int]:
        return {str(id): id for id in range(32128)}

    def convert_ids_to_tokens(self, id: int) -> str:
        return str(id)


class Converter(TransformersConverter):
    """The converter, in float32 and without a tokenizer's files."""

    def load_model(self, model_class: Any, path: str, **options: Any) -> Any:
        return super().load_model(model_class, path, **{**options, "dtype": torch.float32})

    def load_tokenizer(self, *_: object, **__: object) -> Numbers:
        return Numbers()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    source = torch.randint(3, 32000, (SOURCE,)).tolist()
    with tempfile.TemporaryDirectory() as scratch:
        folder, converted = Path(scratch) / "model", Path(scratch) / "converted"
        save_pretrained(from_config("t5", **T5_SIZES["google/flan-t5-small"]).eval(), folder)
        Converter(str(folder)).convert(str(converted))
        for kind in ("float32", "int8"):
            model = from_pretrained(
                folder, device="cpu", quantize=None if kind == "float32" else kind
            )
            translator = ctranslate2.Translator(
                str(converted), device="cpu", compute_type=kind, inter_threads=1, intra_threads=1
            )

            def ours(model: Any = model) -> list[int]:
                return generate(model, [source], NEW, temperature=0, eos_id=None)[0]

            def theirs(translator: Any = translator) -> list[int]:
                [result] = translator.translate_batch(
                    [list(map(str, source))],
                    beam_size=1,
                    max_decoding_length=NEW,
                    min_decoding_length=NEW,
                )
                return list(map(int, result.hypotheses[0]))

            alike = sum(a == b for a, b in zip(ours(), theirs(), strict=True))
            times: dict[str, list[float]] = {"ours": [], "theirs": []}
            for _ in range(ROUNDS):
                for name, run in (("ours", ours), ("theirs", theirs)):
                    started = time.perf_counter()
                    run()
                    times[name].append(time.perf_counter() - started)
            here, there = (NEW / median(times[name]) for name in ("ours", "theirs"))
            print(
                f"{kind}: {here:.0f} ids/s, CTranslate2 {there:.0f}: {here / there:.2f} ({alike} of"
                f" {NEW} ids alike)"
            )


if __name__ == "__main__":
    announce()
    main()
