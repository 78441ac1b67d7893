"""Qwen 3.5's language model, in one file: three layers with a memory of fixed size to each one that attends.

Sources
    Qwen Team (2026), "Qwen3.5". Gated DeltaNet: Yang, Kautz & Hatamizadeh (2024); the rule itself is in delta.py.
    Gated attention: Qiu et al. (2025), "Gated Attention for Large Language Models". Rotary positions: Su et al. (2021).
    Hub docs: `transformers`, model_types "qwen3_5" (with pictures; its text model is read) and "qwen3_5_text".

What differs from its siblings
    Qwen 3    attends in every layer, without a gate, and rotates all of a head. Its norms' weights are factors; here
              they are what is added to 1, but for that of DeltaNet's own norm.
    LSTM      has a state of fixed size too, but computes it one position after another.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)    C channels
    H heads    G groups: heads of k (and of v in attention, of q in DeltaNet)    D head size    R rotated numbers of it
    K, V sizes of a DeltaNet head's keys and values    N channels of the convolution, 2GK + HV    V also: vocabulary
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Layout, Span, State
from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step
from minhub_py.models.delta import delta_rule


class RMSNorm(nn.Module):
    """x / sqrt(mean of x²) · (1 + weight), over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (y * (1 + self.weight.float())).to(x.dtype)


class GatedNorm(nn.Module):
    """x / sqrt(mean of x²) · weight · silu(z), over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (y * self.weight.float() * F.silu(z.float())).to(z.dtype)


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1 in the direction of x (…, K), in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


class GatedDeltaNet(nn.Module):
    """Linear attention by the gated delta rule, after a short convolution of q, k and v over time."""

    def __init__(self, config: "Qwen35Config", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups = config.linear_num_value_heads, config.linear_num_key_heads
        self.key_size, self.value_size = config.linear_key_head_dim, config.linear_value_head_dim
        self.reach = config.linear_conv_kernel_dim - 1  # positions before its own that the convolution reads
        C, N, values = config.hidden_size, config.conv_channels, self.heads * self.value_size
        self.in_proj_qkv = nn.Linear(C, N, bias=False)
        self.in_proj_z = nn.Linear(C, values, bias=False)
        self.in_proj_b = nn.Linear(C, self.heads, bias=False)
        self.in_proj_a = nn.Linear(C, self.heads, bias=False)
        self.conv1d = nn.Conv1d(N, N, config.linear_conv_kernel_dim, groups=N, bias=False)  # each channel by itself
        self.act = ACTIVATIONS[config.hidden_act]
        self.A_log = nn.Parameter(torch.empty(self.heads))
        nn.init.uniform_(self.A_log, 0.01, 16).data.log_()
        self.dt_bias = nn.Parameter(torch.ones(self.heads))
        self.norm = GatedNorm(self.value_size, config.rms_norm_eps)
        self.out_proj = nn.Linear(values, C, bias=False)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        B, T, _ = x.shape
        H, G, K, V = self.heads, self.groups, self.key_size, self.value_size
        mixed = self.in_proj_qkv(x)  # (B, T, N)
        past, state = span.state(self.layer) or (
            mixed.new_zeros(B, self.reach, mixed.size(2)),
            torch.zeros(B, H, K, V, device=x.device),
        )
        mixed = torch.cat((past.to(mixed.dtype), mixed), dim=1)  # (B, reach + T, N)
        past = mixed[:, T:]
        mixed = self.act(self.conv1d(mixed.transpose(1, 2)).transpose(1, 2))  # (B, T, N)
        q, k, v = mixed.split([G * K, G * K, H * V], dim=2)
        q = unit(q.reshape(B, T, G, K)).repeat_interleave(H // G, dim=2) * K**-0.5  # (B, T, H, K)
        k = unit(k.reshape(B, T, G, K)).repeat_interleave(H // G, dim=2)
        v = v.reshape(B, T, H, V).float()
        decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())  # (B, T, H)
        beta = self.in_proj_b(x).float().sigmoid()  # (B, T, H)
        q, k, v, decay, beta = (each.transpose(1, 2) for each in (q, k, v, decay, beta))  # (B, H, T, …)
        with torch.autocast(x.device.type, enabled=False):  # in 16 bits the state would lose what is added to it
            y, state = delta_rule(q, k, v, decay, beta, state)  # (B, H, T, V)
        span.set_state(self.layer, (past, state))
        y = self.norm(y.transpose(1, 2), self.in_proj_z(x).view(B, T, H, V))
        return self.out_proj(y.flatten(2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + R/2) of x (B, H, T, D) by its position's angle; the numbers from R on stay as they are.

    cos, sin: (B or 1, 1, T, R/2).
    """
    half = cos.size(-1)
    first, second, rest = x.split([half, half, x.size(-1) - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: "Qwen35Config", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.dropout = config.attention_dropout
        C, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(C, self.heads * 2 * self.size, bias=bias)  # of each head q, then its gate
        self.k_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.v_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, C, bias=bias)
        self.q_norm = RMSNorm(self.size, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.size, config.rms_norm_eps)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, gate = self.q_proj(x).view(B, T, self.heads, 2 * self.size).chunk(2, dim=3)  # (B, T, H, D) each
        k = self.k_proj(x).view(B, T, self.groups, self.size)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)  # (B, G, T, D)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(self.k_norm(k).transpose(1, 2), cos, sin)  # (B, G, T, D)
        k, v, seen = span.update(self.layer, k, v)  # (B, G, S, D), (B, G, S, D), (B or 1, S)
        if self.heads != self.groups:
            k = k.repeat_interleave(self.heads // self.groups, dim=1)  # (B, H, S, D)
            v = v.repeat_interleave(self.heads // self.groups, dim=1)
        mask = span.mask(seen)  # (B or 1, 1, T, S), or None
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
        )  # (B, H, T, D)
        return self.o_proj((y.transpose(1, 2) * gate.sigmoid()).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: "Qwen35Config") -> None:
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(C, inner, bias=False)
        self.up_proj = nn.Linear(C, inner, bias=False)
        self.down_proj = nn.Linear(inner, C, bias=False)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: "Qwen35Config", layer: int) -> None:
        super().__init__()
        attends = config.kinds[layer] == "full_attention"
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer) if attends else None
        self.linear_attn = None if attends else GatedDeltaNet(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        if self.self_attn is not None:
            x = x + self.self_attn(h, span, cos, sin)
        elif self.linear_attn is not None:
            x = x + self.linear_attn(h, span)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen35(LanguageModel):
    config: "Qwen35Config"

    def __init__(self, config: "Qwen35Config") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        cos, sin, _ = self.rope(span.positions)  # (B or 1, T, R/2)
        cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)  # (B or 1, 1, T, R/2)
        for block in self.layers:
            x = block(x, span, cos, sin)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        config = self.config
        keys = KeyValues(config.num_key_value_heads, config.head_dim)
        past = (config.linear_conv_kernel_dim - 1, config.conv_channels)
        memory = (config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim)
        state = State((past, memory), torch.float32)
        return [keys if kind == "full_attention" else state for kind in config.kinds]

    def steps(self) -> Iterator[Step]:
        block: Any
        act = self.config.hidden_act
        yield step("embed", tokens=self.embed_tokens)
        for block in self.layers:
            attn, delta, mlp = block.self_attn, block.linear_attn, block.mlp
            yield step("rms_norm", layer=block.input_layernorm, plus_one=True)
            if attn is not None:
                heads = {"heads": attn.heads, "groups": attn.groups, "gate": True}
                norms = {"q_norm": attn.q_norm, "k_norm": attn.k_norm, "plus_one": True}
                yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
                yield step("rotate", **heads, rope=self.rope, **norms)
                yield step("attend", **heads, scale=attn.size**-0.5, dropout=attn.dropout)
                yield step("add", layer=attn.o_proj)
            else:
                yield step("linear", layers=[delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a])
                yield step(
                    "delta_rule", heads=delta.heads, groups=delta.groups, conv=delta.conv1d, activation=act,
                    decay=delta.A_log, bias=delta.dt_bias, norm=delta.norm,
                )  # fmt: skip
                yield step("add", layer=delta.out_proj)
            yield step("rms_norm", layer=block.post_attention_layernorm, plus_one=True)
            yield step("linear", layers=[mlp.gate_proj, mlp.up_proj])
            yield step("gate", activation=act)
            yield step("add", layer=mlp.down_proj)
        yield step("rms_norm", layer=self.norm, plus_one=True)
        yield step("logits", layer=self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class Qwen35Config:
    """The settings of config.json that change the result, under the Hub's names; defaults are transformers'."""

    TITLE: ClassVar = "Qwen 3.5"
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}
    # The state is float32 here, in transformers too, whatever the weights are.
    ONLY_VALUE: ClassVar = {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mlp_only_layers": []}
    # mtp: layers that guess the next ids but one, which are not read.
    NO_EFFECT: ClassVar = frozenset({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"})

    vocab_size: int = 248320
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    layer_types: list[str] | None = None
    full_attention_interval: int = 4  # where there are no layer_types: each so many-th layer attends
    linear_conv_kernel_dim: int = field(default=4, metadata={"range": (2, 1024)})
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta, partial_rotary_factor, …
    attention_bias: bool = False
    attention_dropout: float = 0.0
    max_position_embeddings: int = field(default=32768, metadata={"range": (1, 2**31)})
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        for name, part in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            if getattr(self, name) % getattr(self, part):
                raise ValueError(
                    f"Qwen 3.5: {name} ({getattr(self, name)}) must be a multiple of {part} ({getattr(self, part)})"
                )
        if self.layer_types is not None and (
            len(self.layer_types) != self.num_hidden_layers
            or not set(self.layer_types) <= {"full_attention", "linear_attention"}
        ):
            raise ValueError(
                f"Qwen 3.5: layer_types must hold full_attention or linear_attention for each of "
                f"{self.num_hidden_layers} layers"
            )
        rotary.check("Qwen 3.5", self.rope, partial=True)
        if self.rotated < 2 or self.rotated % 2:
            raise ValueError(
                f"Qwen 3.5: partial_rotary_factor rotates {self.rotated} of a head's {self.head_dim} numbers: "
                "it must be an even number of at least 2"
            )

    @property
    def rotated(self) -> int:
        """R."""
        return int(self.head_dim * self.rope["partial_rotary_factor"])

    @property
    def conv_channels(self) -> int:
        """N."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def kinds(self) -> list[str]:
        """full_attention or linear_attention, for each layer."""
        interval = self.full_attention_interval
        return self.layer_types or [
            "linear_attention" if layer % interval else "full_attention"
            for layer in range(1, self.num_hidden_layers + 1)
        ]

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with what it leaves out, and without mrope's: text has one position for all directions."""
        rope = rotary.completed(self.rope_parameters, self.max_position_embeddings)
        text = {name: value for name, value in rope.items() if name not in ("mrope_section", "mrope_interleaved")}
        return {"partial_rotary_factor": 0.25, **text}

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        settings = asdict(self)
        del settings["full_attention_interval"]
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            **settings,
            "layer_types": self.kinds,
            "rope_parameters": {**(self.rope_parameters or {}), **self.rope},
        }

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
