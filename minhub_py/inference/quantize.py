"""Quantization of weights to 8 and 4 bits, and the layers that contain them.

int8    a scale per output: weight = scale * code, code from -127 to 127. 8 bits per weight.
nf4     4 bits for the matrices of the blocks, after NormalFloat4 (Dettmers et al., 2023, QLoRA):
        one of 16 levels, close to the quantiles of a normal distribution, times a scale per 32
        inputs. Each 32 inputs choose between two tables of levels. Levels (up to 31) and scales
        (-63 to 63) are integers, and each output has a scale in float32: 4.25 bits per weight. Of
        eight candidates for a scale, with each table and sign, the one with the smallest squared
        error is used. int8: embeddings and head, since every token passes through them, and the
        layers that lose most accuracy (`precise_layers`), which are more in small models.
blocks  the blocks of a GGUF file, in one of its types (weights_map/blocks.py).

Biases, norms, positions and routers keep the model's dtype. GPT-OSS' experts stay as in the
checkpoint, in floats or MXFP4. A layer's `forward` unpacks its weight at each call, which takes
time and memory; the C decoder computes with the codes. Its products with int8 and nf4 weights are
products of integers, for which activations are quantized to 16 bits (15 for nf4), with a scale per
token. In layers with dtype bfloat16, except the head, they are quantized to 8 bits, with a scale
per 32 activations (1 to 31 times the token's): prompts and batches are faster on processors with
products of bytes, and results change by half as much again as through 8-bit weights
(benchmarks/rounding.py). GGUF's blocks quantize activations to 8 bits with a scale for each 32,
except in the head, if the dtype is bfloat16 or was not requested. With dtype float32, the types with
256 weights per block (Q2_K to Q6_K, IQ4_XS) quantize activations to 15 bits with a scale for each
256, also in the head; the types with 32 compute in float32.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minhub_py.inference.native import library
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import EncoderDecoder
from minhub_py.models.experts import ExpertMatrices, Packed
from minhub_py.models.layers import Disentangled
from minhub_py.models.steps import (
    WKV,
    Add,
    Attend,
    CacheEncoder,
    CrossAttend,
    DeltaRule,
    Embed,
    Experts,
    Linear,
    Logits,
    PredictionStep,
    Project,
    Recurrent,
    SelectiveScan,
    ShortConvolution,
)
from minhub_py.system.quantization import KINDS
from weights_map.blocks import TYPES, Blocks, unpack_rows

GROUP = 32  # inputs per scale in nf4
UNIT = 4 * GROUP  # inputs per 68 bytes
MAX_SCALE = 63
SMALL_WIDTH = 1024  # channels of the residual stream, as in models below about 1B parameters
ROWS = 32  # per thread at a time
UNPACKED = 2**20  # weights that training unpacks at a time
# The level of each code, in two tables: integers up to 31 with the smallest squared error for
# trained weights.
NF4 = torch.tensor(
    [
        [0, 3, 6, 9, 12, 15, 19, 25, 31, -31, -23, -17, -13, -9, -6, -3],
        [0, 3, 6, 9, 12, 15, 20, 26, -31, -24, -19, -15, -11, -8, -5, -2],
    ],
    dtype=torch.float32,
    device="cpu",
)
# Each table, and its negative: a scale has a sign.
VARIANTS = torch.stack((NF4, -NF4), dim=1).flatten(0, 1)
# The two levels of each byte, in 64 bits: one access instead of two takes less than half the time.
# Index: the byte, then the table of its low half, then of its high half.
PAIRS = (
    torch.stack(
        [
            torch.stack((NF4[low].repeat(16), NF4[high].repeat_interleave(16)), dim=1)
            for high in (0, 1)
            for low in (0, 1)
        ]
    )
    .view(torch.int64)
    .flatten()
)
# Numbers n at index 2 * n + 62: midpoints between two levels are multiples of 0.5.
GRID = torch.arange(-62, 63, dtype=torch.float32, device="cpu") / 2


def nearest_codes(levels: Tensor) -> Tensor:
    """The code (125,) of the level nearest to each number of GRID."""
    ordered, codes = levels.sort()
    return codes[torch.bucketize(GRID, (ordered[1:] + ordered[:-1]) / 2, right=True)].to(
        torch.uint8
    )


NEAREST = torch.stack([nearest_codes(levels) for levels in VARIANTS])
# Candidates for a group's scale, relative to the scale that maps its largest weight to the largest
# level, or its smallest one to the smallest level.
FACTORS = torch.tensor([1, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.3], dtype=torch.float32, device="cpu")


def pack(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Quantize a weight (out, in). Returns codes and float32 scales (out,).

    int8: codes (out, in) int8. nf4: codes (out, 68 * units) uint8 with a unit per 128 inputs: a
    byte per 32 inputs with a signed scale in its lowest seven bits and the table of levels in its
    highest, then 32 little-endian 16-bit words. Word j has the codes of inputs j, 32 + j, 64 + j
    and 96 + j, from the lowest bits.
    """
    weight = weight.detach().float().contiguous()
    if kind == "int8":
        scales = weight.abs().amax(dim=1) / 127
        return (weight / scales.clamp_min(1e-30).unsqueeze(1)).round().to(torch.int8), scales
    compiled = library.library() if weight.device.type == "cpu" else None
    if compiled is None:
        return pack_nf4(weight)
    codes = weight.new_empty(
        len(weight), -(-weight.size(1) // UNIT) * (4 + 2 * GROUP), dtype=torch.uint8
    )
    scales = weight.new_empty(len(weight))

    def pack_rows(weight: Tensor, codes: Tensor, scales: Tensor) -> None:
        compiled.pack_nf4(
            weight.data_ptr(),
            *weight.shape,
            FACTORS.data_ptr(),
            len(FACTORS),
            NEAREST.data_ptr(),
            codes.data_ptr(),
            scales.data_ptr(),
        )

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(pack_rows, *(tensor.split(ROWS) for tensor in (weight, codes, scales))))
    return codes, scales


def pack_nf4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of a float32 weight, computed by PyTorch on its device."""
    rows = len(weight)
    # NaN if a weight is infinite
    scales = weight.abs().amax(dim=1) / (MAX_SCALE * 31) + (weight * 0).sum(dim=1)
    groups = F.pad(weight, (0, -weight.size(1) % UNIT)).view(rows, -1, GROUP)
    scale = scales.clamp_min(1e-30).unsqueeze(1)
    high, low = groups.amax(dim=2).clamp_min(0), groups.amin(dim=2).clamp_max(0)
    headers = least = codes = torch.empty(0)
    for number, (levels, nearest) in enumerate(
        zip(VARIANTS.to(weight.device), NEAREST.to(weight.device), strict=True)
    ):
        largest = torch.maximum(high / (levels.amax() * scale), -low / (-levels.amin() * scale))
        for factor in FACTORS.tolist():
            multiple = (largest * factor).round_().clamp_(1, MAX_SCALE)
            values = groups * (1 / (multiple * scale)).unsqueeze(2)
            chosen = nearest[(2 * values + 62).nan_to_num_(0).clamp_(0, 124).to(torch.int32)]
            errors = (values - levels[chosen.to(torch.int32)]).square_().sum(
                dim=2
            ) * multiple.square()
            header = (
                (-multiple if number % 2 else multiple).nan_to_num_(1).to(torch.int32) & 127
            ) | number // 2 << 7
            if len(codes) == 0:
                headers, least, codes = header, errors, chosen
            else:
                better = errors < least
                headers, least = (
                    torch.where(better, header, headers),
                    torch.where(better, errors, least),
                )
                codes = torch.where(better.unsqueeze(2), chosen, codes)
    parts = codes.view(rows, -1, 4, GROUP)
    words = torch.stack(
        (parts[:, :, 0] | parts[:, :, 1] << 4, parts[:, :, 2] | parts[:, :, 3] << 4), dim=3
    ).flatten(2)
    return (
        torch.cat((headers.to(torch.uint8).view(rows, -1, 4), words), dim=2).view(rows, -1),
        scales,
    )


def unpack(codes: Tensor, scales: Tensor, columns: int) -> Tensor:
    """The float32 weight (out, columns) of codes and scales that `pack` returned."""
    if codes.dtype == torch.int8:
        return codes.float() * scales.unsqueeze(-1)
    units = codes.view(len(codes), -1, 4 + 2 * GROUP)
    headers, words = (
        units[:, :, :4].to(torch.int32),
        units[:, :, 4:].unflatten(2, (GROUP, 2)).to(torch.int32),
    )
    tables = (headers >> 7).unflatten(2, (2, 2))
    words += ((tables[..., 0] + 2 * tables[..., 1]) * 256).unsqueeze(2)
    values = PAIRS.to(codes.device)[words.flatten(2)].view(torch.float32)  # (out, units, 4 GROUP)
    multiples = (headers & 63) - (headers & 64)
    # (out, units, 4, GROUP)
    weights = values.unflatten(2, (GROUP, 4)).transpose(2, 3) * multiples.unsqueeze(3)
    return weights.flatten(1)[:, :columns] * scales.unsqueeze(1)


class Quantized(nn.Module):
    """A quantized weight (out, in), with the buffers `codes` and `scales`.

    kind: one of `KINDS`, or a GGUF type, whose codes are blocks that include their scales.
    rounds_activations: whether the C decoder rounds activations to 8 bits if dtype is float32, too.
    """

    codes: Tensor
    scales: Tensor
    rounds_activations = False

    def __init__(self, weight: Tensor, kind: str | Blocks) -> None:
        """kind: the quantization of the weight, or its blocks, which need only its shape and dtype."""
        super().__init__()
        self.shape, self.dtype = tuple(weight.shape), weight.dtype
        if isinstance(kind, Blocks):
            self.kind, codes = kind
            scales = torch.empty(len(codes), 0, device=codes.device)
        else:
            self.kind = kind
            codes, scales = pack(weight, kind)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    @property
    def int8_activations(self) -> bool:
        """Whether the C decoder rounds activations to 8 bits."""
        return self.rounds_activations or self.dtype == torch.bfloat16

    @property
    def weight(self) -> Tensor:
        """The unpacked weight (out, in), computed at each access."""
        return self.rows(slice(None))

    def rows(self, index: Tensor | slice | int) -> Tensor:
        """The unpacked weight's rows at an index."""
        if self.kind in TYPES:
            return unpack_rows(self.codes[index], self.kind).to(self.dtype)
        return unpack(self.codes[index], self.scales[index], self.shape[1]).to(self.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Quantized":
        """Changes the dtype of `weight`; codes and scales keep theirs."""
        codes, scales = self.codes, self.scales
        super()._apply(fn, recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        device = self.codes.device
        self.codes, self.scales = codes.to(device), scales.to(device)
        return self

    def extra_repr(self) -> str:
        return f"{self.shape[1]}, {self.shape[0]}, {self.kind}"


class QuantizedLinear(Quantized):
    """nn.Linear, quantized."""

    def __init__(self, linear: nn.Linear, kind: str | Blocks) -> None:
        super().__init__(linear.weight, kind)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            y: Tensor = FrozenLinear.apply(x, self)  # type: ignore[no-untyped-call]
            return y if self.bias is None else y + self.bias
        return F.linear(x, self.weight, self.bias)

    def replaces(self, layer: nn.Module) -> bool:
        """Whether the quantized layer has the type and shape of `layer`."""
        same = type(layer) is nn.Linear and self.shape == tuple(layer.weight.shape)
        return same and (self.bias is None) == (layer.bias is None)  # type: ignore[attr-defined]


class FrozenLinear(torch.autograd.Function):
    """x W' of a quantized weight W, with the gradient of x. Each pass unpacks W in blocks of rows
    and keeps none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Quantized) -> Tensor:
        ctx.layer = layer
        parts = [F.linear(x, layer.rows(block)) for block in row_blocks(layer)]
        return torch.cat(parts, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        [gradient] = gradients
        blocks = row_blocks(ctx.layer)
        total = gradient[..., blocks[0]] @ ctx.layer.rows(blocks[0])
        for block in blocks[1:]:
            total += gradient[..., block] @ ctx.layer.rows(block)
        return total, None


def row_blocks(layer: Quantized) -> list[slice]:
    """The rows of a weight in blocks of at most `UNPACKED` weights."""
    rows, columns = layer.shape
    size = max(1, UNPACKED // columns)
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


class QuantizedEmbedding(Quantized):
    """nn.Embedding, quantized; also the head if weights are tied."""

    def __init__(self, embedding: nn.Embedding, kind: str | Blocks = "int8") -> None:
        super().__init__(embedding.weight, kind)

    def forward(self, idx: Tensor) -> Tensor:
        return self.rows(idx)

    def replaces(self, layer: nn.Module) -> bool:
        """Whether the quantized layer has the type and shape of `layer`."""
        return type(layer) is nn.Embedding and self.shape == tuple(layer.weight.shape)


class QuantizedExperts(Quantized):
    """`ExpertMatrices`, quantized: codes (E, out, bytes) and scales (E, out). shape: (E, out, in)."""

    def __init__(self, matrices: ExpertMatrices, kind: str | Blocks) -> None:
        nn.Module.__init__(self)
        weights = list(matrices.parameters())
        self.shape, self.dtype = matrices.shape, weights[0].dtype
        if isinstance(kind, Blocks):
            self.kind, codes = kind.type, kind.rows.unflatten(0, self.shape[:2])
            scales = torch.empty(*self.shape[:2], 0, device=codes.device)
        else:
            self.kind = kind
            codes, scales = torch.empty(0), torch.empty(self.shape[:2])
            for number, weight in enumerate(weights):  # one expert at a time in float32
                packed, scales[number] = pack(weight, kind)
                codes = packed.new_empty(self.shape[0], *packed.shape) if number == 0 else codes
                codes[number] = packed
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    def expert(self, number: int) -> Tensor:
        """The unpacked weight (out, in) of an expert."""
        return self.rows(number)

    def rows(self, index: Tensor | slice | int) -> Tensor:
        """The unpacked weight of an expert."""
        if self.kind in TYPES:
            return unpack_rows(self.codes[index], self.kind).to(self.dtype)
        return unpack(self.codes[index], self.scales[index], self.shape[2]).to(self.dtype)

    def replaces(self, layer: nn.Module) -> bool:
        """Whether the quantized module has the type and shape of `layer`."""
        return type(layer) is ExpertMatrices and self.shape == layer.shape


class QuantizedLSTM(nn.Module):
    """nn.LSTM for inference, quantized: each matrix is a `Quantized` of the same name."""

    def __init__(self, lstm: nn.LSTM, kind: str) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = (
            lstm.input_size,
            lstm.hidden_size,
            lstm.num_layers,
        )
        for name, parameter in lstm.named_parameters():
            setattr(self, name, Quantized(parameter, kind) if parameter.dim() == 2 else parameter)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        parameters = [
            getattr(self, f"{name}_l{layer}") for layer in range(self.num_layers) for name in names
        ]
        weights = [
            weight.weight if isinstance(weight, Quantized) else weight for weight in parameters
        ]
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.size(0), self.hidden_size)
            state = (zeros, zeros)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        y, h, c = torch.lstm(x, state, weights, True, self.num_layers, 0.0, False, False, True)
        return y, (h, c)

    def replaces(self, layer: nn.Module) -> bool:
        """Whether the quantized layer has the type and shape of `layer`."""
        sizes = ("input_size", "hidden_size", "num_layers")
        return type(layer) is nn.LSTM and all(
            getattr(self, name) == getattr(layer, name) for name in sizes
        )


def quantize(model: LanguageModel, kind: str) -> None:
    """Replace a model's layers by quantized layers, in place. ValueError: an unknown kind, or a
    quantized model.
    """
    check_kind(kind)
    refuse_quantized(model, "quantized again")
    replace_layers(model, dict(layers_of(model, kind)), lambda layer: None)


def replace_layers(
    model: nn.Module, kinds: Mapping[object, str | Blocks], fill: Callable[[nn.Module], object]
) -> None:
    """Replace layers by quantized layers, in place.

    kinds: the quantization of each layer, or its blocks.
    fill: loads the weights of a layer before it is quantized, so that only one layer needs memory
    for its weights.
    """
    like = next(model.parameters())
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if layer in kinds:
                if isinstance(kinds[layer], str):
                    fill(layer)
                setattr(parent, name, quantized(layer, kinds[layer]))
    if next(model.parameters(), None) is None:
        # The first parameter shows a model's dtype and device; OLMo has no other.
        first = next(module for module in model.modules() if isinstance(module, Quantized))
        empty = torch.empty(0, dtype=like.dtype, device=first.codes.device)
        first.register_parameter("empty", nn.Parameter(empty, requires_grad=False))


def layers_of(model: LanguageModel, kind: str) -> Iterator[tuple[object, str]]:
    """The layers to quantize, from the model's steps, and their kinds: int8 for those that lose
    most in 4 bits.
    """
    encoder = model.encoder_steps() if isinstance(model, EncoderDecoder) else ()
    prediction = () if getattr(model, "mtp", None) is None else model.mtp_steps()
    for part in (encoder, model.steps(), prediction):
        steps = list(part)
        precise = precise_layers(steps)
        for layer, needed in layers_of_steps(steps, kind):
            yield layer, "int8" if layer in precise else needed


def layers_of_steps(steps: Sequence[PredictionStep], kind: str) -> Iterator[tuple[object, str]]:
    """The layers of these steps: embeddings and head as int8, all others as `kind`."""
    for step in steps:
        match step:
            case Embed():
                yield step.tokens, "int8"
            case Logits() if step.layer.weight is not None:
                yield step.layer, "int8"
            # the factor of a shared expert, with one output, is not quantized
            case Linear() | CacheEncoder():
                yield from ((layer, kind) for layer in step.layers if len(layer.weight) > 1)
            case Add() | Recurrent():
                yield step.layer, kind
            # small, and the decay of a state is exponential in their outputs
            case Project():
                yield step.layer, "int8" if step.precise else kind
            case Attend() if isinstance(step.bias, Disentangled):
                yield from ((layer, kind) for layer in step.bias.projections)
            case Experts():
                matrices = [*step.gate_up, step.down]
                yield from (
                    (weights, kind) for weights in matrices if isinstance(weights, ExpertMatrices)
                )


def precise_layers(steps: Sequence[PredictionStep]) -> set[object]:
    """The values of grouped heads, and the output layers of the MLPs in the first eighth of the
    blocks and the last. In small models, whose weights are less redundant: the keys of grouped
    heads, too, and all layers that add to the residual stream.
    """
    projections, added, outputs, in_mlp = [], [], [], False
    for step in steps:
        match step:
            case (
                Attend()
                | CrossAttend()
                | DeltaRule()
                | ShortConvolution()
                | SelectiveScan()
                | WKV()
            ):
                in_mlp = False
            case Project() if not step.precise:
                in_mlp = True
            case Linear():
                in_mlp = True
                if len(step.layers) == 3 and 1 < len(step.layers[2].weight) < len(
                    step.layers[0].weight
                ):
                    projections.append(step.layers)
            case Add():
                added.append(step.layer)
                if in_mlp:
                    outputs.append(step.layer)
    values = {layer for _, _, layer in projections}
    if added and len(added[0].weight) <= SMALL_WIDTH:
        return values | {layer for _, layer, _ in projections} | {*added}
    return values | {*outputs[: len(outputs) // 8], *outputs[-1:]}


def quantized(layer: nn.Module, kind: str | Blocks) -> nn.Module:
    """A quantized layer with the weights of `layer`, or with blocks of them."""
    if isinstance(layer, nn.Embedding):
        return QuantizedEmbedding(layer, kind)
    if isinstance(layer, ExpertMatrices):
        return QuantizedExperts(layer, kind)
    if isinstance(layer, nn.LSTM):
        return QuantizedLSTM(layer, kind)  # type: ignore[arg-type]
    return QuantizedLinear(layer, kind)  # type: ignore[arg-type]


def round_activations(model: nn.Module) -> None:
    """Let the C decoder round the activations of layers with GGUF's blocks to 8 bits."""
    for module in model.modules():
        if isinstance(module, Quantized) and module.kind in TYPES:
            module.rounds_activations = True


def check_kind(kind: str | None, *also: str) -> None:
    """ValueError: neither None nor one of KINDS or `also`."""
    *first, last = *also, *KINDS
    if kind is not None and kind not in (*first, last):
        raise ValueError(f"quantize must be {', '.join(first)} or {last}, not {kind!r}")


def kind_of(model: nn.Module) -> str | None:
    """The quantization of a model: int8, nf4, or the GGUF type of most of its weights; None if it
    is not quantized.
    """
    sizes = Counter[str]()
    for module in model.modules():
        if isinstance(module, Quantized):
            sizes[module.kind] += math.prod(module.shape)
    if "nf4" in sizes and sizes.keys() <= set(KINDS):
        return "nf4"  # even if its int8 embeddings are larger
    return sizes.most_common(1)[0][0] if sizes else None


def count(model: nn.Module) -> int:
    """The number of parameters of a model, including quantized and packed ones."""
    quantized = sum(
        math.prod(module.shape)
        for module in model.modules()
        if isinstance(module, Quantized | Packed)
    )
    return quantized + sum(parameter.numel() for parameter in model.parameters())


def refuse_quantized(model: nn.Module, participle: str) -> None:
    """ValueError: the model is quantized, so that it has no weights to be, say, "saved"."""
    if kind_of(model):
        raise ValueError(
            f'a quantized model cannot be {participle}: load it again with quantize = "none"'
        )
