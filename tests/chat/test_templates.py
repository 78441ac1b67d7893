"""Chat templates: sources in a repository, parity with transformers, and limits of untrusted
templates.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import jinja2
import pytest
import transformers
from paths import ROOT
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from minhub_py.chat.sandbox import PROGRAM, SANDBOX, TIMEOUT, Sandbox
from minhub_py.chat.templates import ChatTemplate, TemplateRejectionError, chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Together, these templates use the features of published templates.
TEMPLATES = {
    "chatml": CHATML,
    "alternating": (
        """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{% set system = messages[0]['content'].strip() %}
{% else %}{% set loop_messages = messages %}{% set system = '' %}{% endif %}
{% for message in loop_messages %}
  {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Roles must take turns: user, assistant, user, …') }}
  {% endif %}
  {% if message['role'] == 'user' %}
[Q]{% if loop.first and system %}{{ system ~ ' // ' }}{% endif %}{{ message['content'] | trim }}[/Q]
  {% else %}
 {{ message['content'] | trim }}{{ eos_token }}
  {% endif %}
{% endfor %}"""
    ),
    "no system": (
        """\
{%- if messages[0].role == 'system' -%}{{ raise_exception('A system prompt is not known here') }}{%- endif -%}
{%- for m in messages if m.content -%}<{{ m.role | upper }}>{{ m.content }}{%- endfor -%}"""
    ),
    "namespace": (
        """\
{% set ns = namespace(last=-1, users=0, seen=[]) %}
{% for message in messages %}
{% if message.role == 'user' %}
{% set ns.last = loop.index0 %}
{% set ns.users = ns.users + 1 %}
{% set ns.seen = ns.seen + [message.content | length] %}
{% endif %}
{% endfor %}
{{ ns.users }} of {{ messages | length }}: {{ ns.seen | join(', ') }}
{% for message in messages[::-1] %}{{ message.role[0] }}{% if loop.last %}.{% else %},{% endif %}{% endfor %}
{{ messages[ns.last].content if ns.last >= 0 else 'nobody' }}"""
    ),
    "loop controls": (
        """\
{% for message in messages %}
    {%- if not message.content %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{{ '…' }}{% break %}{% endif %}
{{ loop.index }}/{{ loop.length }} {{ loop.previtem.role if loop.previtem is defined else '-' }} {{ message.content }}
{% endfor %}"""
    ),
    "generation": (
        """\
{% for message in messages %}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% else %}{{ message.role }}: {{ message.content }}
{% endif %}
{% endfor %}"""
    ),
    "macros and json": (
        """\
{%- macro block(name, value) -%}
<{{ name }}>{{ caller() if caller is defined else value }}</{{ name }}>
{%- endmacro -%}
{{ {'b': "<é & 'x'>", 'a': [1, none, true]} | tojson }}{{ [1] | tojson(indent=2) }}
{%- for message in messages %}{% call block(message.role, '') %}{{ message | tojson }}{% endcall %}{% endfor %}
{{ dict(a=1) }} {{ {'z': 1, 'a': 2} | dictsort }} {{ messages | map(attribute='role') | unique | list }}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}{{ undefined_name }}
{{ tools }}{{ documents is none }}"""
    ),
    "thinking": (
        """\
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|' ~ message.role ~ '|>' ~ content.replace('\\r\\n', '\\n') -}}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>
{%- endif -%}{%- endif -%}
{{ strftime_now('%Y') | int > 2000 }}{{ '%s-%03d' | format('a', 7) }}{{ "{}".format(3) }}"""
    ),
}


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


SYSTEM, HI = message("system", "Be brief."), message("user", "Hi")
CONVERSATIONS = {
    "one": [HI],
    "system": [SYSTEM, HI],
    "turns": [
        HI,
        message("assistant", "Hello"),
        message("user", " How?\n\n  x <b>&amp; 'q' \"ü\" 🙂\r\n"),
    ],
    "empty reply": [SYSTEM, HI, message("assistant", ""), message("user", "and?")],
    "users": [SYSTEM, HI, message("user", "are you there?")],
    "thoughts": [HI, message("assistant", "<think>\nhm\n</think>\n\nyes"), message("user", "so")],
    "reasoning": [HI, message("assistant", "yes", reasoning_content="hm"), message("user", "so")],
    "a reply at the end": [HI, message("assistant", "Hello")],
    "system alone": [SYSTEM],
}


@pytest.fixture(scope="module")
def reference() -> Any:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)


def rendered_by_transformers(
    reference: Any, text: str, messages: Any, prompt: bool, variables: Any
) -> tuple[str | None, str]:
    """The text, or None and the error message."""
    try:
        return (
            reference.apply_chat_template(
                messages,
                chat_template=text,
                tokenize=False,
                add_generation_prompt=prompt,
                **variables,
            ),
            "",
        )
    except Exception as error:  # whatever jinja raises
        return None, str(error)


def check_equal(reference: Any, text: str, **variables: Any) -> tuple[int, int]:
    """Compare all conversations. Returns the numbers of equal texts and of equal errors."""
    template = ChatTemplate("template", None, TOKENS, {"default": text}, "the chat template")
    equal = rejected = 0
    for name, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            expected, error = rendered_by_transformers(reference, text, messages, prompt, variables)
            if expected is not None:
                assert (
                    template.render(messages, add_generation_prompt=prompt, **variables) == expected
                ), name
                equal += 1
                continue
            with pytest.raises(ValueError) as raised:  # noqa: PT011  # the message is compared below
                template.render(messages, add_generation_prompt=prompt, **variables)
            assert " ".join(error.split())[:60] in " ".join(str(raised.value).split()), name
            rejected += 1
    return equal, rejected


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(reference: Any, name: str) -> None:
    assert sum(check_equal(reference, TEMPLATES[name])) == 18
    check_equal(reference, TEMPLATES[name], enable_thinking=False, custom={"a": [1, 2]})


def test_messages_are_reduced_to_plain_json() -> None:
    """Text parts are joined, null fields and empty calls are removed, and objects and callables are
    errors.
    """
    template = ChatTemplate("template", None, TOKENS, {"default": "{{ messages | tojson }}"}, "it")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    shown = json.loads(template.render([message("user", parts, name=None, tool_calls=[])]))
    assert shown == [{"role": "user", "content": "a\nb"}]
    for wrong, error in (
        ([message("user", [{"type": "image_url", "image_url": {}}])], "a part of type 'image_url'"),
        ([message("user", 7)], "must be a string or a list of parts, not 7"),
        ([message("user", "a", other=object())], "plain JSON"),
        ([], "messages must be a list"),
        ("Hi", "messages must be a list"),
        (["Hi"], "a message must be"),
        ([{"content": "Hi"}], "a message must be"),
    ):
        with pytest.raises(ValueError, match=error):
            template.render(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="plain JSON"):
        template.render([HI], tool=print)


def test_a_rejection_has_the_message_of_the_template() -> None:
    template = ChatTemplate("template", None, TOKENS, {"default": TEMPLATES["no system"]}, "it")
    with pytest.raises(
        TemplateRejectionError, match="rejects the messages: A system prompt is not known here"
    ):
        template.render([SYSTEM, HI])


TOOL_USE = """\
tools {{ tools | length }} {{ tools | tojson }}
{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}<call>{{ m.tool_calls[0].function | tojson }}
{% endif %}{% endfor %}"""

HOSTILE = {
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a huge number": "{{ (9 ** 99999999) % 7 }}",
    "a long text": "{{ 'x' * 10 ** 12 }}",
    "doubling": (
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{%"
        " endfor %}"
    ),
    "laughs": (
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor"
        " %}{{ n.x }}"
    ),
    "padding": "{{ 'x'.center(10 ** 12) }}",
    "much output": "{% for i in range(99999) %}{{ 'x' * 10 ** 5 }}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "a filter of attributes": (
        "{{ ([raise_exception] | map(attribute='__globals__') | first).keys() }}"
    ),
    "an include": "{% include '/etc/hostname' %}",
    "an import": "{% import '/etc/hostname' as x %}",
    "a change": "{{ messages.append(1) }}",
    "a hidden name": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "syntax": "{% if %}",
}


@pytest.fixture
def hasty() -> Any:
    sandbox = Sandbox()
    sandbox.render("", [], {})  # starts the process
    sandbox.timeout = 1
    yield sandbox
    sandbox.end()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_an_error_of_one_line(hasty: Sandbox, name: str) -> None:
    """The next template renders normally."""
    before = time.monotonic()
    answer = hasty.render(HOSTILE[name], [HI], {})
    hasty.timeout = TIMEOUT  # for the start of another process on a busy machine
    assert time.monotonic() - before < 60  # without a limit, it does not end
    assert list(answer) == ["error"], answer
    assert "open files" not in answer["error"]
    assert hasty.render(CHATML, [HI], {})["text"] == "<|im_start|>user\nHi<|im_end|>\n"


def test_filters_that_import_modules_render_in_the_sandbox(hasty: Sandbox) -> None:
    """Jinja imports some modules in a filter's first call, when the process cannot open files
    any more.
    """
    environment, text = jinja2.Environment(), "one <b>two</b> &amp; http://three.org/a"
    compared = 0
    for name in sorted(environment.filters.keys() - {"random", "tojson"}):
        for arguments in ("", "(3)", "('b')"):
            template = f"{{{{ value | {name}{arguments} }}}}"
            try:
                expected = environment.from_string(template).render(value=text)
            except Exception:  # the filter needs other arguments
                continue
            if " at 0x" not in expected:
                assert hasty.render(template, [], {"value": text}) == {"text": expected}, template
                compared += 1
    assert compared > 40


def test_code_that_escapes_from_the_sandbox_cannot_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor start processes or open sockets."""
    source = (ROOT / "minhub_py" / "chat" / "render.py").read_text(encoding="utf-8")
    anchor = "    return environment\n"
    opened = source.replace(anchor, f"    environment.filters['run'] = eval\n{anchor}")
    assert opened != source
    (tmp_path / "render.py").write_text(opened, encoding="utf-8")
    monkeypatch.setattr("minhub_py.chat.sandbox.PROGRAM", tmp_path / "render.py")
    sandbox = Sandbox()
    try:
        assert sandbox.render("{{ '6 * 7' | run }}", [], {}) == {"text": "42"}
        for code in (
            "open('/etc/passwd').read()",
            "__import__('os').popen('id').read()",
            "__import__('socket').socket()",
        ):
            assert (
                "Too many open files"
                in sandbox.render(f"{{{{ {code!r} | run }}}}", [], {})["error"]
            )
        assert "too much" in sandbox.render("{{ 'bytearray(10 ** 10)' | run }}", [], {})["error"]
        assert sandbox.render("{{ '__import__(\"os\")._exit(3)' | run }}", [], {}) == {
            "error": "the template ended its process"
        }
        assert sandbox.render("{{ '6 * 7' | run }}", [], {}) == {"text": "42"}
    finally:
        sandbox.end()


def test_threads_receive_their_own_results(hasty: Sandbox) -> None:
    hasty.timeout = TIMEOUT
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        for _ in range(10):
            answers[number] = hasty.render(
                "{{ messages[0].content }}", [message("user", str(number))], {}
            )["text"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: str(number) for number in range(8)}


# Sources of templates


SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")


def write_folder(folder: Path, **settings: Any) -> Path:
    """A model folder with a byte tokenizer, special tokens, and `settings` as
    tokenizer_config.json.
    """
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: id for id, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def load(folder: Path) -> ChatTemplate:
    return chat_template_of(folder, read_tokenizer(folder))


def test_sources_of_templates_and_their_precedence(tmp_path: Path) -> None:
    """chat_template.jinja, then tokenizer_config.json with one template or several."""
    folder = write_folder(tmp_path / "m", chat_template="config", eos_token={"content": "</s>"})
    assert load(folder).render([HI]) == "config"
    assert chat_template_of(None, read_tokenizer(folder)).render([HI]) == "config"
    (folder / "chat_template.jinja").write_text("file {{ eos_token }}", encoding="utf-8")
    assert load(folder).render([HI]) == "file </s>"
    additional = folder / "additional_chat_templates"
    additional.mkdir()
    (additional / "tool_use.jinja").write_text(TOOL_USE, encoding="utf-8")
    assert load(folder).render([HI], tools=[]) == "file </s>"
    assert load(folder).render([HI], tools=[{"name": "f"}]).startswith("tools 1")
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template.jinja is not UTF-8"):
        load(folder)

    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder = write_folder(tmp_path / "named", chat_template=named)
    assert load(folder).render([HI]) == "d"
    folder = write_folder(tmp_path / "wrong", chat_template=[1])
    with pytest.raises(
        ValueError, match=r"tokenizer_config.json: chat_template\[0\] must be an object, not 1"
    ):
        load(folder)


def test_a_gguf_file_has_a_template(tmp_path: Path, bpe_folder: Path) -> None:
    config = transformers.GPT2Config(vocab_size=600, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    vocabulary = json.loads((bpe_folder / "vocab.json").read_text(encoding="utf-8"))

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
        writer.add_token_types([1] * 599 + [3])
        writer.add_token_merges(
            (bpe_folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
        )
        writer.add_eos_token_id(599)
        writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}")

    path = gguf_files.write(
        tmp_path / "m.gguf", transformers.GPT2LMHeadModel(config), tokenizer=add
    )
    tokenizer = read_tokenizer(path)
    for source in (path, None):
        template = chat_template_of(source, tokenizer)
        assert (template.kind, template.render([HI])) == ("template", "Hi<|endoftext|>")
        assert template.encode([HI])[-1] == 599
    # the template does not write replies
    assert chat_template_of(path, tokenizer).end_ids == frozenset()


def test_a_prompt_has_exactly_one_bos_token(tmp_path: Path) -> None:
    """If the template, the tokenizer or both add it; no BOS token if neither does."""
    for number, (template, add, expected) in enumerate(
        (
            ("{{ bos_token }}{{ messages[0].content }}", True, 1),
            ("{{ messages[0].content }}", True, 1),
            ("{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", True, 1),
            ("{{ bos_token }}{{ messages[0].content }}", False, 1),
            ("{{ messages[0].content }}", False, 0),
        )
    ):
        folder = write_folder(tmp_path / str(number), bos_token="<s>", chat_template=template)
        if add:
            settings = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
            settings["post_processor"] = {
                "type": "TemplateProcessing",
                "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
            }
            (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
        ids = load(folder).encode([HI])
        assert (ids[:expected], ids.count(258), len(ids)) == (
            [258] * expected,
            expected,
            2 + expected,
        )


def test_end_ids_are_the_first_special_token_after_a_reply(tmp_path: Path) -> None:
    template = load(write_folder(tmp_path / "a", chat_template=CHATML))
    assert template.end_ids == {257}
    assert (template.stops, template.note) == ((), None)
    rejecting = load(write_folder(tmp_path / "b", chat_template="{{ raise_exception('no') }}"))
    assert rejecting.end_ids == frozenset()


def test_continue_final_message_appends_the_reply_to_its_prompt(tmp_path: Path) -> None:
    reply = message("assistant", "<think>\nhm\n</think>\n\nYes, it is ")
    folder = write_folder(tmp_path / "m", chat_template=TEMPLATES["thinking"])
    for template in (load(folder), load(write_folder(tmp_path / "plain"))):
        for previous in ([HI], [HI, message("assistant", "Hello"), message("user", "How?")]):
            text = template.render([*previous, reply], continue_final_message=True)
            assert text == template.render(previous) + reply["content"]
        ids = template.encode([HI, reply], continue_final_message=True)
        assert ids == template.tokenize(template.render([HI]) + reply["content"])
        for messages in ([HI], [reply], [HI, {**reply, "reasoning_content": "hm"}]):
            with pytest.raises(
                ValueError, match="continue_final_message requires an assistant message"
            ):
                template.render(messages, continue_final_message=True)


def test_models_without_a_template_continue_a_plain_dialogue(tmp_path: Path) -> None:
    """Or DialoGPT's format, if config.json identifies the model."""
    folder = write_folder(tmp_path / "m", eos_token="</s>")
    conversation = [SYSTEM, HI, message("assistant", "Hello"), message("user", "How?")]
    plain = load(folder)
    assert (
        plain.render(conversation)
        == "Be brief.\nUser: Hi\nAssistant: Hello\nUser: How?\nAssistant:"
    )
    assert plain.render([HI], add_generation_prompt=False) == "User: Hi"
    assert (plain.stops, plain.end_ids) == (("\nUser:",), {259})
    assert "no chat template" in str(plain.note)

    settings = {
        "task_specific_params": {"conversational": {"max_length": 1000}},
        "eos_token_id": 259,
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "tokenizer_config.json").unlink()
    bot = load(folder)
    assert (bot.kind, bot.end_ids, bot.stops) == ("dialogue", {259}, ())
    assert bot.render(conversation[1:]) == "Hi</s>Hello</s>How?</s>"
    assert bot.encode(conversation[1:])[-1] == 259
    assert "DialoGPT" in str(bot.note)
    with pytest.raises(TemplateRejectionError, match="does not support system messages"):
        bot.render(conversation)


def test_end_stops_the_rendering_process() -> None:
    SANDBOX.start()
    process = SANDBOX._process
    assert process is not None
    assert process.poll() is None
    SANDBOX.end()
    assert process.returncode is not None


def test_templates_are_rendered_where_only_the_parents_path_has_the_packages() -> None:
    """As with PYTHONPATH, which the isolated process ignores."""
    request = {"template": "{{ messages[0].content }}", "messages": [{"content": "hi"}]}
    lines = [json.dumps(sys.path), json.dumps(request | {"variables": {}}), ""]
    command = [sys.executable, "-IS", str(PROGRAM)]
    result = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert json.loads(result.stdout) == {"text": "hi"}, result.stderr
