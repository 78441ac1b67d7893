"""Weights in 8 and 4 bits, and the layers that hold them.

int8    a scale for each output: weight = scale * code, code from -127 to 127. 8 bits a weight.
nf4     matrices of the blocks in NormalFloat4 (Dettmers et al., 2023, QLoRA): one of 16 values, the quantiles of a
        normal distribution, times the largest absolute value of each 32 inputs. 5 bits a weight, scales included.
        Embeddings and head in int8: all that a model reads or says goes through them.
blocks  as they lie in a GGUF file, in one of its types (weights_map/blocks.py).

Biases, norms and positions keep the model's dtype, and weights of experts stay as the file has them, in floats or in
MXFP4. A layer's own `forward` makes float weights again at each call, which takes time and memory; native/decoder.c
reads the codes. Its products with int8 weights are of whole numbers: they round their inputs to 16 bits, with a scale
for each token.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.base import EncoderDecoder, LanguageModel
from minhub_py.models.packed import Packed
from weights_map.blocks import TYPES, Blocks, unpack_rows

KINDS = ("int8", "nf4")

GROUP = 32  # inputs that share a scale in nf4
BLOCK = 128  # inputs of one 64-byte block in nf4
NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip

# The code of the value nearest to -1 + 2 * step / STEPS: a table is ten times as fast as a search.
STEPS = 2**14
NEAREST = torch.bucketize(torch.linspace(-1, 1, STEPS + 1), (NF4[1:] + NF4[:-1]) / 2).to(torch.int32)


def pack(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Codes and float32 scales of a weight (out, in).

    int8: codes (out, in) int8, scales (out,). nf4: codes (out, 64 * blocks) uint8, a block being 128 inputs, scales
    (out, 4 * blocks). In a block, input 16 * i + j is bits 4 * i to 4 * i + 3 of the j-th little-endian 32-bit word.
    """
    weight = weight.detach().float().contiguous()
    if kind == "int8":
        scales = weight.abs().amax(dim=1) / 127
        return (weight / scales.clamp_min(1e-30).unsqueeze(1)).round().to(torch.int8), scales
    rows, columns = weight.shape
    groups = F.pad(weight, (0, -columns % BLOCK)).view(rows, -1, GROUP)
    scales = groups.abs().amax(dim=2)
    steps = (groups / scales.clamp_min(1e-30).unsqueeze(2)).nan_to_num_(0).add_(1).mul_(STEPS / 2).to(torch.int32)
    codes = NEAREST.to(weight.device)[steps].view(rows, -1, 8, 16)
    words = codes[:, :, 0].clone()
    for part in range(1, 8):
        words |= codes[:, :, part] << (4 * part)
    return words.view(rows, -1).view(torch.uint8), scales.contiguous()


def unpack(codes: Tensor, scales: Tensor, columns: int) -> Tensor:
    """The float32 weight (out, in) that codes and scales stand for."""
    if codes.dtype == torch.int8:
        return codes.float() * scales.unsqueeze(-1)
    words = codes.view(torch.int32).view(codes.size(0), -1, 1, 16)
    found = (words >> (4 * torch.arange(8, device=codes.device).view(8, 1))) & 15  # (out, blocks, 8, 16)
    groups = NF4.to(codes.device)[found].view(codes.size(0), -1, GROUP)
    return (groups * scales.unsqueeze(2)).view(codes.size(0), -1)[:, :columns]


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
    """The layers to quantize by the model's steps, and how: those of the vocabulary always in int8."""
    encoder = model.encoder_steps() if isinstance(model, EncoderDecoder) else ()
    for operation, keywords in chain(encoder, model.steps()):
        if operation == "embed":
            yield keywords["tokens"], "int8"
        elif operation == "logits" and keywords["layer"].weight is not None:
            yield keywords["layer"], "int8"
        elif operation in ("linear", "add", "lstm", "remember"):
            for layer in keywords.get("layers") or [keywords["layer"]]:
                yield layer, kind


def quantized(layer: nn.Module, kind: str | Blocks) -> nn.Module:
    """A layer that holds the weights of `layer` quantized, or `kind`, which are blocks of them."""
    if isinstance(layer, nn.Embedding):
        return QuantizedEmbedding(layer, kind)
    return QuantizedLSTM(layer, kind) if isinstance(layer, nn.LSTM) else QuantizedLinear(layer, kind)  # type: ignore[arg-type]


def check_kind(kind: str | None, *others: str) -> None:
    """ValueError: not one of KINDS, of `others`, or None."""
    if kind is not None and kind not in (*others, *KINDS):
        raise ValueError(f"quantize {kind!r} is unknown; give {', '.join(('None', *others, KINDS[0]))} or {KINDS[1]}")


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
        raise ValueError(f"a quantized model cannot be {done}: load it again without quantize")
