"""Texts of commands: arguments, files, and standard input of the real command."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from commands import done, failed, minhub, succeeded
from encoders import write_masked_lm
from fast_python import programs

from minhub_py import (
    complete,
    embed,
    from_pretrained,
    save_pretrained,
    tokenizer_from_pretrained,
    word_logprobs,
)
from minhub_py.cli.main import main

GPT2 = "minhub/shakespeare-gpt2"
WITHOUT_COMPUTATION = {
    "calibrate",
    "list",
    "download",
    "delete",
    "inspect",
    "replay",
    "compare",
    "devices",
    "doctor",
    "r",
}


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash with the real command; its standard input is empty."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs()), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def printed(command: str) -> str:
    result = shell(command)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_words_and_embeddings_of_arguments_pipes_and_files_are_equal(tmp_path: Path) -> None:
    texts = ["To be or not", "Good morrow"]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for command in ("words", "embed"):
        of_arguments = json.loads(done(command, GPT2, *texts, "--json"))
        of_pipe = printed(
            f"printf '\\n' | cat - {tmp_path}/in.txt | minhub {command} {GPT2} --json"
        )
        of_dash = printed(f"minhub {command} {GPT2} - --json < {tmp_path}/in.txt")
        assert of_arguments == json.loads(of_pipe) == json.loads(of_dash)
        assert of_arguments == json.loads(done(command, GPT2, tmp_path / "in.txt", "--json"))
    model, tokenizer = from_pretrained(GPT2), tokenizer_from_pretrained(GPT2)
    expected = embed(model, tokenizer, texts)
    torch.testing.assert_close(torch.tensor([row["embedding"] for row in of_arguments]), expected)
    surprisal = [row["surprisal"] for row in json.loads(done("words", GPT2, texts[0], "--json"))]
    assert surprisal[1:] == pytest.approx(
        word_logprobs(model, tokenizer, texts[0].split())["surprisal"][1:]
    )


def test_a_printed_embedding_shows_its_first_values() -> None:
    vector = json.loads(done("embed", GPT2, "To be", "--json"))[0]["embedding"]
    shown = ", ".join(f"{value:.4f}" for value in vector[:3])
    assert done("embed", GPT2, "To be").splitlines()[1] == f"To be  [{shown}, …] ({len(vector)})"


def test_commands_for_encoders_read_pipes(tmp_path: Path) -> None:
    model = write_masked_lm(tmp_path / "model")
    expected = done("pll", model, "the cat", "a dog")
    assert printed(f"printf 'the cat\na dog\n' | minhub pll {model}") == expected
    assert printed(f"printf 'the cat\na dog\n' | minhub pll {model} -") == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("words {}", "Missing argument 'TEXT'. Give texts or names of files, or pipe texts"),
        ("embed {} <&-", "Missing argument 'TEXT'."),
        ("pll {} - <&-", "- is standard input, which is closed here."),
        ("generate {} - <&-", "- is standard input, which is closed here."),
        (
            "generate {} <&-",
            "Missing argument 'PROMPT'. Give a text in quotes, or pipe it to standard input.",
        ),
        ("score {} - <&-", "- is standard input, which is closed here."),
        ("train - --out {} <&-", "- is standard input, which is closed here."),
        ("chat {} <&-", "Standard input is closed: give a MESSAGE."),
        ("embed {} - text", "- is standard input: give only - or only texts."),
        ("embed {} ''", "The texts are empty"),
        ("embed {} text --column other", "--column is for the rows of files"),
        (
            "embed {} text --out v.npy",
            "--out is for the rows of files: 'text' is not the name of a file.",
        ),
        ("embed {} --out v.npy", "Missing argument 'FILE'. With --out, give the files"),
        (
            "words {} 'to be' --by item",
            "--by is for the rows of files: 'to be' is not the name of a file.",
        ),
        (
            "words {} x.csv --out y.csv --plot z.png",
            "--plot is for printed texts: remove it, or --out.",
        ),
    ],
)
def test_wrong_inputs_are_usage_errors(command: str, message: str) -> None:
    result = shell(f"minhub {command.format(GPT2)}")
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_generate_reads_a_pipe_without_a_dash() -> None:
    options = "-n 10 --seed 1"
    assert printed(f"printf ROMEO: | minhub generate {GPT2} {options}") == printed(
        f"minhub generate {GPT2} ROMEO: {options}"
    )


def test_a_message_gets_one_reply() -> None:
    options = "-n 10 --seed 1"
    assert printed(f"minhub chat {GPT2} 'Good morrow' {options}") == printed(
        f"echo Good morrow | minhub chat {GPT2} {options}"
    )
    result = shell(f"minhub chat {GPT2} '/help me' {options}")  # a message, not a command
    assert result.returncode == 0
    assert "--max-new-tokens allows more" in result.stderr


def test_the_shell_and_python_sample_with_the_settings_of_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_pretrained(from_pretrained(GPT2), folder, tokenizer_from_pretrained(GPT2))
    (folder / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.2, "top_k": 3}'
    )
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(folder)
    text = complete(model, tokenizer, "ROMEO:", 30, seed=1)
    assert text != complete(model, tokenizer, "ROMEO:", 30, seed=1, temperature=1.0, top_k=None)
    assert done("generate", folder, "ROMEO:", "-n", "30", "--seed", "1") == f"ROMEO:{text}\n"
    (tmp_path / "in.csv").write_text("text\nROMEO:\n")
    done(
        "generate",
        folder,
        tmp_path / "in.csv",
        "-n",
        "30",
        "--seed",
        "1",
        "--out",
        tmp_path / "out.jsonl",
    )
    assert json.loads((tmp_path / "out.jsonl").read_text())["generated"] == text
    hot = complete(model, tokenizer, "ROMEO:", 30, seed=1, temperature=1.5)
    assert (
        done("generate", folder, "ROMEO:", "-n", "30", "--seed", "1", "--temperature", "1.5")
        == f"ROMEO:{hot}\n"
    )


@pytest.mark.parametrize("command", sorted(main.commands.keys() - WITHOUT_COMPUTATION))
def test_commands_that_compute_have_threads(command: str) -> None:
    assert "--threads" in done(command, "--help")


def test_threads_limit_the_threads_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(
        "minhub_py.loading.pretrained.load",
        lambda *_, **__: counts.append(torch.get_num_threads()) or 1 / 0,
    )
    before = torch.get_num_threads()
    minhub("generate", GPT2, "ROMEO:", "--threads", before + 2)
    assert counts == [before + 2]
    assert torch.get_num_threads() == before
    assert "--threads" in failed("generate", GPT2, "ROMEO:", "--threads", "0", status=2)


def test_words_are_plotted(tmp_path: Path) -> None:
    plot = tmp_path / "out.png"
    (tmp_path / "in.csv").write_text("item,word\n1,To\n1,be\n2,Good\n2,morrow\n")
    file = tmp_path / "in.csv"
    for arguments in (
        ("To be", "Good morrow"),
        ("To be", "--prefix", "x_"),
        (file, "--by", "item", "--prefix", "x_"),
    ):
        plot.unlink(missing_ok=True)
        result = succeeded("words", GPT2, *arguments, "--plot", plot)
        assert "SURPRISAL" in result.stdout
        assert plot.read_bytes().startswith(b"\x89PNG")
    assert "no word has a surprisal" in minhub("words", GPT2, "To", "--plot", plot).stderr
