"""Readers of small JSON files: one wrong value is a valid file, or an error that names the file and
the value.
"""

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from file_cases import CASES, declared
from hub_server import HubServer
from mutations import VALUES, mutants

import minhub_py
from minhub_py.checkpoints.hub import Repository, plan_download
from minhub_py.system.shapes import ShapeError, convert

MUTANTS = {"manifest": 25, "config": 40}  # of each file; of others, 80. `make fuzz` runs others
# Modules that read JSON without the reader, because the text is not a small file.
OTHERS = {
    "minhub_py/chat": "replies of models, and the pipe of the sandbox",
    "minhub_py/cli/bench.py": "its own processes",
    "minhub_py/checkpoints/tokenizers/tokenizer_json.py": (
        "names of tokens, which may be duplicates"
    ),
    "minhub_py/export/gguf_tokenizer.py": "the tokenizers library's text",
    "minhub_py/inference/json_schema.py": "copies of values",
    "minhub_py/jobs/job.py": "copies of values",
    "minhub_py/jobs/replay.py": "its own results",
    "minhub_py/system": "the reader; rows of tables",
    "minhub_py/training/preparation.py": "copies of values",
    "r_bridge/methods/chats.py": "its own state",
}


def error_of(function: Callable[[], object]) -> Exception | None:
    """The error for a user that a call raises; None without one."""
    try:
        function()
    except (ValueError, OSError) as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_one_wrong_value_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.prepare(tmp_path)
    assert error_of(lambda: case.use(tmp_path)) is None
    document = json.loads((tmp_path / case.name).read_text())
    for text, path in mutants(document, random.Random(name), MUTANTS.get(name, 80)):
        (tmp_path / case.name).unlink()  # it may be mapped
        (tmp_path / case.name).write_text(text)
        error = error_of(lambda: case.use(tmp_path))
        message = "" if error is None else str(error)
        assert (error is None) == (not message)
        assert len(message) < 2000
        expected = error_of(partial(check, text, name))
        if expected is not None and case.shape is not None:
            assert Path(case.name).name in message, f"{path}: {text[:200]}"
        if isinstance(expected, ShapeError) and "is not valid JSON" not in message:
            assert (expected.path or expected.problem) in message


def check(text: str, name: str | None = None) -> None:
    """ShapeError: a text does not have the declared shape of a case, or of the Hub's list."""
    with suppress(RecursionError):
        content, shape = (
            (json.loads(text), Repository) if name is None else declared(name, json.loads(text))
        )
        convert(content, Any if shape is None else shape)


@pytest.mark.parametrize("field", ["sha", "siblings", "rfilename", "size", "blobId", "lfs"])
def test_a_wrong_value_in_the_hubs_list_is_not_the_hub(hub: HubServer, field: str) -> None:
    for value in VALUES:
        entry: dict[str, Any] = {"rfilename": "config.json", "size": 9, "blobId": "0" * 40}
        answer: dict[str, Any] = {"sha": "0" * 40, "siblings": [entry]}
        (answer if field in answer else entry)[field] = "<value>"
        text = json.dumps(answer).replace('"<value>"', value)
        hub.heal()
        hub.answer(200, body=text.encode())
        error = error_of(lambda: plan_download("owner/name"))
        assert isinstance(
            error, ConnectionError | FileNotFoundError
        ) or "the maximum is 500.0 MB" in str(error)
        assert len(str(error)) < 500
        if error_of(partial(check, text)) is not None:
            assert "not the Hub" in str(error), value


def test_small_json_is_read_by_one_reader() -> None:
    root = Path(minhub_py.__file__).parents[1]
    paths = [
        path for package in ("minhub_py", "r_bridge") for path in (root / package).rglob("*.py")
    ]
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    pattern = re.compile(r"json\.loads?\(")
    readers = [name for name in names if pattern.search((root / name).read_text(encoding="utf-8"))]
    assert [name for name in readers if not any(name.startswith(other) for other in OTHERS)] == []
