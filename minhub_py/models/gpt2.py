"""GPT-2, the decoder-only transformer, in one file.

Sources
    Radford et al. (2019), "Language Models are Unsupervised Multitask Learners".
    Reference implementation: OpenAI's gpt-2 (TensorFlow); Hub docs: `transformers`, model_type "gpt2".

What differs from its siblings
    GPT-Neo   has no bias in q, k, v, does not scale its scores, and alternates global with local layers.
    LSTM      carries a state of fixed size instead of keys and values, and knows no positions.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, n_embd    H heads    D head size, C / H    V vocabulary
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step

MODEL_TYPE = "gpt2"


class Attention(nn.Module):
    def __init__(self, config: "GPT2Config", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.dropout = config.attn_pdrop
        self.upcast = config.reorder_and_upcast_attn
        self.scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        # OpenAI's Conv1D is a Linear stored (in, out): the weight table transposes it.
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)  # each (B, T, C)
        q = q.view(B, T, self.n_head, -1).transpose(1, 2)  # (B, H, T, D)
        k = k.view(B, T, self.n_head, -1).transpose(1, 2)
        v = v.view(B, T, self.n_head, -1).transpose(1, 2)
        k, v, seen = span.update(self.layer, k, v)  # (B, H, S, D), (B, H, S, D), (B or 1, S)
        mask = span.mask(seen)  # (B or 1, 1, T, S), or None
        if self.upcast:  # scores and softmax in float32, whatever the weights are
            q, k, v = q.float(), k.float(), v.float()
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
            scale=self.scale,
        )  # (B, H, T, D)
        y = y.to(x.dtype).transpose(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nn.Linear(config.n_embd, inner)
        self.c_proj = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPT2Config", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        x = x + self.attn(self.ln_1(x), span)
        return x + self.mlp(self.ln_2(x))


class GPT2(LanguageModel):
    config: "GPT2Config"

    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """The paper's section 2.3: projections onto the residual stream shrink with its depth."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Attention | MLP):
            nn.init.normal_(module.c_proj.weight, std=std / math.sqrt(2 * self.config.n_layer))

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.drop(self.wte(idx) + self.wpe(span.positions))  # (B, T, C)
        for block in self.h:
            x = block(x, span)
        return self.ln_f(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[KeyValues]:
        return [KeyValues(self.config.n_head, self.config.n_embd // self.config.n_head)] * self.config.n_layer

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.wte, positions=self.wpe, dropout=self.drop.p)
        for block in self.h:
            attn, mlp = block.attn, block.mlp
            yield step("norm", layer=block.ln_1)
            yield step("linear", layers=[attn.c_attn])
            yield step("attend", heads=attn.n_head, scale=attn.scale, dropout=attn.dropout, upcast=attn.upcast)
            yield step("add", layer=attn.c_proj, dropout=attn.resid_dropout.p)
            yield step("norm", layer=block.ln_2)
            yield step("linear", layers=[mlp.c_fc], activation=self.config.activation_function)
            yield step("add", layer=mlp.c_proj, dropout=mlp.dropout.p)
        yield step("norm", layer=self.ln_f)
        yield step("logits", layer=self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class GPT2Config:
    """The settings of config.json that change the result, under the Hub's names; defaults are GPT-2 124M's."""

    TITLE: ClassVar = "GPT-2"
    # n_ctx is the old twin of n_positions; the others are for heads of other tasks.
    NO_EFFECT: ClassVar = frozenset(
        """
        summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        n_ctx n_special predict_special_tokens
        """.split()
    )

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = field(default=12, metadata={"range": (1, 4096)})
    n_head: int = 12
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT-2: n_embd ({self.n_embd}) must be a multiple of n_head ({self.n_head})")

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {"architectures": ["GPT2LMHeadModel"], "model_type": MODEL_TYPE, **asdict(self)}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.n_positions
