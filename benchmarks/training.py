"""Training speed in tokens/s, compared with nanoGPT and with a plain PyTorch loop for an LSTM,
interleaved by step.

    git clone https://github.com/karpathy/nanoGPT
    python benchmarks/training.py nanoGPT/model.py

Both sides have the same sizes, batch, dtype and threads. A step includes everything from reading
rows to updating the weights. For nanoGPT this is its model and its AdamW, in a loop like its
train.py. nanoGPT uses the exact GELU, so our model does too. Without its model.py, only the LSTM
and the gain of `cpu_kernels.py` are measured.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from minhub_py.models.registry import ARCHITECTURES, ENTRIES
from minhub_py.system.device import has_onednn_bfloat16
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.data import Corpus, Tokens
from minhub_py.training.data_parallel import DataParallelGroup
from minhub_py.training.listener import Listener
from minhub_py.training.loop import Trainer
from minhub_py.training.settings import Settings

VOCABULARY = 65
TOKENS = 2**20
# Elsewhere a step in bfloat16 takes many times as long, and a plain LSTM fails.
DTYPES = ("float32", "bfloat16") if has_onednn_bfloat16() else ("float32",)
SIZES = {
    "nanoGPT's CPU recipe": {"layers": 4, "width": 128, "heads": 4, "context": 64, "batch": 12},
    "the built-in's size": {"layers": 6, "width": 160, "heads": 5, "context": 256, "batch": 16},
    "GPT-2's width, 4 layers": {"layers": 4, "width": 768, "heads": 12, "context": 256, "batch": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", help="nanoGPT's model.py")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(VOCABULARY, size=TOKENS, dtype=np.uint16).tofile(path)
        print(f"medians of {args.rounds}, tokens/s")
        print(f"{'case':42} {'threads':>7}  {'ours':>9}  {'theirs':>9}  {'ratio':>5}")
        for threads in args.threads:
            torch.set_num_threads(threads)
            if args.model is not None:
                for name, sizes in SIZES.items():
                    for dtype in DTYPES:
                        reference = nanogpt(args.model, path, sizes, dtype)
                        compare(
                            f"{name}, {dtype}",
                            threads,
                            ours(path, "gpt2", sizes, dtype),
                            reference,
                            sizes,
                            args.rounds,
                        )
            sizes = {"layers": 2, "width": 384, "context": 128, "batch": 32}
            for dtype in DTYPES:
                both = ours(path, "lstm", sizes, dtype), plain_lstm(path, sizes, dtype)
                compare(f"LSTM 2 × 384, {dtype}", threads, *both, sizes, args.rounds)
            for family in ("gpt2", "gptneo"):
                for dropout in (0.0, 0.2):
                    sizes = SIZES["the built-in's size"]
                    quick = ours(path, family, sizes | {"dropout": dropout}, DTYPES[-1])
                    slow = ours(
                        path, family, sizes | {"dropout": dropout}, DTYPES[-1], faster=False
                    )
                    name = f"cpu_kernels.py: {family}, {DTYPES[-1]}, dropout {dropout}"
                    compare(name, threads, quick, slow, sizes, args.rounds)


def compare(
    name: str,
    threads: int,
    first: Callable[[], None],
    second: Callable[[], None],
    sizes: dict[str, Any],
    rounds: int,
) -> None:
    """Measure both sides in turn, and print a line of the table."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        for step, runs in zip((first, second), times, strict=True):
            began = time.perf_counter()
            step()
            if turn >= 2:
                runs.append(time.perf_counter() - began)
    tokens = sizes["batch"] * sizes["context"]
    speeds = [tokens / statistics.median(runs) for runs in times]
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    print(f"{name:42} {threads:7}  {speeds[0]:9,.0f}  {speeds[1]:9,.0f}  {ratio:5.2f}", flush=True)


def ours(
    path: Path, family: str, sizes: dict[str, Any], dtype: str, *, faster: bool = True
) -> Callable[[], None]:
    """One step of `minhub train`."""
    gelu = {"gpt2": {"activation_function": "gelu"}}
    settings = Settings(
        **{
            "family": family,
            "steps": 1000,
            "learning_rate": 1e-3,
            "dropout": 0.0,
            "dtype": dtype,
            "config": gelu.get(family, {}),
            **sizes,
        }
    )
    tokens = Tokens(path, "<u2", TOKENS)
    model = ARCHITECTURES[family].Model(settings.fresh_config(ENTRIES[family], VOCABULARY))
    trainer = Trainer(
        settings,
        RunFolder(path.parent),
        Corpus(tokens, tokens, TOKENS, []),
        None,
        ARCHITECTURES[family],
        model,
        DataParallelGroup(),
        torch.device("cpu"),
        Listener(),
    )
    if not faster:
        trainer.kernels = nullcontext

    def step() -> None:
        trainer.step()
        trainer.progress.step += 1
        trainer.report_progress()

    trainer.reset_timer()
    return step


def nanogpt(model_file: Path, path: Path, sizes: dict[str, Any], dtype: str) -> Callable[[], None]:
    """One step of nanoGPT's train.py."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", model_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    context, batch = sizes["context"], sizes["batch"]
    config = module.GPTConfig(
        n_layer=sizes["layers"],
        n_head=sizes["heads"],
        n_embd=sizes["width"],
        block_size=context,
        vocab_size=VOCABULARY,
        dropout=0.0,
        bias=True,
    )
    model = module.GPT(config)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def rows() -> tuple[torch.Tensor, torch.Tensor]:
        ids = np.memmap(path, np.uint16, "r")
        starts = torch.randint(len(ids) - context, (batch,))
        x = torch.stack([torch.from_numpy(ids[i : i + context].astype(np.int64)) for i in starts])
        y = torch.stack(
            [torch.from_numpy(ids[i + 1 : i + 1 + context].astype(np.int64)) for i in starts]
        )
        return x, y

    def step() -> None:
        x, y = rows()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            _, loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def plain_lstm(path: Path, sizes: dict[str, Any], dtype: str) -> Callable[[], None]:
    """One step of a loop as in tutorials: nn.LSTM, cross entropy, AdamW, gradient clipping."""
    context, batch = sizes["context"], sizes["batch"]
    embedding, lstm = (
        nn.Embedding(VOCABULARY, 64),
        nn.LSTM(64, sizes["width"], sizes["layers"], batch_first=True),
    )
    parts = nn.ModuleList([embedding, lstm, nn.Linear(sizes["width"], VOCABULARY)])
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-3)
    ids = torch.from_numpy(np.fromfile(path, np.uint16).astype(np.int64))

    def step() -> None:
        starts = torch.randint(len(ids) - context - 1, (batch,))
        rows = torch.stack([ids[i : i + context + 1] for i in starts])
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = parts[2](lstm(embedding(rows[:, :-1]))[0])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
