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
from file_cases import CASES
from request_cases import REQUESTS
from safetensors.torch import load

import minhub_py
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.local import BUILTIN
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.serve.server import TEI_ROUTES
from r_bridge import convert, protocol

Target = Callable[[bytes, Path], None]
MODEL = BUILTIN / "shakespeare-gpt2"
# Stored inputs refer to positions: append only.
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
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v2/rerank",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/models/unload",
)
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


def small_file(data: bytes, folder: Path) -> None:
    """The first byte selects a kind of small JSON file, the rest is its content."""
    name = [*CASES][data[0] % len(CASES)] if data else "adapter"
    path = folder / name / CASES[name].name
    if not (folder / name).exists():
        (folder / name).mkdir()
        CASES[name].prepare(folder / name)
    path.unlink()  # it may be mapped
    path.write_bytes(data[1:])
    allowed(lambda: CASES[name].use(folder / name))


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
    """A client of a server whose model has a byte-level tokenizer and a chat template with tools,
    in this process.
    """
    from scripted import scripted_model

    from minhub_py.serve.catalog import Models
    from minhub_py.serve.run import BackgroundServer
    from minhub_py.serve.server import Server

    model, _ = scripted_model("hermes")
    OPEN.callback(model.engine.close)
    address = OPEN.enter_context(
        BackgroundServer(
            Server(Models([model]), max_body=100_000, ignore_unknown_fields=True), grace=0.2
        )
    )
    return OPEN.enter_context(httpx2.Client(base_url=address, timeout=60))


def body(data: bytes, folder: Path) -> None:
    """The first byte selects the route, the rest is the body."""
    answer(PATHS[data[0] % len(PATHS)] if data else PATHS[0], data[1:])


def answer(path: str, content: bytes) -> httpx2.Response:
    """The answer to a request. Failure: a server error, a stream that breaks off, or an error in
    another form.
    """
    try:
        response: httpx2.Response = server().post(path, content=content)
    except httpx2.TransportError as error:
        raise Failure(f"{path}: {type(error).__name__}: {error}, for {content[:300]!r}") from error
    if response.status_code >= 500 and response.status_code != 503:
        raise Failure(
            f"{path}: status {response.status_code}: {response.text[:300]}, for {content[:300]!r}"
        )
    if response.headers["content-type"] == "application/json":
        value = json.loads(response.text, parse_constant=invalid_constant)
        if response.status_code >= 400 and not message_of(path, value):
            raise Failure(f"{path}: the error has no message: {response.text[:300]}")
    elif response.status_code >= 400:
        raise Failure(f"{path}: the error has the type {response.headers['content-type']}")
    elif response.headers["content-type"].startswith(("text/event-stream", "application/x-ndjson")):
        for line in response.text.splitlines():
            text = line.removeprefix("data: ")
            if text.startswith("{") and (
                error := json.loads(text, parse_constant=invalid_constant).get("error")
            ):
                raise Failure(f"{path}: the stream has the error {error}, for {content[:300]!r}")
    return response


def message_of(path: str, error: Any) -> str:
    """The message in an error of the path's API; "" in another form."""
    if path.startswith("/v2/"):
        return str(error.get("message") or "")
    inner = error.get("error") or ""
    is_text = path.startswith("/api/") or path.rpartition("/")[2] in TEI_ROUTES
    return str(inner if is_text else inner.get("message") or "")


def invalid_constant(name: str) -> None:
    raise Failure(f"the answer contains {name}")


TARGETS: dict[str, Target] = {
    "safetensors": loads_a_file(WEIGHTS, use_model),
    "safetensors_header": safetensors_header,
    "pickled": pickled,
    "gguf": gguf,
    "config": loads_a_file("config.json", use_model),
    "tokenizer": loads_a_file("tokenizer.json", use_tokenizer),
    "small_file": small_file,
    "template": template,
    "body": body,
    "frame": frame,
}


def seeds(name: str, folder: Path) -> list[bytes]:
    """Correct inputs of a target, which the fuzzer mutates."""
    if name == "body":
        return [bytes([PATHS.index(path)]) + json.dumps(item).encode() for path, item in REQUESTS]
    if name == "small_file":
        examples = []
        for number, (title, case) in enumerate(CASES.items()):
            (folder / title).mkdir()
            case.prepare(folder / title)
            examples.append(bytes([number]) + (folder / title / case.name).read_bytes())
        return examples
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
