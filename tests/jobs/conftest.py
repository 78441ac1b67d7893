"""Fixtures of the tests of jobs."""

import pytest
import torch
from job_runs import LETTERS

from minhub_py import gpt2, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import characters


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny character-level GPT-2."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    network = gpt2(vocab_size=len(LETTERS), n_positions=16, n_embd=16, n_layer=2, n_head=2)
    save_pretrained(network, folder, characters(LETTERS))
    return str(folder)
