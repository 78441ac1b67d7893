"""Arguments, methods and objects of the R bridge's service."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from bridge_calls import as_buffer, create_model, replace_weights, run

import weights_map
from r_bridge.arguments import id_rows, scalar
from r_bridge.convert import dumps, loads
from r_bridge.methods import METHODS
from r_bridge.objects import Cancelled
from r_bridge.service import Service

# Arguments of methods


def test_scalar_converts_each_type() -> None:
    f64, i32 = np.array([3.0]), np.array([3], np.int32)
    assert scalar(i32, int) == 3
    assert type(scalar(f64, int)) is int
    assert type(scalar(i32, float)) is float
    assert scalar(["x"], str) == "x"
    assert scalar(np.array([True]), bool) is True
    assert scalar(None, str) is None
    assert scalar([None], str) is None
    assert scalar(np.ma.MaskedArray([0], [True]), int) is None
    assert scalar(np.array([np.nan]), float) is None
    for value, kind, message in [
        (np.array([1, 2]), int, "expected a whole number, not 2 values"),
        (np.array([1.5]), int, "expected a whole number, not 1.5"),
        (["x"], int, "expected a whole number, not text|expected a whole number, not 'x'"),
        (i32, str, "expected a string, not 3"),
        (i32, bool, "expected TRUE or FALSE, not 3"),
        (np.array([True]), int, "expected a whole number, not True"),
        (["a", "b"], str, "expected a string, not text"),
        ([], str, "expected a string, not a list of 0"),
        ({"a": 1}, str, "expected a string, not a list with names"),
        (b"ab", str, "expected a string, not raw bytes"),
    ]:
        with pytest.raises(ValueError, match=message):
            scalar(value, kind)


def ids(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values)


def test_ids_of_every_form_are_rows_of_python_ints() -> None:
    complete = np.array([1, 2], np.int32)
    many = {"ids": np.array([1, 2, 3], np.int32), "lengths": np.array([2, 0, 1], np.int32)}
    for value, expected in [
        (complete, [[1, 2]]),
        (ids(1.0, 2.0), [[1, 2]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([complete, ids(3.0)], [[1, 2], [3]]),
        ([None, complete], [[], [1, 2]]),
        ([], []),
        (complete[:0], [[]]),
        (many, [[1, 2], [], [3]]),
        (many | {"ids": ids(1.0, 2.0, 3.0)}, [[1, 2], [], [3]]),
    ]:
        rows = id_rows(value, 10)
        assert rows == expected
        assert all(type(id) is int for row in rows for id in row)
    assert id_rows(ids(1, 10), 10, first=1) == [[0, 9]]
    assert id_rows(many, 3, first=1) == [[0, 1], [], [2]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (ids(1, 10), "row 1: ids must be between 0 and 9, not 10"),
        (ids(-1), "row 1: ids must be between 0 and 9, not -1"),
        (ids(1.0, 0.5), "row 1: ids must be whole numbers, not 0.5"),
        (ids(1.0, np.nan), "row 1: an id is NA"),
        (ids(1.0, np.inf), "row 1: ids must be between 0 and 9, not inf"),
        (ids(1e300), "row 1: ids must be between 0 and 9, not 1"),
        (np.ma.MaskedArray([1, 2], [False, True]), "row 1: an id is NA"),
        ([ids(1), np.ma.MaskedArray([1, 2], [False, True])], "row 2: an id is NA"),
        (
            {"ids": np.ma.MaskedArray([1, 2, 3], [0, 0, 1], np.int32), "lengths": ids(1, 2)},
            "row 2: an id is NA",
        ),
        (
            {"ids": np.array([1, 2, 11], np.int32), "lengths": ids(1, 2)},
            "row 2: ids must be between 0 and 9, not 11",
        ),
        (
            {"ids": ids(1.0, 2.0, 2.5), "lengths": ids(1, 2)},
            "row 2: ids must be whole numbers, not 2.5",
        ),
        (ids(True), "row 1: ids must be whole numbers, not 1 values .TRUE and FALSE."),
        (["a"], "row 1: ids must be whole numbers, not str"),
        (np.zeros((2, 2, 2)), "ids have 3 dimensions"),
        (None, "ids are missing"),
        ("text", "ids are missing"),
        ([[ids(1)]], "row 1: ids must be whole numbers, not a list of 1"),
    ],
)
def test_invalid_ids_raise_value_error(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        id_rows(value, 10)


def test_zero_in_an_r_torch_tensor_has_its_own_message() -> None:
    with pytest.raises(
        ValueError, match="an id is 0, but the ids in an R torch tensor count from 1"
    ):
        id_rows(ids(0, 1), 10, first=1)
    with pytest.raises(ValueError, match="ids must be between 1 and 10, not 11"):
        id_rows(ids(11), 10, first=1)
    with pytest.raises(ValueError, match="an id is NA"):  # an integer in R torch
        id_rows(ids(1.0, -(2.0**31)), 10, first=1)


# The service


def test_unknown_methods_and_arguments_are_rejected() -> None:
    service = Service()
    assert run(service, "nothing") == ("done", None)
    for name in ("__class__", "add", "run", "objects", "print", "exec", ""):
        kind, failure = run(service, name)
        assert kind == "failed"
        assert failure["class"] == ["ValueError"]
        assert "no method" in failure["message"][0]
    for arguments, message in [
        ({"x": 1}, "nothing has no argument x"),
        ({"service": 1, "self": 2}, "nothing has no argument self, service"),
    ]:
        assert message in run(service, "nothing", **arguments)[1]["message"][0]
    failure = run(service, "require_extra", name=np.array([3], np.int32))[1]
    assert failure["message"][0] == "name: expected a string, not 3"
    for broken in (
        None,
        [],
        {"method": ["nothing"]},
        {"method": None, "arguments": None, "release": None},
        {"release": ["a"]},
    ):
        kind, failure = service.run(broken, lambda value: None, threading.Event())  # type: ignore[arg-type]
        assert kind == "failed"
        assert failure["message"]
    assert len(METHODS) >= 20


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_accepted_with_native_and_hub_names(tied: bool) -> None:
    """Hub names have the Hub's layout in checkpoints, and native layout in modules of the R package
    minhub.
    """
    service = Service()
    number = create_model(service, tie_word_embeddings=tied)
    module = service.session.objects[number].module
    torch.manual_seed(0)
    ours = {name: torch.randn(weight.shape) for name, weight in module.named_parameters()}
    hub = dict(weights_map.to_hub("gpt2", ours))
    named = {
        ("" if name == "lm_head.weight" else "transformer.") + name: tensor
        for name, tensor in ours.items()
    }
    head = {} if not tied else {"lm_head.weight": ours["wte.weight"]}
    buffers = {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16)}
    unprefixed = {name.removeprefix("transformer."): tensor for name, tensor in hub.items()}
    for state in (ours, hub, hub | buffers | head, named, named | head, unprefixed):
        module.load_state_dict(
            {name: torch.zeros_like(w) for name, w in module.state_dict().items()}
        )
        assert (
            replace_weights(
                service, number, {name: as_buffer(tensor) for name, tensor in state.items()}
            )
            is None
        )
        for name, weight in module.named_parameters():
            assert torch.equal(weight, ours[name]), name


def test_invalid_weights_do_not_change_the_model() -> None:
    service = Service()
    number = create_model(service)
    module = service.session.objects[number].module
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    good = {name: as_buffer(torch.ones(weight.shape)) for name, weight in before.items()}
    hub = {f"transformer.{name}": value for name, value in good.items()}
    nan = as_buffer(torch.tensor([1.0, 2, 3, 4, 5, 6, 7, float("nan")]))
    for state, message in [
        (
            good | {"ln_f.bias": nan},
            "state_dict has NA or NaN in ln_f.bias: replace them by numbers",
        ),
        (good | {"ln_f.bias": as_buffer(torch.ones(9))}, "the shape of ln_f.bias must be 8, not 9"),
        (
            hub | {"transformer.wte.weight": as_buffer(torch.ones(8, 10))},
            "the shape of wte.weight must be 10 x 8, not 8 x 10",
        ),
        (good | {"more": nan}, "unknown weights in state_dict: more; see names(model$parameters)"),
        (
            dict(list(hub.items())[1:]),
            "missing weights in state_dict: wte.weight; see names(model$parameters)",
        ),
        (
            good | hub,
            (
                "state_dict has wte.weight twice, as wte.weight and as transformer.wte.weight:"
                " remove one"
            ),
        ),
        (
            hub | {"lm_head.weight": as_buffer(torch.zeros(10, 8))},
            (
                "lm_head.weight must equal transformer.wte.weight: they are one tied weight in this"
                " model"
            ),
        ),
    ]:
        assert replace_weights(service, number, state) == message
        assert all(torch.equal(weight, before[name]) for name, weight in module.named_parameters())
    assert replace_weights(service, number, good) is None


def test_float64_weights_are_not_rounded() -> None:
    service = Service()
    number = create_model(service)
    run(service, "to", model=number, device=None, dtype="float64")
    weights = service.session.objects[number].module
    third = {
        n: as_buffer(torch.full(w.shape, 1 / 3, dtype=torch.float64))
        for n, w in weights.named_parameters()
    }
    assert replace_weights(service, number, third) is None
    assert all(bool((weight == 1 / 3).all()) for weight in weights.parameters())


def test_objects_exist_until_r_releases_them() -> None:
    service = Service()
    number = create_model(service)
    assert (
        run(service, "forward", model=number, ids=np.array([1, 2]), first=0, as_torch=False)[0]
        == "done"
    )
    again = loads(dumps({"method": "nothing", "arguments": {}, "release": np.array([number, 99])}))
    assert service.run(again, lambda value: None, threading.Event()) == ("done", None)
    assert service.session.objects == {}
    kind, failure = run(service, "parameters", model=number)
    assert (kind, failure["class"]) == ("failed", ["LookupError"])
    # A tokenizer is not a model.
    number = scalar(
        run(
            service,
            "tokenizer_from_pretrained",
            identifier="minhub/shakespeare-gpt2",
            revision="main",
            token=None,
            local_files_only=True,
        )[1],
        int,
    )
    assert run(service, "parameters", model=number)[0] == "failed"


def test_cancelled_request_returns_cancelled() -> None:
    service = Service()
    number = create_model(service)
    cancelled = threading.Event()
    arguments = {
        "model": number,
        "prompts": [np.array([1])],
        "tokenizer": None,
        "max_new_tokens": 10**9,
        "temperature": 1.0,
        "top_k": None,
        "top_p": None,
        "repetition_penalty": 1.0,
        "seeds": np.array([1.0]),
        "eos_id": None,
        "stop": None,
        "stream": False,
    }
    threading.Timer(0.2, cancelled.set).start()
    assert run(service, "generate", cancelled, **arguments) == ("cancelled", None)
    # Closing the iterator cancels the request, and the next one runs.
    frames = service.stream(
        {"method": ["generate"], "arguments": loads(dumps(arguments)), "release": []}
    )
    assert next(frames)[0] == "part"  # progress
    service.session.cancelled.set()
    assert [frame for frame in frames if frame[0] != "part"] == [("cancelled", None)]
    frames = service.stream(
        {"method": ["generate"], "arguments": loads(dumps(arguments)), "release": []}
    )
    assert next(frames)[0] == "part"
    frames.close()
    frames = service.stream({"method": ["nothing"], "arguments": None, "release": []})
    assert list(frames) == [("done", None)]
    assert not issubclass(Cancelled, Exception)


def test_error_messages_are_specific() -> None:
    service = Service()
    number = create_model(service)
    _, failure = run(service, "forward", model=number, ids=np.array([10]), first=0, as_torch=False)
    assert failure["message"] == ["row 1: ids must be between 0 and 9, not 10"]
    _, failure = run(service, "parameter", model=number, name="nope")
    assert "nope" in failure["message"][0]
    _, failure = run(service, "fresh", family="nope", config={}, seed=1)
    assert failure["class"] == ["KeyError"]
