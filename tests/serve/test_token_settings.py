"""Settings of vLLM and llama.cpp that limit the tokens, the end and the form of a reply, or its
prompt.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from served_models import TEMPLATE, alone, connected, served, user

from minhub_py import generate
from minhub_py.serve.engine import token_text
from minhub_py.serve.models import ServedModel

PROMPT = {"prompt": "Once upon", "max_tokens": 24, "seed": 5}


def complete(http, **fields) -> dict:
    response = http.post("/v1/completions", json={**PROMPT, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def error(http, path: str = "/v1/completions", **fields) -> str:
    response = http.post(path, json={**(PROMPT if path == "/v1/completions" else {}), **fields})
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


def new_ids(model: ServedModel, **settings) -> list[int]:
    ids = model.tokenizer.encode("Once upon").ids
    [new] = generate(model.model, [ids], 24, seed=5, **settings)
    return new


@pytest.fixture(scope="module")
def ending(folder: Path):
    """A client of a model that always predicts the end token."""
    model = served("ending", folder)
    [end] = model.end_ids
    with torch.no_grad():
        model.model.get_parameter("ln_f.weight").zero_()
        model.model.get_parameter("ln_f.bias").fill_(1)
        weight = model.model.get_parameter("wte.weight")  # also the head
        weight[end] = weight.abs().sum(dim=1).max()
    with connected(model) as http:
        yield http
    model.engine.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_end_tokens_end_a_reply_after_min_tokens_unless_ignored(ending, path: str) -> None:
    body = {"prompt": "Hi", "messages": user("Hi"), "temperature": 0, "max_tokens": 9}
    del body["messages" if path == "/v1/completions" else "prompt"]
    for minimum in (0, 3):
        reply = ending.post(path, json={**body, "min_tokens": minimum}).json()
        assert reply["usage"]["completion_tokens"] == minimum + 1
        assert reply["choices"][0]["finish_reason"] == "stop"
    assert "min_tokens is 10, but the reply has at most 9 tokens" in error(
        ending, path, **body, min_tokens=10
    )
    reply = ending.post(path, json={**body, "ignore_eos": True}).json()
    assert reply["usage"]["completion_tokens"] == 9


def test_stop_strings_do_not_end_a_reply_before_min_tokens(http, main_model: ServedModel) -> None:
    text = complete(http, ignore_eos=True)["text"]
    character = text[1]
    assert complete(http, ignore_eos=True, stop=character)["text"] == text[: text.index(character)]
    reply = complete(http, ignore_eos=True, stop=character, min_tokens=24)
    assert (reply["text"], reply["finish_reason"]) == (text, "length")


def test_stop_tokens_end_a_reply_and_are_not_a_part_of_it(http, main_model: ServedModel) -> None:
    new = new_ids(main_model)
    stop = new[9]
    first = new.index(stop)
    expected = main_model.tokenizer.decode(new[:first])
    for path, fields in (
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": user("Hi")}),
    ):
        assert "from 0 to" in error(http, path, **fields, stop_token_ids=[10**6])
        assert "must be a list of integers" in error(http, path, **fields, stop_token_ids="x")
    reply = complete(http, stop_token_ids=[stop])
    assert reply["finish_reason"] == "stop"
    assert expected.startswith(reply["text"])
    assert len(reply["text"]) >= len(expected) - 1  # without an incomplete character
    included = complete(http, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert included["text"].startswith(reply["text"])
    assert len(included["text"]) > len(reply["text"])


def test_a_reply_can_include_its_stop_string(http) -> None:
    text = complete(http)["text"]
    stop = text[len(text) // 2 :][:3]
    end = text.index(stop)
    assert complete(http, stop=[stop])["text"] == text[:end]
    reply = complete(http, stop=[stop], include_stop_str_in_output=True)
    assert (reply["text"], reply["finish_reason"]) == (text[: end + 3], "stop")
    body = {**PROMPT, "stop": [stop], "include_stop_str_in_output": True, "stream": True}
    events = http.post("/v1/completions", json=body).text.split("\n\n")[:-2]
    assert "".join(json.loads(event[6:])["choices"][0]["text"] for event in events) == reply["text"]


def test_allowed_and_banned_tokens(http, main_model: ServedModel) -> None:
    new = new_ids(main_model)
    allowed = sorted(set(new[:6]))
    body = {"prompt": PROMPT["prompt"], "max_tokens": 24, "seed": 5, "logprobs": 0}
    tokens = complete(http, **body, allowed_token_ids=allowed)["logprobs"]["tokens"]
    labels = complete(http, **body)["logprobs"]["tokens"][:6]
    assert len(tokens) == 24
    assert set(tokens) <= set(labels)
    tokens = complete(http, **body, banned_tokens=[new[0]])["logprobs"]["tokens"]
    assert labels[0] not in tokens
    biased = complete(http, logit_bias={str(id): -100 for id in (new[0],)})["text"]
    assert complete(http, banned_tokens=[new[0]])["text"] == biased
    assert "no token that is not banned" in error(http, allowed_token_ids=[1], banned_tokens=[1])
    assert "no token that is not banned" in error(http, allowed_token_ids=[])


def test_bad_words_do_not_occur(http, main_model: ServedModel) -> None:
    """Words of one and of several tokens, also within a text, where they begin with a space."""
    text = complete(http, temperature=0)["text"]
    words = re.findall(r"[a-zA-Z]{2,}", text)[:3]
    assert words
    assert any(len(main_model.tokenizer.encode(word).ids) > 1 for word in words)
    for word in words:
        tokens = complete(http, temperature=0, bad_words=[word], logprobs=0)["logprobs"]["tokens"]
        for form in (word, f" {word}"):
            ids = main_model.tokenizer.encode(form).ids
            banned = [token_text(main_model.tokenizer, id) for id in ids]
            assert banned not in [tokens[i : i + len(banned)] for i in range(len(tokens))]
    assert complete(http, temperature=0, bad_words=words)["text"] != text
    assert "bad_words" in error(http, bad_words=["x" * 2000])


FORMS = [
    ({"guided_regex": "[a-c]{3}/[0-9]"}, "[a-c]{3}/[0-9]"), ({"regex": "(yes|no)!"}, "(yes|no)!"),
    ({"guided_choice": ["red", "green\n"]}, "red|green\n"),
    ({"guided_grammar": 'root ::= "<" [a-b]+ ">"'}, "<[ab]+>"), ({"grammar": 'root ::= ("x" | "y") "1"'}, "[xy]1"),
    ({"ebnf": 'start: "a" B\nB: /[0-9]/'}, "a[0-9]"),
    ({"guided_json": {"enum": ["u", "v"]}}, '"[uv]"'), ({"json_schema": {"const": 1}}, "1"),
    ({"guided_json": '{"const": 2}'}, "2"), ({"structured_outputs": {"choice": ["p", "q"]}}, "[pq]"),
    ({"structured_outputs": {"json": {"const": 3}}}, "3"), ({"structured_outputs": {"regex": "z+y"}}, "z+y"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "pattern"), FORMS)
def test_replies_have_the_requested_form(http, fields: dict, pattern: str) -> None:
    for path, body in (
        ("/v1/completions", PROMPT),
        ("/v1/chat/completions", {"messages": user("Hi"), "seed": 2}),
    ):
        [choice] = http.post(path, json={**body, "max_tokens": 60, **fields}).json()["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, text)
        else:  # an unlimited repetition
            assert "+" in pattern


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"guided_regex": "a("}, "unclosed group"),
        (
            {"guided_regex": "a(?=b)"},
            "look-around, including look-ahead and look-behind, is not supported",
        ),
        ({"guided_choice": []}, "guided_choice must be a list of 1 to 1,000 strings"),
        ({"guided_choice": [1]}, "guided_choice[0] must be a string"),
        ({"grammar": "x"}, "grammar"),
        ({"grammar": "root ::= other"}, "other"),
        (
            {"grammar": "\n".join(f'r{n} ::= "x"' for n in range(501))},
            "at most 20,000 characters and 500 rules",
        ),
        ({"guided_json": "{"}, "guided_json must be a JSON schema"),
        (
            {"guided_regex": "a", "guided_choice": ["a"]},
            "guided_regex and guided_choice contradict each other",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "contradict each other"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag is not supported",
        ),
        ({"structured_outputs": {"verse": "x"}}, "structured_outputs.verse is unknown"),
    ],
)
def test_invalid_forms_are_client_errors(http, fields: dict, reason: str) -> None:
    message = error(http, **fields)
    assert all(part in message for part in reason.split(" and ")), message


def test_reasoning_precedes_a_choice(hermes, script) -> None:
    """In a reply with tools or reasoning, the form applies to the text."""
    import httpx2

    script.replies = ["<think>\nHm.\n</think>\n\nno"]
    body = {
        "messages": user("Hi"),
        "guided_choice": ["yes", "no"],
        "max_tokens": 60,
        "temperature": 0,
    }
    reply = httpx2.post(f"{hermes[0]}/v1/chat/completions", json=body, timeout=60).json()[
        "choices"
    ][0]
    assert reply["message"]["content"] == "no"
    assert reply["message"]["reasoning"] == "Hm."
    assert reply["finish_reason"] == "stop"


def test_prompts_are_truncated_on_the_left(http, main_model: ServedModel) -> None:
    text = "To be or not to be, that is the question."
    ids = main_model.tokenizer.encode(text).ids
    for prompt in (text, ids):
        reply = http.post(
            "/v1/completions", json={**PROMPT, "prompt": prompt, "truncate_prompt_tokens": 5}
        ).json()
        assert reply["usage"]["prompt_tokens"] == 5
        assert reply["choices"][0]["text"] == alone(main_model, ids[-5:], 24, 5)
    long = [ids[0]] * 1000
    reply = http.post(
        "/v1/completions", json={**PROMPT, "prompt": long, "truncate_prompt_tokens": -1}
    ).json()
    assert reply["usage"]["prompt_tokens"] == main_model.engine.max_length - 24
    body = {"messages": user(text), "truncate_prompt_tokens": 7, "max_tokens": 6, "seed": 1}
    reply = http.post("/v1/chat/completions", json=body).json()
    assert reply["usage"]["prompt_tokens"] == 7
    expected = alone(
        main_model, main_model.template.encode(user(text))[-7:], 6, 1, **main_model.sampling
    )
    assert reply["choices"][0]["message"]["content"] == expected
    assert "at least 1, or -1" in error(http, truncate_prompt_tokens=0)


def test_prompts_of_conversations_have_their_variables(http, main_model: ServedModel) -> None:
    messages = [*user("Hi"), {"role": "assistant", "content": "Well"}]
    settings = main_model.sampling | {"temperature": 0}
    for fields in ({"add_generation_prompt": False}, {"continue_final_message": True}):
        ids = main_model.template.encode(messages, **fields)
        body = {"messages": messages, "max_tokens": 6, "temperature": 0, **fields}
        reply = http.post("/v1/chat/completions", json=body).json()
        assert reply["choices"][0]["message"]["content"] == alone(main_model, ids, 6, 0, **settings)
        prompt = http.post("/apply-template", json={"messages": messages, **fields}).json()[
            "prompt"
        ]
        assert prompt == main_model.template.render(messages, **fields)
        assert http.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"] == ids
    both = {"add_generation_prompt": True, "continue_final_message": True}
    assert "contradict each other" in error(http, "/v1/chat/completions", messages=messages, **both)


def test_documents_are_passed_to_templates_that_use_them(http, folder: Path) -> None:
    documents = [{"title": "Weather", "text": "It rains."}]
    fields = {"messages": user("Hi"), "documents": documents}
    assert "does not use documents" in error(http, "/v1/chat/completions", **fields)
    assert "documents[0] must be an object" in error(
        http, "/v1/chat/completions", messages=user("Hi"), documents=["x"]
    )
    template = folder / "chat_template.jinja"
    try:
        template.write_text(
            "{% for d in documents %}[{{ d.title }}: {{ d.text }}]{% endfor %}" + TEMPLATE
        )
        model = served("documents", folder)
    finally:
        template.write_text(TEMPLATE)
    try:
        with connected(model) as client:
            prompt = client.post("/apply-template", json=fields).json()["prompt"]
            assert prompt == "[Weather: It rains.]<user>Hi\n<assistant>"
            body = {**fields, "max_tokens": 5, "temperature": 0}
            count = client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
            assert count == len(model.template.encode(user("Hi"), documents=documents))
    finally:
        model.engine.close()


def test_special_tokens_of_completions(ending, http, main_model: ServedModel) -> None:
    body = {"prompt": "Hi", "temperature": 0, "max_tokens": 3, "ignore_eos": True}
    [end] = main_model.end_ids
    token = main_model.tokenizer.id_to_token(end)
    for fields, text in (({}, ""), ({"skip_special_tokens": False}, 3 * token)):
        assert (
            ending.post("/v1/completions", json={**body, **fields}).json()["choices"][0]["text"]
            == text
        )


def test_names_of_other_servers_for_the_same_setting(http, main_model: ServedModel) -> None:
    expected = complete(http, repetition_penalty=1.5, temperature=0, max_tokens=30)["text"]
    assert expected != complete(http, temperature=0, max_tokens=30)["text"]
    body = {
        "prompt": "Once upon",
        "seed": 5,
        "temperature": 0,
        "repeat_penalty": 1.5,
        "n_predict": 30,
    }
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected
    options = {
        "seed": 5,
        "temperature": 0,
        "num_predict": 30,
        "top_k": 0,
        "top_p": 1,
        "repetition_penalty": 1.5,
    }
    body = {
        "model": "tiny",
        "prompt": "Once upon",
        "raw": True,
        "stream": False,
        "options": options,
    }
    assert http.post("/api/generate", json=body).json()["response"] == expected
    unlimited = http.post(
        "/v1/completions", json={"prompt": "Once upon", "n_predict": -1, "ignore_eos": True}
    ).json()
    assert unlimited["usage"]["total_tokens"] == main_model.engine.max_length
    chat = {"messages": user("Hi"), "n_predict": 3, "ignore_eos": True}
    assert http.post("/v1/chat/completions", json=chat).json()["usage"]["completion_tokens"] == 3
