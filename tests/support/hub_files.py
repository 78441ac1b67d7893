"""Files of a repository on the test Hub, and how much of them is in the cache."""

import hashlib
import json
import random
import time
from pathlib import Path

import pytest
from hub_server import HubServer

from minhub_py.checkpoints import hub as minhub

SLEEP = time.sleep
REPO = "owner/model"
WEIGHTS = random.Random(0).randbytes(100_000)
SMALL = {"config.json": '{"model_type": "gpt2"}', "tokenizer.json": "{}", "merges.txt": "a b\n"}
SINGLE = {**SMALL, "model.safetensors": WEIGHTS, "README.md": "# A model"}
SHARDS = {"model-1.safetensors": WEIGHTS[:50_000], "model-2.safetensors": WEIGHTS[50_000:]}
INDEX = json.dumps(
    {
        "metadata": {},
        "weight_map": {
            "a": "model-2.safetensors",
            "b": "model-1.safetensors",
            "c": "model-1.safetensors",
        },
    }
)
SHARDED = {**SMALL, **SHARDS, "model.safetensors.index.json": INDEX}


def names(plan: minhub.DownloadPlan) -> list[str]:
    return [file.name for file in plan.files]


def blob(hub: HubServer, data: bytes) -> Path:
    return hub.cache / "models--owner--model" / "blobs" / hashlib.sha256(data).hexdigest()


def partial(hub: HubServer, data: bytes) -> Path:
    return blob(hub, data).with_name(blob(hub, data).name + ".incomplete")


def cut_off(hub: HubServer, after: int) -> None:
    """Interrupt a download after `after` bytes of the weights, then restore the server."""
    hub.cut("model.safetensors", after)
    with pytest.raises(ConnectionError, match="run again"):
        minhub.fetch(REPO)
    hub.heal()
    hub.forget()


def assert_files(folder: Path, files: dict[str, str | bytes]) -> None:
    assert {path.name for path in folder.iterdir()} == {
        name for name in files if name != "README.md"
    }
    for path in folder.iterdir():
        content = files[path.name]
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
