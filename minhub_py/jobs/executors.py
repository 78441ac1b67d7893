"""Computation of chunks in this process or in several processes of this machine. See also
ray_executor.

An executor takes a `Worker` and an iterator of chunks, and yields (chunk number, part) pairs in any
order.
"""

import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from minhub_py.jobs.task import RowText
from minhub_py.jobs.tasks import TASKS
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonMapping


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows: their texts, and the values of the task's additional column.

    first_row: the number of the first row in the entire input.
    """

    number: int
    first_row: int
    texts: list[str | None]
    extras: list[str | None]


@dataclass(frozen=True)
class Worker:
    """A task and its model. threads: PyTorch's threads in the process; None leaves them unchanged."""

    task: str
    settings: JsonMapping
    model: str
    loading: JsonMapping = field(default_factory=dict)
    threads: int | None = None

    def load(self) -> Callable[[Chunk], bytes]:
        """Load the model. Returns a function that computes the part of a chunk, in JSON."""
        import torch

        from minhub_py.checkpoints.tokenizers.tokenizer import (
            describe_unknown,
            encode,
            read_tokenizer,
            unknown_characters,
        )
        from minhub_py.jobs.manifest import computation
        from minhub_py.loading.files import open_files
        from minhub_py.loading.pretrained import load

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        loading = dict(self.loading)
        files = open_files(self.model, loading.pop("revision", "main"))
        tokenizer = read_tokenizer(files.path)
        model = load(files, **loading, mtp=self.settings.get("draft") == "mtp")
        task = TASKS[self.task]
        computed = computation(model, self.task)
        no_result = [dict.fromkeys(column.name for column in task.all_columns(self.settings))]

        def compute(chunk: Chunk) -> bytes:
            texts, notes = [], dict[str, None]()
            for row, (text, extra) in enumerate(
                zip(chunk.texts, chunk.extras, strict=True), chunk.first_row
            ):
                if not text or (task.extra and not extra):
                    continue
                token_ids = encode(tokenizer, text)
                for character in unknown_characters(tokenizer, text, token_ids):
                    notes[describe_unknown(tokenizer, [character])] = None
                # a word without tokens still counts as a word of its text
                if token_ids or task.extra == "by":
                    texts.append(RowText(row, text, token_ids, extra or ""))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                results = task.run(model, tokenizer, texts, **self.settings)
            notes |= {str(warning.message): None for warning in caught}
            by_row = {
                text.row: result for text, result in zip(texts, results, strict=True) if result
            }
            rows = [
                by_row.get(chunk.first_row + index, no_result) for index in range(len(chunk.texts))
            ]
            return json.dumps(
                {"rows": rows, "notes": list(notes), "computed": computed}, ensure_ascii=False
            ).encode()

        return compute


def run_in_process(worker: Worker, chunks: Iterable[Chunk]) -> Iterator[tuple[int, bytes]]:
    """Compute chunks in this process."""
    compute = worker.load()
    for chunk in chunks:
        yield chunk.number, compute(chunk)


def run_in_processes(
    worker: Worker, chunks: Iterable[Chunk], count: int
) -> Iterator[tuple[int, bytes]]:
    """Compute chunks in `count` processes of this machine. They end when this process ends, even if
    it is killed.

    Errors of the task are raised here.    ChildProcessError: a process was killed.
    """
    context = get_context("spawn")
    pending = iter(chunks)
    processes = {}
    try:
        for number in range(count):
            connection, child_connection = context.Pipe()
            process = context.Process(
                target=serve, args=(child_connection, worker, number == 0), daemon=True
            )
            process.start()
            child_connection.close()  # so that the pipe closes when the process ends
            processes[connection] = process
        busy = [
            connection
            for connection, process in processes.items()
            if send_next(connection, pending, process)
        ]
        while busy:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                with check_alive(processes[ready]):
                    response = ready.recv()
                if isinstance(response, BaseException):
                    raise response
                yield response
                if not send_next(ready, pending, processes[ready]):
                    busy.remove(ready)
    finally:
        for connection, process in processes.items():
            connection.close()
            process.terminate()
            process.join()


def send_next(connection: Connection, chunks: Iterator[Chunk], process: BaseProcess) -> bool:
    """Send the next chunk to a process. Returns False after the last chunk."""
    for chunk in chunks:
        with check_alive(process):
            connection.send(chunk)
        return True
    return False


@contextmanager
def check_alive(process: BaseProcess) -> Iterator[None]:
    """Raise ChildProcessError if the connection closes because the process was killed."""
    try:
        yield
    except (EOFError, ConnectionError):
        process.join()
        raise ChildProcessError(
            f"a worker process was killed (exit code {process.exitcode}), possibly because memory"
            " ran out: reduce --workers"
        ) from None


def serve(connection: Connection, worker: Worker, show_warnings: bool) -> None:
    """Compute the chunks that arrive until the parent closes the connection.

    show_warnings: set for one process only, since all processes raise the same warnings.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    warnings.simplefilter("default" if show_warnings else "ignore")
    warnings.showwarning = lambda message, *_: note(f"Note: {message}")
    try:
        compute = worker.load()
        while True:
            chunk = connection.recv()
            connection.send((chunk.number, compute(chunk)))
    except (EOFError, ConnectionError):
        sys.exit()  # the parent has ended
    except (ValueError, OSError, MemoryError) as error:
        connection.send(type(error)(str(error)))
    except Exception:
        connection.send(RuntimeError(traceback.format_exc()))
