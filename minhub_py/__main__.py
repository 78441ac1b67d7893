"""`python -m minhub_py`: the command minhub."""

from minhub_py.cli import main

main()
