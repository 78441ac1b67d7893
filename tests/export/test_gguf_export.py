"""Files written as GGUF, read again: the same settings and weights."""

from pathlib import Path

import pytest
import torch
from references import ids_of, random_model

from minhub_py import from_pretrained, save_pretrained
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.export.gguf import write_gguf

# One of each architecture of GGUF, and those with settings of their own.
WRITTEN = (
    "gpt2", "llama-biases", "llama-yarn", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text-usual", "gpt_neox", "phi",
    "phi3", "phi3-part", "phi3-short", "smollm3", "granite", "granitemoehybrid", "olmo2", "olmo3",
    "olmo3-scaled", "exaone4-everywhere", "ernie4_5", "seed_oss", "internlm3",
    "hunyuan_v1_dense", "starcoder2", "glm4", "cohere", "cohere2", "stablelm-norms", "stablelm-parallel",
)  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", WRITTEN)
def test_written_files_have_the_settings_and_weights(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    save_pretrained(model, tmp_path / "hub")
    write_gguf(Checkpoint(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    again = from_pretrained(tmp_path / "model.gguf", device="cpu")
    ids = ids_of(1, 30)
    expected = model(ids)
    assert (again(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()


REFUSED = {
    "exaone4": "windows in models with 64 layers only",
    "ernie4_5-biases": "has no biases",
    "seed_oss-biases": "biases of q, k and v only",
    "olmo3-types": "has no biases of attention",
    "cohere-norms": "shares the weight of its embedding and head",
    "smollm3-layers": "no rotary embedding in each fourth layer only",
    "granitemoehybrid-no-positions": "has rotary embeddings in all layers",
    "mistral-window": "llama.cpp's llama has no setting for windows of this model",
    "starcoder2-window": "has no setting for windows",
    "llama-gelu": "has no setting for hidden_act",
    "opt": "a model of the type opt cannot be written as GGUF; possible are",
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_gguf_lacks_are_rejected(name: str, tmp_path: Path) -> None:
    save_pretrained(random_model(name), tmp_path / "hub")
    with pytest.raises(ValueError, match=REFUSED[name]):
        write_gguf(Checkpoint(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]
