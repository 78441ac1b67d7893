"""Training on examples: completions, chats, preference pairs, labels and masked words."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from needs import missing, needs, require
from small_models import tokenizer as words
from training_runs import BUILT_IN, Notes, contents, held_out_losses, in_a_child, same

from minhub_py import (
    classify,
    from_config,
    from_pretrained,
    generate,
    llama,
    resume,
    save_adapter,
    save_pretrained,
    score,
    train,
)
from minhub_py.checkpoints import local
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.cli.main import main
from minhub_py.models.encoder import Classifier
from minhub_py.system.device import has_onednn_bfloat16
from minhub_py.training import Listener, Run
from minhub_py.training.data import read_corpus
from minhub_py.training.examples import ExampleCorpus, Examples
from minhub_py.training.objectives import ExampleTask

START = BUILT_IN["gpt2"]
QUICK: dict[str, Any] = {
    "start": START,
    "context": 64,
    "threads": 1,
    "progress": False,
    "dtype": "float32",
}
PAIRS = [("red", "blue"), ("one", "two"), ("up", "down"), ("yes", "no")]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def completions(folder: Path) -> Path:
    return write(
        folder / "data.jsonl", [{"prompt": f"{a}:", "completion": b} for a, b in PAIRS * 6]
    )


def test_examples_have_an_estimate_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the held-out examples are a single batch. It counts the evaluated examples only."""
    events: list[str] = []
    ratios: list[float] = []  # of the duration of the evaluations and of a step

    class Order(Listener):
        def estimated(
            self, seconds: float, steps: int, evaluations: int, step_seconds: float
        ) -> None:
            assert (seconds > steps * step_seconds > 0, steps, evaluations) == (True, 2, 3)
            events.append("estimated")
            ratios.append((seconds - steps * step_seconds) / step_seconds)

        def working(self, step: int, task: str, number: int, count: int) -> None:
            assert (task, count) != ("evaluation", 2)
            events.append(task)

    options = QUICK | {"lora": 2, "steps": 2, "evaluate_every": 1, "listener": Order()}
    run = train(completions(tmp_path), tmp_path / "run", **options, evaluate_tokens=1)
    assert events[:3] == ["evaluation", "estimated", "step"]
    assert events.count("estimated") == 1
    examples = run.corpus.train
    step = run.settings.batch * len(examples.ids) / len(examples)
    assert ratios == [pytest.approx(3 * run.corpus.held_out.length(0) / (3 * step))]
    train(
        completions(tmp_path),
        tmp_path / "shown",
        **QUICK | {"steps": 1, "accumulate": 2, "progress": True},
    )
    assert "\neach step in at most 2 parts, which limits" in capsys.readouterr().err


def test_a_large_model_has_small_parts() -> None:
    """SmolLM2-135M's activations take about 1.8 MB per token; the logits of all tokens, 0.8 MB."""
    from minhub_py.models.llama import Llama, LlamaConfig
    from minhub_py.training.memory import parts_of, tokens_in_memory

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
    )
    assert tokens_in_memory(config, Llama, 2**30) == 512
    assert tokens_in_memory(config, Llama, 2**28) == 128
    assert tokens_in_memory(config, Llama, 2**30, sliced=False) == 256
    assert [parts_of(16, 55, tokens) for tokens in (2048, 128, 32)] == [1, 8, 16]


MANY_SHAPES = """
import ctypes, sys
import torch
from minhub_py.system.heap import release_free_pages
from minhub_py.training.memory import limit_kernel_cache

def resident():
    release_free_pages()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

limit_kernel_cache()
weight = torch.randn(576, 1536, dtype=torch.bfloat16)
for length in range(1, 301):
    torch.nn.functional.linear(torch.randn(length, 1536, dtype=torch.bfloat16), weight)
    if length == 1:
        first = resident()
print(resident() - first)
"""


@needs("Linux")
def test_code_for_many_lengths_takes_no_memory() -> None:
    """Without a limit, oneDNN keeps the code of 300 products: 180 MB here."""
    require(has_onednn_bfloat16(), "oneDNN has no bfloat16 products for this processor")
    environment = {
        name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name
    }
    child = subprocess.run(
        [sys.executable, "-c", MANY_SHAPES],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 80e6


def test_micro_batches_have_the_smallest_possible_maximum_size() -> None:
    """Padded tokens of the largest group, compared with all divisions into contiguous groups."""

    from minhub_py.training.memory import groups_of

    assert groups_of([60, 60, 60, 60, 60, 60, 180, 190], 2) == [slice(0, 6), slice(6, 8)]
    generator = Random(0)
    for _ in range(50):
        lengths = sorted(generator.randint(1, 40) for _ in range(generator.randint(1, 8)))
        count = generator.randint(1, len(lengths))
        divisions = [
            [0, *cuts, len(lengths)]
            for parts in range(count)
            for cuts in combinations(range(1, len(lengths)), parts)
        ]
        sizes = [
            max((last - first) * lengths[last - 1] for first, last in pairwise(ends))
            for ends in divisions
        ]
        groups = groups_of(lengths, count)
        assert len(groups) <= count
        assert [index for group in groups for index in range(len(lengths))[group]] == list(
            range(len(lengths))
        )
        assert max((group.stop - group.start) * lengths[group.stop - 1] for group in groups) == min(
            sizes
        )


@pytest.mark.slow
def test_an_adapter_learns_completions(tmp_path: Path) -> None:
    """The loss of the first evaluation is the mean over completion tokens alone; greedy answers are
    learned.
    """
    path = completions(tmp_path)
    run = train(
        path, tmp_path / "run", lora=8, learning_rate=0.01, epochs=24, batch=8, dropout=0.0, **QUICK
    )
    assert run.settings.steps == math.ceil(24 * len(run.corpus.train) / 8)
    tokenizer, base = read_tokenizer(run.folder), from_pretrained(START)
    held_out = run.corpus.held_out
    expected, count = 0.0, 0
    for ids, weights in held_out.sequences(range(len(held_out))):
        [logprobs] = score(base, [ids.tolist()])
        expected -= float((logprobs * weights[1:]).sum())
        count += int(weights[1:].sum())
    assert run.losses[0]["held_out_loss"] == pytest.approx(expected / count, rel=1e-4)
    assert run.best_loss < 0.1 * run.losses[0]["held_out_loss"]
    for prompt, answer in PAIRS:
        [new] = generate(
            run.model, [tokenizer.encode(f"{prompt}:").ids], len(answer), temperature=0
        )
        assert tokenizer.decode(new) == answer


@pytest.mark.slow
def test_runs_on_examples_resume_bitwise(tmp_path: Path) -> None:
    path = completions(tmp_path)
    for number, settings in enumerate(
        (
            {"lora": {"r": 2, "invocation": ":"}},
            {"lora": {"r": 2, "dropout": 0.1}, "checkpointing": True, "quantize": "int8"},
        )
    ):
        options = (
            QUICK
            | {"steps": 6, "evaluate_every": 3, "checkpoint_every": 2, "accumulate": 2, "batch": 4}
            | settings
        )
        options.pop("progress")
        name = str(number)
        whole = train(path, tmp_path / name / "whole" / "run", listener=Notes(), **options)
        train(path, tmp_path / name / "parts" / "run", listener=Notes(stop=5), **options)
        same(
            contents(resume(tmp_path / name / "parts" / "run", progress=False).folder),
            contents(whole.folder),
        )


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_adapter_is_identical_after_kills_at_random_moments(tmp_path: Path) -> None:
    """SIGKILL at 20 moments over the whole run, then a resume."""
    path = completions(tmp_path)
    settings = QUICK | {
        "lora": {"r": 2, "dropout": 0.1},
        "quantize": "int8",
        "steps": 12,
        "evaluate_every": 3,
        "checkpoint_every": 2,
        "accumulate": 2,
        "batch": 4,
    }
    started = time.perf_counter()
    expected = contents(train(path, tmp_path / "whole" / "run", **settings).folder)
    duration = time.perf_counter() - started
    random = Random(0)
    killed = 0
    for number in range(60):
        folder = tmp_path / str(number) / "run"
        work = partial(train, path, folder, **settings)
        delay = random.uniform(0.05, 1) * duration
        if in_a_child(killed_after, delay, work) != -signal.SIGKILL or not folder.is_dir():
            continue
        with suppress(FileNotFoundError):  # killed before the record of the preparation
            resume(folder, progress=False)
            same(contents(folder), expected)
            killed += 1
        if killed == 20:
            break
    assert killed == 20


def killed_after(seconds: float, work: Callable[[], object]) -> None:
    """Call `work`, without matplotlib as in the tests, and kill this process during it."""
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
    work()


def test_accumulation_and_checkpointing_do_not_change_the_loss(tmp_path: Path) -> None:
    path = completions(tmp_path)
    options = QUICK | {"lora": 2, "steps": 3, "batch": 8, "evaluate_every": 1, "dropout": 0.0}
    losses = [
        held_out_losses(train(path, tmp_path / str(index), **options, **more))
        for index, more in enumerate(
            ({"accumulate": 1}, {"accumulate": 8}, {"accumulate": 4, "checkpointing": True})
        )
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


def test_preference_pairs_start_at_ln_2(tmp_path: Path) -> None:
    rows = [{"prompt": f"{a}:", "chosen": b, "rejected": b[::-1] + "x"} for a, b in PAIRS * 4]
    path = write(tmp_path / "pairs.jsonl", rows)
    run = train(path, tmp_path / "run", lora=4, learning_rate=0.01, steps=12, batch=8, **QUICK)
    assert run.settings.objective == "preference"
    assert run.losses[0]["held_out_loss"] == pytest.approx(math.log(2), abs=1e-7)
    assert run.best_loss < 0.5
    with pytest.raises(ValueError, match="preference pairs need lora=16"):
        train(path, tmp_path / "full", steps=1, **QUICK)


def test_chats_train_on_replies_only(tmp_path: Path) -> None:
    shutil.copytree(local.BUILTIN / "shakespeare-gpt2", tmp_path / "base")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}assistant:{% endif %}"
    (tmp_path / "base" / "chat_template.jinja").write_text(template)
    rows = [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}
        for a, b in PAIRS * 4
    ]
    path = write(tmp_path / "chats.jsonl", rows)
    options = QUICK | {
        "start": str(tmp_path / "base"),
        "learning_rate": 0.01,
        "epochs": 12,
        "batch": 8,
        "dropout": 0.0,
    }
    run = train(path, tmp_path / "run", lora=8, **options)
    assert run.settings.objective == "chat"
    ids, weights = run.corpus.train.sequences([0])[0]
    assert run.tokenizer.decode(ids[weights > 0].tolist()) in [f" {b}\n" for _, b in PAIRS]
    assert run.best_loss < 0.3 * run.losses[0]["held_out_loss"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with a masked-LM head and a WordPiece tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"good bad film play fine poor a the was is".split(),
    ]
    tokenizer = Tokenizer(
        models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.Whitespace(),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    model = from_config(
        "bert",
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        architectures=["BertForMaskedLM"],
    )
    save_pretrained(model, folder, tokenizer)
    return folder


def test_an_encoder_learns_labels_and_numbers(tmp_path: Path, encoder: Path) -> None:
    texts = [
        (f"{first} {noun} was {word}", word in ("good", "fine"))
        for first in ("a", "the")
        for noun in ("film", "play")
        for word in ("good", "bad", "fine", "poor")
    ] * 3
    labels = write(
        tmp_path / "labels.jsonl",
        [{"text": t, "label": "yes" if good else "no"} for t, good in texts],
    )
    options = QUICK | {"start": str(encoder), "learning_rate": 3e-3, "epochs": 20.0}
    run = train(labels, tmp_path / "run", **options)
    assert run.settings.objective == "labels"
    assert run.best_loss < 0.3
    assert run.model.config.labels == ["no", "yes"]
    answers = classify(run.model, run.tokenizer, ["the film was good", "a play was poor"])
    assert answers["label"] == ["yes", "no"]
    numbers = write(
        tmp_path / "numbers.jsonl",
        [{"text": t, "label": "1.5" if good else "-0.5"} for t, good in texts],
    )
    regression = train(numbers, tmp_path / "regression", **options)
    assert regression.model.config.problem_type == "regression"
    with torch.no_grad():
        idx = torch.tensor([regression.tokenizer.encode("the film was fine").ids])
        assert regression.model(idx).item() == pytest.approx(1.5, abs=0.7)
    assert (
        "| held-out loss | " + f"{regression.best_loss:.4f} mean squared error, at"
        in (tmp_path / "regression" / "README.md").read_text()
    )

    # Each unit has its own table, although the losses of the regression are between those of the
    # labels.
    folders = [str(tmp_path / name) for name in ("run", "regression", "copy")]
    shutil.copytree(folders[0], folders[2])
    result = CliRunner().invoke(main, ["compare", *folders])
    assert result.exit_code == 0, result.output
    labels_table, numbers_table = (table.splitlines() for table in result.output.split("\n\n"))
    assert [labels_table[0], numbers_table[0]] == [
        "Losses in nats per label",
        "Losses in mean squared error",
    ]
    columns = [re.split(r" {2,}", table[1]) for table in (labels_table, numbers_table)]
    assert [names[7] for names in columns] == ["NATS PER LABEL", "MEAN SQUARED ERROR"]
    assert [names[8:10] for names in columns] == [["ACCURACY", "MACRO F1"], ["R2", "TOKENS/S"]]
    assert [line.split()[0] for line in labels_table[2:]] == ["run", "copy"]
    assert [line.split()[0] for line in numbers_table[2:]] == ["regression"]
    listed = json.loads(CliRunner().invoke(main, ["compare", *folders, "--json"]).output)
    units = [(item["name"], item["unit"], item["nats_per_character"]) for item in listed]
    assert units == [
        ("run", "nats per label", None),
        ("copy", "nats per label", None),
        ("regression", "mean squared error", None),
    ]
    with pytest.raises(ValueError, match="its losses are in mean squared error"):
        _ = regression.nats_per_character
    if not missing("matplotlib"):
        plot = ["--plot", str(tmp_path / "plot.png")]
        assert CliRunner().invoke(main, ["compare", folders[0], folders[2], *plot]).exit_code == 0
        result = CliRunner().invoke(main, ["compare", *folders, *plot])
        assert (
            "different units (nats per label, mean squared error): plot runs of one unit"
            in result.output
        )


def test_texts_of_one_token_have_labels(tmp_path: Path) -> None:
    tokenizer = words()
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = llama(
        vocab_size=tokenizer.get_vocab_size(), num_key_value_heads=2, pad_token_id=0, **sizes
    )
    save_pretrained(model, tmp_path / "llama", tokenizer)
    rows = [
        {"text": text, "label": label}
        for text, label in (("cat", "a"), ("dog", "b"), ("the dog", "a"))
    ] * 4
    options = QUICK | {"start": str(tmp_path / "llama"), "steps": 1}
    run = train(write(tmp_path / "labels.jsonl", rows), tmp_path / "run", **options)
    assert run.corpus.train.count + run.corpus.held_out.count == 12


@pytest.mark.parametrize("lora", [None, 4])
def test_measures_equal_those_of_the_best_model_on_the_held_out_texts(
    tmp_path: Path, encoder: Path, lora: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a run from an earlier version, whose losses.csv has no measures."""
    rows = [
        {"text": f"{first} {noun} {verb} {word}", "label": label}
        for first in ("a", "the")
        for noun in ("film", "play")
        for verb in ("was", "is")
        for word, label in (("good", "yes"), ("bad", "no"), ("fine", "perhaps"), ("poor", "no"))
    ]
    rows += [row | {"label": "perhaps"} for row in rows[::3]]  # not predictable
    options = QUICK | {"start": str(encoder), "learning_rate": 1e-2, "epochs": 30, "held_out": 0.5}
    options |= {"progress": True, "metrics": tmp_path / "metrics.jsonl"} | (
        {"lora": lora} if lora else {}
    )
    run = train(write(tmp_path / "labels.jsonl", rows), tmp_path / "run", **options)
    held_out = run.corpus.held_out
    assert isinstance(held_out, Examples)
    assert held_out.labels is not None
    text_of = {tuple(run.tokenizer.encode(row["text"]).ids): row["text"] for row in rows}
    texts = [text_of[tuple(ids.tolist())] for ids, _ in held_out.sequences(range(len(held_out)))]
    coded = [["no", "perhaps", "yes"][int(label)] for label in held_out.labels]
    predicted = classify(run.model, run.tokenizer, texts)["label"]
    hits = [a for a, b in zip(coded, predicted, strict=True) if a == b]
    used = set(coded) | set(predicted)
    f1 = sum(
        2 * hits.count(name) / (coded.count(name) + predicted.count(name)) for name in used
    ) / len(used)
    expected = {"accuracy": pytest.approx(len(hits) / len(coded)), "f1_macro": pytest.approx(f1)}
    assert 0.4 < len(hits) / len(coded) < 1
    assert {name: run.best.get(name) for name in expected} == expected
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in lines if "held_out_loss" in line] == [
        row["accuracy"] for row in run.losses
    ]
    shown = rf"ACCURACY +MACRO F1 [^|]* {run.best['accuracy']:.4f} +{run.best['f1_macro']:.4f} "
    assert re.search(shown, capsys.readouterr().err)
    assert re.search(shown, CliRunner().invoke(main, ["compare", str(run.folder)]).output)
    assert f"| accuracy | {run.best['accuracy']:.4f} |" in (run.folder / "README.md").read_text()

    path = run.folder / "losses.csv"
    old = path.read_text().splitlines()
    path.write_text("".join(line.rsplit(",", 2)[0] + "\n" for line in old))
    assert "accuracy" not in Run(run.folder).best
    resumed = resume(run.folder, progress=False, steps=run.settings.steps + 1)
    assert [math.isnan(row["accuracy"]) for row in resumed.losses] == [True] * len(old[1:]) + [
        False
    ]


def test_r_squared_equals_that_of_the_best_model_on_the_held_out_texts(
    tmp_path: Path, encoder: Path
) -> None:
    rows = [
        {"text": f"{first} {noun} {verb} {word}", "label": label + len(noun + verb) / 10}
        for first in ("a", "the")
        for noun in ("film", "play")
        for verb in ("was", "is")
        for word, label in (("good", 2.5), ("bad", -1.5), ("fine", 1.5), ("poor", 0.5))
    ]
    options = QUICK | {"start": str(encoder), "learning_rate": 1e-2, "epochs": 30, "held_out": 0.4}
    run = train(write(tmp_path / "numbers.jsonl", rows), tmp_path / "run", **options)
    held_out, model = run.corpus.held_out, run.model
    assert isinstance(held_out, Examples)
    assert held_out.labels is not None
    with torch.no_grad():
        scores = [model(ids[None]).item() for ids, _ in held_out.sequences(range(len(held_out)))]
    expected = 1 - (held_out.labels - torch.tensor(scores)).square().mean() / held_out.labels.var(
        correction=0
    )
    assert expected > 0.1
    assert run.best["r_squared"] == pytest.approx(expected.item(), rel=1e-4)
    assert "accuracy" not in run.best


def decoder(folder: Path, bpe_folder: Path) -> Path:
    """A small Llama without a classification head."""
    torch.manual_seed(0)
    model = llama(
        vocab_size=600,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    save_pretrained(model, folder, read_tokenizer(bpe_folder))
    return folder


def test_a_decoder_learns_labels(tmp_path: Path, bpe_folder: Path) -> None:
    decoder(tmp_path / "base", bpe_folder)
    rows = [
        {"text": word, "label": str(index)}
        for word, index in (("red", 0), ("blue", 1), ("green", 2))
    ] * 8
    path = write(tmp_path / "labels.jsonl", rows)
    run = train(
        path,
        tmp_path / "run",
        **(QUICK | {"start": str(tmp_path / "base"), "learning_rate": 5e-3, "epochs": 10}),
    )
    assert isinstance(run.model, Classifier)
    assert run.best_loss < 0.3


@pytest.mark.parametrize("base", ["encoder", pytest.param("decoder", marks=pytest.mark.slow)])
def test_an_adapter_learns_labels_with_a_head_of_its_own(
    tmp_path: Path, encoder: Path, bpe_folder: Path, base: str
) -> None:
    """Trained, resumed, loaded, saved and merged; the base keeps its own head."""
    start = encoder if base == "encoder" else decoder(tmp_path / "base", bpe_folder)
    rows = [{"text": f"the {word}", "label": word} for word in ("film", "play", "good")] * 8
    options = QUICK | {"start": str(start), "learning_rate": 1e-2, "epochs": 20, "lora": 4}
    path = write(tmp_path / "labels.jsonl", rows)
    run = train(path, tmp_path / "whole" / "run", **options)
    assert run.best_loss < 0.3 < run.losses[0]["held_out_loss"]
    stopped = train(path, tmp_path / "parts" / "run", listener=Notes(stop=20), **options)
    same(contents(resume(stopped.folder, progress=False).folder), contents(run.folder))
    model = run.model
    assert classify(model, run.tokenizer, ["the film", "the good"])["label"] == ["film", "good"]
    config = json.loads((run.folder / "adapter_config.json").read_text())
    heads = ["bert.pooler.dense", "classifier"] if base == "encoder" else ["score"]
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", heads)
    idx = torch.tensor([run.tokenizer.encode("the play").ids])
    expected = model(idx)
    save_adapter(model, tmp_path / "copy")
    loaded = from_pretrained(start, adapter={"labels": tmp_path / "copy"})
    assert torch.equal(loaded.adapter("labels")(idx), expected)
    assert torch.equal(loaded.adapter("labels").adapter(None)(idx), from_pretrained(start)(idx))
    result = CliRunner().invoke(main, ["convert", str(run.folder), str(tmp_path / "merged")])
    assert result.exit_code == 0, result.output
    merged = from_pretrained(tmp_path / "merged")
    assert (merged(idx) - expected).abs().max() <= 1e-4
    assert merged.config.labels == ["film", "good", "play"]
    numbers = write(
        tmp_path / "numbers.jsonl",
        [{"text": f"the {word}", "label": "1.5"} for word in ("film", "play")] * 9,
    )
    regression = train(numbers, tmp_path / "regression", **options)
    assert regression.model.config.problem_type == "regression"
    assert regression.model(idx).item() == pytest.approx(1.5, abs=0.3)


def test_masked_words(tmp_path: Path, encoder: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text\n" + "the film was good\na play is bad\n" * 12)
    options = QUICK | {"start": str(encoder), "learning_rate": 5e-3, "epochs": 20}
    run = train(path, tmp_path / "run", **options)
    assert run.settings.objective == "masked"
    corpus = run.corpus
    assert isinstance(corpus, ExampleCorpus)
    special = {read_tokenizer(encoder).token_to_id(token) for token in ("[CLS]", "[SEP]")}
    for ids, weights in corpus.train.sequences(range(len(corpus.train))):
        assert {int(id) for id, weight in zip(ids, weights, strict=True) if not weight} == special
    task = ExampleTask(
        "masked",
        corpus.train,
        corpus.held_out,
        batch=8,
        micro_batch=3,
        seed=1,
        max_tokens=9,
        mask_id=4,
        vocab_size=9,
    )
    batches = task.step_batches(0, slice(0, 8))
    assert sum(float(batch.weights.sum() * batch.scale) for batch in batches) == pytest.approx(1)
    assert run.losses[1]["train_loss"] > 0.3 * run.losses[1]["held_out_loss"]
    assert run.best_loss < 0.6 * run.losses[0]["held_out_loss"]
    adapted = train(path, tmp_path / "adapter", lora=4, **options)
    assert adapted.best_loss < adapted.losses[0]["held_out_loss"]


def test_wrong_examples_are_reported_with_their_row(tmp_path: Path) -> None:
    good = {"prompt": "a", "completion": "b"}
    cases: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
        ([good, good | {"completion": None}], {}, "row 2: completion is missing"),
        ([good, good | {"completion": 3}], {}, "row 2: completion must be a text, not int"),
        ([{"question": "a"}] * 3, {}, "has the columns question: training needs messages"),
        ([good], {}, "has 1 examples"),
        ([good] * 3, {"start": None}, "needs start"),
        (
            [{"messages": [{"role": "user", "content": "x"}]}] * 3,
            {},
            "row 1: the conversation has no assistant",
        ),
        (
            [good | {"keep": False}] * 3,
            {"keep_weight": 2.0, "lora": 2},
            "keep_weight has no effect without rows whose",
        ),
        ([good] * 3, {"beta": 0.2, "lora": 2}, "beta has no effect without preference pairs"),
    ]
    for index, (rows, changes, message) in enumerate(cases):
        path = write(tmp_path / f"{index}.jsonl", rows)
        with pytest.raises(ValueError, match=message):
            train(path, tmp_path / "run", steps=1, **(QUICK | changes))
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("frozen", [False, True])
def test_the_head_in_slices_has_the_same_gradients(frozen: bool) -> None:
    from minhub_py.training.objectives import token_logprobs

    torch.manual_seed(0)
    head, hidden = (
        torch.nn.Linear(8, 50).requires_grad_(not frozen),
        torch.randn(600, 8, requires_grad=True),
    )
    targets, weights = torch.randint(50, (600,)), torch.rand(600)
    sliced = token_logprobs(head, hidden, targets, frozen)
    whole = -F.cross_entropy(head(hidden), targets, reduction="none")
    assert torch.allclose(sliced, whole, atol=1e-5)
    [actual], [expected] = (
        torch.autograd.grad((values * weights).sum(), hidden) for values in (sliced, whole)
    )
    assert torch.allclose(actual, expected, atol=1e-6)


@pytest.mark.slow
def test_rows_to_keep_have_the_divergence_from_the_base_as_loss(tmp_path: Path) -> None:
    """It is 0 at the start. Answers that the other rows would change remain."""
    rows = [{"prompt": f"{a}:", "completion": b, "keep": False} for a, b in PAIRS * 6]
    kept = [
        {"prompt": line, "completion": "And thou, my lord.", "keep": "true"}
        for line in ("O, ", "Why, ", "Nay, ")
    ]
    options = QUICK | {
        "lora": 8,
        "learning_rate": 0.01,
        "epochs": 20,
        "batch": 8,
        "dropout": 0.0,
        "held_out": 0.2,
    }
    [prompt] = [read_tokenizer(local.BUILTIN / "shakespeare-gpt2").encode("Well, ").ids]
    base = score(from_pretrained(START), [prompt])[0]

    def change(name: str, examples: list[dict[str, Any]]) -> float:
        """The mean change of log-probabilities in a text that is in no row."""
        run = train(write(tmp_path / f"{name}.jsonl", examples), tmp_path / name, **options)
        assert run.best_loss < 0.3
        return float((score(run.model, [prompt])[0] - base).abs().mean())

    only = train(
        write(tmp_path / "only.jsonl", kept), tmp_path / "only", **(options | {"epochs": 2})
    )
    assert only.losses[0]["held_out_loss"] == pytest.approx(0, abs=1e-6)
    assert change("with", [*rows, *kept * 4]) < 0.5 * change("without", rows)
    corpus = read_corpus(tmp_path / "with" / "tokens")
    assert isinstance(corpus, ExampleCorpus)
    assert not corpus.held_out.keep.all()
    assert corpus.unit.name == "nats per token of completions, with rows to keep"
    assert not corpus.unit.perplexity
    model = from_pretrained(START, adapter=tmp_path / "with")
    for kept_rows, factor in ((True, 4.0), (False, 1.0)):
        losses = []
        for weight in (1.0, 4.0):
            task = ExampleTask(
                "completion",
                corpus.train,
                corpus.held_out,
                batch=8,
                micro_batch=8,
                seed=1,
                max_tokens=9,
                keep_weight=weight,
            )
            numbers = [
                number
                for number in range(len(corpus.train))
                if bool(corpus.train.keep[number]) == kept_rows
            ]
            with torch.no_grad():
                losses.append(float(task.loss(model, task.collate(corpus.train, numbers[:4], [0]))))
        assert losses[1] == pytest.approx(factor * losses[0], rel=1e-6)
        assert losses[0] > 0
    with pytest.raises(ValueError, match="keep needs lora=16"):
        train(tmp_path / "with.jsonl", tmp_path / "full", **(options | {"lora": {}}))
    write(tmp_path / "bad.jsonl", [{"prompt": "a", "completion": "b", "keep": "maybe"}])
    with pytest.raises(ValueError, match="row 1: keep must be true or false, not maybe"):
        train(tmp_path / "bad.jsonl", tmp_path / "bad", **options)


@pytest.mark.parametrize("objective", ["completion", "preference"])
def test_packed_texts_have_the_loss_and_gradients_of_padded_ones(
    tmp_path: Path, objective: str
) -> None:
    """Also with rows to keep, whose reference is the model without its adapter."""
    pairs = [(f"{a}:" * (1 + number % 3), b) for number, (a, b) in enumerate(PAIRS * 3)]
    rows: list[dict[str, Any]] = [
        {"prompt": a, "completion": b, "keep": i % 3 == 0} for i, (a, b) in enumerate(pairs)
    ]
    if objective == "preference":
        rows = [{"prompt": a, "chosen": b, "rejected": a * 2} for a, b in pairs]
    options = QUICK | {"lora": {"r": 2}, "steps": 4, "learning_rate": 0.01}
    run = train(write(tmp_path / "data.jsonl", rows), tmp_path / "run", **options)
    corpus = run.corpus
    assert isinstance(corpus, ExampleCorpus)
    model = from_pretrained(START, adapter=tmp_path / "run").train(False)
    results = []
    for packed in (False, True):
        task = ExampleTask(
            objective,
            corpus.train,
            corpus.held_out,
            batch=8,
            micro_batch=8,
            seed=1,
            max_tokens=99999,
            packed=packed,
        )
        [batch] = task.step_batches(0, slice(0, 8))
        assert not batch.mask.all()
        factors = {
            name: parameter for name, parameter in model.named_parameters() if "lora_" in name
        }
        for parameter in factors.values():
            parameter.requires_grad_()
        loss = task.loss(model, batch)
        results.append((loss.detach(), torch.autograd.grad(loss, list(factors.values()))))
    (padded, padded_gradients), (loss, gradients) = results
    torch.testing.assert_close(loss, padded, rtol=1e-5, atol=1e-6)
    for gradient, other in zip(gradients, padded_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-5)
