"""Models of transformers in the cases of tests/support/cases, their hidden states, and random token
IDs.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cases import ARCHITECTURES
from random_weights import draw

from minhub_py.loading.pretrained import read_config

# The largest difference of float32 numbers whose sums have another order, in parts of the largest
# logit, as docs/internals/determinism.md states it: of logits, and of log-probabilities, which have
# another difference from the logarithm of the sum.
TOLERANCE = 5e-5
LOGPROBS = 2 * TOLERANCE
LENGTH = 70
VOCABULARY = 61  # of all cases
CASES = {name: cases for cases in ARCHITECTURES.values() for name in cases.cases}
FEW = [name for cases in ARCHITECTURES.values() for name in cases.few]


def model_type_of(name: str) -> str:
    """The model_type of a case."""
    return str(CASES[name].settings(name)["model_type"])


# model_type -> name of its first case, from FEW if it has one there
FIRST = {model_type_of(name): name for name in reversed([*FEW, *CASES])}


def ids_of(rows: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(rows))


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE
) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


def assert_identical(
    actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


@torch.no_grad()
def read(model: Any, ids: torch.Tensor, sizes: list[int], cache: Any) -> torch.Tensor:
    """The logits of `ids` (B, T), computed with a cache in chunks of `sizes`, which are repeated
    until the end.
    """
    logits, position = [], 0
    for size in cycle(sizes):
        if position >= ids.size(1):
            return torch.cat(logits, dim=1)
        logits.append(model(ids[:, position : position + size], cache))
        position += size
    raise AssertionError


def save_reference(
    settings: Mapping[str, Any], folder: Path, auto_class: str = "ForCausalLM", **options: Any
) -> Any:
    """transformers' model of a config.json, in eval mode, with large random weights. Saves it with
    these settings.
    """
    import transformers

    # A copy: transformers adds missing rope_parameters to the dict.
    config = transformers.AutoConfig.for_model(**deepcopy(dict(settings)))
    reference = (
        getattr(transformers, f"AutoModel{auto_class}").from_config(config, **options).eval()
    )
    draw(reference)
    reference.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # The settings of the case, in old or new spelling, and not as transformers writes them.
    (folder / "config.json").write_text(json.dumps(settings))
    return reference


def texts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]


@torch.no_grad()
def states_of(reference: Any, ids: list[int]) -> list[torch.Tensor]:
    """transformers' hidden states of one text, (T, C) each, starting with the embeddings.

    transformers omits the embeddings of a Mamba and an RWKV, and adds the last layer's states without
    the norm.
    """
    states = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
    if "mamba" in (kind := reference.config.model_type) and kind in FIRST:
        embeddings = reference.get_input_embeddings()(torch.tensor([ids]))
        states = embeddings, *states[:-2], states[-1]
    if kind == "rwkv":
        embeddings = reference.get_input_embeddings()(torch.tensor([ids]))
        states = reference.rwkv.blocks[0].pre_ln(embeddings), *states[:-2], states[-1]
    return [state[0] for state in states]


def configured(name: str) -> tuple[Any, Any]:
    """Our architecture and config of a case."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CASES[name].settings(name)))
        return read_config(folder)[:2]


def random_model(name: str) -> Any:
    """Our model of a case, in eval mode, with large random weights."""
    architecture, config = configured(name)
    model = architecture.new(config)
    draw(model)
    return model.eval()
