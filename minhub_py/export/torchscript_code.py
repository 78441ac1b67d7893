"""The code of a TorchScript file: `forward`, written from a model's steps.

Each step of models/steps.py becomes a few lines that call the functions of
torchscript_functions.py. Variables:

    x        residual stream (B, T, C)
    h        current value (B, T, …)
    q, k, v  heads (B, H, T, D)
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.export.torchscript_functions import FUNCTIONS, traced
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder, EncoderDecoder
from minhub_py.models.experts import ExpertMatrices
from minhub_py.models.heads import LastTokenHead, MaskedLMHead, SequenceHead
from minhub_py.models.layers import (
    XIELU,
    ALiBi,
    Disentangled,
    HeadLayerNorm,
    LinearLayer,
    OffsetLayerNorm,
    RelativeBias,
    RMSNorm,
    UnitRMSNorm,
)
from minhub_py.models.lora import LoRALinear
from minhub_py.models.rotary import Rope
from minhub_py.models.steps import (
    WKV,
    Add,
    AddPositions,
    AddSinusoids,
    AddToSaved,
    AddTypes,
    Attend,
    CacheEncoder,
    CausalConvolution,
    Convolution,
    CrossAttend,
    DeltaRule,
    Embed,
    Experts,
    Gate,
    GateLayerInput,
    HiddenStates,
    LayerInputs,
    Linear,
    LoadResidual,
    Logits,
    Norm,
    NormPart,
    NormValues,
    Project,
    Recurrent,
    Rotate,
    SaveResidual,
    ScaleParts,
    ScaleResidual,
    SelectiveScan,
    ShortConvolution,
    Step,
    StoreResidual,
    TokenShift,
    unreachable,
)

HeadNorm = RMSNorm | HeadLayerNorm


class CodeWriter:
    """Writes the code of `forward` from a model's steps.

    names: the names that the code uses, and their values.
    """

    def __init__(self, model: LanguageModel) -> None:
        tensors = [*model.named_parameters(), *model.named_buffers()]
        self.paths = {id(tensor): path_of(name) for name, tensor in tensors}
        self.names: dict[str, object] = {"torch": torch, "F": F, "Tensor": Tensor}
        self.names |= {function.__name__: function for function in FUNCTIONS}
        self.context: int | None = model.config.context_length
        self.ropes, self.biases, self.lines = list[Rope](), list[object](), list[str]()
        self.arguments = ["idx", "decoder_idx"] if model.encoder_decoder else ["idx"]
        self.has_heads = False  # whether q, k and v are variables
        self.has_rows = False  # whether the rows of distances are a variable
        self.attending = 0  # layers with their own keys
        self.sources: set[int | None] = set()  # layers whose keys are used again
        self.encoder_layers = self.cross_layers = 0
        if isinstance(model, EncoderDecoder):
            self.write(model.encoder_steps(), "idx")
            if not model.encoder_decoder:  # a classifier's decoder reads the text, too
                start = f"torch.full_like(idx[:, :1], {model.decoder_start})"
                self.lines.append(f"idx = torch.cat(({start}, idx[:, :-1]), dim=1)")
        self.write(model.steps(), self.arguments[-1])
        if isinstance(model, Encoder):
            self.head(model)

    def write(self, steps: Iterable[Step], idx: str) -> None:
        """Add the lines of steps that read the token IDs `idx`."""
        self.idx, self.outputs, steps = idx, 0, [*steps]
        self.sources = {step.source for step in steps if isinstance(step, Attend)}
        self.lines.append(
            f"positions = torch.arange({idx}.size(1), device={idx}.device).unsqueeze(0)"
        )
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:  # noqa: PLR0915  # one case per operation
        """Add the lines of a step."""
        match step:
            case Embed():
                self.embed(step)
            case AddPositions():
                self.add_positions(step)
            case AddSinusoids():
                self.add_sinusoids(step)
            case AddTypes():
                self.lines.append(f"x = h + {self.path(step.types.weight)}[0]\n    h = x")
            case StoreResidual():
                self.lines.append("x = h")
            case SaveResidual():
                self.lines.append("saved = x")
            case AddToSaved():
                self.lines.append(f"x = saved + {self.normed('x', step.norm)}")
            case LoadResidual():
                self.lines.append("h = x")
            case Norm():
                self.lines.append(f"h = {self.normed('saved' if step.saved else 'x', step.layer)}")
                self.drop(step.dropout)
                if step.to_residual:
                    self.lines.append("x = h")
            case Linear():
                self.linear(step)
            case Rotate():
                self.rotate(step)
            case NormValues():
                self.lines.append(f"v = rms_norm(v, None, {step.eps})")
            case Attend():
                self.attend(step)
            case CrossAttend():
                self.cross_attend(step)
            case CacheEncoder():
                self.cache_encoder(step)
            case DeltaRule():
                self.delta_rule(step)
            case ShortConvolution():
                self.short_convolution(step)
            case CausalConvolution():
                self.causal_convolution(step)
            case Project():
                part = f"h[:, :, {step.first} : {step.first + step.layer.weight.size(1)}]"
                output = self.output(step.layer, part)
                if step.activation is not None:
                    output = f"{self.activation(step.activation)}({output})"
                self.lines.append(f"h = torch.cat((h, {output}), dim=2)")
            case NormPart():
                self.norm_part(step)
            case SelectiveScan():
                self.selective_scan(step)
            case TokenShift():
                self.token_shift(step)
            case WKV():
                self.wkv(step)
            case ScaleParts():
                self.scale_parts(step)
            case Convolution():
                self.convolution(step)
            case Gate():
                self.gate(step)
            case Add():
                part = f"h[:, :, {step.first} : {step.first + step.layer.weight.size(1)}]"
                output = self.output(step.layer, part if step.first else "h")
                output = output if step.norm is None else self.normed(output, step.norm)
                if step.gate:
                    end = step.gate + step.layer.weight.size(0)
                    output = f"h[:, :, {step.gate} : {end}].sigmoid() * {output}"
                output = self.dropped(output, step.dropout)
                self.lines.append(
                    f"x = x + {output}{'' if step.scale == 1 else f' * {step.scale}'}"
                )
            case LayerInputs():
                self.layer_inputs(step)
            case GateLayerInput():
                self.lines.append(
                    f"h = {self.activation(step.activation)}(h) * inputs[:, :, {step.layer}]"
                )
            case ScaleResidual():
                is_number = isinstance(step.factor, float)
                self.lines.append(f"x = x * {step.factor if is_number else self.path(step.factor)}")
            case Experts():
                self.experts(step)
            case Recurrent():
                self.recurrent(step)
            case Logits():
                self.logits(step)
            case HiddenStates():
                pass  # followed by the head
            case _:
                unreachable(step)

    def code(self) -> str:
        """The code of `forward`, which returns logits (B, T, V)."""
        checks = [f"check({name}, {self.context or 0})" for name in self.arguments]
        arguments = ", ".join(f"{name}: Tensor" for name in self.arguments)
        return (
            "\n    ".join([f"def forward(self, {arguments}) -> Tensor:", *checks, *self.lines])
            + "\n"
        )

    # Expressions

    def path(self, parameter: object) -> str:
        """A parameter."""
        return "None" if parameter is None else self.paths[id(parameter)]

    def output(self, layer: LinearLayer, value: str = "h") -> str:
        """The output of a linear layer for a value."""
        if not isinstance(layer, LoRALinear):
            return f"F.linear({value}, {self.path(layer.weight)}, {self.path(layer.bias)})"
        factors = layer.factors
        if factors.magnitude is not None:
            raise ValueError(
                "a DoRA adapter cannot be written as TorchScript: merge it (minhub convert --merge)"
            )
        if layer.invocation is not None:
            raise ValueError(
                "an activated adapter cannot be written as TorchScript: load the model with"
                " adapter="
            )
        a, b = self.path(factors.lora_A), self.path(factors.lora_B)
        b = b if layer.rows is None else f"{b}[{self.path(layer.rows)}]"
        low = f"F.linear(F.linear({self.dropped(value, factors.dropout)}.to({a}.dtype), {a}), {b})"
        return f"({self.output(layer.base, value)} + ({factors.scale} * {low}).to(h.dtype))"

    def normed(self, value: str, layer: nn.LayerNorm | HeadNorm) -> str:
        """A value after a norm."""
        if isinstance(layer, RMSNorm):
            weight = "None" if isinstance(layer, UnitRMSNorm) else self.path(layer.weight)
            return f"rms_norm({value}, {weight}, {layer.eps}, {layer.offset})"
        if isinstance(layer, HeadLayerNorm):
            return f"head_layer_norm({value}, {self.path(layer.weight)}, {layer.eps})"
        weight = f"{self.path(layer.weight)}{' + 1' * isinstance(layer, OffsetLayerNorm)}"
        weights = f"{weight}, {self.path(layer.bias)}"
        return f"F.layer_norm({value}, {list(layer.normalized_shape)}, {weights}, {layer.eps})"

    def activation(self, name: str) -> str:
        """An activation."""
        self.names[f"activation_{name}"] = traced(ACTIVATIONS[name])
        return f"activation_{name}"

    @staticmethod
    def dropped(value: str, p: float) -> str:
        """A value after dropout."""
        return f"F.dropout({value}, {p}, self.training)" if p else value

    @staticmethod
    def rate(dropout: float) -> str:
        """The probability of dropout in the current mode."""
        return f"{dropout} if self.training else 0.0" if dropout else "0.0"

    # Lines

    def drop(self, p: float) -> None:
        """Dropout of h."""
        if p:
            self.lines.append(f"h = {self.dropped('h', p)}")

    def embed(self, step: Embed) -> None:
        self.lines.append(f"x = F.embedding({self.idx}, {self.path(step.tokens.weight)})")
        if step.scale is not None:
            self.lines.append(f"x = scaled(x, {step.scale})")
        if step.positions is not None:
            self.lines.append(f"x = x + F.embedding(positions, {self.path(step.positions.weight)})")
        if step.dropout:
            self.lines.append(f"x = {self.dropped('x', step.dropout)}")
        self.lines.append("h = x")

    def add_positions(self, step: AddPositions) -> None:
        weight, idx = self.path(step.positions.weight), self.idx
        rows = f"{weight}[{step.first} : {step.first} + {idx}.size(1)]"
        if step.pad is not None:
            rows = f"F.embedding(counted_positions({idx}, {step.pad}), {weight})"
        self.lines += [f"x = h + {rows}", "h = x"]

    def add_sinusoids(self, step: AddSinusoids) -> None:
        arguments = f"{list(step.frequencies)}, {step.exact}"
        rows = f"sinusoidal_positions(positions[0] + {step.first}, {arguments})"
        self.lines.append(f"x = h + {rows}.to(h.dtype)")
        if step.dropout:
            self.lines.append(f"x = {self.dropped('x', step.dropout)}")
        self.lines.append("h = x")

    def linear(self, step: Linear) -> None:
        layers = [layer.base if isinstance(layer, LoRALinear) else layer for layer in step.layers]
        self.outputs = sum(layer.weight.size(0) for layer in layers)
        outputs = ", ".join(map(self.output, step.layers))
        self.lines.append(
            f"h = torch.cat([{outputs}], dim=2)" if len(step.layers) > 1 else f"h = {outputs}"
        )
        if isinstance(step.activation, XIELU):
            layer = step.activation
            numbers = map(self.path, (layer.alpha_p, layer.alpha_n, layer.beta, layer.eps))
            self.lines.append(f"h = xielu(h, {', '.join(numbers)})")
        elif step.activation is not None:
            self.lines.append(f"h = {self.activation(step.activation)}(h)")
        if step.clip is not None:
            self.lines.append(f"h = h.clamp(-{step.clip}, {step.clip})")
        self.drop(step.dropout)

    def split(
        self,
        step: Rotate | Attend,
        q_norm: nn.LayerNorm | HeadNorm | None = None,
        k_norm: nn.LayerNorm | HeadNorm | None = None,
    ) -> None:
        """Split h into q, k and v, and a gate. q_norm, k_norm: joint norms of all heads."""
        size = self.outputs // (step.heads * (1 + step.gate) + 2 * step.kv_heads)
        self.has_heads = True
        if not step.kv_heads:
            self.lines.append(f"q = split_heads(h, {step.heads})")
            return
        sizes = [step.heads * (1 + step.gate) * size, step.kv_heads * size, step.kv_heads * size]
        self.lines.append(f"q, k, v = h.split({sizes}, dim=2)")
        for name, heads, norm in (
            ("q", step.heads, q_norm),
            ("k", step.kv_heads, k_norm),
            ("v", step.kv_heads, None),
        ):
            if norm is not None:
                self.lines.append(f"{name} = {self.normed(name, norm)}")
            self.lines.append(f"{name} = split_heads({name}, {heads})")
            if name == "q" and step.gate:
                self.lines.append("q, gate = q.chunk(2, dim=3)")

    def rotate(self, step: Rotate) -> None:
        norms = (step.q_norm, step.k_norm)
        self.split(step, *(norms if step.all_heads else (None, None)))
        if not (step.all_heads or step.norms_last):
            self.norm_heads(*norms)
        if step.rope is not None:
            self.rotate_heads(step.rope, step.interleaved, "qk" if step.kv_heads else "q")
        if step.norms_last:
            self.norm_heads(*norms)

    def norm_heads(
        self, q_norm: nn.LayerNorm | HeadNorm | None, k_norm: nn.LayerNorm | HeadNorm | None
    ) -> None:
        """Norms of each head of q and k."""
        for name, norm in (("q", q_norm), ("k", k_norm)):
            if norm is not None:
                self.lines.append(f"{name} = {self.normed(name, norm)}")

    def rotate_heads(self, rope: Rope, interleaved: bool, names: str) -> None:
        """Rotate the variables `names`, q and k or q."""
        if rope not in self.ropes:
            self.ropes.append(rope)
            number = len(self.ropes) - 1
            frequencies = f"{list(rope.frequencies)}"
            if rope.short is not None:
                short = f"positions.size(1) <= {int(rope.original)}"
                frequencies = f"{list(rope.short)} if {short} else {frequencies}"
            self.lines.append(
                f"cos{number}, sin{number} = rotary_angles(positions[0], {frequencies},"
                f" {rope.amplitude})"
            )
        number = self.ropes.index(rope)
        angles = f"cos{number}.to(x.dtype), sin{number}.to(x.dtype), {interleaved}"
        self.lines += [f"{name} = rotate({name}, {angles})" for name in names]
        if rope.query_scaling:
            settings = f"positions[0] + {rope.first}, {rope.query_scaling}, {rope.original}"
            self.lines.append(f"q = q * query_scale({settings}).to(x.dtype).unsqueeze(1)")

    def attend(self, step: Attend) -> None:
        if not self.has_heads:
            self.split(step)
        self.has_heads = False
        if step.source is not None:
            self.lines.append(f"k, v = shared{step.source}")
        else:
            if self.attending in self.sources:
                self.lines.append(f"shared{self.attending} = (k, v)")
            self.attending += 1
        settings = (
            f"{step.softcap}, {self.path(step.sinks)}, {self.rate(step.dropout)}, {step.upcast}"
        )
        if step.bias is None:
            settings = f"{step.window or 0}, {step.chunked}, {step.causal}, {settings}"
            self.lines.append(f"h = self_attention(q, k, v, {step.scale}, {settings})")
        else:
            bias = (
                self.disentangled(step) if isinstance(step.bias, Disentangled) else self.bias(step)
            )
            self.lines.append(f"h = attention(q, k, v, {bias}, False, {step.scale}, {settings})")
        self.lines.append(f"h = merge_heads(h{' * gate.sigmoid()' if step.gate else ''})")

    def cross_attend(self, step: CrossAttend) -> None:
        k, v = f"keys{self.cross_layers}", f"values{self.cross_layers}"
        settings = f"None, False, {step.scale}, None, None, {self.rate(step.dropout)}"
        self.lines.append(
            f"h = merge_heads(attention(split_heads(h, {step.heads}), {k}, {v}, {settings}))"
        )
        self.cross_layers += 1

    def disentangled(self, step: Attend) -> str:
        """The bias of the scores of one layer, from q and k."""
        bias = step.bias
        assert isinstance(bias, Disentangled)
        if not self.has_rows:
            settings = f"{bias.table.num_embeddings}, {bias.buckets}, {bias.max_distance}"
            self.lines.append(
                f"rows = distance_rows(positions[0].unsqueeze(1) - positions[0], {settings})"
            )
            self.has_rows = True
        table = self.path(bias.table.weight)
        self.lines.append(
            f"h = {table if bias.norm is None else self.normed(table, bias.norm)}.unsqueeze(0)"
        )
        self.drop(bias.dropout)
        heads = [
            "None" if layer is None else f"split_heads({self.output(layer)}, {step.heads})"
            for layer in (bias.keys, bias.queries)
        ]
        return f"disentangled_bias(q, k, {', '.join(heads)}, rows, {step.scale})"

    def bias(self, step: Attend) -> str:
        """The bias of the scores, which the layers of a stack share."""
        shared = step.bias
        if shared not in self.biases:
            self.biases.append(shared)
            name = f"bias{len(self.biases) - 1}"
            if isinstance(shared, ALiBi):
                slopes = list(shared.slopes)
                self.lines.append(
                    f"{name} = rounded_alibi_bias({slopes}, positions, {step.scale})"
                    if shared.rounded
                    else f"{name} = alibi_bias({slopes}, positions, positions)"
                )
            else:
                assert isinstance(shared, RelativeBias)
                settings = f"{shared.max_distance}, {shared.bidirectional}"
                weight = self.path(shared.weight)
                self.lines.append(
                    f"{name} = relative_bias({weight}, positions, positions, {settings})"
                )
            if step.causal:
                later = "positions.unsqueeze(1) > positions.unsqueeze(2)"
                self.lines.append(f'{name} = {name}.masked_fill({later}, float("-inf"))')
        return f"bias{self.biases.index(shared)}"

    def head(self, model: Encoder) -> None:
        """The head of an encoder (models/heads.py)."""
        head: Any = model.head
        if getattr(model.config, "head", None) == "decision":
            raise ValueError(
                f"{model.config.TITLE}: TorchScript has no decision head: use decide(), or save the"
                " model for its package"
            )
        if isinstance(head, LastTokenHead):
            self.lines.append(f"return F.linear(h[:, -1], {self.path(head.out.weight)})")
            return
        if isinstance(head, SequenceHead):
            pooled = {"cls": "h[:, 0]", "last": "h[:, -1]", "mean": "h.mean(dim=1)", "late": "h"}
            self.lines.append(f"h = {pooled[head.pooling]}")
            self.drop(head.input_dropout.p)
        if isinstance(head, MaskedLMHead):
            layer, (weight, bias) = head.transform, head.output(model.token_embedding)
            output = f"F.linear(h, {self.path(weight)}, {self.path(bias)})"
        elif head is not None:
            layer, output = (
                head.dense,
                f"F.linear(h, {self.path(head.out.weight)}, {self.path(head.out.bias)})",
            )
        if head is not None:
            if layer is not None:
                name = next(name for name, function in ACTIVATIONS.items() if function is head.act)
                self.lines.append(f"h = {self.activation(name)}({self.output(layer)})")
            if isinstance(head, SequenceHead) and head.pooling == "late":
                self.lines.append("h = h.mean(dim=1)")
            if head.norm is not None:
                self.lines.append(f"h = {self.normed('h', head.norm)}")
            self.drop(0.0 if isinstance(head, MaskedLMHead) else head.dropout.p)
            self.lines.append(f"h = {output}")
        self.lines.append("return h")

    def delta_rule(self, step: DeltaRule) -> None:
        H, V, (N, _, taps) = step.heads, step.norm.weight.numel(), step.conv.weight.shape
        K = (N - H * V) // (2 * step.key_heads)
        self.lines.append(f"qkv, z, beta, decay = h.split([{N}, {H * V}, {H}, {H}], dim=2)")
        self.lines.append(f"qkv = F.pad(qkv.transpose(1, 2), [{taps - 1}, 0])")
        self.lines.append(f"qkv = F.conv1d(qkv, {self.path(step.conv.weight)}, groups={N})")
        self.lines.append(f"qkv = {self.activation(step.activation)}(qkv).transpose(1, 2)")
        self.lines.append(f"state = torch.zeros([h.size(0), {H}, {K}, {V}], device=h.device)")
        weights = f"{self.path(step.decay)}, {self.path(step.bias)}"
        self.lines.append(
            f"y, state = gated_delta(qkv, beta, decay, {weights}, {step.key_heads}, state)"
        )
        norm = f"{self.path(step.norm.weight)}, {step.norm.eps}"
        self.lines.append(f"h = gated_rms_norm(y, z.unflatten(2, [{H}, {V}]), {norm}).flatten(2)")

    def short_convolution(self, step: ShortConvolution) -> None:
        N, _, taps = step.conv.weight.shape
        weights = f"{self.path(step.conv.weight)}, {self.path(step.conv.bias)}"
        self.lines.append("b, c, h = h.chunk(3, dim=2)")
        self.lines.append(f"h = F.pad((b * h).transpose(1, 2), [{taps - 1}, 0])")
        self.lines.append(f"h = c * F.conv1d(h, {weights}, groups={N}).transpose(1, 2)")

    def replace_part(self, first: int, size: int, value: str) -> None:
        """Replace the numbers of h from `first` on by an expression of `part`, these numbers."""
        self.lines.append(f"part = h[:, :, {first} : {first + size}]")
        parts = f"h[:, :, :{first}], {value}, h[:, :, {first + size} :]"
        self.lines.append(f"h = torch.cat(({parts}), dim=2)")

    def causal_convolution(self, step: CausalConvolution) -> None:
        N, _, taps = step.conv.weight.shape
        weights = f"{self.path(step.conv.weight)}, {self.path(step.conv.bias)}"
        inputs = f"F.pad(part.transpose(1, 2), [{taps - 1}, 0])"
        output = f"F.conv1d({inputs}, {weights}, groups={N}).transpose(1, 2)"
        self.replace_part(step.first, N, f"{self.activation(step.activation)}({output})")

    def norm_part(self, step: NormPart) -> None:
        norm = step.norm
        value = f"group_norm(part, {self.path(norm.weight)}, {norm.eps}, {norm.groups})"
        self.replace_part(step.first, norm.size, value)

    def token_shift(self, step: TokenShift) -> None:
        self.lines.append("previous = F.pad(h, [0, 0, 1, -1])")
        mixtures = [f"torch.lerp(previous, h, {self.path(mix)})" for mix in step.mixes]
        self.lines.append(f"h = torch.cat(({', '.join(mixtures)}), dim=2)")

    def wkv(self, step: WKV) -> None:
        N = len(step.decay)
        k, v, r = (f"h[:, :, {first} : {first + N}]" for first in (step.k, step.v, step.r))
        decay, bonus = f"{self.path(step.decay)}.float().exp()", f"{self.path(step.bonus)}.float()"
        self.lines.append(f"state = torch.zeros([h.size(0), 3, {N}], device=h.device)")
        self.lines.append(f"y, state = wkv({k}.float(), {v}.float(), {decay}, {bonus}, state)")
        self.lines.append(f"h = {r}.sigmoid() * y.to(h.dtype)")

    def scale_parts(self, step: ScaleParts) -> None:
        parts, first = [], 0
        for size, factor in step.parts:
            parts.append(f"h[:, :, {first} : {first + size}] * {factor}")
            first += size
        self.lines.append(f"h = torch.cat(({', '.join(parts)},), dim=2)")

    def selective_scan(self, step: SelectiveScan) -> None:
        N, size, per_channel = step.channels, step.groups * step.states, step.decay.dim() == 2
        for name, first, count in (
            ("values", step.x, N),
            ("z", step.z, N),
            ("b", step.b, size),
            ("c", step.c, size),
            ("dt", step.dt, N if per_channel else step.heads),
        ):
            self.lines.append(f"{name} = h[:, :, {first} : {first + count}].float()")
        bias = "" if step.bias is None else f" + {self.path(step.bias)}.float()"
        shape = [step.states, N] if per_channel else [step.heads, step.states, N // step.heads]
        sizes = ", ".join(map(str, shape))
        self.lines.append(f"state = torch.zeros([h.size(0), {sizes}], device=h.device)")
        a, d = f"-{self.path(step.decay)}.float().exp()", f"{self.path(step.skip)}.float()"
        function = "selective_scan" if per_channel else "chunked_scan"
        self.lines.append(
            f"y, state = {function}(values, F.softplus(dt{bias}), {a}, b, c, {d}, state)"
        )
        self.lines.append("h = (y * F.silu(z)).to(h.dtype)")

    def convolution(self, step: Convolution) -> None:
        conv, settings = (
            step.conv,
            f"padding={step.conv.kernel_size[0] // 2}, groups={step.conv.groups}",
        )
        weights = f"{self.path(conv.weight)}, {self.path(conv.bias)}"
        self.lines.append(
            f"h = F.conv1d(saved.transpose(1, 2), {weights}, {settings}).transpose(1, 2)"
        )
        self.drop(step.dropout)
        self.lines.append(f"x = x + {self.activation(step.activation)}(h)")

    def gate(self, step: Gate) -> None:
        sizes = [self.outputs // 2] * 2 + [1] * step.sigmoid
        factor = " * factor.sigmoid()" if step.sigmoid else ""
        self.lines.append(f"h, up{', factor' if step.sigmoid else ''} = h.split({sizes}, dim=2)")
        self.lines.append(f"h = {self.activation(step.activation)}(h) * up{factor}")
        self.drop(step.dropout)

    def layer_inputs(self, step: LayerInputs) -> None:
        size = step.norm.weight.numel()
        sizes = f"[{self.outputs // size}, {size}]"
        norm = self.normed(f"(h * {step.scale}).unflatten(2, {sizes})", step.norm)
        if step.tokens is None:
            self.lines.append(f"inputs = {norm}")
            return
        rows = (
            f"scaled(F.embedding({self.idx}, {self.path(step.tokens.weight)}), {step.tokens_scale})"
        )
        self.lines.append(f"inputs = ({norm} + {rows}.unflatten(2, {sizes})) * {step.factor}")

    def experts(self, step: Experts) -> None:
        rule = step.routing
        settings = (
            f"{rule.top}, {rule.normalize}, {rule.sigmoid}, {rule.factor},"
            f" {self.path(step.choice_bias)}, "
        )
        settings += f"{self.path(step.factors)}, {rule.epsilon}"
        router = f"{self.path(step.router.weight)}, {self.path(step.router.bias)}"
        self.lines.append("tokens = h.flatten(0, 1)")
        routed = "tokens"
        if step.router_norm is not None:
            routed = f"({self.normed('x', step.router_norm)} * x.size(2) ** -0.5).flatten(0, 1)"
        self.lines.append(f"weights, chosen = route({routed}, {router}, {settings})")
        before = "" if step.replaces else "x + "
        if isinstance(step.down, ExpertMatrices):
            lists = ("gates", "ups") if step.gated else ("ups",)
            for name, matrices in zip((*lists, "downs"), (*step.gate_up, step.down), strict=True):
                assert isinstance(matrices, ExpertMatrices)
                self.lines.append(f"{name} = [{', '.join(map(self.path, matrices.parameters()))}]")
            self.lines.append("y = torch.zeros_like(tokens)")
            self.lines.append("for e in range(len(ups)):")
            self.lines.append("    token, choice = torch.where(chosen == e)")
            weight = "weights[token, choice].unsqueeze(1)"
            inputs, outputs = ("", f" * {weight}")[:: -1 if rule.weights_inputs else 1]
            self.lines.append(f"    each = tokens[token]{inputs}")
            inner = f"{self.activation(step.activation or '')}(F.linear(each, {lists[0]}[e]))"
            if step.gated:
                inner += " * F.linear(each, ups[e])"
            self.lines.append(f"    output = F.linear({inner}, downs[e])")
            self.lines.append(f"    y = y.index_add(0, token, output{outputs})")
            self.lines.append(f"x = {before}y.view_as(h)")
        else:
            parameters = (*step.gate_up, step.gate_up_bias, step.down, step.down_bias)
            names = ", ".join(map(self.path, parameters))
            self.lines.append(
                f"x = {before}experts(tokens, weights, chosen, {names}, {step.alpha},"
                f" {step.limit}).view_as(h)"
            )

    def cache_encoder(self, step: CacheEncoder) -> None:
        for name, layer in zip(("keys", "values"), step.layers, strict=True):
            self.lines.append(
                f"{name}{self.encoder_layers} = split_heads({self.output(layer)}, {step.heads})"
            )
        self.encoder_layers += 1

    def recurrent(self, step: Recurrent) -> None:
        layer = step.layer
        weights = ", ".join(map(self.path, layer._flat_weights))
        self.lines.append(f"shape = [{layer.num_layers}, h.size(0), {layer.hidden_size}]")
        self.lines.append("zeros = torch.zeros(shape, dtype=h.dtype, device=h.device)")
        settings = f"True, {layer.num_layers}, {float(layer.dropout)}, self.training, False, True"
        self.lines.append(f"h = torch.lstm(h, [zeros, zeros], [{weights}], {settings})[0]")
        self.drop(step.dropout)

    def logits(self, step: Logits) -> None:
        bias = getattr(step.layer, "bias", None) if step.bias is None else step.bias
        if step.scale != 1:
            self.lines.append(f"h = h * {step.scale}")
        layer = step.layer
        product = (
            self.output(layer)
            if isinstance(layer, LoRALinear)
            else (f"F.linear(h, {self.path(layer.weight)}, {self.path(bias)})")
        )
        self.lines.append(f"h = {product}")
        cap = step.softcap
        self.lines.append("return h" if cap is None else f"return torch.tanh(h / {cap}) * {cap}")


def path_of(name: str) -> str:
    """`h.0.ln_1.weight` as code: self.h[0].ln_1.weight; and a parameter `x.0` as getattr(self.x,
    "0").
    """
    parent, _, leaf = name.rpartition(".")
    if leaf.isdigit():
        return f'getattr({path_of(parent)}, "{leaf}")'
    return "self" + "".join(
        f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".")
    )
