"""Training of activated adapters: the adapter starts at the last invocation in the prompt of each
reply.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from click.testing import CliRunner
from references import assert_close, random_model, texts_of
from training_runs import BUILT_IN, contents, held_out_losses

from minhub_py import (
    from_pretrained,
    generate,
    gpt2,
    save_adapter,
    save_pretrained,
    score,
    tokenizer_from_pretrained,
    train,
)
from minhub_py.checkpoints import local
from minhub_py.cli.main import main
from minhub_py.models.lora import starting_at
from minhub_py.training.examples import ExampleCorpus
from minhub_py.training.objectives import ExampleTask
from minhub_py.training.packing import hidden_after

START = BUILT_IN["gpt2"]
QUICK: dict[str, Any] = {
    "start": START,
    "context": 64,
    "threads": 1,
    "progress": False,
    "dtype": "float32",
}
ROWS = [
    {"prompt": f"{noun} Code:", "completion": f" {code}, not Code: x"}
    for code, nouns in {"food": ("soup", "bread", "tea"), "bus": ("tram", "train", "ship")}.items()
    for noun in nouns
] * 3
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def task_of(run: Any, packed: bool, skipped: bool) -> tuple[ExampleTask, Any]:
    """The task of a run and its first batch."""
    corpus = run.corpus
    assert isinstance(corpus, ExampleCorpus)
    task = ExampleTask(
        corpus.objective,
        corpus.train,
        corpus.held_out,
        batch=8,
        micro_batch=8,
        seed=1,
        max_tokens=99999,
        packed=packed,
        invocation=run.model.invocation,
        skipped=skipped,
    )
    [batch] = task.step_batches(0, slice(0, 8))
    return task, batch


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("activated")
    lora = {"r": 4, "invocation": "Code:"}
    return train(
        write(folder / "data.jsonl", ROWS),
        folder / "run",
        lora=lora,
        steps=30,
        learning_rate=0.01,
        **QUICK,
    )


def test_an_activated_adapter_learns_and_other_texts_are_those_of_the_base(run: Any) -> None:
    base, tokenizer = from_pretrained(START), tokenizer_from_pretrained(START)
    with pytest.raises(TypeError, match=r"not Run\('.*'\): pass the folder of a run, run.folder"):
        from_pretrained(START, adapter=run)
    adapted = from_pretrained(START, adapter=run.folder)
    assert adapted.invocation.tokens == tokenizer.encode("Code:").ids
    taught = [tokenizer.encode(f"{noun} Code:").ids for noun in ("soup", "ship")]
    assert [tokenizer.decode(ids) for ids in generate(adapted, taught, 5, temperature=0)] == [
        " food",
        " bus,",
    ]
    others = [tokenizer.encode(text).ids for text in ("soup Code", "To be", "Code: he said")]
    replies = [generate(model, others, 30, temperature=0) for model in (base, adapted)]
    assert replies[0][:2] == replies[1][:2]
    assert replies[0][2] != replies[1][2]
    scores = [score(model, others[:2]) for model in (base, adapted)]
    assert all(torch.equal(*pair) for pair in zip(*scores, strict=True))


@pytest.mark.parametrize(("packed", "skipped"), [(False, False), (True, False), (True, True)])
def test_the_loss_is_that_of_generated_replies(packed: bool, skipped: bool, run: Any) -> None:
    """A reply that contains the invocation does not move the start."""
    task, batch = task_of(run, packed, skipped)
    model = run.model
    prompts, replies = [], []
    for ids, weights in zip(batch.idx.tolist(), batch.weights.tolist(), strict=True):
        first, count = weights.index(1), int(sum(weights))
        prompts.append(ids[:first])
        replies.append(ids[first : first + count])
    expected = -torch.cat(score(model, prompts, targets=replies)).sum()
    with torch.no_grad():
        torch.testing.assert_close(task.loss(model, batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "gemma2", "gpt_oss", "bloom"])
@pytest.mark.parametrize("starts", [[4, 0, 9], [2, 60, 58]])
def test_tokens_before_the_start_need_no_gradients(
    name: str, starts: list[int], tmp_path: Path
) -> None:
    """Also if the longest texts before and after a start exceed the context length together."""
    base = random_model(name)
    save_pretrained(base, tmp_path / "base")
    random_adapter(base, tmp_path / "adapter", alora_invocation_tokens=(7,))
    model = from_pretrained(tmp_path / "base", adapter=tmp_path / "adapter", dtype="float32")
    lengths = [93, 91, 90] if starts[0] == 2 else [12, 20, 11]
    assert name == "bloom" or model.config.context_length == 96
    idx = torch.tensor([text + [0] * (max(lengths) - len(text)) for text in texts_of(*lengths)])
    factors = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    with starting_at(model, starts):
        expected = model.hidden(idx)
    actual = hidden_after(model, idx, lengths, starts)
    inside = [
        torch.arange(idx.size(1)).ge(start) & torch.arange(idx.size(1)).lt(length)
        for start, length in zip(starts, lengths, strict=True)
    ]
    mask = torch.stack(inside).unsqueeze(2)
    assert_close(actual, expected * mask)
    weights = torch.linspace(-1, 1, expected.size(2)) * mask
    pairs = [
        torch.autograd.grad((hidden * weights).sum(), factors) for hidden in (expected, actual)
    ]
    for full, gradient in zip(*pairs, strict=True):
        assert_close(gradient, full)


def test_checkpointing_and_accumulation_do_not_change_the_loss(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", ROWS)
    options = QUICK | {
        "lora": {"r": 2, "invocation": "Code:"},
        "steps": 3,
        "batch": 8,
        "evaluate_every": 1,
    }
    losses = [
        held_out_losses(train(path, tmp_path / str(index), dropout=0.0, **options, **more))
        for index, more in enumerate(({"accumulate": 1}, {"accumulate": 4, "checkpointing": True}))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_each_reply_of_a_chat_is_an_example(tmp_path: Path) -> None:
    """A later reply has a later start: the text before it is computed by the base."""
    shutil.copytree(local.BUILTIN / "shakespeare-gpt2", tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").write_text(TEMPLATE)
    roles = ["user", "assistant", "user", "assistant"]
    rows = [
        {
            "messages": [
                {"role": role, "content": text + end}
                for role, end in zip(roles, "stuv", strict=True)
            ]
        }
        for text in "abc"
    ]
    options = QUICK | {"start": str(tmp_path / "base"), "steps": 1}
    lora = {"r": 2, "invocation": "user:"}
    run = train(write(tmp_path / "chats.jsonl", rows), tmp_path / "run", lora=lora, **options)
    corpus = run.corpus
    assert isinstance(corpus, ExampleCorpus)
    assert len(corpus.train) + len(corpus.held_out) == 6
    replies = {}
    for examples in (corpus.train, corpus.held_out):
        for ids, weights in examples.sequences(range(len(examples))):
            text, first = run.tokenizer.decode(ids.tolist()), int(weights.argmax())
            start = run.model.invocation.start(ids[:first].tolist())
            replies[run.tokenizer.decode(ids[weights > 0].tolist())] = text[start:first], text
    assert len(replies) == 6
    assert replies[" at\n"] == ("user: as\nassistant:", "user: as\nassistant: at\n")
    assert replies[" av\n"][0] == "user: au\nassistant:"


def test_preference_pairs(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"], "chosen": " yes", "rejected": " no Code: x"} for row in ROWS]
    path = write(tmp_path / "pairs.jsonl", rows)
    lora = {"r": 4, "invocation": "Code:"}
    run = train(path, tmp_path / "run", lora=lora, learning_rate=0.01, steps=12, batch=8, **QUICK)
    assert run.losses[0]["held_out_loss"] == pytest.approx(0.693147, abs=1e-6)
    assert run.best_loss < 0.5


def test_a_run_continues_with_the_invocation_of_its_adapter(run: Any, tmp_path: Path) -> None:
    """Also over quantized weights."""
    folder = tmp_path / "adapter"
    save_adapter(run.model, folder)
    shutil.copy(run.folder / "tokenizer.json", folder)
    options = QUICK | {"start": str(folder), "lora": 4, "steps": 2, "learning_rate": 1e-4}
    again = train(run.folder.parent / "data.jsonl", tmp_path / "again", quantize="nf4", **options)
    assert again.model.invocation.tokens == run.model.invocation.tokens
    with pytest.raises(
        ValueError, match=r"row 1: the prompt does not contain the invocation 'Code:', without"
    ):
        train(
            write(tmp_path / "other.jsonl", [{"prompt": "a", "completion": "b"}] * 4),
            tmp_path / "other",
            **options,
        )
    data = run.folder.parent / "data.jsonl"
    same = train(data, tmp_path / "same", **options | {"lora": {"r": 4, "invocation": "Code:"}})
    assert same.model.invocation.tokens == run.model.invocation.tokens
    with pytest.raises(
        ValueError, match="the adapter of start, which has another invocation: remove invocation"
    ):
        train(data, tmp_path / "other", **options | {"lora": {"r": 4, "invocation": "ode:"}})


def test_a_run_continues_an_adapter_that_is_always_active(run: Any, tmp_path: Path) -> None:
    data, folder = run.folder.parent / "data.jsonl", tmp_path / "always"
    save_adapter(train(data, tmp_path / "run", lora={"r": 2}, steps=1, **QUICK).model, folder)
    options = QUICK | {"start": str(folder), "steps": 1}
    assert train(data, tmp_path / "again", lora={"r": 2}, **options).model.invocation is None
    with pytest.raises(
        ValueError, match="the adapter of start, which is always active: remove invocation"
    ):
        train(data, tmp_path / "new", lora={"r": 2, "invocation": "Code:"}, **options)


def test_wrong_data_and_settings_are_explained(tmp_path: Path) -> None:
    path, new = write(tmp_path / "data.jsonl", ROWS), tmp_path / "new"

    def error(source: Path, **changes: Any) -> str:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            train(source, new, **{**QUICK, "steps": 1, **changes})
        assert contents(new) == {}
        return str(caught.value)

    assert "row 1: the prompt does not contain the invocation 'Cost:'" in error(
        path, lora={"r": 2, "invocation": "Cost:"}
    )
    assert "invocation '' has no token" in error(path, lora={"r": 2, "invocation": ""})
    for wrong in (5, True, [], [1.5], [-1]):
        assert "lora: invocation must be a text in quotes or a list of token IDs, not" in error(
            path, lora={"r": 2, "invocation": wrong}
        )
    assert "lora: invocation contains 65: token IDs must be below 65" in error(
        path, lora={"r": 2, "invocation": [65]}
    )
    assert (
        r"the invocation '\n', without which the adapter is not active: add it to the prompt"
        in error(path, lora={"r": 2, "invocation": "\n"})
    )
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be. " * 40)
    assert "invocation needs chats, prompts" in error(text, lora={"r": 2, "invocation": "be"})
    labels = write(tmp_path / "labels.jsonl", [{"text": "a", "label": "x"}] * 4)
    assert "invocation needs chats, prompts" in error(labels, lora={"r": 2, "invocation": "be"})


def test_an_invocation_in_other_tokens_is_explained(tmp_path: Path, bpe_folder: Path) -> None:
    """A word at the start of a text has other tokens than the same word after a space."""
    tokenizer = tokenizer_from_pretrained(bpe_folder)
    size = tokenizer.get_vocab_size()
    save_pretrained(
        gpt2(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=64),
        tmp_path / "gpt2",
        tokenizer,
    )
    encodings = {
        word: [tokenizer.encode(text).ids for text in (word, f" {word}")]
        for word in ("the", "and", "you")
    }
    word = next(word for word, (first, second) in encodings.items() if first != second)
    rows = [{"prompt": f"{word} sea:", "completion": " yes"}] * 4
    with pytest.raises(
        ValueError,
        match=rf"row 1: the prompt contains '{word}', but not in the tokens of the invoc",
    ):
        train(
            write(tmp_path / "data.jsonl", rows),
            tmp_path / "run",
            lora={"r": 2, "invocation": f" {word}"},
            steps=1,
            **QUICK | {"start": str(tmp_path / "gpt2")},
        )


def test_the_command_has_the_invocation(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", ROWS)
    arguments = [
        "train",
        str(path),
        "--from",
        START,
        "--out",
        str(tmp_path / "run"),
        "--lora",
        "2",
        "--lora",
        "invocation= Code:",
        "--steps",
        "1",
        "--context",
        "64",
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    settings = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    tokenizer = tokenizer_from_pretrained(START)
    assert settings["alora_invocation_tokens"] == tokenizer.encode(" Code:").ids
    result = CliRunner().invoke(main, ["convert", str(tmp_path / "run"), str(tmp_path / "merged")])
    assert result.exit_code != 0
    assert "an activated adapter cannot be merged" in result.output
