"""Hints for names from other programs: commands, options and arguments."""

import pytest
import torch
from commands import failed

from minhub_py import Chat, from_pretrained, generate, gpt2, gpt2_from_pretrained, train
from minhub_py.cli.main import main
from minhub_py.system import habits

GPT2 = "minhub/shakespeare-gpt2"


@pytest.mark.parametrize(
    ("name", "command"),
    [("pull", "download"), ("ls", "list"), ("rm", "delete"), ("run", "chat"), ("show", "inspect")],
)
def test_commands_of_other_programs_name_the_command_here(name: str, command: str) -> None:
    message = failed(name, "gpt2", status=2)
    assert f"No such command '{name}'. Use minhub {command}." in message.replace(
        "Use main", "Use minhub"
    )
    assert "Did you mean" not in message


def test_similar_names_are_suggested_but_never_the_command_r() -> None:
    assert "Did you mean 'generate'" in failed("generat", status=2)
    for name in ("rx", "q", "xr"):
        assert "'r'" not in failed(name, status=2)


def test_habits_name_commands_and_options_that_exist() -> None:
    commands = main.commands
    assert set(habits.COMMANDS.values()) <= set(commands)
    assert not set(habits.COMMANDS) & set(commands)
    options = {
        option for command in commands.values() for param in command.params for option in param.opts
    }
    used = {
        option for names in habits.OPTIONS.values() for option in names if option.startswith("-")
    }
    assert {option.split()[0] for option in used} <= options


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["train", "x", "--lr", "1"], "No such option '--lr'. Use --learning-rate."),
        (["train", "x", "--batch-size", "1"], "No such option '--batch-size'. Use --batch."),
        (["train", "x", "--batch_size", "1"], "No such option '--batch_size'. Use --batch."),
        (["generate", GPT2, "--max_new_tokens", "1"], "Use --max-new-tokens."),
        (["generate", GPT2, "--max-tokens", "1"], "Use --max-new-tokens."),
        (["generate", GPT2, "--load-in-4bit"], "Use --quantize nf4."),
        (["generate", GPT2, "-p", "x"], "Use PROMPT as an argument."),
        (["words", GPT2, "x.csv", "-o", "y.csv"], "Use --out."),
        (["words", GPT2, "--lr", "1"], "No such option '--lr'. (Did you mean"),
        (["generate", GPT2, "--temperatur", "1"], "Did you mean '--temperature'?"),
    ],
)
def test_options_of_other_programs_name_the_option_here(arguments: list[str], advice: str) -> None:
    assert advice in failed(*arguments, status=2)


def test_arguments_of_other_libraries_name_the_argument_here() -> None:
    with pytest.raises(
        TypeError, match=r"^from_pretrained\(\) has no argument torch_dtype: use dtype$"
    ):
        from_pretrained(GPT2, torch_dtype="float32")
    with pytest.raises(
        TypeError, match=r"^gpt2_from_pretrained\(\) has no argument device_map: use device$"
    ):
        gpt2_from_pretrained(GPT2, device_map="auto")
    with pytest.raises(
        TypeError, match="trust_remote_code: remove it: no code of a repository is run"
    ):
        from_pretrained(GPT2, trust_remote_code=True)
    model = from_pretrained(GPT2)
    with pytest.raises(TypeError, match=r"generate\(\) has no argument do_sample: use temperature"):
        generate(model, [[1]], do_sample=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        generate(model, [[1]], width=3)
    with pytest.raises(ValueError, match="unknown setting max_tokens: use max_new_tokens"):
        Chat(GPT2).say("Hi", max_tokens=3)
    with pytest.raises(ValueError, match="unknown setting lr: use learning_rate"):
        train("in.txt", "out", lr=0.1)


def test_models_explain_calls_of_other_libraries() -> None:
    model = gpt2(n_layer=1, n_embd=8, n_head=1, vocab_size=16, n_positions=16)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(
        TypeError, match=r"argument is a cache from model.new_cache\(\), not Tensor; for a loss"
    ):
        model(tokens, tokens)
    with pytest.raises(
        TypeError, match=r"call complete\(model, tokenizer, text\), or generate\(model"
    ):
        model.generate(tokens, max_new_tokens=3)
