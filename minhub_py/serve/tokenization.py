"""Tokenizer routes in the formats of llama.cpp (`content`) and vLLM (`prompt`, `messages`) at the
same time.

lm-eval uses vLLM's format, so that it needs neither the model's files nor transformers.
"""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from minhub_py.checkpoints.tokenizers.paired import source_tokenizer
from minhub_py.checkpoints.tokenizers.token_texts import token_texts
from minhub_py.serve.known_fields import PROMPT
from minhub_py.serve.management import described
from minhub_py.serve.messages import encode_input, parse_chat
from minhub_py.serve.server import server_of
from minhub_py.serve.slices import SLICE
from minhub_py.serve.streaming import respond_with_lists
from minhub_py.serve.validation import Fields, invalid


async def tokenize(request: HTTPRequest) -> Response:
    """POST /tokenize: the token IDs of a text, or of a conversation with the beginning of a reply.

    `content` (llama.cpp): without special tokens, unless `add_special`; with_pieces adds their
    texts. `prompt` (vLLM): with special tokens, unless `add_special_tokens` is false;
    return_token_strs adds their texts. `messages` (vLLM): with the chat template.
    """
    served, fields = await server_of(request).read_with_model(request)
    name = "prompt" if fields.get("prompt") is not None else "content"
    if fields.get("messages") is not None:
        if served.task != "completion":
            raise invalid(
                f"{served.name} has no chat template: use prompt instead of messages", "messages"
            )
        chat = parse_chat(fields, served)
        finish(fields)
        ids = await encode_input(served, chat)
    else:
        special = fields.boolean(
            "add_special_tokens", fields.boolean("add_special", name == "prompt")
        )
        finish(fields)
        ids = await served.tokenize(fields.string(name) or "", name, add_special_tokens=special)
    lists: dict[str, Iterable[object]] = {"tokens": ids}
    with_pieces = fields.boolean("with_pieces")
    if with_pieces or fields.boolean("return_token_strs"):
        texts, tokenizer = list[str](), source_tokenizer(served.tokenizer)
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            texts += await served.texts.run(lambda part=part: token_texts(tokenizer, part))  # type: ignore[misc]
        if with_pieces:
            lists["tokens"] = (
                {"id": id, "piece": text} for id, text in zip(ids, texts, strict=True)
            )
        else:
            lists["token_strs"] = texts
    counts = {"count": len(ids), "max_model_len": served.engine.max_length}
    return await respond_with_lists(request, lists, counts)


def finish(fields: Fields) -> None:
    """Reject unknown fields. llama.cpp's parse_special is always true here."""
    fields.reject("parse_special", harmless=(True,), empty=False)
    fields.reject("chat_template")
    fields.finish(
        PROMPT
        | {
            "add_special",
            "add_special_tokens",
            "content",
            "prompt",
            "return_token_strs",
            "with_pieces",
        }
    )


async def detokenize(request: HTTPRequest) -> Response:
    """POST /detokenize: the text of `tokens`, as `content` (llama.cpp) and `prompt` (vLLM)."""
    served, fields = await server_of(request).read_with_model(request)
    tokens = fields.get("tokens", list[Any])
    fields.finish()
    if tokens is None:
        raise invalid("tokens must be a list of token IDs", "tokens")
    ids = served.check_ids(tokens)
    # Only batch methods release the GIL.
    [text] = await served.texts.run(
        lambda: served.tokenizer.decode_batch([ids], skip_special_tokens=False)
    )
    return JSONResponse({"content": text, "prompt": text})


async def tokenizer_info(request: HTTPRequest) -> Response:
    """GET /tokenizer_info: special tokens by name, the chat template and the vocabulary's size, as
    in vLLM.

    `model` in the query selects another loaded model than the first.
    """
    served = await described(request)
    if served is None:
        raise invalid(
            "no model is loaded: load one with POST /models/load", "model", "model_not_loaded"
        )
    tokens = {
        f"{name}_token": served.template.tokens.get(f"{name}_token")
        for name in ("bos", "eos", "pad", "unk")
    }
    if tokens["eos_token"] is None and served.task == "completion":
        tokens["eos_token"] = next(
            (served.tokenizer.id_to_token(id) for id in sorted(served.end_ids)), None
        )
    return JSONResponse(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **served.template.tokens,
            **tokens,
            "chat_template": served.template.templates.get("default"),
            "vocab_size": served.model.config.vocab_size,
            "model_max_length": served.engine.max_length,
        }
    )
