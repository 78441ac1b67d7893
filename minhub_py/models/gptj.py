"""GPT-J, whose attention and MLP read one norm of the stream side by side, in one file.

Sources
    Wang & Komatsuzaki (2021), "GPT-J-6B"; its mesh-transformer-jax. Rotary positions: Su et al. (2021), "RoFormer".
    Hub docs: `transformers`, model_type "gptj".

What differs from its siblings
    GPT-NeoX    has a norm for attention and one for the MLP, and turns the pairs (i, i + R/2); here they are
                neighbours, (2i, 2i + 1). Only the MLP and the head have biases here.
    Phi         one norm too, but halves, and biases everywhere.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, n_embd    H heads    D head size, C / H    R rotary_dim    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (2i, 2i + 1) of x (B, H, T, D) by its position's angle; the numbers from R on stay as they are.

    cos, sin: (B or 1, 1, T, R/2).
    """
    rotated = 2 * cos.size(-1)
    first, second = x[..., 0:rotated:2], x[..., 1:rotated:2]  # (B, H, T, R/2)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.flatten(-2), x[..., rotated:]), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: "GPTJConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.size = config.n_head, config.n_embd // config.n_head
        self.dropout = config.attn_pdrop
        self.q_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.k_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.v_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.out_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, C = x.shape
        q = rotate(self.q_proj(x).view(B, T, self.heads, -1).transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(self.k_proj(x).view(B, T, self.heads, -1).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(B, T, self.heads, -1).transpose(1, 2)
        k, v, seen = span.update(self.layer, k, v)  # (B, H, S, D), (B, H, S, D), (B or 1, S)
        mask = span.mask(seen)  # (B or 1, 1, T, S), or None
        # Scores and softmax in float32, whatever the weights are: in float16 they may overflow.
        y = F.scaled_dot_product_attention(
            q.float(),
            k.float(),
            v.float(),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
        )  # (B, H, T, D)
        return self.out_proj(y.to(x.dtype).transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, config: "GPTJConfig") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.fc_in = nn.Linear(config.n_embd, inner)
        self.fc_out = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_out(self.act(self.fc_in(x)))


class Block(nn.Module):
    def __init__(self, config: "GPTJConfig", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.ln_1(x)
        return x + self.dropout(self.attn(h, span, cos, sin)) + self.dropout(self.mlp(h))


class GPTJ(LanguageModel):
    config: "GPTJConfig"

    def __init__(self, config: "GPTJConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(rotary.completed(None, config.n_positions), config.rotary_dim)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it, only a bias.
        if config.tie_word_embeddings:
            self.lm_head.register_parameter("weight", None)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.drop(self.wte(idx))  # (B, T, C)
        cos, sin, _ = self.rope(span.positions)  # (B or 1, T, R/2)
        cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)  # (B or 1, 1, T, R/2)
        for block in self.h:
            x = block(x, span, cos, sin)
        return self.ln_f(x)

    def logits(self, x: Tensor) -> Tensor:
        tied = self.config.tie_word_embeddings
        return F.linear(x, self.wte.weight if tied else self.lm_head.weight, self.lm_head.bias)

    def cache_layout(self) -> list[KeyValues]:
        return [KeyValues(self.config.n_head, self.config.n_embd // self.config.n_head)] * self.config.n_layer

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.wte, dropout=self.drop.p)
        for block in self.h:
            attn, mlp, p = block.attn, block.mlp, block.dropout.p
            yield step("keep")
            yield step("norm", layer=block.ln_1)
            yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
            yield step("rotate", heads=attn.heads, rope=self.rope, interleaved=True)
            yield step("attend", heads=attn.heads, scale=attn.size**-0.5, dropout=attn.dropout, upcast=True)
            yield step("add", layer=attn.out_proj, dropout=p)
            yield step("norm", layer=block.ln_1, kept=True)  # as before: one norm, of what the block was given
            yield step("linear", layers=[mlp.fc_in], activation=self.config.activation_function)
            yield step("add", layer=mlp.fc_out, dropout=p)
        yield step("norm", layer=self.ln_f)
        tied = self.config.tie_word_embeddings
        yield step("logits", layer=self.wte if tied else self.lm_head, bias=self.lm_head.bias)


@dataclass(frozen=True)
class GPTJConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are GPT-J 6B's."""

    TITLE: ClassVar = "GPT-J"
    ONLY_VALUE: ClassVar = {"rotary": True, "scale_attn_weights": True}
    # n_ctx is the old twin of n_positions; the others are for heads of other tasks.
    NO_EFFECT: ClassVar = frozenset(
        """
        summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout n_ctx
        """.split()
    )

    vocab_size: int = 50400
    n_positions: int = 2048
    n_embd: int = 4096
    n_layer: int = field(default=28, metadata={"range": (1, 4096)})
    n_head: int = 16
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    rotary_dim: int = 64
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT-J: n_embd ({self.n_embd}) must be a multiple of n_head ({self.n_head})")
        size = self.n_embd // self.n_head
        if self.rotary_dim % 2 or self.rotary_dim > size:
            raise ValueError(f"GPT-J: rotary_dim ({self.rotary_dim}) must be even, and at most a head's {size} numbers")

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", **asdict(self)}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.n_positions
