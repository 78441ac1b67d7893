"""A report of a GPU in one file: the machine, the tests marked gpu, and the speed of generation.

    make gpu        (or: python benchmarks/gpu.py [FILE]; FILE is gpu-report.txt unless given)

Speed: new tokens per second after a prompt, and tokens of a prompt per second, interleaved with
transformers; random weights of published sizes, which take as long as trained ones. Exit status: 1
without a working GPU, or if a test fails.
"""

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

from minhub_py import devices, generate
from minhub_py.loading.doctor import examine
from minhub_py.models.registry import preset
from minhub_py.models.skeleton import skeleton
from minhub_py.system import processor

ROOT = Path(__file__).parents[1]
SIZES = ("gpt2", "gpt2-xl", "SmolLM2-135M", "Qwen2.5-0.5B")
DTYPES = ("float32", "bfloat16", "float16")
PROMPT, LONG, NEW, ROUNDS = 16, 512, 64, 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, default=Path("gpu-report.txt")
    )
    path: Path = parser.parse_args().file
    works = torch.cuda.is_available() and any(
        probe.works for probe in devices().probes if probe.name.startswith("cuda")
    )
    with path.open("w", encoding="utf-8") as file:

        def report(*lines: str) -> None:
            for line in lines:
                print(line, flush=True)
                print(line, file=file, flush=True)

        report(*machine())
        failed = True
        if works:
            failed = tests(report)
            speeds(report)
        else:
            report(
                "",
                "NO GPU: the tests marked gpu and the figures are missing. DEVICE and CUDA above"
                " say what to do.",
            )
    print(f"\nWritten: {path.resolve()}")
    sys.exit(failed)


def machine() -> list[str]:
    """Processor, system, versions, devices and drivers."""
    packages = ("minhub_py", "torch", "transformers", "numpy")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    lines = [
        (
            f"{processor.name()}, {processor.cores()} cores; {platform.platform()}; Python"
            f" {platform.python_version()}"
        ),
        versions,
        *str(devices()).splitlines(),
        *(
            f"{finding.what}: {finding.found} {finding.advice}".strip()
            for finding in examine()
            if finding.what in ("CUDA", "decoder in C")
        ),
    ]
    try:
        query = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total",
            "--format=csv,noheader",
        ]
        result = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
        return [
            *lines,
            *(f"nvidia-smi: {line}" for line in (result.stdout or result.stderr).splitlines()),
        ]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [*lines, f"nvidia-smi: {error}"]


def tests(report: Callable[..., None]) -> bool:
    """Run the tests marked gpu, and report their output. Returns whether one has failed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-q",
        "-rA",
        "--tb=short",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report("", "TESTS", *(result.stdout + result.stderr).splitlines())
    return result.returncode != 0


def speeds(report: Callable[..., None]) -> None:
    """Measure and report the speed of both sides for each size."""
    report(
        "",
        f"SPEED, medians of {ROUNDS} rounds: {NEW} new ids after {PROMPT}; and a prompt of {LONG}."
        " Ids/s",
        f"{'size':16} {'dtype':9} {'rows':>4} {'new, ours':>10} {'theirs':>10} {'prompt, ours':>13}"
        f" {'theirs':>10}",
    )
    for size in SIZES:
        for dtype in DTYPES:
            for rows in (1, 8):
                try:
                    report(measured(size, getattr(torch, dtype), rows))
                except torch.OutOfMemoryError:
                    report(f"{size:16} {dtype:9} {rows:4} does not fit the GPU's memory")
                torch.cuda.empty_cache()


def measured(size: str, dtype: torch.dtype, rows: int) -> str:
    """One line of the table."""
    from transformers import AutoConfig, AutoModelForCausalLM

    published = preset(size)
    assert published is not None
    family, config = published
    ours = skeleton(family.Model, config).to_empty(device="cuda").to(dtype).eval()
    settings = AutoConfig.for_model(
        **{key: value for key, value in config.to_hub().items() if key != "architectures"}
    )
    reference_model = AutoModelForCausalLM.from_config(settings, dtype=dtype).to("cuda").eval()
    with torch.no_grad():
        for parameter in (*ours.parameters(), *reference_model.parameters()):
            parameter.normal_(std=0.02)
    prompts = torch.randint(
        config.vocab_size, (rows, LONG), generator=torch.Generator().manual_seed(0)
    )
    short, long = prompts[:, :PROMPT], prompts.cuda()
    greedy: dict[str, Any] = {
        "min_new_tokens": NEW,
        "max_new_tokens": NEW,
        "do_sample": False,
        "pad_token_id": 0,
    }
    sides: list[Callable[[], object]] = [
        lambda: generate(ours, short.tolist(), NEW, temperature=0, eos_id=None),
        lambda: reference_model.generate(
            short.cuda(), attention_mask=torch.ones_like(short).cuda(), **greedy
        ),
        lambda: ours(long),
        lambda: reference_model(long),
    ]
    with torch.inference_mode():
        times: list[list[float]] = [[] for _ in sides]
        for _ in range(1 + ROUNDS):  # the first warms up
            for side, seconds in zip(sides, times, strict=True):
                torch.cuda.synchronize()
                started = time.perf_counter()
                side()
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - started)
    numbers = [
        rows * count / median(seconds[1:])
        for count, seconds in zip((NEW, NEW, LONG, LONG), times, strict=True)
    ]
    head = f"{size:16} {str(dtype).removeprefix('torch.'):9} {rows:4}"
    return f"{head} {numbers[0]:10,.0f} {numbers[1]:10,.0f} {numbers[2]:13,.0f} {numbers[3]:10,.0f}"


if __name__ == "__main__":
    main()
