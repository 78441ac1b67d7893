"""The comparison with other libraries, benchmarks/compare.py, on built-in models. No test asserts a
time.
"""

import json
import struct
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare
import fast_python
import gguf_files
import pytest
import results
import torch
from click.testing import CliRunner, Result
from gguf_cases import CASES as SMALL
from needs import needs
from peers import CASES, cases, gguf_writer, tables
from peers import run as peers_run
from peers.cases import FUNCTIONS
from peers.run import Bench, LeftOutError, Runner, Settings, look
from peers.tables import COLUMNS, CURVES
from peers.worker import Worker
from random_weights import draw
from transformers import AutoConfig, AutoModelForCausalLM

import minhub_py
from minhub_py import llama, save_pretrained
from minhub_py.checkpoints.gguf_header import read_header

GPT2 = "minhub/shakespeare-gpt2"
QUICK = ("--quick", "--repeats", "1", "--threads", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(compare.main, arguments)


def done(*arguments: str) -> str:
    """Standard output of a run that succeeds."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: str, status: int = 1) -> str:
    """Standard error of a run that fails with this exit status."""
    result = run(*arguments)
    assert result.exit_code == status, result.output
    return result.stderr


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[None]:
    """The workers are forks: a new Python would import PyTorch in each."""

    def start(engine: str, options: dict[str, object], threads: int, python: str) -> Worker:
        return Worker(
            engine, options, threads, fast_python.python() if python == sys.executable else python
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers_run, "Worker", start)
        yield


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run's output, and the result that it saves."""
    saved = tmp_path_factory.mktemp("bench") / "run.json"
    return done(*QUICK, "--model", GPT2, "--only", "decode", "--save", str(saved)), saved


def test_decode_against_all_peers(decoded: tuple[str, Path]) -> None:
    shown, saved = decoded
    result = json.loads(saved.read_text())
    assert result["machine"]["threads"] == 1
    assert result["machine"]["torch"]
    assert list(result["cases"]) == ["decode"]
    assert result["failed"] == {}
    case = result["cases"]["decode"]
    rows = {row["runner"]: row for row in case["rows"]}
    assert {
        "minhub_py float32",
        "minhub_py bfloat16",
        "transformers float32",
        "CTranslate2 float32",
        "CTranslate2 int8",
    } <= set(rows)
    for row in rows.values():
        assert len(row["seconds"]) == len(row["seconds_to_first"]) == 1
        assert len(row["ids"]) == case["values"]["new"] == 16
        assert row["runner"] in shown
    # Both sides must compute the same results.
    for name in ("minhub_py float32", "CTranslate2 float32"):
        assert rows[name]["same_ids"] == 16
        assert rows[name]["ids"] == rows["transformers float32"]["ids"]
    ours, reference = rows["minhub_py float32"], rows["transformers float32"]
    assert reference["ratio"] == 1
    assert ours["ratio"] == pytest.approx(reference["seconds"][0] / ours["seconds"][0])
    # all parameters except the positions
    assert ours["bytes_per_token"] == 4 * (1_907_360 - 256 * 160)
    assert case["values"]["limit_gigabytes_per_second"] > 0


def test_a_saved_run_is_shown_again(decoded: tuple[str, Path], tmp_path: Path) -> None:
    shown, saved = decoded
    picture = tmp_path / "run.png"
    assert done("--from", str(saved)) == shown
    assert json.loads(done("--from", str(saved), "--json")) == json.loads(saved.read_text())
    lines = done("--from", str(saved), "--markdown", "--plot", str(picture)).splitlines()
    heading = next(line for line in lines if line.startswith("| runner"))
    assert {line.count("|") for line in lines if line.startswith("|")} == {heading.count("|")}
    assert any(line.startswith("| minhub_py float32 | ") for line in lines)
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 1000 < width < 3000
    assert 300 < height < 3000


def test_the_lstm_and_what_smaller_weights_cost(tmp_path: Path) -> None:
    """With a user's text."""
    text = tmp_path / "text.txt"
    text.write_text(
        "Now is the winter of our discontent made glorious summer by this sun of York. " * 2
    )
    call = (
        *QUICK,
        "--model",
        "minhub/shakespeare-lstm",
        "--only",
        "quality",
        "--json",
        "--text",
        str(text),
    )
    result = json.loads(done(*call, "--only", "lstm"))
    lstm = {row["runner"]: row for row in result["cases"]["lstm"]["rows"]}
    assert lstm["minhub_py float32"]["ids"] == lstm["a plain loop, float32"]["ids"]
    quality = {row["weights"]: row for row in result["cases"]["quality"]["rows"]}
    assert quality["float32"]["tokens"] == len(text.read_text())
    assert quality["float32"]["ratio"] == 1
    assert quality["float32"]["same_percent"] == 100
    assert quality["float32"]["same_starts"] == [20, 20]
    assert quality["bfloat16"]["perplexity"] == pytest.approx(
        quality["float32"]["perplexity"], rel=0.01
    )
    assert quality["bfloat16"]["perplexity"] != quality["float32"]["perplexity"]
    text.write_text("short")
    result = run(*call)
    assert result.exit_code == 1
    assert "the text has 5 tokens of this model: give a text of at least 64" in result.stderr


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with grouped queries, and weights so large that wrong positions or heads change
    the output.
    """
    torch.manual_seed(0)
    model = llama(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    folder = tmp_path_factory.mktemp("llama") / "small"
    save_pretrained(model, folder)
    return str(folder)


LLAMACPP = "llama.cpp is left out because it is not installed: pip install llama-cpp-python gguf"
OPENVINO = (
    "OpenVINO is left out because it is not installed: python3 -m venv ov; ov/bin/pip install"
    " optimum-intel; export MINHUB_BENCH_OPENVINO=ov/bin/python"
)


def test_a_missing_peer_is_a_line(monkeypatch: pytest.MonkeyPatch, small_llama: str) -> None:
    """A missing peer, a case of another family, and a model without a tokenizer are each one line."""
    for peer in ("transformers", "llama_cpp"):
        monkeypatch.setitem(sys.modules, peer, None)  # Python's convention for a missing module
    monkeypatch.delenv("MINHUB_BENCH_OPENVINO", raising=False)
    monkeypatch.setattr(cases, "KINDS", ("float32",))  # one process; the next test has the others
    result = run(
        *QUICK, "--model", small_llama, "--only", "llama", "--only", "lstm", "--only", "start"
    )
    assert result.exit_code == 0, result.output
    assert "minhub_py float32" in result.stdout
    assert "transformers float32" not in result.stdout
    assert (
        result.stdout.count(
            "transformers is left out because it is not installed: pip install transformers"
        )
        == 1
    )
    assert result.stdout.count(LLAMACPP) == 1
    assert result.stdout.count(OPENVINO) == 1
    assert f"lstm is left out: it measures lstm, but {small_llama} is llama" in result.stdout
    assert "start is left out: " in result.stdout
    assert "has no tokenizer" in result.stdout


# six processes, two with transformers, which test_decode_against_all_peers has, too
@pytest.mark.soak
def test_llama_without_llamacpp(monkeypatch: pytest.MonkeyPatch, small_llama: str) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.delenv("MINHUB_BENCH_OPENVINO", raising=False)
    result = json.loads(done(*QUICK, "--model", small_llama, "--only", "llama", "--json"))
    assert result["failed"] == {}
    assert result["left_out"] == [LLAMACPP, OPENVINO]
    rows = {row["runner"]: row for row in result["cases"]["llama"]["rows"]}
    kinds = ("float32", "bfloat16", "int8", "int8-bfloat16", "nf4", "nf4-bfloat16")
    assert list(rows) == [
        *(f"minhub_py {kind}" for kind in kinds),
        "transformers float32",
        "transformers bfloat16",
    ]
    assert rows["minhub_py float32"]["ids"] == rows["transformers float32"]["ids"]
    assert len(set(rows["minhub_py float32"]["ids"])) > 8


@needs("llama_cpp")
def test_llamacpp_reads_the_same_llama(monkeypatch: pytest.MonkeyPatch, small_llama: str) -> None:
    monkeypatch.delenv("MINHUB_BENCH_OPENVINO", raising=False)
    result = json.loads(done(*QUICK, "--model", small_llama, "--only", "llama", "--json"))
    assert result["failed"] == {}
    assert result["left_out"] == [OPENVINO]
    rows = {row["runner"]: row for row in result["cases"]["llama"]["rows"]}
    assert rows["llama.cpp F32"]["ids"] == rows["minhub_py float32"]["ids"]
    assert {
        "minhub_py Q8_0",
        "minhub_py Q4_0",
        "llama.cpp BF16",
        "llama.cpp Q8_0",
        "llama.cpp Q4_0",
    } <= set(rows)


PROMPTS = [[5, 9, 2, 7] * 6, [3], [8, 1, 4, 4, 2, 60, 33]]
NAMES = ["gpt2-untied", "llama-tied"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Name -> folder, and the model of transformers in it. Heads are grouped, sizes unusual."""
    result = {}
    for name in NAMES:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SMALL[name])).eval()
        draw(model)
        folder = tmp_path_factory.mktemp("peer") / name
        model.save_pretrained(folder)
        result[name] = folder, model
    return result


def peer_ids(library: str, folder: Path, scratch: Path, prompts: list[list[int]]) -> Any:
    """A peer's greedy tokens in float32."""
    bench = Bench(Settings(threads=1), scratch)
    subject = look("small", folder)
    with bench.team(subject, bench.peers(subject, "float32", only=[library])) as team:
        [worker] = team.values()
        return worker.ask("generate", prompts=prompts, new=8)


@pytest.mark.parametrize(
    "library",
    [
        pytest.param("llama.cpp", marks=needs("llama_cpp")),
        pytest.param("OpenVINO", marks=needs("OpenVINO")),
    ],
)
def test_rows_of_a_peer_are_those_alone(
    library: str, checkpoints: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    """Several prompts of different lengths in a batch, with a file of the benchmark."""
    for folder, _ in checkpoints.values():
        model = minhub_py.from_pretrained(folder, device="cpu")
        alone = [
            minhub_py.generate(model, [prompt], 8, temperature=0, eos_id=None)[0]
            for prompt in PROMPTS
        ]
        assert peer_ids(library, folder, tmp_path, PROMPTS) == alone
        assert len({tuple(ids) for ids in alone}) == len(PROMPTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_file_is_that_of_llamacpps_converter(
    checkpoints: dict[str, tuple[Path, Any]], name: str, tmp_path: Path
) -> None:
    folder, model = checkpoints[name]
    file = tmp_path / "ours.gguf"
    gguf_writer.write(folder, file)
    reference_file = gguf_files.write(tmp_path / "theirs.gguf", model)
    actual, expected = read_header(file), read_header(reference_file)
    assert actual.metadata == expected.metadata | {
        "tokenizer.ggml.model": "none",
        f"{model.config.model_type}.vocab_size": model.config.vocab_size,
    }
    assert actual.tensors.keys() == expected.tensors.keys()
    ids = torch.tensor([PROMPTS[0]])
    ours, other = (minhub_py.from_pretrained(path, device="cpu") for path in (file, folder))
    with torch.no_grad():
        assert torch.equal(ours(ids), other(ids))
        reference = model(ids).logits
        assert (ours(ids) - reference).abs().max() <= 5e-5 * reference.abs().max()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {**SMALL["gpt2"], "activation_function": "relu"},
            "with activation_function gelu_new, and this model has relu",
        ),
        (SMALL["llama-linear"], "with rope_type default, and this model has linear"),
        (SMALL["qwen2"], "gpt2 and llama only, and this model is qwen2"),
    ],
    ids=["relu", "linear", "qwen2"],
)
def test_llamacpp_is_not_measured_with_another_model(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        gguf_writer.write(tmp_path, tmp_path / "model.gguf")


def test_a_python_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, small_llama: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("MINHUB_BENCH_OPENVINO", "/nowhere/python")
    bench = Bench(Settings(threads=1), tmp_path)
    assert bench.peers(look("small", Path(small_llama)), "float32", only=["OpenVINO"]) == []
    assert bench.left_out == [
        "OpenVINO is left out because MINHUB_BENCH_OPENVINO names no program: /nowhere/python"
    ]


def test_a_conversion_that_fails_leaves_no_file(small_llama: str, tmp_path: Path) -> None:
    """Later cases that need it have the same reason."""
    bench = Bench(Settings(threads=1), tmp_path)
    subject = look("small", Path(small_llama))
    [runner] = bench.ours_on_files([Runner("llama.cpp", "Q9_9", "LlamaCpp", {}, "gguf")])
    for _ in range(2):
        with pytest.raises(LeftOutError), bench.team(subject, [runner]):
            pass
    assert not list(tmp_path.glob("*Q9_9.gguf"))
    assert "does not load small: " in bench.left_out[0]


def test_a_peer_in_another_python(
    monkeypatch: pytest.MonkeyPatch, small_llama: str, tmp_path: Path
) -> None:
    """A worker imports the package `peers`, but no other module of this environment. The reason
    names a package.
    """
    venv.create(tmp_path / "ov", with_pip=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("MINHUB_BENCH_OPENVINO", str(tmp_path / "ov/bin/python"))
    bench = Bench(Settings(threads=1), tmp_path)
    subject = look("small", Path(small_llama))
    runners = bench.peers(subject, "float32", "nf4", only=["OpenVINO"])
    assert [runner.name for runner in runners] == [
        "OpenVINO float32",
        "OpenVINO int4",
        "OpenVINO int4-f32",
    ]
    with pytest.raises(LeftOutError), bench.team(subject, runners):
        pass
    assert (
        bench.left_out[0]
        == "OpenVINO float32 is left out because it does not load small: ModuleNotFoundError: No"
        " module named 'torch'"
    )


def test_the_best_peer_at_equal_bits() -> None:
    """Cases in which a peer is faster are shown; peers with other weights are not compared."""
    times = {
        "minhub_py float32": [4, 1],
        "minhub_py int8": [2, 2],
        "minhub_py nf4": [1, 1],
        "transformers float32": [6, 6],
        "llama.cpp F32": [2, 8],
        "llama.cpp Q8_0": [3, 3],
    }
    rows = [{"runner": name, "values": values} for name, values in times.items()]
    result = list(tables.best_peers(rows, lambda row: row["values"]))
    assert result == [
        [("llama.cpp F32", 0.5), ("transformers float32", 6)],
        [("llama.cpp Q8_0", 1.5), ("llama.cpp Q8_0", 1.5)],
        [],
        [],
        [],
        [],
    ]
    _, lines = tables.cells("prefill", {"rows": rows, "values": {"points": [32, 256]}})
    assert lines[:3] == [
        ["minhub_py float32", "4.0", "1.0"],
        ["× best peer", "0.50 llama.cpp", "6.00 transformers"],
        ["minhub_py int8", "2.0", "2.0"],
    ]


def test_every_case_has_its_columns() -> None:
    assert set(FUNCTIONS) == set(CASES) == COLUMNS.keys() | CURVES.keys()
    assert not COLUMNS.keys() & CURVES.keys()


@pytest.mark.slow
def test_a_worker_says_what_went_wrong() -> None:
    workers = [Worker("Memory", {"size": 4000}, 1), Worker("Minhub", {"folder": "./nowhere"}, 1)]
    try:
        memory, broken = workers
        memory.ready()
        times: dict[str, Any] = memory.ask("read", passes=2)
        assert all(len(result) == 2 for result in times.values())
        with pytest.raises(
            RuntimeError, match="AttributeError: 'Memory' object has no attribute 'write'"
        ):
            memory.ask("write")
        assert len(memory.ask("read", passes=1)) == len(times)
        with pytest.raises(RuntimeError, match=r"FileNotFoundError: There is no folder \./nowhere"):
            broken.ready()
        with pytest.raises(RuntimeError, match="its process ended with status"):
            broken.ask("timed", prompts=[[1]], new=1)
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--only", "everything"], 2, "'everything' is not one of 'bandwidth', 'decode'"),
        (
            ["--plot", "nowhere/run.png"],
            1,
            "nowhere/run.png cannot be written: the folder nowhere does not exist",
        ),
        (
            ["--plot", "run.jpg"],
            1,
            "--plot writes a PNG file: use a name that ends in .png, not run.jpg",
        ),
        (
            ["--save", "nowhere/run.json"],
            1,
            "nowhere/run.json cannot be written: the folder nowhere does not exist",
        ),
        (["--model", "./nowhere"], 1, "There is no folder ./nowhere"),
        (["--from", "nowhere.json"], 2, "No such file"),
        (["--from", __file__], 1, "is not JSON"),
        (["--from", __file__, "--quick"], 2, "--from measures nothing: leave out --quick"),
        (["--json", "--markdown"], 2, "either --markdown or --json"),
        (["--threads", "0"], 2, "0 is not in the range x>=1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_come_before_anything_is_measured(
    arguments: list[str], status: int, message: str
) -> None:
    told = failed(*arguments, status=status)
    assert message in told
    assert "Measuring" not in told


def test_files_that_are_no_result(tmp_path: Path, decoded: tuple[str, Path]) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "is not a result of this benchmark" in failed("--from", str(other))
    assert "has no case batch: measure it" in failed("--from", str(decoded[1]), "--only", "batch")
    result = json.loads(decoded[1].read_text())
    other.write_text(json.dumps({**result, "cases": {}}))
    assert "there is nothing to plot" in failed(
        "--from", str(other), "--json", "--plot", str(tmp_path / "a.png")
    )


def test_the_documentation_quotes_the_saved_run() -> None:
    assert f"{results.BEGIN}\n{results.tables()}\n{results.END}" in results.PAGE.read_text()


def test_parts_of_a_run_are_joined() -> None:
    parts = [
        {
            "date": day,
            "settings": {"threads": 2, "repeats": repeats},
            "cases": {day: {}},
            "failed": {},
            "left_out": ["a line", day],
        }
        for day, repeats in (("one", 3), ("two", 2))
    ]
    assert results.join(parts) == {
        "date": "one",
        "settings": {"threads": 2, "repeats": 2},
        "cases": {"one": {}, "two": {}},
        "failed": {},
        "left_out": ["a line", "one", "two"],
    }
