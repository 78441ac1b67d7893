"""Batching for an encoder: texts of different requests share the calls of one thread.

A call has about BATCH_TOKENS tokens. Requests take turns, so that a request with many texts does
not delay the others. Results are bitwise identical to a single text, if the native runner computes
in float32 or int8.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minhub_py.analysis.encoders import Input, run
from minhub_py.inference.encoder_runner import (
    BATCH_TOKENS,
    EncoderRunner,
    TorchEncoder,
    encoder_runner,
)
from minhub_py.inference.prefixes import identity_of_weights
from minhub_py.models.encoder import Encoder
from minhub_py.serve.engine_thread import EngineThread, Failure, failure_of


@dataclass(eq=False)
class EncoderRequest:
    """Texts to encode.

    finish: the result of a text, from its hidden states (T, C) in float32.
    send: receives the list of results, or a Failure, in the engine's thread.
    deadline, cancelled: as in `engine.Request`.
    """

    inputs: Sequence[Input]
    finish: Callable[[Tensor, Input], object]
    send: Callable[[list[Any] | Failure], object]
    deadline: float = float("inf")
    cancelled: bool = False
    results: list[object] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(len(row.ids) for row in self.inputs)


class EncoderEngine(EngineThread[EncoderRequest]):
    """A thread that runs an encoder, with a queue of requests.

    max_length: maximum number of tokens of a text.    queue_size: maximum number of unfinished
    requests.
    """

    def __init__(self, model: Encoder, max_length: int, queue_size: int = 128) -> None:
        super().__init__(0, max_length, queue_size)
        self.model = model
        self.batch: list[tuple[EncoderRequest, Input]] = []
        self.start()

    @property
    def active(self) -> Collection[object]:
        """The requests with a text in the current batch."""
        return {id(request) for request, _ in self.batch}

    def _run(self) -> None:
        with torch.inference_mode():
            runner, weights = encoder_runner(self.model), identity_of_weights(self.model)
            try:
                while not self.stopping:
                    self._receive(wait=not self.waiting)
                    now = time.monotonic()
                    self.waiting = [
                        request for request in self.waiting if not self._has_ended(request, now)
                    ]
                    # R's load_state_dict()
                    if (current := identity_of_weights(self.model)) != weights:
                        runner, weights = encoder_runner(self.model), current
                    self.batch = self._next_batch(padded=isinstance(runner, TorchEncoder))
                    self._compute(runner)
            finally:
                self._end()

    def _next_batch(self, padded: bool) -> list[tuple[EncoderRequest, Input]]:
        """Texts of about BATCH_TOKENS tokens: one of each waiting request in turn. The next batch
        begins with the last.

        padded: count the padding.
        """
        batch: list[tuple[EncoderRequest, Input]] = []
        scheduled = {id(request): len(request.results) for request in self.waiting}
        turns = list(self.waiting)
        total = longest = 0
        while turns:
            request = turns.pop(0)
            text = request.inputs[scheduled[id(request)]]
            total, longest = total + len(text.ids), max(longest, len(text.ids))
            if batch and (longest * (len(batch) + 1) if padded else total) > BATCH_TOKENS:
                position = self.waiting.index(request)
                self.waiting = self.waiting[position:] + self.waiting[:position]
                break
            batch.append((request, text))
            scheduled[id(request)] += 1
            if scheduled[id(request)] < len(request.inputs):
                turns.append(request)
        return batch

    def _compute(self, runner: EncoderRunner) -> None:
        """Compute a batch; if it raises, compute its texts one by one to find the request that
        fails.
        """
        try:
            self._add_results(runner, self.batch)
        except Exception:
            for request, text in self.batch:
                if request in self.waiting:
                    try:
                        self._add_results(runner, [(request, text)])
                    except Exception as error:
                        self.waiting.remove(request)
                        self._fail(request, failure_of(error))
        for request in [
            request for request in self.waiting if len(request.results) == len(request.inputs)
        ]:
            self.waiting.remove(request)
            self.counts["prompt"] += request.tokens
            self._count_end("finished")
            request.send(request.results)
        self.batch = []

    def _add_results(
        self, runner: EncoderRunner, batch: Sequence[tuple[EncoderRequest, Input]]
    ) -> None:
        """Compute texts and add their results to the requests: all, or none if it raises."""
        if not batch:
            return
        states = run(runner, self.model, [text for _, text in batch])
        results = [
            request.finish(part, text) for (request, text), part in zip(batch, states, strict=True)
        ]
        for (request, _), result in zip(batch, results, strict=True):
            request.results.append(result)
