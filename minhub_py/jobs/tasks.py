"""What can be done with the texts of a table: one entry of `TASKS` each.

A task takes the texts of some rows and gives, for each, its results: a dict, or several where a text becomes several
rows. A row without a text, or without what the task needs beside it, is never given to a task; its results are all
missing.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from minhub_py.jobs.formats import Column

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROOM = 16384  # ids of the texts that are continued together: bounds the memory of keys and values
NEEDS_TARGETS = (
    "this model predicts the answer to a prompt, not the prompt: minhub score --target COLUMN --out OUT takes both"
)

Results = list[dict[str, Any]]


@dataclass(frozen=True)
class Text:
    """A text. row: its number in the whole input, from 0.    ids: at least one, but for a word.

    beside: the other value that a task has asked for.
    """

    row: int
    text: str
    ids: list[int]
    beside: str = ""


@dataclass(frozen=True)
class Task:
    """What a command does with a table.

    run(model, tokenizer, texts, **settings): the results of each text, one row of them or several.
    columns: what a row of results has.    chunk: how many texts are done at a time, and lost by a kill at most.
    exact: whether the bits of a result are the same for any number of threads; if not, a job keeps to the one that it
    has begun with.    beside: the option that names another column that it needs: "target", or "by", whose values tell
    texts apart of which each row has a word; a chunk has whole texts.
    """

    run: Callable[..., list[Results]]
    columns: tuple[Column, ...]
    chunk: int
    verb: str
    exact: bool = True
    beside: Literal["", "target", "by"] = ""


def measures(tokenizer: "Tokenizer", ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """How well ids were predicted. logprobs: those of the last of them, or of all, in nats."""
    nats = -math.fsum(logprobs)
    characters = len(tokenizer.decode(list(ids[len(ids) - len(logprobs) :])))
    mean = nats / len(logprobs)
    return {
        "tokens": len(logprobs), "characters": characters, "nats": nats, "nats_per_token": mean,
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "bits_per_character": nats / math.log(2) / max(characters, 1),
    }  # fmt: skip


def score(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text]) -> list[Results]:
    """The measures of each text. One of a single token has nothing that was predicted."""
    from minhub_py.inference.generate import score as evaluate

    if model.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    found = iter(evaluate(model, [text.ids for text in texts if len(text.ids) > 1]))
    nothing: dict[str, Any] = {**dict.fromkeys(column.name for column in SCORE), "tokens": 0}
    return [[measures(tokenizer, text.ids, next(found).tolist()) if len(text.ids) > 1 else nothing] for text in texts]


def score_targets(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], *, sep: str = " ") -> list[Results]:
    """The measures of each text's target: the text's continuation after `sep`, or an encoder-decoder's answer."""
    from minhub_py.analysis.surprisal import target_ids
    from minhub_py.checkpoints.tokenizers.tokenizer import encode
    from minhub_py.inference.generate import score as evaluate

    if model.encoder_decoder:  # special tokens at the ends of an answer belong to it
        pairs = [(text.ids, encode(tokenizer, text.beside, add_special_tokens=True)) for text in texts]
    else:
        pairs = target_ids(model, tokenizer, [text.text for text in texts], [text.beside for text in texts], sep)
    some = [(prompt, target) for prompt, target in pairs if prompt and target]
    scores = iter(evaluate(model, [prompt for prompt, _ in some], targets=[target for _, target in some]))
    return [
        [measures(tokenizer, target, next(scores).tolist())] if prompt and target else [] for prompt, target in pairs
    ]


def generate(
    model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], *, seed: int, stop: Sequence[str], **settings: Any
) -> list[Results]:
    """What the model makes of each text. Row n gets what `seed` + n gives it alone."""
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
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
    split = [(place, word) for place, text in enumerate(texts) for word in text.text.split()]
    found = numbers(model, tokenizer, [word for _, word in split], [place for place, _ in split], **settings)
    made: list[Results] = [[] for _ in texts]
    for (place, word), each in zip(split, found, strict=True):
        made[place].append({"word_n": len(made[place]) + 1, "word": word, **each})
    return made


def words_by(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], **settings: Any) -> list[Results]:
    """How predictable each row's word is. Words with the same value beside them are one text."""
    words, by = [text.text for text in texts], [text.beside for text in texts]
    return [[each] for each in numbers(model, tokenizer, words, by, **settings)]


def numbers(
    model: Any, tokenizer: "Tokenizer", words: Sequence[str], by: Sequence[Hashable], **settings: Any
) -> Iterator[dict[str, Any]]:
    """The results of `word_logprobs` for each word, None for NaN."""
    from minhub_py.analysis.surprisal import word_logprobs

    if model.encoder_decoder:
        raise ValueError(NEEDS_TARGETS)
    found = word_logprobs(model, tokenizer, words, by=by, **settings)
    names = [column.name for column in NUMBERS]
    for values in zip(*(found[name].tolist() for name in names), strict=True):
        yield {name: None if math.isnan(value) else value for name, value in zip(names, values, strict=True)}


def embed(model: Any, tokenizer: "Tokenizer", texts: Sequence[Text], **settings: Any) -> list[Results]:
    """The vector of each text, in as few digits as tell its float32 numbers from all others."""
    from minhub_py.analysis.embeddings import embed as vectors

    found = vectors(model, tokenizer, [text.text for text in texts], **settings).numpy()
    return [[{"embedding": [float(str(number)) for number in row]}] for row in found]


SCORE = (
    Column("tokens", "int64"), Column("characters", "int64"), Column("nats", "float64"),
    Column("nats_per_token", "float64"), Column("perplexity", "float64"), Column("bits_per_character", "float64"),
)  # fmt: skip
NUMBERS = (
    Column("tokens", "int64"), Column("logprob", "float64"), Column("surprisal", "float64"),
    Column("entropy", "float64"),
)  # fmt: skip
WORDS = (Column("word_n", "int64"), Column("word", "string"), *NUMBERS)

TASKS: Mapping[str, Task] = {
    "score": Task(score, SCORE, 256, "Scoring"),
    "score_targets": Task(score_targets, SCORE, 256, "Scoring", beside="target"),
    "generate": Task(generate, (Column("generated", "string"),), 64, "Generating"),
    "words": Task(words, WORDS, 128, "Scoring words"),
    "words_by": Task(words_by, NUMBERS, 1024, "Scoring words", beside="by"),
    "embed": Task(embed, (Column("embedding", "vector"),), 256, "Embedding", exact=False),
}
