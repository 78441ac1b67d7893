"""Names of settings and tensors in GGUF files: one `GGUFArchitecture` for each architecture of
GGUF.

They are in the modules of the weight tables, in a tuple `gguf`. Their rows have GGUF's names on the
left and the Hub's canonical names on the right. The table of the model then converts the Hub's
names to native names:

    Row("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", pairs_to_halves("num_attention_heads"))

Source: llama.cpp, gguf-py/gguf/constants.py for the keys, tensor_mapping.py for the names, and its
converters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from weights_map.engine import INDEX, Operation, Row, Table

Derive = Callable[[Mapping[str, object]], Mapping[str, object]]
Encode = Callable[[Mapping[str, object]], Mapping[str, object]]
PACKED = ".mxfp4"  # suffix of tensors in MXFP4 that are not dequantized


def no_settings(settings: Mapping[str, object]) -> Mapping[str, object]:
    """No further settings."""
    return {}


def all_models(config: Mapping[str, object]) -> bool:
    """Every model."""
    return True


def no_keys(config: Mapping[str, object]) -> Mapping[str, object]:
    """No further keys."""
    return {}


# Common settings of `GGUFArchitecture`.
SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}


@dataclass(frozen=True)
class GGUFArchitecture:
    """The mapping of a GGUF architecture to a model_type of the Hub.

    Attributes:
        name: general.architecture.
        model_type: the Hub's model_type.
        settings: keys, without "<architecture>.", to names in config.json.
        rows: GGUF template, Hub template, operation.
        flags: tensors whose presence sets a flag, to names in config.json.
        derive: returns further settings that follow from the others.
        required: keys, without "<architecture>.", that are supported with one value only.
        sizes: tensors whose number of rows is a setting, to names in config.json.
        with_experts: for files with experts, if files without have the same general.architecture.
        assumed: a description of settings that the files lack; "" if they are complete.
        model_types: the Hub's model_types that are written as this architecture; () for model_type
            only.
        rope_by_type: layers with full and with sliding attention have different rotary embeddings,
            the latter with rope_theta `rope_local_base_freq`.
        encode: further keys of a file to write, from the settings of config.json. ValueError: the
            architecture lacks a setting.
        yarn: settings of rope_parameters that files with yarn lack.
        packed: templates, without the suffix ".weight", of tensors that stay in MXFP4, if all of
            them are stored so. In rows their suffix is then `PACKED`, and they are uint8 (…, bytes
            of a row).
        alternative: a tensor, and the architecture of files that have it.
        class_suffix: the end of the class in config.json's architectures, if it distinguishes
            models of one model_type that are written as different architectures.
        layers_with: templates of tensors, to names of settings for `derive`: the list of layers that
            have the tensor.
        ignored: keys, without "<architecture>.", without effect.
        folded: settings of config.json that are factors of the weights in a file, and their values if it
            is read.
        writes: whether a config.json of these model_types is written as this architecture.
    """

    name: str
    model_type: str
    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    flags: Mapping[str, str] = field(default_factory=dict)
    derive: Derive = no_settings
    required: Mapping[str, object] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    with_experts: bool = False
    assumed: str = ""
    model_types: tuple[str, ...] = ()
    encode: Encode = no_keys
    rope_by_type: bool = False
    yarn: Mapping[str, object] = field(default_factory=dict)
    packed: tuple[str, ...] = ()
    alternative: "tuple[str, GGUFArchitecture] | None" = None
    class_suffix: str = ""
    layers_with: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    folded: Mapping[str, object] = field(default_factory=dict)
    writes: Callable[[Mapping[str, object]], bool] = all_models

    @property
    def key(self) -> str:
        """The key in `weights_map.gguf_architectures`."""
        return f"{self.name} with experts" if self.with_experts else self.name

    def names(self, types: Mapping[str, str]) -> dict[str, str]:
        """The names of a file's tensors in the rows. types: their types by name."""
        packed = [
            name for name in types if INDEX.sub("{}", name.removesuffix(".weight")) in self.packed
        ]
        if not all(types[name] == "MXFP4" for name in packed):
            packed = []
        return {name: name for name in types} | {
            name: name.removesuffix(".weight") + PACKED for name in packed
        }

    @cached_property
    def table(self) -> Table:
        """The rows as a table: its Hub side is GGUF, and its native side the Hub."""
        return Table(f"GGUF's {self.name}", self.rows)


def pairs_to_halves(heads: str) -> Operation:
    """Reorder the rows of q or k: GGUF has adjacent rotary pairs, the Hub rows i and i + D/2 of
    each head.

    heads: config.json's name of the number of heads.
    """

    def swap(tensors: Sequence[Tensor], *sizes: int) -> Sequence[Tensor]:
        [tensor] = tensors
        return [tensor.unflatten(0, sizes).transpose(1, 2).reshape(tensor.shape)]

    return Operation(
        "from pairs to halves",
        lambda tensors, count: swap(tensors, count, -1, 2),
        lambda tensors, count: swap(tensors, count, 2, -1),
        setting=heads,
        permutes=True,
    )


subtract_one = Operation(
    "from 1 + w to w",
    lambda tensors: [tensor - 1 for tensor in tensors],
    lambda tensors: [tensor + 1 for tensor in tensors],
)


def inverse(operation: Operation) -> Operation:
    """An operation's inverse, for tensors that GGUF stores in the native shape."""
    return replace(
        operation,
        name=f"inverse: {operation.name}",
        to_native=operation.to_hub,
        to_hub=operation.to_native,
    )
