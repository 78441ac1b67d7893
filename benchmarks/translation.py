"""Translation compared with CTranslate2 and transformers: one thread by default, CPU time,
interleaved.

    python benchmarks/translation.py [--shape nllb] [--threads 2] [--kinds float32,int8] [--rounds 5]

Marian's base shape, 6 + 6 layers of width 512 and 58,101 tokens, or NLLB-600M's, 4 + 4 layers of
width 1024 and 256,206 tokens, with random weights, which take as long as trained ones. The settings
of generation are those of Marian's published files. No sequence ends before --new tokens. Prints
milliseconds per text, and the ratios: above 1, minhub is faster. CPU time is not increased by other
programs that wait for the processor; with several threads, elapsed time is measured.
int8+bfloat16: activations in 8 bits, as CTranslate2's int8 has; minhub's int8 has 16. --before takes
the compiled decoder of another commit, a copy of its _decoder.so, as a further program.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import ctranslate2  # type: ignore[import-untyped]
import torch
from ctranslate2.converters import TransformersConverter  # type: ignore[import-untyped]
from machine import announce
from transformers import AutoModelForSeq2SeqLM

from minhub_py import beam_search, from_config, from_pretrained, generate, save_pretrained
from minhub_py.inference.native import library

SOURCE = 24
MARIAN: dict[str, Any] = {
    "vocab_size": 58101, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6,
    "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "max_position_embeddings": 512, "activation_function": "swish",
    "scale_embedding": True, "eos_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
NLLB: dict[str, Any] = {
    "vocab_size": 256206, "d_model": 1024, "encoder_layers": 4, "decoder_layers": 4,
    "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "activation_function": "relu",
}  # fmt: skip
SHAPES = {"marian": MARIAN, "nllb": MARIAN | NLLB}


class Numbers:
    """A tokenizer for the converter: each token is its ID as text. The last one is the padding."""

    eos_token, unk_token, pad_token, bos_token = "0", "1", "<pad>", None

    def __init__(self, size: int) -> None:
        self.size = size

    def get_vocab(self) -> dict[str, int]:
        return {**{str(id): id for id in range(self.size - 1)}, "<pad>": self.size - 1}

    def convert_ids_to_tokens(self, id: int) -> str:
        return str(id)


class Converter(TransformersConverter):
    """The converter, in float32 and without a tokenizer's files."""

    def load_model(self, model_class: Any, path: str, **options: Any) -> Any:
        return super().load_model(model_class, path, **{**options, "dtype": torch.float32})

    def load_tokenizer(self, _: object, path: str, **__: object) -> Numbers:
        return Numbers(json.loads((Path(path) / "config.json").read_text())["vocab_size"])


def runs(
    folder: Path, converted: Path, kind: str, threads: int, new: int, before: Any
) -> dict[str, Callable[[list[list[int]], int], list[list[int]]]]:
    """A function of texts and beams for each program, which returns the best tokens."""
    options: dict[str, Any] = {
        "dtype" if "float" in word else "quantize": word for word in kind.split("+")
    }
    model: Any = from_pretrained(folder, device="cpu", **options)
    reference = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    translator = ctranslate2.Translator(
        str(converted),
        device="cpu",
        compute_type=kind.split("+", maxsplit=1)[0],
        inter_threads=1,
        intra_threads=threads,
    )

    def minhub(texts: list[list[int]], beams: int) -> list[list[int]]:
        if beams == 1:
            return generate(model, texts, new, temperature=0, eos_id=None)
        searched = beam_search(model, texts, new, beams=beams, eos_id=None)
        return [hypotheses[0].ids for hypotheses in searched]

    def earlier(texts: list[list[int]], beams: int) -> list[list[int]]:
        with patch.object(library, "library", lambda: before):
            return minhub(texts, beams)

    def peer(texts: list[list[int]], beams: int) -> list[list[int]]:
        settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": new}
        idx = torch.tensor(texts)
        with torch.inference_mode():
            output = reference.generate(
                input_ids=idx, attention_mask=torch.ones_like(idx), min_new_tokens=new, **settings
            )
        return output[:, 1:].tolist()

    def other(texts: list[list[int]], beams: int) -> list[list[int]]:
        results = translator.translate_batch(
            [list(map(str, text)) for text in texts],
            beam_size=beams,
            max_decoding_length=new,
            min_decoding_length=new,
        )
        return [list(map(int, result.hypotheses[0])) for result in results]

    # transformers computes in float32 in both cases
    programs = {"minhub": minhub, "before": earlier, "CTranslate2": other, "transformers": peer}
    return {name: run for name, run in programs.items() if name != "before" or before is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", default="float32,int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES, default="marian")
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--programs", default="minhub,before,CTranslate2,transformers")
    parser.add_argument("--before", type=Path, metavar="DECODER")
    options = parser.parse_args()
    if "minhub" not in options.programs.split(","):
        parser.error("--programs must contain minhub, whose time the ratios divide by")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    before = None if options.before is None else library.load(options.before.resolve())
    size, pad = SHAPES[options.shape]["vocab_size"], SHAPES[options.shape]["vocab_size"] - 1
    tokens = {"pad_token_id": pad, "decoder_start_token_id": pad, "bad_words_ids": [[pad]]}
    generation = {**tokens, "renormalize_logits": True, "eos_token_id": 0}
    if before is not None:
        before.choose(None)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as scratch:
        folder, converted = Path(scratch) / "model", Path(scratch) / "converted"
        model: Any = from_config("marian", **SHAPES[options.shape], **tokens).eval()
        with torch.no_grad():
            model.shared.weight[pad] = 0  # as in the published files; CTranslate2 omits it
        save_pretrained(model, folder)
        (folder / "generation_config.json").write_text(json.dumps(generation))
        Converter(str(folder)).convert(str(converted))
        for kind in options.kinds.split(","):
            chosen = {
                name: run
                for name, run in runs(
                    folder, converted, kind, options.threads, options.new, before
                ).items()
                if name in options.programs.split(",")
            }
            for beams in (1, 4):
                for count in (1, 16):
                    texts = [
                        [*torch.randint(2, size - 1, (SOURCE,)).tolist(), 0] for _ in range(count)
                    ]
                    outputs = {name: run(texts, beams) for name, run in chosen.items()}
                    times: dict[str, list[float]] = {name: [] for name in chosen}
                    for _ in range(options.rounds):
                        for name, run in chosen.items():
                            started = clock()
                            run(texts, beams)
                            times[name].append((clock() - started) / count * 1000)
                    first = median(times["minhub"])
                    line = f"{kind:8} beams {beams}  {count:2} texts  minhub {first:7.1f} ms"
                    for name in [name for name in chosen if name != "minhub"]:
                        ratio = median(times[name]) / first
                        alike = sum(map(list.__eq__, outputs[name], outputs["minhub"]))
                        line += f"  {name} {ratio:5.2f} ({alike} of {count} alike)"
                    print(line, flush=True)


if __name__ == "__main__":
    announce()
    main()
