"""Points, hidden states and attention weights by layer, of encoders whose layers share weights or
add a convolution.
"""

from typing import Any

import pytest
import torch
import transformers
from encoder_cases import ENCODERS
from random_weights import draw
from transformers import AutoConfig

import minhub_py
from minhub_py.analysis.hidden_states import LayerStates

CASES = {name: cases for cases in ENCODERS.values() for name in cases.cases}
NAMES = [
    "albert",
    "albert:groups",
    "bert",
    "deberta",
    "deberta-v2:conv",
    "deberta-v2:separate",
    "nomic_bert",
    "gte",
    "eurobert:kv-heads",
]
IDS = torch.arange(7, 37).unsqueeze(0)


@pytest.fixture(params=NAMES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    """The reference with `output_hidden_states` and `output_attentions`, and our model of its file."""
    settings = AutoConfig.for_model(
        **CASES[request.param].settings(request.param), attn_implementation="eager"
    )
    reference = transformers.AutoModel.from_config(settings, attn_implementation="eager").eval()
    draw(reference)
    folder = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    return reference, minhub_py.from_pretrained(folder, device="cpu")


@torch.no_grad()
def test_hidden_states_and_attention_equal_transformers(pair: tuple[Any, Any]) -> None:
    reference, model = pair
    expected = reference(IDS, output_hidden_states=True, output_attentions=True)
    states = LayerStates(model, "test")
    assert states.count == len(expected.attentions)
    result = states.compute(IDS, range(states.count + 1))
    # The embeddings of ALBERT are recorded after their projection, which transformers applies
    # within the encoder.
    first = 1 if model.config.TITLE == "BERT" and reference.config.model_type == "albert" else 0
    for layer in range(first, states.count + 1):
        wanted = expected.hidden_states[layer]
        assert (result[layer] - wanted).abs().max() <= 5e-5 * wanted.abs().max(), layer
    weights = minhub_py.attention_weights(model, None, IDS[0].tolist())
    assert weights.layers == list(range(1, states.count + 1))
    assert (weights.weights - torch.cat(expected.attentions)).abs().max() <= 5e-5


@torch.no_grad()
def test_an_intervention_changes_its_layer_only(pair: tuple[Any, Any]) -> None:
    _, model = pair
    ids = IDS[0].tolist()
    before = minhub_py.activations(model, None, ids, at="layers.*.resid")
    changed = minhub_py.intervene(model, at="layers.2.mlp", how="zero")
    after = minhub_py.activations(
        changed, None, ids, at=["layers.*.resid", "layers.2.mlp", "layers.1.mlp"]
    )
    assert torch.equal(after["layers.1.resid"], before["layers.1.resid"])
    assert not torch.equal(after["layers.2.resid"], before["layers.2.resid"])
    assert after["layers.2.mlp"].abs().max() == 0
    assert after["layers.1.mlp"].abs().max() > 0
