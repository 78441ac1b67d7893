"""The examples run with their documented commands, and their output is correct."""

import ast
import contextlib
import csv
import importlib.util
import io
import math
import os
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from fast_python import programs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from minhub_py import (
    from_config,
    from_pretrained,
    generate,
    gpt2,
    gptneo,
    lstm,
    save_pretrained,
    score,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints.local import BUILTIN

EXAMPLES = Path(__file__).parent.parent / "examples"
NUMBER = r"(\d+\.\d+)"


def documented_commands() -> list[str]:
    """All commands in the docstrings of examples and in examples/README.md."""
    docstrings = [
        ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        for path in sorted(EXAMPLES.glob("*.py"))
    ]
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    commands = re.findall(
        r"^ *(python examples/.*)$", "\n".join([*docstrings, readme]), re.MULTILINE
    )
    return list(dict.fromkeys(commands))


def first_command(name: str, text: Path | None) -> list[str]:
    """The first command of an example's docstring, after `python`, with `text` for input.txt."""
    command = next(
        line for line in documented_commands() if line.startswith(f"python examples/{name}")
    )
    [_, script, *arguments] = shlex.split(command)
    return [script, *(str(text) if argument == "input.txt" else argument for argument in arguments)]


def run(name: str, *options: object, text: Path | None = None) -> str:
    """An example's output, run with the first command of its docstring and `options`.

    It runs in this process, where PyTorch is loaded; test_documented_commands starts processes.
    """
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.chdir(EXAMPLES.parent)
        patch.setattr(sys, "argv", [*first_command(name, text), *map(str, options)])
        runpy.run_path(sys.argv[0], run_name="__main__")
    return output.getvalue()


def mark_of(command: str) -> list[pytest.MarkDecorator]:
    """The marker of a command that downloads a model, or trains one for a minute or more."""
    if "answer_text.py" in command or re.search(r"--model (?!minhub/)", command):
        return [pytest.mark.hub]
    return [pytest.mark.soak] if "input.txt" in command else []


def load(name: str) -> ModuleType:
    """An example as a module; its name is not a valid module name."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(text: str) -> list[float]:
    return [float(word.replace(",", "")) for word in text.split()]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random sentences of a few long words: characters within words are predictable, words are not."""
    rng = random.Random(1)
    words = "morning evening river mountain window garden shadow silver winter summer candle letter".split()
    lines = [" ".join(rng.choices(words, k=7)) + ".\n" for _ in range(800)]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_readme_lists_all_numbered_examples() -> None:
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    path = re.findall(r"^ *python examples/(\S+)", readme, re.MULTILINE)
    assert path == sorted(file.name for file in EXAMPLES.glob("[0-9]*.py"))


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=mark_of(line)) for line in documented_commands()]
)
def test_documented_commands(command: str, text: Path, tmp_path: Path) -> None:
    """Run the command in a folder with the files that it names."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (tmp_path / "r_bridge").symlink_to(EXAMPLES.parent / "r_bridge")
    (tmp_path / "input.txt").symlink_to(text)
    shutil.copytree(BUILTIN / "shakespeare-lstm", tmp_path / "run")
    path = os.pathsep.join([str(programs()), os.environ["PATH"]])
    one_thread = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}  # as in conftest.py
    result = subprocess.run(
        shlex.split(command),
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        env=one_thread,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_write_text() -> None:
    lines = run("write_text.py").splitlines()
    perplexity = {line[10:]: float(line[:8]) for line in lines[-3:]}
    assert perplexity["What say you to my lord?"] < min(
        perplexity["Wht sy y t my lrd?"], perplexity["The GPU is too hot."]
    )


def test_answer_text(tmp_path: Path) -> None:
    """With random weights, each answer equals the answer of its prompt alone."""
    torch.manual_seed(1)
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -2.0),
        *((chr(i), -3.0) for i in range(33, 127)),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, 2, False))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    model = from_config(
        "t5",
        vocab_size=98,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
    ).eval()
    save_pretrained(model, tmp_path, tokenizer)
    lines = run("answer_text.py", "--model", tmp_path, "--new-tokens", 9).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "translation",
        "summary",
        "instruction",
        "premise",
        "positive",
        "negative",
    ]
    prompt = "Answer the question. Which animal says meow?"
    [answer] = generate(model, [tokenizer.encode(prompt).ids], 9, temperature=0)
    assert lines[2] == f"instruction: {tokenizer.decode(answer)}"
    nats = [float(re.search(NUMBER, line)[1]) for line in lines[4:]]
    question = "Review: I would see this film again tomorrow. Is the review positive or negative?"
    for word, loss in zip(("positive", "negative"), nats, strict=True):
        [logprobs] = score(
            model, [tokenizer.encode(question).ids], targets=[tokenizer.encode(word).ids]
        )
        assert loss == pytest.approx(-logprobs.mean().item(), abs=6e-4)


def test_reading_times() -> None:
    shown = run("reading_times.py")
    sentences = shown.splitlines()[:8]
    bits = [
        [float(number) for number in re.findall(r" (\d+\.\d)(?:  |$)", line)] for line in sentences
    ]
    assert [line.split()[:2][1] for line in sentences] == ["nan"] * 8  # first words have no context
    for usual, unusual in zip(bits[:6:2], bits[1:6:2], strict=True):
        assert sum(unusual) > sum(usual)
    assert bits[0][:4] == bits[1][:4]  # the words before the different one
    [ends] = re.findall(r"the king is …  dead\. (\S+)  come\. \S+  green\. (\S+)", shown)
    assert [float(end) for end in ends] == [bits[0][-1], bits[1][-1]]
    for value, error, rule in re.findall(rf"{NUMBER} ± {NUMBER}  \(rule: {NUMBER}\)", shown):
        assert abs(float(value) - float(rule)) < 3 * float(error)
    assert float(re.search(rf"surprisal explains {NUMBER}%", shown)[1]) > 5


@pytest.mark.slow
def test_lstm_characters(text: Path) -> None:
    window, steps = 8, 160
    shown = run(
        "1_lstm_characters.py", "--steps", steps, "--window", window, "--hidden", 64, text=text
    )
    letters = len(set(text.read_text()))
    assert (
        f"{letters} different ones; uniform guessing has a loss of log({letters}) ="
        f" {math.log(letters):.3f} nats" in shown
    )

    steps_and_losses = [
        (int(step), float(loss))
        for step, loss in re.findall(rf"step +(\d+) .*held out +{NUMBER}", shown)
    ]
    assert [step for step, _ in steps_and_losses] == 2 * list(range(0, steps + 1, steps // 4))
    losses = [loss for _, loss in steps_and_losses]
    for curve in (losses[:5], losses[5:]):
        assert curve[0] == pytest.approx(math.log(letters), abs=0.1)
        assert all(later < earlier for earlier, later in pairwise(curve))
        assert curve[-1] < 0.6 * curve[0]

    carried, zero = (
        numbers(re.search(rf"^  {name} +(.*)$", shown, re.MULTILINE)[1])
        for name in ("carried", "zero")
    )
    assert re.search(r"^  position .*$", shown, re.MULTILINE)[0].split() == [
        "position",
        "1",
        "2",
        "4",
        "8",
        "all",
    ]
    assert carried[-1] == losses[4]
    assert zero[-1] == losses[9]
    assert zero[-1] - carried[-1] > 0.08  # the first of eight characters have no context
    # the difference is at the start of a window
    assert zero[0] - carried[0] > 3 * abs(zero[3] - carried[3])
    assert float(re.search(rf"gains {NUMBER} nats", shown)[1]) == pytest.approx(
        zero[-1] - carried[-1], abs=0.0011
    )
    learning = [float(loss) for loss in re.findall(rf"step +{steps}  training +{NUMBER}", shown)]
    assert learning[1] - learning[0] > 0.08

    by_train = float(re.search(rf"by train.*: {NUMBER} nats", shown)[1])
    assert by_train == pytest.approx(carried[-1], abs=0.1)


def test_bpe_gpt(text: Path) -> None:
    shown = run(
        "2_bpe_gpt.py", "--vocab-size", 300, "--steps", 60, "--layers", 1, "--width", 32, text=text
    )
    learnt = text.read_text()[: int(text.stat().st_size * 0.9)]

    splits = re.findall(r"^ +(\d+) tokens: +(\d+) for (\d+) characters  (.*)$", shown, re.MULTILINE)
    assert [int(size) for size, *_ in splits] == [257, 278, 300]
    counts = [int(count) for _, count, *_ in splits]
    assert counts[0] == int(splits[0][2])  # bytes
    assert all(later < earlier for earlier, later in pairwise(counts))
    ends = []  # where tokens end
    for _, count, length, shown_pieces in splits:
        pieces = shown_pieces.split("|")
        assert len(pieces) == int(count)
        assert len("".join(pieces)) == int(length)
        assert "".join(pieces) in text.read_text()
        ends.append({len("".join(pieces[:i])) for i in range(len(pieces))})
    assert ends[2] < ends[1] < ends[0]  # tokens are merged, never split

    first = ast.literal_eval(re.search(r"first merges: ('.*?')(?: '|$)", shown, re.MULTILINE)[1])
    pairs = Counter(
        "".join(pair) for word in re.findall(r" ?[a-z]+", learnt) for pair in pairwise(word)
    )
    assert pairs[first] == max(pairs.values())
    foreign = re.search(r"unknown: '(.*)' is (\d+) tokens, which decode to '(.*)'", shown)
    assert foreign[1] == foreign[3]
    assert int(foreign[2]) == len(foreign[1].encode())

    rows = {
        name: numbers(row)
        for name, row in re.findall(r"^  (characters|BPE) +([\d., ]+)$", shown, re.MULTILINE)
    }
    for size, read, length, per_token, per_character in rows.values():
        assert read == pytest.approx(60 * 16 * 64 * length, rel=1e-3)
        assert per_character == pytest.approx(per_token / length, abs=0.0015)
        assert per_token < math.log(size) - 0.5  # better than uniform guessing
    characters, bpe = rows["characters"], rows["BPE"]
    assert (characters[0], characters[2], bpe[0]) == (len(set(text.read_text())), 1, 300)
    assert bpe[2] > 2
    assert bpe[3] > characters[3]  # higher per token
    assert bpe[4] < characters[4]


@pytest.mark.slow
def test_sampling() -> None:
    prompt = "ROMEO:\nWhat s"
    lines = (shown := run("3_sampling.py", "--prompt", prompt)).splitlines()
    names = lines[1].split()
    assert names == ["greedy", "t=1", "t=0.5", "t=1.5", "top-k=5", "top-p=0.9"]
    model = from_pretrained("minhub/shakespeare-gpt2", device="cpu")
    tokenizer = tokenizer_from_pretrained("minhub/shakespeare-gpt2")
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(prompt).ids]))[0].double().numpy()

    # The table, computed by sorting.
    p = np.exp(logits[-1]) / np.exp(logits[-1]).sum()
    order = np.argsort(-p)
    weights = {"t=0.5": p**2, "t=1": p, "t=1.5": p ** (1 / 1.5)}
    for name, count in {
        "greedy": 1,
        "top-k=5": 5,
        "top-p=0.9": 1 + int((np.cumsum(p[order]) < 0.9).sum()),
    }.items():
        weights[name] = np.where(np.isin(np.arange(len(p)), order[:count]), p, 0)
    expected = np.stack([weights[name] / weights[name].sum() for name in names], axis=1)
    rows = [line[11:].split() for line in lines[2:17]]
    table = np.array([[0.0 if cell == "." else float(cell) for cell in row] for row in rows])
    assert [ast.literal_eval(line[:11].strip()) for line in lines[2:14]] == [
        tokenizer.decode([i]) for i in order[:12]
    ]
    np.testing.assert_allclose(table[:12], expected[order[:12]], atol=6e-4)
    np.testing.assert_allclose(table[12], expected[order[12:]].sum(axis=0), atol=6e-4)
    np.testing.assert_array_equal(table[13], (expected > 0).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(
            table[14], -np.nansum(expected * np.log(expected), axis=0), atol=6e-4
        )
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    counts = [1 + int((np.cumsum(-np.sort(-row)) < 0.9).sum()) for row in probs]
    assert [int(count) for count in re.findall(r"' (\d+)", lines[19])] == counts

    # Each text contains only tokens that its method allows, and greedy repeats itself.
    parts = re.findall(
        rf"^(\S+): (\d+)% .* {NUMBER} nats per token\n((?:    .*\n)+)", shown, re.MULTILINE
    )
    assert [name for name, *_ in parts] == names
    distinct, losses = {}, {}
    for name, percent, nats, indented in parts:
        new = re.sub("^    ", "", indented, flags=re.MULTILINE)[:-1].removeprefix(prompt)
        assert len(new) == 300
        with torch.no_grad():  # up to the context length
            ids = torch.tensor(tokenizer.encode(prompt + new).ids[:200])
            probs = model(ids[None])[0, len(prompt) - 1 : -1].double().softmax(dim=-1)
        ranked = probs.sort(descending=True)
        ranks = (ranked.indices == ids[len(prompt) :, None]).int().argmax(dim=-1, keepdim=True)
        before = (ranked.values.cumsum(dim=-1) - ranked.values).gather(
            1, ranks
        )  # total probability of more likely tokens
        assert int(ranks.max()) < {"greedy": 1, "top-k=5": 5}.get(name, 65)
        assert float(before.max()) < {"top-p=0.9": 0.9 + 1e-4}.get(name, 1.1)
        substrings = [new[i : i + 8] for i in range(293)]
        assert float(percent) == pytest.approx(100 * len(set(substrings)) / 293, abs=0.51)
        distinct[name], losses[name] = float(percent), float(nats)
    assert distinct.pop("greedy") < 0.8 * min(distinct.values())
    assert losses["greedy"] < losses["t=0.5"] < losses["t=1"] < losses["t=1.5"]
    assert losses["greedy"] < min(losses["top-k=5"], losses["top-p=0.9"]) < losses["t=1"]


def test_local_attention() -> None:
    shown = run("4_local_attention.py", "--window", 16, "--longest", 64)
    masks = [line.split() for line in shown.splitlines()[2:10]]
    for query, row in enumerate(masks):
        assert row[:8] == ["x" if key <= query else "." for key in range(8)]
        assert row[8:] == ["x" if key in (query - 2, query - 1, query) else "." for key in range(8)]

    differences = [
        float(value) for value in re.findall(r"(\d\.\de[+-]\d\d) of the largest value", shown)
    ]
    assert len(differences) == 4
    assert differences[0] < 1e-5
    assert min(differences[1:]) > 0.01

    costs = [
        numbers(line)[:4]
        for line in re.findall(r"^ +\d+(?: +[\d,]+){3} +\d+\.\d+ +\d+\.\d+$", shown, re.MULTILINE)
    ]
    assert costs == [
        [T, T * (T + 1) / 2, T * 16 - 16 * 15 / 2, T * min(T, 32)] for T in (16, 32, 64)
    ]

    reached = re.findall(r"^  ([.x ]+)  +(\d+)  (local.*)$", shown, re.MULTILINE)
    assert [(int(count), kinds.count("local")) for _, count, kinds in reached[:-1]] == [
        (4, 1),
        (7, 2),
        (10, 3),
        (16, 5),
    ]
    assert reached[-1][1:] == ("24", "local, global")
    for row, count, _ in reached:
        assert row.replace(" ", "") == "." * (24 - int(count)) + "x" * int(count)


def test_count_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unusual = {
        "gpt2": gpt2(
            vocab_size=11,
            n_positions=7,
            n_embd=6,
            n_layer=3,
            n_head=2,
            n_inner=5,
            tie_word_embeddings=False,
        ),
        "gptneo": gptneo(
            vocab_size=11,
            max_position_embeddings=7,
            hidden_size=6,
            num_layers=3,
            num_heads=2,
            intermediate_size=5,
            tie_word_embeddings=False,
        ),
        "lstm": lstm(
            vocab_size=11, embedding_size=4, hidden_size=4, num_layers=3, tie_word_embeddings=True
        ),
    }
    for name, model in unusual.items():
        save_pretrained(model, tmp_path / name)
    published = {  # as counted by the Hub or the papers' code
        "gpt2": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
        "gpt-neo-125m": 125_198_592,
        "gpt-neo-1.3B": 1_315_575_808,
        "gpt-neo-2.7B": 2_651_307_520,
    }
    shown = run("5_count_parameters.py", *published, *(tmp_path / name for name in unusual))
    table = re.findall(
        r"^(\S+) +([\d,]+) +([\d,]+) +(?:[\d.]+%|-) ", shown.split("\nmodel ")[1], re.MULTILINE
    )
    sizes = [
        *published.values(),
        *(sum(p.numel() for p in model.parameters()) for model in unusual.values()),
    ]
    assert [name for name, *_ in table] == [*published, *(str(tmp_path / name) for name in unusual)]
    assert [numbers(f"{formula} {counted}") for _, formula, counted in table] == [
        [size, size] for size in sizes
    ]

    with pytest.raises(SystemExit, match="2"):
        run("5_count_parameters.py", "gpt-neox-20b")
    assert (
        "gpt-neox-20b is a gptneox; this page has formulas for gpt2, gptneo, lstm"
        in capsys.readouterr().err
    )

    for model, total in (("gpt2", published["gpt2"]), ("minhub/shakespeare-lstm", None)):
        [terms] = re.findall(rf"^{model}, term by term:\n((?: .*\n)+)", shown, re.MULTILINE)
        values = [
            int(value.replace(",", ""))
            for value in re.findall(r" ([\d,]+)(?: +[\d.]+%)?$", terms, re.MULTILINE)
        ]
        assert sum(values[:-1]) == values[-1]
        assert total in (None, values[-1])
        shares = [float(share) for share in re.findall(r"([\d.]+)%", terms)]
        assert shares == [
            pytest.approx(100 * value / values[-1], abs=0.051) for value in values[:-1]
        ]


@pytest.mark.parametrize("part", ["wte", "h", "total"])
def test_count_parameters_detects_a_wrong_formula(part: str) -> None:
    example = load("5_count_parameters.py")
    summary = example.inspect("gpt2")
    terms = example.FORMULAS[summary["family"]](summary["config"])
    counted = summary["parameters"]
    assert example.check("gpt2", terms, counted) == counted["total"]
    with pytest.raises(
        ValueError, match=f"gpt2: the formula gives .*'{part}': {counted[part]}.*, the model has"
    ):
        example.check("gpt2", terms, counted | {part: counted[part] + 1})


def test_sinusoidal_positions(text: Path) -> None:
    options = ("--vocab-size", 257, "--steps", 150, "--layers", 1, "--width", 32, "--context", 16)
    shown = run("6_sinusoidal_positions.py", *options, text=text)
    distances = numbers(re.search(r"^  from +(.*)$", shown, re.MULTILINE)[1])
    assert distances == [0, 1, 2, 4, 8, 15]
    clocks = 10000 ** -(np.arange(0, 32, 2) / 32)
    expected = np.cos(np.outer(distances, clocks)).mean(axis=1)
    rows = re.findall(r"^  +(\d+)  ((?: +-?\d\.\d{3})+)$", shown, re.MULTILINE)
    assert [int(position) for position, _ in rows] == [0, 5, 16]
    for _, row in rows:
        np.testing.assert_allclose(numbers(row), expected, atol=6e-4)
    best = float(re.search(rf"steps: {NUMBER} nats", shown)[1])
    assert best < math.log(257) - 2  # better than uniform guessing
    losses = {
        name: float(loss)
        for name, loss in re.findall(rf"^  (\S.*?) +{NUMBER} nats", shown, re.MULTILINE)
    }
    assert [*losses] == ["as trained", "half a context later", "one for all"]
    assert abs(losses["as trained"] - best) < 0.2
    assert losses["as trained"] < losses["one for all"] - 0.01
    prompt = " ".join(text.read_text().split()[:3])
    assert len(shown.split(f"[{prompt}]")[1]) > 80


def test_embed_text() -> None:
    """The best layer separates old and modern English, and the most similar sentences are old as
    well.
    """
    lines = run("embed_text.py").splitlines()
    accuracies = [
        int(percent)
        for percent in re.findall(r"^layer \d+: (\d+)% correct$", "\n".join(lines), re.MULTILINE)
    ]
    assert len(accuracies) == 7
    assert max(accuracies) > 85
    assert max(accuracies) > accuracies[0]
    with (EXAMPLES.parent / "r_bridge/minhubpy/inst/extdata/sentences.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        kinds = {row["sentence"]: row["english"] for row in csv.DictReader(file)}
    assert Counter(kinds.values()) == {"old": 32, "new": 32}
    assert [kinds[line[8:]] for line in lines[-3:]] == ["old"] * 3
