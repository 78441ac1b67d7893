"""The texts of single tokens."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minhub_py.checkpoints.tokenizers.token_texts import token_texts


def tokenizers() -> list[Tokenizer]:
    """A byte-level tokenizer, and one whose decoder removes the space at the beginning."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(
        models.BPE({token: id for id, token in enumerate([*letters, "Ġthe", "Ġa"])}, [])
    )
    byte_level.decoder = decoders.ByteLevel()
    words = Tokenizer(models.WordLevel({f"▁word{id}": id for id in range(100)}, "▁word0"))
    words.decoder = decoders.Metaspace()
    return [byte_level, words]


@pytest.mark.parametrize("count", [1, 100])
def test_a_token_has_the_text_that_it_has_within_a_text(count: int) -> None:
    for tokenizer in tokenizers():
        ids = [*range(count), *range(count), count // 2]
        expected = []
        for id in ids:
            one, two = (
                tokenizer.decode([id] * times, skip_special_tokens=False) for times in (1, 2)
            )
            expected.append(two[len(one) :])
        assert token_texts(tokenizer, ids) == token_texts(tokenizer, ids) == expected
    assert expected[0] == " word0"
