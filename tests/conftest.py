"""Fixtures and settings of all tests."""

import gc
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hub_server import hub  # noqa: F401  # a fixture
from paths import TEXT
from r_package import library, reference_folder  # noqa: F401  # fixtures

from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

# One thread for the processes that tests start, too, unless they set a number: more would wait for
# the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell starts background processes with SIGINT ignored, and the processes of the tests would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Failed assertions of shared code show their values, too.
for name in (
    "bridge_calls",
    "commands",
    "corruption",
    "decoders",
    "guarantees",
    "hub_files",
    "job_runs",
    "memory",
    "references",
    "served_models",
    "training_runs",
):
    pytest.register_assert_rewrite(name)


# The longest files: started late, one of them would run alone at the end.
FIRST = ["test_r_package.py", "test_architectures.py", "test_r_processes.py", "test_docs.py", "test_resume.py",
         "test_r_check.py", "test_hosted_r.py", "test_compare.py", "test_tensor_parallel.py",
         "test_training_examples.py", "test_decoder.py", "test_r_sessions.py", "test_serve_page.py",
         "test_encoders.py", "test_parity.py", "test_data_parallel.py", "test_markdown_page.py",
         "test_weights_map.py", "test_blocks.py", "test_train_preparation.py", "test_unfinished_jobs.py",
         "test_train_cli.py", "test_invalid_requests.py", "test_memory.py", "test_r_extras.py",
         "test_training_loop.py", "test_quantize.py", "test_doctor.py", "test_speculative.py",
         "test_decoder_resources.py", "test_examples.py", "test_t5.py"]  # fmt: skip


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores, at most four: tests of R and of processes mostly wait.

    With two more, two cores were idle for 5 % of the time instead of 24 %, but needed a fifth more
    CPU time.
    """
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage: almost all imported and collected objects remain. The search for garbage
    takes a sixth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; pytest-xdist hands them out in this order."""
    items.sort(
        key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST)
    )


def pytest_collection_finish() -> None:
    """Exclude imported and collected objects from garbage collection: they remain until the end.

    The models that the tests of a module share remain, too: collect less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """One thread for each test and its fixtures, also if a command of an earlier test has set
    another number.

    The models are tiny: a second thread that waits for a busy core takes more time than it saves.
    PyTorch's sums depend on the number of threads.
    """
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE as in repositories without a tokenizer.json: vocab.json and merges.txt, in
    GPT-2's format.

    600 tokens, trained on English; <|endoftext|> is the last one, as in GPT-2's.
    """
    folder = tmp_path_factory.mktemp("bpe")
    text = TEXT.read_text(encoding="utf-8")
    model = json.loads(train_byte_level_bpe([text], 600).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens.append(tokens.pop(tokens.index("<|endoftext|>")))
    vocabulary = {token: id for id, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    merges = [" ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return folder
