"""Options and arguments shared by several commands."""

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.types import IntParamType

from minhub_py.cli.completion import ModelArgument
from minhub_py.inference.limits import (
    CHAT_SAMPLING,
    PUBLISHED_FIELDS,
    check_beams,
    check_sampling,
    parse_logit_bias,
    stop_strings,
)
from minhub_py.system.duration import parse_duration
from minhub_py.system.quantization import FILE_KINDS, KINDS

F = TypeVar("F", bound=Callable[..., None])


def add_options(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    """A decorator that adds options in the order of --help."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A size such as 500MB, 2GB or a plain number of bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The size in bytes; units are decimal, as on the Hub."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMG]?)B?", str(value))
        if match is None:
            self.fail(f"{value!r} is not a size; use 500MB, 2GB or a number of bytes", param, ctx)
        count = int(float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[match[2]])
        if count < 1:
            self.fail("a size must be at least one byte", param, ctx)
        return count


class Seed(IntParamType):
    """A seed of PyTorch's generators. The help does not show the range, whose limit has 19 digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The seed."""
        seed: int = super().convert(value, param, ctx)
        if not 0 <= seed < 2**63:
            self.fail(f"{seed} is not in the range 0<=x<2**63", param, ctx)
        return seed


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time such as 30s, 5m, 1h30m or a number of seconds; None if it is negative."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """The time in seconds."""
        try:
            return parse_duration(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time; use 30s, 5m or a number of seconds; -1 for never",
                param,
                ctx,
            )


def name_of(identifier: str) -> str:
    """A model's display name: a repository's name, a GGUF file's stem, or the last part of a
    local path.
    """
    path = Path(identifier)
    if path.exists():
        return path.resolve().stem if path.is_file() else path.resolve().name
    return (
        identifier.rpartition(":")[2].removesuffix(".gguf")
        if identifier.endswith(".gguf")
        else identifier
    )


def is_set(name: str) -> bool:
    """Check whether an option of the current command was set by the user."""
    return (
        click.get_current_context().get_parameter_source(name)
        is not click.core.ParameterSource.DEFAULT
    )


model_argument = click.argument("model", type=ModelArgument())
files_argument = click.argument("files", nargs=-1, required=True, metavar="FILE...")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
speculate_option = click.option(
    "--speculate",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help=(
        "Maximum number of draft tokens per step of a sequence, copied from repetitions in its text:"
        " faster, same output."
    ),
)
dtype_choice = click.Choice(["float32", "bfloat16", "float16"])
revision_option = click.option(
    "--revision", default="main", show_default=True, help="Branch, tag or commit on the Hub."
)
Decorator = Callable[[Any], Any]  # click's decorators have no types

LOADING_OPTIONS: list[Decorator] = [
    revision_option,
    click.option(
        "--device",
        default="auto",
        show_default=True,
        help="Device: auto, cpu, cuda, cuda:1, mps or xpu.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", *dtype_choice.choices]),
        default="auto",
        show_default=True,
        help=(
            "Dtype of the weights. auto: the checkpoint's dtype if the device supports it,"
            f" otherwise float32; always float32 with --quantize {' or '.join(KINDS)} on a CPU."
        ),
    ),
    click.option(
        "--quantize",
        type=click.Choice([*FILE_KINDS, *KINDS]),
        help=(
            "int8, nf4: store weights in 8 or 4 bits; faster on a CPU, slightly less accurate."
            " --dtype bfloat16 also speeds up prefill. auto: compute with the quantized weights of"
            " a GGUF, GPTQ or AWQ file, and activations of 8 bits (--dtype float32: 15 bits or"
            " more); the default for these files on a CPU, unless --dtype is set. none: convert quantized weights"
            " to floating point."
        ),
    ),
]


def use_threads(context: click.Context, _: click.Parameter, count: int | None) -> None:
    """Callback of --threads: set the number of threads of PyTorch and of the C decoder."""
    if count is None:
        return
    if "torch" not in sys.modules:
        # PyTorch starts no more
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(count))
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    context.call_on_close(lambda: torch.set_num_threads(before))


threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    expose_value=False,
    callback=use_threads,
    metavar="N",
    help="Number of CPU threads.  [default: OMP_NUM_THREADS, or all cores]",
)


def collected(name: str, options: list[Decorator], names: Sequence[str]) -> Callable[[F], F]:
    """A decorator that adds options, which a command receives as one dictionary."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def run(*arguments: object, **values: object) -> None:
            command(*arguments, **{name: {key: values.pop(key) for key in names}}, **values)

        return add_options(options)(run)  # type: ignore[return-value]

    return add


def na_option(default: Sequence[str] = ()) -> Decorator:
    """The option for the missing values of tables."""
    return click.option(
        "--na",
        multiple=True,
        default=default,
        metavar="TEXT",
        help=(
            "Missing values of .csv and .tsv files, if they have no quotes; may be repeated.  "
            "[default: NA, and empty values]"
        ),
    )


# The arguments of `open_model`, as the parameter `loading` of a command, and --threads.
loading_options: Decorator = collected(
    "loading", [*LOADING_OPTIONS, threads_option], ("revision", "device", "dtype", "quantize")
)


def check_setting(_: click.Context, parameter: click.Parameter, value: Any) -> object:
    """Validate a sampling setting. BadParameter: out of range, with the message of the Python
    functions.
    """
    try:
        if parameter.name == "stop":
            return stop_strings(value)
        if value is not None:
            check_sampling(str(parameter.name), value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def parse_bias(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[int, float] | None:
    """The values of --logit-bias by token ID, None without any. BadParameter: not ID=NUMBER, or out
    of range.
    """
    try:
        return parse_logit_bias(values) or None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def sampling_options(*, chat: bool = False) -> Callable[[F], F]:
    """Sampling and stop options. Unset options are None and select the model's defaults. chat: for
    conversations.
    """
    published = "  [default: the value in the model's generation_config.json, else {}]"
    values = {"temperature": 1, "repetition_penalty": 1} | (CHAT_SAMPLING if chat else {})
    temperature, top_k, top_p, penalty, min_p = (
        published.format(values.get(name, "none")) for name in PUBLISHED_FIELDS
    )
    return add_options(
        [
            click.option(
                "--temperature",
                type=float,
                callback=check_setting,
                help=f"Divides the logits; 0 always selects the most likely token.{temperature}",
            ),
            click.option(
                "--top-k",
                type=int,
                callback=check_setting,
                help=f"Sample from the k most likely tokens.{top_k}",
            ),
            click.option(
                "--top-p",
                type=float,
                callback=check_setting,
                help=(
                    "Sample from the smallest set of most likely tokens whose probabilities sum to"
                    f" p.{top_p}"
                ),
            ),
            click.option(
                "--repetition-penalty",
                type=float,
                callback=check_setting,
                help=f"Values above 1 reduce repetition.{penalty}",
            ),
            click.option(
                "--min-p",
                type=float,
                callback=check_setting,
                help=f"Exclude tokens less likely than p times the most likely one.{min_p}",
            ),
            click.option(
                "--presence-penalty",
                type=float,
                callback=check_setting,
                help="Subtracted from the logits of generated tokens, -2 to 2.  [default: 0]",
            ),
            click.option(
                "--frequency-penalty",
                type=float,
                callback=check_setting,
                help="The same for each occurrence of a generated token.  [default: 0]",
            ),
            click.option(
                "--logit-bias",
                multiple=True,
                metavar="ID=NUMBER",
                callback=parse_bias,
                help="Add a number to the logit of a token ID; may be repeated.",
            ),
            click.option(
                "--seed",
                type=Seed(),
                help=(
                    "Random seed; the same seed gives the same text.  [default: a new one each"
                    " time]"
                ),
            ),
            click.option(
                "--stop",
                multiple=True,
                callback=check_setting,
                help="Stop before this string; may be repeated.",
            ),
        ]
    )


def check_beam_setting(_: click.Context, parameter: click.Parameter, value: Any) -> object:
    """Validate a setting of beam search, as `check_setting` does."""
    if parameter.name == "early_stopping":
        return {"true": True, "false": False}.get(value, value)
    try:
        if value is not None:
            check_beams(str(parameter.name), value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def beam_options(*, always: bool = False) -> Callable[[F], F]:
    """Options of beam search. Unset options are None.

    always: for commands that search in any case, with the model's settings.
    """
    beams, penalty, early, size = (
        "  [default: the model's value" + (f", else {value}]" if value else "]") if always else text
        for value, text in (
            ("4", ""),
            ("1", "  [default: 1]"),
            ("false", "  [default: false]"),
            ("0", "  [default: 0, no effect]"),
        )
    )
    instead = (
        "Number of beams; 1 is greedy decoding."
        if always
        else "Use beam search with N beams instead of sampling; 1 is greedy decoding. With --json, all"
        " sequences with their scores."
    )
    of_search = "" if always else "Of beam search: "
    return add_options(
        [
            click.option(
                "--beams",
                type=int,
                metavar="N",
                callback=check_beam_setting,
                help=f"{instead}{beams}",
            ),
            click.option(
                "--length-penalty",
                type=float,
                callback=check_beam_setting,
                help=(
                    f"{of_search}a score is divided by the number of tokens to this power; values"
                    f" above 0 favor longer sequences.{penalty}"
                ),
            ),
            click.option(
                "--early-stopping",
                type=click.Choice(["false", "true", "never"]),
                callback=check_beam_setting,
                help=(
                    f"{of_search}when it ends, after N sequences are complete. true: at once;"
                    " false: if the best incomplete one has a lower score now; never: if no longer"
                    f" sequence can have a higher one.{early}"
                ),
            ),
            click.option(
                "--no-repeat-ngram-size",
                type=int,
                callback=check_beam_setting,
                help=f"{of_search}n-grams of this size occur at most once.{size}",
            ),
        ]
    )
