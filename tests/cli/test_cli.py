"""The command as people and programs call it: exit status, what goes to which stream, and what an
error says.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from commands import done, failed, minhub
from hub_server import HubServer
from needs import need, needs
from paths import ROOT
from safetensors.torch import load_file, save_file

from minhub_py import from_pretrained, gpt2, lstm_from_pretrained, save_pretrained
from minhub_py.checkpoints import local
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.cli.group import Command
from minhub_py.cli.main import main
from minhub_py.cli.output import bar_console, checklist_entry, progress_lines

GPT2 = "minhub/shakespeare-gpt2"
BUILT_IN = [f"minhub/{path.name}" for path in sorted(local.BUILTIN.iterdir())]


@pytest.fixture
def model_files(tmp_path: Path) -> dict[str, bytes]:
    """A tiny GPT-2 with a tokenizer, as a repository's files."""
    torch.manual_seed(0)
    folder = tmp_path / "made"
    tokenizer = characters("abcdefgh \n")
    save_pretrained(
        gpt2(vocab_size=10, n_positions=16, n_embd=8, n_layer=2, n_head=2), folder, tokenizer
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path, model_files: dict[str, bytes]) -> Path:
    return tmp_path / "made"


def test_built_ins_ship_three_families() -> None:
    assert BUILT_IN == [
        "minhub/shakespeare-gpt2",
        "minhub/shakespeare-gptneo",
        "minhub/shakespeare-lstm",
    ]
    listed = json.loads(done("list", "--json"))
    assert [entry["model"] for entry in listed["built_in"]] == BUILT_IN
    assert all(entry["bytes"] < 8_500_000 for entry in listed["built_in"])
    assert "gpt2-xl" in done("list", "--published")
    assert "gpt2-xl" not in done("list")


def test_generate_has_penalties_and_biases() -> None:
    [banned, *_] = json.loads(
        done("generate", GPT2, "ROMEO:", "-n", "5", "--temperature", "0", "--json")
    )["ids"]
    options = (
        "--temperature",
        "0",
        "--logit-bias",
        f"{banned}=-100",
        "--presence-penalty",
        "0.5",
        "--min-p",
        "0.1",
    )
    assert (
        banned
        not in json.loads(done("generate", GPT2, "ROMEO:", "-n", "5", *options, "--json"))["ids"]
    )
    for wrong in ("x=1", "1", "1=1000", "99999=5"):
        assert "--logit-bias" in failed("generate", GPT2, "ROMEO:", "--logit-bias", wrong, status=2)


@pytest.mark.parametrize("model", BUILT_IN)
def test_built_ins_write_something_like_shakespeare(model: str) -> None:
    """Judged by words: most are found in Shakespeare's English, and it is laid out as a play."""
    text = done("generate", model, "ROMEO:", "-n", "400", "--seed", "1", "--temperature", "0.7")
    assert text.startswith("ROMEO:")
    assert text == done(
        "generate", model, "ROMEO:", "-n", "400", "--seed", "1", "--temperature", "0.7"
    )
    words = text.lower().replace(",", " ").replace(".", " ").split()
    common = {
        "the",
        "and",
        "to",
        "of",
        "i",
        "you",
        "my",
        "that",
        "a",
        "in",
        "is",
        "not",
        "his",
        "thy",
        "with",
        "be",
        "for",
    }
    assert sum(word in common for word in words) / len(words) > 0.15
    assert text.count("\n") > 4


@pytest.mark.parametrize("model", BUILT_IN)
def test_built_ins_verify(model: str) -> None:
    report = json.loads(done("verify", model, "--json"))
    assert report["problems"] == []
    assert report["checked"] == ["tensors", "values", "tied head", "tokenizer"]


def test_quantized_and_speculating() -> None:
    plain = json.loads(minhub("generate", GPT2, "ROMEO:", "--seed", "1", "--json").stdout)
    guessing = json.loads(
        minhub("generate", GPT2, "ROMEO:", "--seed", "1", "--speculate", "8", "--json").stdout
    )
    assert guessing["ids"] == plain["ids"]
    for kind in ("int8", "nf4"):
        generated = json.loads(
            minhub("generate", GPT2, "ROMEO:", "--seed", "1", "--quantize", kind, "--json").stdout
        )
        assert len(generated["ids"]) == len(plain["ids"])
    whole, small = (
        json.loads(minhub("score", GPT2, "-", "--json", *more, input="To be, or not to be").stdout)[
            "perplexity"
        ]
        for more in ((), ("--quantize", "nf4"))
    )
    assert whole != small
    assert abs(small / whole - 1) < 0.1
    assert minhub("generate", GPT2, "ROMEO:", "--quantize", "int3").exit_code == 2
    assert minhub("generate", GPT2, "ROMEO:", "--speculate", "-1").exit_code == 2


@needs("decoder")
def test_a_draft_model() -> None:
    plain = json.loads(done("generate", GPT2, "ROMEO:", "--seed", 1, "--json"))
    drafted = json.loads(done("generate", GPT2, "ROMEO:", "--seed", 1, "--draft", GPT2, "--json"))
    assert drafted["text"] == plain["text"]
    assert 0 < drafted["accepted"] <= drafted["proposed"]


def test_generate_in_its_ways() -> None:
    data = json.loads(done("generate", GPT2, "ROMEO:", "-n", "30", "--temperature", "0", "--json"))
    assert len(data["ids"]) == 30
    assert (
        done("generate", GPT2, "ROMEO:", "-n", "30", "--temperature", "0")
        == f"ROMEO:{data['text']}\n"
    )
    assert (
        done("generate", GPT2, "-", "-n", "30", "--temperature", "0", input="ROMEO:")
        == f"ROMEO:{data['text']}\n"
    )
    stop = data["text"][10:12]
    expected = data["text"][: data["text"].index(stop)]
    assert (
        done("generate", GPT2, "ROMEO:", "--temperature", "0", "--stop", stop)
        == f"ROMEO:{expected}\n"
    )
    assert (
        json.loads(
            done("generate", GPT2, "ROMEO:", "--temperature", "0", "--stop", stop, "--json")
        )["text"]
        == expected
    )
    assert done("generate", GPT2, "ROMEO:", "-n", "0") == "ROMEO:\n"


def test_characters_outside_the_vocabulary_are_said_to_be_lost() -> None:
    result = minhub("generate", GPT2, "na\u00efve 5", "-n", "3")
    assert result.exit_code == 0
    assert result.stderr == "Note: not in the tokenizer's vocabulary, and left out: '5' '\u00ef'\n"


def test_score(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    # longer than the context
    text.write_text("ROMEO:\nWhat say you to my lord the king of France?\n" * 12)
    data = json.loads(done("score", GPT2, str(text), "--json"))
    assert data["tokens"] == data["characters"] == len(data["scores"]) == len(text.read_text()) - 1
    assert data["bits_per_character"] == pytest.approx(data["nats_per_token"] / math.log(2))
    assert data["nats"] == pytest.approx(
        -sum(entry["logprob"] for entry in data["scores"]), rel=1e-5
    )
    assert data["perplexity"] < 5
    assert "perplexity" in done("score", GPT2, str(text))
    assert "perplexity" in done("score", GPT2, "-", input="What say you?")
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nTo be\n")
    assert (
        f"Note: {rows} is read as one text; for a result per row"
        in minhub("score", GPT2, str(rows)).stderr
    )
    text.write_bytes(b"caf\xe9")
    assert "is not UTF-8 text" in failed("score", GPT2, str(text))
    text.write_text("a")
    assert "at least 2 tokens are required, not 1" in failed("score", GPT2, str(text))


def test_inspect() -> None:
    report = json.loads(done("inspect", "gpt2-xl", "--json"))
    assert report["parameters"]["total"] == 1_557_611_200
    assert report["source"] == {"kind": "preset"}
    assert len(report["tensors"]) == 580
    first = report["tensors"][2]
    assert (first["hub"], first["native"]) == ("transformer.h.0.ln_1.weight", "h.0.ln_1.weight")
    text = done("inspect", GPT2)
    assert "transformer.h.{}.attn.c_attn.weight" in text
    assert "transformer.h.3.attn.c_attn.weight" in done("inspect", GPT2, "--tensors")
    lstm = json.loads(done("inspect", "minhub/shakespeare-lstm", "--json"))
    assert {t["operation"] for t in lstm["tensors"]} == {"same"}  # its head is not tied


def test_convert_there_and_back(tmp_path: Path, folder: Path) -> None:
    native, back = tmp_path / "native", tmp_path / "back"
    done("convert", str(folder), str(native), "--to", "native")
    assert "h.0.attn.c_attn.weight" in load_file(native / "model.safetensors")
    assert json.loads(done("verify", str(native), "--json"))["problems"] == []
    files = json.loads(
        done("convert", str(native), str(back), "--max-shard-size", "2kB", "--json")
    )["files"]
    assert len([name for name in files if name.endswith(".safetensors")]) > 1
    assert json.loads(done("verify", str(back), "--json"))["problems"] == []
    before, after = (from_pretrained(str(path)).state_dict() for path in (folder, back))
    assert all(torch.equal(before[name], after[name]) for name in before)
    half = tmp_path / "half"
    done("convert", str(folder), str(half), "--dtype", "float16")
    assert {tensor.dtype for tensor in load_file(half / "model.safetensors").values()} == {
        torch.float16
    }
    assert json.loads((half / "config.json").read_text())["dtype"] == "float16"
    assert done("generate", str(half), "abc", "-n", "3").startswith("abc")

    assert "already contains config.json" in failed("convert", str(folder), str(half), status=2)
    assert "OUT is MODEL's folder" in failed("convert", str(folder), str(folder), status=2)
    done("convert", str(folder), str(half), "--overwrite")
    assert {tensor.dtype for tensor in load_file(half / "model.safetensors").values()} == {
        torch.float32
    }


def test_nothing_is_downloaded_for_a_model_without_code_or_tokenizer(
    hub: HubServer, model_files: dict[str, bytes], tmp_path: Path
) -> None:
    config = json.loads(model_files["config.json"])
    hub.add(
        "owner/xlnet",
        {**model_files, "config.json": json.dumps({**config, "model_type": "xlnet"}).encode()},
    )
    hub.add(
        "owner/mute", {name: data for name, data in model_files.items() if name != "tokenizer.json"}
    )
    assert "model_type is 'xlnet'" in failed("generate", "owner/xlnet", "x")
    assert "model_type is 'xlnet'" in failed("convert", "owner/xlnet", str(tmp_path / "out"))
    assert "has no tokenizer" in failed("generate", "owner/mute", "x")
    with pytest.raises(
        ValueError, match="owner/mute has a model of the architecture gpt2, not lstm"
    ):
        lstm_from_pretrained("owner/mute")
    assert "model.safetensors" not in hub.fetched()


def test_a_name_alone_decides_nothing(hub: HubServer, model_files: dict[str, bytes]) -> None:
    hub.add("other/gpt2-xl", model_files)
    report = json.loads(done("inspect", "other/gpt2-xl", "--json"))
    assert report["source"] == {"kind": "config"}
    assert report["config"]["n_layer"] == 2


def test_what_a_folder_held_before(tmp_path: Path, folder: Path) -> None:
    """Another checkpoint's files go, other people's stay."""
    out = tmp_path / "out"
    out.mkdir()
    for name in (
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "merges.txt",
        "config.json",
    ):
        (out / name).write_text("old")
    for name in ("model-lora.safetensors", "model_adapter.safetensors", "notes.txt"):
        (out / name).write_text("mine")
    assert "already contains config.json" in failed("convert", str(folder), str(out), status=2)
    done("convert", str(folder), str(out), "--overwrite")
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "model-lora.safetensors",
        "model.safetensors",
        "model_adapter.safetensors",
        "notes.txt",
        "tokenizer.json",
    ]
    assert json.loads(done("verify", str(out), "--json"))["problems"] == []


def test_a_full_disk_loses_nothing(tmp_path: Path, folder: Path) -> None:
    """A file system with too little room for the checkpoint, made by the one who may (root, as in
    CI).
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    need("mount")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], check=True)
    try:
        (disk / "config.json").write_text("old")
        message = failed("convert", str(folder), str(disk), "--overwrite")
        assert (
            f"{disk} cannot be written (No space left on device): free disk space, or name another"
            " folder" in message
        )
        assert [path.name for path in disk.iterdir()] == ["config.json"]
        assert (disk / "config.json").read_text() == "old"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_verify_lists_what_is_wrong(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.ln_f.bias"][3] = torch.nan
    save_file({**tensors, "extra": torch.ones(1)}, folder / "model.safetensors")
    result = minhub("verify", str(folder))
    assert result.exit_code == 1
    assert "PROBLEM: the tensors do not fit the weight table: unknown: extra" in result.stdout
    assert "PROBLEM: transformer.ln_f.bias: 1 of 8 values are NaN or infinite" in result.stdout


def test_from_a_hub_to_text(hub: HubServer, model_files: dict[str, bytes]) -> None:
    hub.add("owner/tiny", model_files)
    plan = json.loads(done("download", "owner/tiny", "--dry-run", "--json"))
    assert plan["total_bytes"] == plan["missing_bytes"] == sum(map(len, model_files.values()))
    assert plan["folder"] is None
    assert "to download" in done("download", "owner/tiny", "--dry-run")
    assert hub.fetched() == []

    first = minhub("generate", "owner/tiny", "abc", "-n", "5", "--seed", "1")
    assert first.exit_code == 0
    assert "Downloading owner/tiny at" in first.stderr
    hub.forget()
    assert (
        done("download", "owner/tiny").strip()
        == json.loads(done("verify", "owner/tiny", "--json"))["folder"]
    )
    assert hub.fetched() == []
    assert "owner/tiny" in done("list")
    assert json.loads(done("inspect", "owner/tiny", "--json"))["source"]["kind"] == "files"
    hub.stop()
    result = minhub("generate", "owner/tiny", "abc", "-n", "5", "--seed", "1")
    assert result.stdout == first.stdout
    assert "Note: The Hub cannot be reached" in result.stderr


def test_inspect_downloads_no_weights(hub: HubServer, model_files: dict[str, bytes]) -> None:
    hub.add("owner/tiny", model_files)
    report = json.loads(done("inspect", "owner/tiny", "--json"))
    assert report["source"] == {"kind": "config"}
    assert len(report["tensors"]) == 28
    assert "model.safetensors" not in hub.fetched()


def test_verify_finds_a_byte_that_changed_on_disk(
    hub: HubServer, model_files: dict[str, bytes]
) -> None:
    hub.add("owner/tiny", model_files)
    folder = Path(done("download", "owner/tiny").strip())
    path = (folder / "model.safetensors").resolve()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = minhub("verify", "owner/tiny")
    assert result.exit_code == 1
    assert "PROBLEM: model.safetensors has the hash" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["generate", "./nowhere", "x"], 1, "There is no folder ./nowhere"),
        (
            ["generate", "minhub/nothing", "x"],
            1,
            "There is no built-in minhub/nothing; the built-ins are: minhub/sh",
        ),
        (["generate", "a b", "x"], 1, "is neither a folder nor a name on the Hub"),
        (
            ["generate", GPT2, ""],
            2,
            "the prompt has no tokens in MODEL's vocabulary; give some text",
        ),
        (["generate", GPT2, "\udcff"], 1, "PROMPT is not UTF-8 text"),
        (
            ["generate", GPT2, "x", "--temperature", "-1"],
            2,
            "temperature must be 0 (greedy) or more, not -1.0",
        ),
        (
            ["generate", GPT2, "x", "--top-p", "0"],
            2,
            "top_p must be above 0 and at most 1, not 0.0",
        ),
        (
            ["generate", GPT2, "x", "--repetition-penalty", "1e-300"],
            2,
            "repetition_penalty must be between 0.01 and 100",
        ),
        (["generate", GPT2, "x", "--stop", "x" * 1001], 2, "at most 1,000 characters"),
        (["chat", GPT2, "--stop", "x" * 1001], 2, "at most 1,000 characters"),
        (
            ["generate", GPT2, "--out", "x.csv"],
            2,
            "Missing argument 'FILE'. With --out, give the files",
        ),
        (["chat", GPT2, "good", "morrow"], 2, "Give one MESSAGE, in quotes."),
        (["chat", GPT2, " "], 2, "MESSAGE is empty"),
        (
            ["words", GPT2, "x.csv", "--out", "y.csv", "--ignore-regex", "["],
            2,
            "Invalid value for '--ignore-regex': '['",
        ),
        (["generate", GPT2, "x", "--temperature", "hot"], 2, "'hot' is not a valid number"),
        (["generate", GPT2, "x", "-n", "1.5"], 2, "'1.5' is not a valid whole number"),
        (
            ["train", "x", "--out", "y", "--learning-rate", "fast"],
            2,
            "'fast' is not a valid number",
        ),
        (["generate", GPT2, "x", "--seed", "1" + "0" * 30], 2, "is not in the range"),
        (["generate", GPT2, "x", "--stop", ""], 2, "a stop string cannot be empty"),
        (["generate", GPT2, "x", "--device", "cuda:7"], 2, 'device "cuda:7" does not work here'),
        (["generate", GPT2, "x", "--device", "abacus"], 2, "device 'abacus' is unknown"),
        (["generate", GPT2, "x", "--dtype", "int3"], 2, "Invalid value for '--dtype'"),
        (["generate", GPT2, "x", "-n", "many"], 2, "Invalid value for '-n'"),
        (
            ["generate", GPT2],
            2,
            "Missing argument 'PROMPT'. Give a text in quotes, or pipe it to standard input.",
        ),
        (["score", GPT2, "nowhere.txt"], 2, "No such file"),
        (["convert", GPT2, "out", "--max-shard-size", "big"], 2, "'big' is not a size"),
        (
            ["convert", GPT2, "out.pt"],
            2,
            "out.pt is a file name: use --to torchscript or choose a folder",
        ),
        (["convert", GPT2, "out", "--to", "onnx"], 2, "Invalid value for '--to'"),
        (["download", GPT2], 2, "is included in the package"),
        (["download", "./nothing"], 1, "'./nothing' is neither a folder nor a name on the Hub"),
        (["frobnicate"], 2, "No such command"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_errors_say_what_is_wrong(arguments: list[str], status: int, message: str) -> None:
    assert message in failed(*arguments, status=status)


def test_errors_of_the_hub(hub: HubServer, model_files: dict[str, bytes]) -> None:
    assert "has no repository owner/none" in failed("generate", "owner/none", "x")
    hub.add("owner/tiny", model_files)
    assert "has no revision 'v9'" in failed("download", "owner/tiny", "--revision", "v9")
    config = json.loads(model_files["config.json"])
    hub.add(
        "owner/other",
        {**model_files, "config.json": json.dumps({**config, "model_type": "xlnet"}).encode()},
    )
    assert "model_type is 'xlnet', which is not supported; supported types: gpt2, " in failed(
        "generate", "owner/other", "x"
    )
    hub.add(
        "owner/odd", {**model_files, "config.json": json.dumps({**config, "n_wings": 2}).encode()}
    )
    assert "has a setting 'n_wings' that this implementation does not know" in failed(
        "generate", "owner/odd", "x"
    )
    hub.stop()
    assert "cannot be reached" in failed("download", "owner/new")


def test_debug_shows_the_traceback() -> None:
    result = minhub("generate", "./nowhere", "x", "--debug")
    assert isinstance(result.exception, FileNotFoundError)


def test_devices_and_doctor() -> None:
    report = json.loads(done("devices", "--json"))
    assert report["device"] in {probe["name"] for probe in report["probes"] if probe["works"]}
    assert '"auto" selects' in done("devices")
    findings = {finding["what"]: finding for finding in json.loads(done("doctor", "--json"))}
    assert findings["torch"]["found"] == torch.__version__
    assert all(finding["fits"] for finding in findings.values())
    assert findings["R"]["found"].startswith(("3", "4", "5"))  # the set-up has installed one


@pytest.mark.parametrize("command", ["", *main.commands])
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_help_is_whole_at_every_width(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = done(*command.split(), "--help", terminal_width=width)
    assert "\\b" not in shown
    # where click cuts a summary
    assert "..." not in re.sub(r"^Usage: .*?\n\n", "", shown, flags=re.DOTALL)
    assert "RANGE" not in shown
    examples = [line for line in shown.splitlines() if line.startswith("    minhub ")]
    assert len(examples) == {
        "": 1,
        "activations": 2,
        "annotate": 3,
        "answer": 2,
        "calibrate": 2,
        "classify": 3,
        "decide": 2,
        "embed": 5,
        "entities": 2,
        "masked": 2,
        "pairs": 3,
        "pll": 2,
        "replay": 2,
        "rerank": 2,
        "score": 3,
        "serve": 2,
        "summarize": 1,
        "train": 3,
        "translate": 2,
        "words": 5,
    }.get(command, 0)
    copied = ("    minhub ", "      minhub ", "    torchrun ")  # commands are not wrapped
    assert all(len(line) <= width for line in shown.splitlines() if not line.startswith(copied))


def completed(*arguments: str) -> list[tuple[str, str]]:
    """What Tab offers after the last of the arguments: names, and of what type."""
    complete = ShellComplete(main, {}, "minhub", "_MINHUB_COMPLETE")
    return [
        (item.value, item.type)
        for item in complete.get_completions(list(arguments[:-1]), arguments[-1])
    ]


def test_models_complete(
    hub: HubServer, model_files: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built-ins, cached repositories, published sizes and folders with a model; other folders are
    the shell's.
    """
    hub.add("owner/tiny", model_files)
    done("download", "owner/tiny")
    hub.stop()
    monkeypatch.chdir(folder.parent)
    assert completed("generate", "minhub/") == [(name, "plain") for name in BUILT_IN]
    assert completed("score", "ow") == [("owner/tiny", "plain")]
    assert ("EleutherAI/gpt-neo-2.7B", "plain") in completed("inspect", "Eleu")
    assert completed("verify", "mad") == completed("train", "--from", "mad") == [("made", "plain")]
    assert completed("convert", "./ma") == [("./ma", "dir")]
    offered = [name for name, _ in completed("download", "")]
    assert "openai-community/gpt2" in offered
    assert "owner/tiny" in offered
    assert not {"made", *BUILT_IN} & set(offered)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_a_command_that_is_ended_cleans_up(number: int, status: int) -> None:
    @click.command(cls=Command)
    def busy() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            click.echo("cleaned up")

    before = signal.getsignal(number)
    result = CliRunner().invoke(busy)
    assert (result.exit_code, result.output) == (status, "cleaned up\n")
    assert signal.getsignal(number) == before


def test_ctrl_c_ends_a_loop_of_the_shell() -> None:
    """Killed by SIGINT, which a shell's $? calls 130: after an exit with a status it would go on."""
    script = Path(sys.executable).with_name("minhub")
    with subprocess.Popen(
        [script, "generate", GPT2, "ROMEO:", "-n", "10000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ROMEO:\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, said) == (-signal.SIGINT, b"")


def test_a_check_without_a_text_keeps_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    checklist_entry("NO", "R", "", "install R")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "NO  R",
        "    -> install R",
    ]


def test_a_pipe_has_progress_lines_instead_of_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    frequent, rare = (
        progress_lines("Scoring", "tokens", 0.0),
        progress_lines("Scoring", "tokens", math.inf),
    )
    size = progress_lines("Checking", "bytes", 0.0)
    for update in (frequent, rare):
        update(1200, 5000)
    size(2_500_000, None)
    assert capsys.readouterr().err == "Scoring: 1,200 of 5,000 tokens\nChecking: 2.5 MB\n"


def test_moving_lines_leave_room_for_what_a_terminal_shows_of_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert bar_console().width == bar_console().size.width == 56


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("echo text | {}", True),
        ("printf '' | {}", False),
        ("echo text | while true; do {}; break; done", False),  # the loop reads from it
        ("{} < /dev/null", False),
        ("{} < /etc/hosts", False),
        ("{} <&-", False),
    ],
)
@needs("Linux")
def test_what_is_piped_in_and_not_read(command: str, result: bool) -> None:
    code = (
        "from contextlib import suppress; from select import select; from minhub_py.cli.inputs"
        " import unread_pipe"
    )
    # echo runs beside it
    code += "\nwith suppress(OSError): select([0], [], [])\nprint(unread_pipe())"
    command = command.format(f"{sys.executable} -c '{code}'")
    shown = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert shown.stdout == f"{result}\n"


def test_a_piped_text_that_is_not_read_is_hinted_at(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("generate", GPT2, "ROMEO:", "-n", "1")
    assert "piped" not in minhub(*arguments).stderr
    monkeypatch.setattr("minhub_py.cli.text.unread_pipe", lambda: True)
    assert (
        "Note: standard input is ignored; to read it, use - as PROMPT." in minhub(*arguments).stderr
    )
    assert minhub("generate", GPT2, "-", "-n", "1", input="ROMEO:").stderr == ""


def test_as_a_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "minhub_py", "-V"], capture_output=True, text=True, check=True
    )
    assert shown.stdout == done("--version")


def test_as_a_process() -> None:
    """What only a process shows: the installed script, standard output closed early, an interrupt's
    exit.
    """
    script = Path(sys.executable).with_name("minhub")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("minhub, version 0.")
    command = f"{script} inspect gpt2-xl --tensors | head -1"
    piped = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert piped.stdout == "gpt2-xl: GPT2\n"
    assert "Traceback" not in piped.stderr


def test_a_removed_working_directory(tmp_path: Path) -> None:
    """PyTorch's MKL would end the process without a Python error."""
    folder = tmp_path / "gone"
    folder.mkdir()
    code = f"import os; os.rmdir({str(folder)!r}); from minhub_py.cli.main import main; main()"
    command = [sys.executable, "-c", code, "generate", "minhub/shakespeare-gpt2", "To", "-n", "3"]
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "The working directory was removed: change to another (cd)." in result.stderr
