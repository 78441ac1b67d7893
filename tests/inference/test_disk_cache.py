"""The prefix cache on disk: a restored prefix is bitwise identical to a computed one; anything else
is a miss.

One architecture for each kind of cache: keys and values of all positions (GPT-2), rings (GPT-Neo,
Mistral), a recurrent state (LSTM), recurrent and attention layers (Qwen 3.5), an encoder cache
(T5).
"""

import os
import random
import shutil
import stat
import threading
from pathlib import Path

import pytest
import torch
from decoders import in_dtype
from needs import need, needs

from minhub_py import from_config, gpt2, gptneo, lstm
from minhub_py.inference.batch import Batch
from minhub_py.inference.disk_cache import BLOCK, DiskCache
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.sampling import Sampling

V, CONTEXT = 61, 400
SMALL = {"vocab_size": V, "hidden_size": 24, "max_position_embeddings": CONTEXT}
QWEN35 = {
    **SMALL,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAKE = {
    "gpt2": lambda **more: gpt2(
        vocab_size=V, n_embd=24, n_layer=2, n_head=4, n_positions=CONTEXT, **more
    ),
    "gptneo": lambda: gptneo(**SMALL, num_layers=2, num_heads=4, window_size=5),
    "mistral": lambda **more: from_config(
        "mistral",
        **SMALL,
        **more,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=7,
    ),
    "lstm": lambda: lstm(vocab_size=V, hidden_size=24, embedding_size=24),
    "qwen35": lambda: from_config("qwen3_5_text", **QWEN35),
}


def new(name: str, dtype: str = "float32", seed: int = 0):
    """A model with weights so large that a wrong key or position changes the tokens."""
    torch.manual_seed(seed)
    model = MAKE[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5
            parameter.add_(torch.randn(parameter.shape) * scale)
    return in_dtype(model, dtype)


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(V), k=length)


def reply(batch: Batch, ids: list[int], count: int = 12) -> tuple[list[tuple], int]:
    """The new tokens with their log-probabilities, and the number of tokens from the prefix cache."""
    generator = torch.Generator().manual_seed(len(ids))
    row = batch.admit(
        ids, count, sampling=Sampling(temperature=0.9), generator=generator, logprobs=True
    )
    events, cached = [], 0
    while len(batch):
        for event in batch.step():
            events.append((event.id, event.logprob, event.end))
            cached = max(cached, batch.cached_tokens.get(row, 0))
    return events, cached


def restarted(
    model, folder: Path, prompts: list[list[int]], limit: int = 10**9, **settings
) -> list[tuple]:
    """The replies of a new batch with a new cache of this folder, and the numbers of cached tokens."""
    need("decoder")  # PyTorch does not use this cache
    disk = DiskCache(folder, limit)
    batch = Batch(
        model, 1, CONTEXT, **{"prefix_bytes": 10**7, "chunk": 50, "disk": disk, **settings}
    )
    results = [reply(batch, ids) for ids in prompts]
    disk.close()
    return results


def computed(model, ids: list[int]) -> list[tuple]:
    """The reply without any prefix cache."""
    return reply(Batch(model, 1, CONTEXT, chunk=1000), ids)[0]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@needs("decoder")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "nf4+bfloat16"])
@pytest.mark.parametrize("name", MAKE)
def test_replies_from_disk_match_computed_ones(name: str, dtype: str, tmp_path: Path) -> None:
    model = new(name, dtype)
    first = text(1, 150)
    turn = [*first, *(id for id, *_ in computed(model, first)), 3, 4]
    fork, short = [*first[:100], 5, 6], text(2, BLOCK - 20)
    prompts = [first, turn, fork, short]
    expected = [computed(model, ids) for ids in prompts]
    assert isinstance(Batch(model, 1, CONTEXT).runner, NativeRunner)
    [(events, cached)] = restarted(model, tmp_path, [first])
    assert (events, cached) == (expected[0], 0)
    for settings in ({}, {"chunk": None}, {"prefix_bytes": 1}):  # also without room in memory
        for ids, events in zip(prompts, expected, strict=True):
            [(actual, cached)] = restarted(model, tmp_path, [ids], **settings)
            assert actual == events
            if name == "gpt2":  # whole blocks, and at least one token of the prompt is computed
                assert cached == {150: 128, 164: 128, 102: 64}.get(len(ids), 0)
            # rings and states are restored completely: the first prompt with its reply
            elif ids == turn:
                assert cached == len(first) + 11


def test_a_conversation_adds_its_new_blocks_only(tmp_path: Path) -> None:
    model, ids = new("gpt2"), text(1, 3 * BLOCK)
    restarted(model, tmp_path, [ids])
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    assert len(before) == 3
    restarted(model, tmp_path, [[*ids, *text(2, BLOCK)], [*ids[:BLOCK], *text(3, BLOCK)]])
    after = {path: path.stat().st_ino for path in files(tmp_path)}
    assert len(after) == 5
    assert before.items() <= after.items()


def test_files_are_private_and_complete(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    restarted(new("gpt2"), folder, [text(1, 200)])
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        assert not path.name.endswith(".partial")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_other_weights_dtypes_and_configs_miss(name: str, tmp_path: Path) -> None:
    ids = text(1, 150)
    turn = [*ids, *(id for id, *_ in computed(new(name), ids)), 3]
    restarted(new(name), tmp_path, [ids])
    epsilon = {"gpt2": "layer_norm_epsilon", "mistral": "rms_norm_eps"}[name]
    other_config = in_dtype(MAKE[name](**{epsilon: 0.1}).eval(), "float32")
    other_config.load_state_dict(new(name).state_dict())
    one_weight = new(name)
    with torch.no_grad():
        next(iter(one_weight.parameters()))[0, 0] += 1e-3
    for model in (
        new(name, seed=1),
        one_weight,
        other_config,
        new(name, "bfloat16"),
        new(name, "int8"),
        new(name, "int8+bfloat16"),
    ):
        [(events, cached)] = restarted(model, tmp_path / "copy", [turn])
        [(again, cached)] = restarted(model, tmp_path, [turn])
        assert cached == 0
        assert again == events == computed(model, turn)
    [(events, cached)] = restarted(new(name), tmp_path, [turn])
    assert cached > 0


def damages(path: Path, other: Path):
    """Every kind of invalid file, as a function that writes it."""
    content = path.read_bytes()
    for offset in (
        0,
        20,
        50,
        60,
        70,
        64 + 4 * 100,
        len(content) // 2,
        len(content) - 33,
        len(content) - 1,
    ):
        yield lambda offset=offset: path.write_bytes(
            content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]
        )
    for size in (0, 10, len(content) // 2, len(content) - 1):
        yield lambda size=size: path.write_bytes(content[:size])
    yield lambda: path.write_bytes(content + b"x")
    yield lambda: path.write_bytes(other.read_bytes())  # a valid entry of another prompt
    yield lambda: (path.unlink(), path.symlink_to(other))
    yield lambda: (path.unlink(), os.mkfifo(path))


@pytest.mark.parametrize("name", ["gpt2", "lstm"])
def test_corrupt_truncated_and_foreign_files_are_misses(name: str, tmp_path: Path) -> None:
    model, ids = new(name), text(1, 150)
    turn = [*ids, *(id for id, *_ in computed(model, ids)), 3]
    expected = computed(model, turn)
    restarted(model, tmp_path / "other", [text(2, 150)])
    restarted(model, tmp_path / "cache", [ids])
    [path, *_] = sorted(files(tmp_path / "cache"), key=lambda path: int(path.name.split("-")[1]))
    other = next(file for file in files(tmp_path / "other") if file.name.startswith("0-"))
    content = path.read_bytes()
    for damage in damages(path, other):
        damage()
        [(events, cached)] = restarted(model, tmp_path / "cache", [turn], prefix_bytes=1)
        assert (events, cached) == (expected, 0)
        if name == "gpt2":  # the reply has written the block again
            assert path.read_bytes() == content
        else:
            assert not path.exists()
            restarted(model, tmp_path / "cache", [ids], prefix_bytes=1)
    [(events, cached)] = restarted(model, tmp_path / "cache", [turn])
    assert events == expected
    assert cached > 0


def test_the_least_recently_used_files_are_deleted(tmp_path: Path) -> None:
    model = new("gpt2")
    prompts = [text(seed, 2 * BLOCK) for seed in range(6)]
    restarted(model, tmp_path, prompts[:1])
    limit = 7 * max(path.stat().st_size for path in files(tmp_path))  # 3 prompts
    disk = DiskCache(tmp_path, limit)

    def ask(number: int) -> int:
        batch = Batch(model, 1, CONTEXT, prefix_bytes=1, chunk=100, disk=disk)
        result, cached = reply(batch, [*prompts[number], 1])
        assert result == computed(model, [*prompts[number], 1])
        disk.flush()
        assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
        return cached

    assert [ask(number) for number in (1, 2, 0, 3, 4, 0, 5, 0, 1)] == [
        0,
        0,
        128,
        0,
        0,
        128,
        0,
        128,
        0,
    ]
    disk.close()
    foreign = tmp_path / "notes.txt"
    foreign.write_text("x" * limit)
    restarted(model, tmp_path, [text(9, 300)], limit=1000)
    # the last file may exceed the limit alone
    assert files(tmp_path) == [foreign] or len(files(tmp_path)) == 2


@needs("Linux")
def test_a_full_disk_stops_writing_with_one_note(tmp_path: Path, capfd) -> None:
    import resource

    torch.manual_seed(0)
    model = gpt2(vocab_size=V, n_embd=128, n_layer=4, n_head=4, n_positions=CONTEXT).eval()
    prompts = [text(seed, 150) for seed in range(4)]
    restarted(model, tmp_path, prompts[:1])
    before = files(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # half of a block
    try:
        results = restarted(model, tmp_path, prompts, prefix_bytes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [events for events, _ in results] == [computed(model, ids) for ids in prompts]
    assert [cached for _, cached in results] == [128, 0, 0, 0]  # reading continues
    assert files(tmp_path) == before
    [line] = capfd.readouterr().err.splitlines()
    assert "is not written any more (File too large)" in line


@needs("decoder")
def test_a_folder_that_is_deleted_meanwhile_is_created_again(tmp_path: Path, capfd) -> None:
    model, disk = new("gpt2"), DiskCache(tmp_path / "cache", 10**9)
    for seed in range(2):
        batch = Batch(model, 1, CONTEXT, prefix_bytes=1, chunk=50, disk=disk)
        assert reply(batch, text(seed, 150))[0] == computed(model, text(seed, 150))
        disk.flush()
        assert len(files(tmp_path)) == 2
        shutil.rmtree(tmp_path / "cache")
    disk.close()
    assert capfd.readouterr().err == ""


def test_programs_share_a_folder(tmp_path: Path) -> None:
    """Two caches write, read and delete the same files at the same time."""
    model = new("gpt2")
    prompts = [[*text(seed % 3, 140), *text(seed, 80)] for seed in range(12)]
    expected = [computed(model, ids) for ids in prompts]
    restarted(model, tmp_path, prompts[:1])
    limit = 8 * max(path.stat().st_size for path in files(tmp_path))
    results: dict[int, list] = {}

    def program(number: int) -> None:
        order = random.Random(number).choices(range(len(prompts)), k=40)
        replies = restarted(model, tmp_path, [prompts[i] for i in order], limit, prefix_bytes=1)
        results[number] = [(i, *result) for i, result in zip(order, replies, strict=True)]

    threads = [threading.Thread(target=program, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(events == expected[i] for result in results.values() for i, events, _ in result)
    assert sum(cached for result in results.values() for *_, cached in result) > 0
    assert not list(tmp_path.rglob("*.partial"))


def test_other_sequences_continue_while_a_prefix_is_read(tmp_path: Path) -> None:
    model, ids, other = new("gpt2"), text(1, 200), text(2, 5)
    restarted(model, tmp_path, [ids])
    disk, slow = DiskCache(tmp_path, 10**9), threading.Event()
    batch = Batch(model, 2, CONTEXT, prefix_bytes=10**7, chunk=50, disk=disk)
    disk.reader.submit(slow.wait)  # as a slow disk
    rows = [
        batch.admit(prompt, count, sampling=Sampling(temperature=0))
        for prompt, count in ((ids, 12), (other, 30))
    ]
    events = [event.row for _ in range(10) for event in batch.step()]
    assert events == [rows[1]] * 10
    slow.set()
    cached = 0
    while len(batch):
        events += [event.row for event in batch.step()]
        cached = max(cached, batch.cached_tokens.get(rows[0], 0))
    assert [events.count(row) for row in rows] == [12, 30]
    assert cached == 192
    disk.close()


def test_abandoned_partial_files_are_removed(tmp_path: Path) -> None:
    model = new("gpt2")
    restarted(model, tmp_path, [text(1, 100)])
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    old, recent = (folder / f"{digit * 32}.partial" for digit in "ab")
    for path in (old, recent):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    restarted(model, tmp_path, [text(2, 100)])
    assert not old.exists()
    assert recent.exists()


def test_models_without_exact_prefixes_do_not_use_the_cache(tmp_path: Path, capfd) -> None:
    """PyTorch's results depend on the number of tokens per call; an encoder-decoder has no
    prefixes.
    """
    modified = new("gpt2")
    modified.register_forward_hook(lambda *_: None)
    encoder_decoder = from_config(
        "t5",
        vocab_size=V,
        d_model=24,
        d_kv=8,
        d_ff=40,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
    ).eval()
    for model, reason in (
        (modified, "PyTorch computes this model"),
        (encoder_decoder, "an encoder-decoder"),
    ):
        ids = text(1, 200)
        disk = DiskCache(tmp_path, 10**9)
        for _ in range(2):
            batch = Batch(model, 1, CONTEXT, prefix_bytes=10**7, chunk=50, disk=disk)
            assert (
                reply(batch, ids)[0]
                == reply(Batch(model, 1, CONTEXT, prefix_bytes=10**7, chunk=50), ids)[0]
            )
        disk.close()
        assert files(tmp_path) == []
        [line] = capfd.readouterr().err.splitlines()
        assert f"is not used: {reason}" in line


def test_a_folder_that_cannot_be_written_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for folder in (file, file / "below"):
        with pytest.raises(
            ValueError, match=r"the cache folder .* cannot be written .*: choose another folder"
        ):
            DiskCache(folder, 10**9)
