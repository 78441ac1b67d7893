"""Every field of a request is used, has no effect on the reply, or is rejected by name."""

import contextlib
import json
from collections.abc import Iterator

import httpx2
import pytest
from served_models import connected, in_chat, serving, user

from minhub_py.serve import known_fields
from minhub_py.serve.app import OLLAMA_POSTS, POSTS
from minhub_py.serve.models import ServedModel
from minhub_py.serve.server import TEI_ROUTES

CHAT = {"messages": user("Hi"), "max_tokens": 4, "seed": 1}
BODIES: dict[str, dict] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4, "seed": 1},
    "/v1/messages": {"messages": user("Hi"), "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": user("Hi")},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/systemone": {
        "state": "Hi",
        "questions": {"q": {"type": "choice", "criteria": {"a": "b", "c": None}}},
    },
    "/v1/models/load": {},
    "/v1/tokenize": {"content": "Hi"},
    "/v1/detokenize": {"tokens": [1]},
    "/v1/apply-template": {"messages": user("Hi")},
    "/api/chat": {"messages": user("Hi"), "options": {"num_predict": 4}, "stream": False},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 4}, "stream": False},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
}


def message(response: httpx2.Response) -> str:
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.fixture(scope="module")
def lenient(main_model: ServedModel) -> Iterator[httpx2.Client]:
    """A client of a server that ignores unknown fields."""
    with connected(main_model, ignore_unknown_fields=True) as client:
        yield client


def test_the_table_of_bodies_has_all_routes() -> None:
    """test_embedding_routes.py covers reranking, test_encoder_routes.py the heads of encoders, and
    test_models_on_demand.py the routes that change the server.
    """
    routes = {f"/v1{path}" for path in POSTS} | {f"/api{path}" for path in OLLAMA_POSTS}
    heads = {f"/v1/{name}" for name in TEI_ROUTES}
    assert routes == {*BODIES, *heads, "/v1/rerank", "/v1/models/unload", "/api/pull"}


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_rejected_unless_the_server_ignores_them(
    http, lenient, path: str
) -> None:
    body = {"model": "tiny", **BODIES[path]}
    assert http.post(path, json=body).status_code == 200
    for value in (False, 0, 0.5, "x", [0], {"a": 1}, True):
        response = http.post(path, json={**body, "imaginary": value})
        assert response.status_code == 400
        assert (
            message(response)
            == "imaginary is unknown: remove it, or start the server with --ignore-unknown-fields"
        )
        assert lenient.post(path, json={**body, "imaginary": value}).status_code == 200
    empty = {f"imaginary{number}": value for number, value in enumerate((None, "", [], {}))}
    assert http.post(path, json={**body, **empty}).status_code == 200


def test_messages_about_unknown_fields_name_the_field_and_a_similar_one(http) -> None:
    response = http.post("/v1/chat/completions", json={**CHAT, "max_token": 3})
    assert message(response).startswith(
        "max_token is unknown: did you mean max_tokens? Otherwise remove it, or"
    )
    assert response.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": "max_token",
        "code": "unknown_field",
    }
    body = {"model": "tiny", **BODIES["/api/chat"]}
    assert "did you mean options.temperature?" in message(
        http.post("/api/chat", json={**body, "temperature": 1})
    )
    options = {"options": {"num_predicted": 3}}
    assert "options.num_predicted is unknown: did you mean" in message(
        http.post("/api/chat", json=body | options)
    )
    assert "unknown" in message(http.post("/v1/completions", json={"prompt": "Hi", "\x1b[2J": 1}))
    assert "\x1b" not in http.post("/v1/completions", json={"prompt": "Hi", "\x1b[2J": 1}).text


UNSUPPORTED = [
    ("/v1/chat/completions", {"chat_template": "x"}), ("/v1/responses", {"use_beam_search": True}),
    ("/v1/chat/completions", {"mirostat": 2}), ("/v1/chat/completions", {"dry_multiplier": 0.8}),
    ("/v1/chat/completions", {"xtc_probability": 0.5}), ("/v1/chat/completions", {"top_a": 0.2}),
    ("/v1/chat/completions", {"lora": [{"id": 0, "scale": 1}]}), ("/v1/chat/completions", {"typical_p": 0.5}),
    ("/v1/chat/completions", {"modalities": ["text", "audio"]}), ("/v1/chat/completions", {"verbosity": "low"}),
    ("/v1/chat/completions", {"echo": True}), ("/v1/chat/completions", {"best_of": 3}),
    ("/v1/chat/completions", {"add_special_tokens": True}), ("/v1/chat/completions", {"web_search_options": {"a": 1}}),
    ("/v1/chat/completions", {"repeat_last_n": 64, "repeat_penalty": 1.1}),
    ("/v1/completions", {"suffix": "x"}), ("/v1/completions", {"prompt_logprobs": 1}),
    ("/v1/completions", {"spaces_between_special_tokens": False}), ("/v1/completions", {"top_logprobs": 2}),
    ("/v1/responses", {"background": True}), ("/v1/responses", {"previous_response_id": "x"}),
    ("/v1/responses", {"top_logprobs": 2}), ("/v1/responses", {"include": ["message.output_text.logprobs"]}),
    ("/v1/responses", {"text": {"verbosity": "high"}}),
    ("/v1/messages", {"mcp_servers": [{"name": "x"}]}), ("/v1/messages", {"container": "x"}),
    ("/api/chat", {"logprobs": True}), ("/api/generate", {"template": "x"}), ("/api/generate", {"images": ["x"]}),
    ("/api/chat", {"options": {"mirostat": 1}}), ("/api/chat", {"options": {"tfs_z": 0.5}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), UNSUPPORTED)
def test_unsupported_fields_are_rejected_by_name(http, lenient, path: str, fields: dict) -> None:
    """Also by a server that ignores unknown ones."""
    [name, *_] = fields
    name = next(iter(fields[name])) if isinstance(fields[name], dict) else name
    for client in (http, lenient):
        response = client.post(path, json={"model": "tiny", **BODIES[path], **fields})
        assert response.status_code == 400
        assert "not supported" in message(response)
        assert name in message(response)


# What clients send with values that do not change the reply.
NEUTRAL: dict[str, dict] = {
    "/v1/chat/completions": {
        "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "x",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "stream_options": {"include_obfuscation": False},
        "parallel_tool_calls": False, "tool_choice": "none", "functions": [], "function_call": "none",
        "modalities": ["text"], "verbosity": "medium", "prediction": {"type": "content", "content": "Hi"},
        "reasoning_format": "auto", "mirostat": 0, "mirostat_tau": 5, "dry_multiplier": 0, "dry_base": 1.75,
        "xtc_probability": 0, "xtc_threshold": 0.1, "top_a": 0, "typical_p": 1, "tfs_z": 1, "top_n_sigma": -1,
        "repeat_penalty": 1, "repeat_last_n": 64, "n_probs": 0, "cache_prompt": True, "id_slot": -1, "lora": [],
        "use_beam_search": False, "length_penalty": 1.0, "best_of": 1, "echo": False, "min_tokens": 0,
        "early_stopping": False, "no_repeat_ngram_size": 0,
        "guided_json": None, "stop_token_ids": [], "bad_words": [], "add_generation_prompt": True,
        "continue_final_message": False, "documents": [], "priority": 0, "samplers": [], "min_keep": 0,
    },
    "/v1/responses": {
        "store": False, "include": ["reasoning.encrypted_content"], "service_tier": "auto", "truncation": "disabled",
        "metadata": {}, "reasoning": {"summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "max_tool_calls": 3, "prompt_cache_key": "x", "user": "me", "parallel_tool_calls": True, "background": False,
    },
    "/v1/messages": {
        "metadata": {"user_id": "x"}, "service_tier": "auto", "cache_control": {"type": "ephemeral", "ttl": "5m"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "mcp_servers": [],
        "tools": [], "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    },
    "/v1/completions": {"user": "me", "best_of": 1, "suffix": "", "stream_options": None, "prompt_logprobs": None},
    "/v1/embeddings": {"user": "me", "encoding_format": "float", "truncate_prompt_tokens": None},
    "/api/chat": {"keep_alive": "5m", "tools": [], "truncate": True, "shift": True, "format": ""},
}  # fmt: skip


@pytest.mark.parametrize("path", NEUTRAL)
def test_fields_without_an_effect_are_accepted(http, path: str) -> None:
    response = http.post(path, json={"model": "tiny", **BODIES[path], **NEUTRAL[path]})
    assert response.status_code == 200, response.text


def test_neutral_settings_of_other_servers_do_not_change_the_reply(
    http, main_model: ServedModel
) -> None:
    expected = in_chat(main_model, user("Hi"), 20, 1, temperature=0.7, repetition_penalty=1.0)
    body = {**CHAT, **NEUTRAL["/v1/chat/completions"], "max_tokens": 20, "temperature": 0.7}
    assert (
        http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        == expected
    )


def names_of(*types: type) -> set[str]:
    return {
        name
        for each in types
        for base in (each, *getattr(each, "__orig_bases__", ()))
        for name in getattr(base, "__annotations__", {})
    }


def test_every_field_of_the_clients_is_known(http) -> None:
    """Used, without effect, or named as unsupported; never unknown. The names are those of the
    installed clients.
    """
    from anthropic.types import MessageCountTokensParams, beta
    from anthropic.types.message_create_params import MessageCreateParamsBase
    from ollama import _types as ollama
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase as Chat
    from openai.types.completion_create_params import CompletionCreateParamsBase as Completion
    from openai.types.embedding_create_params import EmbeddingCreateParams
    from openai.types.responses.input_token_count_params import InputTokenCountParams
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    names = {
        "/v1/chat/completions": names_of(Chat),
        "/v1/completions": names_of(Completion),
        "/v1/responses": names_of(ResponseCreateParamsBase),
        "/v1/embeddings": names_of(EmbeddingCreateParams),
        "/v1/responses/input_tokens": names_of(InputTokenCountParams),
        "/v1/messages": names_of(
            MessageCreateParamsBase, beta.message_create_params.MessageCreateParamsBase
        ),
        "/v1/messages/count_tokens": names_of(
            MessageCountTokensParams, beta.message_count_tokens_params.MessageCountTokensParams
        ),
        "/api/chat": {*ollama.ChatRequest.model_fields},
        "/api/generate": {*ollama.GenerateRequest.model_fields},
        "/api/embed": {*ollama.EmbedRequest.model_fields},
        "/api/show": {*ollama.ShowRequest.model_fields},
    }
    for path, fields in names.items():
        assert len(fields) > 1 or path == "/api/show"
        for name in fields - BODIES[path].keys():
            response = http.post(path, json={"model": "tiny", **BODIES[path], name: [1]})
            assert "unknown" not in response.text or name == "model", (path, name, response.text)
    for name in ollama.Options.model_fields:
        body = {"model": "tiny", **BODIES["/api/chat"], "options": {"num_predict": 2, name: 1}}
        assert "unknown" not in http.post("/api/chat", json=body).text, name


def test_a_field_is_in_one_group() -> None:
    groups = (
        known_fields.GENERATION,
        known_fields.SAMPLING,
        known_fields.OUTPUT,
        known_fields.FIXED,
    )
    names = [name for group in groups for name in group]
    assert len(set(names)) == len(names)


def test_openai_anthropic_and_ollama_send_their_fields(main_model: ServedModel) -> None:
    import anthropic
    import ollama
    import openai

    with serving(main_model) as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
            shared = {
                "model": "tiny",
                "metadata": {"a": "b"},
                "store": True,
                "user": "me",
                "service_tier": "auto",
                "safety_identifier": "x",
                "prompt_cache_key": "k",
            }
            reply = client.chat.completions.create(
                **shared, messages=user("Hi"), max_completion_tokens=4, seed=3
            )
            assert reply.choices[0].message.content == in_chat(main_model, user("Hi"), 4, 3)
            stream = {
                "stream": True,
                "stream_options": {"include_usage": True, "include_obfuscation": False},
            }
            chunks = list(
                client.chat.completions.create(
                    **shared,
                    **stream,
                    messages=user("Hi"),
                    max_tokens=4,
                    tools=[],
                    parallel_tool_calls=False,
                )
            )
            assert chunks[-1].usage.completion_tokens <= 4
            response = client.responses.create(
                **shared,
                input="Hi",
                max_output_tokens=4,
                truncation="auto",
                include=["reasoning.encrypted_content"],
            )
            assert response.usage.output_tokens <= 4
        with anthropic.Anthropic(base_url=address, api_key="x", max_retries=0) as client:
            ask = {"model": "tiny", "messages": user("Hi")}
            reply = client.messages.create(
                **ask,
                max_tokens=4,
                metadata={"user_id": "x"},
                service_tier="auto",
                cache_control={"type": "ephemeral"},
            )
            assert reply.usage.output_tokens <= 4
            count = reply.usage.input_tokens + reply.usage.cache_read_input_tokens
            assert client.messages.count_tokens(**ask).input_tokens == count
            assert client.beta.messages.create(**ask, max_tokens=4, betas=["x"]).content
        options = {
            name: 1 for name in ollama.Options.model_fields if name not in ("mirostat", "stop")
        }
        options |= {
            "temperature": 0.7,
            "seed": 4,
            "num_predict": 4,
            "typical_p": 1.0,
            "repeat_penalty": 1.0,
            "top_k": 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": ["x"],
        }
        with contextlib.closing(ollama.Client(host=address)) as client:
            reply = client.chat(
                model="tiny",
                messages=user("Hi"),
                options=ollama.Options(**options),
                keep_alive="5m",
            )
            assert reply.done


def test_fields_of_openai_are_also_those_of_other_requests_for_a_prompt(http) -> None:
    body = {**CHAT, "stream": True, "temperature": 0.3, "logprobs": True, "guided_regex": "a+"}
    assert (
        json.loads(http.post("/apply-template", json=body).text)["prompt"]
        == "<user>Hi\n<assistant>"
    )
