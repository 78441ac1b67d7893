"""What GGUF files call a family's settings and tensors: one `Form` for each architecture that the files name.

A family's module here has them in a tuple `gguf`. A form's rows are those of a table, with GGUF's names on the left and
the Hub's canonical ones on the right, so that the family's own table goes on from there:

    Row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", neighbours("num_attention_heads"))

Source: llama.cpp, gguf-py/gguf/constants.py for the keys, tensor_mapping.py for the names, and its converters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from weights_map.engine import Operation, Row, Table


@dataclass(frozen=True)
class Form:
    """An architecture of GGUF, and how it becomes a model_type of the Hub."""

    architecture: str
    model_type: str
    settings: Mapping[str, str]  # key, after "<architecture>." -> name in config.json
    rows: tuple[Row, ...]  # (GGUF's template, the Hub's, operation)
    flags: Mapping[str, str] = field(default_factory=dict)  # a tensor -> the setting that says that it is there
    # Further settings of config.json that follow from those given.
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {}

    @cached_property
    def table(self) -> Table:
        """The rows as a table, whose hub side is GGUF's and whose native side is the Hub's."""
        return Table(f"GGUF's {self.architecture}", self.rows)


def neighbours(heads: str) -> Operation:
    """The rows of q or k: of each head, GGUF has pair i side by side where the Hub has it as i and i + D/2.

    heads: the name, in config.json, of the number of heads.
    """

    def swapped(tensors: Sequence[Tensor], *sizes: int) -> Sequence[Tensor]:
        [tensor] = tensors
        return [tensor.unflatten(0, sizes).transpose(1, 2).reshape(tensor.shape)]

    return Operation(
        "from neighbours to halves",
        lambda tensors, count: swapped(tensors, count, -1, 2),
        lambda tensors, count: swapped(tensors, count, 2, -1),
        setting=heads,
        moves=True,
    )


plus_one = Operation(
    "from 1 + w to w",
    lambda tensors: [tensor - 1 for tensor in tensors],
    lambda tensors: [tensor + 1 for tensor in tensors],
)


def reverse(operation: Operation) -> Operation:
    """The operation from right to left: for tensors that a GGUF file has in our shape already."""
    return replace(operation, name=f"{operation.name}, undone", to_native=operation.to_hub, to_hub=operation.to_native)
