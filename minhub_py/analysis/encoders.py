"""Texts and pairs of texts through an encoder: token IDs, hidden states, and the head."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.tokens import ids_of_texts, is_missing
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.checkpoints.tokenizers.tokenizer import surrounding_ids, working
from minhub_py.inference.arguments import check_tokenizer
from minhub_py.inference.encoder_runner import (
    BATCH_TOKENS,
    EncoderRunner,
    TorchEncoder,
    borrowed_runner,
)
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Classifier, Encoder

TEXTS = 1000  # per call of the tokenizer: an encoding takes a hundred times the memory of its text


@dataclass(frozen=True, slots=True)
class Input:
    """The token IDs of a text or a pair, with special tokens, and their token types.

    prompt: its number of tokens.    removed: number of tokens that were removed because the text is
    too long.
    """

    ids: Sequence[int]
    types: Sequence[int]
    prompt: int = 0
    removed: int = 0

    def packed(self) -> "Input":
        """A copy in arrays, which take a tenth of the memory of lists."""
        return replace(self, ids=array("i", self.ids), types=bytes(self.types))


def inputs_of(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    max_length: int | None = None,
    prompt: str = "",
    only_first: bool = False,
) -> Iterator[Input]:
    """The inputs of texts, or of pairs of `texts` and `pairs`, with the tokenizer's special tokens.

    A longer input is truncated to `max_length` tokens, and to the model's positions: the longer
    text of a pair first, or with `only_first` the first text.
    ValueError: not a tokenizer, or the tokenizer of another model.
    """
    check_tokenizer(tokenizer, "encode_batch")
    assert tokenizer is not None
    limit = limit_of(model, max_length)
    room = max(limit - tokenizer.num_special_tokens_to_add(pairs is not None), 0)
    prompt_tokens = len(tokenizer.encode(prompt, add_special_tokens=False).ids) if prompt else 0
    # the first special token, such as [CLS], counts as the prompt's, but not the last one, such as
    # [SEP]
    if prompt:
        before = special_tokens_before(tokenizer)
        has_last = tokenizer.num_special_tokens_to_add(False) > before
        prompt_tokens = min(prompt_tokens + before, limit - has_last)
    for start in range(0, len(texts), TEXTS):
        batch = [prompt + text for text in texts[start : start + TEXTS]]
        with working(tokenizer):
            first = tokenizer.encode_batch(batch, add_special_tokens=False)
            second = (
                None
                if pairs is None
                else tokenizer.encode_batch(
                    list(pairs[start : start + TEXTS]), add_special_tokens=False
                )
            )
            for number, encoding in enumerate(first):
                pair = None if second is None else second[number]
                removed = max(len(encoding.ids) + (0 if pair is None else len(pair.ids)) - room, 0)
                truncate(encoding, pair, room, only_first)
                encoded = without_padding(tokenizer.post_process(encoding, pair), model)
                check_ids(model, encoded.ids)
                yield Input(encoded.ids, encoded.type_ids, prompt_tokens, removed)


def truncated_inputs(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Sequence[str | Sequence[int] | None],
    settings: EmbeddingSettings,
    prompt: str,
) -> list[Input | None]:
    """Each text's input; None for a missing text."""
    inputs: list[Input | None] = [None] * len(texts)
    strings = {number: text for number, text in enumerate(texts) if isinstance(text, str)}
    if strings:
        rows = [text.lower() if settings.lower_case else text for text in strings.values()]
        encoded = inputs_of(model, tokenizer, rows, max_length=settings.max_length, prompt=prompt)
        for number, row in zip(strings, encoded, strict=True):
            inputs[number] = row.packed() if row.ids else None
    lists = [
        n for n, text in enumerate(texts) if not isinstance(text, str) and not is_missing(text)
    ]
    for number, ids in zip(
        lists, ids_of_texts(model, tokenizer, [texts[n] for n in lists]), strict=True
    ):
        if ids:
            inputs[number] = Input(ids, [0] * len(ids)).packed()
    return inputs


def windows_of_texts(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_length: int | None = None,
    stride: int | None = None,
) -> list[tuple[Encoding, list[tuple[Input, int, int, int]]]]:
    """The encoding of each text without special tokens, and its windows, which together contain all
    tokens.

    A window is (input, start, first, end): the input begins with token `start` of the text, after
    special tokens; tokens `first` to `end` have more context in this window than in others. Windows
    overlap by `stride` tokens; default: half of their tokens.
    ValueError: not a tokenizer, the tokenizer of another model, or a stride that leaves no room for
    new tokens.
    """
    check_tokenizer(tokenizer, "encode_batch")
    limit = limit_of(model, max_length)
    room = limit - tokenizer.num_special_tokens_to_add(False)
    overlap = max(room, 0) // 2 if stride is None else stride
    if room <= overlap:
        raise ValueError(
            f"stride must be less than {max(room, 0)}, the number of tokens of a window, not"
            f" {overlap}"
        )
    results = []
    with working(tokenizer):
        add_special_tokens = special_tokens_of(tokenizer)
        for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
            check_ids(model, encoding.ids)
            count = len(encoding.ids)
            starts = (
                [0, *range(room - overlap, count - overlap, room - overlap)]
                if count > room
                else [0]
            )
            ends = [min(start + room, count) for start in starts]
            # In an overlap, the first half belongs to the window before it.
            borders = [
                0,
                *((end + start) // 2 for end, start in zip(ends, starts[1:], strict=False)),
                count,
            ]
            windows = []
            for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
                row = add_special_tokens(encoding.ids[start:end], encoding.type_ids[start:end])
                if row.ids:
                    windows.append((row, start, borders[number], borders[number + 1]))
            results.append((encoding, windows))
    return results


def special_tokens_of(tokenizer: Tokenizer) -> Callable[[list[int], list[int]], Input]:
    """A function that adds the special tokens of a single text to token IDs and types."""
    example = tokenizer.encode("a", add_special_tokens=False)
    template, before = tokenizer.post_process(example), special_tokens_before(tokenizer)
    after = before + len(example.ids)

    def add(ids: list[int], types: list[int]) -> Input:
        return Input(
            [*template.ids[:before], *ids, *template.ids[after:]],
            [*template.type_ids[:before], *types, *template.type_ids[after:]],
        )

    return add


def limit_of(model: LanguageModel, max_length: int | None) -> int:
    """Maximum number of tokens of a text, with special tokens."""
    return min(
        length for length in (max_length, model.config.context_length, 2**31) if length is not None
    )


def check_ids(model: LanguageModel, ids: Sequence[int]) -> None:
    """ValueError: the token IDs do not belong to the model's tokenizer."""
    if (largest := max(ids, default=0)) >= model.config.vocab_size:
        raise ValueError(
            f"the tokenizer does not match the model: it returned token ID {largest}, but the"
            f" model's vocabulary ends at {model.config.vocab_size - 1}; pass the model's tokenizer"
        )


def without_padding(encoding: Encoding, model: LanguageModel) -> Encoding:
    """An encoding without padding tokens at its end, if the model is a decoder that classifies its
    last token.

    Tokenizers such as Qwen's append a token that is also the padding token.
    """
    if isinstance(model, Classifier):
        length = next(
            (i for i in range(len(encoding.ids), 1, -1) if encoding.ids[i - 1] != model.pad), 1
        )
        encoding.truncate(length)
    return encoding


def special_tokens_before(tokenizer: Tokenizer) -> int:
    """The number of special tokens before a text."""
    return len(surrounding_ids(tokenizer)[0])


def truncate(first: Encoding, second: Encoding | None, room: int, only_first: bool) -> None:
    """Truncate the encodings of a text, or of a pair, to `room` tokens together."""
    if second is None:
        first.truncate(room)
        return
    sizes = [len(first.ids), len(second.ids)]
    excess = sum(sizes) - room
    if excess <= 0:
        return
    if only_first:
        first.truncate(max(sizes[0] - excess, 0))
        return
    # The longer text loses tokens until both are of equal length; then they take turns.
    longer = 0 if sizes[0] >= sizes[1] else 1
    cut = min(excess, abs(sizes[0] - sizes[1]))
    sizes[longer] -= cut
    remaining = excess - cut
    sizes = [sizes[0] - (remaining + 1) // 2, sizes[1] - remaining // 2]
    first.truncate(max(sizes[0], 0))
    second.truncate(max(sizes[1], 0))


@torch.inference_mode()
def hidden_states(
    model: Encoder,
    inputs: Sequence[Input],
    progress: Progress | None = None,
    attended: Sequence[int] | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """(index, hidden states (T, C), float32) of each input, the longest first.

    progress: see `counted`.    attended: of each input, as for `TorchEncoder`.
    """
    lengths = [len(row.ids) for row in inputs]

    def generate(runner: EncoderRunner) -> Iterator[tuple[int, Tensor]]:
        for batch in batches(lengths):
            visible = None if attended is None else [attended[i] for i in batch]
            states = run(runner, model, [inputs[i] for i in batch], visible)
            yield from zip(batch, states, strict=True)

    if attended is not None and list(attended) == lengths:
        attended = None
    if attended is None:
        with borrowed_runner(model) as runner:
            yield from counted(generate(runner), sum(lengths), progress)
    else:
        yield from counted(generate(TorchEncoder(model)), sum(lengths), progress)


def counted(
    results: Iterable[tuple[int, Tensor]], total: int, progress: Progress | None
) -> Iterator[tuple[int, Tensor]]:
    """The results, with a call of `progress` after the use of each: processed tokens and total."""
    processed = 0
    for i, x in results:
        yield i, x
        processed += len(x)
        if progress is not None:
            progress(processed, total)


def run(
    runner: EncoderRunner,
    model: Encoder,
    inputs: Sequence[Input],
    attended: Sequence[int] | None = None,
) -> Sequence[Tensor]:
    """The hidden states (T, C), float32, of each input of one batch. attended: as for
    `TorchEncoder`.
    """
    has_types = (
        any(any(row.types) for row in inputs) and getattr(model, "embed_types", None) is not None
    )
    types = [row.types for row in inputs] if has_types else None
    ids = [row.ids for row in inputs]
    if attended is None:
        x = runner.hidden_states(ids, types)
    else:
        assert isinstance(runner, TorchEncoder)
        x = runner.hidden_states(ids, types, attended)
    return x.split([len(row.ids) for row in inputs])


@torch.inference_mode()
def head_output(model: Encoder, x: Tensor) -> Tensor:
    """The result of the head for the hidden states (T, C) of a text, float32 on the CPU."""
    parameter = next(model.parameters())
    return model.head_of(x.to(parameter.device, parameter.dtype).unsqueeze(0))[0].float().cpu()


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of texts in batches of about BATCH_TOKENS tokens, the longest first."""
    batch: list[int] = []
    size = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and size + lengths[i] > BATCH_TOKENS:
            yield batch
            batch, size = [], 0
        batch.append(i)
        size += lengths[i]
    if batch:
        yield batch
