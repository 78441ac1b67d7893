"""The case `files`: prompts and decoding of GGUF files, compared with llama.cpp and ik_llama.cpp."""

import json
import os
import statistics
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from peers.run import Bench, Case, LeftOutError, Runner, Subject

IK_LLAMA = "MINHUB_BENCH_IK_LLAMA"  # names the folder in which ik_llama.cpp was built
PROMPTS, NEW = (256, 512), 64


class LlamaBench:
    """ik_llama.cpp's own benchmark, since it has no Python package. folder: a GGUF file.    repack:
    weights are repacked when they are loaded.
    """

    def __init__(self, folder: str, threads: int, repack: bool = False) -> None:
        self.command = [
            *(str(program()), "-m", folder, "-t", str(threads)),
            *("-rtr", str(int(repack)), "-r", "1", "-n", "0", "-o", "json"),
        ]

    def timed(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        """Seconds for a prompt of this length and `new` tokens, without the ids."""
        length = len(prompts[0])
        parts = ["-gp", f"{length},{new - 1}"] if new > 1 else []
        output = subprocess.run(
            [*self.command, "-p", str(length), *parts], capture_output=True, text=True, check=True
        ).stdout
        return {"seconds": sum(test["avg_ns"] for test in json.loads(output)) / 1e9}


def program() -> Path:
    """ik_llama.cpp's llama-bench. RuntimeError: the variable does not name its folder."""
    path = Path(os.environ.get(IK_LLAMA, ""), "bin", "llama-bench").absolute()
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"{IK_LLAMA} names no folder with bin/llama-bench")
    return path


def runners(bench: Bench) -> list[Runner]:
    """Runners of this package, and of the other programs that are installed."""
    everywhere = Subject("", "llama", Path(), 0, None, 0)
    results = [Runner("minhub_py", "stored", "Minhub")]
    results += [
        Runner(peer.library, "stored", peer.engine, {}, None, peer.python)
        for peer in bench.peers(everywhere, "int8", only=["llama.cpp"])
    ]
    if IK_LLAMA in os.environ:
        program()
        for weights, options in (("stored", {}), ("repacked", {"repack": True})):
            results.append(Runner("ik_llama.cpp", weights, "files:LlamaBench", options))
    else:
        bench.leave_out(f"ik_llama.cpp is left out because {IK_LLAMA} is not set")
    return results


def files(bench: Bench) -> Case:
    """Tokens per second of prompts and of decoding after the first prompt, for each of --file."""
    if not bench.settings.files:
        raise LeftOutError("no --file names a GGUF file")
    rows: list[dict[str, Any]] = []
    notes = []
    new = bench.pick(NEW, 8)
    for path in bench.settings.files:
        subject = Subject(path, "llama", Path(path), 1000, None, 0)
        with bench.team(subject, runners(bench)) as team:
            steps = {
                (runner, length, count): partial(
                    worker.ask, "timed", prompts=[subject.prompt(length)], new=count
                )
                for runner, worker in team.items()
                for length, count in (*((length, 1) for length in PROMPTS), (PROMPTS[0], new))
            }
            measured = bench.interleave(f"Files: {Path(path).name}", steps)
        runs = []
        for runner in team:
            medians = {
                key[1:]: statistics.median(result["seconds"] for result in results)
                for key, results in measured.items()
                if key[0] == runner
            }
            token = (medians[PROMPTS[0], new] - medians[PROMPTS[0], 1]) / (new - 1)
            speeds = [*(length / medians[length, 1] for length in PROMPTS), 1 / token]
            runs.append({"file": Path(path).name, "runner": runner.name, "speeds": speeds})
        rows += runs
        if len(runs) > 1:
            ratios = [
                ours / max(row["speeds"][index] for row in runs[1:])
                for index, ours in enumerate(runs[0]["speeds"])
            ]
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            notes.append(f"{Path(path).name}, × the best of the others: {shown}.")
    title = "Tokens per second of GGUF files: prompts, and decoding after the first"
    return Case(title, rows, {"prompts": list(PROMPTS), "new": new}, notes)
