"""Tiny checkpoints, mutations of their files, and the properties that every mutant must have."""

import json
import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

import minhub_py
from minhub_py.loading.inspection import verify
from minhub_py.models.config import one_rope
from minhub_py.models.heads import HeadSettings
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.system.shapes import ShapeError

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
HEADS = {
    "gpt2": ("lm_head.weight", "transformer.wte.weight"),
    "gptneo": ("lm_head.weight", "transformer.wte.weight"),
    "llama": ("lm_head.weight", "model.embed_tokens.weight"),
    "lstm": ("head.weight", "embedding.weight"),
}
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
NAMES = (
    "",
    "x",
    "__metadata__",
    "\x1b[2J\n\n",
    "\0",
    "\u202e",
    "a" * 5000,
    "../x",
    "transformer.h.99999.ln_1.weight",
)


def save(family: str, folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    minhub_py.save_pretrained(getattr(minhub_py, family)(**TINY[family] | settings), folder)
    return folder


class Trials:
    """Loads mutants, counts them, and records failures as text."""

    def __init__(self, folder: Path, load: Callable[[Path], None]) -> None:
        self.folder = folder
        self.load = load
        self.count = self.loaded = 0
        self.failures: list[str] = []

    def run(self, name: str, data: bytes, label: str, words: Iterable[str] = ()) -> None:
        """Replace the file `name` by `data`, and load. An error must name the file or one of
        `words`.
        """
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
        """Check the results. least_loaded: minimum number of mutants that must load, so that they
        test enough.
        """
        assert not self.failures, f"{len(self.failures)} of {self.count}:\n" + "\n".join(
            self.failures[:40]
        )
        assert self.count >= least
        assert self.loaded >= least_loaded


def bad_message(error: Exception, words: Iterable[str]) -> str:
    """Problems of an error message for users; empty without problems."""
    message = str(error)
    lines = message.splitlines()
    if not (type(error) in (ValueError, ShapeError) or isinstance(error, OSError)):
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
        files = [
            folder / name
            for name in set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        ]
    stored = {
        our_name(name): tensor
        for file in files
        for name, tensor in read_safetensors(file.read_bytes()).items()
    }

    if (folder / "config.json").exists():
        default = family.Config()
        settings = one_rope(family.Config, json.loads((folder / "config.json").read_bytes()))
        for field in fields(default):
            if field.name in HeadSettings.__dataclass_fields__ and model.config.head is None:
                continue  # they have no effect without a classification head
            expected, actual = (
                settings.get(field.name, getattr(default, field.name)),
                getattr(model.config, field.name),
            )
            # except for a head that differs
            if field.name == "tie_word_embeddings" and expected is True:
                head, embedding = (stored.get(our_name(name)) for name in HEADS[family.name])
                expected = head is None or torch.equal(head, embedding.to(head.dtype))
            assert actual == expected, f"{field.name} is {actual!r}, config.json says {expected!r}"
            assert isinstance(actual, bool) == isinstance(expected, bool), field.name
            assert not isinstance(actual, float) or math.isfinite(actual), field.name

    dtypes = [tensor.dtype for name, tensor in stored.items() if ".attn.bias" not in name]
    for name, actual in model.state_dict().items():
        expected = (
            stored[name].t()
            if family.name == "gpt2" and re.search(r"\.c_\w+\.weight", name)
            else stored[name]
        )
        assert expected.is_floating_point(), f"{name} is stored as {expected.dtype}"
        assert actual.dtype == reduce(torch.promote_types, dtypes), name
        assert actual.shape == expected.shape, name
        assert torch.equal(actual.nan_to_num(0.5), expected.to(actual.dtype).nan_to_num(0.5)), name

    logits = model(IDS % model.config.vocab_size)
    assert logits.shape == (1, IDS.size(1), model.config.vocab_size)
    assert logits.is_floating_point()


def our_name(name: str) -> str:
    """An independent implementation of the weight tables, so that an error in them is found."""
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name)
    name = re.sub(r"^(transformer\.|model\.|_)", "", name)
    return name.replace(".attn.attention.", ".attn.")


def damage(rng: random.Random, data: bytes, region: int) -> tuple[str, bytes]:
    """A random corruption of bytes, as by disks, networks and editors; mostly of the first `region`
    bytes.
    """
    at = rng.randrange(region if rng.random() < 0.9 else len(data))
    kind = rng.choice(
        ("flip", "byte", "zeros", "insert", "delete", "cut", "append", "swap", "double")
    )
    size = rng.choice((1, 2, 8, 64, 1000))
    if kind == "flip":
        bit = rng.randrange(8)
        return (
            f"flip bit {bit} of byte {at}",
            data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :],
        )
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
    """JSON text, in which the text `junk` replaces the string <junk>."""
    return json.dumps(content).replace('"<junk>"', junk)


def brief(junk: str) -> str:
    return junk if len(junk) < 60 else f"{junk[:30]}... ({len(junk)} characters)"


def file_bytes(header: str, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file with this header, which may be wrong."""
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
        shape = rng.choice(
            ([size // 4], [0, 2**62], [2**62, 0], [0, 2**63], [2**40, 0, 2**40], [0] * 100)
        )
        new = rng.choice(("x", "transformer.h.0.attn.bias", "lm_head.weight", "head.weight"))
        header[new] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [len(data), len(data) + size],
        }
        data += bytes(size)
        label = f"{new} of shape {shape} in {size} bytes added"
    return f"{label} with {brief(junk)}", file_bytes(to_json(header, junk), data)


def mutate_entry(rng: random.Random, header: dict[str, Any], junk: str) -> str:
    """Change one tensor's entry in a header."""
    name, other = rng.sample([name for name in header if name != "__metadata__"], 2)
    entry = header[name]
    key, numbers = (
        rng.choice(("dtype", "shape", "data_offsets")),
        rng.choice(("shape", "data_offsets")),
    )
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
    elif kind == "reshape":  # as many values: the file itself is valid
        shape, total = entry["shape"], math.prod(entry["shape"])
        entry["shape"] = rng.choice(
            ([total], [1, *shape], [*shape, 1], shape[::-1], [total, 1, 1], [1] * 70)
        )
    else:
        del entry[key]
    return f"{kind}: {name} is {entry}"


def mutate_names(rng: random.Random, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name, other = rng.sample([name for name in header if name != "__metadata__"], 2)
    kind = rng.choice(("swap", "rename", "rename", "remove"))
    if kind == "swap":
        return f"{name} and {other} swapped", {**header, name: header[other], other: header[name]}
    if kind == "rename":
        new = rng.choice(
            (*NAMES, other, "module." + name, name.removeprefix("transformer."), name.upper())
        )
        return f"{name} renamed {brief(new)!r}", {
            new if old == name else old: about for old, about in header.items()
        }
    return f"{name} removed, its data not", {
        old: about for old, about in header.items() if old != name
    }


def mutate_header_text(
    rng: random.Random, header: dict[str, Any], data: bytes, junk: str
) -> tuple[str, bytes]:
    """Duplicate names, a wrong length, and metadata."""
    name = rng.choice(list(header))
    kind = rng.choice(("length", "twice", "metadata"))
    if kind == "length":
        text = json.dumps(header)
        true = len(text)
        length = rng.choice(
            (0, 1, 7, true - 1, true + 1, true + len(data), 10**8, 2**31, 2**53, 2**63, 2**64 - 1)
        )
        return f"header length {length} for {true}", file_bytes(text, data, length)
    if kind == "twice":
        twice = rng.choice(
            (
                f"{json.dumps(name)}: {json.dumps(header[name])}",
                '"x": {}',
                f'"__metadata__": {junk}',
            )
        )
        return f"{brief(twice)} twice", file_bytes(f"{json.dumps(header)[:-1]}, {twice}}}", data)
    header["__metadata__"] = rng.choice(
        ("<junk>", {"layout": "native"}, {"layout": "<junk>"}, {"": "x" * 10**5})
    )
    text = to_json(header, junk)
    return f"__metadata__ {brief(str(header['__metadata__']))} with {brief(junk)}", file_bytes(
        text, data
    )


def mutate_tensors(rng: random.Random, file: bytes) -> tuple[str, bytes]:
    """A valid file, written by the safetensors library, whose tensors differ from the model's."""
    tensors = read_safetensors(file)
    name, other = rng.sample(list(tensors), 2)
    kind = rng.choice(
        ("cast", "cast all", "transpose", "remove", "add", "rename", "NaN", "mask", "head")
    )
    dtype = rng.choice(
        (
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.uint8,
            torch.bool,
            torch.int8,
            torch.complex64,
            torch.float8_e4m3fn,
        )
    )
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


def tensor_names(folder: Path) -> set[str]:
    """Tensor names, native or of the Hub, that an error may contain instead of the file."""
    names = read_safetensors((folder / WEIGHTS).read_bytes())
    masks = ("h.0.attn.bias", "h.0.attn.attention.bias")
    return {
        *names,
        *map(our_name, names),
        *masks,
        "lm_head.weight",
        "head.weight",
        "unknown: ",
        "missing: ",
    }


def state_dict(folder: Path) -> dict[str, Tensor]:
    return dict(read_safetensors((folder / WEIGHTS).read_bytes()))


def problems(folder: Path) -> str:
    return "\n".join(verify(str(folder))["problems"])
