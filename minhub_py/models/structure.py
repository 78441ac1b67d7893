"""The structure of Llama and its relatives, as data: what models/llama.py computes beyond the sizes.

A relative is a config file: a dataclass of its settings, derived from `RelativeConfig`, whose `structure` states the
differences from Llama. models/smollm3.py is a short example.

Notation: see models/llama.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS
from minhub_py.models.heads import HeadSettings
from minhub_py.models.settings import Positions, check_layer_types, check_multiple, check_rotated


@dataclass(frozen=True)
class Structure:
    """What distinguishes the decoders that models/llama.py computes. The defaults are Llama's.

    windows: the window of each layer, in positions; None for all previous positions.
    ropes: the `rotary.completed` settings of each layer; None for a layer without rotary embedding.
    rotated: rotated numbers of each head (R).    scale: factor of the attention scores; None for 1 / √D.
    interleaved: see `layers.rotate`.    exact_rotation: cosine and sine are not rounded to 16 bits.
    norm: RMS norm, or layer norm with or without bias.    eps: of all norms.
    head_norms: norms of each head of q and k; of all heads jointly; or layer norms with a weight per head.
    norms_last: the norms of q and k follow the rotation.
    norm_before, norm_after: a norm before, and after, attention and MLP.
    parallel: attention and MLP read one norm of the block's input, and both outputs are added to it.
    gated: an MLP with a gate; otherwise one layer, the activation, and one layer.
    embedding_scale, residual_scale, logit_scale: factors of the embeddings, of the outputs of attention and MLP, and of
    the logits.    dropout, embedding_dropout: of the outputs of attention and MLP, and of the embeddings.
    embedding_norm: a norm of the embeddings.    alibi: a bias of the scores by the distance.    sinusoids: positions
    are added to the embeddings, as in XGLM.
    """

    windows: Sequence[int | None]
    ropes: Sequence[dict[str, Any] | None]
    rotated: int
    scale: float | None = None
    interleaved: bool = False
    exact_rotation: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm: Literal["rms", "layer", "layer without bias"] = "rms"
    eps: float = 1e-6
    head_norms: Literal["", "each", "joint", "layer"] = ""
    norms_last: bool = False
    norm_before: bool = True
    norm_after: bool = False
    parallel: bool = False
    gated: bool = True
    embedding_scale: float | None = None
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    dropout: float = 0.0
    embedding_dropout: float = 0.0
    embedding_norm: bool = False
    alibi: bool = False
    sinusoids: bool = False


@dataclass(frozen=True)
class RelativeConfig(HeadSettings, Positions):
    """The common settings of Llama's relatives. Subclasses declare their own settings and defaults.

    ARCHITECTURE: the class of the transformers model.    MODEL_TYPE: config.json's model_type.    THETA: the default of
    rope_theta.    PART: the default of partial_rotary_factor.
    """

    TITLE: ClassVar[str] = ""
    MODEL_TYPE: ClassVar[str] = ""
    ARCHITECTURE: ClassVar[str] = ""
    NO_EFFECT: ClassVar[frozenset[str]] = frozenset({"pretraining_tp"})
    DERIVED: ClassVar[tuple[str, ...]] = ("head_dim",)
    THETA: ClassVar[float] = 1e4
    PART: ClassVar[float] = 1.0

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: num_attention_heads
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
                f"{self.TITLE}: hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )
        structure = self.structure  # checks the pattern of layers
        if self.head_size % 2:
            raise ValueError(f"{self.TITLE}: the head size ({self.head_size}) must be even: positions rotate pairs")
        if any(structure.ropes):
            check_rotated(self.TITLE, structure.rotated, self.head_size)
        names = getattr(self, "ROPE_NAMES", {})
        long = "original_max_position_embeddings" in names
        for number, rope in enumerate(structure.ropes):
            if rope is not None and rope not in structure.ropes[:number]:
                rotary.check(self.TITLE, rope, partial="partial_rotary_factor" in names, longrope=long)

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        raise NotImplementedError

    def declared(self, **differences: Any) -> Structure:
        """A structure with these differences from Llama's: no windows, and one rotation in all layers."""
        windows, rope = [None] * self.num_hidden_layers, self.rope
        rotated = int(self.head_size * rope.get("partial_rotary_factor", 1.0))
        ropes = [rope] * self.num_hidden_layers
        return Structure(**{"windows": windows, "ropes": ropes, "rotated": rotated, **differences})

    @property
    def inner(self) -> int:
        """The width of the MLP."""
        return self.intermediate_size

    @property
    def kv_heads(self) -> int:
        """G."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_dim(self) -> int | None:
        """D, in relatives without such a setting."""
        return self.hidden_size // self.num_attention_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with defaults."""
        rope = rotary.completed(self.rope_parameters, self.max_position_embeddings, self.THETA)
        return rope if self.PART == 1 else {"partial_rotary_factor": self.PART, **rope}

    def windows_of(self, types: Sequence[str] | None, window: int | None) -> list[int | None]:
        """The window of each layer. types: layer_types of config.json; None if all layers have the window."""
        if types is None:
            return [window] * self.num_hidden_layers
        windows = {"full_attention": None, "sliding_attention": window}
        check_layer_types(self.TITLE, types, windows, self.num_hidden_layers)
        return [windows[name] for name in types]

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model for transformers."""
        settings = {**self.without_head(), "rope_parameters": self.rope}
        return {**self.hub_head(self.ARCHITECTURE), "model_type": self.MODEL_TYPE, **settings}
