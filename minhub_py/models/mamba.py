"""Mamba 1 and 2 and Falcon Mamba in one file: layers with a selective state space, without attention
and without MLPs.

Sources
    Gu & Dao (2023), "Mamba"; Dao & Gu (2024), "Transformers are SSMs". The scan and the layers are
        in state_space.py.
    Hub docs: `transformers`, model_types "mamba", "mamba2" and "falcon_mamba".

Differences from similar architectures
    Llama       caches keys and values of every position. Mamba has a state of fixed size, no
                positions and no context length.
    LSTM        has a recurrent state, too; its decay depends on the state, and Mamba's only on the
                token, so that a layer's projections of all positions are one product.
    Qwen 3.5    corrects its state by the difference from the old value (delta.py).

    falcon_mamba    Mamba 1 with norms of Δ, b and c

Notation
    B batch rows    T new positions    C channels    N channels of the scan    S numbers of a
    channel's state    H heads    G groups of b and c    R rank of Δ    V vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import State
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.settings import Effective, unavailable
from minhub_py.models.state_space import Mamba1Mixer, Mamba2Mixer, check_auto, check_step_limit
from minhub_py.models.steps import Embed, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject


class Block(nn.Module):
    def __init__(self, config: "MambaConfig", layer: int) -> None:
        super().__init__()
        self.upcast = config.residual_in_fp32
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = config.mixer(layer)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        h = self.norm(x.to(self.norm.weight.dtype))
        return (x.float() if self.upcast else x) + self.mixer(h, past)


class Mamba(LanguageModel):
    config: "MambaConfig"

    def __init__(self, config: "MambaConfig") -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm_f = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)
        for block in self.layers:
            block.mixer.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embeddings(idx)  # (B, T, C)
        for block in self.layers:
            x = block(x, past)
        return self.norm_f(x).to(self.norm_f.weight.dtype)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embeddings.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[State]:
        return [block.mixer.cache_layout() for block in self.layers]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embeddings)
        for block in self.layers:
            yield Norm(block.norm)
            yield from block.mixer.steps()
        yield Norm(self.norm_f)
        yield Logits(self.embeddings if self.lm_head is None else self.lm_head)


CLASSES = {
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
}
FIRST = {"model_types": ("mamba", "falcon_mamba")}
SECOND = {"model_types": ("mamba2",)}


@dataclass(frozen=True)
class MambaConfig(Effective):
    """The settings of config.json that change the result. Defaults: transformers."""

    TITLE: ClassVar = "Mamba"
    # The next two lines: initialization in transformers; other names in files of the authors.
    # norm_before_gate: true in published Mamba 2 files, but transformers always applies the gate first.
    NO_EFFECT: ClassVar = frozenset(
        """
        time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual
        d_model d_inner n_layer ssm_cfg rms_norm fused_add_norm pad_vocab_size_multiple
        max_position_embeddings
        use_mambapy use_falcon_mambapy use_associative_scan chunk_size layer_types norm_before_gate
        """.split()
    )
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "mamba": {},
        "mamba2": {
            "vocab_size": 32768,
            "hidden_size": 4096,
            "state_size": 128,
            "num_hidden_layers": 64,
            "tie_word_embeddings": False,
            "pad_token_id": 1,
            "eos_token_id": 2,
        },
        "falcon_mamba": {},
    }

    model_type: str = "mamba"
    vocab_size: int = 50280
    hidden_size: int = 768
    state_size: int = 16
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    expand: int = 2  # N / C
    # N; None: expand · C. It has priority.
    intermediate_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    # R of Mamba 1; "auto": C / 16
    time_step_rank: int | str = field(default="auto", metadata={"range": (1, 2**24)})
    # H; None: N / head_dim
    num_heads: int | None = field(default=None, metadata={"range": (1, 2**24), **SECOND})
    head_dim: int = field(default=64, metadata=SECOND)
    n_groups: int = field(default=8, metadata=SECOND)
    # of Δ; None or from 0 to infinity
    time_step_limit: list | None = field(default=None, metadata=SECOND)  # type: ignore[type-arg]
    conv_kernel: int = field(default=4, metadata={"range": (2, 1024)})
    use_bias: bool = False  # of the projections
    use_conv_bias: bool = True
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    layer_norm_epsilon: float = 1e-5
    mixer_rms_eps: float = field(default=1e-6, metadata={"model_types": ("falcon_mamba",)})
    residual_in_fp32: bool = True  # of models in 16 bits
    initializer_range: float = 0.1
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        check_auto("Mamba", "time_step_rank", self.time_step_rank)
        if self.model_type != "mamba2":
            return
        check_step_limit("Mamba", self.time_step_limit)
        object.__setattr__(self, "time_step_limit", None)
        if self.heads * self.head_dim != self.inner:
            raise ValueError(
                f"Mamba: num_heads · head_dim ({self.heads} · {self.head_dim}) must be"
                f" expand · hidden_size ({self.inner})"
            )
        if self.heads % self.n_groups:
            raise ValueError(
                f"Mamba: num_heads ({self.heads}) must be a multiple of n_groups ({self.n_groups})"
            )

    @property
    def inner(self) -> int:
        """Number of channels of the scan (N)."""
        return self.intermediate_size or self.expand * self.hidden_size

    @property
    def heads(self) -> int:
        """Number of heads in Mamba 2 (H)."""
        return self.num_heads or self.inner // self.head_dim

    @property
    def rank(self) -> int:
        """The rank of Δ in Mamba 1 (R)."""
        rank = self.time_step_rank
        return rank if isinstance(rank, int) else -(-self.hidden_size // 16)

    def mixer(self, layer: int) -> Mamba1Mixer | Mamba2Mixer:
        """The selective state space of a layer."""
        if self.model_type == "mamba2":
            return Mamba2Mixer(
                layer,
                self.hidden_size,
                self.heads,
                self.head_dim,
                self.state_size,
                self.n_groups,
                self.conv_kernel,
                self.layer_norm_epsilon,
                self.hidden_act,
                self.use_bias,
                self.use_conv_bias,
            )
        return Mamba1Mixer(
            layer,
            self.hidden_size,
            self.inner,
            self.state_size,
            self.rank,
            self.conv_kernel,
            self.hidden_act,
            self.use_bias,
            self.use_conv_bias,
            self.mixer_rms_eps if self.model_type == "falcon_mamba" else None,
        )

    @property
    def context_length(self) -> None:
        """There is no maximum number of positions."""
        return

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`."""
        settings = super().effective
        if self.model_type == "mamba2":
            return {**settings, "intermediate_size": self.inner}
        return {**settings, "intermediate_size": self.inner, "time_step_rank": self.rank}

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        absent = unavailable(self, self.model_type)
        settings = {name: value for name, value in asdict(self).items() if name not in absent}
        for name in ("intermediate_size", "time_step_limit"):
            if settings.get(name, 0) is None:
                del settings[name]
        if self.model_type == "mamba2":
            settings["num_heads"] = self.heads
        return {"architectures": [CLASSES[self.model_type]], **settings}
