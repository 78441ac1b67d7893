"""The memory of loading and converting, in addition to that of the imports, in separate processes.

Measured are VmHWM, VmRSS and RssAnon of /proc/self/status. Not ru_maxrss: a child that was started
by vfork begins with its parent's maximum, which is too large under pytest.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from memory import MB, growth, growths
from needs import needs
from torch import Tensor

import minhub_py
import weights_map
from minhub_py.checkpoints.writing import write_checkpoint
from minhub_py.models.gpt2 import GPT2Config
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.models.skeleton import skeleton

pytestmark = needs("Linux")


# --- Loading


@pytest.fixture(scope="module")
def gpt2_124m(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint of the size of GPT-2 124M in float32: 498 MB."""
    folder = tmp_path_factory.mktemp("gpt2-124m")
    minhub_py.save_pretrained(minhub_py.gpt2(), folder)
    yield folder
    shutil.rmtree(folder)


VERIFY_AND_LOAD = """
from minhub_py.loading.inspection import inspect, verify
for check in (inspect, verify):
    assert not check(sys.argv[1]).get("problems")
report()
model = from_pretrained(sys.argv[1])
with torch.inference_mode():
    model(torch.arange(8).unsqueeze(0))
report()
"""


@pytest.mark.slow
def test_verifying_needs_one_tensor_and_loading_makes_no_copy(gpt2_124m: Path) -> None:
    """`verify` reads every value, one tensor at a time: the largest has 154 MB. Measured: 250 MB.

    A model's weights are the file's pages. Measured: 526 MB for a file of 498 MB, 19 MB of
    them private.
    """
    size = (gpt2_124m / "model.safetensors").stat().st_size
    verified, loaded = growths(VERIFY_AND_LOAD, gpt2_124m)
    assert verified["VmHWM"] < 350 * MB
    assert loaded["VmHWM"] < size + 100 * MB
    assert loaded["RssAnon"] < 100 * MB  # private memory: a copy of the weights would be 498 MB
    # Otherwise nothing was measured: `forward` reads all weights. A kernel that reclaims pages of
    # files (DAMON) may have dropped some again.
    assert loaded["VmHWM"] > 0.8 * size


# --- Converting


class Drawn(Mapping[str, Tensor]):
    """Random tensors, each created on access: a large checkpoint without its memory."""

    def __init__(self, shapes: Mapping[str, Tensor]) -> None:
        self.shapes = shapes
        self.block = torch.rand(2**20, generator=torch.Generator().manual_seed(0)) - 0.5

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shapes[name].shape
        block = self.block.roll(list(self.shapes).index(name))  # all tensors differ
        return block.repeat(-(-shape.numel() // block.numel()))[: shape.numel()].view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """GPT-2 124M with fewer tokens: 405 MB of float32 in five shards."""
    config = GPT2Config(vocab_size=20_000)
    shapes = weights_map.to_hub("gpt2", skeleton(ARCHITECTURES["gpt2"].Model, config).state_dict())
    folder = tmp_path / "hub"
    write_checkpoint(folder, Drawn(shapes), config.to_hub(), meta=shapes, max_shard_size=90 * MB)
    yield folder
    shutil.rmtree(tmp_path)


CONVERT = """
for source, out, to, dtype in zip(*[iter(sys.argv[1:])] * 4):
    dtype = getattr(torch, dtype, None)
    convert(open_files(Path(source)), Path(out), to=to, dtype=dtype, max_shard_size=90_000_000)
    report()
"""


@pytest.mark.slow
def test_converting_needs_no_memory_of_the_whole(large: Path) -> None:
    """405 MB to our layout, back, and to bfloat16, in less than 200 MB: the largest tensor has 61
    MB; a cast copies it.

    Measured for 2 GB with a tensor of 154 MB: 162, 161 and 240 MB. Converting back is bitwise
    identical.
    """
    native, back, half = (large.parent / name for name in ("native", "back", "half"))
    files = shards(large)
    assert len(files) == 5
    assert sum(file.stat().st_size for file in files) > 400 * MB
    digests = tensor_digests(large)

    both = growths(CONVERT, large, native, "native", "as it is", large, half, "hub", "bfloat16")
    assert [grown["VmHWM"] < 200 * MB for grown in both] == [True, True], both
    shutil.rmtree(half)
    shutil.rmtree(large)  # saves disk space
    assert tensor_digests(native).keys() != digests.keys()
    assert growth(CONVERT, native, back, "hub", "as it is")["VmHWM"] < 200 * MB
    assert len(shards(back)) == 5
    assert tensor_digests(back) == digests
    large.mkdir()


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def tensor_digests(folder: Path) -> dict[str, Any]:
    """dtype, shape and SHA-256 of each tensor, read only by the description of the format."""
    digests = {}
    for file in shards(folder):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
            header.pop("__metadata__")
            for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                start, end = about["data_offsets"]
                assert stream.tell() == 8 + length + start
                digests[name] = (
                    about["dtype"],
                    about["shape"],
                    hashlib.sha256(stream.read(end - start)).hexdigest(),
                )
    return digests
