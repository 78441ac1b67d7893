"""Which files of a repository are downloaded: one weight format, from one commit."""

import hashlib
import json

import pytest
from hub_files import INDEX, REPO, SHARDED, SHARDS, SINGLE, SMALL, WEIGHTS, assert_files, names
from hub_server import HubServer

from minhub_py.checkpoints import hub as minhub

pytestmark = pytest.mark.usefixtures("waits")


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin", "flax_model.msgpack"], ["model.safetensors"]),
        (["model.safetensors", "model.safetensors.index.json", *SHARDS], ["model.safetensors"]),
        (
            ["model.safetensors.index.json", *SHARDS, "pytorch_model.bin"],
            ["model.safetensors.index.json", *SHARDS],
        ),
        (
            ["pytorch_model.bin", "rust_model.ot", "pytorch_model.bin.index.json"],
            ["pytorch_model.bin"],
        ),
        (
            ["pytorch_model.bin.index.json", *SHARDS, "onnx/model.onnx"],
            ["pytorch_model.bin.index.json", *SHARDS],
        ),
    ],
)
def test_plan_selects_one_weight_format(
    hub: HubServer, files: list[str], weights: list[str]
) -> None:
    hub.add(
        REPO, {**SMALL, **{name: INDEX if name.endswith("index.json") else name for name in files}}
    )
    assert sorted(names(minhub.plan_download(REPO))) == sorted([*SMALL, *weights])
    folder = minhub.fetch(REPO)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*SMALL, *weights])


def test_plan_lists_files_without_downloading_them(hub: HubServer) -> None:
    commit = hub.add(REPO, SINGLE)
    plan = minhub.plan_download(REPO)
    small = sum(len(content) for content in SMALL.values())
    assert (plan.repository, plan.revision, plan.commit) == (REPO, "main", commit)
    assert plan.total_bytes == plan.missing_bytes == small + len(WEIGHTS)
    assert names(plan)[-2:] == ["config.json", "model.safetensors"]
    weights, config = plan.files[-1], plan.files[-2]
    assert (weights.sha256, weights.git_sha1) == (hashlib.sha256(WEIGHTS).hexdigest(), None)
    text = SMALL["config.json"].encode()
    assert (config.sha256, config.git_sha1) == (
        None,
        hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest(),
    )
    assert hub.fetched() == []
    assert names(minhub.plan_download(REPO, weights=False)) == [
        "tokenizer.json",
        "merges.txt",
        "config.json",
    ]


@pytest.mark.parametrize(
    "files", [{"model.gguf": "x", "flax_model.msgpack": "x"}, {"onnx/model.onnx": "x"}]
)
def test_missing_weights_error_lists_available_files(hub: HubServer, files: dict[str, str]) -> None:
    hub.add(REPO, {**SMALL, **files})
    with pytest.raises(FileNotFoundError, match=next(iter(sorted(files)))):
        minhub.plan_download(REPO)
    minhub.plan_download(REPO, weights=False)


def test_missing_config_is_an_error(hub: HubServer) -> None:
    hub.add(REPO, {"model.safetensors": WEIGHTS})
    with pytest.raises(FileNotFoundError, match=r"no config\.json.*model\.safetensors"):
        minhub.fetch(REPO, weights=False)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (
            '{"weight_map": {"a": "../../x.safetensors"}}',
            ValueError,
            "not a weight file in its folder",
        ),
        ('{"weight_map": {"a": "/etc/passwd"}}', ValueError, "not a weight file in its folder"),
        (
            '{"weight_map": {"a": "..\\\\x.safetensors"}}',
            ValueError,
            "not a weight file in its folder",
        ),
        ('{"weight_map": {"a": ".."}}', ValueError, "not a weight file in its folder"),
        (
            '{"weight_map": {"a": 1}}',
            ValueError,
            "weight_map.a must be a string, not 1: download it again",
        ),
        ('{"weight_map": {}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {"a": "model-9.safetensors"}}', FileNotFoundError, "model-9.safetensors"),
        ('{"weight_map": ["model-1.safetensors"]}', ValueError, "weight_map must be an object"),
        ('{"weight_map": {"a": {}}}', ValueError, "weight_map.a must be a string"),
        ('{"weights": {}}', ValueError, "index.json of owner/model must have weight_map"),
        ("[]", ValueError, "index.json of owner/model must be an object"),
        ("<html>", ValueError, "not valid JSON"),
        (b"\xff\xfe\x00", ValueError, "not valid JSON"),
        ("[" * 100_000, ValueError, "not valid JSON .*nested too deeply"),
    ],
)
def test_malicious_shard_index_is_rejected(
    hub: HubServer, index: str, error: type[Exception], message: str
) -> None:
    files = {
        **SHARDED,
        "model.safetensors.index.json": index,
        "../../x.safetensors": "x",
        "..\\x.safetensors": "x",
    }
    hub.add(REPO, files)
    with pytest.raises(error, match=message):
        minhub.fetch(REPO)
    assert hub.fetched() == ["model.safetensors.index.json"]


@pytest.mark.parametrize("field", ["sha", "hash"])
def test_malicious_file_list_is_rejected(
    hub: HubServer, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, SINGLE)
    if field == "sha":
        entry = hub.repositories[REPO]
        entry.commits["../../../evil"] = entry.commits.pop(entry.refs["main"])
        entry.refs["main"] = "../../../evil"
    else:
        monkeypatch.setattr("hub_server.File.sha256", property(lambda _: "../../../evil"))
    with pytest.raises(ConnectionError, match="not the Hub"):
        minhub.fetch(REPO)
    assert hub.fetched() == []


def test_unusable_file_names_in_the_list_are_ignored(hub: HubServer) -> None:
    hub.add(REPO, SINGLE | {"x" * 300: "long", "a/" * 3000 + "b": "deep", "nul\0": "nul"})
    assert_files(minhub.fetch(REPO), SINGLE)


def test_shard_name_of_maximum_length_is_downloaded(hub: HubServer) -> None:
    name = "m" * 241 + ".safetensors"
    hub.add(
        REPO,
        SMALL
        | {name: WEIGHTS, "model.safetensors.index.json": json.dumps({"weight_map": {"a": name}})},
    )
    assert (minhub.fetch(REPO) / name).read_bytes() == WEIGHTS
