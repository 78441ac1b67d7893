"""Models split among processes produce the token IDs and scores of one process.

The processes are forked from a server that has imported PyTorch, with torchrun's environment
variables; each group performs all its tasks in one start. torchrun itself and `--tensor-parallel`
start once each.
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
from fast_python import python
from quantized_files import write_quantized
from random_weights import draw
from torch.utils._python_dispatch import TorchDispatchMode

import minhub_py
from minhub_py import from_pretrained, generate, save_pretrained, score
from minhub_py.cli.main import main
from minhub_py.distributed.process_group import connect
from minhub_py.models.config import read
from minhub_py.models.registry import architecture_of
from minhub_py.system.processor import cores

CASES = {name: cases.settings(name) for cases in ARCHITECTURES.values() for name in cases.cases}
FEW = [name for cases in ARCHITECTURES.values() for name in cases.few]
EXTRA = ["gpt2-untied", "gpt2-upcast", "llama-one-group", "llama-biases", "gpt_neox-tied"]
CONFIGS = {
    "sinusoidal": {
        "model_type": "sinusoidal",
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 44,
        "max_position_embeddings": 48,
    },
    "t5": {
        "model_type": "t5",
        "vocab_size": 61,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 44,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "gpt2-wide": {**CASES["gpt2"], "n_embd": 64},
    "gpt_neox-wide": {**CASES["gpt_neox"], "hidden_size": 64},
    "llama-wide": {**CASES["llama"], "hidden_size": 64, "intermediate_size": 96},
    "mxfp4": {
        **CASES["gpt_oss"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "quantization_config": {"quant_method": "mxfp4"},
    },
}
UNSPLIT = (
    "gemma4_",
    "mamba",
    "falcon_mamba",
    "granitemoehybrid",
    "bamba",
    "falcon_h1",
    "nemotron_h",
    "jamba",
    "rwkv",
)
NAMES = [*(name for name in FEW if not name.startswith(UNSPLIT)), *EXTRA, *CONFIGS, "fp8"]
# The largest allocation of a rank is measured, which takes half of the time to load the model.
MEASURED = [
    "gpt2-wide",
    "gpt_neox-wide",
    "llama-wide",
    "gpt_oss",
    "mxfp4",
    "qwen3_5_text",
    "qwen3_moe",
]
# the KV heads of three are fewer than the ranks
FOUR = ["gpt2", "llama-one-group", "olmo2-groups", "qwen3_5_text"]
REFUSED = {
    "lstm": {"vocab_size": 61, "hidden_size": 16, "embedding_size": 8, "num_layers": 1},
    "gemma4_text": CASES["gemma4_text-dense"],
    "mamba": CASES["mamba"],
    "granitemoehybrid": CASES["granitemoehybrid"],
    "rwkv": CASES["rwkv"],
}
UNEVEN = ["gpt2-odd-sizes", "gpt2-one-head-one-layer"]  # 7 heads and 1 head
PROMPTS = [[5], list(range(1, 31)), [7, 3, 60, 2, 9, 9, 41] * 2]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 3}


def text_of(model: Any) -> dict[str, Any]:
    """The results to compare: greedy and sampled token IDs, and scores, also of a text longer than
    any window.
    """
    texts = [
        torch.randint(61, (length,), generator=torch.Generator().manual_seed(length)).tolist()
        for length in (2, 55)
    ]
    return {
        "greedy": generate(model, PROMPTS, 6, temperature=0, eos_id=None),
        "sampled": generate(model, PROMPTS, 6, **SAMPLED, eos_id=None),
        "scores": [
            scores.tolist()
            for scores in score(model, texts, targets=texts if model.encoder_decoder else None)
        ],
    }


class Largest(TorchDispatchMode):
    """Records the size of the largest allocation, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            tensor.untyped_storage().data_ptr()
            for tensor in tensors_in((args, kwargs))
            if tensor.device.type == "cpu"
        }
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            larger = (
                tensor.device.type == "cpu"
                and storage.data_ptr() not in inputs
                and storage.nbytes() > self.size
            )
            if larger and not is_mapped(storage.data_ptr()):
                self.size = storage.nbytes()
        return result


def is_mapped(address: int) -> bool:
    """Whether an address is within a mapped file of weights."""
    lines = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(".safetensors")
    ]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(first <= address < last for first, last in ranges)


def tensors_in(values: Any) -> list[torch.Tensor]:
    return [
        leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)
    ]


def message(call: Callable[[], object]) -> str:
    """The error of a call."""
    try:
        call()
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def compare(folder: Path, names: list[str]) -> dict[str, Any]:
    """The results of this process for each model."""
    results: dict[str, Any] = {}
    for name in names:
        measured = name in MEASURED and sys.platform == "linux"
        with Largest() if measured else nullcontext(Largest()) as largest:
            model = from_pretrained(folder / name, device="cpu", parallel="tensor")
        tensors = [*model.named_parameters(), *model.named_buffers()]
        shapes = {key: list(tensor.shape) for key, tensor in tensors}
        results[name] = {**text_of(model), "shapes": shapes, "largest": largest.size}
    return results


def fail(folder: Path, names: list[str]) -> dict[str, Any]:
    """The messages of user errors, and texts that rank 0 broadcasts."""
    rank = int(os.environ["RANK"])
    load = from_pretrained
    results: dict[str, Any] = {
        name: message(lambda name=name: load(folder / name, device="cpu", parallel="tensor"))
        for name in (*REFUSED, *UNEVEN, "nowhere")
    }
    results["quantized"] = message(
        lambda: load(folder / "gpt2", device="cpu", parallel="tensor", quantize="int8")
    )
    results["unknown"] = message(lambda: load(folder / "gpt2", parallel="pipeline"))
    if group := connect("cpu"):
        results["broadcast"] = [
            group.broadcast(lambda text=text: f"{text}{rank}") for text in ("", "ä\udcff\n")
        ]
    torch.manual_seed(rank)
    model = load(folder / "gpt2", device="cpu", parallel="tensor")
    results["saved"] = message(lambda: save_pretrained(model, folder / "saved"))
    results["unseeded"] = generate(model, [[1, 2]], 20)
    results["different"] = message(lambda: generate(model, [[rank, 2]], 4, temperature=0))
    return results


def die(folder: Path, names: list[str]) -> dict[str, Any]:
    """The error of rank 0 after rank 1 is killed during generation."""
    model = from_pretrained(folder / "gpt2", device="cpu", parallel="tensor")
    ids = minhub_py.stream(model, [1], 50, temperature=0, eos_id=None)
    next(ids)
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"killed": message(lambda: list(ids))}


TASKS = {task.__name__: task for task in (compare, fail, die)}


def child(
    environment: dict[str, str], task: str, folder: Path, names: list[str], out: Path
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    (out / f"{environment['RANK']}.json").write_text(json.dumps(TASKS[task](folder, names)))


def run_group(
    size: int, task: str, folder: Path, names: list[str], out: Path
) -> list[dict[str, Any]]:
    """The results of a task in each of `size` processes."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(size),
    }
    children = []
    for rank in map(str, range(size)):
        arguments = (environment | {"RANK": rank, "LOCAL_RANK": rank}, task, folder, names, out)
        children.append(SERVER.Process(target=child, args=arguments))
        children[-1].start()
    for process in children:
        process.join(200)
        process.kill()
        process.join()
    return [json.loads(path.read_text()) for path in sorted(out.iterdir())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models with random weights."""
    folder = tmp_path_factory.mktemp("models")
    refused = {name: {"model_type": name, **settings} for name, settings in REFUSED.items()}
    for name, config in {**CASES, **CONFIGS, **refused}.items():
        if name in (*NAMES, *FOUR, *REFUSED, *UNEVEN):
            settings = deepcopy(config)
            architecture = architecture_of(settings["model_type"])
            model = architecture.Model(read(architecture.Config, settings))
            draw(model)
            save_pretrained(model, folder / name)
    write_quantized(folder / "fp8", "fp8-block", dtype=torch.float32, vocab_size=61)
    return folder


@pytest.fixture(scope="module")
def single(folder: Path) -> Callable[[str], dict[str, Any]]:
    return lambda name: text_of(from_pretrained(folder / name, device="cpu"))


@pytest.fixture(scope="module")
def two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_group(2, "compare", folder, NAMES, tmp_path_factory.mktemp("two"))


def check(results: dict[str, Any], expected: dict[str, Any]) -> None:
    assert results["greedy"] == expected["greedy"]
    assert results["sampled"] == expected["sampled"]
    for scores, expected_scores in zip(results["scores"], expected["scores"], strict=True):
        torch.testing.assert_close(
            torch.tensor(scores), torch.tensor(expected_scores), rtol=2e-4, atol=2e-4
        )


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_match_a_single_process(name: str, two: Any, single: Any) -> None:
    first, second = (results[name] for results in two)
    assert [first[key] for key in ("greedy", "sampled", "scores")] == [
        second[key] for key in ("greedy", "sampled", "scores")
    ]
    check(first, single(name))


def test_four_ranks_with_fewer_kv_heads_match_a_single_process(
    folder: Path, tmp_path: Path, single: Any
) -> None:
    ranks = run_group(4, "compare", folder, FOUR, tmp_path)
    assert len(ranks) == 4
    for name in FOUR:
        assert len({json.dumps(results[name]["sampled"]) for results in ranks}) == 1
        check(ranks[0][name], single(name))


@pytest.mark.parametrize("name", MEASURED)
def test_each_rank_allocates_no_more_than_its_shard(name: str, two: Any, folder: Path) -> None:
    model = from_pretrained(folder / name, device="cpu")
    full = {
        key: tensor.shape for key, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    shapes = [results[name]["shapes"] for results in two]
    for key, shape in full.items():
        shares = [torch.Size(rank[key]).numel() for rank in shapes]
        if len(shape) > 1 and not any(
            part in key for part in ("wpe", "router", "mlp.gate.", "down_proj_bias")
        ):
            assert sum(shares) == shape.numel(), key
            # three blocks of MXFP4: one rank has two
            assert max(shares) <= 0.67 * shape.numel(), key
    # The largest allocation is a shard, a replicated weight or the state of the random generator.
    sizes = [4 * max(torch.Size(rank[key]).numel() for rank in shapes) for key in full]
    assert all(
        results[name]["largest"] <= max(len(torch.get_rng_state()), *sizes) for results in two
    )
    assert sys.platform != "linux" or two[0][name]["largest"] > 0


def test_errors_state_the_solution(folder: Path, tmp_path: Path) -> None:
    first, second = run_group(2, "fail", folder, [], tmp_path)
    assert first["lstm"] == second["lstm"]
    assert first["lstm"].startswith(
        "ValueError: LSTM: Recurrent layers cannot be split among processes; load this model"
    )
    assert first["gemma4_text"].startswith(
        "ValueError: Gemma 4: NormValues layers cannot be split among processes"
    )
    for name, title in (("mamba", "Mamba"), ("granitemoehybrid", "Granite 4")):
        assert first[name].startswith(
            f"ValueError: {title}: CausalConvolution layers cannot be split among processes"
        )
    assert first["rwkv"].startswith(
        "ValueError: RWKV-4: TokenShift layers cannot be split among processes"
    )
    single_head, odd = (first[name] for name in reversed(UNEVEN))
    assert single_head.endswith(
        "1 heads and 1 KV heads cannot be split among 2 processes: possible numbers are 1"
    )
    assert odd.endswith(
        "7 heads and 7 KV heads cannot be split among 2 processes: possible numbers are 1, 7"
    )
    assert first["nowhere"].startswith("FileNotFoundError")
    assert second["nowhere"].startswith("OtherProcessError: process 0 failed")
    assert first["broadcast"] == second["broadcast"] == ["0", "ä\udcff\n0"]
    assert "a quantized model cannot be split among processes" in first["quantized"]
    assert "parallel 'pipeline' is unknown; give None or" in first["unknown"]
    assert "a model that is split among processes cannot be saved" in first["saved"]
    assert first["unseeded"] == second["unseeded"]
    assert "have different token IDs" in first["different"]
    assert "have different token IDs" in second["different"]


def test_a_killed_process_ends_the_others_with_an_error(folder: Path, tmp_path: Path) -> None:
    [results] = run_group(2, "die", folder, [], tmp_path)
    assert "OtherProcessError: a process that shares the model has ended" in results["killed"]


def test_one_process_loads_the_whole_model(folder: Path) -> None:
    model = from_pretrained(folder / "gpt2", device="cpu", parallel="tensor")
    assert type(model) is type(from_pretrained(folder / "gpt2", device="cpu"))


@pytest.fixture(scope="module")
def bot(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a tokenizer. The built-in models have 5 heads, which two processes cannot
    divide.
    """
    folder = tmp_path_factory.mktemp("bot")
    tokenizer = minhub_py.tokenizer_from_pretrained("minhub/shakespeare-gpt2")
    size = tokenizer.get_vocab_size()
    model = minhub_py.gpt2(
        vocab_size=size,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    save_pretrained(model, folder, tokenizer)
    return str(folder)


COMMAND = [
    "generate",
    "minhub/shakespeare-gpt2",
    "ROMEO:",
    "-n",
    "12",
    "--seed",
    "1",
    "--device",
    "cpu",
]


def run(start: list[str], *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """The exit status, standard output and standard error of a command."""
    program = python() if start == ["minhub_py"] else sys.executable
    process = subprocess.run(
        [program, "-m", *start, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        input=stdin,
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.slow
def test_a_command_in_two_processes_prints_the_output_of_one(bot: str) -> None:
    command = [COMMAND[0], bot, *COMMAND[2:]]
    expected = CliRunner().invoke(main, command)
    assert expected.exit_code == 0
    assert run(["minhub_py"], *command, "--tensor-parallel", "2") == (
        0,
        expected.stdout,
        expected.stderr,
    )
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "minhub_py"]
    text = "ROMEO: But soft, what light through yonder window breaks?\n"
    arguments = ["score", bot, "-", "--device", "cpu"]
    status, output, _ = run(torchrun, *arguments, stdin=text)
    assert (status, output) == (0, CliRunner().invoke(main, arguments, input=text).stdout)


def test_only_rank_0_reports_an_error() -> None:
    status, output, errors = run(
        ["minhub_py"], "score", "minhub/nothing", "-", "--tensor-parallel", "2", stdin="x y"
    )
    assert (status, output) == (1, "")
    assert errors.count("Error:") == 1
    assert "minhub/nothing" in errors


def test_drafts_are_rejected_before_processes_start() -> None:
    result = CliRunner().invoke(main, [*COMMAND, "--draft", "mtp", "--tensor-parallel", "2"])
    assert result.exit_code == 2
    assert "--draft is not supported with --tensor-parallel" in result.output


def test_a_usage_error_in_all_processes_has_the_exit_status_of_one() -> None:
    command = [
        "generate",
        "minhub/shakespeare-gpt2",
        "ROMEO:",
        "more",
        "--device",
        "cpu",
        "--tensor-parallel",
        "2",
    ]
    statuses = [run(["minhub_py"], *command)[0] for _ in range(3)]
    assert statuses == [2, 2, 2]


def test_out_is_rejected_before_processes_start() -> None:
    result = CliRunner().invoke(main, [*COMMAND, "--out", "x.csv", "--tensor-parallel", "2"])
    assert result.exit_code == 2
    assert "omit --tensor-parallel" in result.output


def test_more_processes_than_cores_are_rejected() -> None:
    result = CliRunner().invoke(main, [*COMMAND, "--tensor-parallel", str(cores() + 99)])
    assert result.exit_code == 2
    assert f"this machine has {cores()} cores" in result.output
