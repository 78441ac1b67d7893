"""Long computations of the event loop are done in slices, with the same results; others run between
them.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from minhub_py.serve import slices
from minhub_py.serve.slices import SLICE, TooManyError, Turns, read_json, write_list
from minhub_py.serve.validation import Fields


def rejected(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def finish(generator) -> tuple[Any, int]:
    """The result of a computation, and its number of slices."""
    count = 1
    while True:
        try:
            next(generator)
        except StopIteration as result:
            return result.value, count
        count += 1


def whole(text: str, most: int = 10**6) -> Any:
    return finish(read_json(text, most))[0]


def outcome(read: Callable[[str], Any], text: str) -> Any:
    """A JSON text's value, or the type of the error."""
    try:
        return read(text)
    except ValueError as error:
        return type(error)


def value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(10 if depth else 7)
    if kind < 7:
        return [None, True, -1.5e3, 2**70, 'a"\\\n', "é\ud83d\ude00\ud800", ""][kind]
    if kind == 9:
        return chance.choices([0, 12, -1, 1e9, True, None, "a, b", "é"], k=chance.randrange(9))
    items = [value(chance, depth - 1) for _ in range(chance.randrange(5))]
    return (
        items
        if kind == 7
        else {chance.choice(["", "k", "ключ", f"{i}"]): item for i, item in enumerate(items)}
    )


@pytest.mark.parametrize("seed", range(4))
def test_read_json_equals_json_loads(monkeypatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(slices, "CHARACTERS", 12)
    for _ in range(500):
        text = json.dumps(
            value(chance, 4), ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1])
        )
        if chance.random() < 0.7:  # mostly invalid
            at = chance.randrange(len(text) + 1)
            text = (
                text[:at]
                + chance.choice(["", ",", "]", "}", '"', ":", "1", " ", "NaN"])
                + text[at + 1 :]
            )
        assert outcome(whole, text) == outcome(
            lambda text: json.loads(text, parse_constant=rejected), text
        )


@pytest.mark.parametrize("size", [1, 50_000])
def test_deep_nesting_is_rejected(size: int) -> None:
    for text in (
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 129 + "]" * 129,
        '["[", ' * 129 + "1" + "]" * 129,
    ):
        with pytest.raises(ValueError, match="nested too deeply: at most 128 lists and objects"):
            whole(f'["{"x" * size}", {text[:-1]}]')
        with pytest.raises(ValueError, match="nested too deeply"):
            whole(text)
    assert whole("[" * 128 + f'"{"[x" * size}"' + "]" * 128)


def test_structures_are_counted_and_numbers_and_texts_are_not() -> None:
    assert len(whole(json.dumps([*range(60_000), *["text"] * 60_000]), most=2)) == 120_000
    for many in ([{}] * 30_000, [[]] * 30_000, {f"key {i}": 0 for i in range(30_000)}):
        with pytest.raises(TooManyError):
            whole(json.dumps(many), most=20_000)


def test_write_list_equals_json_dumps() -> None:
    for length in (0, 1, SLICE, SLICE + 1, 3 * SLICE):
        values = [{"id": i, "piece": f"é{i}"} for i in range(length)]
        written, count = finish(write_list(iter(values)))
        assert json.loads(written) == values
        assert count == 1 + -(-length // SLICE)


def test_others_run_between_the_slices_of_large_bodies() -> None:
    """Two bodies of half a million values are read in turns; a small one does not wait for them."""
    body = json.dumps({"prompt": [7] * 490_000}).encode()
    _, number = finish(Fields.parse(body))
    assert number >= 490_000 / SLICE

    async def main() -> None:
        turns, rounds, small = Turns(), 0, 0
        reading = [asyncio.create_task(turns.run(Fields.parse(body))) for _ in range(2)]
        while not all(task.done() for task in reading):
            await asyncio.sleep(0)
            rounds += 1
            if not any(task.done() for task in reading):
                fields = await turns.run(Fields.parse(b'{"prompt": "Hi"}'))
                small += fields.get("prompt") == "Hi"
        assert min(rounds, small) >= number
        assert [len(task.result().get("prompt")) for task in reading] == [490_000] * 2

    asyncio.run(main())


def test_a_long_text_counts_as_many_values() -> None:
    body = json.dumps({"model": "x" * 7_000_000, "prompt": "Hi", "user": "y" * 100_000}).encode()
    fields, number = finish(Fields.parse(body))
    assert number >= 2
    assert len(fields.get("model")) == 7_000_000
