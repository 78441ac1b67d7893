"""Named points of a model's computation, and copies of the model that read or change the values at
these points.

The names are derived from `steps`, which lists the modules that write to the residual stream.
Layers and heads count from 1, as in `attention_weights` and `logit_lens`:

    embeddings              the input of layer 1
    layers.3.attn           the output of the attention of layer 3, as added to the residual stream (after its norm)
    layers.3.ssm            the same of the selective state space, in a layer that has both (Falcon H1); its heads are
                            `ssm_heads`
    layers.3.mlp            the output of the MLP of layer 3, as added to the residual stream
    layers.3.per_layer_input
                            what layer 3 adds for the vectors that tokens have for each layer (Gemma 4)
    layers.3.resid          the output of layer 3: the residual stream after its last addition, and after a factor
                            (Gemma 4) or a norm of the stream itself (BERT). It is the input of layer 4. In an LSTM: its
                            hidden state h, as the next layer receives it; the recurrence within the layer is not part
                            of it
    layers.3.heads.2        the output of a head: its weighted sum of values, before the output projection
    layers.3.heads          all heads of the layer, concatenated
    layers.3.neurons.17     an activation of the MLP: an input of its output projection
    layers.3.neurons        all of them
    final                   the input of the head, after the final norm

The decoder of an encoder-decoder also has `layers.3.cross` and `layers.3.cross_heads.2` for its
cross-attention. The names of its encoder start with `encoder.`. A `*` replaces any number:
`layers.*.resid`.

Hooks on a copy that shares the weights of the model read and change the values while the model's
own `forward` runs. The model is not changed, and threads can use the model and its copies at the
same time.
"""

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from minhub_py.inference.arguments import all_of, is_text
from minhub_py.inference.eval_mode import eval_copy, may_hold_modules
from minhub_py.inference.quantize import Quantized
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import EncoderCache
from minhub_py.models.encoder import EncoderDecoder
from minhub_py.models.layers import BlockList
from minhub_py.models.lora import LoRALinear
from minhub_py.models.steps import (
    WKV,
    Add,
    AddToSaved,
    Attend,
    CrossAttend,
    DeltaRule,
    Experts,
    GateLayerInput,
    Linear,
    Norm,
    Recurrent,
    SaveResidual,
    SelectiveScan,
    ShortConvolution,
    Step,
)

ENCODER = "encoder."
# ends of the names of values that are added to the residual stream
ADDED = (".attn", ".ssm", ".cross", ".mlp", ".per_layer_input")
# Receives the value (B, T, size) at a point and the positions (B or 1, T); returns the new value,
# or None.
Edit = Callable[[Tensor, Tensor], Tensor | None]
# the number of the module's call and the channels; None: all
NumberedEdit = tuple[int | None, slice | None, Edit]


@dataclass(frozen=True)
class Point:
    """A value (B, T, size): the input or output of a module, or a part of it.

    path: name of the module within the model.    size: number of channels.    layer: number, from
    1; 0 for the embeddings.    part: the channels of the module's value; None for all.    scale:
    the value at the point is the module's value times this factor, as Granite adds its outputs to
    the residual stream.    call: number of the module's call in a forward call, if layers share
    modules (ALBERT); otherwise None.
    """

    name: str
    path: str
    side: Literal["input", "output"]
    size: int
    layer: int
    part: slice | None = None
    scale: float = 1.0
    call: int | None = None


@dataclass(frozen=True)
class PointSource:
    """A module whose value is a point. units: number of heads or neurons, which divide the value
    equally.

    scale, call: see `Point`.
    """

    path: str
    side: Literal["input", "output"]
    size: int
    layer: int
    units: int = 0
    scale: float = 1.0
    call: int | None = None


class Points:
    """The points of a model. layers: their number. sources: by the name of the point without its
    unit.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.title = model.config.TITLE
        self.encoder_decoder = model.encoder_decoder
        self.sources: dict[str, PointSource] = {}
        self.layers = 0
        paths = {id(module): name for name, module in reversed([*model.named_modules()])}
        self.blocks = [
            f"{name}."
            for list_name, module in model.named_modules()
            if isinstance(module, BlockList)
            for name in (f"{list_name}.{number}" for number in range(len(module)))
        ]
        if isinstance(model, EncoderDecoder):
            self._read(model.encoder_steps(), paths, ENCODER)
        self._read(model.steps(), paths, "")

    def _read(self, steps: Iterable[Step], paths: Mapping[int, str], prefix: str) -> None:
        """Add the points of a list of steps. paths: the name of each module, by its id."""
        mixing: Step | None = None
        size = last = 0  # of the residual stream, and of the value after the last module
        layers: list[list[str]] = []  # the modules that write to the residual stream, by layer
        norm, tail = "", list[str]()  # the last norm; the modules after the last of `layers`
        saved = False  # whether the last norm read the stream before an addition
        for step in steps:
            match step:
                case Attend() | DeltaRule() | ShortConvolution() | SelectiveScan() | WKV():
                    if saved:  # in parallel with the state space of the layer
                        self._rename(
                            f"{prefix}layers.{len(layers)}.", attn="ssm", heads="ssm_heads"
                        )
                    else:
                        layers.append([])
                    mixing = step
                case CrossAttend() | GateLayerInput():
                    mixing = step
                case Add():
                    self._append(layers, norm, paths[id(step.layer)])
                    self._add(step, mixing, len(layers), paths, prefix)
                    size = last = shape_of(step.layer)[0]
                    mixing, tail = None, []
                case Experts():
                    path = paths[id(step.router)].rpartition(".")[0]
                    start = f"{prefix}layers.{len(layers)}."
                    self._rename(start, mlp="shared.mlp", neurons="shared.neurons")
                    self.sources[f"{start}mlp"] = PointSource(path, "output", size, len(layers))
                    layers[-1].append(path)
                    tail = []
                case AddToSaved():  # the MLP and the experts, or attention
                    path = paths[id(step.norm)]
                    start = f"{prefix}layers.{len(layers)}."
                    name = "mlp" if start + "mlp" in self.sources else "attn"
                    self.sources[start + name] = PointSource(path, "output", size, len(layers))
                    layers[-1].append(path)
                    tail = []
                case Recurrent():
                    path = paths[id(step.layer)]
                    layers = [
                        [f"{path}.outputs.{number}"] for number in range(step.layer.num_layers)
                    ]
                    size = last = step.layer.hidden_size
                    self.sources[f"{prefix}embeddings"] = PointSource(
                        path, "input", step.layer.input_size, 0
                    )
                case Norm() if not step.to_residual:
                    tail, saved = [norm := paths[id(step.layer)]], step.saved
                case Linear():
                    tail, last = [paths[id(step.layers[0])]], shape_of(step.layers[0])[0]
        blocks = [common_parent(modules) for modules in layers]
        self.sources.setdefault(f"{prefix}embeddings", PointSource(blocks[0], "input", size, 0))
        for number, path in enumerate(blocks, 1):
            self.sources[f"{prefix}layers.{number}.resid"] = PointSource(
                path, "output", size, number
            )
        self.sources[f"{prefix}final"] = PointSource(
            tail[0] if tail else blocks[-1], "output", last, len(blocks)
        )
        self._number_calls(blocks)
        if not (prefix == "" and self.encoder_decoder):
            self.layers = len(blocks)

    def _number_calls(self, blocks: list[str]) -> None:
        """Set `call` of the points in blocks that several layers share."""
        for name, source in self.sources.items():
            block = blocks[max(source.layer, 1) - 1] if source.layer <= len(blocks) else ""
            if blocks.count(block) > 1 and source.path.startswith(block):
                self.sources[name] = replace(
                    source, call=blocks[: max(source.layer, 1) - 1].count(block)
                )

    def _block(self, path: str) -> str:
        """The start of a module's path: its block in a list of blocks, or nothing."""
        return next((block for block in self.blocks if path.startswith(block)), "")

    def _append(self, layers: list[list[str]], norm: str, path: str) -> None:
        """Append a module and the norm of its input to the last layer, or to a new layer that has
        an MLP only.
        """
        block = self._block(path)
        if not layers or (layers[-1] and self._block(layers[-1][-1]) != block):
            layers.append([])
        layers[-1] += [norm, path] if block and block == self._block(norm) else [path]

    def _rename(self, start: str, **names: str) -> None:
        """Rename the points of a layer, old names to new names."""
        for old, new in names.items():
            if (source := self.sources.pop(start + old, None)) is not None:
                self.sources[start + new] = source

    def _add(
        self, step: Add, mixing: Step | None, layer: int, paths: Mapping[int, str], prefix: str
    ) -> None:
        """Add the points of a module that writes to the residual stream; `mixing`: the operation
        before it, or None.
        """
        name = "mlp" if mixing is None else "cross" if isinstance(mixing, CrossAttend) else "attn"
        start = f"{prefix}layers.{layer}."
        output = step.layer if step.norm is None else step.norm
        size, width = shape_of(step.layer)
        if isinstance(mixing, GateLayerInput):
            self.sources[start + "per_layer_input"] = PointSource(
                paths[id(output)], "output", size, layer
            )
            return
        # A gate of the outputs follows the layer within its module.
        path = paths[id(output)].rpartition(".")[0] if step.gate else paths[id(output)]
        self.sources[start + name] = PointSource(path, "output", size, layer, scale=step.scale)
        units = width if mixing is None else getattr(mixing, "heads", 1)
        name = {"mlp": "neurons", "attn": "heads", "cross": "cross_heads"}[name]
        self.sources[start + name] = PointSource(
            paths[id(step.layer)], "input", width, layer, units
        )

    def find(self, names: str | Iterable[str]) -> list[Point]:
        """The points with these names, with `*` for any number. ValueError: an unknown name."""
        requested = (names,) if isinstance(names, str) else all_of(names, is_text)
        if not requested:
            raise ValueError(
                f"at must be the name of a point, or a list of names, not {names!r}:"
                f" {self.describe()}"
            )
        matches: dict[str, Point] = {}
        for name in requested:
            points = [*self._matches(name)]
            if not points:
                raise ValueError(f"{self.title} has no point {name!r}: {self.describe()}")
            matches.update({point.name: point for point in points})
        return list(matches.values())

    def find_one(self, name: object) -> Point:
        """A single point. ValueError: an unknown name, or several points."""
        if not isinstance(name, str):
            raise ValueError(f"at must be the name of one point, not {name!r}: {self.describe()}")
        points = self.find(name)
        if len(points) > 1:
            raise ValueError(
                f"at must be the name of one point, but {name!r} matches {len(points)} points"
            )
        return points[0]

    def _matches(self, name: str) -> Iterator[Point]:
        pattern = re.compile(re.escape(name).replace(r"\*", r"\d+"))
        base, _, number = name.rpartition(".")
        units = (
            re.compile(re.escape(base).replace(r"\*", r"\d+"))
            if number.isdigit() or number == "*"
            else None
        )
        for point, source in self.sources.items():
            if pattern.fullmatch(point):
                yield Point(
                    point,
                    source.path,
                    source.side,
                    source.size,
                    source.layer,
                    scale=source.scale,
                    call=source.call,
                )
            elif units is not None and source.units and units.fullmatch(point):
                for unit in range(1, source.units + 1) if number == "*" else [int(number)]:
                    if 1 <= unit <= source.units:
                        size = source.size // source.units
                        part = slice((unit - 1) * size, unit * size)
                        name = f"{point}.{unit}"
                        yield Point(
                            name,
                            source.path,
                            source.side,
                            size,
                            source.layer,
                            part,
                            call=source.call,
                        )

    def describe(self) -> str:
        """The names of the points, for messages."""
        first: dict[str, list[PointSource]] = {}
        for name, source in self.sources.items():
            first.setdefault(re.sub(r"layers\.\d+", "layers.N", name), []).append(source)
        names = [
            f"{name} (or {name}.1 to .{sources[0].units})" if sources[0].units else name
            for name, sources in first.items()
        ]
        last = {
            prefix: max(
                source.layer for name, source in self.sources.items() if name.startswith(prefix)
            )
            for prefix in ((ENCODER, "layers") if self.encoder_decoder else ("",))
        }
        counts = " and ".join(str(count) for count in dict.fromkeys(last.values()))
        return f"the points are {', '.join(names)}, with N from 1 to {counts}"


def shape_of(layer: Any) -> tuple[int, ...]:
    """The shape (out, in) of a linear layer's weight, without unpacking or merging it."""
    layer = layer.base if isinstance(layer, LoRALinear) else layer
    return tuple(layer.shape if isinstance(layer, Quantized) else layer.weight.shape)


def common_parent(paths: Sequence[str]) -> str:
    """The module that contains all of these modules; a single module is its own parent."""
    if len(paths) == 1:
        return paths[0]
    parts = [path.split(".") for path in paths]
    common = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


class LayeredLSTM(nn.Module):
    """An nn.LSTM, also a quantized one, layer by layer. The module outputs[i] receives the output
    of layer i.
    """

    def __init__(self, lstm: Any) -> None:
        super().__init__()
        self.lstm, self.num_layers = lstm, lstm.num_layers
        self.outputs = nn.ModuleList(nn.Identity() for _ in range(lstm.num_layers))
        self.eval()

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None:
            zeros = x.new_zeros(self.num_layers, x.size(0), self.lstm.hidden_size)
            state = (zeros, zeros)
        states = []
        for layer, output in enumerate(self.outputs):
            names = [
                f"{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            parameters = [getattr(self.lstm, name) for name in names]
            weights = [
                parameter.weight if isinstance(parameter, Quantized) else parameter
                for parameter in parameters
            ]
            before = (state[0][layer : layer + 1], state[1][layer : layer + 1])
            # has_biases, num_layers, dropout, train, bidirectional, batch_first
            x, h, c = torch.lstm(x, before, weights, True, 1, 0.0, False, False, True)
            x = output(x)
            states.append((h, c))
        h, c = (torch.cat(tensors) for tensors in zip(*states, strict=True))
        return x, (h, c)


@dataclass(frozen=True)
class Recipe:
    """The original model of a copy, and its edits in their order."""

    model: LanguageModel
    edits: tuple[tuple[Point, Edit], ...]


_thread = threading.local()


@contextmanager
def positions_of(past: Past) -> Iterator[None]:
    """Make the positions of a forward call available to the edits in this thread."""
    outer = getattr(_thread, "positions", None), getattr(_thread, "calls", None)
    _thread.positions, _thread.calls = past.positions, Counter()
    try:
        yield
    finally:
        _thread.positions, _thread.calls = outer


class Edited:
    """Methods of a copy. It shares the weights of its model, so that it cannot be trained or moved."""

    recipe: Recipe

    def body(self, idx: Tensor, past: Past, *arguments: object) -> Tensor:
        """See `LanguageModel.body`."""
        with positions_of(past):
            x: Tensor = super().body(idx, past, *arguments)  # type: ignore[misc]
            return x

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        """See `EncoderDecoder.encode`."""
        past = Past(idx) if past is None else past
        with positions_of(past):
            return super().encode(idx, past)  # type: ignore[misc]

    def train(self, mode: bool = True) -> "Edited":
        """Only eval mode is supported."""
        if mode:
            raise ValueError(
                "a model with interventions cannot be trained: train the model that intervene()"
                " received"
            )
        return self

    def _apply(self, *_: object, **__: object) -> NoReturn:
        raise ValueError(
            "a model with interventions shares its weights with the model that intervene()"
            " received: move that model, then call intervene() again"
        )

    def state_dict(self, *_: object, **__: object) -> NoReturn:
        """Interventions are not weights."""
        raise ValueError("interventions cannot be saved: save the model that intervene() received")

    def __repr__(self) -> str:
        model, edits = self.recipe.model, self.recipe.edits
        lines = [f"{type(model).__name__} with {len(edits)} intervention{'s' * (len(edits) > 1)}:"]
        return "\n".join([*lines, *(f"  {point.name}: {edit!r}" for point, edit in edits)])


@cache
def edited_class(cls: type) -> type:
    """The class of copies of a model, with its name."""
    return type(cls.__name__, (Edited, cls), {"__module__": __name__})


def recipe_of(model: LanguageModel) -> Recipe:
    """The recipe of a copy; of another model, a recipe without edits."""
    return model.recipe if isinstance(model, Edited) else Recipe(model, ())


def edited(model: LanguageModel, edits: Sequence[tuple[Point, Edit]], call: str) -> LanguageModel:
    """A copy in eval mode that applies `edits`, after the model's own edits if it is a copy itself.

    call: the public function, for the error message.    ValueError: the model has hooks or replaced
    methods.
    """
    recipe = recipe_of(model)
    model, edits = recipe.model, (*recipe.edits, *edits)
    if any(may_hold_modules(module) for module in model.modules()):
        raise ValueError(
            f"{call} does not support hooks, or methods replaced on an instance: remove them, or"
            " load the model again"
        )
    copy = eval_copy(model)
    layered(copy)
    modules = dict(copy.named_modules())
    groups: dict[tuple[str, str], list[NumberedEdit]] = {}
    for point, edit in edits:
        scaled = edit if point.scale == 1.0 else rescaled(edit, point.scale)
        groups.setdefault((point.path, point.side), []).append((point.call, point.part, scaled))
    for (path, side), group in groups.items():
        module = modules[path]
        # The copy shares these attributes with the model.
        module._forward_hooks = OrderedDict(module._forward_hooks)
        module._forward_pre_hooks = OrderedDict(module._forward_pre_hooks)
        if side == "output":
            module.register_forward_hook(on_output(group))
        else:
            module.register_forward_pre_hook(on_input(group))
    cls: Any = type(copy)
    copy.__class__ = edited_class(cls)
    vars(copy)["recipe"] = Recipe(model, edits)
    return copy


def layered(copy: nn.Module) -> None:
    """Replace each LSTM of a copy by a `LayeredLSTM`."""
    for name, child in list(copy.named_children()):
        if hasattr(child, "num_layers") and hasattr(child, "weight_hh_l0"):
            setattr(copy, name, LayeredLSTM(child))


def on_output(edits: Sequence[NumberedEdit]) -> Callable[..., Tensor]:
    """A forward hook that applies edits to the output of a module."""
    return lambda module, inputs, output: apply_edits(edits, output)


def on_input(edits: Sequence[NumberedEdit]) -> Callable[..., tuple[object, ...]]:
    """A forward pre-hook that applies edits to the first input of a module."""
    return lambda module, inputs: (apply_edits(edits, inputs[0]), *inputs[1:])


def rescaled(edit: Edit, scale: float) -> Edit:
    """An edit of a module's value, from an edit of `scale` times the value."""

    def rescale(x: Tensor, positions: Tensor) -> Tensor | None:
        new = edit(x * scale, positions)
        return None if new is None else new / scale

    return rescale


def norms_between_additions(steps: Iterable[Step]) -> bool:
    """Whether the model applies norms to the residual stream itself, so that contributions do not
    sum to it.

    A norm of the embeddings, before the first addition, does not count, nor one of a branch whose
    result is added to the saved stream.
    """
    added = branch = False
    for step in steps:
        added = added or isinstance(step, Add | Experts)
        branch = isinstance(step, SaveResidual) or (branch and not isinstance(step, AddToSaved))
        if added and not branch and isinstance(step, Norm) and step.to_residual:
            return True
    return False


def apply_edits(edits: Sequence[NumberedEdit], x: Tensor) -> Tensor:
    """The value x (B, T, …) after the edits of this call, each of which receives a part of the
    channels.
    """
    number = None
    if any(call is not None for call, _, _ in edits):
        number = _thread.calls[id(edits)]
        _thread.calls[id(edits)] += 1
    for call, part, edit in edits:
        if call not in (None, number):
            continue
        old = x if part is None else x[..., part]
        new = edit(old, _thread.positions)
        if new is not None and part is None:
            x = new
        elif new is not None:
            x = x.clone()
            x[..., part] = new
    return x
