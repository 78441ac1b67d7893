"""The targets of `make fuzz`, which receive corrupt bytes, and the exceptions that are correct for
them.
"""

import json
import shutil
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import torch
from corruption import WEIGHTS, save, split_file
from safetensors.torch import load

import minhub_py
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.local import BUILTIN
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from r_bridge import convert, protocol

Target = Callable[[bytes, Path], None]
MODEL = BUILTIN / "shakespeare-gpt2"
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/embeddings",
)
BODIES = (
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1,
     "logit_bias": {"5": -1}, "stop": ["x"], "seed": 3, "logprobs": True, "top_logprobs": 2, "n": 1,
     "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"prompt": "Hi", "input": "Hi", "content": "Hi", "tokens": [1, 2], "max_tokens": 2, "stream": False, "echo": True,
     "options": {"num_predict": 2, "repeat_penalty": 1.1}, "messages": [{"role": "user", "content": "Hi"}]},
)  # fmt: skip
OPEN = ExitStack()  # the server and its client


class Failure(AssertionError):
    """A response that is neither a result nor a correct error."""


def allowed(function: Callable[[], object]) -> None:
    """Call a function that reads corrupt data: ValueError and OSError with a short message are
    correct.
    """
    try:
        function()
    except (ValueError, OSError) as error:
        if not str(error) or len(str(error)) > 4000:
            raise Failure(
                f"{type(error).__name__} with a message of {len(str(error))} characters"
            ) from error


def with_file(name: str, data: bytes, folder: Path) -> Path:
    """A tiny GPT-2 whose file `name` has other bytes."""
    if not (folder / WEIGHTS).exists():
        save("gpt2", folder)
        shutil.copy(MODEL / "tokenizer.json", folder)
    before = (folder / name).read_bytes()
    (folder / name).unlink()  # the previous file may be mapped
    (folder / name).write_bytes(data)
    (folder / f"{name}.before").write_bytes(before)
    return folder


def restored(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / f"{name}.before").replace(folder / name)


def loads_a_file(name: str, use: Callable[[Path], object]) -> Target:
    """The target that replaces a file of a model by the bytes."""

    def target(data: bytes, folder: Path) -> None:
        with_file(name, data, folder)
        try:
            allowed(lambda: use(folder))
        finally:
            restored(name, folder)

    return target


def use_model(folder: Path) -> None:
    model = minhub_py.from_pretrained(folder)
    model(torch.tensor([[0]]) % model.config.vocab_size)


def use_tokenizer(folder: Path) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    tokenizer.decode(encode(tokenizer, "ROMEO: a\n\u00e9"))


def safetensors_header(data: bytes, folder: Path) -> None:
    """The bytes are the header, with its correct length."""
    tensors = split_file((save("gpt2", folder / "whole") / WEIGHTS).read_bytes())[1]
    loads_a_file(WEIGHTS, use_model)(len(data).to_bytes(8, "little") + data + tensors, folder)


def pickled(data: bytes, folder: Path) -> None:
    """The bytes are the weights of a model whose file is a pickle of PyTorch."""
    shutil.copy(save("gpt2", folder / "whole") / "config.json", folder)
    path = folder / "pytorch_model.bin"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    allowed(lambda: use_model(folder))


def gguf(data: bytes, folder: Path) -> None:
    path = folder / "model.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    allowed(lambda: minhub_py.from_pretrained(path))
    allowed(lambda: minhub_py.tokenizer_from_pretrained(str(path)))


def template(data: bytes, folder: Path) -> None:
    """A chat template, which is rendered in the sandbox."""
    shutil.copy(MODEL / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_bytes(data)
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    allowed(lambda: chat_template_of(folder, tokenizer).render([{"role": "user", "content": "Hi"}]))


def frame(data: bytes, folder: Path) -> None:
    """A frame of R's socket; its payload is in R's serialization format."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(data[:60_000])  # fits the socket's buffer
        here.shutdown(socket.SHUT_WR)
        payload = b""

        def read() -> None:
            nonlocal payload
            _, _, payload = protocol.read_frame(there, 2**20)

        allowed(read)
    allowed(lambda: convert.loads(payload or data))


@cache
def server() -> Any:
    """A client of a server with a built-in model, both in this process."""
    from served_models import served

    from minhub_py.serve.catalog import Models
    from minhub_py.serve.run import BackgroundServer
    from minhub_py.serve.server import Server

    model = served("tiny", MODEL)
    OPEN.callback(model.engine.close)
    address = OPEN.enter_context(
        BackgroundServer(
            Server(Models([model]), max_body=100_000, ignore_unknown_fields=True), grace=0.2
        )
    )
    return OPEN.enter_context(httpx2.Client(base_url=address, timeout=60))


def body(data: bytes, folder: Path) -> None:
    """The first byte selects the route, the rest is the body."""
    path = PATHS[data[0] % len(PATHS)] if data else PATHS[0]
    answer = server().post(path, content=data[1:])
    if answer.status_code >= 500 and answer.status_code != 503:
        raise Failure(f"{path}: status {answer.status_code}: {answer.text[:300]}")
    if answer.headers["content-type"] == "application/json":
        json.loads(answer.text, parse_constant=invalid_constant)


def invalid_constant(name: str) -> None:
    raise Failure(f"the answer contains {name}")


TARGETS: dict[str, Target] = {
    "safetensors": loads_a_file(WEIGHTS, use_model),
    "safetensors_header": safetensors_header,
    "pickled": pickled,
    "gguf": gguf,
    "config": loads_a_file("config.json", use_model),
    "tokenizer": loads_a_file("tokenizer.json", use_tokenizer),
    "template": template,
    "body": body,
    "frame": frame,
}


def seeds(name: str, folder: Path) -> list[bytes]:
    """Correct inputs of a target, which the fuzzer mutates."""
    if name == "body":
        return [
            bytes([number]) + json.dumps(item).encode()
            for number in range(len(PATHS))
            for item in BODIES
        ]
    if name == "frame":
        values = [{"a": 1, "b": ["x", None]}, [1.5, True, b"raw", None], "text"]
        return [protocol.pack(protocol.CALL, 1, convert.dumps(value)) for value in values] + [
            convert.dumps(value) for value in values
        ]
    if name == "template":
        return [
            (
                b"{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{%"
                b" endfor %}"
            ),
            (
                b"{% set x = namespace(n=0) %}{% macro f(a, b=2) %}{{ a * b }}{% endmacro %}{{ f(3)"
                b" ~ messages[0]['content'][:2] }}{% if add_generation_prompt and x.n is number"
                b" %}{{ raise_exception('no') }}{% endif %}"
            ),
        ]
    if name == "gguf":
        from gguf_cases import reference
        from gguf_files import write

        return [write(folder / "seed.gguf", reference("llama")).read_bytes()]
    save("gpt2", folder)
    file = (folder / WEIGHTS).read_bytes()
    if name == "safetensors_header":
        return [file[8 : 8 + int.from_bytes(file[:8], "little")]]
    if name == "pickled":
        state = load(file)
        archive, stream = BytesIO(), BytesIO()
        torch.save(state, archive)
        torch.save(state, stream, _use_new_zipfile_serialization=False)
        return [archive.getvalue(), stream.getvalue()]
    if name == "tokenizer":
        byte_level = minhub_py.checkpoints.tokenizers.tokenizer.train_byte_level_bpe(
            ["ab ab a b\n\u00e9"] * 3, 262
        )
        return [(MODEL / "tokenizer.json").read_bytes(), byte_level.to_str().encode()]
    return [file if name == "safetensors" else (folder / "config.json").read_bytes()]
