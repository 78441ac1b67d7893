"""Tokenizers from files of sentencepiece, tiktoken and Mistral, compared with these libraries."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from sentencepiece_files import JOINED, LLAMA, OWN, texts, train
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import OpenAIGPTTokenizer

from minhub_py import tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers import tiktoken as tiktoken_files
from minhub_py.checkpoints.tokenizers.tiktoken import alphabet

T5 = {"model_type": "unigram", "bos_id": -1, "pad_id": 0, "eos_id": 1, "unk_id": 2}
# Each with its usual file name.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2": ("tokenizer.model", LLAMA),
    "Gemma": ("tokenizer.model", {**LLAMA, "add_dummy_prefix": False, "user_defined_symbols": OWN}),
    "BPE without bytes": ("tokenizer.model", {"model_type": "bpe"}),
    "T5": ("spiece.model", T5),
    "unigram with bytes": (
        "tokenizer.model",
        {**LLAMA, "model_type": "unigram", "user_defined_symbols": OWN[3:]},
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A folder with only a model file, and sentencepiece's processor of it."""
    name, options = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    (folder / name).write_bytes(train(**options))
    return folder, sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_sentencepiece_models_match_the_library(kind: tuple[Path, Any]) -> None:
    folder, reference = kind
    ours = tokenizer_from_pretrained(str(folder))
    again = Tokenizer.from_str(ours.to_str())
    model = json.loads(ours.to_str())["model"]["type"]
    has_table = "Precompiled" in ours.to_str()
    ties = 0
    for text in texts(1500):
        actual, expected = ids_of(ours, text), reference.encode(text)
        assert ids_of(again, text) == actual
        if has_table and ours.normalizer.normalize_str(text) != reference.normalize(text):
            # The only known difference: the library applies the character map to graphemes.
            assert any(part in text for part in JOINED) or not text.isascii()
            continue
        if actual != expected:
            # Ties between splits: SentencePiece adds scores in 32 bits, the library in 64.
            assert model == "Unigram", text
            scores = (sum(map(reference.get_score, ids)) for ids in (actual, expected))
            assert next(scores) == pytest.approx(next(scores), abs=1e-3), text
            ties += 1
        if "\u2581" not in text:
            decoded = ours.decode(expected, skip_special_tokens=False)
            assert decoded.replace("<unk>", " \u2047 ") == reference.decode(expected)
    assert ties < 150


def test_bos_and_eos_follow_settings_and_conventions(tmp_path: Path) -> None:
    """By default, as in the reference implementations: <s> before for Llama, </s> after for T5."""
    (tmp_path / "spiece.model").write_bytes(train(**T5))
    t5 = tokenizer_from_pretrained(str(tmp_path))
    assert t5.encode("self").ids == [*ids_of(t5, "self"), 1]
    assert t5.encode("self", "is").ids == [*ids_of(t5, "self"), 1, *ids_of(t5, "is"), 1]
    assert [t5.token_to_id(f"<extra_id_{i}>") for i in (99, 1, 0)] == [1000, 1098, 1099]
    assert t5.get_vocab_size() == 1100
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"extra_ids": 0, "add_eos_token": False})
    )
    plain = tokenizer_from_pretrained(str(tmp_path))
    assert (plain.encode("self").ids, plain.get_vocab_size()) == (ids_of(t5, "self"), 1000)
    (tmp_path / "spiece.model").unlink()

    (tmp_path / "tokenizer.model").write_bytes(train(**LLAMA))
    for settings, before, after in (
        ({}, [1], []),
        ({"add_bos_token": True, "add_eos_token": True, "bos_token": {"content": "<s>"}}, [1], [2]),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": False, "add_eos_token": True, "eos_token": "<unk>"}, [], [0]),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        llama = tokenizer_from_pretrained(str(tmp_path))
        assert llama.encode(" self").ids == [*before, *ids_of(llama, " self"), *after]
        # a special token in the text is one token
        assert llama.encode("<s>").ids == [*before, 1, *after]
        assert llama.decode(llama.encode(" self").ids) == " self"
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": false}')
    assert ids_of(tokenizer_from_pretrained(str(tmp_path)), " self") == ids_of(llama, "self")
    (tmp_path / "added_tokens.json").write_text('{"<pad>": 1000}')
    assert tokenizer_from_pretrained(str(tmp_path)).encode("<pad>").ids == [1, 1000]
    (tmp_path / "tokenizer_config.json").write_text(
        '{"add_bos_token": true, "bos_token": "<begin>"}'
    )
    with pytest.raises(
        ValueError, match="add_bos_token is set, but '<begin>' is not in the vocabulary"
    ):
        tokenizer_from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "char"}, "has word or character pieces, which is not supported"),
        ({"treat_whitespace_as_suffix": True}, "has spaces after words, which"),
    ],
)
def test_unsupported_sentencepiece_settings_are_rejected(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(train(hard_vocab_limit=False, **options))
    with pytest.raises(ValueError, match=rf"tokenizer\.model {message}.*use a tokenizer\.json"):
        tokenizer_from_pretrained(str(tmp_path))


# Meta's and Qwen's, as published.
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.fixture(scope="module")
def ranks(bpe_folder: Path) -> list[bytes]:
    """A byte-level BPE's tokens, as bytes, in the order of training."""
    vocabulary = json.loads((bpe_folder / "vocab.json").read_text(encoding="utf-8"))
    byte_of = {letter: byte for byte, letter in alphabet().items()}
    learnt = [
        bytes(byte_of[letter] for letter in token)
        for token in vocabulary
        if token != "<|endoftext|>"
    ]
    # no merges produce it, but it is a complete word
    return [*learnt[:300], b" zqzqzq", *learnt[300:]]


def write_ranks(path: Path, ranks: list[bytes]) -> None:
    path.write_bytes(
        b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks))
    )


def write_tekken(path: Path, ranks: list[bytes], special: list[str] | None = None) -> None:
    config = {
        "pattern": TEKKEN_WORDS,
        "default_vocab_size": len(ranks) - 9 + 30,
        "default_num_special_tokens": 30,
    }
    vocabulary = [
        {"rank": i, "token_bytes": base64.b64encode(token).decode()}
        for i, token in enumerate(ranks)
    ]
    content: dict[str, Any] = {"config": config, "vocab": vocabulary}
    if special is not None:
        content["special_tokens"] = [
            {"rank": i, "token_str": token} for i, token in enumerate(special)
        ]
    path.write_text(json.dumps(content))


def equals_tiktoken(ours: Tokenizer, ranks: list[bytes], pattern: str, shift: int = 0) -> None:
    reference = tiktoken.Encoding(
        "test",
        pat_str=pattern,
        mergeable_ranks={token: rank for rank, token in enumerate(ranks)},
        special_tokens={},
    )
    again = Tokenizer.from_str(ours.to_str())
    for text in texts(1500):
        composed = ours.normalizer.normalize_str(text) if ours.normalizer else text
        expected = [shift + id for id in reference.encode(composed)]
        assert ids_of(ours, text) == ids_of(again, text) == expected, text
        assert ours.decode(expected) == composed


def test_llama3_tokenizer_model_matches_tiktoken(
    tmp_path: Path, ranks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "tokenizer.model", ranks)
    with pytest.raises(
        ValueError, match=r"has 600 tokens instead of Llama 3's 128,000. .* use a tokenizer\.json"
    ):
        tokenizer_from_pretrained(str(tmp_path))
    # Llama 3's number takes half a minute
    monkeypatch.setattr(tiktoken_files, "LLAMA3_TOKENS", 600)
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    equals_tiktoken(tokenizer, ranks, LLAMA3_WORDS)
    n = len(ranks)
    assert tokenizer.get_vocab_size() == n + 256
    special_tokens = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        2: "<|reserved_special_token_0|>",
        9: "<|eot_id|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        255: "<|reserved_special_token_247|>",
    }
    assert {
        number: tokenizer.id_to_token(n + number) for number in special_tokens
    } == special_tokens
    assert tokenizer.encode("a<|eot_id|>").ids == [n, *ids_of(tokenizer, "a"), n + 9]
    assert tokenizer.decode(tokenizer.encode("a<|eot_id|>").ids) == "a"

    named = {str(n + i): {"content": f"<|mine_{i}|>", "special": True} for i in range(3)}
    settings = {"added_tokens_decoder": named, "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    own = tokenizer_from_pretrained(str(tmp_path))
    assert (own.get_vocab_size(), own.encode("<|mine_2|>").ids) == (n + 3, [n + 2])


def test_qwen_tiktoken_matches_tiktoken(tmp_path: Path, ranks: list[bytes]) -> None:
    write_ranks(tmp_path / "qwen.tiktoken", ranks)
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    equals_tiktoken(tokenizer, ranks, QWEN_WORDS)
    n = len(ranks)
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|><|extra_204|>").ids == [
        n,
        n + 1,
        n + 2,
        n + 207,
    ]
    assert ids_of(tokenizer, "e\u0301") == ids_of(tokenizer, "é")


def test_tekken_matches_tiktoken(tmp_path: Path, ranks: list[bytes]) -> None:
    write_tekken(tmp_path / "tekken.json", ranks)
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    # the file lists more tokens than the model has
    equals_tiktoken(tokenizer, ranks[:-9], TEKKEN_WORDS, 30)
    # Mistral begins each text
    assert tokenizer.encode("<unk></s>[INST]<SPECIAL_29>").ids == [1, 0, 2, 3, 29]
    write_tekken(tmp_path / "tekken.json", ranks, ["<pad>", "<begin>"])
    named = tokenizer_from_pretrained(str(tmp_path))
    assert named.encode("<begin><SPECIAL_2>").ids == [1, 2]
    (tmp_path / "tokenizer_config.json").write_text(
        '{"add_bos_token": true, "bos_token": "<begin>"}'
    )
    assert tokenizer_from_pretrained(str(tmp_path)).encode("<pad>").ids == [1, 0]


def test_gpt_has_words_in_lower_case(tmp_path: Path) -> None:
    """vocab.json and merges.txt of openai-gpt, compared with transformers' class."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts(300)), trainer)
    tokenizer.model.save(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "openai-gpt"}))
    files = {
        name: str(tmp_path / f"{name}.{end}")
        for name, end in (("vocab", "json"), ("merges", "txt"))
    }
    reference = OpenAIGPTTokenizer(**files)
    ours = tokenizer_from_pretrained(str(tmp_path))
    for text in [*texts(100), "It's HERE, Na\u00efve!", "\u6f22 \u2603"]:
        ids = ours.encode(text).ids
        assert ids == reference.encode(text)
        assert ours.decode(ids, skip_special_tokens=False) == reference.decode(ids)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nqq qq\n")
    with pytest.raises(ValueError, match="the vocabulary lacks 'qqqq'"):
        tokenizer_from_pretrained(str(tmp_path))
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ValueError, match="copy its merges.txt"):
        tokenizer_from_pretrained(str(tmp_path))


def test_tokenizer_json_takes_precedence_over_other_formats(
    tmp_path: Path, ranks: list[bytes], bpe_folder: Path
) -> None:
    write_tekken(tmp_path / "tekken.json", ranks)
    write_ranks(tmp_path / "qwen.tiktoken", ranks)
    assert tokenizer_from_pretrained(str(tmp_path)).token_to_id("<|im_end|>") == len(ranks) + 2
    (tmp_path / "tokenizer.model").write_bytes(train(**LLAMA))
    assert tokenizer_from_pretrained(str(tmp_path)).token_to_id("<0x00>") == 3
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(bpe_folder / name, tmp_path)
    assert tokenizer_from_pretrained(str(tmp_path)).token_to_id("<|endoftext|>") == 599
    Tokenizer.from_str(tokenizer_from_pretrained(str(bpe_folder)).to_str()).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "vocab.json").write_text("{")
    assert tokenizer_from_pretrained(str(tmp_path)).token_to_id("<|endoftext|>") == 599
