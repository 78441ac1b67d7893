"""Where chunks are computed: in this process, in several processes of this machine, or on a Ray cluster.

Each takes the `Work` and an iterator of chunks, and yields (number, results) as they are ready, in any order.
"""

import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from minhub_py.jobs.tasks import TASKS, Text
from minhub_py.system.console import note


@dataclass(frozen=True)
class Chunk:
    """Texts of consecutive rows, and what stands beside each, if the task needs it.

    first: the number of the first of them in the whole input.
    """

    number: int
    first: int
    texts: list[str | None]
    beside: list[str | None]


@dataclass(frozen=True)
class Work:
    """A task, and the model that it is done with. threads: of this process; None: as they are."""

    task: str
    settings: Mapping[str, Any]
    model: str
    loading: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None

    def start(self) -> Callable[[Chunk], bytes]:
        """Load the model. Returns what computes a chunk: its part, in JSON."""
        import torch

        from minhub_py.checkpoints.tokenizers.tokenizer import (
            describe_unknown,
            encode,
            read_tokenizer,
            unknown_characters,
        )
        from minhub_py.pretrained import load, open_checkpoint

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        loading = dict(self.loading)
        checkpoint = open_checkpoint(self.model, loading.pop("revision", "main"))
        tokenizer = read_tokenizer(checkpoint.path)
        model = load(checkpoint, **loading)
        task = TASKS[self.task]
        missing = [dict.fromkeys(column.name for column in task.columns)]

        def compute(chunk: Chunk) -> bytes:
            texts, notes = [], dict[str, None]()
            for row, (text, beside) in enumerate(zip(chunk.texts, chunk.beside, strict=True), chunk.first):
                if not text or (task.beside and not beside):
                    continue
                ids = encode(tokenizer, text)
                for char in unknown_characters(tokenizer, text, ids):
                    notes[describe_unknown(tokenizer, [char])] = None
                if ids or task.beside == "by":  # a word without a token has its place in a text
                    texts.append(Text(row, text, ids, beside or ""))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                done = task.run(model, tokenizer, texts, **self.settings)
            notes |= {str(each.message): None for each in caught}
            found = {text.row: results for text, results in zip(texts, done, strict=True) if results}
            rows = [found.get(row, missing) for row in range(chunk.first, chunk.first + len(chunk.texts))]
            return json.dumps({"rows": rows, "notes": list(notes)}, ensure_ascii=False).encode()

        return compute


def here(work: Work, chunks: Iterable[Chunk]) -> Iterator[tuple[int, bytes]]:
    """Compute chunks in this process."""
    compute = work.start()
    for chunk in chunks:
        yield chunk.number, compute(chunk)


def processes(work: Work, chunks: Iterable[Chunk], count: int) -> Iterator[tuple[int, bytes]]:
    """Compute chunks in processes of this machine. They end with this one, however it ends.

    OSError: one of them was killed.    Errors of the work are raised here.
    """
    context = get_context("spawn")
    waiting = iter(chunks)
    children = {}
    try:
        for number in range(count):
            ours, theirs = context.Pipe()
            child = context.Process(target=serve, args=(theirs, work, number == 0), daemon=True)
            child.start()
            theirs.close()  # so that each end is closed when its process is gone
            children[ours] = child
        busy = [connection for connection, child in children.items() if send_next(connection, waiting, child)]
        while busy:
            for connection in wait(busy):
                assert isinstance(connection, Connection)
                with alive(children[connection]):
                    answer = connection.recv()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                if not send_next(connection, waiting, children[connection]):
                    busy.remove(connection)
    finally:
        for connection, child in children.items():
            connection.close()
            child.terminate()
            child.join()


def send_next(connection: Any, chunks: Iterator[Chunk], child: Any) -> bool:
    """Send the next chunk; False: there is none."""
    for chunk in chunks:
        with alive(child):
            connection.send(chunk)
        return True
    return False


@contextmanager
def alive(child: Any) -> Iterator[None]:
    """ChildProcessError: the other end of a connection was killed."""
    try:
        yield
    except (EOFError, ConnectionError):
        child.join()
        raise ChildProcessError(
            f"a worker was ended from outside (exit code {child.exitcode}), as the system does where memory is short: "
            "give fewer --workers"
        ) from None


def serve(connection: Any, work: Work, speaks: bool) -> None:
    """Compute the chunks that come, until the other end is closed. speaks: show warnings, which all others repeat."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    warnings.simplefilter("default" if speaks else "ignore")
    warnings.showwarning = lambda message, *_: note(f"Note: {message}")
    try:
        compute = work.start()
        while True:
            chunk = connection.recv()
            connection.send((chunk.number, compute(chunk)))
    except (EOFError, ConnectionError):
        sys.exit()  # the parent has ended
    except (ValueError, OSError, MemoryError) as error:
        connection.send(type(error)(str(error)))
    except Exception:
        connection.send(RuntimeError(traceback.format_exc()))
