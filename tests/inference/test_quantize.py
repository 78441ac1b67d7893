"""Weights in 8 and 4 bits: the values of codes, the layers with codes, and models with such layers."""

import copy
from functools import partial

import pytest
import torch
from decoders import CASES, assert_close, forward, new, new_cache, product, read, some_ids
from needs import needs
from references import assert_identical
from torch import nn

import minhub_py
from minhub_py import generate, score
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.native import library
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.quantize import (
    FACTORS,
    GROUP,
    KINDS,
    NF4,
    SMALL_WIDTH,
    UNIT,
    Quantized,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedLSTM,
    pack,
    pack_nf4,
    quantize,
    unpack,
)
from minhub_py.inference.torch_runner import TorchRunner
from minhub_py.models.base import LanguageModel
from minhub_py.models.llama import Llama, LlamaConfig

COLUMNS = [1, 2, 15, 31, 32, 33, 127, 128, 129, 200, 256, 500]
MODELS = [
    "gpt2",
    "gpt2-heads-of-5",
    "gpt2-heads-of-72",
    "gpt2-heads-of-130",
    "gpt2-untied",
    "gptneo",
    "gptneo-heads-of-72",
    "gptneo-untied",
    "gptneo-window-2",
    "lstm-one-layer",
    "lstm-three-layers",
    "lstm-tied",
    "lstm-wide",
]
# Of the largest logit: products with such weights round their inputs to 16 and 15 bits, and an LSTM
# accumulates it.
ROUNDED = {"int8": 1e-3, "nf4": 2e-3}


def weights(columns, rows=7):
    return (
        torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
        * torch.logspace(-5, 5, rows)[:, None]
    )


def groups_of(weight):
    """(rows, groups, GROUP) of a weight, with zeros at the end."""
    return nn.functional.pad(weight, (0, -weight.size(1) % GROUP)).unflatten(1, (-1, GROUP))


# --- codes ---


@pytest.mark.parametrize("columns", COLUMNS)
def test_int8_is_the_nearest_of_255_steps(columns) -> None:
    weight = weights(columns)
    codes, scales = pack(weight, "int8")
    assert (codes.dtype, codes.shape, scales.dtype, scales.shape) == (
        torch.int8,
        (7, columns),
        torch.float32,
        (7,),
    )
    assert codes.abs().amax(dim=1).eq(127).all()
    result = unpack(codes, scales, columns)
    assert ((result - weight).abs() <= scales[:, None] * 0.50001).all()
    largest = weight.abs().argmax(dim=1, keepdim=True)
    assert torch.allclose(result.gather(1, largest), weight.gather(1, largest), rtol=2e-7, atol=0)


@pytest.mark.parametrize("columns", COLUMNS)
def test_nf4_is_the_nearest_of_16_values(columns) -> None:
    weight = weights(columns)
    codes, scales = pack(weight, "nf4")
    units = -(-columns // UNIT)
    assert (codes.dtype, codes.shape) == (torch.uint8, (7, 68 * units))
    assert (scales.dtype, scales.shape) == (torch.float32, (7,))
    result = unpack(codes, scales, columns)
    assert result.shape == weight.shape
    groups, rounded = groups_of(weight), groups_of(result)
    headers = codes.view(7, units, 68)[:, :, :4].flatten(1)[:, : groups.size(1)].int()
    multiples = (headers & 127).where(headers & 64 == 0, (headers & 127) - 128)
    steps = multiples[..., None] * scales[:, None, None]
    levels = NF4[headers >> 7].unsqueeze(2)  # of each group
    best = (groups.unsqueeze(-1) - levels * steps.unsqueeze(-1)).abs().amin(dim=-1)
    assert ((groups - rounded).abs() <= best + 1e-5 * steps.abs()).all()
    # No other candidate has a smaller error, including the scale that maps the largest weight to
    # the largest level.
    result = (groups - rounded).square().sum(dim=2)
    high, low = groups.amax(dim=2).clamp_min(0), groups.amin(dim=2).clamp_max(0)
    for number, table in enumerate((NF4[0], -NF4[0], NF4[1], -NF4[1])):
        largest = torch.maximum(high / table.amax(), low / table.amin()) / scales[:, None]
        for factor in FACTORS.tolist():
            tried = (largest * factor).round().clamp(1, 63) * scales[:, None]
            other = (
                (groups.unsqueeze(-1) - table * tried[:, :, None, None])
                .abs()
                .amin(dim=-1)
                .square()
                .sum(dim=2)
            )
            assert (result <= 1.0001 * other).all()
            if factor == 1 and number == 0 and columns >= 200:
                assert (result.sum(dim=1) / other.sum(dim=1)).mean() < 0.8


@pytest.mark.parametrize("columns", COLUMNS)
def test_nf4_without_native_code_matches_native_code(columns) -> None:
    """As on a GPU."""
    weight = weights(columns, rows=77)
    for actual, expected in zip(pack_nf4(weight), pack(weight, "nf4"), strict=True):
        assert torch.equal(actual, expected)


def test_nf4_values_survive_a_round_trip() -> None:
    for columns in (16, 32, 48, 128, 208):
        for table in (*NF4, *-NF4):
            weight = table.repeat(columns // 16 + 1)[:columns].repeat(3, 1) * torch.tensor(
                [[1.0], [3.0], [2.0**-20]]
            )
            assert torch.allclose(unpack(*pack(weight, "nf4"), columns), weight, rtol=2e-7, atol=0)


def test_nf4_codes_have_the_documented_order() -> None:
    """Input 32 * part + j of a unit of 128 is half byte `part` of word j. Four bytes with scales
    precede the words.
    """
    for unit, part, j in ((0, 0, 0), (0, 1, 31), (1, 2, 9), (2, 3, 5)):
        weight = torch.zeros(2, 300 + 84)
        weight[1, 128 * unit + 32 * part + j] = -3.0
        codes, scales = pack(weight, "nf4")
        expected = torch.zeros(2, 3, 68, dtype=torch.uint8)  # code 0 is zero
        expected[:, :, :4] = 1
        expected[1, unit, part] = 63
        expected[1, unit, 4 + 2 * j + part // 2] = 9 << (4 * (part % 2))  # code 9 is -31
        assert torch.equal(codes.view(2, 3, 68), expected)
        assert scales.tolist() == [0, pytest.approx(3 / 63 / 31)]


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_and_lone_weights(kind) -> None:
    for columns in (1, 31, 130):
        assert not unpack(*pack(torch.zeros(3, columns), kind), columns).any()
        for position in (0, columns // 2, columns - 1):
            for value in (1e-20, -3.7, 1e20):
                weight = torch.zeros(3, columns)
                weight[1, position] = value
                result = unpack(*pack(weight, kind), columns)
                assert torch.allclose(result, weight, rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_nan_weights_stay_nan(kind, bad) -> None:
    """The error for corrupt weights is raised by the first call, as without quantization."""
    weight = torch.ones(3, 40)
    weight[1, 5] = bad
    result = unpack(*pack(weight, kind), 40)
    assert torch.allclose(result[[0, 2]], weight[[0, 2]], rtol=2e-7, atol=0)
    assert not result[1].isfinite().all()
    model = new("gpt2")
    # not in attention: PyTorch's ignores keys that are NaN
    model.h[0].mlp.c_fc.weight.data[3, 3] = bad
    quantize(model, kind)
    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        generate(model, [[1, 2]], 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_any_layout_and_dtype_can_be_packed(kind, dtype) -> None:
    weight = weights(70).clamp(-6e4, 6e4).to(dtype)
    codes = pack(weight.float(), kind)
    for source in (
        weight,
        weight.t().contiguous().t(),
        nn.Parameter(weight),
        weight.repeat(2, 2)[:7, :70],
    ):
        for actual, expected in zip(pack(source, kind), codes, strict=True):
            assert torch.equal(actual, expected)


# --- models ---


def dequantized(model):
    """A float32 model with the values of the codes as weights."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, QuantizedLSTM):
                sizes = layer.weight_hh_l0.shape[1], layer.weight_ih_l0.shape[1]
                module = nn.LSTM(sizes[1], sizes[0], layer.num_layers, batch_first=True)
                for path, parameter in module.named_parameters():
                    stored = getattr(layer, path)
                    parameter.data = (
                        (stored.weight if isinstance(stored, Quantized) else stored)
                        .detach()
                        .float()
                    )
            elif isinstance(layer, QuantizedEmbedding):
                module = nn.Embedding.from_pretrained(layer.weight.float())
            elif isinstance(layer, QuantizedLinear):
                module = nn.Linear(layer.shape[1], layer.shape[0], bias=layer.bias is not None)
                module.weight.data = layer.weight.float()
                if layer.bias is not None:
                    module.bias.data = layer.bias.detach().float()
            else:
                continue
            setattr(parent, name, module)
    assert not any(isinstance(module, Quantized) for module in model.modules())
    return model.float().eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_match_the_dequantized_weights(kernel, plain, name, kind) -> None:
    model = new(name, kind)
    twin = dequantized(model)
    ids = some_ids(model, 145)
    expected = forward(twin, ids)
    assert (expected - forward(new(name), ids)).abs().max() > 1e-3 * expected.abs().max()
    sizes = [1] if name.startswith("lstm") else [1, 7, 64, 2, 3]
    assert isinstance(runner_of(model), NativeRunner)
    assert_close(read(model, ids, sizes), expected, ROUNDED[kind])
    assert_close(
        NativeRunner(model).forward({0: ids}, new_cache(model), every=True), expected, ROUNDED[kind]
    )
    assert_close(forward(model, ids), expected)  # `forward`, without the C decoder

    def greedy(of):
        return generate(of, [[1], ids[:60]], 20, temperature=0)

    assert greedy(model) == greedy(twin) == plain(lambda: greedy(model))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 17, 41, 128])
@pytest.mark.parametrize(
    ("columns", "rows"), [(64, 16), (192, 77), (33, 52), (8256, 34), (32767, 6)]
)
def test_products_match_integer_arithmetic(kernel, columns, rows, tokens, kind) -> None:
    """Bitwise identical by tiles, fused and separate sums, parts of sums, and sums of more than 32
    bits.
    """
    generator = torch.Generator().manual_seed(columns + tokens)
    x = torch.randn(tokens, columns, generator=generator)
    weight = torch.randn(rows, columns, generator=generator)
    x[0], weight[0], weight[1] = 1, -1, 1  # the largest codes, all of one sign
    layer = QuantizedLinear(nn.Linear(columns, rows, bias=False), kind)
    layer.codes, layer.scales = pack(weight, kind)
    wholes = unpack(layer.codes, torch.ones(rows), columns).long()
    most = x.abs().amax(dim=1, keepdim=True)
    # `/ most` would multiply by a reciprocal
    steps = torch.tensor([[32767.0 if kind == "int8" else 16383.0]])
    codes = (x * (steps / most)).round().long()
    scales = (most / steps).double() * layer.scales.double()
    assert torch.equal(product(layer, x), ((codes @ wholes.t()).double() * scales).float())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 11, 12, 20, 41, 128])
@pytest.mark.parametrize(("columns", "rows"), [(64, 16), (192, 77), (33, 52), (8256, 34)])
def test_bfloat16_products_match_integer_arithmetic(kernel, columns, rows, tokens, kind) -> None:
    """32 inputs have a scale that is a multiple of the token's scale, so that sums are sums of
    integers.
    """
    generator = torch.Generator().manual_seed(columns + tokens)
    x = (
        torch.randn(tokens, columns, generator=generator)
        * torch.randn(columns, generator=generator).exp()
    )
    weight = torch.randn(rows, columns, generator=generator)
    x[0], weight[0], weight[1] = 1, -1, 1  # the largest codes, all of one sign
    x[-1, : min(columns, 32)] = 0
    layer = QuantizedLinear(nn.Linear(columns, rows, bias=False), kind).bfloat16()
    layer.codes, layer.scales = pack(weight, kind)
    wholes = unpack(layer.codes, torch.ones(rows), columns).long()
    groups, most = groups_of(x), x.abs().amax(dim=1, keepdim=True)
    share = torch.tensor([[31.0]]) / most
    times = (groups.abs().amax(dim=2) * share).ceil().clamp(1, 31)
    codes = (
        ((groups * (127 * share / times).unsqueeze(2)).round() * times.unsqueeze(2))
        .flatten(1)[:, :columns]
        .long()
    )
    scales = (most / (31 * 127)).double() * layer.scales.double()
    result = product(layer, x)
    assert torch.equal(result, ((codes @ wholes.t()).double() * scales).float())
    exact = x.double() @ unpack(layer.codes, layer.scales, columns).double().t()
    assert (result - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("dtype", ["int8", "int8+bfloat16", "nf4+bfloat16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_inputs_give_non_finite_outputs(kernel, bad, dtype) -> None:
    model = new("gpt2", dtype)
    with torch.no_grad():
        model.h[0].ln_1.bias[3] = bad
    result = read(model, some_ids(model, 20), [1, 19])
    assert not result.isfinite().any()
    layer = model.h[0].attn.c_attn
    for tokens in (1, 19):
        x = torch.ones(tokens, layer.shape[1])
        x[-1, 5] = bad
        assert product(layer, x).isfinite().all(dim=1).tolist() == [True] * (tokens - 1) + [False]


def all_logits(model: LanguageModel, ids: list[int]) -> torch.Tensor:
    return runner_of(model).forward({0: ids}, model.new_cache(1, 40), every=True)


@needs("decoder")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gpt2-heads-of-5", "gptneo-window-2", "lstm-three-layers"])
def test_another_dtype_leaves_the_scales_in_float32(plain, name, kind) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        exact = new(name, kind)
        model = copy.deepcopy(exact).to(dtype)
        layers = [layer for layer in model.modules() if isinstance(layer, Quantized)]
        for layer, before in zip(
            layers,
            [module for module in exact.modules() if isinstance(module, Quantized)],
            strict=True,
        ):
            assert torch.equal(layer.codes, before.codes)
            assert torch.equal(layer.scales, before.scales)
            assert layer.scales.dtype == torch.float32
            assert layer.weight.dtype == layer.dtype == dtype
        ids = some_ids(model, 40)
        expected = forward(exact, ids)
        assert_close(read(model, ids, [1]), expected, 0.2)
        assert_close(forward(model, ids), expected, 0.3)
        assert model(torch.tensor([ids])).dtype == dtype
        assert_close(plain(partial(all_logits, model, ids)).float(), expected, 0.3)
        generate(model, [[1, 2]], 5)
        back = model.to(torch.float32)
        for layer, before in zip(
            layers,
            [module for module in exact.modules() if isinstance(module, Quantized)],
            strict=True,
        ):
            assert torch.equal(layer.weight, before.weight)
        assert forward(back, ids).dtype == torch.float32


def test_matrices_and_embeddings_are_quantized() -> None:
    model = new("gpt2", "nf4")
    kinds = {
        path: module.kind for path, module in model.named_modules() if isinstance(module, Quantized)
    }
    blocks = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    expected = {
        "wte": "int8",
        **{f"h.{layer}.{name}": "nf4" for layer in range(2) for name in blocks},
    }
    assert kinds == expected | {"h.1.mlp.c_proj": "int8"}
    assert isinstance(new("gpt2-untied", "nf4").lm_head, QuantizedLinear)
    assert new("gpt2-untied", "nf4").lm_head.kind == "int8"
    assert {
        module.kind for module in new("gptneo", "int8").modules() if isinstance(module, Quantized)
    } == {"int8"}
    untied, tied = new("lstm", "nf4"), new("lstm-tied", "nf4")
    assert (untied.embedding.kind, untied.head.kind, untied.lstm.weight_hh_l1.kind) == (
        "int8",
        "int8",
        "nf4",
    )
    assert (tied.embedding.kind, type(tied.head), tied.head.weight) == ("int8", nn.Linear, None)


def test_the_layers_that_lose_most_in_4_bits_have_8() -> None:
    """Values of grouped heads, and the outputs of the MLPs in the first eighth of the blocks and in
    the last one; in small models keys of grouped heads and all outputs.
    """

    def kinds_of(layers, kv_heads, width=SMALL_WIDTH + 8):
        sizes = {
            "hidden_size": width,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "vocab_size": 50,
        }
        model = Llama(LlamaConfig(**sizes, num_hidden_layers=layers, num_key_value_heads=kv_heads))
        quantize(model, "nf4")
        return {
            path: module.kind
            for path, module in model.named_modules()
            if isinstance(module, Quantized)
        }

    kinds = kinds_of(layers=16, kv_heads=1)
    outputs = {f"layers.{layer}.mlp.down_proj" for layer in (0, 1, 15)}
    values = {f"layers.{layer}.self_attn.v_proj" for layer in range(16)}
    assert {path for path, kind in kinds.items() if kind == "int8"} == {
        "embed_tokens",
        "lm_head",
        *outputs,
        *values,
    }
    assert len(kinds) == 2 + 7 * 16
    assert kinds_of(layers=1, kv_heads=2)["layers.0.self_attn.v_proj"] == "nf4"
    small = kinds_of(layers=2, kv_heads=1, width=8)
    assert {path.split(".")[-1] for path, kind in small.items() if kind == "nf4"} == {
        "q_proj",
        "gate_proj",
        "up_proj",
    }


def test_sizes_that_happen_to_be_that_of_the_vocabulary() -> None:
    """Positions stay in float, blocks are in 4 bits: the purpose of a layer decides."""
    model = new("gpt2", "nf4", vocab_size=72, n_positions=72, n_inner=72)
    assert isinstance(model.wpe, nn.Embedding)
    assert model.h[0].mlp.c_fc.kind == "nf4"
    assert new("gpt2", "nf4", vocab_size=72).h[0].attn.c_attn.kind == "nf4"


def test_embedding_rows_match_the_dequantized_weights() -> None:
    layer = QuantizedEmbedding(nn.Embedding(50, 33))
    idx = torch.tensor([[0, 49], [7, 7]])
    assert torch.equal(layer(idx), layer.weight[idx])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_quantized_lstm_matches_pytorch(kind, layers) -> None:
    torch.manual_seed(0)
    layer = QuantizedLSTM(
        nn.LSTM(10, 37, layers, batch_first=True, dropout=0.5 if layers > 1 else 0), kind
    )
    other = nn.LSTM(10, 37, layers, batch_first=True)
    for path, parameter in other.named_parameters():
        stored = getattr(layer, path)
        parameter.data = stored.weight if isinstance(stored, Quantized) else stored.data
    x, state = torch.randn(3, 6, 10), (torch.randn(layers, 3, 37), torch.randn(layers, 3, 37))
    with torch.no_grad():
        for start in (None, state):
            (y, (h, c)), (other_y, (other_h, other_c)) = layer(x, start), other(x, start)
            for actual, expected in ((y, other_y), (h, other_h), (c, other_c)):
                assert actual.shape == expected.shape
                assert torch.allclose(actual, expected, atol=1e-6)


@needs("decoder")
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_have_8_bits_only_where_bfloat16_is_asked_for(tmp_path, kind) -> None:
    minhub_py.save_pretrained(new("gpt2", "bfloat16"), tmp_path)
    for options, dtype in (({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16)):
        model = minhub_py.from_pretrained(str(tmp_path), device="cpu", quantize=kind, **options)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        operations = NativeRunner(model).operations
        weights = [
            operation.linear.weight
            for operation in operations
            if operation.kind == library.KINDS["linear"]
        ]
        weights += [
            operation.add.linear.weight
            for operation in operations
            if operation.kind == library.KINDS["add"]
        ]
        assert len(weights) == 8
        assert {weight.int8_inputs for weight in weights} == {int(dtype == torch.bfloat16)}
        assert not operations[-1].logits.linear.weight.int8_inputs


@pytest.mark.parametrize("family", ["gpt2", "gptneo", "lstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_from_pretrained_quantizes_a_checkpoint(tmp_path, family, kind) -> None:
    complete = new(family)
    minhub_py.save_pretrained(complete, tmp_path)
    model = minhub_py.from_pretrained(str(tmp_path), device="cpu", quantize=kind)
    assert not model.training
    expected = new(family)
    quantize(expected, kind)
    assert_identical(model.state_dict(), expected.state_dict())
    by_family = getattr(minhub_py, f"{family}_from_pretrained")(
        str(tmp_path), device="cpu", quantize=kind
    )
    prompts = [[1, 2, 3], [4]]
    assert generate(by_family, prompts, 30, seed=1) == generate(expected, prompts, 30, seed=1)
    # The codes are computed from the file's weights, not from weights in another dtype.
    rounded = minhub_py.from_pretrained(
        str(tmp_path), device="cpu", quantize=kind, dtype="bfloat16"
    )
    for (name, layer), (_, before) in zip(
        rounded.named_modules(), model.named_modules(), strict=True
    ):
        if isinstance(layer, Quantized):
            assert torch.equal(layer.codes, before.codes), name
            assert torch.equal(layer.scales, before.scales), name
            assert layer.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.bfloat16}
    scores = score(model, [[1, 2, 3, 4]])[0], score(rounded, [[1, 2, 3, 4]])[0]
    assert torch.allclose(*scores, atol=1)


def test_what_a_quantized_model_is_smaller_by() -> None:
    def size(model):
        tensors = [*model.parameters(), *model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    sizes = {"vocab_size": 64, "n_positions": 2, "n_embd": 256, "n_head": 2}
    complete, eight, four = (
        size(new("gpt2", kind, **sizes)) for kind in ("float32", "int8", "nf4")
    )
    assert eight < 0.27 * complete
    assert four < 0.18 * complete


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_a_quantized_model_is_not_saved(tmp_path, family, kind) -> None:
    model = new(family, kind)
    for save in (minhub_py.save_pretrained, save_torchscript):
        with pytest.raises(
            ValueError,
            match=(
                "a quantized model cannot be (saved|written as TorchScript): load it again with"
                " quantize = .none."
            ),
        ):
            save(model, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("kind", ["int4", "", "INT8", 8])
def test_an_unknown_kind_is_named_before_anything_is_fetched(kind) -> None:
    for load in (
        minhub_py.from_pretrained,
        minhub_py.gpt2_from_pretrained,
        minhub_py.lstm_from_pretrained,
    ):
        with pytest.raises(ValueError, match="quantize must be auto, none, int8 or nf4, not"):
            load("nobody/nowhere", quantize=kind)
    with pytest.raises(ValueError, match="quantize must be int8 or nf4, not"):
        quantize(new("gpt2"), kind)


def test_a_hook_on_a_quantized_layer_is_called() -> None:
    model = new("gpt2", "int8")
    model.h[0].mlp.c_fc.register_forward_hook(lambda _, __, y: -y)
    assert type(runner_of(model)) is TorchRunner


def test_quantized_models_have_native_code_for_all_cases() -> None:
    for name in CASES:
        for kind in KINDS:
            assert type(runner_of(new(name, kind))) is (
                NativeRunner if library.library() else TorchRunner
            )
