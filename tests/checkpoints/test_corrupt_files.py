"""Thousands of corrupt checkpoints: each is rejected with a helpful message, or loads with its actual content.

Every mutation is drawn with a fixed seed and described in words; a failure prints them, which is enough to repeat it.
Nothing asserts times: pytest-timeout detects hangs.
"""

import base64
import io
import json
import math
import os
import pickle
import random
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from memory import peak, reset_peak
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

import minhub_py
from minhub_py.checkpoints.storage import write_checkpoint
from minhub_py.inspection import verify
from minhub_py.registry import ARCHITECTURES

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
IDS = torch.tensor([[0, 1, 2]])
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 7, "n_positions": 5, "n_embd": 4, "n_layer": 1, "n_head": 2},
    "gptneo": {"vocab_size": 7, "max_position_embeddings": 5, "hidden_size": 4, "num_layers": 2, "num_heads": 2,
               "window_size": 2},
    "lstm": {"vocab_size": 7, "embedding_size": 4, "hidden_size": 4, "num_layers": 1},
    "llama": {"vocab_size": 7, "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 5},
}  # fmt: skip
# The head, and the embedding to which a config may tie it.
HEADS = {"gpt2": ("lm_head.weight", "transformer.wte.weight"), "gptneo": ("lm_head.weight", "transformer.wte.weight"),
         "llama": ("lm_head.weight", "model.embed_tokens.weight"),
         "lstm": ("head.weight", "embedding.weight")}  # fmt: skip
# Mutants of each family's weights, and of its config beyond every setting with every value of JUNK. An LSTM's file is
# read by the same code as the others' and loads in a third of their time. `make test` tries a quarter of them.
WEIGHTS_ROUNDS = {"gpt2": 1000, "gptneo": 500, "lstm": 3500, "llama": 300}
CONFIG_ROUNDS = {"gpt2": 250, "gptneo": 250, "lstm": 1000, "llama": 500}
ALL_OR_SOME = [pytest.param(1, marks=pytest.mark.soak, id="all"), pytest.param(4, id="some")]
PARTS = pytest.mark.parametrize("parts", ALL_OR_SOME)

# Replacements for values, as JSON text. Some of them are invalid JSON.
JUNK = (
    "null", "true", "false", "0", "1", "-1", "2", "3", "5", "0.5", "1.5", "2.0", "-0.0", "1e400", "-1e400", "NaN",
    "Infinity", "-Infinity", "2147483648", "4294967296", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "1000000000000", "1" + "0" * 400,
    "1" * 5000, '""', '"4"', '"F32"', '"F16"', '"BF16"', '"F64"', '"I64"', '"F8_E4M3"', '"\\u001b[2J\\n\\n"',
    '"\\ud800"', '"' + "x" * 10_000 + '"', "[]", "[0]", "[1]", "[4, 4]", "[-1, 4]", "[null]", "[[]]", '["a", 1]',
    "[1e400]", "[NaN]", "{}", '{"a": 1}', "[" * 90 + "]" * 90, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900,
    "[" * 100_000 + "]" * 100_000, "[" * 100_000, "'a'", "undefined", "0x10", "01", "1_000",
    "[" + "1, " * 5000 + "1]",
)  # fmt: skip
NAMES = ("", "x", "__metadata__", "\x1b[2J\n\n", "\0", "\u202e", "a" * 5000, "../x", "transformer.h.99999.ln_1.weight")


@pytest.fixture(scope="session", params=TINY)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    """A sound checkpoint."""
    return save(family, tmp_path / family)


def save(family: str, folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    minhub_py.save_pretrained(getattr(minhub_py, family)(**TINY[family] | settings), folder)
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of a few bytes are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Limit the memory of each test to 300 MB, independent of the sizes that files declare."""
    reset_peak()
    before = peak()
    yield
    assert peak() - before < 300 * 2**20


# --- What must hold of every mutant


class Trials:
    """Loads mutants, counts them, and keeps what went wrong in words."""

    def __init__(self, folder: Path, load: Callable[[Path], None]) -> None:
        self.folder = folder
        self.load = load
        self.count = self.loaded = 0
        self.failures: list[str] = []

    def run(self, name: str, data: bytes, label: str, words: Iterable[str] = ()) -> None:
        """Put `data` in the place of the file `name`, and load. An error has to name the file or one of `words`."""
        path = self.folder / name
        path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
        path.write_bytes(data)
        self.count += 1
        try:
            self.load(self.folder)
            self.loaded += 1
        except (ValueError, OSError) as error:
            if trouble := bad_message(error, {name, *words}):
                self.fail(label, f"{trouble}: {type(error).__name__}: {error}")
        except Exception as error:
            self.fail(label, f"{type(error).__name__}: {error}")

    def fail(self, label: str, what: str) -> None:
        self.failures.append(f"{label}\n    {what[:400]!r}")

    def end(self, least: int, least_loaded: int = 1) -> None:
        """`least_loaded`: a fuzzer whose mutants are all refused at the door tests little."""
        assert not self.failures, f"{len(self.failures)} of {self.count}:\n" + "\n".join(self.failures[:40])
        assert self.count >= least
        assert self.loaded >= least_loaded


def bad_message(error: Exception, words: Iterable[str]) -> str:
    """Problems of an error message for users; empty without problems."""
    message = str(error)
    lines = message.splitlines()
    if not (type(error) is ValueError or isinstance(error, OSError)):
        return "a raw exception"
    if not 1 <= len(lines) <= 2:
        return f"{len(lines)} lines"
    if len(message) > 2000:
        return f"{len(message)} characters"
    if not all(line.isprintable() for line in lines):
        return "control characters"
    if not any(word and word in message for word in words):
        return "names nothing"
    return ""


def load_rightly(folder: Path) -> None:
    """Load, and compare with the safetensors library and json."""
    model = minhub_py.from_pretrained(str(folder))
    family = next(family for family in ARCHITECTURES.values() if isinstance(model, family.Model))

    files = [folder / WEIGHTS]
    if not files[0].exists():
        files = [folder / name for name in set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())]
    stored = {our_name(name): tensor for file in files for name, tensor in read_safetensors(file.read_bytes()).items()}

    if (folder / "config.json").exists():
        settings = json.loads((folder / "config.json").read_bytes())
        default = family.Config()
        for field in fields(default):
            wanted, found = settings.get(field.name, getattr(default, field.name)), getattr(model.config, field.name)
            if field.name == "tie_word_embeddings" and wanted is True:  # except for a head that differs
                head, embedding = (stored.get(our_name(name)) for name in HEADS[family.name])
                wanted = head is None or torch.equal(head, embedding.to(head.dtype))
            assert found == wanted, f"{field.name} is {found!r}, config.json says {wanted!r}"
            assert isinstance(found, bool) == isinstance(wanted, bool), field.name
            assert not isinstance(found, float) or math.isfinite(found), field.name

    dtypes = [tensor.dtype for name, tensor in stored.items() if ".attn.bias" not in name]
    for name, found in model.state_dict().items():
        wanted = stored[name].t() if family.name == "gpt2" and re.search(r"\.c_\w+\.weight", name) else stored[name]
        assert wanted.is_floating_point(), f"{name} is stored as {wanted.dtype}"
        assert found.dtype == reduce(torch.promote_types, dtypes), name
        assert found.shape == wanted.shape, name
        assert torch.equal(found.nan_to_num(0.5), wanted.to(found.dtype).nan_to_num(0.5)), name

    logits = model(IDS % model.config.vocab_size)
    assert logits.shape == (1, IDS.size(1), model.config.vocab_size)
    assert logits.is_floating_point()


def our_name(name: str) -> str:
    """The weight tables once more, as far as these tests go, so that a fault in those does not hide here."""
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name)
    name = re.sub(r"^(transformer\.|model\.|_)", "", name)
    return name.replace(".attn.attention.", ".attn.")


# --- Mutations of bytes and of JSON


def damage(rng: random.Random, data: bytes, region: int) -> tuple[str, bytes]:
    """One random damage to bytes, as disks, networks and editors do it; mostly to the first `region` bytes."""
    at = rng.randrange(region if rng.random() < 0.9 else len(data))
    kind = rng.choice(("flip", "byte", "zeros", "insert", "delete", "cut", "append", "swap", "double"))
    size = rng.choice((1, 2, 8, 64, 1000))
    if kind == "flip":
        bit = rng.randrange(8)
        return f"flip bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    if kind == "byte":
        value = rng.choice(b'0123456789"{}[],:-.eE \n\0\xff')
        return f"byte {at} = {value}", data[:at] + bytes([value]) + data[at + 1 :]
    if kind == "zeros":
        return f"{size} zeros at {at}", (data[:at] + bytes(size) + data[at + size :])[: len(data)]
    if kind == "insert":
        return f"insert {size} bytes at {at}", data[:at] + data[:size] + data[at:]
    if kind == "delete":
        return f"delete {size} bytes at {at}", data[:at] + data[at + size :]
    if kind == "cut":
        return f"cut at {at}", data[:at]
    if kind == "append":
        return f"append {size} bytes", data + data[:size]
    if kind == "swap":
        return f"swap halves at {at}", data[at:] + data[:at]
    return f"twice from {at}", data + data[at:]


def to_json(content: Any, junk: str) -> str:
    """JSON text, with the text `junk` wherever `content` holds the string <junk>."""
    return json.dumps(content).replace('"<junk>"', junk)


def brief(junk: str) -> str:
    return junk if len(junk) < 60 else f"{junk[:30]}... ({len(junk)} characters)"


def file_bytes(header: str, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file of this header, true or not."""
    text = header.encode("utf-8", "surrogatepass")
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def split_file(file: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def mutate_header(rng: random.Random, file: bytes) -> tuple[str, bytes]:
    """Corrupt one property of a header. Its length is correct unless it is that property."""
    header, data = split_file(file)
    junk = rng.choice(JUNK)
    kind = rng.choices(("entry", "names", "text", "added"), (9, 5, 3, 1))[0]
    if kind == "entry":
        label = mutate_entry(rng, header, junk)
    elif kind == "names":
        label, header = mutate_names(rng, header)
    elif kind == "text":
        return mutate_header_text(rng, header, data, junk)
    else:
        size = rng.choice((0, 4, 400))
        shape = rng.choice(([size // 4], [0, 2**62], [2**62, 0], [0, 2**63], [2**40, 0, 2**40], [0] * 100))
        new = rng.choice(("x", "transformer.h.0.attn.bias", "lm_head.weight", "head.weight"))
        header[new] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(size)
        label = f"{new} of shape {shape} in {size} bytes added"
    return f"{label} with {brief(junk)}", file_bytes(to_json(header, junk), data)


def mutate_entry(rng: random.Random, header: dict[str, Any], junk: str) -> str:
    """Change one tensor's entry in a header."""
    name, other = rng.sample([name for name in header if name != "__metadata__"], 2)
    entry = header[name]
    key, numbers = rng.choice(("dtype", "shape", "data_offsets")), rng.choice(("shape", "data_offsets"))
    kind = rng.choice(("junk", "junk", "number", "number", "shift", "copy", "reshape", "remove"))
    if kind == "junk":
        entry[key] = "<junk>"
    elif kind == "number":
        entry[numbers][rng.randrange(len(entry[numbers]))] = "<junk>"
    elif kind == "shift":
        by = rng.choice((-4, -1, 1, 4, 2**40))
        entry["data_offsets"] = [by + offset for offset in entry["data_offsets"]]
    elif kind == "copy":
        entry[key] = header[other][key]
    elif kind == "reshape":  # as many values: the file itself is sound
        shape, total = entry["shape"], math.prod(entry["shape"])
        entry["shape"] = rng.choice(([total], [1, *shape], [*shape, 1], shape[::-1], [total, 1, 1], [1] * 70))
    else:
        del entry[key]
    return f"{kind}: {name} is {entry}"


def mutate_names(rng: random.Random, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name, other = rng.sample([name for name in header if name != "__metadata__"], 2)
    kind = rng.choice(("swap", "rename", "rename", "remove"))
    if kind == "swap":
        return f"{name} and {other} swapped", {**header, name: header[other], other: header[name]}
    if kind == "rename":
        new = rng.choice((*NAMES, other, "module." + name, name.removeprefix("transformer."), name.upper()))
        return f"{name} renamed {brief(new)!r}", {new if old == name else old: about for old, about in header.items()}
    return f"{name} removed, its data not", {old: about for old, about in header.items() if old != name}


def mutate_header_text(rng: random.Random, header: dict[str, Any], data: bytes, junk: str) -> tuple[str, bytes]:
    """Duplicate names, a wrong length, and metadata."""
    name = rng.choice(list(header))
    kind = rng.choice(("length", "twice", "metadata"))
    if kind == "length":
        text = json.dumps(header)
        true = len(text)
        length = rng.choice((0, 1, 7, true - 1, true + 1, true + len(data), 10**8, 2**31, 2**53, 2**63, 2**64 - 1))
        return f"header length {length} for {true}", file_bytes(text, data, length)
    if kind == "twice":
        twice = rng.choice((f"{json.dumps(name)}: {json.dumps(header[name])}", '"x": {}', f'"__metadata__": {junk}'))
        return f"{brief(twice)} twice", file_bytes(f"{json.dumps(header)[:-1]}, {twice}}}", data)
    header["__metadata__"] = rng.choice(("<junk>", {"layout": "native"}, {"layout": "<junk>"}, {"": "x" * 10**5}))
    text = to_json(header, junk)
    return f"__metadata__ {brief(str(header['__metadata__']))} with {brief(junk)}", file_bytes(text, data)


def mutate_tensors(rng: random.Random, file: bytes) -> tuple[str, bytes]:
    """A sound file, written by the safetensors library, whose tensors are not quite the model's."""
    tensors = read_safetensors(file)
    name, other = rng.sample(list(tensors), 2)
    kind = rng.choice(("cast", "cast all", "transpose", "remove", "add", "rename", "NaN", "mask", "head"))
    dtype = rng.choice(
        (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.int8,
         torch.complex64, torch.float8_e4m3fn)
    )  # fmt: skip
    if kind == "cast":
        tensors[name] = tensors[name].to(dtype)
    elif kind == "cast all":
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    elif kind == "transpose":
        tensors[name] = tensors[name].t().contiguous()
    elif kind == "remove":
        del tensors[name]
    elif kind == "add":
        other = rng.choice(NAMES)
        tensors["y" + other] = torch.ones(2)
    elif kind == "rename":
        other = rng.choice(("module." + name, "_orig_mod.module." + name, "_" + name, name + "_"))
        tensors[other] = tensors.pop(name)
    elif kind == "NaN":
        tensors[name].view(-1)[0] = rng.choice((math.nan, math.inf, -math.inf))
    elif kind == "mask":
        other = rng.choice(("transformer.h.0.attn.bias", "transformer.h.0.attn.attention.bias"))
        tensors[other] = torch.ones(5, 5).tril().to(dtype)
    else:
        head = rng.choice(("lm_head.weight", "head.weight"))
        tensors[head] = torch.ones(rng.choice(((7, 4), (4, 7), (28,)))).to(dtype)
    return f"{kind} of {name}, {brief(other)!r}, {dtype}", safetensors_bytes(tensors)


# --- The weights


@PARTS
def test_weights(family: str, folder: Path, parts: int) -> None:
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


def test_weights_cut_anywhere(tmp_path: Path) -> None:
    """No cut file loads: every length of an LSTM's file, from none at all."""
    folder = save("lstm", tmp_path / "lstm")
    trials = Trials(folder, load_rightly)
    file = (folder / WEIGHTS).read_bytes()
    for length in range(len(file)):
        trials.run(WEIGHTS, file[:length], f"cut at {length}")
    trials.end(1500, 0)
    assert trials.loaded == 0


def tensor_names(folder: Path) -> set[str]:
    """Tensor names, native or of the Hub, that an error may contain instead of the file."""
    names = read_safetensors((folder / WEIGHTS).read_bytes())
    masks = ("h.0.attn.bias", "h.0.attn.attention.bias")
    return {*names, *map(our_name, names), *masks, "lm_head.weight", "head.weight", "unknown: ", "missing: "}


def test_sizes_without_config(tmp_path: Path) -> None:
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
    places, junk = index["weight_map"], rng.choice(JUNK)
    name, other = rng.sample(list(places), 2)
    kind = rng.randrange(9)
    if kind == 0:
        index["weight_map"] = "<junk>"
        return f"weight_map = {brief(junk)}", to_json(index, junk).encode()
    if kind == 1:
        places[name] = "<junk>"
        return f"{name} in {brief(junk)}", to_json(index, junk).encode()
    if kind == 2:
        places[name] = rng.choice(
            ("../x.safetensors", "/etc/passwd", "..", ".", "", "/", "a/b.safetensors", "config.json", "x.safetensors",
             "C:\\x.safetensors", ".safetensors", "\0.safetensors", "a" * 5000 + ".safetensors", "\ud800.safetensors",
             "\x1b[2J\n.safetensors", "directory.safetensors", "loop.safetensors", INDEX, places[name].upper())
        )  # fmt: skip
        return f"{name} in {brief(places[name])!r}", json.dumps(index).encode()
    if kind == 3:
        places[name] = places[other]
        return f"{name} said to be where {other} is", json.dumps(index).encode()
    if kind == 4:
        del places[name]
        return f"{name} not listed", json.dumps(index).encode()
    if kind == 5:
        shard = places[name]
        index["weight_map"] = {key: place for key, place in places.items() if place != shard}
        return f"{shard} not listed", json.dumps(index).encode()
    if kind == 6:
        new = rng.choice(NAMES)
        places[new] = places[name]
        return f"{brief(new)!r} listed", json.dumps(index).encode()
    if kind == 7:
        return f"all of it {brief(junk)}", junk.encode("utf-8", "surrogatepass")
    text = json.dumps(index).encode()
    return damage(rng, text, len(text))


def test_index(family: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_settings_have_a_limit(name: str, folder: Path) -> None:
    (folder / name).write_text(" " * 10_000_000 + "{}")
    with pytest.raises(ValueError, match=f"{name} has 10,000,002 bytes; the maximum for settings is 10,000,000"):
        minhub_py.from_pretrained(str(folder))


def test_long_lists_in_settings(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0] * 10_001}))
    with pytest.raises(
        ValueError, match=r"generation_config\.json: .*eos_token_id cannot be \[0, 0, 0, 0, 0, 0, \.\.\.\]"
    ):
        minhub_py.from_pretrained(str(folder))


def test_limits_on_tensors_and_shards(tmp_path: Path) -> None:
    folder = save("lstm", tmp_path / "lstm")
    names = {f"x.{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_001)}
    header = json.dumps(names).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match=f"{WEIGHTS} has too many tensors; the maximum is 20,000"):
        minhub_py.from_pretrained(str(folder))
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {f"x.{i}": f"model-{i}.safetensors" for i in range(10_001)}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lists 10,001 files; the maximum is 10,000"):
        minhub_py.from_pretrained(str(folder))


@pytest.mark.parametrize("place", ["../x.safetensors", "{}/x.safetensors", "./x.safetensors", "../gpt2/x.safetensors"])
def test_index_with_paths_outside_the_folder(place: str, tmp_path: Path) -> None:
    """A path in an index is refused even where it leads to the very file."""
    folder = sharded("gpt2", tmp_path / "gpt2")
    index = json.loads((folder / INDEX).read_text())
    shard = next(iter(index["weight_map"].values()))
    for home in (tmp_path, folder):
        (home / "x.safetensors").write_bytes((folder / shard).read_bytes())
    places = {key: place.format(folder) if value == shard else value for key, value in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ValueError, match="x.safetensors', which is not a weight file in its folder"):
        minhub_py.from_pretrained(str(folder))


def test_shards(family: str, tmp_path: Path) -> None:
    """A missing shard, a corrupt shard, and a tensor in two shards."""
    folder = sharded(family, tmp_path / family)
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    tensors = read_safetensors(second.read_bytes())
    name = next(iter(read_safetensors(first.read_bytes())))

    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(ValueError, match=second.name):
        minhub_py.from_pretrained(str(folder))
    second.write_bytes(safetensors_bytes({**tensors, name: torch.ones(2)}))
    with pytest.raises(ValueError, match=f"{re.escape(name)} is both in {first.name} and in {second.name}"):
        minhub_py.from_pretrained(str(folder))
    second.write_bytes(safetensors_bytes(dict(list(tensors.items())[1:])))
    with pytest.raises(ValueError, match=f"missing: {re.escape(next(iter(tensors)))}"):
        minhub_py.from_pretrained(str(folder))
    second.unlink()
    with pytest.raises(FileNotFoundError, match=second.name):
        minhub_py.from_pretrained(str(folder))


# --- Settings


@PARTS
def test_settings(family: str, folder: Path, parts: int) -> None:
    """Every setting with every junk, or with every fourth; then random pairs, unknown names, missing settings, and
    damaged text."""
    rng = random.Random(f"config of {family}")
    trials = Trials(folder, load_rightly)
    settings = json.loads((folder / "config.json").read_text())
    names = {*tensor_names(folder), *settings}
    others = ["pruned_heads", "attention_layers", "quantization_config", "chunk_size_feed_forward", "_name", "n_ctx"]
    for number, setting in enumerate([*settings, *others]):
        for junk in JUNK[number % parts :: parts]:
            text = to_json({**settings, setting: "<junk>"}, junk)
            trials.run("config.json", text.encode(), f"{setting} = {brief(junk)}", {setting, *names})
    for junk in JUNK:
        trials.run("config.json", junk.encode(), f"all of it {brief(junk)}", ["model_type"])
    for data in (
        b"",
        b"\xff\xfe",
        b"\xef\xbb\xbf" + json.dumps(settings).encode(),
        json.dumps(settings).encode("utf-16"),
    ):
        trials.run("config.json", data, repr(data[:20]), names)
    for _ in range(CONFIG_ROUNDS[family] // parts):
        label, data, word = mutate_settings(rng, dict(settings))
        trials.run("config.json", data, label, {word, *names})
    trials.end(1000 // parts, 100 // parts)


def mutate_settings(rng: random.Random, settings: dict[str, Any]) -> tuple[str, bytes, str]:
    name, other = rng.sample(list(settings), 2)
    junk = rng.choice(JUNK)
    kind = rng.randrange(5)
    if kind == 0:
        settings[name] = "<junk>"
        settings[other] = rng.choice((1, 2, 3, 4, 7, 16, 2**20, 0.5, True, None, "gelu"))
        return f"{name} = {brief(junk)}, {other} = {settings[other]}", to_json(settings, junk).encode(), name
    if kind == 1:
        new = rng.choice((*NAMES, name.upper(), "rope_theta", "_x"))
        settings[new] = "<junk>"
        return f"unknown {brief(new)!r} = {brief(junk)}", to_json(settings, junk).encode(), new
    if kind == 2:
        del settings[name], settings[other]
        return f"without {name} and {other}", json.dumps(settings).encode(), name
    if kind == 3:
        twice = json.dumps(settings)[:-1] + f", {json.dumps(name)}: {junk}}}"
        return f"{name} again, as {brief(junk)}", twice.encode(), name
    text = json.dumps(settings).encode()
    label, data = damage(rng, text, len(text))
    return label, data, "that this implementation does not know"  # of a damaged name


ATTENTION_TYPES = (
    '[[["global"], -1], [["global"], 3]]', '[[["global"], 2.0]]', '[[["global"], true], [["local"], true]]',
    '[[["local", 1], 1]]', '[[[null, "local"], 1]]', '[["global", 2]]', '[[{"global": 1, "local": 2}, 1]]',
    '[[["global"], 1000000000000]]', '[[[], 1000000000000]]', '[[[], 1000000000000], [["global"], 2]]',
    '[[["global"], 2, 3]]', '[[[["global"]], 2]]', '[[["global"], "2"]]', '[[["global"], 1e400]]',
    '[[["global"], NaN]]', '{"global": 2}', '"global"', "[[], []]",
)  # fmt: skip


@pytest.mark.parametrize("types", ATTENTION_TYPES)
def test_attention_types(types: str, tmp_path: Path) -> None:
    folder = save("gptneo", tmp_path / "gptneo")
    settings = json.loads((folder / "config.json").read_text())
    del settings["attention_layers"]
    (folder / "config.json").write_text(to_json({**settings, "attention_types": "<junk>"}, types))
    with pytest.raises(ValueError, match="attention_types") as caught:
        minhub_py.from_pretrained(str(folder))
    assert not bad_message(caught.value, ["attention_types"])


@pytest.mark.parametrize("value", [-1, 1.5, math.nan, math.inf])
def test_rates(family: str, value: float) -> None:
    """Chances are 0 to 1, an epsilon and a spread at least 0; a NaN is neither."""
    for field in fields(ARCHITECTURES[family].Config):
        if field.type is float and not (value == 1.5 and not field.name.endswith(("dropout", "pdrop"))):
            with pytest.raises(ValueError, match=field.name):
                getattr(minhub_py, family)(**TINY[family], **{field.name: value})


@PARTS
def test_generation_settings(family: str, folder: Path, parts: int) -> None:
    trials = Trials(folder, lambda folder: minhub_py.from_pretrained(str(folder))(IDS))
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "temperature")
    for number, junk in enumerate(JUNK):
        for name in names[number % parts :: parts]:
            text = f'{{"{name}": {junk}}}'.encode()
            trials.run("generation_config.json", text, f"{name} = {brief(junk)}", [name])
        trials.run("generation_config.json", junk.encode(), f"all of it {brief(junk)}")
    trials.end(200 // parts, 50 // parts)


# --- Pickles


class Malice:
    """Malicious content: unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def state_dict(folder: Path) -> dict[str, Tensor]:
    return dict(read_safetensors((folder / WEIGHTS).read_bytes()))


def saved(state: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, **options)
    return buffer.getvalue()


PICKLES = {
    "plain": lambda state, malice: pickle.dumps(malice),
    "plain, among tensors": lambda state, malice: pickle.dumps({**state, "x": malice}),
    "zip": lambda state, malice: saved({**state, "x": malice}),
    "legacy": lambda state, malice: saved({**state, "x": malice}, _use_new_zipfile_serialization=False),
    "as a key": lambda state, malice: saved({(malice, 1): torch.ones(1)}),
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", PICKLES)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickle_that_runs_code(name: str, kind: str, folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was here"
    data = PICKLES[kind](state_dict(folder), Malice(mark))
    assert b"system" in data
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(data)
    for load in (minhub_py.from_pretrained, lambda folder: torch.save(verify(folder), io.BytesIO())):
        with suppress(ValueError):
            load(str(folder))
        assert not mark.exists()
    with pytest.raises(ValueError, match=f"{name} is rejected.*could run code") as caught:
        minhub_py.from_pretrained(str(folder))
    assert not bad_message(caught.value, [name])


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_valid_pickle(zipped: bool, family: str, folder: Path) -> None:
    state = state_dict(folder)
    wanted = minhub_py.from_pretrained(str(folder))(IDS)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(saved(state, _use_new_zipfile_serialization=zipped))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), wanted)
    # Parameters are tensors, and one of several names for the same memory is not several tensors.
    state = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    (folder / "pytorch_model.bin").write_bytes(saved(state, _use_new_zipfile_serialization=zipped))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), wanted)


def test_sharded_pickle(folder: Path) -> None:
    state = list(state_dict(folder).items())
    wanted = minhub_py.from_pretrained(str(folder))(IDS)
    (folder / WEIGHTS).unlink()
    shards = {"pytorch_model-1.bin": dict(state[:3]), "pytorch_model-2.bin": dict(state[3:])}
    for name, shard in shards.items():
        (folder / name).write_bytes(saved(shard))
    index = {"weight_map": {key: name for name, shard in shards.items() for key in shard}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert torch.equal(minhub_py.from_pretrained(str(folder))(IDS), wanted)


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
    yield "LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548118077\n"
    for names in ([], ["a.txt"], ["archive/data.pkl"], ["archive/data.pkl", "archive/version"], ["data.pkl"]):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in names:
                archive.writestr(name, b"3\n")
        yield f"zip of {names}", buffer.getvalue()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    yield "TorchScript", buffer.getvalue()


@pytest.mark.filterwarnings("ignore:.*torch.quantize_per_tensor|.*quantized|.*is deprecated|.*TorchScript")
def test_pickle_of_other_objects(tmp_path: Path) -> None:
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
    """The archive `data` again, its parts compressed."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    return buffer.getvalue()


def bombs() -> Iterator[tuple[str, bytes]]:
    """Small files that want much memory: PyTorch's unpickler fills it without running any code of theirs."""
    gigabyte = 10**9
    yield "compressed tensor", compressed(saved({"x": torch.zeros(gigabyte // 40)}))
    yield (
        "compressed pickle",
        compressed(zipped(**{"data.pkl": b"\x80\x02X" + (10**8).to_bytes(4, "little") + bytes(10**8)})),
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
        yield f"{name}, two directories", hostile[:end] + sound[: sound.rindex(b"PK\x05\x06")] + hostile[end:]
    overlapping = bytearray(zipped(**{"data.pkl": b"\x80\x02}.", "data/0": bytes(1000)}))
    entry = overlapping.rindex(b"PK\x01\x02")  # the last in the directory
    overlapping[entry + 20 : entry + 28] = (gigabyte.to_bytes(4, "little")) * 2
    yield "declared too large", bytes(overlapping)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickle_that_allocates_memory(name: str, tmp_path: Path) -> None:
    """`bounded_memory` looks on."""
    folder = save("lstm", tmp_path / "lstm")
    (folder / WEIGHTS).unlink()
    made = list(bombs())
    reset_peak()
    for label, data in made:
        assert len(data) < 200_000
        (folder / name).write_bytes(data)
        before = peak()
        for load in (minhub_py.from_pretrained, lambda folder: raise_first(verify(folder)["problems"])):
            with pytest.raises(ValueError, match=f"{name} is (rejected|corrupt).*download it again") as caught:
                load(str(folder))
            assert not bad_message(caught.value, [name]), label
        assert peak() - before < 50 * 2**20, label


def test_pickle_of_many_instructions(tmp_path: Path) -> None:
    """The check ends before PyTorch's unpickler builds the stack."""
    folder = save("lstm", tmp_path / "lstm")
    (folder / WEIGHTS).unlink()
    marks = b"\x80\x02" + b"(" * 1_000_000 + b"."
    for data in (marks, zipped(**{"data.pkl": marks})):
        (folder / "model.pt").write_bytes(data)
        with pytest.raises(ValueError, match="model.pt is rejected"):
            minhub_py.from_pretrained(str(folder))


def test_pickle_of_many_modules(tmp_path: Path) -> None:
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


def test_pickle_of_a_view(tmp_path: Path) -> None:
    """One value that says it is a terabyte: `verify` reads values."""
    folder = save("lstm", tmp_path / "lstm")
    state = state_dict(folder)
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(saved({**state, "x": torch.zeros(1).expand(10**12)}))
    assert "is not a state dict of plain tensors" in problems(folder)


def test_corrupt_pickle(tmp_path: Path) -> None:
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
            trials.run("pytorch_model.bin", mutant, f"zip {zipped}: {label}", [*state, "tensors do not fit"])
    trials.end(1200, 20)


# --- Tokenizers


TEXT = "ab a b\n\u00e9"


def use_tokenizer(folder: Path) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    ids = tokenizer.encode(TEXT).ids
    assert all(isinstance(id, int) for id in ids)
    assert isinstance(tokenizer.decode(ids), str)


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    """GPT-2's kind of tokenizer, with two merges."""
    folder = tmp_path / "bpe"
    folder.mkdir()
    symbols = ["a", "b", "\u0120", "\u010a", "\u00c3", "\u00a9", "ab", "\u0120a", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({symbol: id for id, symbol in enumerate(symbols)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n\u0120 a\n", encoding="utf-8")
    use_tokenizer(folder)
    return folder


def test_tokenizer_json(bpe: Path) -> None:
    minhub_py.tokenizer_from_pretrained(str(bpe)).save(str(bpe / "tokenizer.json"))
    whole = (bpe / "tokenizer.json").read_bytes()
    rng = random.Random("tokenizer.json")
    trials = Trials(bpe, use_tokenizer)
    for _ in range(500):
        content, junk = json.loads(whole), rng.choice(JUNK)
        place = content
        path = []
        while isinstance(place, dict | list) and place and (not path or rng.random() < 0.7):
            parent, key = place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            place = parent[key]
            path.append(key)
        parent[key] = "<junk>"
        label, data = f"{path} = {brief(junk)}", to_json(content, junk).encode()
        if rng.random() < 0.3:
            label, data = damage(rng, whole, len(whole))
        trials.run("tokenizer.json", data, label)
    trials.end(500, 10)


def prefixed_bpe(prefix: str, tokens: list[str], merge: Any) -> dict[str, Any]:
    model = {"type": "BPE", "continuing_subword_prefix": prefix, "merges": [merge]}
    return {"added_tokens": [], "model": model | {"vocab": {token: id for id, token in enumerate(tokens)}}}


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("prefix", "right", "merged", "fits"),
    [
        ("a", "\u65e5", "x\u65e5", False),
        ("ab", "\u65e5", "x\u65e5", False),
        ("abcd", "\u65e5", "x\u65e5", False),
        ("\u00e9", "\u65e5\u672c", "x\u65e5", False),
        ("##", "y", "xy", False),
        ("##", "##y", "xy", True),
        ("\u00e9", "\u00e9\u65e5", "x\u65e5", True),
        ("", "\u65e5", "x\u65e5", True),
    ],
)
def test_merge_inside_a_character(
    prefix: str, right: str, merged: str, fits: bool, joined: bool, escaped: bool, tmp_path: Path
) -> None:
    """The library would abort the process."""
    merge = f"x {right}" if joined else ["x", right]
    text = json.dumps(prefixed_bpe(prefix, ["x", right, merged], merge))
    if escaped:
        text = text.replace("continuing_subword", "\\u0063ontinuing\\u005Fsubword")
    (tmp_path / "tokenizer.json").write_text(text)
    if fits:
        tokenizer = minhub_py.tokenizer_from_pretrained(str(tmp_path))
        assert tokenizer.encode("x" + right.removeprefix(prefix)).ids == [2]
        return
    with pytest.raises(
        ValueError, match="tokenizer.json is not a valid tokenizer .*does not fit the continuing_subword_prefix"
    ):
        minhub_py.tokenizer_from_pretrained(str(tmp_path))


def test_prefix_of_continued_words_in_duplicate_keys(tmp_path: Path) -> None:
    """The library may use either value of a key that occurs twice."""
    text = json.dumps(prefixed_bpe("ab", ["x", "\u65e5", "x\u65e5"], ["x", "\u65e5"]))
    for duplicate in ('"merges": [],', '"continuing_subword_prefix": null,'):
        for changed in (text.replace('"type"', duplicate + '"type"'), text.replace('"vocab"', duplicate + '"vocab"')):
            (tmp_path / "tokenizer.json").write_text(changed)
            with pytest.raises(ValueError, match="does not fit the continuing_subword_prefix"):
                minhub_py.tokenizer_from_pretrained(str(tmp_path))


def test_map_of_characters_with_a_large_table(tmp_path: Path) -> None:
    """The library would reserve 2 GB, and abort where it cannot."""
    charsmap = base64.b64encode(b"\xff\xff\xff\x7f" + bytes(40)).decode()
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]}
    content = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap}, "model": unigram}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="tokenizer.json is not a valid tokenizer .its map of characters is cut"):
        minhub_py.tokenizer_from_pretrained(str(tmp_path))


def test_merge_that_forms_no_token(bpe: Path) -> None:
    """The library panics, with a BaseException."""
    minhub_py.tokenizer_from_pretrained(str(bpe)).save(str(bpe / "tokenizer.json"))
    content = json.loads((bpe / "tokenizer.json").read_text())
    content["model"] |= {"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    content["added_tokens"] = []
    (bpe / "tokenizer.json").unlink()
    (bpe / "vocab.json").write_text('["a", "b"]')
    (bpe / "merges.txt").write_text("a b")
    with pytest.raises(ValueError, match="vocab.json and merges.txt are inconsistent"):
        minhub_py.tokenizer_from_pretrained(str(bpe))
    (bpe / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="tokenizer.json is not a valid tokenizer"):
        minhub_py.tokenizer_from_pretrained(str(bpe))


def test_vocabulary_and_merges(bpe: Path) -> None:
    rng = random.Random("vocab.json")
    trials = Trials(bpe, use_tokenizer)
    for name in ("vocab.json", "merges.txt"):
        whole = (bpe / name).read_bytes()
        for _ in range(200):
            label, data = damage(rng, whole, len(whole))
            trials.run(name, data, f"{name}: {label}")
        (bpe / name).write_bytes(whole)
    for lines in ("a", "a b c", " ", "a  b", "a b\r\n", "a q", "q a", "b b", "#", "\0 \0", "\x1b[2J\n\n a"):
        trials.run("merges.txt", lines.encode(), f"merges {lines!r}")
    trials.end(400, 50)


@pytest.fixture(scope="module")
def model_files() -> dict[str, bytes]:
    """Small tokenizers of the other forms: sentencepiece's two kinds, lines of ranks, and tekken.json."""
    files = {}
    for name, kind in (("tokenizer.model", "bpe"), ("spiece.model", "unigram")):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab a b", "b ab", "a \u00e9"]), model_writer=written, vocab_size=264,
            model_type=kind, byte_fallback=True, hard_vocab_limit=False, minloglevel=2, num_threads=1,
            normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc",
        )  # fmt: skip
        files[name] = written.getvalue()
    ranks = [base64.b64encode(token) for token in (*(bytes([byte]) for byte in range(256)), b"ab", b" a")]
    files["qwen.tiktoken"] = b"".join(b"%s %d\n" % (token, rank) for rank, token in enumerate(ranks))
    config = {"pattern": r"\s?\w+|.", "default_vocab_size": 261, "default_num_special_tokens": 3}
    vocabulary = [{"rank": rank, "token_bytes": token.decode()} for rank, token in enumerate(ranks)]
    special = [{"rank": rank, "token_str": token} for rank, token in enumerate(["<unk>", "<s>", "</s>"])]
    files["tekken.json"] = json.dumps({"config": config, "special_tokens": special, "vocab": vocabulary}).encode()
    return files


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "qwen.tiktoken", "tekken.json"])
def test_model_files(name: str, model_files: dict[str, bytes], tmp_path: Path) -> None:
    whole = model_files[name]
    rng = random.Random(name)
    trials = Trials(tmp_path, use_tokenizer)
    trials.run(name, whole, "whole")
    assert trials.loaded == 1
    for _ in range(300):
        label, data = damage(rng, whole, len(whole))
        trials.run(name, data, label)
    endless = b"\n" + b"\xff" * 20  # a number without an end
    for junk in (b"", b"\n", b"\n\n", endless, endless[1:], b"\n\x03abc", b"IQ== 0"):
        trials.run(name, junk, repr(junk))
    trials.end(300)


def test_long_tokens(model_files: dict[str, bytes], tmp_path: Path) -> None:
    """Each cut of a token is a merge to try, and the library frees a unigram's trie recursively."""
    size = 200_000
    encoded = base64.b64encode(b"a" * size)
    piece = b"\x0a\xc0\x9a\x0c" + b"a" * size  # field 1, 200,000 bytes
    tekken = json.loads(model_files["tekken.json"])
    tekken["vocab"].append({"rank": 258, "token_bytes": encoded.decode()})
    tekken["config"]["default_vocab_size"] += 1
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * size, 0.0]]}
    files = {
        "tokenizer.model": model_files["tokenizer.model"] + b"\x0a\xc4\x9a\x0c" + piece,
        "qwen.tiktoken": model_files["qwen.tiktoken"] + encoded + b" 258\n",
        "tekken.json": json.dumps(tekken).encode(),
        "tokenizer.json": json.dumps({"added_tokens": [], "model": unigram}).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} .*token of 200,000 characters"):
            minhub_py.tokenizer_from_pretrained(str(tmp_path))
        (tmp_path / name).unlink()


def test_tekken_of_wrong_types(model_files: dict[str, bytes], tmp_path: Path) -> None:
    trials = Trials(tmp_path, use_tokenizer)
    places: list[list[Any]] = [["config"], ["vocab"], ["special_tokens"], ["vocab", 5], ["special_tokens", 1]]
    places += [["config", name] for name in ("pattern", "default_vocab_size", "default_num_special_tokens")]
    places += [["vocab", 7, name] for name in ("rank", "token_bytes")]
    places += [["special_tokens", 1, name] for name in ("rank", "token_str")]
    for place in places:
        for junk in JUNK:
            content = json.loads(model_files["tekken.json"])
            parent = reduce(lambda value, key: value[key], place[:-1], content)
            parent[place[-1]] = "<junk>"
            trials.run("tekken.json", to_json(content, junk).encode(), f"{place} = {brief(junk)}")
    trials.end(200, 5)


@pytest.mark.parametrize("merges", [True, False], ids=["bpe", "characters"])
def test_vocabulary_of_wrong_types(merges: bool, bpe: Path) -> None:
    if not merges:
        (bpe / "merges.txt").unlink()
    trials = Trials(bpe, use_tokenizer)
    whole = (bpe / "vocab.json").read_bytes()
    base = json.loads(whole)
    for junk in JUNK:
        trials.run("vocab.json", to_json({**base, "a": "<junk>"}, junk).encode(), f"a = {brief(junk)}")
        trials.run("vocab.json", to_json(["a", "b", "<junk>"], junk).encode(), f"list with {brief(junk)}", ["merges"])
        trials.run("vocab.json", junk.encode(), f"all of it {brief(junk)}")
    (bpe / "vocab.json").write_bytes(whole)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for junk in JUNK:
            trials.run(
                name, f'{{"eos_token": {junk}, "unk_token": {{"content": {junk}}}}}'.encode(), brief(junk), ["vocab"]
            )
            trials.run(name, junk.encode(), f"all of it {brief(junk)}")
        (bpe / name).unlink()
    trials.end(200, 0)


@pytest.mark.parametrize("name", ["tokenizer.model", "qwen.tiktoken"])
def test_merges_that_need_much_memory(name: str, model_files: dict[str, bytes], tmp_path: Path) -> None:
    """Each token of one repeated letter can be put together in as many ways as it is long."""
    tokens = [b"~" * size for size in range(2, 1001)]
    if name == "tokenizer.model":
        pieces = [b"\x0a" + varint(len(token)) + token for token in (b"~", *tokens)]
        added = b"".join(b"\x0a" + varint(len(piece)) + piece for piece in pieces)
    else:
        added = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens, 258))
    (tmp_path / name).write_bytes(model_files[name] + added)
    with pytest.raises(ValueError, match=f"{name} .*the merges of its tokens have more than 100,000,000 characters"):
        minhub_py.tokenizer_from_pretrained(str(tmp_path))


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def test_many_added_tokens(bpe: Path) -> None:
    """Added together: the library prepares its search at each call, so one by one they take minutes."""
    (bpe / "added_tokens.json").write_text(json.dumps({f"<t{i}>": 9 + i for i in range(50_000)}))
    assert minhub_py.tokenizer_from_pretrained(str(bpe)).token_to_id("<t49999>") == 50_008
    (bpe / "added_tokens.json").write_text(json.dumps({"<a>": 9, "<b>": 11}))
    with pytest.raises(ValueError, match="gives the added token '<b>' the ID 11, which is not the next ID"):
        minhub_py.tokenizer_from_pretrained(str(bpe))


def test_messages_are_short(bpe: Path) -> None:
    """A long token, and a long symbol, are cut in a message."""
    (bpe / "merges.txt").write_text("a" * 100_000 + " b\n")
    with pytest.raises(ValueError, match="the vocabulary lacks") as caught:
        minhub_py.tokenizer_from_pretrained(str(bpe))
    assert len(str(caught.value)) < 500
    for name in ("vocab.json", "merges.txt"):
        (bpe / name).unlink()
    (bpe / "vocab.dat").write_text("a\nb\n")
    (bpe / "rules.dat").write_text("a" * 100_000 + " b\n")
    with pytest.raises(ValueError, match="lacks a symbol of the pair") as caught:
        minhub_py.tokenizer_from_pretrained(str(bpe))
    assert len(str(caught.value)) < 500


# --- Sound files with wrong content: what `verify` says


def problems(folder: Path) -> str:
    return "\n".join(verify(str(folder))["problems"])


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = state_dict(folder)
    change(tensors)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(safetensors_bytes(tensors))


def test_verify_passes(folder: Path) -> None:
    assert not problems(folder)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_verify_values(value: float, folder: Path) -> None:
    def plant(tensors: dict[str, Tensor]) -> None:
        for tensor in (tensors[first], tensors[last]):
            tensor.view(-1)[-1] = value

    first, *_, last = state_dict(folder)
    rewrite(folder, plant)
    assert f"{first}: 1 of" in problems(folder)
    assert f"{last}: 1 of" in problems(folder)
    assert len(problems(folder).splitlines()) == 2


def test_verify_tied_head(family: str, tmp_path: Path) -> None:
    """A head in a file whose config ties it: the embedding once more, or a problem."""
    folder = save(family, tmp_path / family, tie_word_embeddings=True)
    head, embedding = HEADS[family]
    rewrite(folder, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    assert not problems(folder)
    rewrite(folder, lambda tensors: tensors[head].view(-1)[-1].add_(1))
    assert f"{head} differs from {embedding}" in problems(folder)
    rewrite(folder, lambda tensors: tensors.update({head: tensors[embedding].half()}))
    assert not problems(folder)  # equal except for rounding
    rewrite(folder, lambda tensors: tensors.pop(embedding))
    assert our_name(embedding) in problems(folder)


def test_verify_tensors(folder: Path) -> None:
    def put(name: str, tensor: Tensor) -> None:
        rewrite(folder, lambda tensors: tensors.update({name: tensor}))

    name, sound = next(iter(state_dict(folder).items()))
    put(name, torch.zeros(3, 4, 5))
    assert f"{our_name(name)} is (3, 4, 5)" in problems(folder)
    rewrite(folder, lambda tensors: tensors.pop(name))
    assert f"missing: {name}" in problems(folder)
    put(name, sound)
    put("no.such.tensor", torch.ones(1))
    assert "unknown: no.such.tensor" in problems(folder)


def test_write_rejects_integer_tensors(tmp_path: Path) -> None:
    """Integer tensors are rejected, and the existing checkpoint is unchanged."""
    folder = save("lstm", tmp_path / "lstm")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="x.*int64"):
        write_checkpoint(folder, {"x": torch.ones(2, dtype=torch.int64)}, {})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
