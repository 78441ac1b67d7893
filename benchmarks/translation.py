"""Translation by Marian's base shape compared with CTranslate2 and transformers: one thread by
default, CPU time, interleaved.

    python benchmarks/translation.py [--threads 2] [--kinds float32,int8] [--rounds 5]

6 + 6 layers of width 512 and 58,101 tokens, with random weights, which take as long as trained ones.
The settings of generation are those of the published files. No sequence ends before NEW tokens.
Prints milliseconds per text, and the ratios: above 1, minhub is faster. CPU time is not increased by
other programs that wait for the processor; with several threads, elapsed time is measured.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import ctranslate2  # type: ignore[import-untyped]
import torch
from ctranslate2.converters import TransformersConverter  # type: ignore[import-untyped]
from machine import announce
from transformers import AutoModelForSeq2SeqLM

from minhub_py import beam_search, from_config, from_pretrained, generate, save_pretrained

SOURCE, NEW, SIZE, PAD = 24, 32, 58101, 58100
MARIAN = {
    "vocab_size": SIZE, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6,
    "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "max_position_embeddings": 512, "activation_function": "swish",
    "scale_embedding": True, "pad_token_id": PAD, "eos_token_id": 0, "forced_eos_token_id": None,
    "decoder_start_token_id": PAD, "bad_words_ids": [[PAD]],
}  # fmt: skip
GENERATION = {"bad_words_ids": [[PAD]], "renormalize_logits": True, "eos_token_id": 0,
              "pad_token_id": PAD, "decoder_start_token_id": PAD}  # fmt: skip


class Numbers:
    """A tokenizer for the converter: each token is its ID as text."""

    eos_token, unk_token, pad_token, bos_token = "0", "1", "<pad>", None

    def get_vocab(self) -> dict[str, int]:
        return {**{str(id): id for id in range(PAD)}, "<pad>": PAD}

    def convert_ids_to_tokens(self, id: int) -> str:
        return str(id)


class Converter(TransformersConverter):
    """The converter, in float32 and without a tokenizer's files."""

    def load_model(self, model_class: Any, path: str, **options: Any) -> Any:
        return super().load_model(model_class, path, **{**options, "dtype": torch.float32})

    def load_tokenizer(self, *_: object, **__: object) -> Numbers:
        return Numbers()


def runs(
    folder: Path, converted: Path, kind: str, threads: int
) -> dict[str, Callable[[list[list[int]], int], list[list[int]]]]:
    """A function of texts and beams for each program, which returns the best tokens."""
    model = from_pretrained(folder, device="cpu", quantize=None if kind == "float32" else kind)
    reference = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    translator = ctranslate2.Translator(
        str(converted), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )

    def minhub(texts: list[list[int]], beams: int) -> list[list[int]]:
        if beams == 1:
            return generate(model, texts, NEW, temperature=0, eos_id=None)
        searched = beam_search(model, texts, NEW, beams=beams, eos_id=None)
        return [hypotheses[0].ids for hypotheses in searched]

    def peer(texts: list[list[int]], beams: int) -> list[list[int]]:
        settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": NEW}
        idx = torch.tensor(texts)
        with torch.inference_mode():
            output = reference.generate(
                input_ids=idx, attention_mask=torch.ones_like(idx), min_new_tokens=NEW, **settings
            )
        return output[:, 1:].tolist()

    def other(texts: list[list[int]], beams: int) -> list[list[int]]:
        results = translator.translate_batch(
            [list(map(str, text)) for text in texts],
            beam_size=beams,
            max_decoding_length=NEW,
            min_decoding_length=NEW,
        )
        return [list(map(int, result.hypotheses[0])) for result in results]

    # transformers computes in float32 in both cases
    return {"minhub": minhub, "CTranslate2": other, "transformers": peer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", default="float32,int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", default="minhub,CTranslate2,transformers")
    options = parser.parse_args()
    if "minhub" not in options.programs.split(","):
        parser.error("--programs must contain minhub, whose time the ratios divide by")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as scratch:
        folder, converted = Path(scratch) / "model", Path(scratch) / "converted"
        model: Any = from_config("marian", **MARIAN).eval()
        with torch.no_grad():
            model.shared.weight[PAD] = 0  # as in the published files; CTranslate2 omits it
        save_pretrained(model, folder)
        (folder / "generation_config.json").write_text(json.dumps(GENERATION))
        Converter(str(folder)).convert(str(converted))
        for kind in options.kinds.split(","):
            chosen = {
                name: run
                for name, run in runs(folder, converted, kind, options.threads).items()
                if name in options.programs.split(",")
            }
            for beams in (1, 4):
                for count in (1, 16):
                    texts = [
                        [*torch.randint(2, SIZE - 1, (SOURCE,)).tolist(), 0] for _ in range(count)
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
