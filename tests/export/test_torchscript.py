"""TorchScript files have the names, logits, gradients and dropout of their models.

Large random weights reveal a wrong mask or scale. R torch 0.17 uses LibTorch 2.8, which is too
large for a test: the files may only contain operators that were tested with it.
"""

import errno
import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from needs import need
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from minhub_py import from_pretrained, gpt2, gptneo, lstm, save_pretrained
from minhub_py.checkpoints import local
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.checkpoints.writing import unwritable
from minhub_py.cli.main import main
from minhub_py.export.torchscript import save_torchscript

CONTEXT = 23
LOCAL = {"attention_types": [[["local"], 2]], "num_layers": 2}
SIZES = {
    "gpt2": {"vocab_size": 31, "n_positions": CONTEXT, "n_embd": 24, "n_layer": 2, "n_head": 4},
    "gptneo": {
        "vocab_size": 31,
        "max_position_embeddings": CONTEXT,
        "hidden_size": 24,
        "num_heads": 4,
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 5,
    },
    "lstm": {"vocab_size": 31, "embedding_size": 24, "hidden_size": 24, "num_layers": 2},
}
CASES = {
    "gpt2": {},
    "gpt2-untied": {"tie_word_embeddings": False},
    "gpt2-relu-inner": {"activation_function": "relu", "n_inner": 17},
    "gpt2-unscaled": {"scale_attn_weights": False},
    "gpt2-inverse-layer-upcast": {
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
    },
    "gptneo": {},
    "gptneo-untied-silu": {"tie_word_embeddings": False, "activation_function": "silu"},
    "gptneo-global": {"attention_types": [[["global"], 2]], "num_layers": 2},
    "gptneo-window-1": {"window_size": 1, **LOCAL},
    "gptneo-window-4": {"window_size": 4, **LOCAL},
    "gptneo-window-of-the-context": {"window_size": CONTEXT, **LOCAL},
    "gptneo-window-beyond-the-context": {"window_size": 100, **LOCAL},
    "lstm": {},
    "lstm-tied": {"tie_word_embeddings": True},
    "lstm-one-layer": {"num_layers": 1, "embedding_size": 11},
}
DROPOUTS = {
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
    "gptneo": ("embed_dropout", "attention_dropout", "resid_dropout"),
    "lstm": ("dropout",),
}
# Operators in the files of all architectures. All have run in LibTorch 2.8.0, with gradients,
# except the last line, for soft caps and sinks, which LibTorch has since version 1. Test additional
# operators there first.
OPERATORS = """
    __and__.Tensor abs add.Scalar add.Tensor add.int arange cat chunk contiguous cos div.Scalar dropout embedding
    eq.int flatten.using_ints floor floordiv.int ge.Scalar ge.int gelu gt.Tensor gt.int layer_norm le.Tensor linear log
    lstm.input lt.Scalar lt.int mean.dim mul.Scalar mul.Tensor mul.int ne.int neg.int numel pad permute prim::min.int
    prim::unchecked_cast relu repeat_interleave.self_int reshape rsqrt scaled_dot_product_attention silu sin size
    size.int slice.Tensor split.sizes square sub.Scalar sub.Tensor sub.int tensor to.dtype transpose.int
    unflatten.int unfold unsqueeze view zeros
    all.dim bitwise_not expand gt.float isfinite lt.float masked_fill.Scalar matmul ones softmax.int tanh triu
""".split()


def make(name: str, **changes: object) -> nn.Module:
    """A case's model in eval mode, with large random weights, and without dropout unless
    `changes` sets it.
    """
    family = name.partition("-")[0]
    settings = {**SIZES[family], **dict.fromkeys(DROPOUTS[family], 0.0), **CASES[name], **changes}
    torch.manual_seed(0)
    model = {"gpt2": gpt2, "gptneo": gptneo, "lstm": lstm}[family](**settings)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            scale = 0.4 if parameter.dim() == 1 else 1.3 * parameter.shape[1] ** -0.5
            if "wte" in key or "embedding" in key or "head" in key:
                scale = 2.0
            parameter.add_(scale * torch.randn(parameter.shape))
    return model.eval()


def load(path: Path, **arguments: object) -> torch.jit.ScriptModule:
    return torch.jit.load(path, **arguments)


def code_of(path: Path) -> str:
    """The compiled code in a file, without PyTorch's layers."""
    with zipfile.ZipFile(path) as archive:
        names = [
            name for name in archive.namelist() if name.endswith(".py") and "/torch/nn/" not in name
        ]
        return "\n".join(archive.read(name).decode() for name in names)


def ids(B: int, T: int, seed: int = 1) -> Tensor:
    return torch.randint(31, (B, T), generator=torch.Generator().manual_seed(seed))


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 5e-6) -> None:
    """Compare up to float32 rounding, relative to the largest value."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    largest = expected.float().abs().max()
    error = (actual.float() - expected.float()).abs().max()
    assert error <= tolerance * largest, f"off by {error / largest:.1e} of the largest value"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """exported(case): the model, the module loaded from its file, and the file. Tests share them:
    do not modify.
    """
    cases = {}

    def get(name):
        if name not in cases:
            model, path = make(name), tmp_path_factory.mktemp(name) / "model.pt"
            save_torchscript(model, path)
            cases[name] = model, load(path), path
        return cases[name]

    return get


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_logits_match_at_any_batch_size_and_length(exported, name: str) -> None:
    """Lengths change in each call, and then repeat, which triggers TorchScript's optimizer."""
    model, script, _ = exported(name)
    assert model(ids(3, CONTEXT)).abs().max() > 5
    for T in sorted(range(1, CONTEXT + 1), key=lambda T: (7 * T) % 11):
        for B in (1, 3):
            assert_close(script(ids(B, T)), model(ids(B, T)))
    for _ in range(3):
        assert_close(script(ids(2, 9)), model(ids(2, 9)))


def test_lstm_has_no_maximum_length(exported) -> None:
    model, script, _ = exported("lstm")
    assert_close(script(ids(1, 1000)), model(ids(1, 1000)))


@pytest.mark.parametrize("name", CASES)
def test_parameters_match(exported, name: str) -> None:
    """Equal values, names and order; tied weights are stored once."""
    model, script, path = exported(name)
    expected, actual = dict(model.named_parameters()), dict(script.named_parameters())
    assert list(actual) == list(expected)
    assert list(script.state_dict()) == list(model.state_dict())
    assert dict(script.named_buffers()) == {}
    assert all(torch.equal(actual[key], expected[key]) for key in expected)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in actual.values())
    assert len({parameter.data_ptr() for parameter in actual.values()}) == len(actual)
    with zipfile.ZipFile(path) as archive:
        stored = sum(
            entry.file_size
            for entry in archive.infolist()
            if entry.filename.startswith("model/data/")
        )
    assert stored == sum(parameter.nbytes for parameter in actual.values())


@pytest.mark.parametrize("name", CASES)
def test_gradients_match(exported, name: str) -> None:
    """Before and after TorchScript's optimizer has rewritten the graph."""
    model, script, _ = exported(name)
    for B, T in ((2, 7), (2, 7), (2, 7), (3, CONTEXT), (1, 1)):
        for network in (model, script):
            network.zero_grad()
            cross_entropy(network(ids(B, T)).flatten(0, 1), ids(B, T, seed=2).flatten()).backward()
        actual = dict(script.named_parameters())
        largest = max(parameter.grad.abs().max() for parameter in model.parameters())
        for key, parameter in model.named_parameters():
            # Smaller gradients are rounding errors of 0: a single token attends to itself for all q
            # and k.
            if max(parameter.grad.abs().max(), actual[key].grad.abs().max()) > 1e-5 * largest:
                assert_close(actual[key].grad, parameter.grad, tolerance=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gptneo", "lstm", "lstm-tied"])
def test_training_matches(tmp_path: Path, name: str) -> None:
    """Fails if a tied weight is duplicated, or if the optimizer does not update an LSTM's weights."""
    model = make(name)
    save_torchscript(model, tmp_path / "model.pt")
    script = load(tmp_path / "model.pt")
    start = model(ids(3, 9))
    for network in (model, script):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        for step in range(4):
            optimizer.zero_grad()
            cross_entropy(
                network(ids(3, 9, step)).flatten(0, 1), ids(3, 9, step + 9).flatten()
            ).backward()
            optimizer.step()
    assert_close(script(ids(3, 9)), model(ids(3, 9)), tolerance=1e-4)
    assert (model(ids(3, 9)) - start).abs().max() > 0.1


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_follows_train_and_eval(tmp_path: Path, name: str) -> None:
    """Equal seeds drop the same values. Rates differ, so that exchanged rates are detected."""
    model = make(name, **dict(zip(DROPOUTS[name], (0.1, 0.2, 0.3), strict=False)))
    save_torchscript(model.train(), tmp_path / "model.pt")
    script = load(tmp_path / "model.pt")
    idx = ids(2, CONTEXT)
    assert not script.training
    without_dropout = script(idx)
    assert_close(without_dropout, model.eval()(idx))
    model.train()
    script.train()
    for seed in range(3):
        torch.manual_seed(seed)
        expected = model(idx)
        torch.manual_seed(seed)
        actual = script(idx)
        assert_close(actual, expected)
        assert (actual - without_dropout).abs().max() > 0.1
    assert torch.equal(script.eval()(idx), without_dropout)


@pytest.mark.parametrize("name", ["gpt2", "gpt2-inverse-layer-upcast", "gptneo", "lstm-tied"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_match_and_can_be_changed(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = make(name).to(dtype)
    save_torchscript(model, tmp_path / "model.pt")
    script = load(tmp_path / "model.pt")
    assert {parameter.dtype for parameter in script.parameters()} == {dtype}
    for T in (1, 4, 5, 6, 11, CONTEXT):
        assert_close(script(ids(2, T)), model(ids(2, T)))
    script(ids(2, 9)).float().logsumexp(-1).sum().backward()
    assert all(parameter.grad.dtype == dtype for parameter in script.parameters())
    # the export does not fix the dtype
    assert_close(script.float()(ids(2, 9)), model.float()(ids(2, 9)))


@pytest.mark.parametrize("name", ["gpt2", "gptneo", "lstm"])
def test_the_export_does_not_fix_the_device(exported, name: str) -> None:
    path = exported(name)[2]
    logits = load(path, map_location="meta")(ids(2, CONTEXT).to("meta"))
    assert logits.device.type == "meta"
    assert logits.shape == (2, CONTEXT, 31)
    # The meta device accepts tensors of other devices, unlike a GPU: each new tensor must name its
    # device.
    code = code_of(path)
    factories = [
        line for line in code.splitlines() if "torch.arange(" in line or "torch.zeros(" in line
    ]
    assert len(factories) == (1 if name == "lstm" else 7)
    assert all("device=" in line and "device=None" not in line for line in factories)
    assert "torch.device(" not in code


@pytest.mark.parametrize("name", ["gpt2", "gptneo", "lstm"])
def test_invalid_inputs_raise_errors(exported, name: str) -> None:
    _, script, _ = exported(name)
    for bad in (31, -1):
        with pytest.raises(RuntimeError, match="index out of range in self"):
            script(torch.tensor([[3, bad]]))
    for shape in ((0, 3), (2, 0), (4,), (1, 2, 3)):
        with pytest.raises(
            torch.jit.Error,
            match=r"ValueError: idx must have shape \(B, T\) and at least one token",
        ):
            script(torch.zeros(shape, dtype=torch.long))
    if name != "lstm":
        with pytest.raises(
            torch.jit.Error,
            match=f"idx has {CONTEXT + 1} positions, but the context length is {CONTEXT}",
        ):
            script(ids(1, CONTEXT + 1))


def test_files_use_only_operators_of_libtorch_2_8(exported) -> None:
    operators = {
        operator for name in CASES for operator in torch.jit.export_opnames(exported(name)[1])
    }
    assert {name.removeprefix("aten::") for name in operators if name.startswith("aten::")} <= set(
        OPERATORS
    )
    with zipfile.ZipFile(exported("gpt2")[2]) as archive:
        assert int(archive.read("model/.data/version")) <= 10  # its kMaxSupportedFileFormatVersion


def test_files_run_without_this_package(exported) -> None:
    model, _, path = exported("gptneo")
    program = f"""if True:
        import sys, torch
        extra = {{"config.json": ""}}
        model = torch.jit.load({str(path)!r}, _extra_files=extra)
        print(extra["config.json"].decode())
        print(model(torch.tensor({ids(2, 11).tolist()})).double().sum().item())
        assert not [name for name in sys.modules if name.startswith(("minhub_py", "weights_map"))]
    """
    result = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    *config, total = result.stdout.splitlines()
    assert json.loads("\n".join(config)) == {**model.config.to_hub(), "dtype": "float32"}
    assert float(total) == pytest.approx(model(ids(2, 11)).double().sum().item(), rel=1e-5)


def test_the_exported_model_is_not_changed(tmp_path: Path) -> None:
    model = make("gpt2").train()
    model.h[0].requires_grad_(False)
    before = dict(model.named_parameters())
    save_torchscript(model, str(tmp_path / "model.pt"))
    assert model.training
    assert model.h[0].attn.resid_dropout.training
    assert all(parameter is before[key] for key, parameter in model.named_parameters())
    assert not model.h[0].mlp.c_fc.weight.requires_grad


def test_other_modules_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes models of this package, not Linear"):
        save_torchscript(nn.Linear(2, 2), tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_only_by_a_complete_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "folder" / "model.pt"
    save_torchscript(make("lstm"), path)
    first = path.read_bytes()

    def interrupted(script: object, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.jit, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_torchscript(make("gpt2"), path)
    assert path.read_bytes() == first
    save_torchscript(make("gpt2"), path, {"tokenizer.json": b"\x00\xff"})
    assert load(path)(ids(1, 2)).shape == (1, 2, 31)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.pt"]
    with zipfile.ZipFile(path) as archive:  # as R's unz() reads it
        assert archive.read("model/extra/tokenizer.json") == b"\x00\xff"


def test_unwritable_paths_raise_os_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(
        OSError, match=r"file/model\.pt cannot be written \(.*\): name another file"
    ):
        save_torchscript(make("lstm"), tmp_path / "file" / "model.pt")
    assert (tmp_path / "file").read_text() == "content"
    error = unwritable(tmp_path, PermissionError(errno.EACCES, "Permission denied"), "folder")
    assert str(error).endswith(
        "cannot be written (Permission denied): check its permissions, or name another folder"
    )


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning])
def test_deprecation_warnings_of_torchscript_are_suppressed(
    tmp_path: Path, category: type[Warning], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch 2.15 uses a FutureWarning. Other warnings are not suppressed."""
    save = torch.jit.save

    def warns(*arguments: object, **settings: object) -> None:
        warnings.warn(
            "`torch.jit.save` is deprecated. Please switch to `torch.export`.",
            category,
            stacklevel=2,
        )
        warnings.warn("something else is deprecated", category, stacklevel=2)
        save(*arguments, **settings)

    monkeypatch.setattr(torch.jit, "save", warns)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_torchscript(make("gpt2"), tmp_path / "model.pt")
    assert [str(warning.message) for warning in caught] == ["something else is deprecated"]


def test_a_full_disk_keeps_the_existing_file(tmp_path: Path) -> None:
    """PyTorch's writer would end the process with SIGABRT."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]
    need("mount")
    subprocess.run(mount, check=True)
    try:
        (disk / "model.pt").write_text("old")
        with pytest.raises(
            OSError, match=r"model\.pt cannot be written \(No space left on device\): free disk"
        ):
            save_torchscript(make("gpt2"), disk / "model.pt")
        assert [(path.name, path.read_text()) for path in disk.iterdir()] == [("model.pt", "old")]
    finally:
        subprocess.run(["umount", disk], check=True)


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_pretrained(make("gpt2"), tmp_path / "made", characters("".join(map(chr, range(65, 96)))))
    return tmp_path / "made"


@pytest.mark.parametrize(
    "model", ["minhub/shakespeare-gpt2", "minhub/shakespeare-gptneo", "minhub/shakespeare-lstm"]
)
def test_built_in_models_convert_without_warnings(tmp_path: Path, model: str) -> None:
    result = convert(model, tmp_path / "out.pt", "--to", "torchscript")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{tmp_path / 'out.pt'}\n", "")
    extra = {"config.json": "", "tokenizer.json": ""}
    script = load(tmp_path / "out.pt", _extra_files=extra)
    with torch.no_grad():
        for T in (1, 31, 200):
            assert_close(script(ids(2, T)), from_pretrained(model, device="cpu")(ids(2, T)))
    assert (
        extra["tokenizer.json"]
        == (local.BUILTIN / model.removeprefix("minhub/") / "tokenizer.json").read_bytes()
    )
    assert json.loads(extra["config.json"])["model_type"] in ("gpt2", "gpt_neo", "lstm")


def test_convert_dtype_overwrite_and_native_layout(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "new" / "half.pt"
    result = convert(folder, out, "--to", "torchscript", "--dtype", "float16", "--json")
    assert json.loads(result.stdout) == {
        "out": str(out),
        "layout": "torchscript",
        "files": ["half.pt"],
    }
    assert result.stderr == ""
    extra = {"config.json": ""}
    assert load(out, _extra_files=extra)(ids(1, 5)).dtype == torch.float16
    assert json.loads(extra["config.json"])["dtype"] == "float16"
    result = convert(folder, out, "--to", "torchscript")
    assert result.exit_code == 2
    assert f"{out} already exists: choose another file, or add --overwrite." in result.stderr
    assert load(out)(ids(1, 5)).dtype == torch.float16
    assert convert(folder, out, "--to", "torchscript", "--overwrite").exit_code == 0
    assert load(out)(ids(1, 5)).dtype == torch.float32
    convert(folder, tmp_path / "native", "--to", "native")
    assert convert(tmp_path / "native", tmp_path / "2.pt", "--to", "torchscript").exit_code == 0
    assert torch.equal(load(tmp_path / "2.pt")(ids(1, 5)), load(out)(ids(1, 5)))


@pytest.mark.parametrize(
    ("out", "arguments", "message"),
    [
        (
            "out",
            [],
            "--to torchscript writes one file: OUT must end in .pt and must not be a folder",
        ),
        (
            "held.pt",
            [],
            "--to torchscript writes one file: OUT must end in .pt and must not be a folder",
        ),
        ("made/model.pt", [], "OUT is MODEL's folder: choose another folder"),
        ("made/model.pt", ["--overwrite"], "OUT is MODEL's folder: choose another folder"),
        ("out.pt", ["--max-shard-size", "5GB"], "remove --max-shard-size"),
        ("out.pt", ["--dtype", "int8"], "Invalid value for '--dtype'"),
        ("file", ["--to", "hub"], "--to hub writes a folder, but"),
        ("file", ["--to", "native", "--overwrite"], "--to native writes a folder, but"),
    ],
)
def test_invalid_calls_of_convert(
    tmp_path: Path, folder: Path, out: str, arguments: list[str], message: str
) -> None:
    (tmp_path / "held.pt").mkdir()
    (tmp_path / "file").write_text("content")
    result = convert(folder, tmp_path / out, "--to", "torchscript", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.pt").exists()
    assert (tmp_path / "file").read_text() == "content"


def test_a_corrupt_checkpoint_writes_nothing(tmp_path: Path, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 28}))
    result = convert(folder, tmp_path / "out.pt", "--to", "torchscript")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.pt").exists()
