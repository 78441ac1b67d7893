"""The APIs of `minhub serve`: replies equal those of generate, streams equal complete replies."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from guarantees import RUNNER, assert_same
from served_models import RECOMMENDED, TEMPLATE, alone, in_chat, user

from minhub_py import generate, score
from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.inference.native_runner import runner_of
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.serve import ollama
from minhub_py.serve.engine import Delta, GeneratedToken
from minhub_py.serve.models import ServedModel
from minhub_py.serve.openai import DeltaWriter


def test_models_are_listed_at_all_paths(http, client) -> None:
    for path in ("/models", "/v1/models", "/v1/v1/models"):
        assert [entry["id"] for entry in http.get(path).json()["data"]] == ["tiny", "other"]
    assert [model.id for model in client.models.list()] == ["tiny", "other"]
    assert client.models.retrieve("other").id == "other"
    assert http.get("/v1/models/other").json()["meta"]["default_sampling"] == {
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": None,
        "repetition_penalty": 1.0,
        "min_p": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
    }


def test_continue_final_message_generates_the_rest_of_a_reply(
    http, main_model: ServedModel
) -> None:
    messages = [*user("Hello there"), {"role": "assistant", "content": "I am"}]
    body = {
        "messages": messages,
        "continue_final_message": True,
        "seed": 3,
        "temperature": 0.9,
        "max_tokens": 20,
        "top_p": 1,
        "top_k": 0,
        "repetition_penalty": 1,
    }
    answer = http.post("/v1/chat/completions", json=body).json()
    ids = main_model.template.tokenize(main_model.template.render(messages[:1]) + "I am")
    assert answer["choices"][0]["message"]["content"] == alone(
        main_model, ids, 20, 3, temperature=0.9
    )
    for wrong in (user("Hello there"), messages[1:]):
        answer = http.post("/v1/chat/completions", json={**body, "messages": wrong})
        assert answer.status_code == 400
        assert "requires an assistant message" in answer.json()["error"]["message"]
    hidden = {**body, "chat_template_kwargs": {"continue_final_message": True}}
    assert http.post("/v1/chat/completions", json=hidden).status_code == 400


def test_a_chat_completion_equals_generate(client, main_model: ServedModel) -> None:
    assert type(runner_of(main_model.model)) is RUNNER
    messages = [{"role": "system", "content": "Be short."}, *user("Hello there")]
    ids = main_model.template.encode(messages)
    for parts in (False, True):
        sent = (
            [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
            if parts
            else messages
        )
        reply = client.chat.completions.create(
            model="tiny", messages=sent, seed=3, temperature=0.8, max_tokens=20
        )
        assert reply.choices[0].message.content == in_chat(
            main_model, messages, 20, 3, temperature=0.8
        )
        assert reply.choices[0].finish_reason == "length"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), 20)


def test_every_api_has_the_sampling_settings_of_generate(http, main_model: ServedModel) -> None:
    """Ollama's names are those of the OpenAI API, except repeat_penalty."""
    settings = {"min_p": 0.01, "presence_penalty": 0.5, "frequency_penalty": 1.5}
    plain = in_chat(main_model, user("Hello there"), 20, 3, temperature=0.8)
    expected = in_chat(
        main_model,
        user("Hello there"),
        20,
        3,
        temperature=0.8,
        logit_bias={7: -50.0, 9: 3.0},
        **settings,
    )
    assert expected != plain
    biased = {**settings, "logit_bias": {"7": -50, "9": 3}, "temperature": 0.8, "seed": 3}
    body = {"messages": user("Hello there"), "max_tokens": 20, **biased}
    reply = http.post("/v1/chat/completions", json=body).json()
    assert reply["choices"][0]["message"]["content"] == expected
    body = {
        "messages": user("Hello there"),
        "stream": False,
        "options": {"num_predict": 20, **biased},
    }
    assert (
        http.post("/api/chat", json={"model": "tiny", **body}).json()["message"]["content"]
        == expected
    )


def test_concurrent_requests_match_single_runs(client, main_model: ServedModel) -> None:
    """Long and short, streamed and complete, with common prefixes; more than the batch size."""
    words = "the quick brown fox jumps over the lazy dog and runs away from all of them".split()
    prompts = [" ".join(words[: 3 + n % 12] * (1 + n % 4)) for n in range(16)]

    def ask(n: int) -> str:
        settings = {
            "model": "tiny",
            "messages": user(prompts[n]),
            "seed": n,
            "temperature": 0.8 + 0.02 * n,
            "top_p": 0.95,
            "max_completion_tokens": 5 + 3 * n,
        }
        if n % 2:
            return client.chat.completions.create(**settings).choices[0].message.content
        return "".join(
            part.choices[0].delta.content or ""
            for part in client.chat.completions.create(**settings, stream=True)
        )

    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):  # the second time from the prefix cache
            texts = list(pool.map(ask, range(16)))
            for n, text in enumerate(texts):
                settings = {"temperature": 0.8 + 0.02 * n, "top_p": 0.95}
                assert text == in_chat(main_model, user(prompts[n]), 5 + 3 * n, n, **settings)
    assert main_model.engine.counts["cached"] > main_model.engine.counts["prompt"] / 2


def test_a_stream_equals_the_complete_response(client, http, main_model: ServedModel) -> None:
    settings = {"model": "tiny", "messages": user("One two three"), "seed": 5, "max_tokens": 30}
    complete = client.chat.completions.create(**settings, logprobs=True, top_logprobs=3)
    parts = list(
        client.chat.completions.create(
            **settings,
            logprobs=True,
            top_logprobs=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == complete.usage.completion_tokens == 30
    chunks = [part.choices[0] for part in parts[:-1]]
    assert (
        "".join(chunk.delta.content or "" for chunk in chunks)
        == complete.choices[0].message.content
    )
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    streamed = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    expected = [token.model_dump() for token in complete.choices[0].logprobs.content]
    assert_same([token.model_dump() for token in streamed], expected)
    ids = main_model.template.encode(settings["messages"])
    [new] = generate(main_model.model, [ids], 30, seed=5, **main_model.sampling)
    scores = score(main_model.model, [[*ids, *new]])[0][len(ids) - 1 :]
    assert_same(torch.tensor([token.logprob for token in streamed]), scores)
    for token in streamed:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
    # Without include_usage, the last chunk contains the usage.
    lines = http.post("/v1/chat/completions", json={**settings, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[-3][6:])["usage"]["completion_tokens"] == 30


def test_deltas_never_equal_the_previous_text() -> None:
    """ellmer ignores such deltas."""
    for texts in (
        ["ha", "ha", "haha"],
        ["a", "a", "aa"],
        ["a"],
        ["", "x", ""],
        ["ab", "c", "abc", "abcabc"],
    ):
        writer, sent, tokens = DeltaWriter(), [], []
        for number, text in enumerate(texts):
            end = "stop" if number == len(texts) - 1 else None
            for part, part_tokens in writer.add(
                Delta(
                    (ReplyEvent("content", text),), (GeneratedToken(number, text, None, ()),), end
                )
            ):
                sent.append(part["content"])
                tokens += part_tokens
        assert "".join(sent) == "".join(texts)
        assert [token.id for token in (*tokens, *writer.tokens)] == list(range(len(texts)))
        for number, part in enumerate(sent):
            assert number == 0 or part != "".join(sent[:number])


def test_stop_strings_end_replies_and_choices_have_consecutive_seeds(
    client, main_model: ServedModel
) -> None:
    settings = {"model": "tiny", "messages": user("Tell me"), "seed": 11, "max_tokens": 40}
    text = client.chat.completions.create(**settings).choices[0].message.content
    middle = text[len(text) // 2 :][:4]
    reply = client.chat.completions.create(**settings, stop=[middle, "never there"]).choices[0]
    assert reply.message.content == text[: text.index(middle)]
    assert reply.finish_reason == "stop"
    parts = client.chat.completions.create(**settings, stop=middle, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == reply.message.content
    several = client.chat.completions.create(**settings, n=3)
    expected = [in_chat(main_model, settings["messages"], 40, 11 + n) for n in range(3)]
    assert [choice.message.content for choice in several.choices] == expected
    assert several.usage.completion_tokens == 120


def test_completions_echo_the_prompt_with_its_scores(client, main_model: ServedModel) -> None:
    """lm-eval requests each prompt token's log-probability."""
    text = "To be or not to be, that is the question."
    ids = main_model.tokenizer.encode(text).ids
    scores = score(main_model.model, [ids])[0]
    for prompt in (text, ids):
        for count in (0, 1):
            response = client.completions.create(
                model="tiny", prompt=prompt, echo=True, logprobs=1, max_tokens=count, seed=1
            )
            logprobs = response.choices[0].logprobs
            assert logprobs.token_logprobs[0] is None
            assert_same(torch.tensor(logprobs.token_logprobs[1 : len(ids)]), scores)
            assert len(logprobs.tokens) == len(ids) + count
            assert "".join(logprobs.tokens).startswith(text)
            assert response.choices[0].text.startswith(text)
            assert all(len(top) == 1 for top in logprobs.top_logprobs[1:])
    both = client.completions.create(
        model="tiny", prompt=[text, "Another"], max_tokens=6, seed=2, n=2
    )
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.choices[3].text == alone(
        main_model, main_model.tokenizer.encode("Another").ids, 6, 3
    )
    parts = list(
        client.completions.create(model="tiny", prompt=text, max_tokens=6, seed=2, stream=True)
    )
    assert "".join(part.choices[0].text for part in parts) == both.choices[0].text
    assert parts[-1].choices[0].finish_reason == "length"


def test_chats_use_the_models_default_sampling(client, http, main_model: ServedModel) -> None:
    """In all APIs. Completions sample from the model's distribution, and settings of a request take
    precedence.
    """
    ask = {"model": "tiny", "seed": 6, "messages": user("Hi")}
    expected = in_chat(main_model, user("Hi"), 30, 6)
    ids = main_model.template.encode(user("Hi"))
    assert expected == alone(main_model, ids, 30, 6, **RECOMMENDED) != alone(main_model, ids, 30, 6)
    assert (
        client.chat.completions.create(**ask, max_tokens=30).choices[0].message.content == expected
    )
    neutral = {"temperature": 1, "top_p": 1, "extra_body": {"top_k": 0, "repetition_penalty": 1}}
    response = client.chat.completions.create(**ask, max_tokens=30, **neutral)
    assert response.choices[0].message.content == alone(main_model, ids, 30, 6)
    body = {"model": "tiny", "input": "Hi", "seed": 6, "max_output_tokens": 30}
    response = http.post("/v1/responses", json=body).json()
    assert response["output"][0]["content"][0]["text"] == expected
    assert (response["temperature"], response["top_p"]) == (0.9, 0.97)
    body = {
        "model": "tiny",
        "messages": user("Hi"),
        "stream": False,
        "options": {"num_predict": 30, "seed": 6},
    }
    assert http.post("/api/chat", json=body).json()["message"]["content"] == expected
    response = client.completions.create(model="tiny", prompt="Once", seed=6, max_tokens=30)
    assert response.choices[0].text == alone(
        main_model, main_model.tokenizer.encode("Once").ids, 30, 6
    )
    assert http.get("/v1/models/tiny").json()["meta"]["default_sampling"] == main_model.sampling
    assert (
        "repeat_penalty 1.1" in http.post("/api/show", json={"model": "tiny"}).json()["parameters"]
    )
    defaults = http.get("/v1/models/other").json()["meta"]["default_sampling"]
    assert (defaults["temperature"], defaults["top_p"]) == (0.7, 0.95)


def test_responses_stream_the_complete_text(client, main_model: ServedModel) -> None:
    settings = {
        "model": "tiny",
        "input": user("Good morning"),
        "instructions": "Be kind.",
        "max_output_tokens": 12,
        "temperature": 0,
    }
    complete = client.responses.create(**settings)
    ids = main_model.template.encode(
        [{"role": "system", "content": "Be kind."}, *user("Good morning")]
    )
    assert complete.output_text == alone(main_model, ids, 12, 0, temperature=0)
    events = list(client.responses.create(**settings, stream=True))
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta")
        == complete.output_text
    )
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == complete.output_text
    assert events[-1].response.usage.input_tokens == len(ids)


def test_the_ollama_api_returns_the_replies_of_generate(http, main_model: ServedModel) -> None:
    assert http.get("/").text == "minhub is running"
    assert list(http.get("/api/tags").json()) == ["models"]
    [first, _] = http.get("/api/tags").json()["models"]
    assert first["name"] == "tiny:latest"
    assert first["size"] > 0
    assert first["details"]["quantization_level"] == "F32"
    assert http.get("/api/version").json()["version"]
    assert len(http.get("/api/ps").json()["models"]) == 2
    for name in ("name", "model"):
        assert http.post("/api/show", json={name: "tiny:latest"}).json()["template"] == TEMPLATE
    ask = {
        "model": "tiny",
        "messages": user("Hi"),
        "options": {"seed": 4, "num_predict": 9, "temperature": 0.7},
    }
    plain = http.post("/api/chat", json={**ask, "stream": False})
    assert "content-length" in plain.headers
    expected = in_chat(main_model, user("Hi"), 9, 4, temperature=0.7)
    assert plain.json()["message"]["content"] == expected
    streamed = http.post("/api/chat", json=ask)
    assert streamed.headers["transfer-encoding"] == "chunked"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == expected
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (lines[-1]["eval_count"], lines[-1]["done_reason"]) == (9, "length")
    # ollamar sends empty values for unused fields.
    response = http.post(
        "/api/generate",
        json={
            "model": "tiny",
            "prompt": "Once",
            "suffix": "",
            "images": "",
            "system": "",
            "template": "",
            "context": [],
            "format": [],
            "raw": True,
            "keep_alive": "5m",
            "stream": False,
            "options": {"seed": 4, "num_predict": 9},
        },
    ).json()
    ids = main_model.tokenizer.encode("Once").ids
    assert response["response"] == alone(main_model, ids, 9, 4, **RECOMMENDED)
    assert http.post("/api/generate", json={"model": "tiny"}).json()["done_reason"] == "load"
    response = http.post("/api/chat", json={"model": "nobody", "messages": user("Hi")})
    assert (response.status_code, list(response.json())) == (404, ["error"])


def test_a_quantized_model_counts_all_parameters(main_model: ServedModel, folder: Path) -> None:
    plain = ollama.details(main_model)
    for kind, level in (("int8", "Q8_0"), ("nf4", "Q4_0")):
        quantized = replace(main_model, model=from_pretrained(folder, quantize=kind))
        assert (
            quantized.parameters
            == main_model.parameters
            == sum(p.numel() for p in main_model.model.parameters())
        )
        assert ollama.details(quantized) == {**plain, "quantization_level": level}


def test_tokens_prompts_and_metrics_are_those_of_the_model(http, main_model: ServedModel) -> None:
    text = "Hello, wörld"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == main_model.tokenizer.encode(text).ids
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    pieces = http.post("/tokenize", json={"content": "Hello you", "with_pieces": True}).json()[
        "tokens"
    ]
    assert "".join(piece["piece"] for piece in pieces) == "Hello you"
    prompt = http.post("/apply-template", json={"messages": user("Hi")}).json()["prompt"]
    assert prompt == "<user>Hi\n<assistant>"
    body = {
        "messages": user("Hi"),
        "chat_template_kwargs": {"mood": "glad"},
        "reasoning_effort": "low",
    }
    assert (
        http.post("/apply-template", json=body).json()["prompt"] == "<user>Hi\n<gladlow><assistant>"
    )
    body |= {"max_tokens": 2, "stream": False}
    count = http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    assert count == len(main_model.template.encode(user("Hi"), mood="glad", reasoning_effort="low"))
    assert http.get("/health").json() == {"status": "ok"}
    text = http.get("/metrics").text
    assert 'minhub_requests_total{path="/health",status="200"}' in text
    assert 'minhub_generated_tokens_total{model="tiny"}' in text


def test_a_common_prefix_is_cached(client, main_model: ServedModel) -> None:
    system = [{"role": "system", "content": "A long introduction of many words. " * 6}]
    for n in range(3):
        messages = [*system, *user(f"Question {n}")]
        reply = client.chat.completions.create(
            model="tiny", messages=messages, seed=1, max_tokens=8
        )
        assert reply.choices[0].message.content == in_chat(main_model, messages, 8, 1)
        shared = len(main_model.template.encode(system)) - 10
        assert (reply.usage.prompt_tokens_details.cached_tokens > shared) == (n > 0)
