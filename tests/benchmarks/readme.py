"""Write the tables of results.json into the README, between its two marker comments.

.venv/bin/minhub bench --save tests/benchmarks/results.json --plot tests/benchmarks/results.png
.venv/bin/python tests/benchmarks/readme.py
"""

import json
from pathlib import Path

from minhub_py.bench.tables import markdown

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
CASES = ("decode", "batch", "load", "start")
BEGIN, END = "<!-- made by tests/benchmarks/readme.py -->", "<!-- until here -->"


def tables() -> str:
    result = json.loads((HERE / "results.json").read_text())
    cases = {name: result["cases"][name] for name in CASES}
    return "\n".join(markdown({**result, "cases": cases}))


def main() -> None:
    text = README.read_text()
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    README.write_text(f"{before}{BEGIN}\n{tables()}\n{after}")


if __name__ == "__main__":
    main()
