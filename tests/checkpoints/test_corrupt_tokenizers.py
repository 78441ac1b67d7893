"""Corrupt tokenizer files load correctly or are rejected with a short message."""

import base64
import io
import json
import random
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from corruption import JUNK, Trials, brief, damage, to_json

import minhub_py

pytestmark = pytest.mark.usefixtures("bounded_memory")

TEXT = "ab a b\n\u00e9"


def use_tokenizer(folder: Path) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    ids = tokenizer.encode(TEXT).ids
    assert all(isinstance(id, int) for id in ids)
    assert isinstance(tokenizer.decode(ids), str)


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    """A tokenizer like GPT-2's, with two merges."""
    folder = tmp_path / "bpe"
    folder.mkdir()
    symbols = ["a", "b", "\u0120", "\u010a", "\u00c3", "\u00a9", "ab", "\u0120a", "<|endoftext|>"]
    (folder / "vocab.json").write_text(
        json.dumps({symbol: id for id, symbol in enumerate(symbols)})
    )
    (folder / "merges.txt").write_text("#version: 0.2\na b\n\u0120 a\n", encoding="utf-8")
    use_tokenizer(folder)
    return folder


def test_corrupt_tokenizer_json_is_rejected_or_works(bpe: Path) -> None:
    minhub_py.tokenizer_from_pretrained(str(bpe)).save(str(bpe / "tokenizer.json"))
    complete = (bpe / "tokenizer.json").read_bytes()
    rng = random.Random("tokenizer.json")
    trials = Trials(bpe, use_tokenizer)
    for _ in range(500):
        content, junk = json.loads(complete), rng.choice(JUNK)
        container = content
        path = []
        while isinstance(container, dict | list) and container and (not path or rng.random() < 0.7):
            keys = list(container) if isinstance(container, dict) else range(len(container))
            parent, key = container, rng.choice(keys)
            container = parent[key]
            path.append(key)
        parent[key] = "<junk>"
        label, data = f"{path} = {brief(junk)}", to_json(content, junk).encode()
        if rng.random() < 0.3:
            label, data = damage(rng, complete, len(complete))
        trials.run("tokenizer.json", data, label)
    trials.end(500, 10)


def prefixed_bpe(prefix: str, tokens: list[str], merge: Any) -> dict[str, Any]:
    model = {"type": "BPE", "continuing_subword_prefix": prefix, "merges": [merge]}
    return {
        "added_tokens": [],
        "model": model | {"vocab": {token: id for id, token in enumerate(tokens)}},
    }


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("prefix", "right", "merged", "fits"),
    [
        ("a", "\u65e5", "x\u65e5", False),
        ("ab", "\u65e5", "x\u65e5", False),
        ("abcd", "\u65e5", "x\u65e5", False),
        ("\u00e9", "\u65e5\u672c", "x\u65e5", False),
        ("##", "y", "xy", False),
        ("##", "##y", "xy", True),
        ("\u00e9", "\u00e9\u65e5", "x\u65e5", True),
        ("", "\u65e5", "x\u65e5", True),
    ],
)
def test_merges_inside_a_character_are_rejected(
    prefix: str, right: str, merged: str, fits: bool, joined: bool, escaped: bool, tmp_path: Path
) -> None:
    """The library would abort the process."""
    merge = f"x {right}" if joined else ["x", right]
    text = json.dumps(prefixed_bpe(prefix, ["x", right, merged], merge))
    if escaped:
        text = text.replace("continuing_subword", "\\u0063ontinuing\\u005Fsubword")
    (tmp_path / "tokenizer.json").write_text(text)
    if fits:
        tokenizer = minhub_py.tokenizer_from_pretrained(str(tmp_path))
        assert tokenizer.encode("x" + right.removeprefix(prefix)).ids == [2]
        return
    with pytest.raises(
        ValueError,
        match=(
            "tokenizer.json is not a valid tokenizer .*does not fit the continuing_subword_prefix"
        ),
    ):
        minhub_py.tokenizer_from_pretrained(str(tmp_path))


def test_duplicate_keys_do_not_hide_a_prefix_of_continued_words(tmp_path: Path) -> None:
    """The library can use either value of a duplicate key."""
    text = json.dumps(prefixed_bpe("ab", ["x", "\u65e5", "x\u65e5"], ["x", "\u65e5"]))
    for duplicate in ('"merges": [],', '"continuing_subword_prefix": null,'):
        for changed in (
            text.replace('"type"', duplicate + '"type"'),
            text.replace('"vocab"', duplicate + '"vocab"'),
        ):
            (tmp_path / "tokenizer.json").write_text(changed)
            with pytest.raises(ValueError, match="does not fit the continuing_subword_prefix"):
                minhub_py.tokenizer_from_pretrained(str(tmp_path))


def test_a_character_map_with_a_large_table_is_rejected(tmp_path: Path) -> None:
    """The library would allocate 2 GB, and abort if this fails."""
    charsmap = base64.b64encode(b"\xff\xff\xff\x7f" + bytes(40)).decode()
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    content = {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "model": unigram,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match="tokenizer.json is not a valid tokenizer .its map of characters is cut"
    ):
        minhub_py.tokenizer_from_pretrained(str(tmp_path))


def test_a_merge_that_forms_no_token_is_rejected(bpe: Path) -> None:
    """The library panics, with a BaseException."""
    minhub_py.tokenizer_from_pretrained(str(bpe)).save(str(bpe / "tokenizer.json"))
    content = json.loads((bpe / "tokenizer.json").read_text())
    content["model"] |= {"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    content["added_tokens"] = []
    (bpe / "tokenizer.json").unlink()
    (bpe / "vocab.json").write_text('["a", "b"]')
    (bpe / "merges.txt").write_text("a b")
    with pytest.raises(ValueError, match="vocab.json and merges.txt are inconsistent"):
        minhub_py.tokenizer_from_pretrained(str(bpe))
    (bpe / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="tokenizer.json is not a valid tokenizer"):
        minhub_py.tokenizer_from_pretrained(str(bpe))


def test_corrupt_vocabularies_and_merges_are_rejected_or_work(bpe: Path) -> None:
    rng = random.Random("vocab.json")
    trials = Trials(bpe, use_tokenizer)
    for name in ("vocab.json", "merges.txt"):
        complete = (bpe / name).read_bytes()
        for _ in range(200):
            label, data = damage(rng, complete, len(complete))
            trials.run(name, data, f"{name}: {label}")
        (bpe / name).write_bytes(complete)
    for lines in (
        "a",
        "a b c",
        " ",
        "a  b",
        "a b\r\n",
        "a q",
        "q a",
        "b b",
        "#",
        "\0 \0",
        "\x1b[2J\n\n a",
    ):
        trials.run("merges.txt", lines.encode(), f"merges {lines!r}")
    trials.end(400, 50)


@pytest.fixture(scope="module")
def model_files() -> dict[str, bytes]:
    """Small tokenizers in other formats: sentencepiece's two types, lines of ranks, and
    tekken.json.
    """
    files = {}
    for name, kind in (("tokenizer.model", "bpe"), ("spiece.model", "unigram")):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab a b", "b ab", "a \u00e9"]),
            model_writer=written,
            vocab_size=264,
            model_type=kind,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
            normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc",
        )
        files[name] = written.getvalue()
    ranks = [
        base64.b64encode(token) for token in (*(bytes([byte]) for byte in range(256)), b"ab", b" a")
    ]
    files["qwen.tiktoken"] = b"".join(
        b"%s %d\n" % (token, rank) for rank, token in enumerate(ranks)
    )
    config = {"pattern": r"\s?\w+|.", "default_vocab_size": 261, "default_num_special_tokens": 3}
    vocabulary = [{"rank": rank, "token_bytes": token.decode()} for rank, token in enumerate(ranks)]
    special = [
        {"rank": rank, "token_str": token} for rank, token in enumerate(["<unk>", "<s>", "</s>"])
    ]
    files["tekken.json"] = json.dumps(
        {"config": config, "special_tokens": special, "vocab": vocabulary}
    ).encode()
    return files


@pytest.mark.parametrize(
    "name", ["tokenizer.model", "spiece.model", "qwen.tiktoken", "tekken.json"]
)
def test_corrupt_model_files_are_rejected_or_work(
    name: str, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    complete = model_files[name]
    rng = random.Random(name)
    trials = Trials(tmp_path, use_tokenizer)
    trials.run(name, complete, "whole")
    assert trials.loaded == 1
    for _ in range(300):
        label, data = damage(rng, complete, len(complete))
        trials.run(name, data, label)
    endless = b"\n" + b"\xff" * 20  # an endless number
    for junk in (b"", b"\n", b"\n\n", endless, endless[1:], b"\n\x03abc", b"IQ== 0"):
        trials.run(name, junk, repr(junk))
    trials.end(300)


def test_long_tokens_are_rejected(model_files: dict[str, bytes], tmp_path: Path) -> None:
    """Each split of a token is a possible merge, and the library frees a unigram's trie
    recursively.
    """
    size = 200_000
    encoded = base64.b64encode(b"a" * size)
    piece = b"\x0a\xc0\x9a\x0c" + b"a" * size  # field 1, 200,000 bytes
    tekken = json.loads(model_files["tekken.json"])
    tekken["vocab"].append({"rank": 258, "token_bytes": encoded.decode()})
    tekken["config"]["default_vocab_size"] += 1
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * size, 0.0]]}
    files = {
        "tokenizer.model": model_files["tokenizer.model"] + b"\x0a\xc4\x9a\x0c" + piece,
        "qwen.tiktoken": model_files["qwen.tiktoken"] + encoded + b" 258\n",
        "tekken.json": json.dumps(tekken).encode(),
        "tokenizer.json": json.dumps({"added_tokens": [], "model": unigram}).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} .*token of 200,000 characters"):
            minhub_py.tokenizer_from_pretrained(str(tmp_path))
        (tmp_path / name).unlink()


def test_wrong_types_in_tekken_files_are_rejected_or_harmless(
    model_files: dict[str, bytes], tmp_path: Path
) -> None:
    trials = Trials(tmp_path, use_tokenizer)
    paths: list[list[Any]] = [
        ["config"],
        ["vocab"],
        ["special_tokens"],
        ["vocab", 5],
        ["special_tokens", 1],
    ]
    paths += [
        ["config", name] for name in ("pattern", "default_vocab_size", "default_num_special_tokens")
    ]
    paths += [["vocab", 7, name] for name in ("rank", "token_bytes")]
    paths += [["special_tokens", 1, name] for name in ("rank", "token_str")]
    for path in paths:
        for junk in JUNK:
            content = json.loads(model_files["tekken.json"])
            parent = reduce(lambda value, key: value[key], path[:-1], content)
            parent[path[-1]] = "<junk>"
            trials.run("tekken.json", to_json(content, junk).encode(), f"{path} = {brief(junk)}")
    trials.end(200, 5)


@pytest.mark.parametrize("merges", [True, False], ids=["bpe", "characters"])
def test_wrong_types_in_a_vocabulary_are_rejected(merges: bool, bpe: Path) -> None:
    if not merges:
        (bpe / "merges.txt").unlink()
    trials = Trials(bpe, use_tokenizer)
    complete = (bpe / "vocab.json").read_bytes()
    base = json.loads(complete)
    for junk in JUNK:
        trials.run(
            "vocab.json", to_json({**base, "a": "<junk>"}, junk).encode(), f"a = {brief(junk)}"
        )
        trials.run(
            "vocab.json",
            to_json(["a", "b", "<junk>"], junk).encode(),
            f"list with {brief(junk)}",
            ["merges"],
        )
        trials.run("vocab.json", junk.encode(), f"all of it {brief(junk)}")
    (bpe / "vocab.json").write_bytes(complete)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for junk in JUNK:
            trials.run(
                name,
                f'{{"eos_token": {junk}, "unk_token": {{"content": {junk}}}}}'.encode(),
                brief(junk),
                ["vocab"],
            )
            trials.run(name, junk.encode(), f"all of it {brief(junk)}")
        (bpe / name).unlink()
    trials.end(200, 0)


@pytest.mark.parametrize("name", ["tokenizer.model", "qwen.tiktoken"])
def test_merges_that_need_much_memory_are_rejected(
    name: str, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    """A token of n equal letters can be merged in about n ways."""
    tokens = [b"~" * size for size in range(2, 1001)]
    if name == "tokenizer.model":
        pieces = [b"\x0a" + varint(len(token)) + token for token in (b"~", *tokens)]
        added = b"".join(b"\x0a" + varint(len(piece)) + piece for piece in pieces)
    else:
        added = b"".join(
            b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens, 258)
        )
    (tmp_path / name).write_bytes(model_files[name] + added)
    with pytest.raises(
        ValueError, match=f"{name} .*the merges of its tokens have more than 100,000,000 characters"
    ):
        minhub_py.tokenizer_from_pretrained(str(tmp_path))


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def test_many_added_tokens_are_added_together(bpe: Path) -> None:
    """Added in one call: the library prepares its search at each call, so that single calls take
    minutes.
    """
    (bpe / "added_tokens.json").write_text(json.dumps({f"<t{i}>": 9 + i for i in range(50_000)}))
    assert minhub_py.tokenizer_from_pretrained(str(bpe)).token_to_id("<t49999>") == 50_008
    (bpe / "added_tokens.json").write_text(json.dumps({"<a>": 9, "<b>": 11}))
    with pytest.raises(
        ValueError, match="gives the added token '<b>' the ID 11, which is not the next ID"
    ):
        minhub_py.tokenizer_from_pretrained(str(bpe))


def test_messages_are_short(bpe: Path) -> None:
    """A long token, and a long symbol, are cut in a message."""
    (bpe / "merges.txt").write_text("a" * 100_000 + " b\n")
    with pytest.raises(ValueError, match="the vocabulary lacks") as caught:
        minhub_py.tokenizer_from_pretrained(str(bpe))
    assert len(str(caught.value)) < 500
    for name in ("vocab.json", "merges.txt"):
        (bpe / name).unlink()
    (bpe / "vocab.dat").write_text("a\nb\n")
    (bpe / "rules.dat").write_text("a" * 100_000 + " b\n")
    with pytest.raises(ValueError, match="lacks a symbol of the pair") as caught:
        minhub_py.tokenizer_from_pretrained(str(bpe))
    assert len(str(caught.value)) < 500
