"""Research functions with an adapter: the results of the merged model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from adapters import random_adapter
from references import assert_close

from minhub_py import (
    activations,
    attention_weights,
    embed,
    from_pretrained,
    intervene,
    logit_lens,
    score,
    tokenizer_from_pretrained,
)
from minhub_py.loading.adapters.merge import merge

MODEL = "minhub/shakespeare-gpt2"
TEXT = "To be, or not"
TOKENIZER = tokenizer_from_pretrained(MODEL)
IDS = TOKENIZER.encode(TEXT).ids
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "activations": lambda model: activations(model, TOKENIZER, TEXT, "layers.2.attn")[
        "layers.2.attn"
    ],
    "attention_weights": lambda model: attention_weights(model, TOKENIZER, TEXT).weights,
    "embed": lambda model: embed(model, TOKENIZER, [TEXT]),
    "intervene": lambda model: score(
        intervene(model, ["layers.2.heads.1", "layers.4.mlp"], "zero"), [IDS]
    )[0],
    "logit_lens": lambda model: logit_lens(model, TOKENIZER, TEXT).probs,
}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("adapter")
    random_adapter(from_pretrained(MODEL), folder)
    return from_pretrained(MODEL, adapter=folder)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_research_functions_include_the_adapter(name: str, adapted: Any) -> None:
    results = [
        torch.as_tensor(FUNCTIONS[name](model))
        for model in (adapted, merge(adapted), adapted.adapter(None))
    ]
    assert_close(results[0], results[1])
    assert (results[0] - results[2]).abs().max() > 0.01
