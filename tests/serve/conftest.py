"""Fixtures of the tests of servers."""

import json
from pathlib import Path

import httpx2
import pytest
import torch
from served_models import CONTEXT, RECOMMENDED, large, served, write_checkpoint

from minhub_py import gpt2, lstm
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.serve.models import Models, ServedModel
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(0)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    model = gpt2(
        vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, eos_token_id=vocab_size - 1
    )
    path = write_checkpoint(tmp_path_factory.mktemp("serve"), bpe_folder, large(model))
    (path / "generation_config.json").write_text(json.dumps(RECOMMENDED), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory, bpe_folder: Path) -> Path:
    torch.manual_seed(1)
    vocab_size = read_tokenizer(bpe_folder).get_vocab_size()
    return write_checkpoint(
        tmp_path_factory.mktemp("serve"), bpe_folder, lstm(vocab_size=vocab_size, hidden_size=16, embedding_size=16)
    )


@pytest.fixture(scope="module")
def main_model(folder: Path):
    model = served("tiny", folder)
    yield model
    model.engine.close()


@pytest.fixture(scope="module")
def address(main_model: ServedModel, recurrent: Path):
    """A server with two models, in a thread."""
    models = Models([main_model, served("other", recurrent)])
    with BackgroundServer(Server(models, max_body=100_000, read_timeout=0.3), grace=0.2) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str):
    import openai  # takes a second to import

    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(address: str):
    with httpx2.Client(base_url=address, timeout=60) as http:
        yield http
