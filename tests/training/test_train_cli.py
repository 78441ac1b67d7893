"""`minhub train` and `minhub compare`: output, exit status and messages."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from commands import failed, minhub, succeeded
from fast_python import python
from training_runs import TEXT, TINY, contents, held_out_losses, same, verses

from minhub_py.cli.main import main
from minhub_py.training import Listener, Run, resume, train

OPTIONS = [
    "--layers",
    "1",
    "--width",
    "16",
    "--context",
    "16",
    "--batch",
    "4",
    "--steps",
    "6",
    "--evaluate-every",
    "3",
    "--checkpoint-every",
    "2",
    "--threads",
    "1",
]


def test_the_console_shows_evaluations_samples_and_the_next_command(
    tmp_path: Path, text: Path
) -> None:
    """Standard error shows the model and data, a line per evaluation, the samples, and how to use
    the model.
    """
    result = succeeded(
        "train",
        text,
        "--out",
        tmp_path / "run",
        "--sample",
        "the",
        "--sample-tokens",
        "5",
        *OPTIONS,
    )
    assert result.stdout == ""
    output = result.stderr
    run = Run(tmp_path / "run")
    assert f"<tr><td>6</td><td>{run.losses[-1]['train_loss']:.4g}</td>" in run._repr_html_()
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    assert f"GPT-2, {parameters:,} parameters, on cpu, float32" in output
    assert (
        "3,600 tokens to train on, 400 held out; 6 steps of 4 × 16; losses in nats per token"
        in output
    )
    rows = [line.split() for line in output.splitlines() if re.match(r" +\d+  ", line)]
    assert [row[0] for row in rows] == ["0", "3", "6"]
    assert [row[1] for row in rows[:1]] == [f"{run.losses[0]['held_out_loss']:.4f}"]
    assert [row[1:3] for row in rows[1:]] == [
        [f"{row['train_loss']:.4f}", f"{row['held_out_loss']:.4f}"] for row in run.losses[1:]
    ]
    assert output.count("\nthe") == 3
    assert f"minhub generate {tmp_path / 'run'} PROMPT" in output
    assert f"{run.best_loss:.4f}" in output.splitlines()[-1]
    assert "\x1b" not in output


def test_standard_output_contains_json_only(tmp_path: Path, text: Path) -> None:
    result = succeeded(
        "train", text, "--out", tmp_path / "run", "--family", "lstm", "--json", *OPTIONS
    )
    assert all(line.startswith("Note: ") for line in result.stderr.splitlines())
    actual = json.loads(result.stdout)
    run = Run(tmp_path / "run")
    assert actual["loss"] == actual["nats_per_character"] == run.best_loss
    assert (actual["objective"], actual["unit"]) == ("text", "nats per token")
    assert (actual["family"], actual["steps"], actual["vocab_size"]) == ("lstm", 6, len(set(TEXT)))
    assert actual["rows"][0]["train_loss"] is None
    assert [row["held_out_loss"] for row in actual["rows"]] == held_out_losses(run)
    assert actual["settings"]["width"] == 16
    assert [actual] == json.loads(succeeded("compare", tmp_path / "run", "--json").stdout)


def test_every_option_sets_a_setting(tmp_path: Path, text: Path) -> None:
    """settings.json contains every option."""
    expected: dict[str, Any] = {
        "family": "gptneo", "tokenizer": "bpe", "vocab_size": 300, "held_out": 0.2, "layers": 2, "width": 24,
        "heads": 3, "context": 8, "dropout": 0.25, "steps": 2, "batch": 6, "accumulate": 3,
        "learning_rate": 0.00123456789, "warm_up": 1, "floor": 0.3, "weight_decay": 0.2, "beta2": 0.9, "clip": 2.0,
        "evaluate_every": 2, "evaluate_tokens": 128, "checkpoint_every": 1, "patience": 5, "sample": "th",
        "sample_tokens": 4, "seed": 7, "device": "cpu", "dtype": "bfloat16", "parallel": "fsdp", "threads": 1,
    }  # fmt: skip
    words = [
        word
        for name, value in expected.items()
        for word in ("--" + name.replace("_", "-"), str(value))
    ]
    succeeded(
        "train", text, "--out", tmp_path / "run", "--no-carry", "--set", "window_size=4", *words
    )
    actual = json.loads((tmp_path / "run" / "settings.json").read_text())
    expected |= {
        "carry": False,
        "compile": False,
        "config": {"window_size": 4},
        "start": None,
        "revision": None,
        "lora": {},
        "quantize": None,
        "objective": "text",
        "beta": 0.1,
        "scale": 20.0,
        "margin": None,
        "keep_weight": 10.0,
        "epochs": None,
        "checkpointing": False,
        "na": ["", "NA"],
    }
    assert actual == expected
    assert Run(tmp_path / "run").model.config.window_size == 4


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("attn_pdrop=0.5", 0.5),
        ("n_inner=24", 24),
        ("n_inner=null", None),
        ("scale_attn_weights=false", False),
        ("activation_function=relu", "relu"),
        ('activation_function="relu"', "relu"),
        ("layer_norm_epsilon=1e-6", 1e-6),
    ],
)
def test_set_option_parses_json_or_text(
    tmp_path: Path, text: Path, word: str, value: object
) -> None:
    succeeded("train", text, "--out", tmp_path / "run", "--set", word, *OPTIONS, "--steps", "1")
    name = word.partition("=")[0]
    assert json.loads((tmp_path / "run" / "config.json").read_text())[name] == value


CARDS: list[dict[str, Any]] = [
    {},
    {"family": "lstm", "carry": False, "learning_rate": 0.00123456789, "config": {"tie_word_embeddings": True,
     "embedding_size": 16}, "dropout": 0.123456789},
    {"family": "gptneo", "config": {"attention_types": [[["local", "global"], 1]], "window_size": 4}, "accumulate": 2,
     "clip": 0.0, "floor": 1 / 3},
    {"tokenizer": "bpe", "vocab_size": 300, "sample": "it's \"a $HOME\"", "sample_tokens": 3, "seed": 2**62 + 1},
    {"start": "minhub/shakespeare-lstm", "layers": None, "width": None, "batch": 2, "steps": 2},
]  # fmt: skip


@pytest.mark.parametrize("settings", CARDS, ids=["plain", "lstm", "gptneo", "bpe", "fine-tuned"])
def test_the_model_cards_command_reproduces_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """The command in README.md, run in another folder with the same texts, gives a bitwise
    identical model.
    """
    names = ["a text.txt", "b.txt"]
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            (tmp_path / folder / name).write_text(verses(2000, seed=number))
    first = tmp_path / "first"
    train([first / name for name in names], first / "my run", **TINY | {"steps": 5} | settings)
    monkeypatch.chdir(tmp_path / "second")
    [arguments] = commands_of(first / "my run")
    succeeded(*arguments)
    actual, expected = (contents(tmp_path / folder / "my run") for folder in ("second", "first"))
    same(actual, expected)


def commands_of(run: Path) -> list[list[str]]:
    """The arguments of the commands in the model card."""
    [block] = re.findall(
        r"^```\n(.*?)\n```$", (run / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert {line[0] for line in lines} == {"minhub"}
    return [line[1:] for line in lines]


def test_the_model_card_records_changed_settings(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands before and after a change of steps reproduce the model; a resume without changes
    adds no command.
    """
    first, second = tmp_path / "first" / "run", tmp_path / "second" / "run"
    succeeded("train", text, "--out", first, *OPTIONS)
    succeeded("train", "--resume", first)
    assert len(commands_of(first)) == 1
    errors = succeeded(
        "train", "--resume", first, "--steps", "10", "--checkpoint-every", "5"
    ).stderr
    assert (
        "Note: from step 6 the learning rate follows a cosine that ends at step 10, not at 6"
        in errors
    )
    assert "Note" not in succeeded("train", "--resume", first).stderr.replace(
        "Note: the loss curves", ""
    )
    expected = [{"step": 6, "before": {"steps": 6, "checkpoint_every": 2}}]
    assert json.loads((first / "settings.json").read_text())["history"] == expected
    assert [(change.step, change.before) for change in Run(first).history] == [
        (6, expected[0]["before"])
    ]
    actual = json.loads(succeeded("compare", first, "--json").stdout)
    assert actual[0]["history"] == expected

    commands = commands_of(first)
    assert commands[1] == ["train", "--resume", "run", "--steps", "10", "--checkpoint-every", "5"]
    second.parent.mkdir()
    (second.parent / text.name).write_text(text.read_text())
    monkeypatch.chdir(second.parent)
    for command in commands:
        succeeded(*command)
    same(contents(second), contents(first))


def test_the_model_card_records_a_stop(tmp_path: Path, text: Path) -> None:
    """A run stops early and resumes with other settings; the last change at a step replaces earlier
    ones.
    """
    settings = TINY | {"steps": 12, "checkpoint_every": 12}
    run = tmp_path / "run"
    train(text, run, listener=Stop(), **settings)
    for steps in (20, 16):
        resume(run, listener=Stop(), steps=steps)
    resume(run, patience=5)
    assert [(change.step, change.before) for change in Run(run).history] == [
        (3, {"steps": 12, "patience": None})
    ]
    resume(run, steps=18, patience=None)
    card = (run / "README.md").read_text()
    assert "--steps 12 " in card or "--steps 12\n" in card
    assert "  # stopped after step 3\n" in card
    assert "\nminhub train --resume run --steps 16 --patience 5\n" in card
    assert "\nminhub train --resume run --steps 18  # without --patience\n" in card
    # Early versions wrote no history.
    values = json.loads((run / "settings.json").read_text())
    del values["history"]
    (run / "settings.json").write_text(json.dumps(values))
    assert resume(run).history == []


def test_a_run_on_standard_input_resumes_without_it(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run can be resumed without its input, and contains no copy of the text."""
    succeeded("train", text, "--out", tmp_path / "file" / "run", *OPTIONS)
    run = tmp_path / "pipe" / "run"
    result = CliRunner().invoke(main, ["train", "-", "--out", str(run), *OPTIONS], input=TEXT)
    assert result.exit_code == 0, result.output
    actual, expected = contents(run), contents(tmp_path / "file" / "run")
    assert (actual.pop("tokens/tokens.json"), expected.pop("tokens/tokens.json")) != (None, None)
    assert commands_of(run)[0][:2] == ["train", "-"]
    assert (actual.pop("README.md"), expected.pop("README.md")) != (None, None)
    same(actual, expected)
    succeeded("train", "--resume", run, "--steps", "7")
    for data, message in (("", "-: the text is empty"), (b"\xff" * 99, "- is not UTF-8 text")):
        result = CliRunner().invoke(
            main, ["train", "-", "--out", str(tmp_path / "new" / "run"), *OPTIONS], input=data
        )
        assert message in result.stderr
        assert not (tmp_path / "new").exists()
    assert "Use - once" in failed("train", "-", "-", "--out", tmp_path / "new", status=2)


def test_an_invalid_output_folder_is_reported(tmp_path: Path, text: Path) -> None:
    message = failed("train", text, "--out", "/proc/x", *OPTIONS)
    assert (
        "/proc/x cannot be written (No such file or directory): choose another folder (--out)"
        in message
    )


def test_messages_name_options(tmp_path: Path, text: Path) -> None:
    cases: list[tuple[list[object], str]] = [
        (["--context", 4000], "use a longer text, or --context 450"),
        (["--family", "lstm", "--batch", 300], "a smaller --batch or --context, or --no-carry"),
        (["--accumulate", 3], "--batch (4) must be a multiple of --accumulate (3)"),
        (["--from", "minhub/shakespeare-lstm", "--family", "gpt2"], "remove --family"),
    ]
    for arguments, message in cases:
        assert message in failed("train", text, "--out", tmp_path / "run", *OPTIONS, *arguments)


def test_other_commands_read_a_run(tmp_path: Path, text: Path) -> None:
    run = str(tmp_path / "run")
    succeeded("train", text, "--out", run, *OPTIONS)
    assert json.loads(succeeded("verify", run, "--json").stdout)["problems"] == []
    assert succeeded("generate", run, "the", "-n", "5").stdout.startswith("the")
    (tmp_path / "held_out.txt").write_text(TEXT[-400:])
    scores = json.loads(succeeded("score", run, tmp_path / "held_out.txt", "--json").stdout)
    assert scores["nats_per_token"] == pytest.approx(Run(run).best_loss, rel=0.01)
    assert json.loads(succeeded("inspect", run, "--json").stdout)["config"]["n_embd"] == 16


# --- Errors


def test_usage_errors_name_the_option(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    cases: list[tuple[list[object], str]] = [
        ([], "TEXT"),
        ([text], "--out"),
        (["--resume", run, text], "remove TEXT and --out"),
        (["--resume", run, "--out", run], "remove TEXT and --out"),
        ([text, "--out", text], "file"),
        ([text, "--out", run, "--family", "albert"], "albert"),
        ([text, "--out", run, "--steps", "0"], "steps"),
        ([text, "--out", run, "--dropout", "1"], "dropout"),
        ([text, "--out", run, "--held-out", "0"], "held-out"),
        ([text, "--out", run, "--speed", "2"], "--speed"),
        ([text, "--out", run, "--set", "window_size"], "--set window_size: use NAME=VALUE"),
        ([text, "--out", run, "--set", "=3"], "use NAME=VALUE"),
    ]
    for arguments, message in cases:
        assert message in failed("train", *arguments, status=2)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    assert failed("compare", status=2)


def test_failures_are_reported(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    succeeded("train", text, "--out", run, *OPTIONS)
    before = contents(tmp_path)
    missing = tmp_path / "missing"
    cases: list[tuple[list[object], str]] = [
        (["train", missing, "--out", tmp_path / "new", *OPTIONS], "does not exist: check its name"),
        (
            ["train", text, "--out", run],
            f"contains a run already: resume it with minhub train --resume {run}, or",
        ),
        (
            ["train", text, "--out", tmp_path / "new", "--beta2", "2"],
            "--beta2 must be between 0 and 0.99999",
        ),
        (
            ["train", text, "--out", tmp_path / "new", "--set", "speed=3"],
            "--set: unknown setting speed; the settings of gpt2 are",
        ),
        (
            ["train", text, "--out", tmp_path / "new", "--context", "5000"],
            "longer than the training text",
        ),
        (["train", "--resume", missing], "is not a run of minhub train"),
        (["train", "--resume", run, "--width", "32"], "--width cannot change"),
        (["train", "--resume", run, "--set", "n_inner=3"], "--set cannot change"),
        (["compare", missing], "is not a run of minhub train"),
        (["compare", run, "--plot", tmp_path / "plot.pdf"], "ends in .png"),
        (
            ["compare", run, "--plot", tmp_path / "plot.png"],
            "requires the Python package matplotlib: install with",
        ),
    ]
    for arguments, message in cases:
        assert message in failed(*arguments)
    new = ("train", text, "--out", tmp_path / "new")
    assert "device 'abacus' is unknown" in failed(*new, "--device", "abacus", status=2)
    same(contents(tmp_path), before)


def test_an_infinite_or_nan_loss_is_reported(tmp_path: Path, text: Path) -> None:
    call = [
        "train",
        text,
        "--out",
        tmp_path / "run",
        *OPTIONS,
        "--steps",
        "60",
        "--learning-rate",
        "100",
        "--weight-decay",
        "10",
        "--clip",
        "0",
        "--warm-up",
        "0",
    ]
    result = minhub(*call)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "the loss is infinite or NaN at step" in result.stderr.splitlines()[-1]


# --- Stopping and resuming


class Stop(Listener):
    """Stops before step 3."""

    def begins(self, trainer: Any) -> None:
        self.trainer = trainer

    def asks_to_stop(self) -> bool:
        return bool(self.trainer.progress.step >= 3)


def test_the_resume_option_continues_a_run(tmp_path: Path, text: Path) -> None:
    """--resume gives the same model, prints the step, and accepts more steps."""
    settings = {
        "layers": 1,
        "width": 16,
        "context": 16,
        "batch": 4,
        "steps": 6,
        "evaluate_every": 3,
        "checkpoint_every": 2,
        "threads": 1,
    }
    succeeded("train", text, "--out", tmp_path / "uninterrupted" / "run", *OPTIONS)
    train(text, tmp_path / "run", listener=Stop(), **settings)
    result = succeeded("train", "--resume", tmp_path / "run")
    assert "continues after step 3" in result.stderr
    same(contents(tmp_path / "run"), contents(tmp_path / "uninterrupted" / "run"))
    actual = json.loads(
        succeeded("train", "--resume", tmp_path / "run", "--steps", "8", "--json").stdout
    )
    assert (actual["steps"], actual["settings"]["steps"]) == (8, 8)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, -signal.SIGINT),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_a_signal_prints_the_command_to_resume(
    tmp_path: Path, text: Path, number: int, status: int
) -> None:
    """A process receives the signal after it prints an evaluation. Ctrl-C ends it by the signal
    itself, which a shell reports as status 130.
    """
    run = tmp_path / "my run"
    program = sys.executable if number == signal.SIGINT else python()
    words = [
        program,
        "-m",
        "minhub_py",
        "train",
        text,
        "--out",
        run,
        *OPTIONS,
        "--steps",
        "1000000",
    ]
    with subprocess.Popen(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if line.split()[:1] == ["3"]:
                    break
            process.send_signal(number)
            output, errors = process.communicate()
        finally:
            process.kill()
    assert process.returncode == status, errors
    assert output == ""
    assert "Traceback" not in errors
    assert f"minhub train --resume '{run}'" in errors
    newest = Run(run).files.newest()
    assert newest is not None
    assert int(newest.name[5:]) >= 3
    assert (run / "README.md").exists()


# --- Comparison


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: on characters, on longer tokens with a lower loss per character, and an untrained
    one.
    """
    root = tmp_path_factory.mktemp("runs")
    (root / "text.txt").write_text(verses(6000))
    settings = TINY | {"steps": 30, "evaluate_every": 10, "learning_rate": 0.01}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        train(root / "text.txt", root / "letters", family="lstm", **settings)
        train(
            root / "text.txt",
            root / "_tok$ens",
            tokenizer="bpe",
            vocab_size=400,
            **settings | {"width": 64},
        )
        train(root / "text.txt", root / "new", family="gptneo", **settings | {"learning_rate": 0.0})
    return root


def test_compare_sorts_runs_by_loss(runs: Path) -> None:
    """The run with the lowest loss per character is first, although its loss per token is the
    highest.
    """
    names = ["new", "letters", "_tok$ens"]
    actual = {run.folder.name: run for run in (Run(runs / name) for name in names)}
    result = succeeded("compare", *(runs / name for name in names))
    assert result.stderr == ""
    heading, *lines = result.stdout.splitlines()
    assert heading.split()[:3] == ["RUN", "MODEL", "PARAMETERS"]
    cells = [re.split(r" {2,}", line.strip()) for line in lines]
    per_character = {
        name: run.best_loss * run.corpus.held_out.count / run.corpus.characters
        for name, run in actual.items()
    }
    assert re.split(r" {2,}", heading)[7:9] == ["NATS PER TOKEN", "NATS PER CHARACTER"]
    assert [row[0] for row in cells] == sorted(names, key=per_character.__getitem__)
    assert cells[-1][0] == "new"
    for row in cells:
        run = actual[row[0]]
        assert row[1] == {"new": "GPT-Neo", "letters": "LSTM", "_tok$ens": "GPT-2"}[row[0]]
        assert row[2] == f"{sum(parameter.numel() for parameter in run.model.parameters()):,}"
        assert row[3] == ("bpe" if row[0] == "_tok$ens" else "characters")
        assert row[5:7] == ["30", f"{run.best['step']:.0f}"]
        assert row[7:9] == [f"{run.best_loss:.4f}", f"{per_character[row[0]]:.4f}"]
    assert per_character["_tok$ens"] < actual["_tok$ens"].best_loss / 1.5

    listed = json.loads(succeeded("compare", *(runs / name for name in names), "--json").stdout)
    assert [run["name"] for run in listed] == [row[0] for row in cells]
    assert [run["nats_per_character"] for run in listed] == pytest.approx(
        sorted(per_character.values())
    )


def test_compare_plots_the_curves(runs: Path, tmp_path: Path, pictures: None) -> None:
    """Any run name is supported, without a warning from matplotlib."""
    plot = tmp_path / "plot.png"
    result = succeeded(
        "compare", *(runs / name for name in ("letters", "_tok$ens", "new")), "--plot", plot
    )
    assert result.stderr == ""
    assert plot.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]
    message = failed("compare", runs / "letters", "--plot", tmp_path / "nowhere" / "plot.png")
    assert "does not exist" in message


def test_compare_requires_an_evaluation(tmp_path: Path, text: Path) -> None:
    train(text, tmp_path / "run", listener=Stop(), **TINY)
    (tmp_path / "run" / "losses.csv").write_text("step\n")
    assert "has no losses yet" in failed("compare", tmp_path / "run")
