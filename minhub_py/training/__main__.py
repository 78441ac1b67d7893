"""`torchrun -m minhub_py.training TEXT --out RUN …` runs `minhub train` in each process of torchrun."""

import sys

from minhub_py.cli.main import main

sys.argv[1:1] = ["train"]
main(prog_name="minhub")
