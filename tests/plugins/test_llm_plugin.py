"""The plugin for `llm`, with the real package; skipped without it."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import chat_tokenizer
from click.testing import CliRunner

from minhub_py import Chat, gpt2, save_pretrained

llm = pytest.importorskip("llm", reason="llm is not installed: pip install 'minhub_py[llm]'")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command `llm` with the plugin and without other state."""
    from llm.cli import cli
    from llm.plugins import load_plugins, pm

    from minhub_py.plugins import llm as plugin

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "user"))
    load_plugins()
    if not pm.is_registered(plugin):  # found by its entry point after an installation with the extra
        pm.register(plugin, "minhub")
        plugin.register_commands(cli)
    return cli


def run(cli: Any, *arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_prompt_and_a_conversation_equal_a_chat(cli: Any) -> None:
    options = {"temperature": 0.5, "seed": 3, "max_new_tokens": 12}
    chat = Chat("minhub/shakespeare-gpt2", system="Be brief.", **options)
    model = llm.get_model("minhub/shakespeare-gpt2")
    conversation = model.conversation()
    first = conversation.prompt("Good morrow!", system="Be brief.", **options)
    assert first.text() == chat.say("Good morrow!").text
    assert first.usage().output == 12
    assert "".join(conversation.prompt("And then?", **{**options, "seed": 2})) == chat.say("And then?", seed=1).text
    names = [option.strip() for option in ("-o", "temperature", "0.5", "-o", "seed", "3", "-o", "max_new_tokens", "12")]
    output = run(cli, "-m", "minhub/shakespeare-gpt2", "Good morrow!", "-s", "Be brief.", *names, "--no-log")
    assert output.strip() == first.text().strip()


def test_models_are_added_and_removed(cli: Any, tmp_path: Path) -> None:
    tokenizer = chat_tokenizer()
    model = gpt2(n_layer=1, n_embd=8, n_head=1, vocab_size=tokenizer.get_vocab_size())
    save_pretrained(model, tmp_path / "tiny", tokenizer)
    name = run(cli, "minhub", "add", tmp_path / "tiny").strip().removeprefix("Added: llm -m ")
    assert f"minhub: {name}" in run(cli, "models", "list")
    assert llm.get_model(name).prompt("Hi", max_new_tokens=3, seed=1).text() is not None
    run(cli, "minhub", "remove", tmp_path / "tiny")
    assert name not in run(cli, "models", "list")
    assert json.loads((tmp_path / "user" / "minhub.json").read_text()) == []
    assert "was not added" in CliRunner().invoke(cli, ["minhub", "remove", "other"]).output


def test_errors_are_those_of_llm(cli: Any) -> None:
    model = llm.get_model("minhub/shakespeare-gpt2")
    with pytest.raises(llm.ModelError, match="temperature must be 0"):
        model.prompt("Hi", temperature=-1).text()
    result = CliRunner().invoke(cli, ["-m", "minhub/shakespeare-gpt2", "Hi", "-o", "heat", "1"])
    assert result.exit_code == 1
    assert "heat" in result.output
