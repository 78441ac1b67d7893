"""Weights in 8 and 4 bits, and the layers that hold them.

int8    a scale for each output: weight = scale * code, code from -127 to 127. 8 bits a weight.
nf4     matrices of the blocks as NormalFloat4 has them (Dettmers et al., 2023, QLoRA): one of 16 values, close to the
        quantiles of a normal distribution, times a scale of 32 inputs. Here both are whole numbers, to 31 and to 63,
        and each output has a scale in float32: 4.25 bits a weight. Of eight scales for 32 inputs that with the
        smallest squared error is taken. Embeddings and head in int8: all that a model reads or says goes through them.
blocks  as they lie in a GGUF file, in one of its types (weights_map/blocks.py).

Biases, norms and positions keep the model's dtype, and weights of experts stay as the file has them, in floats or in
MXFP4. A layer's own `forward` makes float weights again at each call, which takes time and memory; native/decoder.c
reads the codes. Its products with int8 and nf4 weights are of whole numbers: they round their inputs to 16 bits (for
nf4 to 15), with a scale for each token. Those of layers whose dtype is bfloat16 are rounded to 8 bits, with a scale for
each 32 of them (1 to 31 times the token's), but for the head: prompts and batches take less time, where the processor
adds products of bytes, and results change half as much again as by 8-bit weights (tests/benchmarks/rounding.py).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.native import library
from minhub_py.models.base import EncoderDecoder, LanguageModel
from minhub_py.models.experts import Packed
from minhub_py.models.steps import Add, CacheEncoder, Embed, Linear, Logits, Recurrent
from weights_map.blocks import TYPES, Blocks, unpack_rows

KINDS = ("int8", "nf4")

GROUP = 32  # inputs that share a scale in nf4
UNIT = 4 * GROUP  # inputs of 68 bytes
MOST = 63  # of such a scale
ROWS = 32  # that a thread packs at a time
# By code: the whole numbers to 31 that leave the smallest squared error of trained weights (tests/benchmarks/NOTES.md).
NF4 = torch.tensor([0, 3, 6, 9, 12, 15, 19, 25, 31, -31, -23, -17, -13, -9, -6, -3], dtype=torch.float32,
                   device="cpu")  # fmt: skip
# The code of the value nearest to n, at 2 * n + 62: halfway between two values is always a half or a whole number.
VALUES, CODES = NF4.sort()
BETWEEN = (VALUES[1:] + VALUES[:-1]) / 2
PLACES = torch.arange(-62, 63, dtype=torch.float32, device="cpu") / 2
NEAREST = CODES[torch.bucketize(PLACES, BETWEEN, right=True)].to(torch.uint8)
# Of the scale with which the largest of 32 weights is the largest value: which to try, for the smallest squared error.
FACTORS = torch.tensor([1, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.3], dtype=torch.float32, device="cpu")


def pack(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Codes and float32 scales (out,) of a weight (out, in).

    int8: codes (out, in) int8. nf4: codes (out, 68 * units) uint8, a unit being 128 inputs: a scale for each 32, then
    32 little-endian words of 16 bits, of which the j-th has the codes of inputs j, 32 + j, 64 + j and 96 + j, from its
    lowest bits on.
    """
    weight = weight.detach().float().contiguous()
    if kind == "int8":
        scales = weight.abs().amax(dim=1) / 127
        return (weight / scales.clamp_min(1e-30).unsqueeze(1)).round().to(torch.int8), scales
    compiled = library.library() if weight.device.type == "cpu" else None
    if compiled is None:
        return pack_nf4(weight)
    codes = weight.new_empty(len(weight), -(-weight.size(1) // UNIT) * (4 + 2 * GROUP), dtype=torch.uint8)
    scales = weight.new_empty(len(weight))
    parts = list(zip(*(each.split(ROWS) for each in (weight, codes, scales)), strict=True))
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(lambda part: pack_rows(compiled, *part), parts))
    return codes, scales


def pack_rows(compiled: Any, weight: Tensor, codes: Tensor, scales: Tensor) -> None:
    """As `pack_nf4`, by the compiled code, into `codes` and `scales`."""
    compiled.pack_nf4(weight.data_ptr(), *weight.shape, FACTORS.data_ptr(), len(FACTORS), NEAREST.data_ptr(),
                      codes.data_ptr(), scales.data_ptr())  # fmt: skip


def pack_nf4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of a float32 weight, wherever it is."""
    rows, scales = len(weight), weight.abs().amax(dim=1) / (MOST * 31) + (weight * 0).sum(dim=1)  # NaN beside infinity
    groups = F.pad(weight, (0, -weight.size(1) % UNIT)).view(rows, -1, GROUP)
    scale = scales.clamp_min(1e-30).unsqueeze(1)
    largest = groups.abs().amax(dim=2) / (31 * scale)
    wholes = least = codes = torch.empty(0)
    for factor in FACTORS.tolist():
        tried = (largest * factor).round_().clamp_(1, MOST)
        steps = groups * (1 / (tried * scale)).unsqueeze(2)
        places = (2 * steps + 62).nan_to_num_(0).clamp_(0, 124).to(torch.int32)
        found = NEAREST.to(weight.device)[places]
        errors = (steps - NF4.to(weight.device)[found.to(torch.int32)]).square_().sum(dim=2) * tried.square()
        if factor == 1:
            wholes, least, codes = tried, errors, found
        else:
            better = errors < least
            wholes, least = torch.where(better, tried, wholes), torch.where(better, errors, least)
            codes = torch.where(better.unsqueeze(2), found, codes)
    parts = codes.view(rows, -1, 4, GROUP)
    words = torch.stack((parts[:, :, 0] | parts[:, :, 1] << 4, parts[:, :, 2] | parts[:, :, 3] << 4), dim=3).flatten(2)
    return torch.cat((wholes.to(torch.uint8).view(rows, -1, 4), words), dim=2).view(rows, -1), scales


def unpack(codes: Tensor, scales: Tensor, columns: int) -> Tensor:
    """The float32 weight (out, in) that codes and scales stand for."""
    if codes.dtype == torch.int8:
        return codes.float() * scales.unsqueeze(-1)
    units = codes.view(len(codes), -1, 4 + 2 * GROUP)
    wholes, words = units[:, :, :4], units[:, :, 4:].unflatten(2, (GROUP, 2))
    found = torch.stack((words & 15, words >> 4), dim=4).flatten(3).transpose(2, 3)  # (out, units, 4, GROUP)
    weights = NF4.to(codes.device)[found.to(torch.int32)] * wholes.unsqueeze(3)
    return weights.flatten(1)[:, :columns] * scales.unsqueeze(1)


class Quantized(nn.Module):
    """A weight (out, in) as codes and scales, which state_dict holds under these names.

    kind: one of `KINDS`, or a type of GGUF, whose codes are blocks with their scales in them.
    """

    codes: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, kind: str | Blocks) -> None:
        """kind: how to quantize the weight, or its blocks; then only its shape and dtype matter."""
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
    def weight(self) -> Tensor:
        """Made anew: (out, in), in the dtype that was quantized."""
        return self.rows(slice(None))

    def rows(self, which: Any) -> Tensor:
        """Likewise the rows of an index."""
        if self.kind in TYPES:
            return unpack_rows(self.codes[which], self.kind).to(self.dtype)
        return unpack(self.codes[which], self.scales[which], self.shape[1]).to(self.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """A dtype is for what `forward` computes in: codes and scales keep theirs."""
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
        return F.linear(x, self.weight, self.bias)

    def replaces(self, made: nn.Module) -> bool:
        """Whether it does what a layer without weights would do."""
        same = type(made) is nn.Linear and self.shape == tuple(made.weight.shape)
        return same and (self.bias is None) == (made.bias is None)  # type: ignore[attr-defined]


class QuantizedEmbedding(Quantized):
    """nn.Embedding, quantized; where weights are tied it is the head too."""

    def __init__(self, embedding: nn.Embedding, kind: str | Blocks = "int8") -> None:
        super().__init__(embedding.weight, kind)

    def forward(self, idx: Tensor) -> Tensor:
        return self.rows(idx)

    def replaces(self, made: nn.Module) -> bool:
        """Whether it does what a layer without weights would do."""
        return type(made) is nn.Embedding and self.shape == tuple(made.weight.shape)


class QuantizedLSTM(nn.Module):
    """nn.LSTM for inference, quantized: a `Quantized` under the name of each of its matrices."""

    def __init__(self, lstm: nn.LSTM, kind: str) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = lstm.input_size, lstm.hidden_size, lstm.num_layers
        for name, parameter in lstm.named_parameters():
            setattr(self, name, Quantized(parameter, kind) if parameter.dim() == 2 else parameter)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        found = [getattr(self, f"{name}_l{layer}") for layer in range(self.num_layers) for name in names]
        weights = [each.weight if isinstance(each, Quantized) else each for each in found]
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.size(0), self.hidden_size)
            state = (zeros, zeros)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        y, h, c = torch.lstm(x, state, weights, True, self.num_layers, 0.0, False, False, True)
        return y, (h, c)

    def replaces(self, made: nn.Module) -> bool:
        """Whether it does what a layer without weights would do."""
        sizes = ("input_size", "hidden_size", "num_layers")
        return type(made) is nn.LSTM and all(getattr(self, name) == getattr(made, name) for name in sizes)


def quantize(model: LanguageModel, kind: str, fill: Callable[[nn.Module], object] = lambda layer: None) -> None:
    """Replace a model's layers by quantized ones, in place. What they were made from is then no longer in the model.

    fill: is given each layer before, to put its weights there, so that no two need to have theirs in memory.
    ValueError: an unknown kind, or a model that is quantized already.
    """
    check_kind(kind)
    refuse_quantized(model, "quantized once more")
    replace_layers(model, dict(layers_of(model, kind)), fill)


def replace_layers(
    model: nn.Module, kinds: Mapping[nn.Module, str | Blocks], fill: Callable[[nn.Module], object]
) -> None:
    """Replace layers by quantized ones, in place: each by its kind, or by the blocks that it is to hold.

    fill: is given each layer that is to be quantized, to put its weights there.
    """
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if layer in kinds:
                if isinstance(kinds[layer], str):
                    fill(layer)
                setattr(parent, name, quantized(layer, kinds[layer]))


def layers_of(model: LanguageModel, kind: str) -> Iterator[tuple[nn.Module, str]]:
    """The layers to quantize, from the steps of the model, and their kinds: embeddings and head are always int8."""
    encoder = model.encoder_steps() if isinstance(model, EncoderDecoder) else ()
    for step in chain(encoder, model.steps()):
        match step:
            case Embed():
                yield step.tokens, "int8"
            case Logits() if step.layer.weight is not None:
                yield step.layer, "int8"
            case Linear() | CacheEncoder():
                yield from ((layer, kind) for layer in step.layers)
            case Add() | Recurrent():
                yield step.layer, kind


def quantized(layer: nn.Module, kind: str | Blocks) -> nn.Module:
    """A layer that holds the weights of `layer` quantized, or `kind`, which are blocks of them."""
    if isinstance(layer, nn.Embedding):
        return QuantizedEmbedding(layer, kind)
    return QuantizedLSTM(layer, kind) if isinstance(layer, nn.LSTM) else QuantizedLinear(layer, kind)  # type: ignore[arg-type]


def check_kind(kind: str | None, *others: str) -> None:
    """ValueError: not one of KINDS, of `others`, or None."""
    if kind is not None and kind not in (*others, *KINDS):
        raise ValueError(f"quantize {kind!r} is unknown; give {', '.join((*others, KINDS[0]))} or {KINDS[1]}")


def kind_of(model: nn.Module) -> str | None:
    """How a model is quantized: int8, nf4, or the type of GGUF that most of its weights have; None: it is not."""
    kinds = Counter[str]()
    for module in model.modules():
        if isinstance(module, Quantized):
            kinds[module.kind] += math.prod(module.shape)
    if not kinds or not kinds.keys() <= set(KINDS):
        return kinds.most_common(1)[0][0] if kinds else None
    return "nf4" if "nf4" in kinds else "int8"  # in nf4 too embeddings are int8


def count(model: nn.Module) -> int:
    """The parameters of a model, those included that are quantized or packed."""
    quantized = sum(math.prod(module.shape) for module in model.modules() if isinstance(module, Quantized | Packed))
    return quantized + sum(parameter.numel() for parameter in model.parameters())


def refuse_quantized(model: nn.Module, done: str) -> None:
    """ValueError: the model holds no weights to be `done` something with."""
    if kind_of(model):
        raise ValueError(f'a quantized model cannot be {done}: load it again with quantize = "none"')
