"""Texts and tables of jobs, and jobs in child processes."""

import csv
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from children import SERVER
from commands import minhub

from minhub_py.cli.main import main
from minhub_py.jobs.chunks import Parts
from minhub_py.jobs.tasks import TASKS

LETTERS = "abcdefgh ,\"'\n\t\\é日"
MEASURES = [column.name for column in TASKS["score"].columns]


def random_texts(count: int, most: int = 24) -> list[str]:
    """Texts of 0 to `most` characters; some are empty, some have one."""
    draw = random.Random(1)
    return ["".join(draw.choices(LETTERS, k=draw.randrange(most))) for _ in range(count)]


def write_csv(path: Path, texts: list[str], column: str = "text") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", column, "group"])
        writer.writerows([f"{i:04}", text, f"g,{i % 3}"] for i, text in enumerate(texts))
    return path


def read_csv(path: Path, separator: str = ",") -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=separator))


def fail(*arguments: object, status: int = 1) -> str:
    """Run a command that is expected to fail, and return its error message."""
    result = minhub(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def child(arguments: list[object], errors: Path | None, most: int | None) -> None:
    """Run the command in a new process group."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    torch.set_num_threads(1)
    if errors:
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    if most:
        write = Parts.write

        def write_and_wait(parts: Parts, number: int, content: bytes) -> None:
            write(parts, number, content)
            while len(parts.completed()) >= most and not parts.out.with_name("go on").exists():
                time.sleep(0.005)

        Parts.write = write_and_wait  # type: ignore[method-assign]
    main(list(map(str, arguments)))


def start(*arguments: object, errors: Path | None = None, most: int | None = None) -> Any:
    """Start the command in a process. It waits after `most` parts until the file "go on" exists
    next to the output.
    """
    process = SERVER.Process(target=child, args=(arguments, errors, most))
    process.start()
    return process


def wait_for(process: Any, condition: Callable[[], bool]) -> None:
    """Wait until a condition is met or the process has ended."""
    while process.exitcode is None and not condition():
        process.join(0.002)


def count_parts(out: Path) -> int:
    folder = Parts(out).folder
    return len(list(folder.glob("part-*"))) if folder.exists() else 0
