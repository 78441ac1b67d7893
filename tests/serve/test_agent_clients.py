"""Unmodified libraries for agents, with a model that writes given replies: a call, its result, and
text.

The extra `test` has only Pydantic AI: the others are large, or change PyTorch, and skip where they
are missing.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from needs import need, package
from scripted import Script
from served_models import user
from tool_templates import TOOLS

CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
)
TWO_CALLS = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL.replace('Oslo', 'Rome')}"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


@pytest.fixture
def base_url(hermes: tuple[str, Script]) -> str:
    return f"{hermes[0]}/v1"


def get_weather(city: str, days: int = 1) -> str:
    """A city's weather forecast.

    Args:
        city: Name of the city.
        days: Number of days.
    """
    return f"{city}: sunny for {days} days"


@pytest.mark.parametrize("streaming", [False, True])
def test_langchain_binds_tools(base_url: str, script: Script, streaming: bool) -> None:
    openai = package("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    model = openai.ChatOpenAI(
        model="hermes", base_url=base_url, api_key="unused", max_retries=0, streaming=streaming
    )
    with_tools = model.bind_tools([get_weather])
    script.replies += [TWO_CALLS, "Sunny in both."]
    messages: list[Any] = [HumanMessage("Weather?")]
    reply = with_tools.invoke(messages)
    assert reply.content == "I look."
    assert [call["args"] for call in reply.tool_calls] == [
        {"city": city, "days": 2} for city in ("Oslo", "Rome")
    ]
    messages += [
        reply,
        *(
            ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
            for call in reply.tool_calls
        ),
    ]
    assert with_tools.invoke(messages).content == "Sunny in both."
    named = model.bind_tools([get_weather], tool_choice="get_weather", parallel_tool_calls=False)
    # not scripted
    [call] = named.invoke("Weather?", max_tokens=800, seed=1, temperature=1).tool_calls
    assert call["name"] == "get_weather"
    assert isinstance(call["args"]["city"], str)


def test_pydantic_ai_runs_tools(base_url: str, script: Script) -> None:
    ai = package("pydantic_ai")
    import openai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    called: list[tuple[str, int]] = []

    def weather(city: str, days: int = 1) -> str:
        called.append((city, days))
        return get_weather(city, days)

    async def answer() -> str:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="unused") as client:
            model = OpenAIChatModel("hermes", provider=OpenAIProvider(openai_client=client))
            return (
                await ai.Agent(model, tools=[ai.Tool(weather, name="get_weather")]).run("Weather?")
            ).output

    script.replies += [TWO_CALLS, "Sunny in both."]
    assert asyncio.run(answer()) == "Sunny in both."
    assert sorted(called) == [("Oslo", 2), ("Rome", 2)]  # concurrently


def test_litellm_receives_calls_in_streams(hermes: tuple[str, Script], script: Script) -> None:
    # without it, a list of prices is fetched
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = package("litellm")
    for prefix in ("openai", "hosted_vllm", "anthropic", "ollama_chat"):
        check_streams(litellm, prefix, hermes[0], script)


def check_streams(litellm: Any, prefix: str, address: str, script: Script) -> None:
    base = f"{address}/v1" if prefix in ("openai", "hosted_vllm") else address
    ask: dict[str, Any] = {
        "model": f"{prefix}/hermes",
        "api_base": base,
        "api_key": "unused",
        "tools": TOOLS,
        "max_retries": 0,
    }
    script.replies += [TWO_CALLS, TWO_CALLS, "Sunny."]
    messages: list[Any] = user("Weather?")
    message = litellm.completion(**ask, messages=messages).choices[0].message
    assert [json.loads(call.function.arguments)["city"] for call in message.tool_calls] == [
        "Oslo",
        "Rome",
    ]
    chunks = list(litellm.completion(**ask, messages=messages, stream=True))
    streamed = litellm.stream_chunk_builder(chunks, messages=messages).choices[0]
    assert [
        json.loads(call.function.arguments)["city"] for call in streamed.message.tool_calls
    ] == ["Oslo", "Rome"]
    assert streamed.finish_reason == "tool_calls"
    messages += [
        message.model_dump(),
        *(
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
            for call in message.tool_calls
        ),
    ]
    assert litellm.completion(**ask, messages=messages).choices[0].message.content == "Sunny."


def test_llm_runs_tools(base_url: str, script: Script, tmp_path: Path) -> None:
    need("llm")
    models = [
        {
            "model_id": "hermes",
            "model_name": "hermes",
            "api_base": base_url,
            "api_key_name": "minhub",
            "supports_tools": True,
        }
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models), encoding="utf-8")
    (tmp_path / "keys.json").write_text('{"minhub": "secret"}', encoding="utf-8")
    function = "def get_weather(city: str, days: int) -> str:\n    return 'sunny'\n"
    for stream in ([], ["--no-stream"]):
        script.replies += [CALL, "Sunny."]
        command = [
            sys.executable,
            "-m",
            "llm",
            "Weather?",
            "-m",
            "hermes",
            "--functions",
            function,
            "--td",
            *stream,
        ]
        environment = {
            **os.environ,
            "LLM_USER_PATH": str(tmp_path),
            "LLM_LOAD_PLUGINS": "",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=120
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip().endswith("Sunny.")
        assert "sunny" in result.stderr  # the result, with --td
