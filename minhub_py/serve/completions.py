"""OpenAI API: completions.

Source: OpenAI's API reference. lm-eval scores prompts with `echo` and `logprobs`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.token_bytes import token_bytes, token_label
from minhub_py.checkpoints.tokenizers.tokenizer import TextStream
from minhub_py.inference.sampling import Sampling
from minhub_py.serve import known_fields
from minhub_py.serve.engine import GeneratedToken, token_text
from minhub_py.serve.forms import parse_form
from minhub_py.serve.generation import Generation
from minhub_py.serve.inputs import parse_items, resolved
from minhub_py.serve.known_fields import OUTPUT, reject_unsupported
from minhub_py.serve.languages import GREEDY, encode_text, parse_translation
from minhub_py.serve.models import ServedModel
from minhub_py.serve.openai import DONE, MAX_CHOICES, MAX_TOP_LOGPROBS, head_of, usage
from minhub_py.serve.server import server_of
from minhub_py.serve.settings import (
    limited,
    parse_max_tokens,
    parse_search_or_sampling,
    parse_stream,
    parse_truncation,
)
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import Fields, finite, invalid
from minhub_py.system.json_text import JsonObject

Part = tuple[
    int, str, list[GeneratedToken], str | None
]  # index of the choice, text, tokens, finish reason


async def completions(request: HTTPRequest) -> Response:
    """POST /v1/completions."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    stream, usage_chunk = parse_stream(fields)
    completion = await parse_completion(served, fields, stream)
    head = head_of("cmpl", served) | {"object": "text_completion"}
    generation, count = completion.generation, len(completion.prompts) * completion.count

    def counts() -> dict[str, object]:
        return usage(generation, sum(map(len, completion.prompts)))

    async def complete() -> dict[str, object]:
        texts, tokens, ends = (
            [""] * count,
            [list[GeneratedToken]() for _ in range(count)],
            [""] * count,
        )
        async for index, text, new, end in completion.parts():
            texts[index] += text
            tokens[index] += new
            ends[index] = end or ends[index]
        choices = [
            completion.choice(*values)
            for values in zip(range(count), texts, tokens, ends, strict=True)
        ]
        return {**head, "choices": choices, "usage": counts()}

    async def events() -> AsyncIterator[bytes]:
        unfinished = count
        async for index, text, tokens, end in completion.parts():
            unfinished -= end is not None
            final = {"usage": counts()} if unfinished == 0 and not usage_chunk else {}
            yield sse({**head, "choices": [completion.choice(index, text, tokens, end)], **final})
        if usage_chunk:
            yield sse({**head, "choices": [], "usage": counts()})
        yield DONE

    return await respond(request, generation, complete, events if stream else None)


async def parse_completion(served: ServedModel, fields: Fields, stream: bool) -> "Completion":
    """The completion that a request describes."""
    value = fields.get("prompt")
    items = parse_items("" if value is None else value, "prompt")
    count = fields.integer("n", 1, MAX_CHOICES, 1) or 1
    has_text = any(isinstance(item, str) for item in items)
    translation = parse_translation(fields, served, text=has_text)
    # as the OpenAI API specifies
    defaults = asdict(Sampling()) if translation is None else GREEDY
    settings = parse_search_or_sampling(
        fields, served, count, stream, chat=False, defaults=defaults
    )
    form, name = parse_form(fields)
    rules = settings["stop_rules"]
    settings["stop_rules"] = replace(
        rules, skip_special=fields.boolean("skip_special_tokens", True)
    )
    top = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    fields.reject("best_of", harmless=(count,))
    check_prompts(served, len(items), count)
    echo, special = fields.boolean("echo"), fields.boolean("add_special_tokens", True)
    max_tokens = 0 if fields.get("max_tokens") == 0 else parse_max_tokens(fields, "max_tokens")
    if max_tokens is None:
        max_tokens = 2**31 if fields.get("n_predict") == -1 else 16
    truncation = parse_truncation(fields)
    reject_unsupported(fields, OUTPUT)
    fields.finish(known_fields.COMPLETION)
    if max_tokens == 0 and not echo:
        raise invalid("max_tokens must be 1 or more, unless echo is true", "max_tokens")
    if echo and served.model.encoder_decoder:
        raise invalid("echo is not supported for encoder-decoder models: remove it", "echo")
    settings = limited(
        settings, None if form is None else await served.grammar(form, name), max(max_tokens, 1)
    )
    settings |= {} if translation is None else translation.settings
    prompts = []
    for item in items:
        prompt = await resolved(served, item, "prompt")
        if isinstance(prompt, str) and translation is not None:
            ids = await encode_text(served, translation, prompt)
        elif isinstance(prompt, str):
            ids = await served.encode(
                prompt, special=special, truncation=truncation, reply=max_tokens
            )
        else:
            ids = served.truncated(prompt, truncation, max_tokens)
            served.check_length(ids)
        prompts.append(ids)
    return Completion(served, prompts, count, max_tokens, echo, top, settings)


@dataclass(eq=False)
class Completion:
    """Prompts with `count` choices each, which have consecutive indices.

    max_tokens: maximum number of new tokens; 0 only echoes the prompts.
    echo: begin each choice with its prompt.
    top: number of most likely tokens at each position; None: no log-probabilities.
    settings: of `engine.Request`.
    """

    served: ServedModel
    prompts: list[list[int]]
    count: int
    max_tokens: int
    echo: bool
    top: int | None
    settings: JsonObject

    def __post_init__(self) -> None:
        self.generation = Generation(self.served)
        self.echoes = [
            self.served.tokenizer.decode(ids) if self.echo else "" for ids in self.prompts
        ]
        settings = self.settings | {"logprobs": self.top is not None, "top": self.top or 0}
        for ids in self.prompts if self.max_tokens else ():
            max_new_tokens = self.served.max_new_tokens(ids, self.max_tokens)
            self.generation.add_choices(ids, max_new_tokens, self.count, **settings)
        self.scored: dict[int, int] = {}  # request that scores a prompt -> number of the prompt
        for number, ids in enumerate(self.prompts):
            if self.echo and self.top is not None and len(ids) > 1:
                self.served.max_new_tokens(ids[:-1], 1)
                self.scored[len(self.generation.requests)] = number
                self.generation.add(
                    ids[:1], 0, targets=ids[1:], logprobs=True, top=max(self.top, 1)
                )

    async def parts(self) -> AsyncIterator[Part]:
        """The parts of all choices. Generated text follows the echoed prompt, which follows its
        scores.
        """
        for number in sorted(set(range(len(self.prompts))) - set(self.scored.values())):
            for part in self._echoed(number, []):
                yield part
        scores: dict[int, list[GeneratedToken]] = {number: [] for number in self.scored.values()}
        held: dict[int, list[Part]] = {number: [] for number in scores}
        async for index, delta in self.generation.deltas():
            if (scored := self.scored.get(index)) is None:
                number = index // self.count
                tokens = [
                    replace(token, offset=token.offset + len(self.echoes[number]))
                    for token in delta.tokens
                ]
                part = (index, delta.text, self._shown(tokens), delta.end)
                if (waiting := held.get(number)) is None:
                    yield part
                else:
                    waiting.append(part)
                continue
            scores[scored] += delta.tokens
            if delta.end is not None:
                for part in (*self._echoed(scored, scores[scored]), *held.pop(scored)):
                    yield part

    def _echoed(self, number: int, scores: Sequence[GeneratedToken]) -> Iterator[Part]:
        """The prompt as the first part of its choices."""
        if not self.echo:
            return
        ids, tokenizer = self.prompts[number], self.served.tokenizer
        first = GeneratedToken(ids[0], token_text(tokenizer, ids[0]), None, ())
        length = len(TextStream(tokenizer).add(ids[0]))
        following = [replace(token, offset=token.offset + length) for token in scores]
        tokens = [] if self.top is None else [first, *following]
        for index in range(number * self.count, (number + 1) * self.count):
            yield index, self.echoes[number], tokens, None if self.max_tokens else "length"

    def _shown(self, tokens: Sequence[GeneratedToken]) -> list[GeneratedToken]:
        """New tokens whose log-probabilities a response contains."""
        ends = self.settings["stop_ids"]
        # with the end token, which has no text: lm-eval expects max_tokens tokens after the
        # prompt's
        if self.echo:
            return [replace(token, text="") if token.id in ends else token for token in tokens]
        return [token for token in tokens if token.id not in ends]

    def choice(
        self, index: int, text: str, tokens: Sequence[GeneratedToken], end: str | None
    ) -> dict[str, object]:
        """A choice, or a part of it, in the format of the API."""
        logprobs = (
            None
            if self.top is None
            else completion_logprobs(self.served.tokenizer, tokens, self.top)
        )
        return {"index": index, "text": text, "finish_reason": end, "logprobs": logprobs}


def check_prompts(served: ServedModel, prompts: int, choices: int) -> None:
    """Reject more requests than half of the queue."""
    maximum = (served.engine.batch_size + served.engine.queue_size) // 2
    if prompts * choices > maximum:
        raise invalid(
            f"{prompts:,} prompts with n={choices} are too many: at most {maximum} in total",
            "prompt",
        )


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[GeneratedToken], top: int
) -> dict[str, object]:
    """Log-probabilities in the format of completions. An echoed prompt's first token has none."""

    def label(id: int, text: str) -> str:
        return token_label(token_bytes(tokenizer, id, text))

    return {
        "tokens": [label(token.id, token.text) for token in tokens],
        "token_logprobs": [
            None if token.logprob is None else finite(token.logprob) for token in tokens
        ],
        "top_logprobs": [
            (
                None
                if token.logprob is None
                else {
                    label(id, text): finite(logprob)
                    for id, text, logprob in reversed(token.top[:top])
                }
            )
            for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }
