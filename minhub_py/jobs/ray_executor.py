"""Computation of chunks on an existing Ray cluster with Ray Data.

The nodes need this package and access to the model: a local model must have the same path on each
node. The cluster only computes; the calling process writes the parts. If a node fails, its chunks
are computed again on another node, with the same results.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from minhub_py.jobs.executors import Chunk, Worker
from minhub_py.system.extras import require
from minhub_py.system.formats import import_pyarrow


class Actor:
    """A Ray actor that holds the model."""

    def __init__(self, worker: Worker) -> None:
        self.compute = worker.load()

    def __call__(self, table: Any) -> Any:
        """Convert a pyarrow.Table with one chunk per row to a table with the columns number and
        part.
        """
        chunks = [Chunk(**row) for row in table.to_pylist()]
        parts = [self.compute(chunk) for chunk in chunks]
        pa = import_pyarrow()
        return pa.table(
            {
                "number": [chunk.number for chunk in chunks],
                "part": pa.array(parts, pa.large_binary()),
            }
        )


def run_on_ray(
    worker: Worker, chunks: Iterable[Chunk], address: str, count: int | None
) -> Iterator[tuple[int, bytes]]:
    """Compute chunks on the cluster at an address with `count` actors, by default one per node.

    All texts are put into the cluster's object store, which spills to disk.

    ConnectionError: there is no cluster at this address.
    """
    ray = connect(address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = int(sum(node.get("CPU", 0) for node in nodes))
        count = count or len(nodes)
        worker = replace(worker, threads=max(1, cores // count))
        pa = import_pyarrow()
        strings = pa.list_(pa.string())
        schema = pa.schema(
            {"number": pa.int64(), "first_row": pa.int64(), "texts": strings, "extras": strings}
        )
        blocks = [ray.put(pa.Table.from_pylist([vars(chunk)], schema)) for chunk in chunks]
        # num_cpus=1 regardless of the threads, so that a failed node's actors fit on the
        # remaining nodes.
        results = ray.data.from_arrow_refs(blocks).map_batches(
            Actor,
            fn_constructor_args=(worker,),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=1,
            num_gpus=1 if str(worker.loading.get("device")).startswith("cuda") else None,
            concurrency=(1, count),
        )
        for row in results.iter_rows():
            yield row["number"], row["part"]
    finally:
        ray.shutdown()


def import_ray() -> ModuleType:
    """Import ray. ValueError: it is not installed."""
    require("ray")
    import ray  # type: ignore[import-not-found,unused-ignore]
    import ray.data  # type: ignore[import-not-found,unused-ignore]

    return ray


def connect(address: str) -> Any:
    """Connect to a cluster without Ray's log output and progress bars. Returns the ray module."""
    ray = import_ray()
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConnectionError(
            f"no Ray cluster at {address}: check the address with `ray status`, or use --ray auto"
            " for a cluster on this machine"
        ) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray
