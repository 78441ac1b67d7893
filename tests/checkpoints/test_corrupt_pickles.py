"""Corrupt and malicious pickles are rejected; they run no code and take no memory."""

import io
import json
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from corruption import IDS, WEIGHTS, Trials, bad_message, damage, problems, save, state_dict
from memory import peak, reset_peak
from torch import Tensor

import minhub_py
from minhub_py.loading.inspection import verify

pytestmark = pytest.mark.usefixtures("bounded_memory")


class Malice:
    """Malicious content: unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def saved(state: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, **options)
    return buffer.getvalue()


PICKLES = {
    "plain": lambda state, malice: pickle.dumps(malice),
    "plain, among tensors": lambda state, malice: pickle.dumps({**state, "x": malice}),
    "zip": lambda state, malice: saved({**state, "x": malice}),
    "legacy": lambda state, malice: saved(
        {**state, "x": malice}, _use_new_zipfile_serialization=False
    ),
    "as a key": lambda state, malice: saved({(malice, 1): torch.ones(1)}),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_run_no_code(name: str, kind: str, folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was here"
    data = PICKLES[kind](state_dict(folder), Malice(mark))
    assert b"system" in data
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(data)
    for load in (
        minhub_py.from_pretrained,
        lambda folder: torch.save(verify(folder), io.BytesIO()),
    ):
        with suppress(ValueError):
            load(str(folder))
        assert not mark.exists()
    with pytest.raises(ValueError, match=f"{name} is rejected.*could run code") as caught:
        minhub_py.from_pretrained(str(folder))
    assert not bad_message(caught.value, [name])


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_valid_pickles_load_like_safetensors(zipped: bool, family: str, folder: Path) -> None:
    state = state_dict(folder)
    expected = minhub_py.from_pretrained(str(folder))(IDS)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(saved(state, _use_new_zipfile_serialization=zipped))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), expected)
    # Parameters are tensors, and several names of the same memory are one tensor.
    state = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    (folder / "pytorch_model.bin").write_bytes(saved(state, _use_new_zipfile_serialization=zipped))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), expected)


def test_sharded_pickles_load_like_safetensors(folder: Path) -> None:
    state = list(state_dict(folder).items())
    expected = minhub_py.from_pretrained(str(folder))(IDS)
    (folder / WEIGHTS).unlink()
    shards = {"pytorch_model-1.bin": dict(state[:3]), "pytorch_model-2.bin": dict(state[3:])}
    for name, shard in shards.items():
        (folder / name).write_bytes(saved(shard))
    index = {"weight_map": {key: name for name, shard in shards.items() for key in shard}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), expected)


def not_checkpoints(state: dict[str, Tensor]) -> Iterator[tuple[str, bytes]]:
    first = next(iter(state))
    values = {
        "a list": [1, 2],
        "a tensor": torch.ones(2),
        "text": "text",
        "nested": {"model": state},
        "with an epoch": {**state, "epoch": 3},
        "with None": {**state, first: None},
        "empty": {},
        "names that are ids": dict(enumerate(state.values())),
        "sparse": {**state, first: state[first].to_sparse()},
        "complex": {**state, first: state[first].to(torch.complex64)},
        "integers": {name: tensor.to(torch.int32) for name, tensor in state.items()},
        "bytes": {name: tensor.to(torch.uint8) for name, tensor in state.items()},
        "quantized": {**state, first: torch.quantize_per_tensor(state[first], 0.1, 0, torch.qint8)},
        "on meta": {name: tensor.to("meta") for name, tensor in state.items()},
        "no shape of the model": {**state, first: torch.zeros(1).expand(10**12)},
        "a name to clear the screen": {**state, "\x1b[2J\n\n": torch.ones(1)},
    }
    for label, value in values.items():
        yield label, saved(value)
        with suppress(Exception):  # not everything has a legacy form
            yield label + ", legacy", saved(value, _use_new_zipfile_serialization=False)
    yield "text, not a file", b"text"
    yield "empty file", b""
    yield "web page", b"<!DOCTYPE html><html>404</html>"
    yield (
        "LFS pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548118077\n",
    )
    for names in (
        [],
        ["a.txt"],
        ["archive/data.pkl"],
        ["archive/data.pkl", "archive/version"],
        ["data.pkl"],
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in names:
                archive.writestr(name, b"3\n")
        yield f"zip of {names}", buffer.getvalue()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    yield "TorchScript", buffer.getvalue()


@pytest.mark.filterwarnings(
    "ignore:.*torch.quantize_per_tensor|.*quantized|.*is deprecated|.*TorchScript"
)
def test_pickles_of_other_objects_are_rejected(tmp_path: Path) -> None:
    folder = save("lstm", tmp_path / "lstm")
    state = state_dict(folder)
    (folder / WEIGHTS).unlink()
    trials = Trials(folder, lambda folder: minhub_py.from_pretrained(str(folder)))
    for label, data in not_checkpoints(state):
        trials.run("pytorch_model.bin", data, label, [*state, "0, 1, 2"])
    trials.end(30, 0)
    assert trials.loaded == 0


def zipped(**parts: bytes) -> bytes:
    """An archive as torch.save writes it, of these parts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {"version": b"3\n", "byteorder": b"little", **parts}.items():
            archive.writestr(f"archive/{name}", data)
    return buffer.getvalue()


def compressed(data: bytes) -> bytes:
    """The archive `data` with compressed parts."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    return buffer.getvalue()


def bombs() -> Iterator[tuple[str, bytes]]:
    """Small files that require much memory: PyTorch's unpickler allocates it without running their
    code.
    """
    gigabyte = 10**9
    yield "compressed tensor", compressed(saved({"x": torch.zeros(gigabyte // 40)}))
    yield (
        "compressed pickle",
        compressed(
            zipped(**{"data.pkl": b"\x80\x02X" + (10**8).to_bytes(4, "little") + bytes(10**8)})
        ),
    )
    text = b"X\x04\0\0\0abcdX\x06\0\0\0latin1\x86R"
    doubled = b"c_codecs\nencode\n" * 29 + text + b"X\x03\0\0\0hex\x86R" * 28 + b"."
    filled = b"c__builtin__\nbytearray\nJ" + gigabyte.to_bytes(4, "little") + b"\x85R."
    magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02}."
    for name, calls in (("doubled", doubled), ("filled", filled)):
        hostile = zipped(**{"data.pkl": b"\x80\x02" + calls})
        yield name, hostile
        yield f"{name}, legacy", b"\x80\x02" + calls
        yield f"{name}, legacy, in the list of storages", magic + b"\x80\x02" + calls
        sound = zipped(**{"data.pkl": b"\x80\x02}.".ljust(len(calls) + 2)})
        yield f"{name}, legacy, before a sound archive", b"\x80\x02" + calls + sound
        # zipfile reads the directory before the end record, PyTorch the one at the record's offset.
        end = hostile.rindex(b"PK\x05\x06")
        yield (
            f"{name}, two directories",
            hostile[:end] + sound[: sound.rindex(b"PK\x05\x06")] + hostile[end:],
        )
    overlapping = bytearray(zipped(**{"data.pkl": b"\x80\x02}.", "data/0": bytes(1000)}))
    entry = overlapping.rindex(b"PK\x01\x02")  # the last in the directory
    overlapping[entry + 20 : entry + 28] = (gigabyte.to_bytes(4, "little")) * 2
    yield "declared too large", bytes(overlapping)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_that_allocate_memory_are_rejected(name: str, tmp_path: Path) -> None:
    """The fixture `bounded_memory` limits the memory."""
    folder = save("lstm", tmp_path / "lstm")
    (folder / WEIGHTS).unlink()
    bomb_files = list(bombs())
    reset_peak()
    for label, data in bomb_files:
        assert len(data) < 200_000
        (folder / name).write_bytes(data)
        before = peak()
        for load in (
            minhub_py.from_pretrained,
            lambda folder: raise_first(verify(folder)["problems"]),
        ):
            with pytest.raises(
                ValueError, match=f"{name} is (rejected|corrupt).*download it again"
            ) as caught:
                load(str(folder))
            assert not bad_message(caught.value, [name]), label
        assert peak() - before < 50 * 2**20, label


def test_pickles_of_a_million_instructions_are_rejected(tmp_path: Path) -> None:
    """The check ends before PyTorch's unpickler builds the stack."""
    folder = save("lstm", tmp_path / "lstm")
    (folder / WEIGHTS).unlink()
    marks = b"\x80\x02" + b"(" * 1_000_000 + b"."
    for data in (marks, zipped(**{"data.pkl": marks})):
        (folder / "model.pt").write_bytes(data)
        with pytest.raises(ValueError, match="model.pt is rejected"):
            minhub_py.from_pretrained(str(folder))


def test_pickles_with_the_metadata_of_many_modules_load(tmp_path: Path) -> None:
    """A state dict of a module with many parts without weights loads."""
    folder = save("lstm", tmp_path / "lstm")
    state = OrderedDict(state_dict(folder))
    state._metadata = OrderedDict((f"module.{i}", {"version": 1}) for i in range(1_000))  # type: ignore[attr-defined]
    expected = minhub_py.from_pretrained(str(folder))(IDS)
    (folder / WEIGHTS).unlink()
    (folder / "model.pt").write_bytes(saved(state))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), expected)


def raise_first(problems: list[str]) -> None:
    if problems:
        raise ValueError(problems[0])


def test_pickles_of_an_expanded_view_are_rejected(tmp_path: Path) -> None:
    """A value with a declared size of a terabyte: `verify` reads values."""
    folder = save("lstm", tmp_path / "lstm")
    state = state_dict(folder)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(saved({**state, "x": torch.zeros(1).expand(10**12)}))
    assert "is not a state dict of plain tensors" in problems(folder)


def test_corrupt_pickles_are_rejected_or_fit_the_model(tmp_path: Path) -> None:
    """Truncated .bin files, and files with flipped bits, are rejected or fit the model."""
    folder = save("lstm", tmp_path / "lstm")
    state = state_dict(folder)
    (folder / WEIGHTS).unlink()
    rng = random.Random("pickle")
    trials = Trials(folder, lambda folder: minhub_py.from_pretrained(str(folder))(IDS))
    for zipped in (True, False):
        data = saved(state, _use_new_zipfile_serialization=zipped)
        for _ in range(600):
            label, mutant = damage(rng, data, 1500)
            trials.run(
                "pytorch_model.bin",
                mutant,
                f"zip {zipped}: {label}",
                [*state, "tensors do not fit"],
            )
    trials.end(1200, 20)
