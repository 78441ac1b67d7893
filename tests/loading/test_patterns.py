"""Regular expressions in the settings of adapters: Python's results, in bounded time."""

import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from adapters import random_adapter
from references import random_model

from minhub_py.loading.adapters.config import AdapterConfig
from minhub_py.loading.adapters.patterns import full_match
from minhub_py.loading.adapters.targets import bare_model, select, targets_of

NAMES = [
    f"model.layers.{layer}.{module}"
    for layer in (0, 1, 12)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "mlp.experts.3.gate")
]
NAMES += [
    "lm_head",
    "lm_head\n",
    "model.embed_tokens",
    "",
    "Model.Lm_head",
    "visual.blocks.0.q_proj",
]
# As in published adapters, and one for each operation.
PATTERNS = [
    r".*", r".*\.q_proj", r"^(?!.*visual).*(?:q_proj|k_proj)$", r"model\.layers\.(0|1)\.self_attn\.[qk]_proj",
    r"(?:.*?(?:language|layers).*?(?:self_attn|mlp).*?(?:k_proj|q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\..*k_proj)",
    r"(?i)MODEL\..*HEAD|lm_HEAD", r"(?i:model)\..*", r"(?i)[^m].*", r"[^v].*", r".*(?<=proj)", r".*(?<!proj)", r"\w+",
    r"[\w.]+", r"\D+", r"[^\d]*", r"(a|b|)*", r"(.*\.)?(q_proj)$", r".*\.\d{2}\..*", r".{5,7}", r".{0,1}", r"(.{2})*",
    r"(?x) lm _ head", r"\Alm_head\Z", r".*\bq_proj", r".*\Bproj", r"lm_head$", r"(?s:.*)", r"a{0}", r"(?P<x>lm)_head",
    r"(?=model).*proj", r"(?!m).*", r"\S+\s?", r"lm_head[^x]",
]  # fmt: skip
PARTS = [
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    "(",
    "(?:",
    "|",
    ")",
    "*",
    "+",
    "?",
    "{2}",
    "{1,3}",
    "^",
    "$",
    r"\b",
    "(?=",
    "(?!",
    "*?",
    "(?<=a)",
    "(?<!b)",
]
SETTINGS = ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern", "layers_pattern"]
# `re` does not finish with these.
SLOW = [
    r"([a-z_.0-9]+)+!",
    r"(.*)*(.*)*(.*)*!",
    ".*" * 200 + "!",
    "(a|a)*" * 50 + "!",
    r"(?!(.*)*x)(.*)*!",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_the_names_that_python_matches(pattern: str) -> None:
    for name in NAMES:
        assert full_match(pattern, name) == (re.fullmatch(pattern, name) is not None), name


def test_random_patterns_match_as_in_python() -> None:
    generator, checked = random.Random(0), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while checked < 3000:
            pattern = "".join(generator.choice(PARTS) for _ in range(generator.randint(1, 9)))
            try:
                compiled = re.compile(pattern)
                found = [full_match(pattern, name) for name in ("", "a", "ab", "aab", "ba.b")]
            except (re.error, ValueError):  # invalid, or a possessive quantifier
                continue
            assert found == [
                compiled.fullmatch(name) is not None for name in ("", "a", "ab", "aab", "ba.b")
            ], pattern
            checked += 1


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_that_backtrack_without_end_are_matched(pattern: str) -> None:
    assert not full_match(pattern, "model.layers.11.self_attn.q_proj")


@pytest.mark.parametrize(
    "setting",
    ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern", "layers_pattern"],
)
def test_every_setting_with_a_pattern_is_bounded(setting: str, tmp_path: Path) -> None:
    model, settings = random_model("llama"), dict[str, Any]()
    if setting in ("rank_pattern", "alpha_pattern"):
        settings[setting] = {SLOW[0]: 3}
    else:
        settings[setting] = (SLOW[0],) if setting == "layers_pattern" else SLOW[0]
    settings |= {"layers_to_transform": (0,)} if setting == "layers_pattern" else {}
    if setting in ("target_modules", "layers_pattern"):
        with pytest.raises(ValueError, match="matches no linear layer|exclude all modules"):
            random_adapter(model, tmp_path, **settings)
    else:
        random_adapter(model, tmp_path, **settings)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "not a valid regular expression: missing"),
        ("a{99999999999}", "not a valid"),
        (r"(a)\1", "groupref"),
        ("(" * 5000 + ")" * 5000, "not a valid"),
        ("a" * 30000, "has 30000 characters"),
        ("(?L)a", "not a valid"),
        ("(?=.*" * 60 + ")" * 60, "too many steps"),
    ],
)
def test_other_patterns_are_rejected_with_the_setting(pattern: str, message: str) -> None:
    model = random_model("llama")
    with pytest.raises(ValueError, match=message):
        select(AdapterConfig(target_modules=pattern), targets_of(bare_model(model)), "llama")


def test_the_setting_of_an_invalid_pattern_is_named() -> None:
    for name, value in (
        ("target_modules", "("),
        ("exclude_modules", "["),
        ("rank_pattern", {"(": 1}),
        ("alpha_pattern", {"*": 1}),
        ("layers_pattern", ("(",)),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            AdapterConfig(**{name: value})  # type: ignore[arg-type]
