"""The differences from Llama as data: what models/decoder.py computes beyond the sizes.

An architecture is a config file: a dataclass of its settings, derived from `DecoderConfig`, whose
`structure` states the differences. models/smollm3.py is a short example. A difference that only one
architecture has is not declared here: that architecture has its own model file.

Notation: see models/llama.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.heads import HeadSettings
from minhub_py.models.settings import Positions, check_layer_types, check_multiple, check_rotated
from minhub_py.system.json_text import JsonObject


class Factors(NamedTuple):
    """Factors, 1 by default.

    embeddings: of the embeddings, rounded to the model's dtype; None for no factor.    scores: of
    the attention scores; None for 1 / √D.    residual: of the outputs of attention and MLP.
    logits: of the logits.
    """

    embeddings: float | None = None
    scores: float | None = None
    residual: float = 1.0
    logits: float = 1.0


NO_FACTORS = Factors()


def biases(qkv: bool = False, output: bool = False, mlp: bool = False) -> tuple[str, ...]:
    """`Structure.biases` from a config's settings."""
    return tuple(
        name for name, has_bias in {"qkv": qkv, "output": output, "mlp": mlp}.items() if has_bias
    )


@dataclass(frozen=True)
class Structure:
    """What distinguishes the decoders that models/decoder.py computes. The defaults are Llama's.

    windows: each layer's window, in positions; None for all previous positions.
    ropes: the `rotary.completed` settings of each layer; None for a layer without rotary embedding.
    interleaved: see `layers.rotate`.    exact_rotation: cosine and sine are not rounded to 16 bits.
    biases: the linear layers with a bias: "qkv", "output" (of attention), "mlp".
    norm: RMS norm, or layer norm with or without bias.    eps: of all norms.
    norms: norms before attention and MLP, after them, or both.
    head_norms: norms of each head of q and k, before or after the rotation; of all heads jointly;
    or layer norms with a weight per head.
    parallel: attention and MLP read one norm of the block's input, and both outputs are added to
    it.
    gated: an MLP with a gate; otherwise one layer, the activation, and one layer.
    dropout, embedding_dropout: of the outputs of attention and MLP, and of the embeddings.
    """

    windows: Sequence[int | None]
    ropes: Sequence[JsonObject | None]
    interleaved: bool = False
    exact_rotation: bool = False
    biases: tuple[str, ...] = ()
    norm: Literal["rms", "layer", "layer without bias"] = "rms"
    eps: float = 1e-6
    norms: Literal["before", "after", "both"] = "before"
    head_norms: Literal["", "before rotation", "after rotation", "joint", "layer"] = ""
    parallel: bool = False
    gated: bool = True
    factors: Factors = NO_FACTORS
    dropout: float = 0.0
    embedding_dropout: float = 0.0


@dataclass(frozen=True)
class DecoderConfig(HeadSettings, Positions):
    """The common settings of the general decoder's architectures. Subclasses declare further
    settings and defaults.

    ARCHITECTURE: the class of the transformers model.    MODEL_TYPE: config.json's model_type.
    THETA: the default of rope_theta.    ROTATED: the default of partial_rotary_factor.
    """

    TITLE: ClassVar[str] = ""
    MODEL_TYPE: ClassVar[str] = ""
    ARCHITECTURE: ClassVar[str] = ""
    NO_EFFECT: ClassVar[frozenset[str]] = frozenset({"pretraining_tp"})
    DERIVED: ClassVar[tuple[str, ...]] = ("head_dim",)
    THETA: ClassVar[float] = 1e4
    ROTATED: ClassVar[float] = 1.0

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        if self.__dict__.get("head_dim") is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"{self.TITLE}: hidden_size ({self.hidden_size}) must be a multiple of"
                f" num_attention_heads ({self.num_attention_heads})"
            )
        structure = self.structure  # checks the pattern of layers
        if self.head_size % 2:
            raise ValueError(
                f"{self.TITLE}: the head size ({self.head_size}) must be even, because rotary"
                " embeddings rotate pairs"
            )
        if any(structure.ropes):
            check_rotated(self.TITLE, self.rotated, self.head_size)
        names = getattr(self, "ROPE_NAMES", {})
        long = "original_max_position_embeddings" in names
        for number, rope in enumerate(structure.ropes):
            if rope is not None and rope not in structure.ropes[:number]:
                rotary.check(
                    self.TITLE, rope, partial="partial_rotary_factor" in names, longrope=long
                )

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        raise NotImplementedError

    def declared(self, **differences: Any) -> Structure:
        """A structure with these differences from Llama's: no windows, and one rotation in all
        layers.
        """
        windows, ropes = [None] * self.num_hidden_layers, [self.rope] * self.num_hidden_layers
        return Structure(**{"windows": windows, "ropes": ropes, **differences})

    @property
    def rotated(self) -> int:
        """The number of rotated numbers of each head (R)."""
        return int(self.head_size * self.rope.get("partial_rotary_factor", 1.0))

    @property
    def kv_heads(self) -> int:
        """The number of KV heads (G)."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int | None:
        """The head size (D), for architectures without such a setting."""
        return self.hidden_size // self.num_attention_heads

    @property
    def head_size(self) -> int:
        """The head size (D)."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        rope = rotary.completed(self.rope_parameters, self.max_position_embeddings, self.THETA)
        return rope if self.ROTATED == 1 else {"partial_rotary_factor": self.ROTATED, **rope}

    def windows_of(self, types: Sequence[str] | None, window: int | None) -> list[int | None]:
        """Each layer's window. types: layer_types of config.json; None if all layers have the
        window.
        """
        if types is None:
            return [window] * self.num_hidden_layers
        windows = {"full_attention": None, "sliding_attention": window}
        check_layer_types(self.TITLE, types, windows, self.num_hidden_layers)
        return [windows[name] for name in types]

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head(self.ARCHITECTURE), "model_type": self.MODEL_TYPE, **settings}
