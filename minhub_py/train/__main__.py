"""`torchrun -m minhub_py.train TEXT --out RUN …`: `minhub train` in each of torchrun's processes."""

import sys

from minhub_py.cli import main

main(["train", *sys.argv[1:]], prog_name="minhub")
