"""What can be done with the texts of a table: one entry of `TASKS` each.

A task takes the texts of some rows and gives, for each, its results: a dict, or several where a text becomes several
rows. A row without a text is never given to a task; its results are all missing.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minhub_py.tables.formats import Column

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROOM = 16384  # ids of the texts that are continued together: bounds the memory of keys and values

Results = list[dict[str, Any]]


@dataclass(frozen=True)
class Text:
    """A text. row: its number in the whole input, from 0.    ids: at least one."""

    row: int
    text: str
    ids: list[int]


@dataclass(frozen=True)
class Task:
    """What a command does with a table.

    run(model, tokenizer, texts, **settings): the results of each text, one row of them or several.
    columns: what a row of results has.    chunk: how many texts are done at a time, and lost by a kill at most.
    exact: whether the bits of a result are the same for any number of threads; if not, a job keeps to the one that it
    has begun with.
    """

    run: Callable[..., list[Results]]
    columns: tuple[Column, ...]
    chunk: int
    verb: str
    exact: bool = True


def measures(tokenizer: "Tokenizer", ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """How well a text was predicted. logprobs: those of all ids after the first, in nats."""
    nats = -math.fsum(logprobs)
    characters = len(tokenizer.decode(list(ids[1:])))  # the first token is not predicted
    mean = nats / len(logprobs)
    return {
        "tokens": len(logprobs), "characters": characters, "nats": nats, "nats_per_token": mean,
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "bits_per_character": nats / math.log(2) / max(characters, 1),
    }  # fmt: skip


def score(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text]) -> list[Results]:
    """The measures of each text. One of a single token has nothing that was predicted."""
    from minhub_py.inference.generate import score as evaluate

    found = iter(evaluate(model, [text.ids for text in texts if len(text.ids) > 1]))
    nothing: dict[str, Any] = {**dict.fromkeys(column.name for column in SCORE), "tokens": 0}
    return [[measures(tokenizer, text.ids, next(found).tolist()) if len(text.ids) > 1 else nothing] for text in texts]


def generate(
    model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], *, seed: int, stop: Sequence[str], **settings: Any
) -> list[Results]:
    """What the model makes of each text. Row n gets what `seed` + n gives it alone."""
    from minhub_py.files.tokenizer import decode_stream, until
    from minhub_py.inference.generate import generate as make

    made: list[Results] = []
    for group in groups(texts, settings["max_new_tokens"]):
        seeds = [(seed + text.row) % 2**63 for text in group]
        new = make(model, [text.ids for text in group], seed=seeds, stop=stop, tokenizer=tokenizer, **settings)
        for text, ids in zip(group, new, strict=True):
            before = [] if model.encoder_decoder else text.ids
            made.append([{"generated": "".join(until(decode_stream(tokenizer, ids, before), stop))}])
    return made


def groups(texts: Sequence[Text], new: int) -> Iterator[Sequence[Text]]:
    """Texts in order, as many at a time as their ids and `new` ones of each have room."""
    start, longest = 0, 0
    for place, text in enumerate(texts):
        longest = max(longest, len(text.ids))
        if place > start and (place + 1 - start) * (longest + new) > ROOM:
            yield texts[start:place]
            start, longest = place, len(text.ids)
    if texts[start:]:
        yield texts[start:]


def words(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], **settings: Any) -> list[Results]:
    """How predictable each word of each text is: a row a word. Words are what stands between spaces and line ends."""
    from minhub_py.analysis.words import word_logprobs

    split = [(place, word) for place, text in enumerate(texts) for word in text.text.split()]
    found = word_logprobs(model, tokenizer, [word for _, word in split], by=[place for place, _ in split], **settings)
    names = [column.name for column in WORDS[2:]]
    made: list[Results] = [[] for _ in texts]
    for (place, word), *values in zip(split, *(found[name].tolist() for name in names), strict=True):
        numbers = {name: None if math.isnan(value) else value for name, value in zip(names, values, strict=True)}
        made[place].append({"word_n": len(made[place]) + 1, "word": word, **numbers})
    return made


def embed(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], **settings: Any) -> list[Results]:
    """The vector of each text, in as few digits as tell its float32 numbers from all others."""
    from minhub_py.analysis.embed import embed as vectors

    found = vectors(model, tokenizer, [text.text for text in texts], **settings).numpy()
    return [[{"embedding": [float(str(number)) for number in row]}] for row in found]


SCORE = (
    Column("tokens", "int64"), Column("characters", "int64"), Column("nats", "float64"),
    Column("nats_per_token", "float64"), Column("perplexity", "float64"), Column("bits_per_character", "float64"),
)  # fmt: skip
WORDS = (
    Column("word_n", "int64"), Column("word", "string"), Column("tokens", "int64"), Column("logprob", "float64"),
    Column("surprisal", "float64"), Column("entropy", "float64"),
)  # fmt: skip

TASKS: Mapping[str, Task] = {
    "score": Task(score, SCORE, 256, "Scoring"),
    "generate": Task(generate, (Column("generated", "string"),), 64, "Generating"),
    "words": Task(words, WORDS, 128, "Scoring words"),
    "embed": Task(embed, (Column("embedding", "vector"),), 256, "Embedding", exact=False),
}
