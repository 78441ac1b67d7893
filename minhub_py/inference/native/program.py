"""From a model's `steps` to the operations of the C decoder, with pointers to the weights.

Weights remain where PyTorch stores them, in float32, in 16 bits or quantized (quantize.py). The
computation is in float32, with two exceptions. Products with int8 and nf4 weights and GGUF's blocks
of 256 quantize activations (quantize.py). Products with bfloat16 weights (except experts), keys and
values round activations to bfloat16 on processors with AVX-512 BF16. With other 16-bit weights,
logits equal the logits of a float32 model with the same weights, except that the KV cache rounds
keys and values to 16 bits.
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.native.library import (
    BIDIRECTIONAL,
    BLOCKS,
    CHUNKED,
    CONTENT_KEYS,
    CONTENT_QUERIES,
    DTYPES,
    FROM_SAVED,
    INTERLEAVED,
    JOINT_NORM,
    KINDS,
    LAYER_NORM,
    MAX_CHOICES,
    MAX_EXPERTS,
    MAX_TOKENS,
    MORE_LINEAR,
    NO_KEYS,
    NORM_LAST,
    REPLACES,
    ROUNDED_SLOPES,
    SAME_INPUTS,
    TO_QUERIES,
    TO_STREAM,
    UNGATED,
    WEIGHTS_INPUTS,
    DecoderOperation,
    LinearArguments,
    Matrix,
    UnsupportedError,
    code_of,
    int32_array,
    new_operation,
)
from minhub_py.inference.native.weights import FLOATS, Weights, check_memory, rounded
from minhub_py.inference.quantize import Quantized
from minhub_py.models.experts import ExpertWeights
from minhub_py.models.layers import (
    XIELU,
    ALiBi,
    Disentangled,
    EmbeddingLayer,
    HeadLayerNorm,
    LinearLayer,
    RMSNorm,
    distance_buckets,
    sinusoidal_positions,
    weight_of,
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
    PredictionInputs,
    PredictionStep,
    Project,
    Recurrent,
    Rotate,
    SaveResidual,
    ScaleParts,
    ScaleResidual,
    SelectiveScan,
    ShortConvolution,
    StoreResidual,
    TokenShift,
)

CPU = torch.device("cpu")
RANK_UNIT = 16  # the rank of an adapter's factors is padded with zeros to a multiple


class Distances:
    """The rows of the embeddings of distances, for texts of up to `positions` tokens. address: of
    distance 0.
    """

    def __init__(self, bias: Disentangled, positions: int) -> None:
        self.farthest = positions - 1
        # a query's position minus a key's
        distances = torch.arange(1 - positions, positions, device=CPU)
        self.rows: list[int] = bias.rows(distances).tolist()
        self.array = int32_array(self.rows)
        self.address = ctypes.addressof(self.array) + 4 * self.farthest

    def of(self, length: int) -> tuple[int, int]:
        """The first row and the number of rows for texts of at most `length` tokens: rows ascend
        with the distance.
        """
        first, last = self.rows[self.farthest - length + 1], self.rows[self.farthest + length - 1]
        return first, last - first + 1


class Program(Weights):
    """Translates steps. UnsupportedError: an operation, activation or memory layout without a C
    implementation.

    width: the largest number of values of a token.    angles: rotation table of each Rope, a row
    per position.
    ropes: of each rotation, before the choice by the size of the cache.    text_head_size: largest
    head of bidirectional attention.    channels: of the embeddings.    has_adapter: whether a
    product has low-rank factors.    sources: the step of each operation of the last translation.
    distances: the rows of `Disentangled` attention.
    """

    def __init__(self, by_columns: bool = False, positions: int | None = None) -> None:
        """positions: the maximum length of a text of an encoder."""
        super().__init__(by_columns)
        self.positions = positions
        self.angles: dict[Rope, Tensor] = {}
        self.ropes: list[Rope] = []
        self.outputs = self.layers = self.text_head_size = self.channels = 0
        self.has_adapter = False
        self.sources: list[PredictionStep] = []
        self.distances: Distances | None = None

    def translate(self, steps: Iterable[PredictionStep]) -> Any:
        """An array of operations."""
        self.layers = 0
        translated = [(step, operation) for step in steps for operation in self.operations(step)]
        self.sources = [step for step, _ in translated]
        return (DecoderOperation * len(translated))(*[operation for _, operation in translated])

    def operations(self, step: PredictionStep) -> list[DecoderOperation]:
        """The operations of a step."""
        if type(step) not in TRANSLATORS:
            raise UnsupportedError(f"an operation {type(step).__name__}")
        operations = TRANSLATORS[type(step)](self, step)
        return operations if isinstance(operations, list) else [operations]

    def embed(self, step: Embed) -> DecoderOperation:
        tokens = self.matrix(step.tokens)
        positions = Matrix() if step.positions is None else self.matrix(step.positions)
        scale = 0 if step.scale is None else rounded(step.scale, step.tokens)
        self.channels = tokens.columns
        self.width = max(self.width, self.channels)
        if tokens.transposed or positions.transposed:
            raise UnsupportedError("an embedding whose rows are not contiguous")
        return new_operation("embed", tokens=tokens, positions=positions, scale=scale)

    def add_positions(self, step: AddPositions) -> DecoderOperation:
        return new_operation("positions", table=self.matrix(step.positions.weight[step.first :]))

    def add_sinusoids(self, step: AddSinusoids) -> DecoderOperation:
        positions = torch.arange(step.first, step.first + step.count, device=CPU)
        self.references.append(sinusoidal_positions(positions, list(step.frequencies), step.exact))
        return new_operation("positions", table=self.matrix(self.references[-1]))

    def add_types(self, step: AddTypes) -> DecoderOperation:
        return new_operation("types", table=self.matrix(step.types))

    def prediction_inputs(self, step: PredictionInputs) -> DecoderOperation:
        tokens = self.matrix(step.tokens)
        self.width = max(self.width, 2 * tokens.columns)
        return new_operation(
            "prediction_inputs",
            tokens=tokens,
            token_norm=self.factor(step.token_norm),
            hidden_norm=self.factor(step.hidden_norm),
            epsilon=step.token_norm.eps,
        )

    def store_residual(self, step: StoreResidual) -> DecoderOperation:
        return new_operation("store")

    def hidden_states(self, step: HiddenStates) -> DecoderOperation:
        return new_operation("hidden_states", size=step.size)

    def save_residual(self, step: SaveResidual) -> DecoderOperation:
        return new_operation("save")

    def add_to_saved(self, step: AddToSaved) -> DecoderOperation:
        operation = self.norm(Norm(step.norm))
        operation.kind, operation.flags = KINDS["join"], 0
        return operation

    def load_residual(self, step: LoadResidual) -> DecoderOperation:
        return new_operation("copy")

    def norm(self, step: Norm) -> DecoderOperation:
        layer = step.layer
        flags = FROM_SAVED * step.saved | TO_STREAM * step.to_residual
        if isinstance(layer, RMSNorm):
            size = layer.weight.numel()
            return new_operation(
                "rms_norm", flags=flags, weight=self.factor(layer), size=size, epsilon=layer.eps
            )
        shape = layer.normalized_shape
        weight = self.floats(weight_of(layer))
        bias = self.floats(torch.zeros(shape, device=CPU) if layer.bias is None else layer.bias)
        return new_operation(
            "norm", flags=flags, weight=weight, bias=bias, size=math.prod(shape), epsilon=layer.eps
        )

    def linear(self, step: Linear) -> list[DecoderOperation]:
        layers = [self.product(layer, layer.bias) for layer in step.layers]
        self.outputs = sum(layer.weight.rows for layer in layers)
        self.width = max(self.width, self.outputs)
        activation = None if isinstance(step.activation, XIELU) else step.activation
        operations = [
            new_operation(
                "linear", code_of(activation), flags=MORE_LINEAR | SAME_INPUTS * (number > 0)
            )
            for number in range(len(layers))
        ]
        for operation, layer in zip(operations, layers, strict=True):
            operation.linear = layer
        operations[-1].flags &= SAME_INPUTS
        if isinstance(step.activation, XIELU):
            weights = torch.cat([number.reshape(1) for number in step.activation.numbers()])
            operations.append(
                new_operation("xielu", weights=self.floats(weights), size=self.outputs)
            )
        if step.clip is not None:
            operations.append(new_operation("clip", size=self.outputs, limit=step.clip))
        return operations

    def head_size(self, step: Rotate | Attend | NormValues) -> int:
        """The size of a head of q, k and v."""
        if isinstance(step, NormValues):
            return self.outputs // (step.heads + 2 * step.kv_heads)
        if isinstance(step, Attend) and step.source is not None:
            return self.outputs // step.heads
        return self.outputs // (step.heads * (1 + step.gate) + 2 * step.kv_heads)

    def rotate(self, step: Rotate) -> DecoderOperation:
        rope = step.rope or Rope(())
        if rope not in self.ropes:
            self.ropes.append(rope)
        for size in (0, math.inf):  # the smallest and the largest cache
            self.angles.setdefault(rope.sized(size), torch.empty(0, device=CPU))
        size = self.head_size(step)
        flags = (
            JOINT_NORM * step.all_heads
            | INTERLEAVED * step.interleaved
            | NORM_LAST * step.norms_last
        )
        flags |= LAYER_NORM * isinstance(step.q_norm, HeadLayerNorm | nn.LayerNorm)
        return new_operation(
            "rotate",
            layer=self.ropes.index(rope),
            flags=flags,
            q_norm=self.head_factor(step.q_norm),
            k_norm=self.head_factor(step.k_norm),
            heads=step.heads,
            kv_heads=step.kv_heads,
            head_size=size,
            gate=step.gate * size,
            rotated=2 * len(rope.frequencies),
            epsilon=0 if step.q_norm is None else step.q_norm.eps,
        )

    def norm_values(self, step: NormValues) -> DecoderOperation:
        size = self.head_size(step)
        return new_operation(
            "norm_values",
            ones=self.floats(torch.ones(size, device=CPU)),
            heads=step.heads,
            kv_heads=step.kv_heads,
            head_size=size,
            epsilon=step.eps,
        )

    def update_angles(
        self, count: int, operations: Iterable[DecoderOperation], size: int = 0
    ) -> None:
        """Extend the rotation tables to `count` positions: a row each, cosine and sine for q, then
        for k.

        size: the number of positions for which the cache has room.
        """
        current = min(table.size(0) for table in self.angles.values())
        if count > current:
            for rope in self.angles:
                # (positions, R/2)
                cos, sin, query_scaling = rope(torch.arange(max(count, 2 * current), device=CPU))
                factor = 1.0 if query_scaling is None else query_scaling.unsqueeze(1)
                self.angles[rope] = torch.cat(
                    (cos * factor, sin * factor, cos, sin), dim=1
                ).contiguous()
        elif len(self.angles) == len(self.ropes):  # the tables do not depend on the size
            return
        pointers = [self.angles[rope.sized(size)].data_ptr() for rope in self.ropes]
        for operation in operations:
            if operation.kind == KINDS["rotate"]:
                operation.rotate.angles = pointers[operation.layer]

    def attend(self, step: Attend) -> DecoderOperation | list[DecoderOperation]:
        """Scores and softmax are always in float32, so `upcast` has no effect."""
        size = self.head_size(step)
        operation = new_operation(
            "attend",
            layer=self.layers,
            flags=CHUNKED * step.chunked if step.causal else BIDIRECTIONAL,
            sinks=self.floats(step.sinks),
            heads=step.heads,
            kv_heads=step.kv_heads,
            head_size=size,
            gate=step.gate * size,
            scale=step.scale,
            cap=step.softcap or 0,
            window=step.window or 0,
        )
        before: list[DecoderOperation] = []
        if isinstance(step.bias, Disentangled):
            before = self.distances_of(step.bias)
            assert self.distances is not None
            operation.attend.rows = self.distances.address
            operation.flags |= CONTENT_KEYS * (step.bias.keys is not None)
            operation.flags |= CONTENT_QUERIES * (step.bias.queries is not None)
        elif isinstance(step.bias, ALiBi):
            slopes = torch.tensor(step.bias.slopes, device=CPU)
            if step.bias.rounded:
                operation.flags |= ROUNDED_SLOPES
                slopes = slopes.bfloat16().float()
            operation.attend.slopes = self.floats(slopes)
        elif step.bias is not None:
            weight, largest = step.bias.weight, step.bias.max_distance
            check_memory(weight)
            # larger distances equal the largest
            distances = torch.arange(-largest, largest + 1, device=CPU)
            buckets = distance_buckets(distances, weight.size(0), largest, step.bias.bidirectional)
            operation.attend.bias, operation.attend.reach = (
                self.floats(weight[buckets].t()),
                largest,
            )
        if step.source is not None:
            operation.layer, operation.flags = step.source, operation.flags | NO_KEYS
        elif step.causal:
            self.layers += 1
        else:
            self.text_head_size = max(self.text_head_size, size)
        return [*before, operation]

    def distances_of(self, bias: Disentangled) -> list[DecoderOperation]:
        """The operations that compute the keys and queries of distances for a layer; first, the
        embeddings for all.
        """
        operations = []
        if self.distances is None:
            assert self.positions is not None
            self.distances = Distances(bias, self.positions)
            embeddings = new_operation("distances", table=self.matrix(bias.table))
            if bias.norm is not None:
                embeddings.distances.weight = self.floats(bias.norm.weight)
                embeddings.distances.bias = self.floats(bias.norm.bias)
                embeddings.distances.epsilon = bias.norm.eps
            operations.append(embeddings)
        for layer, flags in ((bias.keys, 0), (bias.queries, TO_QUERIES)):
            if layer is not None:
                operations.append(new_operation("distance_linear", flags=flags))
                operations[-1].linear = self.product(layer, layer.bias)
        return operations

    def convolution(self, step: Convolution) -> list[DecoderOperation]:
        """The inputs of each position side by side, and a product with all taps."""
        channels, size, taps = step.conv.weight.shape
        check_memory(step.conv.weight)
        weight = step.conv.weight.detach().float()
        dense = weight.new_zeros(channels, step.conv.in_channels, taps)
        for group, part in enumerate(weight.chunk(step.conv.groups)):
            dense[
                group * len(part) : (group + 1) * len(part), group * size : (group + 1) * size
            ] = part
        self.references.append(dense.transpose(1, 2).reshape(channels, -1))
        linear = LinearArguments(
            weight=self.matrix(self.references[-1]), bias=self.floats(step.conv.bias)
        )
        product = new_operation("add", code_of(step.activation), linear=linear)
        self.width = max(self.width, taps * step.conv.in_channels)
        return [new_operation("neighbors", count=taps, size=step.conv.in_channels), product]

    def cross_attend(self, step: CrossAttend) -> DecoderOperation:
        self.layers += 1
        return new_operation(
            "cross_attend",
            layer=self.layers - 1,
            heads=step.heads,
            kv_heads=step.heads,
            head_size=self.outputs // step.heads,
            scale=step.scale,
        )

    def cache_encoder(self, step: CacheEncoder) -> DecoderOperation:
        keys, values = map(self.matrix, step.layers)
        self.layers += 1
        self.width = max(self.width, keys.rows)
        return new_operation(
            "encoder_cache",
            layer=self.layers - 1,
            keys=keys,
            values=values,
            key_bias=self.floats(step.layers[0].bias),
            value_bias=self.floats(step.layers[1].bias),
            kv_heads=step.heads,
            head_size=keys.rows // step.heads,
        )

    def delta_rule(self, step: DeltaRule) -> DecoderOperation:
        self.layers += 1
        channels, size = len(step.conv.weight), step.norm.weight.numel()
        decay = torch.cat((-step.decay.float().exp(), step.bias.float()))
        return new_operation(
            "delta_rule",
            code_of(step.activation),
            layer=self.layers - 1,
            **self.taps(step.conv),
            norm=self.floats(step.norm.weight),
            decay=self.floats(decay),
            heads=step.heads,
            key_heads=step.key_heads,
            key_size=(channels - step.heads * size) // (2 * step.key_heads),
            value_size=size,
            epsilon=step.norm.eps,
        )

    def short_convolution(self, step: ShortConvolution) -> DecoderOperation:
        self.layers += 1
        bias = self.floats(step.conv.bias)
        return new_operation(
            "short_convolution", layer=self.layers - 1, **self.taps(step.conv), bias=bias
        )

    def causal_convolution(self, step: CausalConvolution) -> DecoderOperation:
        self.layers += 1
        return new_operation(
            "causal_convolution",
            code_of(step.activation),
            layer=self.layers - 1,
            **self.taps(step.conv),
            bias=self.floats(step.conv.bias),
            first=step.first,
        )

    def project(self, step: Project) -> DecoderOperation:
        linear = self.product(step.layer, step.layer.bias)
        operation = new_operation(
            "project",
            code_of(step.activation),
            linear=linear,
            input=step.first,
            output=self.outputs,
        )
        self.outputs += linear.weight.rows
        self.width = max(self.width, self.outputs)
        return operation

    def norm_part(self, step: NormPart) -> DecoderOperation:
        norm = step.norm
        weight = torch.ones(norm.size, device=CPU) if norm.weight is None else norm.weight
        return new_operation(
            "norm_part",
            weight=self.floats(weight),
            first=step.first,
            size=norm.size,
            groups=norm.groups,
            epsilon=norm.eps,
        )

    def scale_parts(self, step: ScaleParts) -> DecoderOperation:
        factors = torch.cat(
            [torch.full((size,), factor, device=CPU) for size, factor in step.parts]
        )
        return new_operation("scale_parts", factors=self.floats(factors), size=len(factors))

    def selective_scan(self, step: SelectiveScan) -> DecoderOperation:
        """The cache has one layer for the scan and the convolution before it."""
        by_channel = step.decay.dim() == 2
        decay = -step.decay.detach().float().exp()
        return new_operation(
            "selective_scan",
            layer=self.layers - 1,
            decay=self.floats(decay.t() if by_channel else decay),
            skip=self.floats(step.skip),
            bias=self.floats(step.bias),
            by_channel=by_channel,
            channels=step.channels,
            heads=step.heads,
            states=step.states,
            groups=step.groups,
            x=step.x,
            z=step.z,
            b=step.b,
            c=step.c,
            dt=step.dt,
        )

    def token_shift(self, step: TokenShift) -> DecoderOperation:
        mixes = torch.stack([mix.detach().float().flatten() for mix in step.mixes])
        count, channels = mixes.shape
        self.layers += 1
        self.outputs = mixes.numel()
        self.width = max(self.width, self.outputs)
        return new_operation(
            "token_shift",
            layer=self.layers - 1,
            mixes=self.floats(mixes),
            count=count,
            channels=channels,
        )

    def wkv(self, step: WKV) -> DecoderOperation:
        """The cache has one layer for the average and the `TokenShift` before it."""
        return new_operation(
            "wkv",
            layer=self.layers - 1,
            decay=self.floats(step.decay.detach().float().exp()),
            bonus=self.floats(step.bonus),
            channels=len(step.decay),
            k=step.k,
            v=step.v,
            r=step.r,
        )

    def taps(self, conv: nn.Conv1d) -> dict[str, Any]:
        """The parameters of a convolution over time, transposed, so that adjacent channels are
        computed together.
        """
        channels, _, taps = conv.weight.shape
        return {
            "convolution": self.floats(conv.weight.squeeze(1).t()),
            "taps": taps,
            "channels": channels,
        }

    def gate(self, step: Gate) -> DecoderOperation:
        return new_operation(
            "gate", code_of(step.activation), width=self.outputs // 2, sigmoid=step.sigmoid
        )

    def add(self, step: Add) -> DecoderOperation:
        linear = self.product(step.layer, step.layer.bias)
        operation = new_operation(
            "add",
            linear=linear,
            norm=self.factor(step.norm),
            scale=step.scale,
            input=step.first,
            gate=step.gate,
        )
        if step.norm is not None:
            operation.add.epsilon = step.norm.eps
        if step.norm is not None or step.gate:
            self.width = max(self.width, linear.weight.rows)
        return operation

    def layer_inputs(self, step: LayerInputs) -> DecoderOperation:
        table = step.tokens
        operation = new_operation(
            "layer_inputs",
            count=self.outputs,
            norm=self.factor(step.norm),
            size=step.norm.weight.numel(),
            scale=step.scale,
            row_scale=1.0 if table is None else rounded(step.tokens_scale, table),
            factor=step.factor,
            epsilon=step.norm.eps,
        )
        if table is not None:
            operation.layer_inputs.tokens = self.matrix(table)
        return operation

    def gate_layer_input(self, step: GateLayerInput) -> DecoderOperation:
        return new_operation(
            "gate_input", code_of(step.activation), layer=step.layer, size=step.size
        )

    def scale_residual(self, step: ScaleResidual) -> DecoderOperation:
        factor = step.factor
        factor = factor if isinstance(factor, Tensor) else torch.tensor([factor], device=CPU)
        return new_operation("scale", factor=self.floats(factor), size=self.channels)

    def experts(self, step: Experts) -> list[DecoderOperation]:
        routing = step.routing
        if step.router_norm is not None and not step.replaces:
            raise UnsupportedError("a router with its own norm, whose experts are added")
        if routing.top * MAX_TOKENS > MAX_CHOICES:
            raise UnsupportedError(f"{routing.top} experts per token")
        linear = self.product(step.router, step.router.bias)
        if linear.weight.rows > MAX_EXPERTS:
            raise UnsupportedError(f"{linear.weight.rows} experts")
        router = new_operation(
            "route",
            flags=WEIGHTS_INPUTS * routing.weights_inputs,
            linear=linear,
            top=routing.top,
            normalize=routing.normalize,
            sigmoid=routing.sigmoid,
            factor=routing.factor,
            added=routing.epsilon,
            choice_bias=self.floats(step.choice_bias),
            factors=self.floats(step.factors),
        )
        if (norm := step.router_norm) is not None:
            router.route.epsilon = norm.eps
            router.route.norm = self.floats(
                (norm.weight.float() + norm.offset) * norm.weight.numel() ** -0.5
            )
        first = self.expert_weights("experts", step.gate_up, step.gate_up_bias)
        second = self.expert_weights("combine", [step.down], step.down_bias)
        first.activation, second.flags = code_of(step.activation), REPLACES * step.replaces
        first.flags = UNGATED * (not step.gated)
        first.experts.alpha, first.experts.limit = step.alpha, step.limit
        # The inputs and outputs of all selected experts use the buffers of the tokens; codes are
        # padded.
        columns = max(first.experts.weight.columns, second.experts.weight.columns)
        self.width = max(self.width, linear.weight.rows, routing.top * -(-columns // 128) * 128)
        return [router, first, second]

    def expert_weights(
        self, kind: str, weights: Sequence[ExpertWeights], biases: Tensor | None
    ) -> DecoderOperation:
        """The matrices of experts, one or two of the same shape and format, with pointers to each
        expert's part.
        """
        matrices, tables = zip(*map(self.expert_pointers, weights), strict=True)
        if any(bytes(matrix) != bytes(matrices[0]) for matrix in matrices):
            raise UnsupportedError("experts whose gate and up have different formats")
        experts = len(tables[0][0])
        data, scales = (
            [pointer for table in tables for pointer in table[part]] for part in range(2)
        )
        operation = new_operation(
            kind,
            weight=matrices[0],
            data=self.pointers(data),
            scales=self.pointers(scales) if scales else None,
            experts=experts,
            matrices=len(weights),
        )
        if biases is not None:
            bias = self.contiguous(biases, *FLOATS)
            rows = matrices[0].rows
            operation.experts.biases = Matrix(
                bias.data_ptr(),
                None,
                experts,
                rows,
                rows * bias.element_size(),
                DTYPES[bias.dtype],
                0,
            )
        return operation

    def recurrent(self, step: Recurrent) -> list[DecoderOperation]:
        operations = []
        for number in range(step.layer.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weight_ih, weight_hh, *biases = (
                getattr(step.layer, f"{name}_l{number}") for name in names
            )
            inputs, hidden = self.matrix(weight_ih), self.matrix(weight_hh)
            bias = self.floats(biases[0].float() + biases[1].float())
            operations.append(
                new_operation(
                    "lstm", layer=self.layers, weight_ih=inputs, weight_hh=hidden, bias=bias
                )
            )
            self.width = max(self.width, inputs.rows)
            self.layers += 1
        return operations

    def logits(self, step: Logits) -> DecoderOperation:
        linear = self.product(step.layer, step.bias)
        # Rounding matters most in the last product (benchmarks/rounding.py): blocks of 32 have 15
        # bits, others as many as with float32.
        in_blocks_of_32 = BLOCKS["Q8_0"] <= linear.weight.dtype < BLOCKS["Q2_K"]
        linear.weight.int8_inputs *= 2 * in_blocks_of_32
        return new_operation("logits", linear=linear, scale=step.scale, cap=step.softcap or 0)

    def product(self, layer: LinearLayer | EmbeddingLayer, bias: Tensor | None) -> Any:
        """A product with the weight of a layer, and one with the factors of its adapter.

        DoRA multiplies each output by a factor: the scales of quantized weights include it, other
        weights are merged.
        """
        if not isinstance(layer, LoRALinear):
            return LinearArguments(weight=self.matrix(layer), bias=self.floats(bias))
        factors, base = layer.factors, layer.base
        check_memory(factors.lora_A)
        scales = base.scales if isinstance(base, Quantized) and base.kind not in BLOCKS else None
        if factors.magnitude is not None and scales is None:
            return LinearArguments(weight=self.matrix(layer), bias=self.floats(bias))
        linear = LinearArguments(weight=self.matrix(base), bias=self.floats(bias))
        b = layer.of_rows(factors.lora_B.detach()).float() * factors.scale
        if factors.magnitude is not None and scales is not None:
            gain = layer.gain().detach().float()
            linear.weight.scales, b = self.floats(scales * gain), b * gain.unsqueeze(1)
        padding = -len(factors.lora_A) % RANK_UNIT
        linear.low_a = self.matrix(F.pad(factors.lora_A.detach().float(), (0, 0, 0, padding)))
        linear.low_b = self.matrix(F.pad(b, (0, padding)).contiguous())
        # The buffers of low-rank products have space for MAX_TOKENS tokens; `by_columns` computes
        # more at a time.
        for matrix in (linear.weight, linear.low_a, linear.low_b):
            matrix.by_columns = 0
        self.has_adapter = True
        return linear


TRANSLATORS: dict[type, Callable[[Program, Any], DecoderOperation | list[DecoderOperation]]] = {
    Embed: Program.embed, AddPositions: Program.add_positions, AddSinusoids: Program.add_sinusoids,
    AddTypes: Program.add_types, AddToSaved: Program.add_to_saved,
    StoreResidual: Program.store_residual, HiddenStates: Program.hidden_states, SaveResidual: Program.save_residual,
    LoadResidual: Program.load_residual, Norm: Program.norm, Linear: Program.linear, Rotate: Program.rotate,
    Attend: Program.attend, CrossAttend: Program.cross_attend, CacheEncoder: Program.cache_encoder,
    CausalConvolution: Program.causal_convolution, Project: Program.project, NormPart: Program.norm_part,
    SelectiveScan: Program.selective_scan, TokenShift: Program.token_shift, WKV: Program.wkv,
    ScaleParts: Program.scale_parts,
    DeltaRule: Program.delta_rule, ShortConvolution: Program.short_convolution, Convolution: Program.convolution,
    Gate: Program.gate, Add: Program.add,
    Experts: Program.experts, NormValues: Program.norm_values, LayerInputs: Program.layer_inputs,
    GateLayerInput: Program.gate_layer_input, ScaleResidual: Program.scale_residual,
    Recurrent: Program.recurrent, Logits: Program.logits, PredictionInputs: Program.prediction_inputs,
}  # fmt: skip
