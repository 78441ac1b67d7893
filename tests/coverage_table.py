"""Writes a page with the coverage of Python and R: python coverage_table.py PYTHON.json R.csv PAGE.

PYTHON.json is a report of coverage.py, R.csv the table of covr's `tally_coverage()`. Packages below
a floor fail.
"""

import csv
import json
import platform
import sys
from collections import defaultdict
from pathlib import Path

Counts = dict[str, tuple[int, int]]  # covered and all lines by name
FLOORS = {"Python": 90, "R": 85}  # percent


def python_counts(report: dict) -> Counts:
    """By package."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in report["files"].items():
        package = counts["/".join(Path(name).parts[:-1][:2])]
        package[0] += file["summary"]["covered_lines"]
        package[1] += file["summary"]["num_statements"]
    return {name: (covered, total) for name, (covered, total) in counts.items()}


def r_counts(table: list[dict[str, str]]) -> Counts:
    """By file."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in table:
        file = counts[f"minhubpy/R/{Path(row['filename']).name}"]
        file[0] += float(row["value"]) > 0
        file[1] += 1
    return {name: (covered, total) for name, (covered, total) in counts.items()}


def percent(counts: Counts) -> float:
    return (
        100
        * sum(covered for covered, _ in counts.values())
        / sum(total for _, total in counts.values())
    )


def section(language: str, about: str, counts: Counts) -> list[str]:
    rows = [
        f"| {name} | {total} | {100 * covered / total:.1f} % |"
        for name, (covered, total) in sorted(counts.items())
    ]
    total = sum(total for _, total in counts.values())
    return [
        f"## {language}",
        "",
        about,
        "",
        "| package or file | lines | covered |",
        "| --- | ---: | ---: |",
        *rows,
        f"| **all** | {total} | **{percent(counts):.1f} %** |",
        "",
    ]


def main(python_report: str, r_table: str, page: str) -> int:
    """The exit status: 1 if the coverage is below a floor."""
    report = json.loads(Path(python_report).read_text(encoding="utf-8"))
    with Path(r_table).open(encoding="utf-8") as file:
        counts = {"Python": python_counts(report), "R": r_counts(list(csv.DictReader(file)))}
    text = [
        "# Coverage",
        "",
        (
            "Lines that the tests run, including those of commands, forks, servers and R's worker"
            " processes."
        ),
        (
            "Processes that are killed are not counted, such as the sandbox of templates. Command:"
            " `make coverage`."
        ),
        "",
        *section(
            "Python",
            f"Python {platform.python_version()}, coverage.py {report['meta']['version']}.",
            counts["Python"],
        ),
        *section(
            "R",
            "The tests in tests/testthat, by covr. Without R torch, torch.R cannot run.",
            counts["R"],
        ),
    ]
    Path(page).write_text("\n".join(text), encoding="utf-8")
    shares = {language: percent(lines) for language, lines in counts.items()}
    print(*(f"{language}: {share:.1f} %" for language, share in shares.items()), sep="\n")
    return int(any(share < FLOORS[language] for language, share in shares.items()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
