"""Options that Python, the shell, R and the HTTP API share: the same names, defaults and values."""

import inspect
import re
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from paths import R_PACKAGE, ROOT

import minhub_py
from minhub_py.cli.bench import KINDS as MEASURED
from minhub_py.cli.main import main
from minhub_py.inference.beams import BeamSearch
from minhub_py.inference.limits import CHAT_SAMPLING, PUBLISHED_FIELDS
from minhub_py.inference.quantize import check_kind
from minhub_py.inference.sampling import Sampling
from minhub_py.serve.ollama import LEVELS
from minhub_py.serve.settings import parse_sampling, parse_search
from minhub_py.serve.validation import Fields
from minhub_py.system.quantization import FILE_KINDS, KINDS
from minhub_py.training.settings import Settings

SHARED = (*Sampling.names(), "max_new_tokens", "seed", "stop")
BEAM_SETTINGS: dict[str, Any] = {
    "beams": 5,
    "length_penalty": 0.5,
    "early_stopping": "never",
    "no_repeat_ngram_size": 2,
}
VALUES = {
    "temperature": 0.3,
    "top_k": 5,
    "top_p": 0.4,
    "repetition_penalty": 1.2,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"3": 2.0},
}


def r_arguments(page: str, call: str) -> dict[str, str]:
    """The arguments of an R function and their defaults, from its help page."""
    text = (R_PACKAGE / "man" / f"{page}.Rd").read_text(encoding="utf-8")
    usage = text[text.index(call, text.index("\\usage{")) :].partition("\n)")[0]
    return dict(re.findall(r"^  (\w+) = (.*?),?$", usage, re.MULTILINE))


def options(command: str) -> dict[str, Any]:
    return {option.name: option for option in main.commands[command].params}


@pytest.mark.parametrize("name", SHARED)
def test_generation_settings_have_one_name(name: str) -> None:
    assert name in inspect.signature(minhub_py.generate).parameters
    assert name in options("generate")
    assert name in options("chat")
    assert name in r_arguments("generate", "\\method{generate}{minhub_model}(")
    assert name in r_arguments("minhub_chat", "minhub_chat(")


@pytest.mark.parametrize("name", Sampling.names())
def test_the_server_reads_each_sampling_setting_by_its_name(name: str) -> None:
    expected = Sampling(**{name: {3: 2.0} if name == "logit_bias" else VALUES[name]})
    assert expected != Sampling()
    assert parse_sampling(Fields({name: VALUES[name]}), asdict(Sampling()), 10) == expected


@pytest.mark.parametrize("name", Sampling.names())
def test_generate_has_the_same_defaults_in_python_and_r(name: str) -> None:
    default = inspect.signature(minhub_py.generate).parameters[name].default
    expected = "NULL" if default is None else format(default, "g")
    assert r_arguments("generate", "\\method{generate}{minhub_model}(")[name] == expected


def test_help_and_guides_state_the_sampling_of_chats() -> None:
    for name in PUBLISHED_FIELDS:
        value = CHAT_SAMPLING.get(name, asdict(Sampling())[name])
        shown = "none" if value is None else format(value, "g")
        assert f"else {shown}]" in options("chat")[name].help
    page = (R_PACKAGE / "man" / "minhub_chat.Rd").read_text(encoding="utf-8")
    guide = (ROOT / "docs/guides/chat.md").read_text(encoding="utf-8")
    docstring = " ".join((minhub_py.Chat.__doc__ or "").split())
    for name, value in CHAT_SAMPLING.items():
        assert f"\\code{{{name}}} is {value}" in page
        assert f"{name.replace('_', '-')} {value}" in guide
        assert f"{name} {value}" in docstring


def test_kinds_of_quantization_have_one_list() -> None:
    """In the shell, in messages of Python, in R's help, and in the names of benchmarks and of the
    Ollama API.
    """
    assert list(options("generate")["quantize"].type.choices) == [*FILE_KINDS, *KINDS]
    assert list(options("train")["quantize"].type.choices) == [*KINDS]
    with pytest.raises(ValueError, match=" or ".join(KINDS)):
        check_kind("int7", *FILE_KINDS)
    with pytest.raises(ValueError, match=" or ".join(KINDS)):
        Settings(quantize="int7")
    help_page = (R_PACKAGE / "man" / "from_pretrained.Rd").read_text(encoding="utf-8")
    for kind in (*FILE_KINDS, *KINDS):
        assert f'\\item \\code{{"{kind}"}}' in help_page or f'or \\code{{"{kind}"}}' in help_page
    assert {*KINDS} <= MEASURED.keys()
    assert {*KINDS} <= LEVELS.keys()


@pytest.mark.parametrize("name", BEAM_SETTINGS)
def test_settings_of_beam_search_have_one_name_and_default(name: str) -> None:
    signature = inspect.signature(minhub_py.generate).parameters
    default = inspect.signature(minhub_py.beam_search).parameters[name].default
    assert signature[name].default == (None if name == "beams" else default)
    assert name in options("generate")
    is_choice = isinstance(default, bool)
    expected = "NULL" if name == "beams" else str(default).upper() if is_choice else f"{default:g}"
    assert r_arguments("generate", "\\method{generate}{minhub_model}(")[name] == expected
    fields = Fields({"beams": 3, name: BEAM_SETTINGS[name]})
    served = SimpleNamespace(engine=SimpleNamespace(batch_size=8))
    search = parse_search(fields, served, 1, stream=False)  # type: ignore[arg-type]
    assert search == BeamSearch(**{"beams": 3, name: BEAM_SETTINGS[name]})
