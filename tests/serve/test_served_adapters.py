"""Adapters of a served model: their names, replies and errors."""

from pathlib import Path

import click
import httpx2
import pytest
from adapters import random_adapter
from safetensors.torch import load_file
from served_models import alone, serving

from minhub_py import from_pretrained, tokenizer_from_pretrained
from minhub_py.cli.serving import load_served, parse_adapters
from minhub_py.serve.loading import served_models


def test_requests_name_an_adapter(folder: Path, tmp_path: Path) -> None:
    model = from_pretrained(folder)
    for seed, name in enumerate("ab"):
        random_adapter(model, tmp_path / name, seed)
    adapters = parse_adapters([f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}"], [str(folder)])
    loading = {"revision": "main", "device": "cpu", "dtype": "auto", "quantize": None}
    model, *loaded = load_served(str(folder), loading, adapters)
    networks = {"tiny": model, **{name: model.adapter(name) for name in model.adapters}}
    served = list(served_models(networks, *loaded, 60.0, max_requests=4, context=None))
    assert [entry.name for entry in served] == ["tiny", "a", "b"]
    try:
        with serving(*served) as address:
            listed = httpx2.get(f"{address}/v1/models").json()["data"]
            assert [(entry["id"], entry.get("parent")) for entry in listed] == [
                ("tiny", None),
                ("a", "tiny"),
                ("b", "tiny"),
            ]

            def complete(name: str) -> str:
                body = {
                    "model": name,
                    "prompt": "the cat",
                    "max_tokens": 12,
                    "temperature": 0,
                    "seed": 1,
                }
                body |= {"top_k": 0, "top_p": 1, "repetition_penalty": 1}
                reply = httpx2.post(f"{address}/v1/completions", json=body)
                assert reply.status_code == 200, reply.text
                text: str = reply.json()["choices"][0]["text"]
                return text

            ids = served[0].tokenizer.encode("the cat").ids
            texts = [alone(entry, ids, 12, 1, temperature=0) for entry in served]
            assert len(set(texts)) == 3
            assert [complete(name) for name in ("tiny", "a", "tiny+b")] == texts
            assert complete("tiny+a") == complete("a")
            unknown = httpx2.post(
                f"{address}/v1/completions", json={"model": "tiny+c", "prompt": "x"}
            )
            assert unknown.status_code == 404
            assert "available are tiny, a, b" in unknown.text
            unknown = httpx2.post(
                f"{address}/v1/completions", json={"model": "other+a", "prompt": "x"}
            )
            assert (
                "available are tiny, a, b; the adapter is a or tiny+a"
                in unknown.json()["error"]["message"]
            )
            shown = httpx2.get(f"{address}/api/tags").json()["models"]
            assert [entry["details"]["parent_model"] for entry in shown] == ["", "tiny", "tiny"]
            # An adapter has its factors and its cache in addition to the weights of the base.
            factors = sum(
                tensor.nbytes
                for tensor in load_file(tmp_path / "a" / "adapter_model.safetensors").values()
            )
            assert listed[1]["meta"]["size"] == factors + served[1].engine.cache_bytes
            assert listed[0]["meta"]["size"] > listed[1]["meta"]["size"]
    finally:
        for entry in served:
            entry.engine.close()


def test_activated_adapters_use_the_prefixes_of_their_base(folder: Path, tmp_path: Path) -> None:
    """A long text is computed once for the base and for each activated adapter."""
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(folder)
    for seed, (name, end) in enumerate({"a": "dog", "b": "house"}.items()):
        random_adapter(
            model,
            tmp_path / name,
            seed,
            alora_invocation_tokens=tuple(tokenizer.encode(f" {end}").ids),
        )
    random_adapter(model, tmp_path / "always", 2)
    paths = {name: str(tmp_path / name) for name in ("a", "b", "always")}
    loading = {"revision": "main", "device": "cpu", "dtype": "auto", "quantize": None}
    model, *loaded = load_served(str(folder), loading, paths)
    networks = {"tiny": model, **{name: model.adapter(name) for name in model.adapters}}
    served = list(served_models(networks, *loaded, 60.0, max_requests=2, context=None))
    by_name = {entry.name: entry for entry in served}
    text = "the cat and the man went to the sea"
    try:
        with serving(*served) as address:

            def cached(name: str, end: str) -> int:
                body = {"model": name, "prompt": text + end, "max_tokens": 8, "temperature": 0}
                reply = httpx2.post(f"{address}/v1/completions", json=body).json()
                alone_text = alone(
                    by_name[name], tokenizer.encode(text + end).ids, 8, 0, temperature=0
                )
                assert reply["choices"][0]["text"] == alone_text
                count: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
                return count

            length = len(tokenizer.encode(text).ids)
            assert cached("tiny", ".") == 0
            assert cached("a", " dog") == length
            assert cached("b", " house") == length
            assert cached("always", " dog") == 0
    finally:
        for entry in served:
            entry.engine.close()


def test_wrong_names_of_adapters() -> None:
    for texts, message in (
        (["a"], "use NAME=PATH"),
        (["a+b=x"], r"the name must not contain \+, which joins MODEL and NAME"),
        (["a=x", "a=y"], "another model has the name a"),
        (["m=x"], "another model has the name m"),
    ):
        with pytest.raises(click.UsageError, match=message):
            parse_adapters(texts, ["owner/m", "m"][1:])
    with pytest.raises(click.UsageError, match="one MODEL"):
        parse_adapters(["a=x"], ["one", "two"])
    with pytest.raises(click.UsageError, match="one MODEL"):
        parse_adapters(["a=x"], [])
