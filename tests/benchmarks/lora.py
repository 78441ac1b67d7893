"""A step of LoRA against PEFT and transformers: the same model, factors and tokens, interleaved, in CPU time.

    python tests/benchmarks/lora.py [LAYERS] [TOKENS]

The shape is SmolLM2-135M's with LAYERS (8) layers. Needs peft and accelerate.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import peft
import torch
import transformers

from minhub_py import from_pretrained
from minhub_py.adapters.attach import attach, new_adapter
from minhub_py.adapters.config import AdapterConfig
from minhub_py.training.cpu_kernels import CPUKernels
from minhub_py.training.objectives import token_logprobs

REPEATS = 4


def main(layers: int = 8, tokens: int = 512) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    reference = transformers.LlamaForCausalLM(config)
    with TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        base = from_pretrained(Path(folder), dtype="float32").requires_grad_(False)
    settings = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
    ours = attach(base, new_adapter(base, AdapterConfig(**settings), 0)).train()
    theirs = peft.get_peft_model(reference, peft.LoraConfig(**settings)).train()
    idx = torch.randint(49152, (1, tokens + 1))
    optimizers = [
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 2e-4, fused=True)
        for model in (ours, theirs)
    ]

    def our_loss() -> torch.Tensor:
        with CPUKernels():
            return -token_logprobs(ours.logits, ours.hidden(idx[:, :-1])[0], idx[0, 1:], frozen=True).mean()

    def their_loss() -> torch.Tensor:
        return theirs(input_ids=idx, labels=idx).loss

    def step(loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> float:
        started = time.process_time()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - started

    times: list[list[float]] = [[], []]
    for repeat in range(REPEATS + 1):
        for index, loss in enumerate((our_loss, their_loss)):
            seconds = step(loss, optimizers[index])
            if repeat:  # the first step initializes libraries
                times[index].append(seconds)
    medians = [sorted(values)[len(values) // 2] for values in times]
    print(f"minhub {medians[0]:.2f} s, PEFT {medians[1]:.2f} s of CPU per step: {medians[1] / medians[0]:.2f} times")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
