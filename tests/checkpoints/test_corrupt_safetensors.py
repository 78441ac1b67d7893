"""Corrupt safetensors files and indexes of shards load correctly or are rejected with a short
message.
"""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from corruption import (
    INDEX,
    JUNK,
    NAMES,
    PARTS,
    TINY,
    WEIGHTS,
    Trials,
    brief,
    damage,
    file_bytes,
    load_rightly,
    mutate_header,
    mutate_tensors,
    save,
    split_file,
    tensor_names,
    to_json,
)
from needs import needs
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as safetensors_bytes

import minhub_py
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.writing import write_checkpoint

pytestmark = pytest.mark.usefixtures("bounded_memory")
# Mutants of each family's weights, and of its config beyond every setting with every value of JUNK.
# An LSTM's file is read by the same code as other files and loads in a third of their time. `make
# test` tries a quarter of them.
WEIGHTS_ROUNDS = {"gpt2": 1000, "gptneo": 500, "lstm": 3500, "llama": 300}


# --- The weights


@PARTS
def test_corrupt_weights_are_rejected_or_fit_the_model(
    family: str, folder: Path, parts: int
) -> None:
    rng = random.Random(f"weights of {family}")
    trials = Trials(folder, load_rightly)
    file = (folder / WEIGHTS).read_bytes()
    names = tensor_names(folder)
    region = len(file) - len(split_file(file)[1])
    rounds = WEIGHTS_ROUNDS[family] // parts
    for _ in range(rounds):
        label, data = rng.choices(
            (mutate_header, mutate_tensors, lambda rng, file: damage(rng, file, region)), (6, 2, 3)
        )[0](rng, file)
        trials.run(WEIGHTS, data, label, names)
    trials.end(rounds, rounds // 20)


def test_truncated_weights_are_rejected_at_every_length(tmp_path: Path) -> None:
    """No truncated file loads: every length of an LSTM's file, from 0."""
    folder = save("lstm", tmp_path / "lstm")
    trials = Trials(folder, load_rightly)
    file = (folder / WEIGHTS).read_bytes()
    for length in range(len(file)):
        trials.run(WEIGHTS, file[:length], f"cut at {length}")
    trials.end(1500, 0)
    assert trials.loaded == 0


def test_corrupt_tensors_without_a_config_are_rejected_or_give_the_sizes(tmp_path: Path) -> None:
    """An LSTM's sizes follow from its tensors, also from corrupt ones."""
    folder = save("lstm", tmp_path / "lstm")
    (folder / "config.json").unlink()
    rng = random.Random("no config")
    trials = Trials(folder, load_rightly)
    file = (folder / WEIGHTS).read_bytes()
    names = {*tensor_names(folder), "config.json"}
    for _ in range(500):
        label, data = rng.choice((mutate_header, mutate_tensors))(rng, file)
        trials.run(WEIGHTS, data, label, names)
    trials.end(500, 50)


def test_claimed_sizes_take_no_memory(folder: Path) -> None:
    """A header may declare a terabyte: declared sizes are compared with the file before allocation."""
    file = (folder / WEIGHTS).read_bytes()
    header, data = split_file(file)
    name = next(name for name in header if name != "__metadata__")
    size = 2**40
    header[name] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    trials = Trials(folder, load_rightly)
    trials.run(WEIGHTS, file_bytes(json.dumps(header), data), f"{name} claims {size} bytes")
    trials.run(WEIGHTS, file_bytes(json.dumps(header), data, 2**63 - 1), "so does the header")
    trials.end(2, 0)
    assert trials.loaded == 0


# --- The index of shards


def sharded(family: str, folder: Path) -> Path:
    model = getattr(minhub_py, family)(**TINY[family])
    minhub_py.save_pretrained(model, folder, max_shard_size=300)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def mutate_index(rng: random.Random, index: dict[str, Any]) -> tuple[str, bytes]:
    weight_map, junk = index["weight_map"], rng.choice(JUNK)
    name, other = rng.sample(list(weight_map), 2)
    kind = rng.randrange(9)
    if kind == 0:
        index["weight_map"] = "<junk>"
        return f"weight_map = {brief(junk)}", to_json(index, junk).encode()
    if kind == 1:
        weight_map[name] = "<junk>"
        return f"{name} in {brief(junk)}", to_json(index, junk).encode()
    if kind == 2:
        weight_map[name] = rng.choice(
            (
                "../x.safetensors",
                "/etc/passwd",
                "..",
                ".",
                "",
                "/",
                "a/b.safetensors",
                "config.json",
                "x.safetensors",
                "C:\\x.safetensors",
                ".safetensors",
                "\0.safetensors",
                "a" * 5000 + ".safetensors",
                "\ud800.safetensors",
                "\x1b[2J\n.safetensors",
                "directory.safetensors",
                "loop.safetensors",
                INDEX,
                weight_map[name].upper(),
            )
        )
        return f"{name} in {brief(weight_map[name])!r}", json.dumps(index).encode()
    if kind == 3:
        weight_map[name] = weight_map[other]
        return f"{name} said to be where {other} is", json.dumps(index).encode()
    if kind == 4:
        del weight_map[name]
        return f"{name} not listed", json.dumps(index).encode()
    if kind == 5:
        shard = weight_map[name]
        index["weight_map"] = {key: file for key, file in weight_map.items() if file != shard}
        return f"{shard} not listed", json.dumps(index).encode()
    if kind == 6:
        new = rng.choice(NAMES)
        weight_map[new] = weight_map[name]
        return f"{brief(new)!r} listed", json.dumps(index).encode()
    if kind == 7:
        return f"all of it {brief(junk)}", junk.encode("utf-8", "surrogatepass")
    text = json.dumps(index).encode()
    return damage(rng, text, len(text))


def test_corrupt_indexes_are_rejected_or_fit_the_model(family: str, tmp_path: Path) -> None:
    folder = sharded(family, tmp_path / family)
    (folder / "directory.safetensors").mkdir()
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    rng = random.Random(f"index of {family}")
    trials = Trials(folder, load_rightly)
    index = (folder / INDEX).read_bytes()
    words = {"tensors do not fit", *(path.name for path in folder.glob("*.safetensors"))}
    for _ in range(300):
        label, data = mutate_index(rng, json.loads(index))
        trials.run(INDEX, data, label, words)
    trials.end(300, 60)


def test_too_many_tensors_or_shards_are_rejected(tmp_path: Path) -> None:
    folder = save("lstm", tmp_path / "lstm")
    names = {
        f"x.{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_001)
    }
    header = json.dumps(names).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match=f"{WEIGHTS} has too many tensors; the maximum is 20,000"):
        minhub_py.from_pretrained(str(folder))
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {f"x.{i}": f"model-{i}.safetensors" for i in range(10_001)}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lists 10,001 files; the maximum is 10,000"):
        minhub_py.from_pretrained(str(folder))


@pytest.mark.parametrize(
    "place", ["../x.safetensors", "{}/x.safetensors", "./x.safetensors", "../gpt2/x.safetensors"]
)
def test_paths_in_an_index_are_rejected(place: str, tmp_path: Path) -> None:
    """A path in an index is rejected even if it leads to the correct file."""
    folder = sharded("gpt2", tmp_path / "gpt2")
    index = json.loads((folder / INDEX).read_text())
    shard = next(iter(index["weight_map"].values()))
    for home in (tmp_path, folder):
        (home / "x.safetensors").write_bytes((folder / shard).read_bytes())
    weight_map = {
        key: place.format(folder) if value == shard else value
        for key, value in index["weight_map"].items()
    }
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(
        ValueError, match="x.safetensors', which is not a weight file in its folder"
    ):
        minhub_py.from_pretrained(str(folder))


def test_missing_corrupt_and_overlapping_shards_are_rejected(family: str, tmp_path: Path) -> None:
    """A missing shard, a corrupt shard, and a tensor in two shards."""
    folder = sharded(family, tmp_path / family)
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    tensors = read_safetensors(second.read_bytes())
    name = next(iter(read_safetensors(first.read_bytes())))

    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(ValueError, match=second.name):
        minhub_py.from_pretrained(str(folder))
    second.write_bytes(safetensors_bytes({**tensors, name: torch.ones(2)}))
    with pytest.raises(
        ValueError, match=f"{re.escape(name)} is both in {first.name} and in {second.name}"
    ):
        minhub_py.from_pretrained(str(folder))
    second.write_bytes(safetensors_bytes(dict(list(tensors.items())[1:])))
    with pytest.raises(ValueError, match=f"missing: {re.escape(next(iter(tensors)))}"):
        minhub_py.from_pretrained(str(folder))
    second.unlink()
    with pytest.raises(FileNotFoundError, match=second.name):
        minhub_py.from_pretrained(str(folder))


# --- Writing


def test_write_rejects_integer_tensors(tmp_path: Path) -> None:
    """Integer tensors are rejected, and the existing checkpoint is unchanged."""
    folder = save("lstm", tmp_path / "lstm")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="x.*int64"):
        write_checkpoint(folder, {"x": torch.ones(2, dtype=torch.int64)}, {})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@needs("Linux")
@pytest.mark.parametrize(
    ("name", "share"), [("model.safetensors", 0.5), ("model.safetensors", 1.5), ("model.bin", 0.5)]
)
def test_files_that_cannot_be_mapped_are_not_called_corrupt(
    tmp_path: Path, name: str, share: float
) -> None:
    """safetensors maps a file twice: itself, then by PyTorch."""
    import resource

    path, size = tmp_path / name.replace("model.bin", "pytorch_model.bin"), 2 * 2**30
    if name == "model.bin":
        with torch.serialization.skip_data():  # sparse, as below: occupies no space
            torch.save({"a": torch.empty(size, dtype=torch.uint8)}, path)
    else:
        header = json.dumps(
            {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        ).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, path.stat().st_size + size)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(share * size), before[1]))
    try:
        with pytest.raises(
            MemoryError, match=r"cannot be mapped into memory \(2\.1 GB\).*is not corrupt"
        ):
            Checkpoint(tmp_path).contents  # noqa: B018
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert Checkpoint(tmp_path).contents.meta["a"].shape == (size,)
