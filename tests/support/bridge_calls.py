"""Values in R's serialization, calls of the R bridge's service, and its training."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from needs import RSCRIPT, need

from r_bridge.arguments import scalar
from r_bridge.convert import dumps, loads
from r_bridge.service import Service


def in_r(tmp_path: Path, code: str, value: bytes = b"") -> bytes:
    """Run R code that reads the file IN with `value`. Returns the content of the file OUT."""
    (tmp_path / "in").write_bytes(value)
    (tmp_path / "out").unlink(missing_ok=True)
    code = f'IN <- "{tmp_path}/in"; OUT <- "{tmp_path}/out"; {code}'
    (tmp_path / "code.R").write_text(code, encoding="utf-8")
    need("R")
    command = [str(RSCRIPT), "--vanilla", tmp_path / "code.R"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return (tmp_path / "out").read_bytes()


EXAMPLE = {
    "a": np.arange(3.0),
    "b": ["x", None, "\u00e9"],
    "c": np.arange(6).reshape(2, 3),
    "d": [None, True, b"raw"],
}


def run(
    service: Service, method: str, /, cancelled: Any = None, **arguments: Any
) -> tuple[str, Any]:
    """Run a request from the bytes that R would send."""
    call = loads(
        dumps({"method": method, "arguments": arguments, "release": np.array([], np.int32)})
    )
    kind, value = service.run(call, lambda value: None, cancelled or threading.Event())
    return kind, loads(dumps(value))


def create_model(service: Service, **changes: Any) -> int:
    config = {"vocab_size": 10, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    kind, about = run(service, "fresh", family="gpt2", config=config | changes, seed=1)
    assert kind == "done", about
    number = scalar(about["number"], int)
    run(service, "train", model=number, mode=False)
    return number


def replace_weights(service: Service, number: int, state: dict[str, Any]) -> str | None:
    """Replace a model's weights like R. Returns the error message, or None."""
    shapes = [value["shape"] for value in state.values()]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("check_state_dict", {"model": number, "names": list(state), "shapes": shapes})
    ]
    room = scalar(run(service, "new_state_dict")[1], int)
    calls += [
        ("add_weight", {"state": room, "name": name, "value": value})
        for name, value in state.items()
    ]
    calls += [
        (method, {"model": number, "state": room})
        for method in ("prepare_state_dict", "load_state_dict")
    ]
    for method, arguments in calls:
        kind, answer = run(service, method, **arguments)
        if kind == "failed":
            return str(answer["message"][0])
    return None


def as_buffer(tensor: torch.Tensor) -> dict[str, Any]:
    """A tensor in the form in which R sends R torch tensors."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {
        "shape": np.array(tensor.shape),
        "dtype": dtype,
        "data": tensor.contiguous().numpy().tobytes(),
    }
