"""Small models with a chat template, as `minhub serve` runs them, and the texts that they must
return.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import torch

from minhub_py import generate, save_pretrained
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, read_tokenizer
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.serve.catalog import Models
from minhub_py.serve.engine import Engine
from minhub_py.serve.models import ServedModel
from minhub_py.serve.run import BackgroundServer
from minhub_py.serve.server import Server

CONTEXT, BATCH_SIZE, QUEUE_SIZE = 256, 4, 40
# Values of wrong types for the fields of requests.
WRONG = [
    None,
    True,
    -1,
    2**70,
    0.5,
    "x",
    "",
    [],
    [1],
    [None],
    {},
    {"a": 1},
    "\ud800",
    [["x"]],
    [[2**40]],
]
RECOMMENDED = {"temperature": 0.9, "top_k": 200, "top_p": 0.97, "repetition_penalty": 1.1}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if messages[-1].content"
    " == 'refuse me' %}{{ raise_exception('no thanks') }}{% endif %}{% if mood %}<{{ mood }}{{"
    " reasoning_effort }}>{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def large(model):
    """The model with weights so large that a wrong key or position changes the tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn(parameter.shape)
                * (0.3 if parameter.dim() == 1 else parameter.shape[1] ** -0.5)
            )
    return model


def write_checkpoint(folder: Path, bpe_folder: Path, model) -> Path:
    save_pretrained(model, folder, read_tokenizer(bpe_folder))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def served(name: str, folder: Path, **settings) -> ServedModel:
    model, tokenizer = from_pretrained(folder), read_tokenizer(folder)
    engine = Engine(
        model,
        tokenizer,
        **{"batch_size": BATCH_SIZE, "max_length": CONTEXT, "queue_size": QUEUE_SIZE, **settings},
    )
    return ServedModel(name, model, tokenizer, chat_template_of(folder, tokenizer), engine, 60)


def alone(served: ServedModel, ids: list[int], count: int, seed: int, **settings) -> str:
    """The text that `generate` returns for a prompt."""
    [new] = generate(served.model, [ids], count, seed=seed, **settings)
    if new[-1] in served.end_ids:
        new.pop()
    # without an incomplete character at the end
    return "".join(decode_stream(served.tokenizer, new, ids))


def in_chat(
    served: ServedModel, messages: list[dict[str, str]], count: int, seed: int, **settings
) -> str:
    """The reply that `generate` returns for a conversation, with the model's default sampling
    settings.
    """
    return alone(
        served, served.template.encode(messages), count, seed, **{**served.sampling, **settings}
    )


@contextmanager
def serving(*models: Any, grace: float = 0.2, **settings: Any) -> Iterator[str]:
    """The address of a server with loaded models, or with a catalog."""
    catalog = models[0] if models and isinstance(models[0], Models) else Models(models)
    with BackgroundServer(Server(catalog, **settings), grace=grace) as address:
        yield address


@contextmanager
def connected(*models: Any, **settings: Any) -> Iterator[httpx2.Client]:
    """A client of a server with these models."""
    with (
        serving(*models, **settings) as address,
        httpx2.Client(base_url=address, timeout=60) as http,
    ):
        yield http


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def wait(condition) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def raw(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def post(body: bytes, length: int | None = None) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        % (length or len(body))
        + body
    )


LONG = json.dumps({"prompt": "Once upon a time", "max_tokens": 240, "ignore_eos": True}).encode()


class BrokenError(Exception):
    pass


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "kind": {"enum": ["cat", "dög"]},
        "loud": {"type": "boolean"},
    },
    "required": ["name", "age", "kind", "loud"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "person", "strict": True, "schema": PERSON},
}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        list(person) == ["name", "age", "kind", "loud"]
        and isinstance(person["name"], str)
        and type(person["age"]) is int
        and person["kind"] in ("cat", "dög")
        and type(person["loud"]) is bool
    )
