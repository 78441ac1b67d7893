"""The vocabulary of `LanguageModel.steps`: one frozen dataclass per operation.

`steps` lists the computation of `forward` as data, for the C decoder, quantization, TorchScript,
tensor parallelism and analysis. There are two values: the residual stream x (B, T, C) and the
current value h (B, T, …). Each class states how its operation changes them.
tests/models/test_architectures.py compares `steps` and `forward`.

`dropout` is the probability of dropout after the operation; the runners ignore it, TorchScript does
not.

Notation: B batch rows, T positions, C channels, H query heads, G KV heads, D head size, V
vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor, nn

from minhub_py.models.delta import GatedNorm
from minhub_py.models.experts import ExpertWeights, Packed, Routing
from minhub_py.models.layers import (
    XIELU,
    ALiBi,
    Disentangled,
    EmbeddingLayer,
    GroupNorm,
    HeadLayerNorm,
    LinearLayer,
    RelativeBias,
    RMSNorm,
)
from minhub_py.models.rotary import Rope


@dataclass(frozen=True, eq=False)
class Embed:
    """x = h = rows of `tokens` · scale + rows of `positions`. The scale is rounded to the dtype of
    the rows.
    """

    tokens: EmbeddingLayer
    positions: EmbeddingLayer | None = None
    scale: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class PredictionInputs:
    """h = token_norm(rows of `tokens`) and hidden_norm(hidden states of the model) side by side,
    (B, T, 2C).

    The first step of a head for multi-token prediction; see models/mtp.py. Both norms have the same
    epsilon.
    """

    tokens: EmbeddingLayer
    token_norm: RMSNorm
    hidden_norm: RMSNorm


@dataclass(frozen=True, eq=False)
class AddPositions:
    """x = h = h + rows of `positions`. first: the row of position 0.

    pad: the ID of tokens that positions do not count; see `layers.counted_positions`.
    """

    positions: EmbeddingLayer
    first: int = 0
    pad: int | None = None


@dataclass(frozen=True, eq=False)
class AddSinusoids:
    """x = h = h + `layers.sinusoidal_positions` of position + first.    count: the maximum number
    of positions.    exact: see `layers.sinusoidal_positions`.
    """

    frequencies: tuple[float, ...]
    first: int
    count: int
    dropout: float = 0.0
    exact: bool = False


@dataclass(frozen=True, eq=False)
class AddTypes:
    """x = h = h + rows of `types` for the token types (segments of a pair of texts), 0 by default."""

    types: EmbeddingLayer


@dataclass(frozen=True, eq=False)
class StoreResidual:
    """x = h."""


@dataclass(frozen=True, eq=False)
class SaveResidual:
    """Save the current x, for `Norm` and `AddToSaved`."""


@dataclass(frozen=True, eq=False)
class AddToSaved:
    """x = the x of `SaveResidual` + norm(x)."""

    norm: nn.LayerNorm | RMSNorm


@dataclass(frozen=True, eq=False)
class LoadResidual:
    """h = x."""


@dataclass(frozen=True, eq=False)
class Norm:
    """h = layer(x). saved: of the x of `SaveResidual`.    to_residual: x = h, too."""

    layer: nn.LayerNorm | RMSNorm
    saved: bool = False
    to_residual: bool = False
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class Linear:
    """h = activation(layer(h)), the outputs of several layers concatenated.

    activation: a name, or an activation with weights.    clip: the largest absolute value of the
    outputs.
    """

    layers: Sequence[LinearLayer]
    activation: str | XIELU | None = None
    clip: float | None = None
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class Rotate:
    """Norm and rotate the heads of q and k in h, which contains q, k and v, (B, T, (H + 2G) * D).

    q_norm, k_norm: norms of each head before the rotation.    all_heads: one norm over all heads of
    q, and one over all heads of k; an nn.LayerNorm is such a norm.    kv_heads: 0 if h contains
    only q.    norms_last: the norms follow the rotation.    rope: None for norms only.
    interleaved: see `layers.rotate`.    gate: each head of q is followed by its gate, which stays
    as it is: (B, T, (2H + 2G) * D).
    """

    heads: int
    kv_heads: int
    rope: Rope | None
    q_norm: RMSNorm | HeadLayerNorm | nn.LayerNorm | None = None
    k_norm: RMSNorm | HeadLayerNorm | nn.LayerNorm | None = None
    all_heads: bool = False
    norms_last: bool = False
    interleaved: bool = False
    gate: bool = False


@dataclass(frozen=True, eq=False)
class NormValues:
    """RMS norm, without a weight, of the heads of v in h, which contains q, k and v, (B, T, (H +
    2G) * D).
    """

    heads: int
    kv_heads: int
    eps: float


@dataclass(frozen=True, eq=False)
class Attend:
    """h = attention of q, k and v in h, (B, T, H * D); k and v are cached.

    scale, window, chunked, softcap, sinks, upcast: see `Past.attend_to`.    gate: as in `Rotate`; each head
    is multiplied by the sigmoid of its gate.    bias: a `RelativeBias`, `ALiBi` or `Disentangled`,
    added to the scores.    causal: False for an encoder, without a cache.    source: the number,
    among the layers that cache, of an earlier one whose keys and values are used; h contains only
    q.
    """

    heads: int
    kv_heads: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    gate: bool = False
    bias: RelativeBias | ALiBi | Disentangled | None = None
    causal: bool = True
    upcast: bool = False
    dropout: float = 0.0
    source: int | None = None
    chunked: bool = False


@dataclass(frozen=True, eq=False)
class CrossAttend:
    """h = attention of q in h, (B, T, H * D), to the keys and values of the encoder."""

    heads: int
    scale: float
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class CacheEncoder:
    """Cache the keys and values of the encoder for one `CrossAttend`: layers[0](h) and
    layers[1](h). h is unchanged.

    `encoder_steps` of an encoder-decoder ends with one for each `CrossAttend` of `steps`.
    """

    heads: int
    layers: Sequence[LinearLayer]


@dataclass(frozen=True, eq=False)
class DeltaRule:
    """h = the gated delta rule (models/delta.py) of h, (B, T, H * V), with a recurrent state.

    h contains q and k of `key_heads` heads and v of `heads` heads, which pass through the nn.Conv1d
    `conv` over time and the activation; then z (H * V), β (H) and the inputs of the decay (H). ln α
    = -exp(decay) · softplus(input + bias). The output of each head is normed and multiplied by
    silu(z). norm has weight (V,) and eps.
    """

    heads: int
    key_heads: int
    conv: nn.Conv1d
    activation: str
    decay: Tensor
    bias: Tensor
    norm: GatedNorm


@dataclass(frozen=True, eq=False)
class ShortConvolution:
    """h = c · conv(b · x) for b, c and x side by side in h, (B, T, 3C); the nn.Conv1d is over time,
    with a state.
    """

    conv: nn.Conv1d


@dataclass(frozen=True, eq=False)
class CausalConvolution:
    """The numbers of h from `first` on pass through the nn.Conv1d `conv` over time and the
    activation, with a state. The `SelectiveScan` that follows has the same layer of the cache.
    """

    conv: nn.Conv1d
    activation: str
    first: int = 0


@dataclass(frozen=True, eq=False)
class Project:
    """h = h, followed by activation(layer(the numbers of h from `first` on)).

    precise: in 4 bits, the weights have 8.
    """

    layer: LinearLayer
    first: int
    activation: str | None = None
    precise: bool = True


@dataclass(frozen=True, eq=False)
class NormPart:
    """The numbers of h from `first` on are normed by `norm`; see `layers.group_norm`."""

    norm: GroupNorm
    first: int


@dataclass(frozen=True, eq=False)
class SelectiveScan:
    """h = scan of x · silu(z), (B, T, N), by models/state_space.py, with a recurrent state.

    channels, heads, states, groups: N, H, S, G.    decay: A_log, (N, S) in Mamba 1 or (H,) in
    Mamba 2.    skip: D, (N,) or (H,).    bias: of Δ, (H,) or None.    x, z, b, c, dt: where the
    inputs begin in h.
    """

    channels: int
    heads: int
    states: int
    groups: int
    decay: Tensor
    skip: Tensor
    bias: Tensor | None
    x: int
    z: int
    b: int
    c: int
    dt: int


@dataclass(frozen=True, eq=False)
class TokenShift:
    """h = mixtures of h and the h of the previous token, (B, T, C) each, side by side, with a state:
    previous + mix · (h - previous) for each mix (1, 1, C). A `WKV` that follows has the same layer of
    the cache.
    """

    mixes: Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class WKV:
    """h = sigmoid(r) · average, (B, T, N), by models/rwkv.py, with a recurrent state.

    decay: logarithm of the decay, (N,).    bonus: of the current token, (N,).    k, v, r: where the
    inputs begin in h.
    """

    decay: Tensor
    bonus: Tensor
    k: int
    v: int
    r: int


@dataclass(frozen=True, eq=False)
class ScaleParts:
    """h = `layers.scale_parts` of h: adjacent parts, each with its size and its factor."""

    parts: Sequence[tuple[int, float]]


@dataclass(frozen=True, eq=False)
class Convolution:
    """x = x + activation(conv(the x of `SaveResidual`)): an nn.Conv1d over the positions of a text,
    in an encoder.

    Positions outside the text are zeros.
    """

    conv: nn.Conv1d
    activation: str
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class Gate:
    """h = activation(first half of h) · second half of h.

    sigmoid: h has one more number after the halves; the result is multiplied by its sigmoid.
    """

    activation: str
    dropout: float = 0.0
    sigmoid: bool = False


@dataclass(frozen=True, eq=False)
class Add:
    """x = x + scale · layer(h), or x + scale · norm(layer(h)).

    first: the first number of h that the layer reads.    gate: if not 0, the outputs are multiplied
    by the sigmoid of the numbers of h from `gate` on.
    """

    layer: LinearLayer
    norm: RMSNorm | None = None
    scale: float = 1.0
    dropout: float = 0.0
    first: int = 0
    gate: int = 0


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Save p = (norm(scale · h) + tokens_scale · rows of `tokens`) · factor for `GateLayerInput`.

    h and p contain P numbers for each layer, (B, T, L * P), and the norm is over P numbers.
    tokens_scale is rounded to the dtype of the rows. The table is only looked up: it is not
    quantized, and a mapped file is read by rows. Without a table, None, p = norm(scale · h).
    """

    tokens: nn.Embedding | None
    norm: RMSNorm
    scale: float
    tokens_scale: float = 1.0
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class GateLayerInput:
    """h = activation(h) · the `size` numbers (P) of layer `layer` in p of `LayerInputs`."""

    layer: int
    size: int
    activation: str


@dataclass(frozen=True, eq=False)
class ScaleResidual:
    """x = x · factor, a tensor (1,) or a number."""

    factor: Tensor | float


@dataclass(frozen=True, eq=False)
class Experts:
    """x = x + the sum of the outputs of the experts that `route` selects by router(h); see
    models/experts.py.

    gate_up: one matrix (E, in, out) with gate and up in alternate columns; two, gate and up; or only
    up (E, out, in).    gate_up_bias, down_bias: (E, 2I) and (E, C), of alternate columns only.
    activation: of the gate of two matrices, or of up without a gate.    alpha, limit: of `gated_mlp`,
    the gate of alternate columns.    choice_bias, factors: see
    `experts.route`.    router_norm: the router reads router_norm(x) / √C in place of h.
    replaces: x = the sum.
    """

    router: LinearLayer
    routing: Routing
    gate_up: Sequence[ExpertWeights]
    down: ExpertWeights
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    activation: str | None = None
    alpha: float = 1.0
    limit: float = 0.0
    choice_bias: Tensor | None = None
    router_norm: RMSNorm | None = None
    factors: Tensor | None = None
    replaces: bool = False

    @property
    def gated(self) -> bool:
        """Whether the experts have gates."""
        return len(self.gate_up) == 2 or isinstance(self.gate_up[0], Tensor | Packed)


@dataclass(frozen=True, eq=False)
class Recurrent:
    """h = outputs of an nn.LSTM for h, with a recurrent state."""

    layer: nn.LSTM
    dropout: float = 0.0


@dataclass(frozen=True, eq=False)
class Logits:
    """The result (B, T, V): layer(scale · h) + bias, with a soft cap. bias: None for the bias of
    the layer, if any.
    """

    layer: LinearLayer | EmbeddingLayer
    bias: Tensor | None = None
    softcap: float | None = None
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The result (B, T, size) of an encoder: h."""

    size: int


Step = (
    Embed
    | AddPositions
    | AddSinusoids
    | AddTypes
    | StoreResidual
    | SaveResidual
    | AddToSaved
    | LoadResidual
    | Norm
    | Linear
    | Rotate
    | NormValues
    | Attend
    | CrossAttend
    | CacheEncoder
    | DeltaRule
    | ShortConvolution
    | CausalConvolution
    | Project
    | NormPart
    | SelectiveScan
    | TokenShift
    | WKV
    | ScaleParts
    | Convolution
    | Gate
    | Add
    | Experts
    | Recurrent
    | LayerInputs
    | GateLayerInput
    | ScaleResidual
    | Logits
    | HiddenStates
)


PredictionStep = Step | PredictionInputs  # of a head for multi-token prediction


def unreachable(step: NoReturn) -> NoReturn:
    """Marks the end of a `match` over all steps: mypy reports a missing operation."""
    raise AssertionError(step)
