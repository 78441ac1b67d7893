"""The `minhub` command.

Commands import PyTorch and network code when they run, so that --help is fast. Results are written
to standard output, everything else to standard error. Exit status: 0 success, 1 failure, 2 usage
error.
"""

import atexit
import gc

import click

from minhub_py.cli.calibration import calibrate
from minhub_py.cli.chat import chat
from minhub_py.cli.encoders import answer, classify, entities, masked, pll, rerank
from minhub_py.cli.group import Group, remember_debug
from minhub_py.cli.jobs import replay
from minhub_py.cli.models import convert, delete, download, inspect, list_models, verify
from minhub_py.cli.pairs import pairs
from minhub_py.cli.research import activations, annotate, decide, embed, words
from minhub_py.cli.serving import serve
from minhub_py.cli.system import bench, devices, doctor, run_r
from minhub_py.cli.text import generate, score
from minhub_py.cli.training import compare, train
from minhub_py.cli.translation import summarize, translate
from minhub_py.system.openmp import limit_spinning
from minhub_py.system.version import __version__

# The garbage collection at exit would scan all objects of PyTorch, for 0.3 s.
atexit.register(gc.freeze)


@click.group(
    cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, "-V", "--version", prog_name="minhub")
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=remember_debug,
    help="Show the traceback of an error.",
)
def main() -> None:
    """Download, check, convert, run and train language models from the Hugging Face Hub.

    MODEL is a repository on the Hub (gpt2, EleutherAI/gpt-neo-125m), a local folder, a GGUF file
    (model.gguf, or owner/name:model.gguf on the Hub), or a built-in model such as
    minhub/shakespeare-gpt2, which needs no network:

      minhub generate minhub/shakespeare-gpt2 "ROMEO:"

    Run `minhub COMMAND --help` for a command's options.
    """
    limit_spinning()


for command in (
    list_models,
    download,
    delete,
    inspect,
    convert,
    verify,
    generate,
    chat,
    serve,
    translate,
    summarize,
    score,
    words,
    pairs,
    embed,
    activations,
    annotate,
    decide,
    calibrate,
    rerank,
    classify,
    entities,
    answer,
    masked,
    pll,
    replay,
    train,
    compare,
    bench,
    devices,
    doctor,
    run_r,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
