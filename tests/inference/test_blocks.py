"""Weights computed as they lie in a GGUF file: each type, each instruction set."""

import copy
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf_files import blocks
from test_decoder import at_the_end_of_memory, kernel, read, some_ids  # noqa: F401

import minhub_py
from minhub_py import generate, llama
from minhub_py.inference.native.library import BLOCKS
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.quantize import Quantized, kind_of, layers_of, replace_layers
from weights_map.blocks import TYPES, Blocks, unpack_rows

SIZES = {"vocab_size": 61, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 150}  # fmt: skip
TOLERANCE = 2e-5  # as in test_decoder.py


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> Blocks:
    """Of weights as large as those of a fresh layer."""
    count, scale = rows * columns // TYPES[kind].size, 0.01
    scale *= columns**-0.5 / unpack_rows(torch.from_numpy(blocks(kind, count, seed)), kind).std().item()
    return Blocks(kind, torch.from_numpy(blocks(kind, count, seed, scale)).view(rows, -1))


def new(kind: str, **changes: Any) -> Any:
    """A Llama whose layers and embedding are random blocks of a type."""
    torch.manual_seed(0)
    model = llama(**{**SIZES, **changes}).eval()
    kinds = {layer: random_blocks(kind, *layer.weight.shape, seed)
             for seed, (layer, _) in enumerate(layers_of(model, kind))}  # fmt: skip
    replace_layers(model, kinds, lambda layer: None)
    return model


def in_floats(model: Any) -> Any:
    """A model with the same weights in float32."""
    made = llama(**{name: getattr(model.config, name) for name in SIZES}).eval()
    weights = {f"{name}.weight": layer.weight for name, layer in model.named_modules() if isinstance(layer, Quantized)}
    made.load_state_dict({**model.state_dict(), **weights}, strict=False)
    return made


@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_what_the_package_makes_of_them(kind: str) -> None:
    found = random_blocks(kind, 40, 512, 0)
    wanted = gguf.quants.dequantize(found.rows.numpy(), GGMLQuantizationType[kind])
    assert torch.equal(unpack_rows(found.rows, kind), torch.from_numpy(wanted))
    assert BLOCKS.keys() == TYPES.keys()
    assert found.rows.size(1) == 512 // TYPES[kind].size * TYPES[kind].width


@torch.no_grad()
@pytest.mark.parametrize("kind", TYPES)
def test_logits_are_those_of_the_weights_in_floats(kernel: str, kind: str) -> None:  # noqa: F811
    """By `forward`, and in C: of single ids, and of as many as are read at once."""
    model = new(kind, tie_word_embeddings=kind == "Q6_K")
    ids = some_ids(model, 70)
    wanted = in_floats(model)(torch.tensor([ids]))[0] if kind != "Q6_K" else model(torch.tensor([ids]))[0]
    assert torch.equal(model(torch.tensor([ids]))[0], wanted)
    runner = NativeRunner(model)
    for sizes in ([1], [64], [3, 5, 2, 7]):
        found = read(model, ids, sizes)
        assert (found - wanted).abs().max() <= TOLERANCE * wanted.abs().max()
    # Rows of the embedding are the weights to the last bit.
    [embed] = [operation for operation in runner.operations if operation.kind == 0]
    assert embed.weight.dtype == BLOCKS[kind]


@pytest.mark.parametrize("kind", TYPES)
def test_bits_do_not_depend_on_what_is_computed_beside_them(kernel: str, kind: str) -> None:  # noqa: F811
    model = new(kind)
    texts = some_ids(model, 40, rows=5)
    wanted = [read(model, text, [1]) for text in texts]
    assert torch.equal(read(model, texts[0], [2, 3, 4, 1, 5, 8, 50]), wanted[0])
    cache, runner, place = model.new_cache(5, 150, NativeRunner.lookahead), NativeRunner(model), 0
    while place < 40:
        size = min(1 + place % 7, 40 - place)
        rows = {row: text[place : place + size] for row, text in enumerate(texts)}
        found = runner.forward(rows, cache, every=True, exact=True)
        assert torch.equal(found, torch.cat([logits[place : place + size] for logits in wanted]))
        place += size


@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_read_beyond_the_end_of_a_weight(kernel: str, kind: str) -> None:  # noqa: F811
    """It may be the end of the mapped file. Where it is not so this ends the process."""
    model = new(kind)
    ids = some_ids(model, 50)
    wanted = read(model, ids, [1, 7, 2])
    for module in model.modules():
        if isinstance(module, Quantized):
            module.codes = at_the_end_of_memory(module.codes)
    assert torch.equal(read(model, ids, [1, 7, 2]), wanted)


def test_a_model_in_blocks_is_as_other_quantized_ones() -> None:
    model = new("Q4_0")
    assert kind_of(model) == "Q4_0"
    texts = generate(model, [[1, 2, 3]], 6, temperature=0)
    for other in (copy.deepcopy(model), new("Q4_0").to(torch.float32)):
        assert generate(other, [[1, 2, 3]], 6, temperature=0) == texts
    half = new("Q4_0").to(torch.bfloat16)
    assert half.layers[0].mlp.up_proj.codes.dtype == torch.uint8
    assert half.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    again = new("Q4_0")
    again.load_state_dict(model.state_dict())
    assert minhub_py.inference.native_runner.runner_of(again).supports_drafts
    with pytest.raises(ValueError, match="a quantized model cannot be saved"):
        minhub_py.save_pretrained(model, "nowhere")
