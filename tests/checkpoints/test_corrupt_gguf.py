"""Corrupt and unsupported GGUF files are rejected with the reason."""

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest
import torch
from gguf_cases import IDS, change, info, reference, string
from gguf_files import write
from memory import peak, reset_peak

from minhub_py import from_pretrained
from minhub_py.checkpoints.gguf_header import MAX_PAIRS, MAX_STRINGS, MAX_TENSORS, read_header

REFUSED: list[tuple[Callable[[gguf.GGUFWriter], None], str]] = [
    (
        change("general.architecture", "rwkv6", "string"),
        "'rwkv6' is not supported; supported are .*bert, bloom,",
    ),
    (
        change("llama.expert_count", 8),
        "the tensors do not fit the weight table: unknown: blk.0.ffn_down.weight",
    ),
    (change("llama.attention.sliding_window", 8), "llama.attention.sliding_window is 8"),
    (change("llama.rope.dimension_count", 8), "llama.rope.dimension_count is 8"),
    (change("llama.attention.value_length", 8), "llama.attention.value_length is 8"),
    (change("llama.rope.scaling.type", "longrope", "string"), "rope_type 'longrope' is not one of"),
    (change("llama.attention.head_count", 0), "llama.attention.head_count cannot be 0"),
    (change("llama.attention.head_count", [4, 4], "array"), r"head_count cannot be \[4, 4\]"),
    (change("llama.rope.freq_base", "x", "string"), "rope_theta cannot be 'x'"),
    (change("llama.block_count", 3), "missing: layers.2"),
    (lambda writer: writer.kv_data[0].pop("llama.block_count"), "it has no llama.block_count"),
    (change("llama.embedding_length", 32), "wrong shape"),
    (change("llama.\x1b[2J", 8), r"llama\.\\x1b\[2J is 8, which is not supported"),
    (
        change("llama.block_count", ["a", "b"], "array"),
        r"num_hidden_layers cannot be an array of 2 strings",
    ),
    (change("split.count", 2, "uint16"), "one of 2 parts: join them with llama-gguf-split"),
    (change("tokenizer.ggml.eos_token_id", "x", "string"), "special tokens cannot be"),
    (
        lambda writer: writer.add_tensor("blk.0.strange.weight", torch.zeros(2).numpy()),
        "unknown: blk.0.strange.weight",
    ),
]


@pytest.mark.parametrize(("apply", "message"), REFUSED)
def test_unsupported_settings_are_rejected_by_name(
    apply: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "model.gguf", reference("llama"), change=apply)
    with pytest.raises(ValueError, match=message):
        from_pretrained(file)


def test_rope_factors_other_than_llama3_are_rejected(tmp_path: Path) -> None:
    file = write(
        tmp_path / "model.gguf",
        reference("llama3"),
        extra={"rope_freqs.weight": torch.arange(1.0, 17.0)},
    )
    with pytest.raises(ValueError, match=r"rope_freqs\.weight has other factors"):
        from_pretrained(file)


def header(pairs: int = 0, tensors: int = 0, *parts: bytes, version: int = 3) -> bytes:
    return b"".join([b"GGUF", struct.pack("<IQQ", version, tensors, pairs), *parts])


HUGE = 2**60
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "does not begin with GGUF"),
    "magic": (b"GGML" + bytes(99), "does not begin with GGUF"),
    "only magic": (b"GGUF", "ends within its header"),
    "version": (header(version=1), "version is 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version is 50331648"),
    "pairs": (header(HUGE), "too short"),
    "tensors": (header(0, HUGE), "too short"),
    "key": (header(1, 0, struct.pack("<Q", HUGE) + bytes(99)), "string of"),
    "key beyond the end": (
        header(1, 0, struct.pack("<Q", 1000) + bytes(99)),
        "ends within its header",
    ),
    "key that is no text": (
        header(1, 0, struct.pack("<Q", 2) + b"\xff\xff" + bytes(99)),
        "cannot be read",
    ),
    "type": (header(1, 0, string("a") + struct.pack("<I", 77) + bytes(9)), "unknown type 77"),
    "strings": (
        header(1, 0, string("a") + struct.pack("<IIQ", 9, 8, HUGE) + bytes(99)),
        "too short for",
    ),
    "numbers": (
        header(1, 0, string("a") + struct.pack("<IIQ", 9, 4, HUGE) + bytes(99)),
        "too short for",
    ),
    "lists in lists": (
        header(1, 0, string("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(99)),
        "unknown type 9",
    ),
    "key twice": (header(2, 0, (string("a") + struct.pack("<IB", 0, 1)) * 2), "'a' twice"),
    "long key": (header(1, 0, string("a" * 65_536) + bytes(99)), "string of 65,536 bytes"),
    "many pairs": (
        header(MAX_PAIRS + 1, 0, bytes(13 * MAX_PAIRS + 99)),
        "10,001 pairs; the maximum is 10,000",
    ),
    "many tensors": (
        header(0, MAX_TENSORS + 1, bytes(24 * MAX_TENSORS + 99)),
        "20,001 tensors; the maximum is",
    ),
    "many strings": (
        header(
            1,
            0,
            string("a") + struct.pack("<IIQ", 9, 8, MAX_STRINGS + 1) + bytes(8 * MAX_STRINGS + 99),
        ),
        "2,097,153 strings; the maximum is 2,097,152",
    ),
    "many strings in two arrays": (
        header(
            2,
            0,
            *(
                string(name)
                + struct.pack("<IIQ", 9, 8, MAX_STRINGS // 2 + 1)
                + bytes(4 * MAX_STRINGS + 8)
                for name in "ab"
            ),
        ),
        "1,048,577 strings; the maximum is 1,048,575",
    ),
    "alignment": (
        header(1, 0, string("general.alignment") + struct.pack("<II", 4, 24)),
        "alignment cannot be 24",
    ),
    "dimensions": (header(0, 1, info("x", (1,) * 5), bytes(99)), "x has 5 dimensions"),
    "no dimensions": (header(0, 1, info("x", ()), bytes(99)), "x has 0 dimensions"),
    "size": (header(0, 1, info("x", (HUGE,)), bytes(99)), "ends within x"),
    "sizes": (header(0, 1, info("x", (2**62, 2**62, 2**62)), bytes(99)), "ends within x"),
    "nothing": (header(0, 1, info("x", (0, 4)), bytes(99)), "x has the shape"),
    "tensor type": (header(0, 1, info("x", kind=999), bytes(99)), "x has the unknown type 999"),
    "tensor without code": (
        header(0, 1, info("x", kind=26), bytes(99)),
        "x is stored as I32; supported types are",
    ),
    "block": (header(0, 1, info("x", (31,), kind=8), bytes(99)), "x has the shape"),
    "offset": (header(0, 1, info("x", offset=HUGE), bytes(99)), "ends within x"),
    "askew": (header(0, 1, info("x", offset=4), bytes(99)), "x is not aligned"),
    "overlap": (
        header(0, 2, info("x", (64,)), info("y", offset=32), bytes(999)),
        "y begins within x",
    ),
    "name twice": (header(0, 2, info("x"), info("x", offset=32), bytes(999)), "x twice"),
    "name": (header(0, 1, info("\x1b[2J"), bytes(99)), r"contains a tensor named '\x1b"),
    "no architecture": (header(), "architecture None"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_corrupt_headers_are_rejected_with_the_reason(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED[name]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        from_pretrained(path)
    assert "damaged.gguf" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_unused_arrays_need_no_memory(tmp_path: Path) -> None:
    count = 100_000_000
    path = tmp_path / "large.gguf"
    path.write_bytes(header(1, 0, string("general.numbers") + struct.pack("<IIQ", 9, 0, count)))
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + count)
    reset_peak()
    before = peak()
    assert str(read_header(path).metadata["general.numbers"]) == "an array of 100,000,000 numbers"
    assert peak() - before < 50 * 2**20


def cuts(data: bytes) -> Iterator[bytes]:
    yield from (
        data[:size] for size in [*range(0, 3000, 37), *range(3000, len(data), 5000), len(data) - 1]
    )


def flips(data: bytes) -> Iterator[bytes]:
    """Changes each byte of the header: lengths, counts, types, offsets and names."""
    for position in range(4, 2500, 3):
        yield (
            data[:position]
            + bytes([data[position] ^ (0x80 if position % 2 else 0xFF)])
            + data[position + 1 :]
        )


@torch.no_grad()
@pytest.mark.parametrize("mutants", [cuts, flips])
def test_mutated_files_are_rejected_or_loaded(
    mutants: Callable[[bytes], Iterator[bytes]], tmp_path: Path
) -> None:
    """Mutated files need little memory and raise one-line errors that name the file or a tensor."""
    data = write(tmp_path / "sound.gguf", reference("llama"), "Q8_0").read_bytes()
    reset_peak()
    before, loaded, count, longest = peak(), 0, 0, 0
    for count, mutant in enumerate(mutants(data)):
        path = tmp_path / f"{count}.gguf"
        path.write_bytes(mutant)
        try:
            from_pretrained(path)(IDS)
            loaded += 1
        except (ValueError, OSError) as error:
            longest = max(longest, len(str(error).splitlines()))
        path.unlink()
    assert longest == 1
    assert count > 50
    assert loaded if mutants is flips else not loaded
    assert peak() - before < 200 * 2**20
