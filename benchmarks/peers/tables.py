"""Tables of a benchmark result, for the terminal or in Markdown."""

from collections.abc import Callable, Iterator, Sequence

import click

from minhub_py.cli.output import table
from peers import BITS, Result, Row

# Heading, key of the row or a function of the row, and format.
Column = tuple[str, str | Callable[[Row], object], str]
BEST = "× best peer"  # at equal bits
OURS = "minhub_py"

DECODING: tuple[Column, ...] = (
    ("runner", "runner", ""),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("ms/token", "ms_per_token", ".2f"),
    ("decode only", "decode_ms_per_token", ".2f"),
    ("× transformers", "ratio", ".2f"),
    (BEST, "best", ""),
    ("MB read", lambda row: row["bytes_per_token"] / 1e6, ",.1f"),
    ("% of bandwidth", "bandwidth_percent", ".0f"),
    ("same ids", "same_ids", ""),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "bandwidth": (
        ("reader", "reader", ""),
        ("GB/s", "gigabytes_per_second", ".1f"),
        ("best", "best", ".1f"),
    ),
    "decode": DECODING,
    "llama": DECODING,
    "files": (
        ("file", "file", ""),
        ("runner", "runner", ""),
        ("prompt of 256", lambda row: row["speeds"][0], ".0f"),
        ("prompt of 512", lambda row: row["speeds"][1], ".0f"),
        ("decoding", lambda row: row["speeds"][2], ".1f"),
    ),
    "speculation": (
        ("text", "text", ""),
        ("runner", "runner", ""),
        ("tokens/s", "tokens_per_second", ".1f"),
        ("speculating", "speculating", ".1f"),
        ("× without", "ratio", ".2f"),
        ("same ids", "same_ids", ""),
    ),
    "quality": (
        ("model", "model", ""),
        ("weights", "weights", ""),
        ("perplexity", "perplexity", ".4f"),
        ("× float32", "ratio", ".5f"),
        ("% same likeliest id", "same_percent", ".2f"),
        ("same greedy ids", "same_start", ".1f"),
    ),
    "load": (
        ("library", "runner", ""),
        *((f"{name} s", name, ".3f") for name in ("import", "load", "forward", "all")),
        ("memory MB", "memory", ".0f"),
        ("private MB", "private", ".0f"),
    ),
    "start": (("what", "what", ""), ("ms", "ms", ".1f")),
    "lstm": (
        ("runner", "runner", ""),
        ("tokens/s", "tokens_per_second", ".1f"),
        ("ms/token", "ms_per_token", ".3f"),
        ("× plain loop", "ratio", ".2f"),
        ("same ids", "same_ids", ""),
    ),
    "busy": (
        ("runner", "runner", ""),
        ("tokens/s alone", "tokens_per_second", ".1f"),
        ("busy", "busy", ".1f"),
        ("% kept", "kept_percent", ".0f"),
    ),
    "tokenize": (
        ("library", "runner", ""),
        ("load ms", "load_ms", ".1f"),
        ("MB/s", "megabytes_per_second", ".2f"),
    ),
    "convert": (
        ("what", "what", ""),
        ("s", "seconds_median", ".2f"),
        ("GB/s", "gigabytes_per_second", ".2f"),
    ),
}
# Cases measured at several points: key, prefix of the headings, format, and one more column.
CURVES: dict[str, tuple[str, str, str, Column | None]] = {
    "positions": ("values", "ms at ", ".2f", ("last / first", "last_to_first", ".2f")),
    "gptneo": ("values", "ms at ", ".2f", ("last / first", "last_to_first", ".2f")),
    "batch": ("tokens_per_second", "", ".1f", ("8 / 1", "eight_to_one", ".2f")),
    "prefill": ("values", "ms at ", ".1f", None),
}


def best_peers(
    rows: Sequence[Row], times: Callable[[Row], Sequence[float]]
) -> Iterator[list[tuple[str, float]]]:
    """For each row: at each point the fastest peer with weights of as many bits, and the row's
    speed relative to it.

    times: a row's times, one for each point, lower is better. The list is empty for a peer,
    and if no peer has as many bits.
    """
    kinds = [row["runner"].rpartition(" ") for row in rows]
    for row, (library, _, weights) in zip(rows, kinds, strict=True):
        peers = [
            peer
            for peer, (peer_library, _, peer_weights) in zip(rows, kinds, strict=True)
            if library == OURS != peer_library and BITS[peer_weights] == BITS[weights]
        ]
        results = []
        for position, time in enumerate(times(row) if peers else ()):
            best = min(peers, key=lambda peer: times(peer)[position])
            results.append((best["runner"], times(best)[position] / time))
        yield results


def best_cells(best: Sequence[tuple[str, float]]) -> list[str]:
    """Ratios and libraries. Their weights are not named: they have as many bits as the row's."""
    return [f"{ratio:.2f} {runner.rpartition(' ')[0]}" for runner, ratio in best]


def cells(name: str, case: Row) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a case's table. A curve's ratios to the best peers are in a
    separate row.
    """
    if columns := COLUMNS.get(name):
        rows = case["rows"]
        if columns is DECODING:
            best = best_peers(rows, lambda row: [row["ms_per_token"]])
            rows = [
                row | {"best": next(iter(best_cells(results)), None)}
                for row, results in zip(rows, best, strict=True)
            ]
        return [column[0] for column in columns], [
            [cell(row, column) for column in columns] for row in rows
        ]
    columns = curve_columns(name, case["values"]["points"])
    lines = []
    for row, results in zip(
        case["rows"], best_peers(case["rows"], lambda row: row["values"]), strict=True
    ):
        lines.append([cell(row, column) for column in columns])
        if results:
            ratios = [BEST, *best_cells(results)]
            lines.append(ratios + ["-"] * (len(columns) - len(ratios)))
    return [column[0] for column in columns], lines


def curve_columns(name: str, points: Sequence[int]) -> tuple[Column, ...]:
    """Columns of a case that is measured at several points."""
    key, before, form, last = CURVES[name]

    def at(index: int) -> Callable[[Row], object]:
        return lambda row: row[key][index]

    values = [(f"{before}{point:,}", at(index), form) for index, point in enumerate(points)]
    return (("runner", "runner", ""), *values, *([last] if last else []))


def cell(row: Row, column: Column) -> str:
    """A formatted value; a dash for None."""
    _, source, form = column
    value = source(row) if callable(source) else row.get(source)
    return "-" if value is None else format(value, form)


def headline(result: Result) -> str:
    """One line about the machine, the versions, the date and the repeats."""
    about = result["machine"]
    shown = ("minhub_py", "torch", "transformers", "ctranslate2", "llama-cpp-python", "openvino")
    # a saved result may be older than a name
    versions = [f"{name} {about[name]}" for name in shown if about.get(name)]
    count, threads = about["cores"], about["threads"]
    engine = f", {about['engine']}" if about.get("engine") else ""
    where = (
        f"{about['processor']}{engine}, {count} core{'s' * (count > 1)}, {threads}"
        f" thread{'s' * (threads > 1)}"
    )
    repeats = result["settings"]["repeats"]
    quick = " (--quick: rough)" if result["settings"]["quick"] else ""
    return f"{where}; {', '.join(versions)}; {result['date']}; medians of {repeats}{quick}"


def show_head(result: Result) -> None:
    """Print the line above all tables."""
    click.echo(headline(result))


def show_case(result: Result, name: str) -> None:
    """Print a case's table."""
    case = result["cases"][name]
    headings, rows = cells(name, case)
    click.echo()
    click.secho(f"{name}: {case['title']}", bold=True)
    table([heading.upper() if heading not in KEPT else heading for heading in headings], rows)
    for line in case["notes"]:
        click.echo(line)


# Headings that are units, which must not be put in capitals.
KEPT = {"GB/s", "MB/s", "ms", "s"}


def show_tail(result: Result) -> None:
    """Print omissions and failures, below all tables."""
    lines = [
        *result["left_out"],
        *(f"FAILED: {name}: {reason}" for name, reason in result["failed"].items()),
    ]
    if lines:
        click.echo()
    for line in lines:
        click.echo(line)


def markdown(result: Result) -> Iterator[str]:
    """All tables in Markdown, line by line."""
    yield headline(result) + "."
    for name, case in result["cases"].items():
        headings, rows = cells(name, case)
        yield ""
        yield f"**{case['title']}** (`compare.py --only {name}`)"
        yield ""
        yield f"| {' | '.join(headings)} |"
        yield f"| --- |{' ---: |' * (len(headings) - 1)}"
        yield from (f"| {' | '.join(row)} |" for row in rows)
        if case["notes"]:
            yield ""
            yield " ".join(case["notes"])
    for line in [
        *result["left_out"],
        *(f"{name} failed: {reason}" for name, reason in result["failed"].items()),
    ]:
        yield ""
        yield line
