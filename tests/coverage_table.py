"""Writes a page with the coverage of each package from a report of coverage.py: python coverage_table.py JSON PAGE."""

import json
import platform
import sys
from collections import defaultdict
from pathlib import Path

FLOOR = 90  # percent


def table(report: dict, commands: str = "make coverage") -> str:
    """The page in Markdown."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in report["files"].items():
        package = "/".join(Path(name).parts[:-1][:2])
        counts[package][0] += file["summary"]["covered_lines"]
        counts[package][1] += file["summary"]["num_statements"]
    rows = [
        f"| {name} | {total} | {100 * covered / total:.1f} % |" for name, (covered, total) in sorted(counts.items())
    ]
    totals = report["totals"]
    share = 100 * totals["covered_lines"] / totals["num_statements"]
    return "\n".join([
        "# Coverage", "",
        "Statements of the Python code that the test suite runs. Code in other processes, such as template sandboxes,",
        f"workers of R and `torchrun`, is not counted. Command: `{commands}`; "
        f"Python {platform.python_version()}, coverage.py {report['meta']['version']}.", "",
        "| package | statements | covered |", "| --- | --- | --- |", *rows,
        f"| all | {totals['num_statements']} | {share:.1f} % |", "",
    ])  # fmt: skip


def main(source: str, page: str) -> int:
    """The exit status: 1 if the coverage is below FLOOR."""
    report = json.loads(Path(source).read_text(encoding="utf-8"))
    Path(page).write_text(table(report), encoding="utf-8")
    share = 100 * report["totals"]["covered_lines"] / report["totals"]["num_statements"]
    print(f"Coverage: {share:.1f} % of the statements; see {page}")
    return int(share < FLOOR)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
