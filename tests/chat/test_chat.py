"""Conversations: turns, settings, and the prefix cache between replies."""

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from guarantees import assert_same
from tokenizers import Tokenizer

from minhub_py import Chat, from_pretrained, llama, save_pretrained, tokenizer_from_pretrained
from minhub_py.chat.templates import ChatTemplate, TemplateRejectionError, chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}"
    + TEMPLATE
)
SYSTEM = "Be brief."


def a_model(context: int = 256) -> Any:
    """A random model with large logits, so that a wrong key changes the tokens."""
    torch.manual_seed(0)
    model = llama(
        vocab_size=402,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=None,
        bos_token_id=None,
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3) if weight.dim() > 1 else weight
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return a_model()


def a_chat(model: Any, tokenizer: Tokenizer, text: str = TEMPLATE, **settings: Any) -> Chat:
    template = ChatTemplate("template", tokenizer, {}, {"default": text}, "the template")
    system = settings.pop("system", SYSTEM)
    return Chat(model, tokenizer, system, template=template, **{"max_new_tokens": 12, **settings})


def test_replies_are_the_same_with_cached_and_recomputed_turns(
    model: Any, tokenizer: Tokenizer
) -> None:
    """Also with another conversation of the same model in between."""
    chat = a_chat(model, tokenizer, seed=5, top=3)
    other = a_chat(model, tokenizer, system="Another.", seed=6)
    replies = []
    for text in ("Good morning!", "How do you feel today?", "And now?"):
        replies.append(chat.say(text))
        other.say(text)
    assert [reply.kept > 0 for reply in replies] == [False, True, True]
    assert replies[2].kept > replies[2].read

    fresh = a_chat(model, tokenizer)
    fresh.from_json(chat.to_json())
    assert fresh.undo() == "And now?"
    fresh.reply_count -= 1
    again = fresh.say("And now?")
    assert again.kept == 0
    for name in ("text", "ids", "logprobs", "top", "end", "seed"):
        assert_same(getattr(again, name), getattr(replies[2], name))
    assert len(set(map(tuple, (reply.ids for reply in replies)))) == 3
    for id, logprob, top in zip(again.ids, again.logprobs, again.top, strict=True):
        assert dict(top).get(id, logprob) == logprob
        assert [p for _, p in top] == sorted((p for _, p in top), reverse=True)


def test_a_seed_determines_the_replies_and_their_regenerations(
    model: Any, tokenizer: Tokenizer
) -> None:
    chats = [a_chat(model, tokenizer, seed=1) for _ in range(2)]
    first, second = (chat.say("Hi") for chat in chats)
    assert first.ids == second.ids
    other = chats[0].regenerate()
    assert (other.ids != first.ids, other.kept > 0, chats[0].reply_count) == (True, True, 2)
    assert chats[1].regenerate().ids == other.ids
    torch.manual_seed(3)
    free = a_chat(model, tokenizer).say("Hi")
    torch.manual_seed(3)
    assert a_chat(model, tokenizer).say("Hi").ids == free.ids
    assert a_chat(model, tokenizer, seed=free.seed).say("Hi").ids == free.ids


def test_undone_forked_and_loaded_conversations_continue_identically(
    model: Any, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    chat = a_chat(model, tokenizer, seed=2, temperature=0.5, stop=["zzz"])
    for text in ("one", "two", "three"):
        chat.say(text)
    fork = chat.fork(1)
    assert [turn.text for turn in fork.turns] == ["one", chat.turns[1].text]
    fork.say("else")
    assert len(chat.turns) == 6
    assert fork.last is not None
    assert fork.last.kept > 0
    chat.save(tmp_path / "chat.json")
    assert chat.undo() == "three"
    loaded = a_chat(model, tokenizer, system=None)
    loaded.load(tmp_path / "chat.json")
    assert (loaded.settings, loaded.system, loaded.turns[:4]) == (chat.settings, SYSTEM, chat.turns)
    assert [message["role"] for message in loaded.messages] == [
        "system",
        *["user", "assistant"] * 3,
    ]
    chat.clear()
    assert (chat.messages, chat.last) == ([{"role": "system", "content": SYSTEM}], None)
    with pytest.raises(ValueError, match="no message to undo"):
        chat.undo()
    with pytest.raises(ValueError, match="no reply to regenerate"):
        chat.regenerate()
    with pytest.raises(ValueError, match="exchanges must be at most 3"):
        loaded.fork(4)
    saved = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))
    for corrupt in (
        [],
        {},
        saved | {"turns": saved["turns"][1:]},
        saved | {"made": -1},
        saved | {"turns": [1]},
        saved | {"settings": {"x": 1}},
        saved | {"minhub_chat": 2},
    ):
        (tmp_path / "corrupt.json").write_text(json.dumps(corrupt), encoding="utf-8")
        with pytest.raises(ValueError, match=r"corrupt.json: not a saved chat"):
            loaded.load(tmp_path / "corrupt.json")
    (tmp_path / "corrupt.json").write_text("{", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"corrupt.json is not valid JSON .*: load a file that `save` wrote"
    ):
        loaded.load(tmp_path / "corrupt.json")
    assert len(loaded.turns) == 6


def test_a_reply_ends_at_the_limit_a_stop_string_or_the_templates_end_token(
    model: Any, tokenizer: Tokenizer
) -> None:
    cut = a_chat(model, tokenizer, temperature=0).say("Hi")
    assert (cut.end, len(cut.ids), cut.seconds > 0) == ("length", 12, True)
    first = tokenizer.decode(cut.ids[:1])
    assert first
    chat = a_chat(model, tokenizer, temperature=0, stop=first)
    empty = chat.say("Hi")
    assert (empty.text, empty.end, len(empty.ids)) == ("", "stop", 1)
    assert chat.turns[1].text == ""
    assert chat.say("Are you there?").end in ("stop", "length")
    assert chat.template.end_ids == {401}
    ended = ChatTemplate("template", tokenizer, {}, {"default": TEMPLATE}, "it")
    ended.__dict__["end_ids"] = frozenset(cut.ids[2:3])
    reply = Chat(model, tokenizer, SYSTEM, template=ended, max_new_tokens=12, temperature=0).say(
        "Hi"
    )
    assert (reply.end, reply.ids) == ("stop", cut.ids[: cut.ids.index(cut.ids[2]) + 1])


def test_an_interrupted_reply_keeps_the_generated_text(model: Any, tokenizer: Tokenizer) -> None:
    chat = a_chat(model, tokenizer, seed=1)
    deltas = chat.stream("Hi")
    assert chat.turns == []  # generation starts with the first delta
    received = [next(deltas), next(deltas)]
    deltas.close()
    assert chat.last is not None
    assert (chat.last.end, chat.last.text) == ("interrupted", "".join(received))
    assert 0 < len(chat.last.ids) < 12
    following = chat.say("Go on")
    assert following.kept > 0
    computed = a_chat(model, tokenizer)
    computed.from_json(chat.to_json())
    computed.undo()
    computed.reply_count -= 1
    assert_same(computed.say("Go on").logprobs, following.logprobs)


def test_ctrl_c_within_a_step_clears_the_prefix_cache(
    model: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later replies are bitwise identical to those without a cache."""
    from minhub_py.inference.batch import Batch

    chat = a_chat(model, tokenizer, seed=1)
    chat.say("Hi")
    step, count = Batch.step, [0]

    def interrupted(self: Batch) -> Any:
        count[0] += 1
        if count[0] == 4:
            self.cache.advance([1])
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Batch, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat.say("Tell me more")
    monkeypatch.undo()
    assert chat.last is not None
    assert (chat.last.end, len(chat.last.ids)) == ("interrupted", 3)
    reply = chat.say("Go on")
    assert reply.kept == 0
    computed = a_chat(model, tokenizer)
    computed.from_json(chat.to_json())
    computed.undo()
    computed.reply_count -= 1
    assert_same(computed.say("Go on").logprobs, reply.logprobs)


def test_a_conversation_does_not_change_if_the_template_rejects_it(
    model: Any, tokenizer: Tokenizer
) -> None:
    chat = a_chat(model, tokenizer, ALTERNATING)
    with pytest.raises(TemplateRejectionError, match="no system prompt"):
        chat.say("Hi")
    assert (chat.turns, chat.reply_count) == ([], 0)
    chat.system = None
    first = chat.say("Hi")
    chat.system = SYSTEM
    with pytest.raises(TemplateRejectionError):
        chat.regenerate()
    assert chat.last is first


def test_turns_beyond_the_context_are_dropped_in_pairs(tokenizer: Tokenizer) -> None:
    """The system prompt remains; a message that exceeds the context is an error."""
    chat = a_chat(a_model(context=96), tokenizer, seed=1)
    dropped = []
    for number in range(6):
        dropped.append(chat.say(f"word {number} and some more").dropped)
    assert dropped[0] == 0
    assert dropped[-1] > 0
    assert all(number % 2 == 0 for number in dropped)
    assert len(chat.turns) == 12
    ids, _ = chat._prompt(chat.turns[0], 12)
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith(
        f"<|im_start|>system\n{SYSTEM}<|im_end|>"
    )
    before = list(chat.turns)
    with pytest.raises(
        ValueError, match=r"has \d+ tokens, but the context has room for 95: shorten it"
    ):
        chat.say("long " * 60)
    assert chat.turns == before
    # The remaining context limits the reply.
    cut = a_chat(a_model(context=96), tokenizer, max_new_tokens=500).say("Hi")
    assert (cut.end, cut.read + len(cut.ids)) == ("length", 96)


def test_changed_weights_invalidate_the_prefix_cache(tokenizer: Tokenizer) -> None:
    model = a_model()
    chat = a_chat(model, tokenizer, seed=1)
    chat.say("Hi")
    with torch.no_grad():
        next(iter(model.parameters())).mul_(1.5)
    assert chat.say("Hi again").kept == 0
    assert chat.say("And again").kept > 0


def test_sampling_defaults_come_from_the_model(tmp_path: Path) -> None:
    """generation_config.json, else temperature 0.7 and top_p 0.95; "auto" restores them."""
    name = "minhub/shakespeare-gpt2"
    plain = Chat(from_pretrained(name), tokenizer_from_pretrained(name))
    assert (plain.settings.temperature, plain.settings.top_p, plain.settings.top_k) == (
        0.7,
        0.95,
        None,
    )
    folder = tmp_path / "model"
    save_pretrained(plain.model, folder, plain.tokenizer)
    (folder / "generation_config.json").write_text(
        '{"temperature": 0.3, "top_k": 7, "repetition_penalty": 1.1}'
    )
    chat = Chat(from_pretrained(folder), tokenizer_from_pretrained(folder), temperature=1.5)
    own = {"temperature": 0.3, "top_k": 7, "top_p": None, "repetition_penalty": 1.1}
    assert {key: getattr(chat.settings, key) for key in own} == own | {"temperature": 1.5}
    chat.set(temperature="auto", top_k=None)
    assert {key: getattr(chat.settings, key) for key in own} == own | {"top_k": None}
    reply = chat.say("Hi", temperature=2.0, top_k="auto", seed=3, max_new_tokens=20)
    assert chat.settings.temperature == 0.3
    chat.undo()
    explicit = Chat(
        chat.model, chat.tokenizer, seed=3, max_new_tokens=20, **own | {"temperature": 2.0}
    )
    assert explicit.say("Hi").ids == reply.ids
    with pytest.raises(ValueError, match="seed"):
        chat.set(seed="auto")


def test_a_chat_loads_a_model_and_its_tokenizer_by_name(
    model: Any, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_pretrained(model, tmp_path, tokenizer)
    expected = Chat(model, tokenizer).say("Hi", max_new_tokens=8, temperature=0)
    assert Chat(tmp_path).say("Hi", max_new_tokens=8, temperature=0).ids == expected.ids
    with pytest.raises(ValueError, match=r"Chat\(name\) loads both"):
        Chat(model)


def test_replies_have_all_sampling_settings(model: Any, tokenizer: Tokenizer) -> None:
    chat = a_chat(model, tokenizer, temperature=0)
    first = chat.say("Hi", max_new_tokens=8)
    assert (
        first.ids[0] not in chat.regenerate(max_new_tokens=8, logit_bias={first.ids[0]: -100}).ids
    )
    with pytest.raises(ValueError, match="min_p must be between 0"):
        chat.set(min_p=2)
    saved = a_chat(model, tokenizer)
    chat.set(logit_bias={3: 1.5})
    saved.from_json(json.loads(json.dumps(chat.to_json())))
    assert saved.settings == chat.settings


def test_chats_and_replies_have_a_repr_of_one_line(model: Any, tokenizer: Tokenizer) -> None:
    chat = a_chat(model, tokenizer, system="Be brief. " * 20, temperature=0.5)
    reply = chat.say("Hi", top=3, max_new_tokens=4)
    assert re.fullmatch(r"<Reply '.*': 4 tokens in \d+\.\d\d s, end='length'>", repr(reply))
    assert str(reply) == reply.text
    assert html.escape(reply.text) in reply._repr_html_()
    assert "<small>4 tokens in " in reply._repr_html_()
    kind = type(model).__name__
    assert repr(chat).startswith(
        f"<Chat with {kind}, 1 message with replies, system prompt 'Be brief. Be brief."
    )
    assert repr(chat).endswith(
        "…', temperature=0.5, top_k=None, top_p=0.95, repetition_penalty=1.0>"
    )
    assert len(repr(chat.turns)) < 300


def test_invalid_arguments_are_rejected(model: Any, tokenizer: Tokenizer) -> None:
    chat = a_chat(model, tokenizer)
    for text in ("", "  ", 7, None):
        with pytest.raises(ValueError, match="must be a string that is not blank"):
            chat.say(text)  # type: ignore[arg-type]
    for settings, message in (
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        (
            {"heat": 1},
            "unknown setting heat; the settings of a chat are max_new_tokens, temperature",
        ),
        ({"seed": "x"}, "seed"),
        ({"seed": [1]}, "seed must be a whole number, not"),
        ({"top": -1}, "top"),
        ({"stop": [""]}, "empty"),
        ({"stop": 7}, "stop"),
    ):
        with pytest.raises(ValueError, match=message):
            chat.say("Hi", **settings)
    with pytest.raises(ValueError, match="system must be a string"):
        a_chat(model, tokenizer, system=7)
    with pytest.raises(ValueError, match="takes a model, not a tokenizer"):
        Chat(tokenizer, model)
    with pytest.raises(ValueError, match=r"tokenizers.Tokenizer"):
        Chat(model, "gpt2")
    with pytest.raises(ValueError, match="context"):
        Chat(model, tokenizer, context=1)
    assert chat.turns == []


def test_a_schema_constrains_the_reply(
    model: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with random weights; the following replies are free text."""
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    chat = a_chat(model, tokenizer, seed=3, max_new_tokens=60)
    reply = chat.say("How are you?", schema=schema)
    assert json.loads(reply.text)["mood"] in ("good", "bad")
    assert reply.end == "stop"
    assert json.loads(chat.regenerate(schema=schema).text)
    assert not chat.say("And now?").text.startswith("{")
    assert json.loads("".join(chat.fork().stream("Well?", schema=schema)))
    for wrong, message in (
        ({"type": "hiccup"}, "hiccup"),
        ({"const": object()}, "invalid JSON"),
        (3, "invalid JSON"),
    ):
        with pytest.raises(ValueError, match=message):
            chat.say("How?", schema=wrong)
    assert len(chat.turns) == 4
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"pip install 'minhub_py\[json\]'"):
        a_chat(model, tokenizer).say("How?", schema=schema)


def test_an_lstm_recomputes_its_state_for_each_reply() -> None:
    """A recurrent state cannot return to an earlier position."""
    name = "minhub/shakespeare-lstm"
    from minhub_py import tokenizer_from_pretrained

    chat = Chat(from_pretrained(name), tokenizer_from_pretrained(name), seed=1, max_new_tokens=20)
    assert chat.template.kind == "plain"
    first, second = chat.say("ROMEO"), chat.say("JULIET")
    assert len(first.text) > 0
    fresh = Chat(chat.model, chat.tokenizer)
    fresh.from_json(chat.to_json())
    fresh.undo()
    fresh.reply_count -= 1
    assert_same(fresh.say("JULIET").logprobs, second.logprobs)


def test_dialogpt_separates_turns_by_the_end_of_text_token(bot: Path) -> None:
    """Also after a reply that did not generate the token."""
    tokenizer = read_tokenizer(bot)
    template = chat_template_of(bot, tokenizer)
    chat = Chat(
        from_pretrained(str(bot)), tokenizer, seed=1, max_new_tokens=5, temperature=0.7, top_p=0.95
    )
    assert (chat.template.kind, template.end_ids) == ("dialogue", {0})
    chat.say("Good morning!")
    ids, _ = chat._prompt(chat.turns[0], 5)
    assert (ids.count(0), ids[-1]) == (3, 0)
    assert chat.say("How do you feel today?").kept > 0


def test_new_weights_at_the_address_of_freed_ones_invalidate_the_prefix_cache(bot: Path) -> None:
    model = from_pretrained(str(bot))
    weight = next(model.parameters())
    memory = weight.detach().numpy().copy()
    weight.data = torch.from_numpy(memory)
    chat = Chat(model, read_tokenizer(bot), temperature=0, max_new_tokens=4)
    chat.say("ab")
    assert chat.say("ba").kept > 0
    weight.data = weight.data.clone()
    memory[:] = memory[:, ::-1].copy()
    weight.data = torch.from_numpy(memory)
    other = chat.fork()
    other._generator.forget()
    reply, expected = chat.say("ab"), other.say("ab")
    assert reply.kept == 0
    assert (reply.ids, reply.logprobs) == (expected.ids, expected.logprobs)
