"""`python -m minhub_py` runs the command `minhub`."""

from minhub_py.cli.main import main

main()
