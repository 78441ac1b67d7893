"""Unmodified clients with a real server: openai, ollama and llm in Python, httr2 and curl in R.

benchmarks/NOTES.md lists further clients that were tested manually.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import ollama
import pytest
import torch
from needs import RSCRIPT, need, needs
from pydantic import BaseModel, Field
from served_models import in_chat, serving, user

from minhub_py import embed
from minhub_py.serve.models import ServedModel


@pytest.fixture(scope="module")
def address(main_model: ServedModel) -> Iterator[str]:
    with serving(main_model, key="secret") as address:
        yield address


class Animal(BaseModel, extra="forbid"):
    name: str = Field(max_length=10)
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=0, le=9)


def test_openai_parses_structured_outputs(address: str) -> None:
    """With the schema that the library derives from a class, in chat completions and responses."""
    import openai  # takes a second to import

    with openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0) as client:
        ask = {"model": "tiny", "temperature": 1.2}
        reply = client.chat.completions.parse(
            **ask, messages=user("Which?"), seed=1, response_format=Animal
        )
        assert reply.choices[0].message.parsed.kind in ("cat", "dog")
        assert (
            client.responses.parse(**ask, input="Which?", text_format=Animal).output_parsed.legs
            < 10
        )
        with client.chat.completions.stream(
            **ask, messages=user("Which?"), seed=1, response_format=Animal
        ) as stream:
            assert (
                stream.get_final_completion().choices[0].message.parsed
                == reply.choices[0].message.parsed
            )


def test_ollama_lists_chats_and_generates(address: str, main_model: ServedModel) -> None:
    with contextlib.closing(
        ollama.Client(host=address, headers={"Authorization": "Bearer secret"})
    ) as client:
        [model] = client.list().models
        assert model.model == "tiny:latest"
        assert client.show("tiny").capabilities == ["completion", "tools"]
        assert [model.model for model in client.ps().models] == ["tiny:latest"]
        ask = {"model": "tiny", "options": {"seed": 4, "num_predict": 12, "temperature": 0.7}}
        expected = in_chat(main_model, user("Hi"), 12, 4, temperature=0.7)
        assert client.chat(**ask, messages=user("Hi")).message.content == expected
        parts = list(client.chat(**ask, messages=user("Hi"), stream=True))
        assert "".join(part.message.content for part in parts) == expected
        assert parts[-1].eval_count == 12
        assert client.generate(**ask, prompt="Hi").response == expected
        ask["options"]["num_predict"] = 150
        text = client.chat(
            **ask, messages=user("Which?"), format=Animal.model_json_schema()
        ).message.content
        assert Animal.model_validate_json(text)
        with pytest.raises(ollama.ResponseError, match="unknown model 'other'"):
            client.chat(model="other", messages=user("Hi"))


def test_llm_chats_continues_and_follows_a_schema(
    address: str, main_model: ServedModel, tmp_path: Path
) -> None:
    """The tests do not install `llm`: it requires tabulate, with which PyTorch loses the exit
    status of Ctrl-C.
    """
    need("llm")
    models = [
        {
            "model_id": "tiny",
            "model_name": "tiny",
            "api_base": f"{address}/v1",
            "api_key_name": "minhub",
            "supports_schema": True,
        }
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models), encoding="utf-8")
    (tmp_path / "keys.json").write_text('{"minhub": "secret"}', encoding="utf-8")

    def llm(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments, "-m", "tiny", "-o", "seed", "3"]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
        result = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, timeout=120
        )
        return result.stdout

    question = user("How are you?")
    expected = in_chat(main_model, question, 10, 3)
    assert llm("How are you?", "-o", "max_tokens", "10").strip() == expected.strip()
    turns = [*question, {"role": "assistant", "content": expected}, *user("And you?")]
    expected = in_chat(main_model, turns, 10, 3)
    assert (
        llm("-c", "And you?", "-o", "max_tokens", "10", "--no-stream").strip() == expected.strip()
    )
    assert Animal.model_validate_json(
        llm("Which?", "--schema", json.dumps(Animal.model_json_schema()))
    )


IN_R = r"""
library(httr2)
arguments <- commandArgs(TRUE)
ask <- list(model = "tiny", messages = list(list(role = "user", content = "Hi")), seed = 3, max_tokens = 12)
chat <- function(...) {
  request(arguments[[1]]) |> req_url_path("/v1/chat/completions") |> req_auth_bearer_token("secret") |>
    req_body_json(c(ask, list(...)))
}
reply <- chat() |> req_perform() |> resp_body_json()
deltas <- character()
take <- function(bytes) {
  for (line in strsplit(rawToChar(bytes), "\n")[[1]]) {
    if (startsWith(line, "data: {")) {
      data <- jsonlite::fromJSON(substring(line, 7), simplifyVector = FALSE)
      deltas <<- c(deltas, data$choices[[1]]$delta$content)
    }
  }
  TRUE
}
# A small buffer could end within a line.
chat(stream = TRUE) |> req_stream(take, buffer_kb = 64)
handle <- curl::new_handle(customrequest = "POST", postfields = jsonlite::toJSON(ask, auto_unbox = TRUE))
curl::handle_setheaders(handle, Authorization = "Bearer secret")
plain <- curl::curl_fetch_memory(paste0(arguments[[1]], "/v1/chat/completions"), handle)
format <- list(type = "json_schema", json_schema = list(name = "a", schema = jsonlite::fromJSON(arguments[[2]], FALSE)))
ask$max_tokens <- 150
structured <- chat(response_format = format) |> req_perform() |> resp_body_json()
embedded <- request(arguments[[1]]) |> req_url_path("/v1/embeddings") |> req_auth_bearer_token("secret") |>
  req_body_json(list(model = "tiny", input = list("To be", "or not"))) |> req_perform() |> resp_body_json()
ask$messages <- list()
rejected <- chat() |> req_error(is_error = \(resp) FALSE) |> req_perform()
results <- list(
  reply = reply$choices[[1]]$message$content, streamed = paste(deltas, collapse = ""),
  curl = jsonlite::fromJSON(rawToChar(plain$content), FALSE)$choices[[1]]$message$content,
  structured = structured$choices[[1]]$message$content, status = resp_status(rejected),
  error = resp_body_json(rejected)$error$message, embeddings = lapply(embedded$data, `[[`, "embedding")
)
cat(jsonlite::toJSON(results, auto_unbox = TRUE, digits = NA))
"""


@needs("R")
def test_httr2_and_curl_in_r_receive_replies_and_errors(
    address: str, main_model: ServedModel, tmp_path: Path
) -> None:
    script = tmp_path / "client.R"
    script.write_text(IN_R, encoding="utf-8")
    command = [
        str(RSCRIPT),
        "--vanilla",
        str(script),
        address,
        json.dumps(Animal.model_json_schema()),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    expected = in_chat(main_model, user("Hi"), 12, 3)
    assert results["reply"] == results["streamed"] == results["curl"] == expected
    assert Animal.model_validate_json(results["structured"])
    assert (results["status"], "messages" in results["error"]) == (400, True)
    expected_vectors = embed(
        main_model.model, main_model.tokenizer, ["To be", "or not"], normalize=True
    )
    torch.testing.assert_close(torch.tensor(results["embeddings"]), expected_vectors)
