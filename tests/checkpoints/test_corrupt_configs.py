"""Corrupt settings load correctly or are rejected with a short message."""

import json
import math
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from corruption import (
    IDS,
    JUNK,
    NAMES,
    PARTS,
    TINY,
    Trials,
    bad_message,
    brief,
    damage,
    load_rightly,
    save,
    tensor_names,
    to_json,
)

import minhub_py
from minhub_py.models.registry import ARCHITECTURES

pytestmark = pytest.mark.usefixtures("bounded_memory")
CONFIG_ROUNDS = {"gpt2": 250, "gptneo": 250, "lstm": 1000, "llama": 500}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_oversized_settings_are_rejected(name: str, folder: Path) -> None:
    (folder / name).write_text(" " * 10_000_000 + "{}")
    with pytest.raises(
        ValueError, match=f"{name} has 10,000,002 bytes; the maximum is 10,000,000: use another"
    ):
        minhub_py.from_pretrained(str(folder))


def test_messages_shorten_long_lists(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0] * 10_001}))
    with pytest.raises(
        ValueError,
        match=r"generation_config\.json: .*eos_token_id cannot be \[0, 0, 0, 0, 0, 0, \.\.\.\]",
    ):
        minhub_py.from_pretrained(str(folder))


@PARTS
def test_corrupt_settings_are_rejected_or_fit_the_weights(
    family: str, folder: Path, parts: int
) -> None:
    """Every setting with every value of JUNK, or with every fourth; then random pairs, unknown
    names, missing settings, and corrupt text.
    """
    rng = random.Random(f"config of {family}")
    trials = Trials(folder, load_rightly)
    settings = json.loads((folder / "config.json").read_text())
    names = {*tensor_names(folder), *settings}
    others = [
        "pruned_heads",
        "attention_layers",
        "quantization_config",
        "chunk_size_feed_forward",
        "_name",
        "n_ctx",
    ]
    for number, setting in enumerate([*settings, *others]):
        for junk in JUNK[number % parts :: parts]:
            text = to_json({**settings, setting: "<junk>"}, junk)
            trials.run(
                "config.json", text.encode(), f"{setting} = {brief(junk)}", {setting, *names}
            )
    for junk in JUNK:
        trials.run("config.json", junk.encode(), f"all of it {brief(junk)}", ["model_type"])
    for data in (
        b"",
        b"\xff\xfe",
        b"\xef\xbb\xbf" + json.dumps(settings).encode(),
        json.dumps(settings).encode("utf-16"),
    ):
        trials.run("config.json", data, repr(data[:20]), names)
    for _ in range(CONFIG_ROUNDS[family] // parts):
        label, data, word = mutate_settings(rng, dict(settings))
        trials.run("config.json", data, label, {word, *names})
    trials.end(1000 // parts, 100 // parts)


def mutate_settings(rng: random.Random, settings: dict[str, Any]) -> tuple[str, bytes, str]:
    name, other = rng.sample(list(settings), 2)
    junk = rng.choice(JUNK)
    kind = rng.randrange(5)
    if kind == 0:
        settings[name] = "<junk>"
        settings[other] = rng.choice((1, 2, 3, 4, 7, 16, 2**20, 0.5, True, None, "gelu"))
        return (
            f"{name} = {brief(junk)}, {other} = {settings[other]}",
            to_json(settings, junk).encode(),
            name,
        )
    if kind == 1:
        new = rng.choice((*NAMES, name.upper(), "rope_theta", "_x"))
        settings[new] = "<junk>"
        return f"unknown {brief(new)!r} = {brief(junk)}", to_json(settings, junk).encode(), new
    if kind == 2:
        del settings[name], settings[other]
        return f"without {name} and {other}", json.dumps(settings).encode(), name
    if kind == 3:
        twice = json.dumps(settings)[:-1] + f", {json.dumps(name)}: {junk}}}"
        return f"{name} again, as {brief(junk)}", twice.encode(), name
    text = json.dumps(settings).encode()
    label, data = damage(rng, text, len(text))
    return label, data, "that this implementation does not know"  # of a corrupt name


ATTENTION_TYPES = (
    '[[["global"], -1], [["global"], 3]]',
    '[[["global"], 2.0]]',
    '[[["global"], true], [["local"], true]]',
    '[[["local", 1], 1]]',
    '[[[null, "local"], 1]]',
    '[["global", 2]]',
    '[[{"global": 1, "local": 2}, 1]]',
    '[[["global"], 1000000000000]]',
    "[[[], 1000000000000]]",
    '[[[], 1000000000000], [["global"], 2]]',
    '[[["global"], 2, 3]]',
    '[[[["global"]], 2]]',
    '[[["global"], "2"]]',
    '[[["global"], 1e400]]',
    '[[["global"], NaN]]',
    '{"global": 2}',
    '"global"',
    "[[], []]",
)


@pytest.mark.parametrize("types", ATTENTION_TYPES)
def test_invalid_attention_types_are_rejected_by_name(types: str, tmp_path: Path) -> None:
    folder = save("gptneo", tmp_path / "gptneo")
    settings = json.loads((folder / "config.json").read_text())
    del settings["attention_layers"]
    (folder / "config.json").write_text(to_json({**settings, "attention_types": "<junk>"}, types))
    with pytest.raises(ValueError, match="attention_types") as caught:
        minhub_py.from_pretrained(str(folder))
    assert not bad_message(caught.value, ["attention_types"])


@pytest.mark.parametrize("value", [-1, 1.5, math.nan, math.inf])
def test_rates_out_of_range_are_rejected_by_name(family: str, value: float) -> None:
    """Probabilities are 0 to 1, an epsilon and a standard deviation at least 0; NaN is rejected."""
    for field in fields(ARCHITECTURES[family].Config):
        if field.type is float and not (
            value == 1.5 and not field.name.endswith(("dropout", "pdrop"))
        ):
            with pytest.raises(ValueError, match=field.name):
                getattr(minhub_py, family)(**TINY[family], **{field.name: value})


@PARTS
def test_corrupt_generation_settings_are_rejected_or_harmless(
    family: str, folder: Path, parts: int
) -> None:
    trials = Trials(folder, lambda folder: minhub_py.from_pretrained(str(folder))(IDS))
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "temperature")
    for number, junk in enumerate(JUNK):
        for name in names[number % parts :: parts]:
            text = f'{{"{name}": {junk}}}'.encode()
            trials.run("generation_config.json", text, f"{name} = {brief(junk)}", [name])
        trials.run("generation_config.json", junk.encode(), f"all of it {brief(junk)}")
    trials.end(200 // parts, 50 // parts)
