"""Chunks on an existing Ray cluster, by Ray Data. The nodes need this package, and a local model at the same path.

The cluster only computes: parts are written by the process that was called. A chunk whose node is lost is computed
again on another, with the same results.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import click

from minhub_py.jobs.executors import Chunk, Work
from minhub_py.jobs.formats import arrow


class Worker:
    """An actor of Ray: holds the model, and computes a chunk a call."""

    def __init__(self, work: Work) -> None:
        self.compute = work.start()

    def __call__(self, table: Any) -> Any:
        """One row of a pyarrow.Table -> one row: number, part."""
        chunks = [Chunk(**row) for row in table.to_pylist()]
        parts = [self.compute(chunk) for chunk in chunks]
        pa = arrow()
        return pa.table({"number": [chunk.number for chunk in chunks], "part": pa.array(parts, pa.large_binary())})


def cluster(work: Work, chunks: Iterable[Chunk], address: str, count: int | None) -> Iterator[tuple[int, bytes]]:
    """Compute chunks on the cluster at an address, by `count` actors; one a node without it.

    All texts are put into the cluster's object store, which spills them to disk.    ConnectionError: no cluster there.
    """
    ray = connect(address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = int(sum(node.get("CPU", 0) for node in nodes))
        count = count or len(nodes)
        work = replace(work, threads=max(1, cores // count))
        pa = arrow()
        text = pa.schema({
            "number": pa.int64(), "first": pa.int64(), "texts": pa.list_(pa.string()), "beside": pa.list_(pa.string()),
        })  # fmt: skip
        blocks = [ray.put(pa.Table.from_pylist([vars(chunk)], text)) for chunk in chunks]
        # An actor takes one core of Ray's account whatever it uses: so those of a node that is lost find another place.
        done = ray.data.from_arrow_refs(blocks).map_batches(
            Worker, fn_constructor_args=(work,), batch_size=1, batch_format="pyarrow", num_cpus=1,
            num_gpus=1 if str(work.loading.get("device")).startswith("cuda") else None, concurrency=(1, count),
        )  # fmt: skip
        for row in done.iter_rows():
            yield row["number"], row["part"]
    finally:
        ray.shutdown()


def package() -> Any:
    """The module ray. click.ClickException: it is not installed."""
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
        import ray.data  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        raise click.ClickException("--ray needs Ray: pip install 'minhub_py[ray]'") from error
    return ray


def connect(address: str) -> Any:
    """The module ray, connected and quiet."""
    ray = package()
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConnectionError(
            f"there is no Ray cluster at {address}: `ray status` tells where one is; auto finds that of this machine"
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    return ray
