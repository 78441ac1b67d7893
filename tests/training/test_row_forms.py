"""The forms of training rows, and notes on unused columns and dropped rows."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_models import chat_tokenizer
from tokenizers import Tokenizer, processors
from training_runs import BUILT_IN, Notes

from minhub_py import (
    complete,
    from_pretrained,
    gpt2,
    next_tokens,
    save_pretrained,
    tokenizer_from_pretrained,
    train,
)
from minhub_py.training import Run

CHATML = (
    "{% if tools %}{{ tools[0].function.name }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM, HI, HELLO = (
    {"role": role, "content": text}
    for role, text in (("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"))
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]


def write_model(
    folder: Path, tokenizer: Tokenizer, template: str = CHATML, **settings: Any
) -> Path:
    torch.manual_seed(1)
    size = max(tokenizer.get_vocab().values()) + 1
    save_pretrained(
        gpt2(vocab_size=size, n_positions=800, n_embd=16, n_layer=1, n_head=2, **settings),
        folder,
        tokenizer,
    )
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("chat") / "model", chat_tokenizer(), eos_token_id=401
    )


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps(row) for row in rows]
    path.write_text(
        f"[{','.join(lines)}]" if path.suffix == ".json" else "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    return path


def prepared(model: Path | str, path: Path, **settings: Any) -> tuple[Run, list[str]]:
    """A run that stopped before its first step, and its notes."""
    listener = Notes(0)
    number = len(list(path.parent.glob("run*")))
    options = {"start": str(model), "context": 700, "threads": 1} | settings
    run = train(path, path.parent / f"run{number}", listener=listener, **options)
    return run, [note for note in listener.notes if "matplotlib" not in note]


def sequences(run: Run) -> set[str]:
    """The texts of all rows, with the targets in brackets."""
    texts = set()
    for part in (run.corpus.train, run.corpus.held_out):
        for ids, weights in part.sequences(range(len(part))):
            text, last = "", 0
            for id, weight in zip(ids.tolist(), [*weights.tolist()], strict=True):
                text += "[" * (weight > last) + "]" * (weight < last)
                text += run.tokenizer.decode([id], skip_special_tokens=False)
                last = weight
            texts.add(text + "]" * bool(last))
    return texts


def encoded(
    model: Path, folder: Path, row: dict[str, Any], name: str = "rows.jsonl", **settings: Any
) -> str:
    """The only text of two equal rows."""
    run, notes = prepared(model, write(folder / name, [row, row]), **settings)
    assert notes == []
    [text] = sequences(run)
    return text


CHAT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>]\n"


def test_common_forms_of_rows_are_equal(tmp_path: Path, model: Path) -> None:
    """OpenAI's, TRL's, ShareGPT's and Alpaca's forms of a conversation give the same tokens and
    targets.
    """
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    for row in (
        {"messages": [HI, HELLO]},
        {"prompt": [HI], "completion": [HELLO]},
        {"conversations": turns},
        {"conversations": [HI, HELLO]},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"instruction": "Hi", "output": "Hello", "text": "the rendered prompt"},
    ):
        unused = {"text"} & set(row)
        run, notes = prepared(model, write(tmp_path / "rows.jsonl", [row, row]))
        assert (sequences(run), run.settings.objective == "completion") == ({CHAT}, "prompt" in row)
        assert notes == [f"not used in training: {name}" for name in unused]
    system = "<|im_start|>system\nBe kind.<|im_end|>\n"
    for row in (
        {"messages": [SYSTEM, HI, HELLO]},
        {"conversations": [{"from": "system", "value": "Be kind."}, *turns]},
        {"conversations": turns, "system": "Be kind."},
        {"instruction": "Hi", "output": "Hello", "system": "Be kind."},
    ):
        assert encoded(model, tmp_path, row) == system + CHAT
    row = {"instruction": "Hi", "input": "you", "output": "Hello", "history": [["Hi", "Hello"]]}
    assert encoded(model, tmp_path, row) == CHAT + CHAT.replace("Hi", "Hi\n\nyou")
    calls = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": '{"name": "weather"}'},
        {"from": "observation", "value": "12"},
        {"from": "gpt", "value": "Hello"},
    ]
    text = encoded(model, tmp_path, {"conversations": calls, "tools": json.dumps(TOOLS)})
    assert '[<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|im_end|>]' in text
    assert text.endswith("[Hello<|im_end|>]\n")


def test_earlier_replies_in_a_prompt_are_context(tmp_path: Path, model: Path) -> None:
    text = encoded(model, tmp_path, {"prompt": [HI, HELLO, HI], "completion": [HELLO]})
    assert text == CHAT.replace("[", "").replace("]", "") + CHAT


def test_other_columns_and_forms_are_named(tmp_path: Path, model: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"question": "a", "answer": "b"}])
    forms = (
        r"messages \(OpenAI, TRL\); .*conversations \(ShareGPT\); .*instruction, input and output"
        r" \(Alpaca\); .*text"
    )
    with pytest.raises(ValueError, match=f"columns question, answer: training needs {forms}"):
        prepared(model, path)
    with pytest.raises(ValueError, match="the objective completion needs prompt and completion"):
        prepared(model, path, objective="completion")
    bad = write(tmp_path / "bad.jsonl", [{"conversations": [{"from": "alien", "value": "Hi"}]}])
    with pytest.raises(
        ValueError, match=r"bad\.jsonl, row 1: from must be one of human, .*, not 'alien'"
    ):
        prepared(model, bad)


def test_tools_and_weights_of_rows_are_used(tmp_path: Path, model: Path) -> None:
    weighted = [HI, {**HELLO, "weight": 0}, HI, {**HELLO, "weight": 1}]
    for tools in (TOOLS, json.dumps(TOOLS)):
        text = encoded(model, tmp_path, {"messages": weighted, "tools": tools})
        assert "weather" in text
        assert text.endswith(CHAT.replace("[", "").replace("]", "") + CHAT)
    pair = {
        "prompt": [HI],
        "chosen": [HELLO],
        "rejected": [{**HELLO, "content": "Bye"}],
        "tools": TOOLS,
    }
    run, notes = prepared(model, write(tmp_path / "pairs.jsonl", [pair, pair]), lora=2)
    assert (len(sequences(run)), all("weather" in text for text in sequences(run)), notes) == (
        2,
        True,
        [],
    )


def test_columns_and_keys_without_effect_are_noted(tmp_path: Path, model: Path) -> None:
    """Missing values are not."""
    row = {
        "messages": [{**HI, "mood": "good", "audio": None}, {**HELLO, "reasoning": "hm"}],
        "id": 7,
        "source": None,
    }
    _, notes = prepared(model, write(tmp_path / "rows.jsonl", [row, row]))
    assert [set(note.removeprefix("not used in training: ").split(", ")) for note in notes] == [
        {"id", "mood of messages", "reasoning of messages"}
    ]
    thinking = write_model(
        tmp_path / "thinking",
        chat_tokenizer(),
        CHATML + "{# reasoning_content #}",
        eos_token_id=401,
    )
    _, notes = prepared(thinking, tmp_path / "rows.jsonl")
    assert "reasoning" not in notes[0]
    row = {"prompt": "a", "completion": "b", "tools": TOOLS}
    assert prepared(model, write(tmp_path / "rows.jsonl", [row, row]))[1] == [
        "not used in training: tools"
    ]


def test_json_files_contain_rows(tmp_path: Path, model: Path) -> None:
    """An array, also over several lines and with a byte order mark, or one row per line."""
    row = {"messages": [HI, HELLO]}
    assert encoded(model, tmp_path, row, "rows.json") == CHAT
    for text in (
        "\ufeff\n" + json.dumps([row, row], indent=1),
        f"{json.dumps(row)}\n{json.dumps(row)}\n",
    ):
        (tmp_path / "rows.json").write_text(text, encoding="utf-8")
        assert sequences(prepared(model, tmp_path / "rows.json")[0]) == {CHAT}
    for text, problem in (
        ('[{"a": 1}, 2]', "row 2 is a int instead of an object"),
        ('[{"a": 1, "a": 2}]', "duplicate key 'a'"),
        ('{\n"data": []\n}', "each line must contain one object"),
        ("[]", "has no rows: training needs"),
    ):
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=problem):
            prepared(model, tmp_path / "bad.json")


def test_rows_beyond_the_context_are_dropped_with_a_note(tmp_path: Path, model: Path) -> None:
    rows = [{"prompt": "a", "completion": "b"}] * 3 + [{"prompt": "a b " * 30, "completion": "b"}]
    rows += [{"prompt": "a", "completion": "b " * 60}] * 2
    run, notes = prepared(model, write(tmp_path / "rows.jsonl", rows), context=32)
    assert len(run.corpus.train) + len(run.corpus.held_out) == 5
    assert notes == [
        "sequences longer than context 32, which were truncated: 2",
        (
            "rows dropped, because their prompts fill context 32 and leave nothing to learn: 1."
            " Increase it"
        ),
    ]
    run, notes = prepared(
        model, write(tmp_path / "texts.jsonl", [{"text": "a b"}] * 2 + [{"text": ""}])
    )
    assert (len(sequences(run)), notes) == (
        1,
        ["rows dropped, because they have no tokens to learn: 1"],
    )


def test_a_model_that_cannot_learn_to_stop_is_noted(tmp_path: Path) -> None:
    silent = write_model(
        tmp_path / "silent",
        chat_tokenizer(),
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",
    )
    config = json.loads((silent / "config.json").read_text())
    (silent / "config.json").write_text(
        json.dumps(config | {"eos_token_id": None, "bos_token_id": None})
    )
    _, notes = prepared(silent, write(tmp_path / "rows.jsonl", [{"messages": [HI, HELLO]}] * 2))
    assert ["does not learn to stop" in note for note in notes] == [True]
    (silent / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    run, notes = prepared(silent, tmp_path / "rows.jsonl")
    assert (sequences(run), notes) == ({"Hi\n[Hello\n<|im_end|>]"}, [])


def test_an_end_token_of_the_tokenizer_is_not_between_prompt_and_continuation(
    tmp_path: Path,
) -> None:
    """In training rows, and in functions that continue a text."""
    plain = chat_tokenizer()
    ending = chat_tokenizer()
    ids = [(token, plain.token_to_id(token)) for token in ("<|im_start|>", "<|im_end|>")]
    ending.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=ids
    )
    folder = write_model(tmp_path / "ending", ending, "", eos_token_id=401)
    rows = [{"prompt": "the sea", "completion": " is"}]
    assert encoded(folder, tmp_path, rows[0]) == "<|im_start|>the sea[ is<|im_end|>]"
    assert encoded(folder, tmp_path, {"text": "the sea"}) == "[<|im_start|>the sea<|im_end|>]"
    model, tokenizer = from_pretrained(str(folder)), tokenizer_from_pretrained(str(folder))
    prompt = [400, *plain.encode("the sea").ids]
    expected = next_tokens(model, None, [prompt], 3)
    assert (
        next_tokens(model, tokenizer, ["the sea"], 3)["logprob"].tolist()
        == expected["logprob"].tolist()
    )
    reference = Tokenizer.from_str(plain.to_str())
    reference.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=ids[:1]
    )
    assert complete(model, tokenizer, "the sea", 8, temperature=0) == complete(
        model, reference, "the sea", 8, temperature=0
    )


def test_missing_values_of_csv_files_are_no_classes(tmp_path: Path) -> None:
    """An empty value and NA without quotes are missing, as R writes them; with quotes, NA is a
    class.
    """
    model, path = BUILT_IN["gpt2"], tmp_path / "rows.csv"
    rows = ['"a","x"', '"b","NA"', '"c","x"', '"d","NA"']
    path.write_text("\n".join(["text,label", *rows, ""]), encoding="utf-8")
    run, _ = prepared(model, path, objective="labels", context=64)
    assert run.corpus.labels == ["NA", "x"]
    for value in ("NA", ""):
        path.write_text("\n".join(["text,label", *rows, f'"e",{value}', ""]), encoding="utf-8")
        with pytest.raises(ValueError, match=r"rows\.csv, row 5: label is missing"):
            prepared(model, path, objective="labels", context=64)
    path.write_text("\n".join(["text,label", *rows, '"e",NA', '"f",""', ""]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"row 6: label is an empty text"):
        prepared(model, path, objective="labels", context=64, na=["."])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["text", "label"], *([text, label] for text in "ab" for label in ("NA", ".x"))]
        )
    run, _ = prepared(model, path, objective="labels", context=64, na=["."])
    assert (run.corpus.labels, run.settings.na) == ([".x", "NA"], (".",))
