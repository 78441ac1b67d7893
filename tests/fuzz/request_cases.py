"""A request for each route that uses all parts of requests; the fuzzers change one value."""

from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z]", "maxLength": 9},
        "days": {"type": ["integer", "null"], "minimum": 1, "exclusiveMaximum": 9},
        "kind": {"enum": ["a", 1]},
        "all": {
            "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/x"}, {"const": 2}]},
            "maxItems": 2,
        },
    },
    "required": ["city"],
    "$defs": {"x": {"type": "number", "multipleOf": 2}},
}
FUNCTION = {"name": "weather", "description": "the weather", "parameters": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "name": "me", "content": [{"type": "text", "text": "Hi"}, "there"]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "weather",
        "content": [{"type": "image_url", "image_url": {}}],
    },
    {"role": "user", "content": "And?"},
]
LANGUAGES: dict[str, Any] = {"source_language": "", "target_language": ""}
BEAMS: dict[str, Any] = {
    "n": 2,
    "beams": 2,
    "length_penalty": 0.5,
    "early_stopping": "never",
    "no_repeat_ngram_size": 2,
    "use_beam_search": True,
    **LANGUAGES,
}
SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["x"],
    "logit_bias": {"5": -1},
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "stop_token_ids": [7],
    "bad_words": ["a"],
    "allowed_token_ids": [*range(40)],
    "ignore_eos": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
CHOICE = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}
NAMED = {"type": "function", "function": {"name": "weather"}}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 2}
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                      {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True,
                                  "content": [{"type": "text", "text": "sunny"}]}]},
]  # fmt: skip
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": None},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": {"weather": [1, "sunny"]}},
]
OLLAMA: dict[str, Any] = {
    "model": "hermes",
    "options": {
        "num_predict": 2,
        "temperature": 0.5,
        "top_k": 3,
        "repeat_penalty": 1.1,
        "stop": ["x"],
        "seed": 3,
    },
}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/v1/chat/completions",
        CHAT
        | SAMPLING
        | STREAM
        | {
            "logprobs": True,
            "top_logprobs": 2,
            "n": 2,
            "parallel_tool_calls": True,
            "reasoning_effort": "low",
        },
    ),
    ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": CHOICE, "stream": True}),
    ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": NAMED}),
    (
        "/v1/chat/completions",
        CHAT | {"functions": [FUNCTION], "function_call": {"name": "weather"}},
    ),
    (
        "/v1/chat/completions",
        CHAT
        | {
            "response_format": FORMAT,
            "chat_template_kwargs": {"enable_thinking": False},
            "truncate_prompt_tokens": 9,
        },
    ),
    ("/v1/chat/completions", CHAT | {"documents": [{"title": "a", "text": "b"}]}),
    (
        "/v1/chat/completions",
        CHAT | {"structured_outputs": {"choice": ["a", "b"]}, "continue_final_message": False},
    ),
    ("/v1/chat/completions", CHAT | {"guided_json": SCHEMA}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, **BEAMS}),
    (
        "/v1/completions",
        SAMPLING
        | {"prompt": ["Hi", [1, 2], [3, "a"]], "max_tokens": 2, "echo": True, "logprobs": 2, "n": 1}
        | STREAM,
    ),
    (
        "/v1/completions",
        {"prompt": {"prompt_string": "Hi"}, "n_predict": 2, "guided_regex": "[a-z]{2}"},
    ),
    (
        "/v1/responses",
        {
            "input": ITEMS,
            "instructions": "Be brief.",
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "weather"}],
            },
            "max_output_tokens": 2,
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
            "stream": True,
            "include": ["reasoning.encrypted_content"],
        },
    ),
    (
        "/v1/responses",
        {
            "input": "Hi",
            "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
            "max_output_tokens": 2,
            **LANGUAGES,
        },
    ),
    ("/v1/responses/input_tokens", {"input": ITEMS}),
    (
        "/v1/messages",
        {
            "messages": BLOCKS,
            "max_tokens": 2,
            "system": [{"type": "text", "text": "Be brief."}],
            "tools": [{"name": "weather", "description": "", "input_schema": SCHEMA}],
            "stream": True,
            "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            "stop_sequences": ["x"],
            "thinking": {"type": "disabled"},
            "metadata": {"user_id": "a"},
        },
    ),
    (
        "/v1/messages",
        {
            "messages": BLOCKS[:1],
            "max_tokens": 2,
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
            **LANGUAGES,
        },
    ),
    ("/v1/messages/count_tokens", {"messages": BLOCKS, "system": "Be brief."}),
    (
        "/v1/embeddings",
        {
            "input": ["Hi", [1, 2], {"prompt_string": "a"}],
            "encoding_format": "float",
            "dimensions": 4,
        },
    ),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    ("/v2/rerank", {"query": "a", "documents": ["b"], "top_n": 1, "max_tokens_per_doc": 4000}),
    ("/predict", {"inputs": [["a"], ["b", "c"]], "raw_scores": True, "truncate": True}),
    ("/embed_sparse", {"inputs": ["Hi", [1, 2]], "prompt_name": "query", "truncate": True}),
    (
        "/similarity",
        {
            "inputs": {"source_sentence": "a", "sentences": ["b"]},
            "parameters": {"prompt_name": "query", "truncate": True},
        },
    ),
    ("/fill-mask", {"inputs": ["a [MASK]"], "parameters": {"top_k": 2, "targets": ["a"]}}),
    ("/tokenize", {"content": "Hi", "add_special": True, "with_pieces": True}),
    (
        "/tokenize",
        {
            "messages": MESSAGES,
            "tools": [TOOL],
            "add_generation_prompt": True,
            "return_token_strs": True,
        },
    ),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", CHAT | {"tools": [TOOL], "chat_template_kwargs": {"a": {"b": [1]}}}),
    (
        "/api/chat",
        OLLAMA | {"messages": MESSAGES, "tools": [TOOL], "think": False, "keep_alive": "5m"},
    ),
    (
        "/api/chat",
        OLLAMA | LANGUAGES | {"messages": MESSAGES[1:2], "format": SCHEMA, "stream": False},
    ),
    ("/api/generate", OLLAMA | {"prompt": "Hi", "system": "a", "format": "json", "raw": True}),
    (
        "/api/embed",
        {
            "model": "hermes",
            "input": ["a", "b"],
            "truncate": True,
            "dimensions": 4,
            "options": {"num_ctx": 9},
        },
    ),
    ("/api/embeddings", {"model": "hermes", "prompt": "a"}),
    ("/api/show", {"name": "hermes", "verbose": True}),
    ("/models/unload", {"model": "unknown"}),
)
