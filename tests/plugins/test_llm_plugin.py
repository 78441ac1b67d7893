"""The plugin for `llm`, with the real package; skipped without it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from chat_models import chat_tokenizer
from click.testing import CliRunner
from encoders import write_cross_encoder, write_sentence_encoder, write_token_classifier
from hub_server import HubServer
from needs import package

from minhub_py import Chat, embed, from_pretrained, gpt2, save_pretrained, tokenizer_from_pretrained
from minhub_py.export.gguf import write_gguf
from minhub_py.loading.files import open_files

llm = package("llm")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command `llm` with the plugin and without other state."""
    from llm.cli import cli
    from llm.plugins import load_plugins, pm

    from minhub_py.plugins import llm as plugin

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "user"))
    load_plugins()
    # found by its entry point after an installation with the extra
    if not pm.is_registered(plugin):
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
    assert (
        "".join(conversation.prompt("And then?", **{**options, "seed": 2}))
        == chat.say("And then?", seed=1).text
    )
    names = [
        option.strip()
        for option in ("-o", "temperature", "0.5", "-o", "seed", "3", "-o", "max_new_tokens", "12")
    ]
    output = run(
        cli, "-m", "minhub/shakespeare-gpt2", "Good morrow!", "-s", "Be brief.", *names, "--no-log"
    )
    assert output.strip() == first.text().strip()


def chat_model(folder: Path) -> Path:
    tokenizer = chat_tokenizer()
    model = gpt2(n_layer=1, n_embd=8, n_head=1, vocab_size=tokenizer.get_vocab_size())
    save_pretrained(model, folder, tokenizer)
    return folder


def test_models_are_added_and_removed(cli: Any, tmp_path: Path) -> None:
    folder = chat_model(tmp_path / "tiny")
    assert run(cli, "minhub", "add", folder) == "Added: llm -m minhub/tiny\n"
    assert "minhub: minhub/tiny" in run(cli, "models", "list")
    assert llm.get_model("minhub/tiny").prompt("Hi", max_new_tokens=3, seed=1).text() is not None
    run(cli, "minhub", "remove", folder)
    assert "minhub/tiny" not in run(cli, "models", "list")
    assert json.loads((tmp_path / "user" / "minhub.json").read_text()) == {}
    assert "was not added" in CliRunner().invoke(cli, ["minhub", "remove", "other"]).output
    assert "There is no folder" in CliRunner().invoke(cli, ["minhub", "add", "./missing"]).output


def test_added_models_have_aliases(cli: Any, tmp_path: Path) -> None:
    folder = chat_model(tmp_path / "tiny")
    assert run(cli, "minhub", "add", folder, "--alias", "small") == "Added: llm -m small\n"
    assert llm.get_model("small").model_id == "minhub/tiny"
    other = chat_model(tmp_path / "other" / "tiny")
    result = CliRunner().invoke(cli, ["minhub", "add", str(other)])
    assert (result.exit_code, "minhub/tiny is the name of another model" in result.output) == (
        1,
        True,
    )
    run(cli, "minhub", "remove", "small")
    assert "minhub/tiny" not in run(cli, "models", "list")


def test_encoders_are_embedding_models_and_no_chat_models(
    cli: Any, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = write_sentence_encoder(tmp_path / "encoder")
    hub.add("owner/encoder", encoder)
    tokenizer_from_pretrained("owner/encoder")
    from_pretrained("owner/encoder")
    folder = write_sentence_encoder(tmp_path / "added")
    assert (
        run(cli, "minhub", "add", folder, "--alias", "sentences")
        == "Added: llm embed -m sentences\n"
    )
    names = ("minhub/owner/encoder", "minhub/added")
    chats, embedders = run(cli, "models", "list"), run(cli, "embed-models", "list")
    assert all(name not in chats and name in embedders for name in names)
    assert "minhub/shakespeare-gpt2" not in embedders
    texts = ["the cat", "a dog"]
    expected = embed(from_pretrained(folder), tokenizer_from_pretrained(folder), texts).tolist()
    assert [*llm.get_embedding_model("sentences").embed_multi(texts)] == expected
    assert json.loads(run(cli, "embed", "-m", "sentences", "-c", texts[1])) == expected[1]


@pytest.mark.parametrize("write", [write_cross_encoder, write_token_classifier])
def test_classifiers_are_not_offered(
    cli: Any, tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    result = CliRunner().invoke(cli, ["minhub", "add", str(write(tmp_path / "classifier"))])
    assert (result.exit_code, "is a classifier: use minhub classify" in result.output) == (1, True)


def test_gguf_files_have_their_kind(cli: Any, tmp_path: Path) -> None:
    save_pretrained(from_pretrained("minhub/shakespeare-gpt2"), tmp_path / "chat")
    write_gguf(open_files(tmp_path / "chat"), tmp_path / "model.gguf")
    assert run(cli, "minhub", "add", tmp_path / "model.gguf") == "Added: llm -m minhub/model\n"

    from minhub_py.plugins.llm import kind_at

    for name, add in (
        ("embedding", lambda writer: writer.add_pooling_type(gguf.PoolingType.MEAN)),
        ("embedding", lambda writer: writer.add_causal_attention(False)),
        ("chat", lambda writer: writer.add_causal_attention(True)),
    ):
        writer = gguf.GGUFWriter(tmp_path / "other.gguf", "any")
        add(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        assert kind_at(tmp_path / "other.gguf") == name


def test_the_plugin_imports_no_pytorch() -> None:
    code = (
        "import sys; import minhub_py.plugins.llm as plugin; [*plugin.available()]; print('torch'"
        " in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_errors_are_those_of_llm(cli: Any) -> None:
    model = llm.get_model("minhub/shakespeare-gpt2")
    with pytest.raises(llm.ModelError, match="temperature must be 0"):
        model.prompt("Hi", temperature=-1).text()
    result = CliRunner().invoke(cli, ["-m", "minhub/shakespeare-gpt2", "Hi", "-o", "heat", "1"])
    assert result.exit_code == 1
    assert "heat" in result.output
