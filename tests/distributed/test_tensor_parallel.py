"""Models split among processes give the ids and scores of one process.

The processes are forked from a server that has imported PyTorch, with torchrun's environment variables; each group of
them does all that it is asked for in one start. torchrun itself, and `--tensor-parallel`, start once each.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ARCHITECTURES
from children import SERVER
from click.testing import CliRunner
from random_weights import draw
from torch.utils._python_dispatch import TorchDispatchMode

import minhub_py
from minhub_py import from_pretrained, generate, save_pretrained, score
from minhub_py.cli.main import main
from minhub_py.config import read
from minhub_py.inference.processes import connect
from minhub_py.registry import architecture_of
from minhub_py.system.processor import cores

CASES = {name: cases.settings(name) for cases in ARCHITECTURES.values() for name in cases.cases}
FEW = [name for cases in ARCHITECTURES.values() for name in cases.few]
MORE = ["gpt2-untied", "gpt2-upcast", "gpt2-odd-sizes", "llama-one-group", "llama-biases", "gpt_neox-tied"]
OTHERS = {
    "sinusoidal": {"model_type": "sinusoidal", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "intermediate_size": 44, "max_position_embeddings": 48},
    "t5": {"model_type": "t5", "vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 3,
           "decoder_start_token_id": 0},
    "gpt2-wide": {**CASES["gpt2"], "n_embd": 64},
    "gpt_neox-wide": {**CASES["gpt_neox"], "hidden_size": 64},
    "llama-wide": {**CASES["llama"], "hidden_size": 64, "intermediate_size": 96},
    "mxfp4": {**CASES["gpt_oss-all-experts"], "hidden_size": 64, "intermediate_size": 32,
              "quantization_config": {"quant_method": "mxfp4"}},
}  # fmt: skip
NAMES = [*FEW, *(name for name in MORE if name in CASES), *OTHERS]
FOUR = ["gpt2-odd-sizes", "llama-one-group", "olmo2-groups", "qwen3_5_text"]
REFUSED = {
    "lstm": {"vocab_size": 61, "hidden_size": 16, "embedding_size": 8, "num_layers": 1},
}
PROMPTS = [[5], list(range(1, 31)), [7, 3, 60, 2, 9, 9, 41] * 2]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 3}


def text_of(model: Any) -> dict[str, Any]:
    """What is compared: greedy ids, sampled ones, and scores, also of a text that is longer than any window."""
    texts = [
        torch.randint(61, (length,), generator=torch.Generator().manual_seed(length)).tolist() for length in (2, 55)
    ]
    return {
        "greedy": generate(model, PROMPTS, 6, temperature=0, eos_id=None),
        "sampled": generate(model, PROMPTS, 6, **SAMPLED, eos_id=None),
        "scores": [scores.tolist() for scores in score(model, texts, targets=texts if model.encoder_decoder else None)],
    }


class Largest(TorchDispatchMode):
    """The largest memory, in bytes, that one operation of PyTorch takes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {each.untyped_storage().data_ptr() for each in tensors_in((args, kwargs)) if each.device.type == "cpu"}
        found = func(*args, **(kwargs or {}))
        for each in tensors_in(found):
            storage = each.untyped_storage()
            larger = each.device.type == "cpu" and storage.data_ptr() not in known and storage.nbytes() > self.size
            if larger and not is_mapped(storage.data_ptr()):
                self.size = storage.nbytes()
        return found


def is_mapped(address: int) -> bool:
    """Whether an address is within a mapped file of weights."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".safetensors")]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(first <= address < last for first, last in ranges)


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [each for each in torch.utils._pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]


def message(call: Callable[[], object]) -> str:
    """The error of a call."""
    try:
        call()
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def compare(folder: Path, names: list[str]) -> dict[str, Any]:
    """What this process finds with each model."""
    found: dict[str, Any] = {}
    for name in names:
        with Largest() if sys.platform == "linux" else nullcontext(Largest()) as largest:
            model = from_pretrained(folder / name, device="cpu", parallel="tensor")
        shapes = {key: list(value.shape) for key, value in model.model.named_parameters()}
        found[name] = {**text_of(model), "shapes": shapes, "largest": largest.size}
    return found


def fail(folder: Path, names: list[str]) -> dict[str, Any]:
    """The errors of what users can get wrong, and texts that the first process reads."""
    rank = int(os.environ["RANK"])
    load = from_pretrained
    found: dict[str, Any] = {
        name: message(lambda name=name: load(folder / name, device="cpu", parallel="tensor"))
        for name in (*REFUSED, "gpt2-one-head-one-layer", "nowhere")
    }
    found["quantized"] = message(lambda: load(folder / "gpt2", device="cpu", parallel="tensor", quantize="int8"))
    found["unknown"] = message(lambda: load(folder / "gpt2", parallel="pipeline"))
    if processes := connect("cpu"):
        found["told"] = [processes.told(lambda text=text: f"{text}{rank}") for text in ("", "ä\udcff\n")]
    torch.manual_seed(rank)
    model = load(folder / "gpt2", device="cpu", parallel="tensor")
    found["saved"] = message(lambda: save_pretrained(model, folder / "saved"))
    found["unseeded"] = generate(model, [[1, 2]], 20)
    found["different"] = message(lambda: generate(model, [[rank, 2]], 4, temperature=0))
    return found


def die(folder: Path, names: list[str]) -> dict[str, Any]:
    """The error that one process gets when the other is killed while it generates."""
    model = from_pretrained(folder / "gpt2", device="cpu", parallel="tensor")
    ids = minhub_py.stream(model, [1], 50, temperature=0, eos_id=None)
    next(ids)
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"killed": message(lambda: list(ids))}


WORK = {each.__name__: each for each in (compare, fail, die)}


def child(environment: dict[str, str], work: str, folder: Path, names: list[str], out: Path) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    (out / f"{environment['RANK']}.json").write_text(json.dumps(WORK[work](folder, names)))


def together(count: int, work: str, folder: Path, names: list[str], out: Path) -> list[dict[str, Any]]:
    """What each of `count` processes finds."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(count),
    }  # fmt: skip
    children = []
    for rank in range(count):
        own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        children.append(SERVER.Process(target=child, args=(own, work, folder, names, out)))
        children[-1].start()
    for each in children:
        each.join(200)
        each.kill()
        each.join()
    return [json.loads(path.read_text()) for path in sorted(out.iterdir())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models with random weights."""
    folder = tmp_path_factory.mktemp("models")
    refused = {name: {"model_type": name, **settings} for name, settings in REFUSED.items()}
    for name, given in {**CASES, **OTHERS, **refused}.items():
        if name in (*NAMES, *FOUR, *REFUSED, "gpt2-one-head-one-layer"):
            settings = deepcopy(given)
            family = architecture_of(settings["model_type"])
            model = family.Model(read(family.Config, settings))
            draw(model)
            save_pretrained(model, folder / name)
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[str], dict[str, Any]]:
    return lambda name: text_of(from_pretrained(folder / name, device="cpu"))


@pytest.fixture(scope="module")
def two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(2, "compare", folder, NAMES, tmp_path_factory.mktemp("two"))


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["greedy"] == expected["greedy"]
    assert found["sampled"] == expected["sampled"]
    for scores, wanted in zip(found["scores"], expected["scores"], strict=True):
        torch.testing.assert_close(torch.tensor(scores), torch.tensor(wanted), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_give_the_ids_and_scores_of_one(name: str, two: Any, alone: Any) -> None:
    first, second = (each[name] for each in two)
    assert [first[key] for key in ("greedy", "sampled", "scores")] == [
        second[key] for key in ("greedy", "sampled", "scores")
    ]
    check(first, alone(name))


def test_four_processes_share_heads_and_groups_that_they_do_not_divide(
    folder: Path, tmp_path: Path, alone: Any
) -> None:
    found = together(4, "compare", folder, FOUR, tmp_path)
    assert len(found) == 4
    for name in FOUR:
        assert len({json.dumps(each[name]["sampled"]) for each in found}) == 1
        check(found[0][name], alone(name))


@pytest.mark.parametrize("name", ["gpt2-wide", "gpt_neox-wide", "llama-wide", "gpt_oss-all-experts", "qwen3_5_text"])
def test_each_weight_is_shared_and_none_is_read_as_a_whole(name: str, two: Any, folder: Path) -> None:
    whole = {key: value.shape for key, value in from_pretrained(folder / name, device="cpu").named_parameters()}
    shapes = [each[name]["shapes"] for each in two]
    for key, shape in whole.items():
        parts = [torch.Size(each[key]).numel() for each in shapes if key in each]
        if len(shape) > 1 and "wpe" not in key and "router" not in key:
            assert sum(parts) == shape.numel(), key
            assert max(parts) <= 0.6 * shape.numel(), key  # of odd numbers one process has more
    # Nothing that is made is larger than a part, than what all processes have, or than the random generator's state.
    largest = max(
        len(torch.get_rng_state()),
        *(4 * max(torch.Size(each[key]).numel() for each in shapes if key in each) for key in whole),
    )
    assert all(each[name]["largest"] <= largest for each in two)
    assert sys.platform != "linux" or two[0][name]["largest"] > 0


def test_errors_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    first, second = together(2, "fail", folder, [], tmp_path)
    assert first["lstm"] == second["lstm"]
    assert first["lstm"].startswith(
        "ValueError: LSTM: Recurrent layers cannot be split among processes; load this model"
    )
    assert first["gpt2-one-head-one-layer"].endswith("1 heads cannot be split among 2 processes: start at most 1")
    assert first["nowhere"].startswith("FileNotFoundError")
    assert second["nowhere"].startswith("OtherProcessError: process 0 has failed")
    assert first["told"] == second["told"] == ["0", "ä\udcff\n0"]
    assert "a quantized model cannot be split among processes" in first["quantized"]
    assert "parallel 'pipeline' is unknown; give None or" in first["unknown"]
    assert "a model that is split among processes cannot be saved" in first["saved"]
    assert first["unseeded"] == second["unseeded"]
    assert "read different ids" in first["different"]
    assert "read different ids" in second["different"]


def test_a_process_that_is_killed_ends_the_other(folder: Path, tmp_path: Path) -> None:
    [found] = together(2, "die", folder, [], tmp_path)
    assert "OtherProcessError: a process that shares the model has ended" in found["killed"]


def test_one_process_loads_the_whole_model(folder: Path) -> None:
    model = from_pretrained(folder / "gpt2", device="cpu", parallel="tensor")
    assert type(model) is type(from_pretrained(folder / "gpt2", device="cpu"))


COMMAND = ["generate", "minhub/shakespeare-gpt2", "ROMEO:", "-n", "12", "--seed", "1", "--device", "cpu"]


def run(start: list[str], *arguments: str, given: str = "") -> tuple[int, str, str]:
    """The exit status, standard output and standard error of a command."""
    done = subprocess.run(
        [sys.executable, "-m", *start, *arguments], capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, input=given,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_command_in_two_processes_prints_the_text_of_one() -> None:
    alone = CliRunner().invoke(main, COMMAND)
    assert alone.exit_code == 0
    assert run(["minhub_py"], *COMMAND, "--tensor-parallel", "2") == (0, alone.stdout, alone.stderr)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "minhub_py"]
    text = "ROMEO: But soft, what light through yonder window breaks?\n"
    arguments = ["score", "minhub/shakespeare-gpt2", "-", "--device", "cpu"]
    status, shown, _ = run(torchrun, *arguments, given=text)
    assert (status, shown) == (0, CliRunner().invoke(main, arguments, input=text).stdout)


def test_the_first_process_alone_says_what_is_wrong() -> None:
    status, shown, errors = run(["minhub_py"], "score", "minhub/nothing", "-", "--tensor-parallel", "2", given="x y")
    assert (status, shown) == (1, "")
    assert errors.count("Error:") == 1
    assert "minhub/nothing" in errors


def test_out_is_refused_before_processes_start() -> None:
    refused = CliRunner().invoke(main, [*COMMAND, "--out", "x.csv", "--tensor-parallel", "2"])
    assert refused.exit_code == 2
    assert "leave out --tensor-parallel" in refused.output


def test_more_processes_than_cores_are_refused_before_they_start() -> None:
    refused = CliRunner().invoke(main, [*COMMAND, "--tensor-parallel", str(cores() + 99)])
    assert isinstance(refused.exception, SystemExit)
    assert f"5 heads cannot be split among {cores() + 99} processes: start at most 5" in refused.output
