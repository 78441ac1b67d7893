"""Write the tables of results.json into docs/benchmarks/results.md, between its two marker
comments.

.venv/bin/python benchmarks/compare.py --save benchmarks/results.json --plot
docs/benchmarks/results.png .venv/bin/python benchmarks/results.py

A run may also be measured in parts, which then make a new results.json:

.venv/bin/python benchmarks/compare.py --only decode --save decode.json
.venv/bin/python benchmarks/compare.py --only batch --save batch.json
.venv/bin/python benchmarks/results.py decode.json batch.json
"""

import json
import sys
from pathlib import Path

from peers import Result
from peers.tables import markdown

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "benchmarks" / "results.md"
CASES = ("decode", "llama", "prefill", "batch", "load", "start")
BEGIN, END = "<!-- made by benchmarks/results.py -->", "<!-- until here -->"


def join(parts: list[Result]) -> Result:
    """One result of several: all cases, the machine and settings of the first, and the fewest
    repeats of all.
    """
    joined = dict(parts[0])
    joined["settings"] = parts[0]["settings"] | {
        "repeats": min(part["settings"]["repeats"] for part in parts)
    }
    for name in ("cases", "failed"):
        joined[name] = {case: value for part in parts for case, value in part[name].items()}
    joined["left_out"] = list(dict.fromkeys(line for part in parts for line in part["left_out"]))
    return joined


def tables() -> str:
    result = json.loads(RESULTS.read_text())
    cases = {name: result["cases"][name] for name in CASES if name in result["cases"]}
    return "\n".join(markdown({**result, "cases": cases}))


def main(paths: list[str]) -> None:
    if paths:
        joined = join([json.loads(Path(path).read_text()) for path in paths])
        RESULTS.write_text(json.dumps(joined, indent=1) + "\n")
    text = PAGE.read_text()
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
