"""A model -> one TorchScript file, which LibTorch runs without Python: jit_load() in R, torch::jit::load() in C++.

The code of the file is written from the model's `steps`, with every parameter under its own name; no family is named
here, and parity tests hold `steps` and `forward` together. Compiled, not traced: a trace would keep the dropout, the
device, the dtype and the blocks of local attention of the one call that it saw.

Traps: PyTorch's writer ends the process when the disk is full. In R torch 0.17 a TorchScript module's own $train() and
$eval() fail; model$..ptr..()$train(TRUE), or FALSE, is what works there.

Sources: the TorchScript language reference, and LibTorch 2.8, the oldest that the files are meant for (R torch 0.17).
Notation: that of the model files; R numbers of a head are rotated.
"""

import errno
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.arguments import model_of
from minhub_py.inference.quantize import refuse_quantized
from minhub_py.models.base import ACTIVATIONS, EncoderDecoder, LanguageModel, Step
from minhub_py.models.delta import delta_rule
from minhub_py.models.packed import has_packed
from minhub_py.models.window import local_attention
from minhub_py.registry import family_of
from minhub_py.skeleton import skeleton


def save_torchscript(model: nn.Module, path: str | Path, extra_files: Mapping[str, bytes] | None = None) -> None:
    """Write the model as one file for torch.jit.load() or R torch's jit_load(), in place of what was there.

    What is loaded maps idx, int64 (B, T), 0-based in R too, to logits (B, T, V) in the model's dtype; of an
    encoder-decoder, idx (B, E) of the source and decoder_idx (B, T). It is on the CPU and in eval mode, and can be
    moved, cast and trained: train() turns dropout on, and parameters, named as in the model, get
    gradients. It raises where idx is empty, no matrix, longer than the context, or has an id out of range.

    extra_files: what is to travel in the file beside config.json, such as tokenizer.json. torch.jit.load() gives it by
    its `_extra_files`, and any reader of zip archives as STEM/extra/NAME, where STEM is the file's first name.

    ValueError: not a model of this package, or a quantized one. OSError: the disk is full or may not be written;
    nothing has changed then.
    """
    own: LanguageModel = model_of(model, "save_torchscript()")
    refuse_quantized(own, "written as TorchScript")
    if has_packed(own):
        raise ValueError("experts in MXFP4 cannot be written as TorchScript: take the model in BF16 or F32")
    settings = {**own.config.to_hub(), "dtype": str(next(own.parameters()).dtype).removeprefix("torch.")}
    extra = {"config.json": json.dumps(settings, indent=2).encode(), **(extra_files or {})}
    with warnings.catch_warnings():
        # PyTorch would have torch.export used, which R cannot load. A FutureWarning since PyTorch 2.15.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)", category)
        write(compiled(own), Path(path), extra)


def compiled(model: LanguageModel) -> torch.jit.ScriptModule:
    """The model in TorchScript, in eval mode, on the CPU; it shares the memory of weights that are there already."""
    own = skeleton(family_of(model.config.to_hub()["model_type"]), model.config)
    own.load_state_dict({name: tensor.cpu() for name, tensor in model.state_dict().items()}, assign=True)
    writer = Writer(own)
    # A class of its own: TorchScript would take two models of the same shapes for the same code.
    script = torch.jit.script(parameters_of(own, type(type(own).__name__, (nn.Module,), {})()))
    # define() looks names up where it is called.
    exec("script.define(code)", {**writer.names, "script": script, "code": writer.code()})
    return script.eval()


def parameters_of(module: nn.Module, found: nn.Module) -> nn.Module:
    """`found` with a module's parameters, buffers and children under their names, and nothing of what it does."""
    for name, parameter in module.named_parameters(recurse=False):
        found.register_parameter(name, parameter)
    for name, buffer in module.named_buffers(recurse=False):
        found.register_buffer(name, buffer)
    for name, child in module.named_children():
        if child.state_dict():
            empty = nn.ModuleList() if isinstance(child, nn.ModuleList) else nn.Module()
            found.add_module(name, parameters_of(child, empty))
    return found


class Writer:
    """A model's steps as the code of a `forward` in TorchScript: a line or two for each operation.

    x is the residual stream, h the current value, (B, T, …) each; inference/compiled.py says what the operations mean.
    """

    def __init__(self, model: LanguageModel) -> None:
        # Buffers, too, that are in files.
        self.paths = {id(tensor): path_of(name) for name, tensor in model.state_dict(keep_vars=True).items()}
        self.names: dict[str, Any] = {"torch": torch, "F": F, "Tensor": Tensor}
        self.names |= {each.__name__: each for each in FUNCTIONS}
        self.context: int | None = model.config.context_length
        self.ropes: list[Any] = []
        self.biases: list[Any] = []
        self.lines: list[str] = []
        self.arguments = ["idx", "decoder_idx"] if model.encoder_decoder else ["idx"]
        self.idx = "idx"  # what the steps read
        self.remembered = self.recalled = 0  # layers of cross attention
        if isinstance(model, EncoderDecoder):
            self.write(model.encoder_steps())
            self.idx = "decoder_idx"
        self.write(model.steps())

    def write(self, steps: Iterable[Step]) -> None:
        """Add the lines of some steps."""
        for operation, keywords in steps:
            getattr(self, operation)(**keywords)

    def code(self) -> str:
        """The code of `forward`, which gives logits (B, T, V)."""
        first = [f"check({name}, {self.context or 0})" for name in self.arguments]
        for i, rope in enumerate(self.ropes):
            numbers = f"{list(rope.frequencies)}, {rope.amplitude}, {rope.growth}, {rope.original}"
            first.append(f"rope{i} = rotations(idx, {numbers})")
        arguments = ", ".join(f"{name}: Tensor" for name in self.arguments)
        return "\n    ".join([f"def forward(self, {arguments}) -> Tensor:", *first, *self.lines]) + "\n"

    def path(self, parameter: Tensor | None) -> str:
        """How the code names a parameter."""
        return "None" if parameter is None else self.paths[id(parameter)]

    def linear_of(self, layer: Any) -> str:
        """A layer of h."""
        return f"F.linear(h, {self.path(layer.weight)}, {self.path(layer.bias)})"

    def activation(self, name: str) -> str:
        """How the code names an activation."""
        self.names[f"activation_{name}"] = traced(ACTIVATIONS[name])
        return f"activation_{name}"

    @staticmethod
    def dropped(value: str, p: float) -> str:
        """A value with dropout, where there is any."""
        return f"F.dropout({value}, {p}, self.training)" if p else value

    def embed(self, tokens: Any, positions: Any = None, scale: float | None = None, dropout: float = 0.0) -> None:
        self.lines.append(f"x = F.embedding({self.idx}, {self.path(tokens.weight)})")
        if scale is not None:
            self.lines.append(f"x = scaled(x, {scale})")
        if positions is not None:
            places = "torch.arange(idx.size(1), device=idx.device)"
            self.lines.append(f"x = x + F.embedding({places}, {self.path(positions.weight)})")
        if dropout:
            self.lines.append(f"x = {self.dropped('x', dropout)}")
        self.lines.append("h = x")

    def place(self, positions: Any, first: int = 0) -> None:
        rows = f"{self.path(positions.weight)}[{first} : {first} + idx.size(1)]"
        self.lines.append(f"x = h + {rows}\n    h = x")

    def keep(self) -> None:
        self.lines.append("kept = x")

    def copy(self) -> None:
        self.lines.append("h = x")

    def norm(self, layer: Any, kept: bool = False, stream: bool = False) -> None:
        weights = f"{self.path(layer.weight)}, {self.path(layer.bias)}"
        self.lines.append(
            f"h = F.layer_norm({'kept' if kept else 'x'}, {list(layer.normalized_shape)}, {weights}, {layer.eps})"
        )
        if stream:
            self.lines.append("x = h")

    def rms_norm(self, layer: Any, kept: bool = False, plus_one: bool = False, dropout: float = 0.0) -> None:
        self.lines.append(f"h = {self.rms_normed('kept' if kept else 'x', layer, plus_one)}")
        self.drop(dropout)

    def rms_normed(self, value: str, layer: Any, plus_one: bool) -> str:
        """A value after an RMS norm."""
        return f"rms_norm({value}, {self.path(layer.weight)}, {layer.eps}, {plus_one})"

    def drop(self, p: float) -> None:
        """Dropout of h, where there is any."""
        if p:
            self.lines.append(f"h = {self.dropped('h', p)}")

    def linear(self, layers: Sequence[Any], activation: str | None = None, dropout: float = 0.0) -> None:
        results = ", ".join(map(self.linear_of, layers))
        self.lines.append(f"h = torch.cat([{results}], dim=2)" if len(layers) > 1 else f"h = {results}")
        if activation is not None:
            self.lines.append(f"h = {self.activation(activation)}(h)")
        self.drop(dropout)

    def rotate(
        self, heads: int, rope: Any, groups: int | None = None, q_norm: Any = None, k_norm: Any = None,
        plus_one: bool = False, whole: bool = False, interleaved: bool = False, gate: bool = False,
    ) -> None:  # fmt: skip
        if gate:
            self.ungate(heads, groups or heads)
        if rope not in self.ropes:
            self.ropes.append(rope)
        norms = "None, None, 0.0, False, False"
        if q_norm is not None:
            norms = f"{self.path(q_norm.weight)}, {self.path(k_norm.weight)}, {q_norm.eps}, {plus_one}, {whole}"
        angles = f"rope{self.ropes.index(rope)}, {interleaved}"
        self.lines.append(f"h = rotate(h, {heads}, {groups or heads}, {angles}, {norms})")

    def ungate(self, heads: int, groups: int) -> None:
        """Put the gates, one after each head of q in h, aside."""
        self.lines.append(f"parts = h.unflatten(2, [{2 * (heads + groups)}, -1])")
        self.lines.append(f"gates = parts[:, :, 1:{2 * heads}:2].flatten(2)")
        self.lines.append(f"h = torch.cat([parts[:, :, 0:{2 * heads}:2], parts[:, :, {2 * heads}:]], dim=2).flatten(2)")

    def attend(
        self, heads: int, scale: float, groups: int | None = None, window: int | None = None, dropout: float = 0.0,
        upcast: bool = False, softcap: float | None = None, sinks: Tensor | None = None, gate: bool = False,
        bias: Any = None, both_ways: bool = False,
    ) -> None:  # fmt: skip
        drop = self.rate(dropout)
        if bias is None:
            settings = f"h, {heads}, {groups or heads}, {scale}, {window or 0}, {drop}"
            if softcap is None and sinks is None:
                self.lines.append(f"h = attend({settings}, {upcast})")
            else:
                self.lines.append(f"h = attend_by_scores({settings}, {float(softcap or 0)}, {self.path(sinks)})")
            if gate:
                self.lines.append("h = h * gates.sigmoid()")
            return
        if bias not in self.biases:  # one for all layers
            self.biases.append(bias)
            call = f"distance_bias({self.path(bias.weight)}, {self.idx}, {bias.far}, {both_ways})"
            self.lines.append(f"bias{self.biases.index(bias)} = {call}")
        self.lines.append(f"q, k, v = heads_of(h, {heads}, {heads})")
        self.lines.append(f"h = attend_with_bias(q, k, v, bias{self.biases.index(bias)}, {scale}, {drop})")

    def delta_rule(
        self, heads: int, groups: int, conv: Any, activation: str, decay: Tensor, bias: Tensor, norm: Any
    ) -> None:
        sizes = f"{heads}, {groups}, {norm.weight.numel()}"
        self.lines.append(f"mixed, h = h.split([{len(conv.weight)}, h.size(2) - {len(conv.weight)}], dim=2)")
        self.lines.append(f"mixed = F.pad(mixed.transpose(1, 2), [{conv.weight.size(2) - 1}, 0])")
        self.lines.append(f"mixed = F.conv1d(mixed, {self.path(conv.weight)}, groups={len(conv.weight)})")
        self.lines.append(f"mixed = {self.activation(activation)}(mixed).transpose(1, 2)")
        weights = f"{self.path(decay)}, {self.path(bias)}, {self.path(norm.weight)}, {norm.eps}"
        self.lines.append(f"h = gated_delta(mixed, h, {sizes}, {weights})")

    def cross_attend(self, heads: int, scale: float, dropout: float = 0.0) -> None:
        k, v = f"keys{self.recalled}", f"values{self.recalled}"
        self.lines.append(f"h = cross_attend(h, {k}, {v}, {heads}, {scale}, {self.rate(dropout)})")
        self.recalled += 1

    def remember(self, heads: int, layers: Sequence[Any]) -> None:
        for name, layer in zip(("keys", "values"), layers, strict=True):
            self.lines.append(f"{name}{self.remembered} = {self.linear_of(layer)}")
        self.remembered += 1

    @staticmethod
    def rate(dropout: float) -> str:
        """A probability of dropout for a function that knows nothing of training."""
        return f"{dropout} if self.training else 0.0" if dropout else "0.0"

    def gate(self, activation: str, dropout: float = 0.0) -> None:
        self.lines.append(f"h, up = h.chunk(2, dim=2)\n    h = {self.activation(activation)}(h) * up")
        self.drop(dropout)

    def add(self, layer: Any, norm: Any = None, plus_one: bool = False, dropout: float = 0.0) -> None:
        result = self.linear_of(layer) if norm is None else self.rms_normed(self.linear_of(layer), norm, plus_one)
        self.lines.append(f"x = x + {self.dropped(result, dropout)}")

    def experts(
        self, router: Any, gate_up: Any, gate_up_bias: Tensor, down: Any, down_bias: Tensor, top: int, alpha: float,
        limit: float,
    ) -> None:  # fmt: skip
        names = ", ".join(map(self.path, (router.weight, router.bias, gate_up, gate_up_bias, down, down_bias)))
        self.lines.append(f"x = x + experts(h, {names}, {top}, {alpha}, {limit})")

    def lstm(self, layer: Any, dropout: float = 0.0) -> None:
        weights = ", ".join(map(self.path, layer._flat_weights))
        self.lines.append(f"shape = [{layer.num_layers}, h.size(0), {layer.hidden_size}]")
        self.lines.append("zeros = torch.zeros(shape, dtype=h.dtype, device=h.device)")
        settings = f"True, {layer.num_layers}, {float(layer.dropout)}, self.training, False, True"
        self.lines.append(f"h = torch.lstm(h, [zeros, zeros], [{weights}], {settings})[0]")
        self.drop(dropout)

    def logits(self, layer: Any, bias: Tensor | None = None, softcap: float | None = None, scale: float = 1.0) -> None:
        bias = getattr(layer, "bias", None) if bias is None else bias
        if scale != 1:
            self.lines.append(f"h = h * {scale}")
        self.lines.append(f"h = F.linear(h, {self.path(layer.weight)}, {self.path(bias)})")
        self.lines.append("return h" if softcap is None else f"return torch.tanh(h / {softcap}) * {softcap}")


def path_of(name: str) -> str:
    """`h.0.ln_1.weight` as code: self.h[0].ln_1.weight."""
    return "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))


# What the code calls. TorchScript compiles these functions.


def check(idx: Tensor, context: int) -> None:
    """ValueError: no matrix of ids, or more positions than the context, if it has a bound."""
    if idx.dim() != 2 or idx.numel() == 0:
        raise ValueError(f"idx must be (B, T) with at least one id, not {idx.shape}")
    if context > 0 and idx.size(1) > context:
        raise ValueError(f"{idx.size(1)} positions; this model has {context}")


def scaled(x: Tensor, scale: float) -> Tensor:
    """The product with a factor that is rounded to the dtype of x."""
    return x * torch.tensor(scale, dtype=x.dtype, device=x.device)


def rms_norm(x: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + eps)
    if plus_one:
        return (y * (1 + weight.float())).to(x.dtype)
    return weight * y.to(x.dtype)


def rotations(
    idx: Tensor, frequencies: list[float], amplitude: float, growth: float, original: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Cos and sin (T, 1, R/2) of each position's angles, and the growth of queries (T, 1, 1)."""
    positions = torch.arange(idx.size(1), device=idx.device).float()
    angles = positions.unsqueeze(1) * torch.tensor(frequencies, dtype=torch.float32, device=idx.device)
    grown = 1 + growth * torch.log(1 + torch.floor(positions / original))
    cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
    return cos.unsqueeze(1), sin.unsqueeze(1), grown.unsqueeze(1).unsqueeze(2)


def rotate(
    h: Tensor,
    heads: int,
    groups: int,
    rope: tuple[Tensor, Tensor, Tensor],
    interleaved: bool,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    plus_one: bool,
    whole: bool,
) -> Tensor:
    """Norm, where there is one, and turn the heads of q and k in h, which is q, k and v side by side.

    whole: one norm of all heads of q, and one of all of k.
    """
    parts = h.unflatten(2, [heads + 2 * groups, -1])  # (B, T, H + 2G, D)
    q, k, v = parts.split([heads, groups, groups], dim=2)
    if q_norm is not None and k_norm is not None:
        shape = parts.shape
        if whole:
            q, k = q.flatten(2), k.flatten(2)
        q, k = rms_norm(q, q_norm, eps, plus_one), rms_norm(k, k_norm, eps, plus_one)
        q, k = q.view(shape[0], shape[1], heads, shape[3]), k.view(shape[0], shape[1], groups, shape[3])
    cos, sin, growth = rope[0].to(h.dtype), rope[1].to(h.dtype), rope[2].to(h.dtype)
    x = torch.cat((q, k), dim=2)
    half = cos.size(-1)
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=4).flatten(3)
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=3)
    x = torch.cat((turned, x[..., 2 * half :]), dim=3)
    q, k = x.split([heads, groups], dim=2)
    return torch.cat((q * growth, k, v), dim=2).flatten(2)


def heads_of(h: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (B, H, T, D), side by side in h (B, T, (H + 2G) * D); those of k and v repeated for their group."""
    q, k, v = h.unflatten(2, [heads + 2 * groups, -1]).transpose(1, 2).split([heads, groups, groups], dim=1)
    if heads != groups:
        k = k.repeat_interleave(heads // groups, dim=1)
        v = v.repeat_interleave(heads // groups, dim=1)
    return q, k, v


def attend(h: Tensor, heads: int, groups: int, scale: float, window: int, dropout: float, upcast: bool) -> Tensor:
    """Attention of q, k and v side by side in h (B, T, (H + 2G) * D), to all before, or a window of them if not 0."""
    q, k, v = heads_of(h.float() if upcast else h, heads, groups)
    if window == 0 or window >= h.size(1):
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scale)
    else:
        starts = torch.zeros(h.size(0), dtype=torch.long, device=h.device)
        y = local_attention(q, k, v, starts, window, dropout, scale)
    return y.to(h.dtype).transpose(1, 2).flatten(2)


def attend_by_scores(
    h: Tensor, heads: int, groups: int, scale: float, window: int, dropout: float, softcap: float, sinks: Tensor | None
) -> Tensor:
    """As `attend`, with a soft cap of the scores if not 0, and sinks (H,), which PyTorch's fused attention lacks."""
    q, k, v = heads_of(h, heads, groups)
    place = torch.arange(h.size(1), device=h.device)
    back = place.unsqueeze(1) - place  # how far each key lies before each query
    hidden = back < 0
    if window > 0:
        hidden = hidden | (back >= window)
    scores = (q @ k.transpose(2, 3)).float() * scale  # (B, H, T, T)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        more = sinks.float().view(1, heads, 1, 1).expand(h.size(0), heads, h.size(1), 1)
        scores = torch.cat((scores, more), dim=3)
    weights = scores.softmax(dim=3)[:, :, :, : h.size(1)]
    y = F.dropout(weights, dropout).to(v.dtype) @ v
    return y.transpose(1, 2).flatten(2)


def experts(
    h: Tensor, router: Tensor, router_bias: Tensor, gate_up: Tensor, gate_up_bias: Tensor, down: Tensor,
    down_bias: Tensor, top: int, alpha: float, limit: float,
) -> Tensor:  # fmt: skip
    """Gated MLPs, the `top` of each position, by the softmax of the router's scores for them."""
    rows = h.flatten(0, 1)  # (B * T, C)
    scores, chosen = F.linear(rows, router, router_bias).topk(top, dim=1)
    shares = scores.softmax(dim=1)
    y = torch.zeros_like(rows)
    for number in range(gate_up.size(0)):
        places = (chosen == number).nonzero()  # (n, 2): position, choice
        if places.size(0) > 0:
            row = places[:, 0]
            both = (rows[row] @ gate_up[number] + gate_up_bias[number]).unflatten(1, [-1, 2])  # (n, I, 2)
            gate, up = both[:, :, 0].clamp(max=limit), both[:, :, 1].clamp(min=-limit, max=limit)
            found = (gate * torch.sigmoid(alpha * gate) * (up + 1)) @ down[number] + down_bias[number]
            y = y.index_add(0, row, found * shares[row, places[:, 1]].unsqueeze(1))
    return y.view_as(h)


def gated_delta(
    mixed: Tensor, h: Tensor, heads: int, groups: int, size: int, decay: Tensor, bias: Tensor, norm: Tensor, eps: float
) -> Tensor:
    """The gated delta rule from its first position, normed and gated, (B, T, H * V).

    mixed: q, k and v side by side, (B, T, 2 * G * K + H * V). h: z, and the numbers of beta and the decay.
    """
    keys = mixed.size(2) - heads * size
    q, k, v = mixed.float().split([keys // 2, keys // 2, heads * size], dim=2)
    z, b, a = h.float().split([heads * size, heads, heads], dim=2)
    q, k, v = q.unflatten(2, [groups, -1]), k.unflatten(2, [groups, -1]), v.unflatten(2, [heads, -1])
    q = q * torch.rsqrt(q.square().sum(dim=3, keepdim=True) + 1e-6) * q.size(3) ** -0.5
    k = k * torch.rsqrt(k.square().sum(dim=3, keepdim=True) + 1e-6)
    q = q.repeat_interleave(heads // groups, dim=2).transpose(1, 2)  # (B, H, T, K)
    k = k.repeat_interleave(heads // groups, dim=2).transpose(1, 2)
    decays = -decay.float().exp() * F.softplus(a + bias.float())  # (B, T, H)
    state = torch.zeros([q.size(0), heads, q.size(3), size], device=h.device)
    y = delta_rule(q, k, v.transpose(1, 2), decays.transpose(1, 2), b.sigmoid().transpose(1, 2), state)[0]
    y = rms_norm(y.transpose(1, 2), norm.float(), eps, False) * F.silu(z.unflatten(2, [heads, -1]))
    return y.flatten(2).to(h.dtype)


def distance_bias(weight: Tensor, idx: Tensor, far: int, both_ways: bool) -> Tensor:
    """The numbers (1, H, T, T) of the table (buckets, H) for ids (B, T); minus infinity for later ids but both_ways."""
    positions = torch.arange(idx.size(1), device=idx.device)
    distances = positions.unsqueeze(0) - positions.unsqueeze(1)  # of the keys, from each query
    count = weight.size(0) // 2 if both_ways else weight.size(0)
    back = distances.abs() if both_ways else (-distances).clamp(min=0)
    near = count // 2
    beyond = (back.float() / near).log() / math.log(far / near) * (count - near)
    found = torch.where(back < near, back, (near + beyond.clamp(min=0).long()).clamp(max=count - 1))
    if both_ways:
        found = found + count * (distances > 0)
    bias = F.embedding(found, weight).permute(2, 0, 1).unsqueeze(0)
    return bias if both_ways else bias.masked_fill(distances > 0, float("-inf"))


def attend_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Attention of q (B, H, T, D) to all of k and v (B, H, S, D), with what is added to the scores; (B, T, H * D)."""
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    return y.transpose(1, 2).flatten(2)


def cross_attend(h: Tensor, keys: Tensor, values: Tensor, heads: int, scale: float, dropout: float) -> Tensor:
    """Attention of h (B, T, H * D) to keys and values (B, E, H * D) of the source."""
    q, k, v = [part.unflatten(2, [heads, -1]).transpose(1, 2) for part in (h, keys, values)]
    return attend_with_bias(q, k, v, None, scale, dropout)


FUNCTIONS = (
    attend,
    attend_by_scores,
    attend_with_bias,
    check,
    cross_attend,
    distance_bias,
    experts,
    gated_delta,
    heads_of,
    rms_norm,
    rotate,
    rotations,
    scaled,
)


@cache  # layers that share it share its code in the file
def traced(activation: Callable[[Tensor], Tensor]) -> Any:
    """An elementwise function for TorchScript, which compiles no lambda; a trace loses nothing here."""

    def function(x: Tensor) -> Tensor:
        return activation(x)

    return torch.jit.trace(function, torch.zeros(1))


def write(script: torch.jit.ScriptModule, path: Path, extra: Mapping[str, bytes]) -> None:
    """Save under a passing name, and take the own one when all is on the disk. OSError says why that cannot be."""
    size = sum(tensor.nbytes for tensor in script.state_dict().values()) + sum(map(len, extra.values()))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder, since PyTorch names the archive's root after the file.
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".partial", dir=path.parent) as folder:
            partial = Path(folder) / path.name
            # Room for code and headers too. To ask is the only way: see the traps above.
            if shutil.disk_usage(folder).free < size + 2**20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            torch.jit.save(script, partial, _extra_files=extra)
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(f"{path} cannot be written ({reason}): make room, or name another file") from error
