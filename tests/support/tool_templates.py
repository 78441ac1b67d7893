"""Chat templates with the tool formats of published models, and tokenizers with their markers."""

import re
from typing import Any

from paths import TEXT
from tokenizers import AddedToken, Tokenizer

from minhub_py.chat.templates import ChatTemplate
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
MARKER = re.compile(
    r"<[|｜][^<>\s'\"]+[|｜]>|</?[a-z_]+>|\[/?[A-Z_]+\]|<\|\"\|>|<\|[a-z_]+>|<[a-z_]+\|>"
)


def template_of(
    user: str,
    call: str,
    tools: str,
    *,
    many: str = "",
    assistant: str = "<|im_start|>assistant\n",
    end: str = "<|im_end|>\n",
    reasoning: str = "",
    generation: str = "",
    single: bool = False,
    reply: str = "",
    stop: str = "",
) -> str:
    """A template. call: one call, as `call.name` and `call.arguments`.    many: a list of calls."""
    all_calls = (
        many or "{% for t in m.tool_calls %}{% set call = t.function %}" + call + "{% endfor %}"
    )
    check = (
        "{% if m.tool_calls | length > 1 %}{{ raise_exception('only single calls') }}{% endif %}"
        if single
        else ""
    )
    return (
        "{% if tools %}<|im_start|>system\n"
        + tools
        + end
        + "{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}"
        + assistant
        + reasoning
        + "{% if m.tool_calls %}"
        + check
        + "{{ m.content }}"
        + all_calls
        + "{% else %}"
        + reply
        + "{{ m.content }}{% endif %}"
        + (stop or end)
        + "{% elif m.role == 'tool' %}<|im_start|>tool\n{{ m.content }}"
        + end
        + "{% else %}"
        + user
        + end
        + "{% endif %}{% endfor %}{% if add_generation_prompt %}"
        + assistant.rstrip(" ")
        + generation
        + "{% endif %}"
    )


USER = "<|im_start|>{{ m.role }}\n{{ m.content }}"
LIST = "{{ tools | map(attribute='function') | list | tojson }}"
THINK = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
SWITCH = (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
JSON_CALL = '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}'
TEMPLATES = {
    "hermes": template_of(
        USER, f"<tool_call>\n{JSON_CALL}\n</tool_call>", LIST, reasoning=THINK, generation=SWITCH
    ),
    "list": template_of(
        USER,
        "",
        LIST,
        many="[TOOL_CALLS][{% for t in m.tool_calls %}{% set call = t.function %}"
        + JSON_CALL[:-1]
        + ', "id": "{{ t.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]',
    ),
    "named": template_of(
        USER,
        "[TOOL_CALLS]{{ call.name }}[CALL_ID]{{ t.id }}[ARGS]{{ call.arguments | tojson }}",
        LIST,
    ),
    "tags": template_of(
        USER,
        "<tool_call>\n<function={{ call.name }}>\n{% for k, v in call.arguments.items()"
        " %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor"
        " %}</function>\n</tool_call>",
        LIST,
        generation="<think>\n",
        reasoning="<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n",
    ),
    "python": template_of(
        USER,
        "",
        LIST,
        many=(
            "<|tool_call_start|>[{% for t in m.tool_calls %}{{ t.function.name }}({% for k, v in"
            " t.function.arguments.items() %}{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v"
            " }}{% endif %}{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %},"
            " {% endif %}{% endfor %}]<|tool_call_end|>"
        ),
    ),
    "literal": template_of(
        USER,
        "<|tool_call>call:{{ call.name }}{{ '{' }}{% for k, v in call.arguments.items() %}{{ k"
        ' }}:{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}{% if not'
        " loop.last %},{% endif %}{% endfor %}{{ '}' }}<tool_call|>",
        LIST,
    ),
    "bare": template_of(
        USER,
        '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}',
        LIST,
        single=True,
    ),
    "channels": template_of(
        "<|start|>user<|message|>{{ m.content }}",
        " to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments |"
        " tojson }}<|call|>",
        LIST,
        assistant="<|start|>assistant",
        end="<|end|>",
        reply="<|channel|>final<|message|>",
        single=True,
        stop="{% if not m.tool_calls %}<|return|>{% endif %}",
    ),
    "without tools": template_of(USER, "", "").replace("{% if tools %}", "{% if false %}"),
}


def marked_tokenizer(template: str, *, markers: bool = True) -> Tokenizer:
    """A byte-level BPE of 400 tokens, with a template's markers as special tokens."""
    tokenizer = train_byte_level_bpe([TEXT.read_text(encoding="utf-8")], 400)
    matches = (
        {*MARKER.findall(template), *(() if markers else TOKENS.values())}
        if markers
        else {"<|im_end|>"}
    )
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in sorted(matches | set(TOKENS.values()))
        ]
    )
    return tokenizer


def chat_template(text: str, *, markers: bool = True) -> ChatTemplate:
    return ChatTemplate(
        "template",
        marked_tokenizer(text, markers=markers),
        TOKENS,
        {"default": text},
        "the template",
    )


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "a city", "maxLength": 12},
                   "days": {"type": "integer", "minimum": 0, "maximum": 99}, "detailed": {"type": "boolean"},
                   "unit": {"enum": ["C", "it's F"]}},
    "required": ["city"], "additionalProperties": False,
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA},
    },
    {"type": "function", "function": {"name": "calendar.list"}},
]
