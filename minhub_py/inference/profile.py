"""The time of each operation in the C decoder, for `minhub bench --profile`."""

import re
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from minhub_py.inference.native.library import (
    BLOCKS,
    DTYPES,
    KINDS,
    MXFP4,
    PEAKS,
    DecoderOperation,
    Matrix,
    UnsupportedError,
)
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.models.steps import Attend, Experts, PredictionStep

FORMATS = {
    **{number: str(dtype).removeprefix("torch.") for dtype, number in DTYPES.items()},
    **{number: name for name, number in BLOCKS.items()},
    DTYPES[torch.uint8]: "nf4",
    MXFP4: "mxfp4",
}
CONVERSION, OUTSIDE = "conversion of activations", "outside the decoder"
PEAK_SECONDS = 0.02  # of a measurement of the peak


class OperationTime(NamedTuple):
    """The operations with the same name and weights, of all layers.

    weights: format of the weights.    products: multiply–adds.    factors: of the products, a key
    of `peak_rates`; the quantized activations for integers.    bytes: of weights, read once.
    """

    name: str
    weights: str
    seconds: float
    products: int
    factors: str
    bytes: int


def peak_rates(library: Any) -> dict[str, float]:
    """Multiply–adds per second of a thread without access to memory, by the type of their factors."""
    rates = {}
    for number, name in enumerate(PEAKS):
        rounds, seconds = 1000, 0.0
        while seconds < PEAK_SECONDS:
            rounds *= 2
            start = time.perf_counter()
            products = library.add_products(number, rounds)
            seconds = time.perf_counter() - start
            if not products:
                break
        else:
            rates[name] = products / seconds
    return rates


class Profiler:
    """Measures the operations of a model. UnsupportedError: it needs `TorchRunner`, or has an
    encoder.
    """

    def __init__(self, model: LanguageModel) -> None:
        if model.encoder_decoder or isinstance(model, Encoder):
            raise UnsupportedError("it has an encoder, and a profile is of a decoder")
        self.runner = NativeRunner(model)
        self.peaks = peak_rates(self.runner.library)
        self.names = {
            id(module): re.sub(r"\.\d+(?=\.)", "", name) for name, module in model.named_modules()
        }
        count = len(self.runner.operations)
        self.times = torch.zeros(1 + count, dtype=torch.float64, device="cpu")

    def prompt(self, ids: Sequence[int]) -> list[OperationTime]:
        """A prompt, with the logits of the last token."""
        cache = self.runner.new_cache(1, len(ids))
        return self._measure(lambda: self._forward(ids, cache), 0, len(ids), 1)

    def decode(self, ids: Sequence[int], count: int) -> list[OperationTime]:
        """`count` tokens, one after another, after a prompt."""
        cache = self.runner.new_cache(1, len(ids) + count)
        self._forward(ids, cache)

        def run() -> None:
            for _ in range(count):
                self._forward(ids[-1:], cache)

        return self._measure(run, len(ids), count, count)

    def _forward(self, ids: Sequence[int], cache: Any) -> None:
        self.runner.forward({0: ids}, cache, exact=True)

    def _measure(self, run: Any, first: int, tokens: int, outputs: int) -> list[OperationTime]:
        """Run with measurements: `tokens` positions from `first` on, `outputs` of them with logits."""
        self.times.zero_()
        self.runner.times = self.times
        start = time.perf_counter()
        try:
            run()
        finally:
            self.runner.times = None
        seconds = time.perf_counter() - start
        conversion, *times = self.times.tolist()
        calls = tokens if outputs == tokens else -(-tokens // self.runner.lookahead)
        rows = [
            self._row(step, operation, number, measured, (first, tokens, outputs, calls))
            for (step, number, operation), measured in zip(self._operations(), times, strict=True)
        ]
        rows.append(OperationTime(CONVERSION, "", conversion, 0, "", 0))
        rows.append(OperationTime(OUTSIDE, "", seconds - sum(times) - conversion, 0, "", 0))
        return merged(rows)

    def _operations(self) -> Iterator[tuple[PredictionStep, int, DecoderOperation]]:
        """Each operation with its step and its number in the step."""
        steps = zip(self.runner.program.sources, self.runner.operations, strict=True)
        for _, group in groupby(steps, key=lambda pair: id(pair[0])):
            for number, (step, operation) in enumerate(group):
                yield step, number, operation

    def _row(
        self,
        step: PredictionStep,
        operation: DecoderOperation,
        number: int,
        seconds: float,
        counts: tuple[int, int, int, int],
    ) -> OperationTime:
        first, tokens, outputs, calls = counts
        kind = next(name for name, value in KINDS.items() if value == operation.kind)
        name = type(step).__name__
        if kind == "attend":
            assert isinstance(step, Attend)
            attended = sum(
                position % step.window + 1
                if step.chunked and step.window
                else min(position + 1, step.window or position + 1)
                for position in range(first, first + tokens)
            )
            size = operation.attend.heads * operation.attend.head_size
            cached = "bfloat16" if self._attends_in_bfloat16() else "float32"
            return OperationTime(name, "", seconds, 2 * size * attended, cached, 0)
        weight = weight_of(operation, kind)
        if weight is None:
            return OperationTime(name, "", seconds, 0, "", 0)
        layers = [getattr(step, "layer", None), *getattr(step, "layers", ())]
        layer = layers[1 + number] if len(layers) > 1 else layers[0]
        label = f"{name} {self.names.get(id(layer), '')}".rstrip()
        products, reads = (outputs, outputs) if kind == "logits" else (tokens, calls)
        if isinstance(step, Experts):
            label = f"{name}, {kind}"
            if kind != "route":
                top, matrices = step.routing.top, operation.experts.matrices
                products *= top * matrices
                reads *= min(top * tokens // calls, operation.experts.experts) * matrices
        return OperationTime(
            label,
            FORMATS[weight.dtype],
            seconds,
            products * weight.rows * weight.columns,
            self._factors(weight),
            reads * size_of(weight),
        )

    def _attends_in_bfloat16(self) -> bool:
        return (
            self.runner.model.new_cache(1, 1).dtype == torch.bfloat16 and "bfloat16" in self.peaks
        )

    def _factors(self, weight: Matrix) -> str:
        """The factors of the products with a weight."""
        name = FORMATS[weight.dtype]
        if name == "bfloat16":
            return name if name in self.peaks else "float32"
        if weight.int8_inputs:
            return "int8"
        return "int16" if name in ("int8", "nf4") or weight.dtype >= BLOCKS["Q2_K"] else "float32"


def weight_of(operation: DecoderOperation, kind: str) -> Matrix | None:
    """The weight of an operation's product, or None."""
    if kind in ("linear", "distance_linear"):
        return operation.linear.weight
    if kind in ("add", "logits", "route"):
        return getattr(operation, kind).linear.weight
    return operation.experts.weight if kind in ("experts", "combine") else None


def size_of(weight: Matrix) -> int:
    """Bytes of a weight, without scales that are stored separately."""
    return weight.stride * (weight.columns if weight.transposed else weight.rows)


def merged(rows: Sequence[OperationTime]) -> list[OperationTime]:
    """One row for each name and format of weights, in the order of their first operations."""
    groups: dict[tuple[str, str, str], list[OperationTime]] = {}
    for row in rows:
        groups.setdefault((row.name, row.weights, row.factors), []).append(row)
    return [
        OperationTime(
            name,
            weights,
            sum(row.seconds for row in group),
            sum(row.products for row in group),
            factors,
            sum(row.bytes for row in group),
        )
        for (name, weights, factors), group in groups.items()
    ]
