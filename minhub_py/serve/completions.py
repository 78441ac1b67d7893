"""OpenAI API: completions.

Source: OpenAI's API reference. lm-eval scores prompts with `echo` and `logprobs`.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from minhub_py.inference.sampling import Sampling
from minhub_py.serve.engine import Token, token_text
from minhub_py.serve.generation import Generation
from minhub_py.serve.models import ServedModel
from minhub_py.serve.openai import DONE, MAX_CHOICES, MAX_TOP_LOGPROBS, head_of, usage
from minhub_py.serve.replies import collect_replies
from minhub_py.serve.server import server_of
from minhub_py.serve.settings import parse_schema, parse_settings, parse_stream
from minhub_py.serve.streaming import respond, sse
from minhub_py.serve.validation import check_string, finite, invalid


async def completions(request: HTTPRequest) -> Response:  # noqa: PLR0915
    """POST /v1/completions."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    fields.reject("suffix")
    inputs = parse_prompts(served, fields.get("prompt"))
    settings = parse_settings(fields, served, chat=False, defaults=asdict(Sampling()))  # as the OpenAI API specifies
    schema = parse_schema(fields, "response_format")
    settings["grammar"] = None if schema is None else await served.grammar(schema or None, "response_format.schema")
    top = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    settings |= {"logprobs": top is not None, "top": top or 0}
    count = fields.integer("n", 1, MAX_CHOICES, 1) or 1
    fields.reject("best_of", harmless=(count,))
    check_prompts(served, len(inputs), count)
    echo = fields.boolean("echo")
    requested = fields.integer("max_tokens", 0, 2**31, 16)
    stream, usage_chunk = parse_stream(fields)
    if requested == 0 and not echo:
        raise invalid("max_tokens must be 1 or more, unless echo is true", "max_tokens")
    if echo and served.model.encoder_decoder:
        raise invalid("echo is not supported for encoder-decoder models: remove it", "echo")
    prompts = [await served.encode(prompt) if isinstance(prompt, str) else prompt for prompt in inputs]
    generation = Generation(served)
    for ids in prompts if requested else ():
        generation.add_choices(ids, served.max_new_tokens(ids, requested), count, **settings)
    generating = len(generation.requests)  # one request per choice; scoring requests follow
    scores: dict[int, int] = {}  # prompt -> request that scores it
    for number, ids in enumerate(prompts):
        if echo and top is not None and len(ids) > 1:
            served.max_new_tokens(ids[:-1], 1)
            scores[number] = len(generation.requests)
            generation.add(ids[:1], 0, targets=ids[1:], logprobs=True, top=max(top, 1))
    head = head_of("cmpl", served) | {"object": "text_completion"}
    echoed = [served.tokenizer.decode(ids) if echo else "" for ids in prompts]
    prompt_tokens = sum(map(len, prompts))

    def generated(tokens: Sequence[Token]) -> list[Token]:
        if echo:  # with the end token, which has no text: lm-eval expects max_tokens tokens after the prompt's
            return [replace(token, text="") if token.id in settings["stop_ids"] else token for token in tokens]
        return [token for token in tokens if token.id not in settings["stop_ids"]]

    def choice(index: int, text: str, tokens: Sequence[Token], end: str | None) -> dict[str, Any]:
        logprobs = None if top is None else completion_logprobs(tokens, top)
        return {"index": index, "text": text, "finish_reason": end, "logprobs": logprobs}

    def prompt_tokens_of(number: int, scored: Sequence[Token]) -> list[Token]:
        first_id = prompts[number][0]
        return [Token(first_id, token_text(served.tokenizer, first_id), None, ()), *scored]

    async def complete() -> dict[str, Any]:
        replies = await collect_replies(generation)
        choices = []
        for index in range(len(prompts) * count):
            number = index // count
            text, end, shown = echoed[number], "length", list[Token]()
            if echo and top is not None:
                shown = prompt_tokens_of(number, replies[scores[number]].tokens if number in scores else [])
            if index < generating:
                text, end = text + replies[index].text, replies[index].end
                shown += generated(replies[index].tokens)
            choices.append(choice(index, text, shown, end))
        return {**head, "choices": choices, "usage": usage(generation, prompt_tokens)}

    async def events() -> AsyncIterator[bytes]:
        unfinished = len(prompts) * count

        def chunk(data: dict[str, Any]) -> bytes:
            nonlocal unfinished
            unfinished -= data["finish_reason"] is not None
            final = {"usage": usage(generation, prompt_tokens)} if unfinished == 0 and not usage_chunk else {}
            return sse({**head, "choices": [data], **final})

        def echo_chunks(number: int, scored: Sequence[Token]) -> Iterator[bytes]:
            shown = [] if top is None else prompt_tokens_of(number, scored)
            for index in range(number * count, number * count + count):
                if echo or not requested:
                    yield chunk(choice(index, echoed[number], shown, None if requested else "length"))

        for number in range(len(prompts)):
            if number not in scores:
                for data in echo_chunks(number, ()):
                    yield data
        # The chunks of a prompt's choices follow the echoed prompt, which follows its scores.
        scored: dict[int, list[Token]] = {number: [] for number in scores}
        held: dict[int, list[dict[str, Any]]] = {number: [] for number in scores}
        async for index, delta in generation.deltas():
            if index < generating:
                choice_data = choice(index, delta.text, generated(delta.tokens), delta.end)
                if index // count in held:
                    held[index // count].append(choice_data)
                else:
                    yield chunk(choice_data)
                continue
            number = next(number for number, request in scores.items() if request == index)
            scored[number] += delta.tokens
            if delta.end is not None:
                for data in (*echo_chunks(number, scored[number]), *map(chunk, held.pop(number))):
                    yield data
        if usage_chunk:
            yield sse({**head, "choices": [], "usage": usage(generation, prompt_tokens)})
        yield DONE

    return await respond(request, generation, complete, events if stream else None)


def parse_prompts(served: ServedModel, value: Any) -> list[str | list[int]]:
    """Prompts: a string, a list of token IDs, or a list of either."""
    if value is None:
        value = ""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise invalid("prompt must be a string, a list of token IDs, or a list of either, not empty", "prompt")
    if type(values[0]) is int:
        return [served.check_ids(values)]
    check_prompts(served, len(values), 1)
    if any(value == [] for value in values):
        raise invalid("a prompt must have at least one token ID", "prompt")
    return [served.check_ids(value) if isinstance(value, list) else check_string(value, "prompt") for value in values]


def check_prompts(served: ServedModel, prompts: int, choices: int) -> None:
    """Reject more requests than half of the queue."""
    maximum = (served.engine.batch_size + served.engine.queue_size) // 2
    if prompts * choices > maximum:
        raise invalid(f"{prompts:,} prompts with n={choices} are too many: at most {maximum} in total", "prompt")


def completion_logprobs(tokens: Sequence[Token], top: int) -> dict[str, Any]:
    """Log-probabilities in the format of completions. The first token of an echoed prompt has none."""
    offsets, offset = [], 0
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
        "top_logprobs": [
            None if token.logprob is None else {text: finite(logprob) for _, text, logprob in reversed(token.top[:top])}
            for token in tokens
        ],
        "text_offset": offsets,
    }
