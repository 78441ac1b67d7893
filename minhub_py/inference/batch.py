"""Continuous batching: the loop behind `generate`, `stream` and `score`.

Long sequences: see `context_start`.

Randomness. The i-th new token of a sequence is drawn with the i-th number of the sequence's
generator.

Determinism. These do not change the tokens and log-probabilities of a sequence, which stay bitwise
identical:

    other sequences in the batch, time of admission   native runner, every dtype
    a prefix copied from another sequence             native runner, except bfloat16 prompts of at least LONG_PROMPT
                                                      tokens on processors with AMX
    the number of threads                             as for a copied prefix
    draft tokens                                      always: drafts are made only where this holds

The native runner computes each token in one fixed order of sums. PyTorch's products, in
`TorchRunner` and in the native runner for long bfloat16 prompts (native_runner.LONG_PROMPT), sum in
an order that depends on the number of tokens per call: results are equal up to rounding. A batch
with a prefix cache or with prefill chunks uses the native products only, so that the exception for
bfloat16 does not apply; its prefill is slower.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from minhub_py.inference.beam_rows import extend_beams, limits_of, searches_of
from minhub_py.inference.beams import Beams, BeamSearch, Hypothesis
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.grammar import AnyMatcher
from minhub_py.inference.mask_threads import MaskThreads, ThreadedMatcher
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.next_token import NextToken, choose_tokens, logprobs_of, top_logprobs
from minhub_py.inference.prefix_sharing import PrefixSharing
from minhub_py.inference.prefixes import PrefixCache
from minhub_py.inference.rows import BatchRow, context_start
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.inference.speculative import Drafter, DraftSource, PromptLookup
from minhub_py.inference.token_limits import (
    LimitedMatcher,
    generation_settings,
    id_set,
    model_limits,
)
from minhub_py.inference.torch_runner import CHUNK, Runner
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import EncoderDecoder


@dataclass(frozen=True)
class Event:
    """A new token of a sequence, or the error that ends it.

    row: the number that `admit` returned.
    logprob: log-probability of the token (nats) before temperature and other settings, if
    requested.
    end: reason if this is the last token: "stop" (stop criteria) or "length" (maximum number of
    tokens).
    top: the most likely tokens at this position with their log-probabilities, in descending order,
    if requested.
    error: the error that ends this sequence only, such as NaN logits. There is no token then.
    hypotheses: the result of a beam search, which has one event: the best sequences, in descending
    order of their scores. There is no token then.
    """

    row: int
    id: int = -1
    logprob: float | None = None
    end: Literal["stop", "length"] | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: ValueError | None = None
    hypotheses: tuple[Hypothesis, ...] = ()


class Batch:
    """Sequences that one model continues together. Requests join and leave between steps.

        batch = Batch(model, rows=8, max_length=1024)
        row = batch.admit(ids, max_new_tokens=100, sampling=Sampling(temperature=0.8), generator=generator)
        while len(batch):
            for event in batch.step():
                ...

    rows: maximum number of sequences; a beam search counts as one per beam.
    max_length: positions per sequence; longer sequences continue with a part of their context. An
        encoder-decoder's prompt and output are limited separately.
    prefix_bytes: size of the prefix cache of finished sequences. A prompt copies its longest common
        prefix with a cached or active sequence. 0: no prefix cache.    prefixes: an existing one,
        of this model's weights.
    disk: the prefix cache on disk of this model, in addition; requires `prefix_bytes`.
    chunk: maximum number of prompt tokens per step (chunked prefill), so that a long prompt does
    not delay the others.
    runner: an existing runner of this model.
    drafts: maximum number of draft tokens per step and row of a recurrent model, whose cache has a
    state for each of them.
    """

    def __init__(
        self,
        model: LanguageModel,
        rows: int,
        max_length: int,
        *,
        prefix_bytes: int = 0,
        prefixes: PrefixCache | None = None,
        disk: DiskCache | None = None,
        chunk: int | None = None,
        runner: Runner | None = None,
        drafts: int = 0,
    ) -> None:
        self.context, self.vocab_size = model.config.context_length, model.config.vocab_size
        self.output_size, self.limits = model.output_size, model_limits(model)
        self.renormalize = generation_settings(model).get("renormalize_logits") is True
        self.max_length = min(max_length, self.context or max_length)
        self.encoder_decoder, self.invocation = model.encoder_decoder, model.invocation
        self.model = model
        self.runner = runner or runner_of(model)
        with torch.inference_mode():
            self.cache = self.runner.new_cache(rows, self.max_length, drafts)
        self.cache.empty()
        self.capacity, self.count = rows, 0
        self.joining: list[BatchRow] = []
        self.rows: list[BatchRow] = []  # rows[i] uses slot i of the cache
        self.masks = MaskThreads()
        self.logprobs = torch.empty(0)
        self.prefixes, self.chunk = prefixes or PrefixCache(prefix_bytes), chunk
        self.exact = self.prefixes.size > 0 or chunk is not None
        self.disk = (
            disk if disk is not None and disk.attach(model, self.runner, self.cache) else None
        )
        self.sharing = PrefixSharing(
            self.rows, self.cache, self.prefixes, self.disk, self.context, model.invocation
        )
        # row -> prompt tokens copied; removed in the step after its end
        self.cached_tokens: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of active sequences, with one per beam."""
        return sum(row.width for row in (*self.rows, *self.joining))

    @property
    def decoding(self) -> int:
        """The number of active sequences whose prompt is complete, and whose next token can be
        computed.
        """
        return sum(row.can_continue for row in self.rows)

    def admit(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
        stop: StopCriteria | None = None,
        speculate: int = 0,
        draft: DraftSource | None = None,
        targets: Sequence[int] = (),
        logprobs: bool = False,
        top: int = 0,
        like: int | None = None,
        matcher: AnyMatcher | None = None,
        generated: int = 0,
        search: BeamSearch | None = None,
        first: int | None = None,
        start: int | None = None,
    ) -> int:
        """Add a sequence at the next step. Returns its number for events and `retire`.

        ids: the prompt, at least one token.
        generator: source of random numbers; PyTorch's default generator if None.
        speculate: maximum number of draft tokens per step.
        draft: the source of draft tokens; prompt lookup if None.
        targets: a continuation to score instead of generating one.
        logprobs: add log-probabilities to events; always added for `targets`.
        top: number of most likely tokens in events.
        generated: number of tokens at the end of `ids` that follow the prompt, as output of an
        earlier batch.
        like: an active sequence; its cache is copied for the common prefix where possible.
        matcher: restricts tokens to those it allows and ends the sequence when complete.
            Log-probabilities are still those computed by the model.
        search: settings of a beam search, which has one event, at its end. Of the settings of
            `sampling`, the penalties and the bias apply, and of the matchers, limits of tokens.
        first: the first token of an encoder-decoder's reply, in place of forced_bos_token_id.
        start: the token before it, in place of decoder_start_token_id.

        ValueError: an empty prompt, no tokens to generate or score, an ID outside the vocabulary,
        or more tokens than the batch has room for. IndexError: all rows are in use.
        """
        if not ids or (max_new_tokens < 1 and not targets):
            raise ValueError(
                "a sequence needs a prompt of at least one token and at least one token to generate"
                " or score"
            )
        if search is not None and (speculate or draft is not None):
            raise ValueError("draft tokens cannot be combined with a beam search: remove them")
        width = 1 if search is None else search.beams
        if width > self.capacity:
            raise ValueError(
                f"a search with {width} beams does not fit a batch of {self.capacity} rows"
            )
        if len(self) + width > self.capacity:
            raise IndexError(f"all {self.capacity} rows of the batch are in use")
        encoder_ids, text = list[int](), list(ids)
        if self.encoder_decoder:
            encoder_ids = list(ids)
            text = [self._start_of(targets) if start is None else start]
        # the C code would read outside its tables
        check_token_ids(encoder_ids, self.vocab_size)
        check_token_ids([*text, *targets], self.output_size)
        sampling = sampling or Sampling()
        sampling.check_vocabulary(self.output_size)
        end = len(text) + (len(targets) or max_new_tokens)
        if encoder_ids and self.context is not None:
            end = self._limited_end(encoder_ids, end, targets)
        if self.cache.bounded and self.max_length < min(end, self.context or end):
            raise ValueError(
                f"a sequence of {end} tokens does not fit a batch with max_length {self.max_length}"
            )
        if len(encoder_ids) > self.max_length:
            raise ValueError(
                f"a prompt of {len(encoder_ids)} tokens does not fit a batch with max_length"
                f" {self.max_length}"
            )
        adapter_start, prompt = None, len(ids) - generated
        if self.invocation is not None:
            adapter_start = self.invocation.start(
                ids[:prompt], [*ids[prompt:], *targets] if targets else ()
            )
        self.count += 1
        drafter: Drafter = PromptLookup(speculate if self.runner.supports_drafts else 0)
        if draft is not None and self.runner.supports_drafts:
            drafter = draft.sequence(speculate or draft.MOST, end)
        if not targets:
            limits = self.limits if first is None else replace(self.limits, first=id_set(first))
            limits = limits.of_prompt(encoder_ids)
            if limits.restrict:
                limits = replace(limits, maximum=end - len(text))
                matcher = LimitedMatcher(limits, matcher)
        stop = stop or StopCriteria(frozenset(), (), None)
        output_start, beams = len(text) - generated, None
        if search is not None:
            beams, matcher = (
                Beams(
                    search,
                    sampling,
                    stop,
                    len(text),
                    output_start,
                    end - len(text),
                    limits_of(matcher),
                    renormalize=self.renormalize,
                ),
                None,
            )
        random = generator or torch.default_generator
        self.joining.append(
            BatchRow(
                self.count,
                encoder_ids,
                text,
                len(text),
                output_start,
                end,
                sampling,
                random,
                stop,
                drafter,
                list(targets),
                logprobs,
                top,
                like,
                adapter_start,
                None if matcher is None else ThreadedMatcher(matcher, self.masks),
                beams=beams,
            )
        )
        return self.count

    def _start_of(self, targets: Sequence[int]) -> int:
        """The decoder's first token, which config.json may not name. ValueError: it does not."""
        assert isinstance(self.model, EncoderDecoder)
        if targets:
            return int(self.model.decoder_inputs(torch.tensor([targets]))[0, 0])
        return self.model.decoder_start

    def _limited_end(self, prompt: Sequence[int], end: int, targets: Sequence[int]) -> int:
        """The maximum number of an encoder-decoder's tokens, whose context does not slide.

        ValueError: the prompt or the targets exceed the positions of the model.
        """
        assert self.context is not None
        longest = max(len(prompt), end if targets else 0)
        if longest > self.context:
            name = "prompt" if len(prompt) > self.context else "target"
            raise ValueError(
                f"a {name} of {longest} tokens exceeds the model's {self.context} positions:"
                " shorten or split the text"
            )
        return min(end, self.context)

    @torch.inference_mode()
    def retire(self, row: int) -> None:
        """Remove a sequence before its end. Does nothing if it has ended."""
        self.joining = [active for active in self.joining if active.key != row]
        for active in [active for active in reversed(self.rows) if active.key == row]:
            self._leave(active)

    def step(self) -> list[Event]:
        """As `advance`, but raises the error of a sequence (ValueError)."""
        events = self.advance()
        for event in events:
            if event.error is not None:
                raise event.error
        return events

    @torch.inference_mode()
    def advance(self, *, prefill: bool = True) -> list[Event]:
        """Run one step: at least one new token of each sequence, in order of admission, or the
        error that ends it.

        prefill: False to continue only the sequences whose prompt is complete.

        The error of one sequence, such as NaN logits or an unsatisfiable grammar, does not change
        other sequences. With chunked prefill, a sequence has no event until its prompt is complete.
        The others continue while the mask of a sequence's grammar is computed.
        """
        self._wait()
        events: list[Event] = []
        self.cached_tokens = {row.key: self.cached_tokens.get(row.key, 0) for row in self.rows}
        ready = [row for row in self.rows if row.can_continue]
        for row in ready:
            if row.logits is not None:
                logits, row.logits = row.logits, None
                events += self._continue([row], logits)
        ready = [row for row in ready if row.stop_reason is None]
        for rows in (
            [row for row in ready if not row.targets],
            [row for row in ready if row.targets],
        ):
            if rows:
                events += self._continue(rows, self._extend(rows))
        if prefill:
            self._join()
            events += self._prefill() if self.chunk is None else self._prefill_chunk(self.chunk)
        # from the last slot, so that no row moves to a slot that is freed next
        for row in [row for row in reversed(self.rows) if row.stop_reason]:
            self._leave(row)
        return events

    def _wait(self) -> None:
        """If no sequence can continue, wait for a mask or for a prefix on disk."""
        pending: list[Future[Any]] = [
            row.matcher.mask for row in self.rows if row.matcher and row.logits is not None
        ]
        pending += [row.loading for row in self.rows if row.in_prefill and row.loading is not None]
        if pending and len(pending) == len(self.rows) + len(self.joining):
            wait_for(pending, return_when=FIRST_COMPLETED)

    def _join(self) -> None:
        """Assign cache slots to new sequences."""
        rows, self.joining = self.joining, []
        for row in rows:
            row.slot = self.cache.join()
            self.rows.append(row)

    def _prefill(self) -> list[Event]:
        """Prefill the prompts of all new sequences together."""
        rows = [row for row in self.rows if row.in_prefill]
        if not rows:
            return []
        texts = {}
        for row in rows:
            begin = context_start(len(row.text), self.context)
            self.sharing.start_loading(row)
            texts[row.slot] = row.text[begin + self._begin(row) :]
            row.in_prefill = False
        return self._continue(rows, self._forward(texts))

    def _prefill_chunk(self, room: int) -> list[Event]:
        """Prefill about `room` prompt tokens: the shortest remainders first, but at least half for
        the oldest prompt.

        A short prompt does not wait for long ones, and a long one waits at most twice as long as by
        order of admission.
        """
        events: list[Event] = []
        rows = [row for row in self.rows if row.in_prefill]
        oldest = min(rows, key=lambda row: row.key, default=None)
        reserved = 0 if oldest is None else min(room // 2, self._remaining(oldest))
        for row in sorted(rows, key=lambda row: (self._remaining(row), row.key)):
            if row is oldest:
                reserved = 0
            if room > reserved and row.in_prefill:
                room -= self._prefill_row(row, room - reserved, events)
        return events

    def _remaining(self, row: BatchRow) -> int:
        """The number of prompt tokens to prefill, without a prefix that can be copied."""
        cached = self.cache.lengths[row.slot]
        text = len(row.text) - context_start(len(row.text), self.context) - cached
        return text if cached else text + len(row.encoder_ids)

    def _prefill_row(self, row: BatchRow, room: int, events: list[Event]) -> int:
        """Prefill at most `room` tokens of a prompt, or of another prompt whose beginning it will
        copy.

        An encoder computes its prompt at once. Returns the number of tokens. Others continue while
        a prefix is read from the disk.
        """
        count = 0
        if self.cache.lengths[row.slot] == 0:
            self.sharing.start_loading(row)
            if row.loading is not None and not row.loading.done():
                return 0
            leader, shared = self.sharing.leader(row)
            if leader is not None:
                count = self._prefill_tokens(
                    leader, min(room, shared - self.cache.lengths[leader.slot]), events
                )
                if self.cache.lengths[leader.slot] < shared:
                    return count
            self._begin(row)
            count += len(row.encoder_ids)
        return count + self._prefill_tokens(
            row, max(room - count, 1) if row.encoder_ids else room - count, events
        )

    def _prefill_tokens(self, row: BatchRow, room: int, events: list[Event]) -> int:
        """Prefill at most `room` tokens of a prompt that has begun. Returns their number."""
        begin = context_start(len(row.text), self.context) + self.cache.lengths[row.slot]
        ids = row.text[begin : begin + room]
        if ids:
            logits = self._forward({row.slot: ids})
            if begin + len(ids) == len(row.text):
                row.in_prefill = False
                events += self._continue([row], logits)
        return len(ids)

    def _begin(self, row: BatchRow) -> int:
        """Encode an encoder-decoder's prompt, and copy the longest common prefix. Returns its
        number of tokens.
        """
        if row.encoder_ids:
            self.runner.encode(row.encoder_ids, self.cache, row.slot)
        length = self.sharing.copy(row)
        if length is not None:
            self.cached_tokens[row.key] = length
        self.cache.adapter_starts[row.slot] = row.start_of_adapter(
            context_start(len(row.text), self.context)
        )
        return length or 0

    def _extend(self, rows: list[BatchRow]) -> Tensor:
        """Run the last token of each row and its draft or target tokens. Returns the logits after
        each of them.
        """
        for row in rows:
            length, room = len(row.text), self._room(row)
            if row.targets:
                row.draft = row.targets[length - row.start :][: min(room, CHUNK)]
            else:
                row.draft = row.drafter(
                    row.encoder_ids + row.text if row.encoder_ids else row.text,
                    min(room, MAX_TOKENS // len(rows) - 1),
                    len(rows),
                )
            begin = context_start(length, self.context)
            if begin > context_start(length - 1, self.context):
                self.cache.clear(row.slot)
                self.cache.adapter_starts[row.slot] = row.start_of_adapter(begin)
                row.drafter.restart()
                if before := row.text[begin:-1]:
                    self._forward({row.slot: before})
        texts = {row.slot: [row.text[-1], *row.draft] for row in rows}
        return self._forward(texts, every=True, exact=not rows[0].targets)

    def _forward(
        self, texts: dict[int, list[int]], every: bool = False, exact: bool = False
    ) -> Tensor:
        """The runner's `forward`. Drafters that read hidden states get them."""
        hidden = None
        if any(self.rows[slot].drafter.reads_hidden for slot in texts):
            tokens = sum(map(len, texts.values()))
            # The decoder writes float32 on the CPU, independent of PyTorch's defaults.
            hidden = torch.empty(tokens, self.runner.channels, dtype=torch.float32, device="cpu")
        logits = self.runner.forward(texts, self.cache, every, exact or self.exact, hidden)
        if hidden is not None:
            for slot, states in zip(
                texts, hidden.split([len(ids) for ids in texts.values()]), strict=True
            ):
                self.rows[slot].drafter.observe(states)
        return logits

    def _room(self, row: BatchRow) -> int:
        """Maximum number of draft or target tokens: limited by the sequence's end, the context, and
        the cache.
        """
        length = len(row.text)
        remaining = row.end - length - 1
        if not row.targets:
            remaining = min(remaining, self.cache.removable)
        if self.context is None:
            return remaining
        return min(remaining, context_start(length, self.context) + self.context - length)

    def _continue(self, rows: list[BatchRow], logits: Tensor) -> list[Event]:
        """Choose each row's next token, and continue while it equals the next draft token.

        Each token is chosen from the logits after the accepted tokens, so that drafts do not change
        the output.
        """
        events: list[Event] = []
        starts = [0, *accumulate(1 + len(row.draft) for row in rows)]
        for members, indices in searches_of(rows, starts):
            events += self._search(members, [logits[index] for index in indices])
        numbered = zip(rows, starts, strict=False)
        first = {row.key: start for row, start in numbered if row.beams is None}
        rows = [row for row in rows if row.beams is None]
        accepted = dict.fromkeys(first, 0)
        active = []
        for row in rows:
            part = logits[first[row.key] :][: 1 + len(row.draft)]
            if row.targets:
                events += self._score(row, part)
            elif row.matcher is not None and not row.matcher.ready:
                row.logits = part.clone()
            else:
                active.append(row)
        while active:
            selected = logits
            if len(active) < len(logits):
                selected = logits[[first[row.key] + accepted[row.key] for row in active]]
            matched = []
            for row, token in zip(active, choose_tokens(active, selected), strict=True):
                event = self._add(row, token)
                events.append(event)
                if row.stop_reason is None and row.draft[accepted[row.key] :][:1] == [event.id]:
                    accepted[row.key] += 1
                    matched.append(row)
            active = matched
        for row in [row for row in rows if row.logits is None]:
            if row.draft and not row.targets:
                self.cache.truncate(row.slot, len(row.draft) - accepted[row.key])
                row.drafter.update(accepted[row.key], len(row.draft))
            row.draft = []
        return events

    def _search(self, rows: list[BatchRow], logits: Sequence[Tensor]) -> list[Event]:
        """Extend a sequence's beams, in their order, by the logits (V,) of each."""
        first, beams = rows[0], rows[0].beams
        assert beams is not None
        begins, count = not first.forked, beams.settings.beams
        if len(self.logprobs) < count:  # one buffer for all searches
            self.logprobs = logits[0].new_empty((count, len(logits[0])), dtype=torch.float32)
        try:
            self.rows += extend_beams(rows, logits, self.cache, self.logprobs[:count])
        except ValueError as error:
            return [self._fail(row, error) for row in rows][:1]
        # only the prompt: beams share its positions
        if begins and first.forked and self.prefixes.size:
            self.sharing.store(first)
        if first.stop_reason is None:
            return []
        hypotheses = tuple(beams.hypotheses)
        return [Event(first.key, end=hypotheses[0].end, hypotheses=hypotheses)]

    def _add(self, row: BatchRow, token: NextToken | ValueError) -> Event:
        """Append a token to a row, or end the row with an error."""
        try:
            if isinstance(token, ValueError):
                raise token
            row.text.append(token.id)
            complete = row.matcher is not None and row.matcher.accept(token.id)
            complete = complete or row.stop.reached(row.text, row.start)
        except ValueError as error:
            return self._fail(row, error)
        end: Literal["stop", "length"] | None
        end = "stop" if complete else "length" if len(row.text) == row.end else None
        row.stop_reason = end
        return Event(row.key, token.id, token.logprob, end, token.top)

    def _fail(self, row: BatchRow, error: ValueError) -> Event:
        """End a row with an error."""
        row.stop_reason = "error"
        return Event(row.key, error=error)

    def _score(self, row: BatchRow, logits: Tensor) -> list[Event]:
        """Events for the next target tokens, one per row of logits (n, V)."""
        scored = len(row.text) - row.start
        ids = row.targets[scored : scored + len(logits)]
        row.text += ids
        row.stop_reason = "length" if len(row.text) == row.end else None
        ends: list[Any] = [None] * (len(ids) - 1) + [row.stop_reason]
        try:
            logprobs = logprobs_of(logits, ids)
        except ValueError as error:
            return [self._fail(row, error)]
        return [
            Event(row.key, *values)
            for values in zip(ids, logprobs, ends, top_logprobs(logits, row.top), strict=True)
        ]

    def _leave(self, row: BatchRow) -> None:
        """Free a row's slot. The last row moves to this slot."""
        if self.prefixes.size and row.stop_reason != "error" and not row.forked:
            self.sharing.store(row)
        self.cache.leave(row.slot)
        last = self.rows.pop()
        if last is not row:
            self.rows[row.slot], last.slot = last, row.slot
        if row.forked and not any(active.forked for active in self.rows):
            self.cache.unshare()


def check_token_ids(ids: Sequence[int], size: int) -> None:
    """ValueError: a token ID is outside a vocabulary of this size."""
    if ids and not 0 <= min(ids) <= max(ids) < size:
        raise ValueError(
            f"token IDs must be between 0 and {size - 1}, but range from {min(ids)} to {max(ids)}:"
            " use the tokenizer of this model"
        )
