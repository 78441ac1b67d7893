"""Models whose weights are random blocks of a GGUF type."""

import math
from collections.abc import Callable
from typing import Any

import torch
from gguf_files import blocks

from minhub_py import llama
from minhub_py.inference.quantize import layers_of, replace_layers
from minhub_py.models.experts import ExpertMatrices
from weights_map.blocks import TYPES, Blocks, unpack_rows

SIZES = {
    "vocab_size": 61,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 150,
}


def random_blocks(kind: str, rows: int, columns: int, seed: int) -> Blocks:
    """The scale of random weights, as in a new layer."""
    count, scale = rows * columns // TYPES[kind].size, 0.01
    scale *= (
        columns**-0.5 / unpack_rows(torch.from_numpy(blocks(kind, count, seed)), kind).std().item()
    )
    return Blocks(kind, torch.from_numpy(blocks(kind, count, seed, scale)).view(rows, -1))


def new_of_blocks(kind: str, new: Callable[..., Any] = llama, **changes: Any) -> Any:
    """A Llama, or a similar model, whose layers and embedding are random blocks of a type."""
    torch.manual_seed(0)
    model = new(**{**SIZES, **changes}).eval()
    kinds = {}
    for seed, (layer, _) in enumerate(layers_of(model, kind)):
        *rows, columns = layer.shape if isinstance(layer, ExpertMatrices) else layer.weight.shape
        kinds[layer] = random_blocks(kind, math.prod(rows), columns, seed)
    replace_layers(model, kinds, lambda layer: None)
    return model
