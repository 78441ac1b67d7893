"""GPT-BigCode (SantaCoder, StarCoder), a GPT-2 whose heads share one head of keys and values, in one file.

Sources
    Ben Allal et al. (2023), "SantaCoder"; Li et al. (2023), "StarCoder".
    Multi-query attention: Shazeer (2019), "Fast Transformer Decoding: One Write-Head is All You Need".
    Hub docs: `transformers`, model_type "gpt_bigcode".

What differs from its siblings
    GPT-2    has as many heads of k and v as of q; here they are one, so that a cache is H times smaller.
    Llama    has some heads of k and v, and rotates instead of learning its positions.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, n_embd    H heads of q    G heads of k and v, 1 or H    D head size, C / H    V vocabulary
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step


class Attention(nn.Module):
    def __init__(self, config: "GPTBigCodeConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.n_head, config.groups, config.n_embd // config.n_head
        self.dropout = config.attn_pdrop
        self.scale = self.size**-0.5 if config.scale_attn_weights else 1.0
        self.c_attn = nn.Linear(config.n_embd, config.n_embd + 2 * self.groups * self.size)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        B, T, C = x.shape
        H, G, D = self.heads, self.groups, self.size
        qkv = self.c_attn(x).view(B, T, H + 2 * G, D).transpose(1, 2)
        q, k, v = qkv.split([H, G, G], dim=1)  # (B, H, T, D), (B, G, T, D), (B, G, T, D)
        k, v, seen = span.update(self.layer, k, v)  # (B, G, S, D), (B, G, S, D), (B or 1, S)
        if G < H:
            k, v = k.expand(-1, H, -1, -1), v.expand(-1, H, -1, -1)  # the same memory for all heads
        mask = span.mask(seen)  # (B or 1, 1, T, S), or None
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
            scale=self.scale,
        )  # (B, H, T, D)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))


class MLP(nn.Module):
    def __init__(self, config: "GPTBigCodeConfig") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nn.Linear(config.n_embd, inner)
        self.c_proj = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPTBigCodeConfig", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, span: Span) -> Tensor:
        x = x + self.attn(self.ln_1(x), span)
        return x + self.mlp(self.ln_2(x))


class GPTBigCode(LanguageModel):
    config: "GPTBigCodeConfig"

    def __init__(self, config: "GPTBigCodeConfig") -> None:
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
        """As GPT-2 does: projections onto the residual stream shrink with its depth."""
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
        return [KeyValues(self.config.groups, self.config.n_embd // self.config.n_head)] * self.config.n_layer

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.wte, positions=self.wpe, dropout=self.drop.p)
        for block in self.h:
            attn, mlp = block.attn, block.mlp
            yield step("norm", layer=block.ln_1)
            yield step("linear", layers=[attn.c_attn])
            yield step("attend", heads=attn.heads, groups=attn.groups, scale=attn.scale, dropout=attn.dropout)
            yield step("add", layer=attn.c_proj, dropout=attn.resid_dropout.p)
            yield step("norm", layer=block.ln_2)
            yield step("linear", layers=[mlp.c_fc], activation=self.config.activation_function)
            yield step("add", layer=mlp.c_proj, dropout=mlp.dropout.p)
        yield step("norm", layer=self.ln_f)
        yield step("logits", layer=self.wte if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class GPTBigCodeConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are those of transformers."""

    TITLE: ClassVar = "GPT-BigCode"
    # How softmax is rounded in 16 bits, which is float32 here; an old inference server; heads of other tasks.
    NO_EFFECT: ClassVar = frozenset(
        """
        attention_softmax_in_fp32 scale_attention_softmax_in_fp32
        inference_runner max_batch_size max_sequence_length pad_key_length pre_allocate_kv_cache validate_runner_input
        summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        """.split()
    )
    DERIVED: ClassVar = ("num_key_value_heads",)

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = field(default=12, metadata={"range": (1, 4096)})
    n_head: int = 12
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    activation_function: str = field(default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)})
    multi_query: bool = True
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT-BigCode: n_embd ({self.n_embd}) must be a multiple of n_head ({self.n_head})")

    @property
    def groups(self) -> int:
        """G, the heads of k and v."""
        return 1 if self.multi_query else self.n_head

    @property
    def num_key_value_heads(self) -> int:
        """The Hub's name for G."""
        return self.groups

    @property
    def heads_in_turn(self) -> int:
        """The heads whose q, k and v lie one after the other in the file; with one head of k and v they do not."""
        return 1 if self.multi_query else self.n_head

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", **asdict(self)}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.n_positions
