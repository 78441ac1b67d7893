"""lm-eval's `local-completions` without transformers: its requests, and a run of lm_eval where it
is installed.

Source: lm_eval 0.4.13, models/openai_completions.py and RemoteTokenizer in utils.py.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from needs import LM_EVAL, needs
from paths import ROOT
from served_models import connected, served, user

from minhub_py import score
from minhub_py.serve.models import ServedModel

TASK = ROOT / "examples" / "lm_eval"
ITEMS = [
    json.loads(line) for line in (TASK / "agreement.jsonl").read_text(encoding="utf-8").splitlines()
]
# Installed in its own environment, for example: it requires 700 MB.


def pairs(model: ServedModel, item: dict) -> list[tuple[list[int], list[int]]]:
    """The token IDs of the sentence and of each choice."""
    start = len(model.tokenizer.encode(item["sentence"], add_special_tokens=False).ids)
    texts = [f"{item['sentence']} {choice}" for choice in item["choices"]]
    encoded = [model.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [(ids[:start], ids[start:]) for ids in encoded]


def accuracy(model: ServedModel) -> float:
    """The share of items whose most probable choice by `score` is the correct one."""
    prompts = [pair for item in ITEMS for pair in pairs(model, item)]
    totals = [
        sum(values.tolist())
        for values in score(
            model.model, [ids for ids, _ in prompts], targets=[target for _, target in prompts]
        )
    ]
    right = [
        totals[2 * n + item["label"]] > totals[2 * n + 1 - item["label"]]
        for n, item in enumerate(ITEMS)
    ]
    return sum(right) / len(right)


def test_the_requests_of_lm_eval(http, main_model: ServedModel) -> None:
    info = http.get("/tokenizer_info").json()
    assert main_model.tokenizer.token_to_id(info["eos_token"]) in main_model.end_ids
    assert {"bos_token", "pad_token", "tokenizer_class"} <= info.keys()
    assert info["chat_template"] == main_model.template.templates["default"]
    right = 0
    for item in ITEMS[:20]:
        logprobs = []
        for choice, (context, target) in zip(item["choices"], pairs(main_model, item), strict=True):
            text = f"{item['sentence']} {choice}"
            reply = http.post(
                "/tokenize", json={"prompt": text, "add_special_tokens": False}
            ).json()
            assert (reply["tokens"], reply["count"]) == (context + target, len(context + target))
            assert (
                http.post("/detokenize", json={"tokens": reply["tokens"]}).json()["prompt"] == text
            )
            payload = {
                "model": "tiny",
                "prompt": [context + target],
                "temperature": 0,
                "max_tokens": 1,
                "logprobs": 1,
                "seed": 1234,
                "echo": True,
            }
            [result] = (
                http.post("/v1/completions", json=payload).raise_for_status().json()["choices"]
            )
            values = result["logprobs"]["token_logprobs"]
            assert len(values) == len(context) + len(target) + 1
            expected = score(main_model.model, [context], targets=[target])[0].tolist()
            assert values[len(context) : -1] == expected
            logprobs.append(sum(expected))
            for value, top in zip(values[1:], result["logprobs"]["top_logprobs"][1:], strict=True):
                assert max(top.values()) >= value
        right += max(range(2), key=logprobs.__getitem__) == item["label"]
    assert 0 < right < 20
    payload = {
        "prompt": [main_model.tokenizer.encode("Once").ids],
        "model": "tiny",
        "max_tokens": 20,
        "temperature": 0,
        "stop": ["\n\n", info["eos_token"]],
        "seed": 1234,
    }
    assert http.post("/v1/completions", json=payload).json()["choices"][0]["text"]


def test_prompts_have_the_forms_of_llama_cpp(http, main_model: ServedModel) -> None:
    encode = main_model.tokenizer.encode
    ids = [5, *encode("cat").ids, 7]
    body = {"max_tokens": 4, "seed": 2}
    for prompt, same in (
        ({"prompt_string": "Once"}, "Once"),
        ([5, "cat", 7], ids),
        ([[5, "cat", 7], "Once"], None),
    ):
        choices = http.post("/v1/completions", json={**body, "prompt": prompt}).json()["choices"]
        expected = [
            http.post("/v1/completions", json={**body, "prompt": each}).json()["choices"][0]["text"]
            for each in ([same] if same is not None else [ids, "Once"])
        ]
        assert [choice["text"] for choice in choices] == expected


def test_an_end_token_is_part_of_the_log_probabilities_of_an_echo(folder: Path) -> None:
    """lm-eval removes the last one, which must not be the prompt's."""
    ending = served("ending", folder)
    [end] = ending.end_ids
    ids = ending.tokenizer.encode("To be or not to be").ids
    with torch.no_grad():  # the first generated token ends the reply
        ending.model.get_parameter("ln_f.weight").zero_()
        ending.model.get_parameter("ln_f.bias").fill_(1)
        weight = ending.model.get_parameter("wte.weight")  # also the head
        weight[end] = weight.abs().sum(dim=1).max()
    payload = {"prompt": [ids], "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
    try:
        with connected(ending) as http:
            [choice] = http.post("/v1/completions", json=payload).json()["choices"]
            streamed = http.post("/v1/completions", json={**payload, "stream": True}).text
    finally:
        ending.engine.close()
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == "To be or not to be"
    chunks = [json.loads(line[6:]) for line in streamed.split("\n\n")[:-2]]
    values = [
        value for chunk in chunks for value in chunk["choices"][0]["logprobs"]["token_logprobs"]
    ]
    assert values == choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("count", [0, 6])
@pytest.mark.parametrize("choices", [1, 2])
def test_streams_with_an_echo_equal_complete_responses(
    http, logprobs: int | None, count: int, choices: int
) -> None:
    body = {
        "prompt": ["To be or not", "x"],
        "echo": True,
        "max_tokens": count,
        "logprobs": logprobs,
        "seed": 4,
        "n": choices,
    }
    complete = http.post("/v1/completions", json=body).json()
    for options in ({}, {"stream_options": {"include_usage": True}}):
        reply = http.post("/v1/completions", json={**body, "stream": True, **options})
        assert reply.headers["content-type"].startswith("text/event-stream")
        *events, done, _ = reply.text.split("\n\n")
        assert done == "data: [DONE]"
        chunks = [json.loads(event[6:]) for event in events]
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [chunks[-1]["usage"][name] for name in names] == [
            complete["usage"][name] for name in names
        ]
        assert (chunks[-1]["choices"] == []) == bool(options)
        for expected in complete["choices"]:
            parts = [
                choice
                for chunk in chunks
                for choice in chunk["choices"]
                if choice["index"] == expected["index"]
            ]
            assert "".join(part["text"] for part in parts) == expected["text"]
            assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [
                expected["finish_reason"]
            ]
            if logprobs is not None:
                for name in ("tokens", "token_logprobs", "top_logprobs"):
                    values = [value for part in parts for value in part["logprobs"][name]]
                    assert values == expected["logprobs"][name]


def test_texts_and_conversations_are_tokenized_in_both_formats(
    http, main_model: ServedModel
) -> None:
    ids = main_model.tokenizer.encode("Hello you").ids
    for body in (
        {"content": "Hello you"},
        {"prompt": "Hello you"},
        {"prompt": "Hello you", "model": "tiny"},
    ):
        reply = http.post("/tokenize", json=body).json()
        assert reply == {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": main_model.engine.max_length,
        }
    texts = http.post("/tokenize", json={"prompt": "Hello you", "return_token_strs": True}).json()[
        "token_strs"
    ]
    assert "".join(texts) == "Hello you"
    messages = user("Good morning")
    reply = http.post("/tokenize", json={"messages": messages}).json()
    assert reply["tokens"] == main_model.template.encode(messages)
    reply = http.post(
        "/tokenize", json={"messages": messages, "add_generation_prompt": False}
    ).json()
    assert reply["tokens"] == main_model.template.encode(messages, add_generation_prompt=False)
    assert http.post("/detokenize", json={"tokens": ids}).json() == {
        "content": "Hello you",
        "prompt": "Hello you",
    }
    assert (
        http.get("/tokenizer_info?model=other").json()["vocab_size"]
        == main_model.model.config.vocab_size
    )
    assert http.get("/tokenizer_info?model=unknown").status_code == 404


@needs("lm_eval")
def test_a_run_of_lm_eval_computes_the_accuracy_of_score(
    address: str, main_model: ServedModel, tmp_path: Path
) -> None:
    arguments = f"model=tiny,base_url={address}/v1/completions,num_concurrent=4,max_retries=1,max_length=256"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        str(LM_EVAL),
        "--model",
        "local-completions",
        "--model_args",
        arguments,
        "--include_path",
        ".",
        "--tasks",
        "agreement",
        "--output_path",
        str(tmp_path / "out"),
    ]
    process = subprocess.run(
        command,
        cwd=TASK,
        env={**environment, **offline},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    [result] = (tmp_path / "out").rglob("results*.json")
    assert json.loads(result.read_text())["results"]["agreement"]["acc,none"] == accuracy(
        main_model
    )
