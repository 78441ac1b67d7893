"""Products with a GGUF file's blocks: each type, each instruction set."""

import copy
from functools import partial
from typing import Any

import gguf
import pytest
import torch
from block_models import SIZES, new_of_blocks, random_blocks
from decoders import at_the_end_of_memory, read, some_ids
from gguf import GGMLQuantizationType
from guarantees import EXACT

import minhub_py
from minhub_py import from_config, generate, llama
from minhub_py.inference.native.library import BLOCKS
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.quantize import Quantized, kind_of, round_activations
from weights_map.blocks import TYPES, unpack_rows

TOLERANCE = 2e-5  # as in decoders.py
ROUNDED = 1e-3  # blocks of 256, whose activations are quantized to 15 bits

# The bytes of blocks of 256 that contain floats.
FLOATS = {
    "Q2_K": slice(80, 84),
    "Q3_K": slice(108, 110),
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(208, 210),
}


def tolerance(kind: str) -> float:
    return ROUNDED if TYPES[kind].size == 256 else TOLERANCE


def with_rounded_inputs(model: Any) -> Any:
    """A model in float32 whose layers, except the head, round their inputs to 8 bits, with a scale
    for each 32.
    """

    def round_inputs(module: Any, inputs: Any) -> Any:
        groups = inputs[0].unflatten(-1, (-1, 32))
        scales = groups.abs().amax(dim=-1, keepdim=True) / 127
        return ((groups / scales.clamp_min(1e-30)).round() * scales).flatten(-2)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(round_inputs)
    return model


def in_floats(model: Any) -> Any:
    """A model with the same weights in float32."""
    unpacked = llama(**{name: getattr(model.config, name) for name in SIZES}).eval()
    weights = {
        f"{name}.weight": layer.weight
        for name, layer in model.named_modules()
        if isinstance(layer, Quantized)
    }
    unpacked.load_state_dict({**model.state_dict(), **weights}, strict=False)
    return unpacked


@pytest.mark.parametrize("kind", TYPES)
def test_unpacked_weights_match_the_gguf_package(kind: str) -> None:
    actual = random_blocks(kind, 40, 512, 0)
    expected = gguf.quants.dequantize(actual.rows.numpy(), GGMLQuantizationType[kind])
    assert torch.equal(unpack_rows(actual.rows, kind), torch.from_numpy(expected))
    assert BLOCKS.keys() == TYPES.keys()
    assert actual.rows.size(1) == 512 // TYPES[kind].size * TYPES[kind].width


@torch.no_grad()
@pytest.mark.parametrize("kind", TYPES)
def test_logits_match_the_unpacked_weights(kernel: str, kind: str) -> None:
    """By `forward`, and in C: for single tokens, and for as many as one product computes."""
    model = new_of_blocks(kind, tie_word_embeddings=kind == "Q6_K")
    ids = some_ids(model, 70)
    expected = (
        in_floats(model)(torch.tensor([ids]))[0]
        if kind != "Q6_K"
        else model(torch.tensor([ids]))[0]
    )
    assert torch.equal(model(torch.tensor([ids]))[0], expected)
    runner = NativeRunner(model)
    for sizes in ([1], [64], [3, 5, 2, 7]):
        actual = read(model, ids, sizes)
        assert (actual - expected).abs().max() <= tolerance(kind) * expected.abs().max()
    # Rows of the embedding are bitwise identical to the weights.
    [embed] = [operation for operation in runner.operations if operation.kind == 0]
    assert embed.embed.tokens.dtype == BLOCKS[kind]


@pytest.mark.parametrize("activations", [8, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", TYPES)
def test_logits_of_blocks_do_not_depend_on_other_rows_and_pieces(
    kernel: str, kind: str, activations: int
) -> None:
    model = new_of_blocks(kind)
    if activations == 8:
        round_activations(model)
    texts = some_ids(model, 40, rows=5)
    expected = [read(model, text, [1]) for text in texts]
    assert torch.equal(read(model, texts[0], [2, 3, 4, 1, 5, 8, 50]), expected[0])
    cache, runner, position = (
        model.new_cache(5, 150, NativeRunner.lookahead),
        NativeRunner(model),
        0,
    )
    while position < 40:
        size = min(1 + position % 7, 40 - position)
        rows = {row: text[position : position + size] for row, text in enumerate(texts)}
        actual = runner.forward(rows, cache, every=True, exact=True)
        assert torch.equal(
            actual, torch.cat([logits[position : position + size] for logits in expected])
        )
        position += size


@torch.no_grad()
@pytest.mark.parametrize("kind", TYPES)
def test_logits_with_activations_of_8_bits_match_rounded_inputs(kernel: str, kind: str) -> None:
    """On average: another last bit of a sum can change the rounding of the next layer's inputs."""
    model = new_of_blocks(kind, num_hidden_layers=1)
    round_activations(model)
    for parameter in model.parameters():  # of norms; rows of the embedding alone have many ties
        parameter.uniform_(0.5, 1)
    ids = some_ids(model, 70)
    exact = in_floats(model)(torch.tensor([ids]))[0]
    expected = with_rounded_inputs(in_floats(model))(torch.tensor([ids]))[0]
    for sizes in ([1], [64], [3, 5, 2, 7]):
        actual = read(model, ids, sizes)
        assert (actual - expected).abs().mean() <= 0.3 * (expected - exact).abs().mean()


@torch.no_grad()
@pytest.mark.parametrize("kind", TYPES)
def test_the_head_rounds_activations_to_at_least_15_bits(kernel: str, kind: str) -> None:
    """The layers' matrices are zeros, so that only the head's product is rounded."""
    model = new_of_blocks(kind)
    round_activations(model)
    for name, module in model.named_modules():
        if isinstance(module, Quantized) and "layers." in name:
            module.codes.zero_()
    ids = some_ids(model, 70)
    expected = in_floats(model)(torch.tensor([ids]))[0]
    for sizes in ([1], [64], [3, 5, 2, 7]):
        actual = read(model, ids, sizes)
        assert (actual - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("byte", [0xFF, 0x80, 0x7F])
@pytest.mark.parametrize("kind", FLOATS)
def test_sums_of_the_largest_codes_do_not_overflow(kernel: str, kind: str, byte: int) -> None:
    """All codes and integer scales are equal, and so are the first inputs. One token uses smaller
    integers.
    """
    model = new_of_blocks(kind)
    for module in model.modules():
        if isinstance(module, Quantized):
            stored = module.codes.view(-1, TYPES[kind].width)
            floats = stored[:, FLOATS[kind]].clone()
            stored.fill_(byte)
            stored[:, FLOATS[kind]] = floats
    ids = some_ids(model, 9)
    expected = read(model, ids, [9])
    assert expected.isfinite().all()
    assert expected.any()
    assert torch.equal(read(model, ids, [1]), expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_experts_in_blocks_match_the_unpacked_weights(kernel: str, kind: str) -> None:
    """All experts are selected: another choice would exceed rounding."""
    model = new_of_blocks(
        kind, partial(from_config, "mixtral"), num_experts=3, num_experts_per_tok=3
    )
    ids = some_ids(model, 40)
    expected = model(torch.tensor([ids]))[0]
    actual = read(model, ids, [1])
    assert (actual - expected).abs().max() <= tolerance(kind) * expected.abs().max()
    assert torch.equal(read(model, ids, [40]), actual)
    round_activations(model)
    rounded = read(model, ids, [1])
    assert 0 < (rounded - expected).abs().max() <= 0.05 * expected.abs().max()
    assert torch.equal(read(model, ids, [40]), rounded)


@pytest.mark.parametrize("activations", [8, 16])
@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_read_beyond_the_end_of_a_block(
    kernel: str, kind: str, activations: int
) -> None:
    """The last row may be at the end of the mapped file: reading beyond it ends the process."""
    model = new_of_blocks(kind)
    if activations == 8:
        round_activations(model)
    ids = some_ids(model, 50)
    expected = read(model, ids, [1, 7, 2])
    for module in model.modules():
        if isinstance(module, Quantized):
            module.codes = at_the_end_of_memory(module.codes)
    assert torch.equal(read(model, ids, [1, 7, 2]), expected)


def test_a_model_in_blocks_supports_the_operations_of_quantized_models() -> None:
    model = new_of_blocks("Q4_0")
    assert kind_of(model) == "Q4_0"
    texts = generate(model, [[1, 2, 3]], 6, temperature=0)
    for other in (copy.deepcopy(model), new_of_blocks("Q4_0").to(torch.float32)):
        assert generate(other, [[1, 2, 3]], 6, temperature=0) == texts
    half = new_of_blocks("Q4_0").to(torch.bfloat16)
    assert half.layers[0].mlp.up_proj.codes.dtype == torch.uint8
    assert half.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    again = new_of_blocks("Q4_0")
    again.load_state_dict(model.state_dict())
    assert minhub_py.inference.native_runner.runner_of(again).supports_drafts == EXACT
    with pytest.raises(ValueError, match="a quantized model cannot be saved"):
        minhub_py.save_pretrained(model, "nowhere")
