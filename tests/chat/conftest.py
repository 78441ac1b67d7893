"""Fixtures of the tests of chats."""

from pathlib import Path

import pytest
from chat_models import chat_tokenizer, write_dialogpt
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return chat_tokenizer()


@pytest.fixture(scope="module")
def bot(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return write_dialogpt(tmp_path_factory.mktemp("dialogpt") / "bot", tokenizer)
