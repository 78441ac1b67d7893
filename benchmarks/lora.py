"""A step of LoRA compared with PEFT and transformers: the same model, factors and tokens,
interleaved, in CPU time.

    python benchmarks/lora.py [LAYERS] [TOKENS]

The shape is SmolLM2-135M's with LAYERS (30) layers; a step has 4 sequences of TOKENS (128) tokens.
PEFT's frozen weights are in float32, its default, and in bfloat16, as ours are where the processor
has it. The memory of each is the peak of a separate process. Needs peft and accelerate.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from minhub_py.training.cpu_kernels import CPUKernels
from minhub_py.training.initial_model import load_model
from minhub_py.training.objectives import token_logprobs
from minhub_py.training.resolution import open_start
from minhub_py.training.settings import Settings

REPEATS, BATCH, VOCABULARY = 5, 4, 49152
SIDES = ("ours, float32", "ours, bfloat16", "PEFT, float32", "PEFT, bfloat16")


def save_model(folder: str, layers: int) -> None:
    """A random model in the Hub's format."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def step_of(side: str, folder: str, tokens: int) -> Callable[[], None]:
    """A training step, including the update of the factors."""
    dtype = side.partition(", ")[2]
    idx = torch.randint(VOCABULARY, (BATCH, tokens + 1), generator=torch.Generator().manual_seed(0))
    model: Any
    if side.startswith("PEFT"):
        import peft
        import transformers

        base = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        )
        model = peft.get_peft_model(
            base, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        ).train()
    else:
        settings = Settings(start=folder, lora={"r": 16}, dtype=dtype)
        model = load_model(settings, open_start(settings), None, Tokenizer(BPE()))[1].train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 2e-4, fused=True)

    def loss() -> torch.Tensor:
        if side.startswith("PEFT"):
            return model(input_ids=idx, labels=idx).loss  # type: ignore[no-any-return]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"), CPUKernels():
            hidden = model.hidden(idx[:, :-1])
            return -token_logprobs(
                model.logits, hidden.flatten(0, 1), idx[:, 1:].flatten(), frozen=True
            ).mean()

    def step() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def memory(side: str, folder: str, tokens: int) -> float:
    """The highest resident memory of this process after two steps, in GB."""
    step = step_of(side, folder, tokens)
    for _ in range(2):
        step()
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1e6


def main(layers: int = 30, tokens: int = 128) -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        save_model(folder, layers)
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            peaks = [pool.submit(memory, side, folder, tokens).result() for side in SIDES]
        steps = [step_of(side, folder, tokens) for side in SIDES]
    times: list[list[float]] = [[] for _ in SIDES]
    for repeat in range(REPEATS + 1):
        for step, seconds in zip(steps, times, strict=True):
            started = time.process_time()
            step()
            if repeat:  # the first step initializes libraries
                seconds.append(time.process_time() - started)
    for side, seconds, peak in zip(SIDES, times, peaks, strict=True):
        median = sorted(seconds)[len(seconds) // 2]
        print(f"{side:16} {BATCH * tokens / median:7.0f} tokens per second of CPU, {peak:.2f} GB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
