"""GGUF files, compared with the checkpoints that they were made of and with the gguf package."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from click.testing import CliRunner
from commands import done, failed
from gguf import GGMLQuantizationType as Type
from gguf_cases import CASES, IDS, TEMPLATE, chatty, reference
from gguf_files import blocks, finish, write
from guarantees import RUNNER, assert_same
from hub_server import HubServer
from memory import MB, PREPARE, growth
from needs import needs
from references import assert_identical
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import weights_map
from minhub_py import (
    from_pretrained,
    generate,
    llama_from_pretrained,
    save_pretrained,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints import gguf as reading
from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.gguf_header import DEQUANTIZED, FLOAT_TYPES, read_header
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.cli.main import main
from minhub_py.inference.native.library import KINDS
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.quantize import Quantized, QuantizedExperts, kind_of
from minhub_py.models.experts import ExpertMatrices
from minhub_py.models.mixture import Mixture
from weights_map.blocks import TYPES
from weights_map.quantized import TERNARY


def rope_factors(model: Any) -> dict[str, torch.Tensor]:
    """Llama 3's frequency factors, as llama.cpp's converter writes them."""
    if CASES["llama3"]["rope_parameters"] != getattr(model.config, "rope_parameters", None):
        return {}
    factors = []
    for pair in range(0, model.config.head_dim, 2):
        # within the original context
        turns = 8192 / (2 * math.pi * 5e5 ** (pair / model.config.head_dim))
        part = (turns - 1) / (4 - 1)
        factors.append(32.0 if turns < 1 else 1.0 if turns > 4 else 1 / ((1 - part) / 32 + part))
    return {"rope_freqs.weight": torch.tensor(factors)}


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_float32_file_is_bitwise_identical_to_the_checkpoint(name: str, tmp_path: Path) -> None:
    model = reference(name)
    model.save_pretrained(tmp_path / "hub")
    file = write(tmp_path / "model.gguf", model, extra=rope_factors(model))
    ours, reference_model = (
        from_pretrained(file, device="cpu"),
        from_pretrained(tmp_path / "hub", device="cpu"),
    )
    if name.startswith("gemma"):  # 1 + w - 1
        torch.testing.assert_close(
            ours.state_dict(), reference_model.state_dict(), rtol=0, atol=2e-7
        )
    else:
        assert_identical(ours.state_dict(), reference_model.state_dict())
    assert name.startswith("gemma") or torch.equal(ours(IDS), reference_model(IDS))
    expected = model(IDS).logits
    assert (ours(IDS) - expected).abs().max() <= 5e-5 * expected.abs().max()
    # Configs are equal except for token IDs and Qwen's unused windows.
    if name.startswith("gemma"):
        return
    apart = {"bos_token_id", "eos_token_id", "pad_token_id", "sliding_window", "layer_types"}
    actual, saved = ours.config.to_hub(), reference_model.config.to_hub()
    actual, saved = (
        {key: value for key, value in config.items() if key not in apart}
        for config in (actual, saved)
    )
    for config in (actual, saved):
        config["n_inner"] = config.get("n_inner") or 4 * config.get("n_embd", 0)
    assert actual == saved


@torch.no_grad()
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_quantized_file_matches_the_gguf_package(name: str, kind: str, tmp_path: Path) -> None:
    model = reference(name)
    file = write(tmp_path / "model.gguf", model, kind)
    for key, parameter in model.named_parameters():
        if parameter.dim() == 2:
            rows = parameter.t() if name == "gpt2" and ".h." in key else parameter
            result = gguf.quants.dequantize(
                gguf.quants.quantize(rows.contiguous().numpy(), Type[kind]), Type[kind]
            )
            result = torch.from_numpy(result)
            parameter.copy_(result.t() if name == "gpt2" and ".h." in key else result)
    model.save_pretrained(tmp_path / "hub")
    ours = from_pretrained(file, device="cpu", quantize="none")
    reference_model = from_pretrained(tmp_path / "hub", device="cpu")
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    assert_identical(ours.state_dict(), reference_model.state_dict())
    half = from_pretrained(file, device="cpu", dtype="bfloat16")
    key, tensor = reference_model.state_dict().popitem()
    assert torch.equal(half.state_dict()[key], tensor.bfloat16())


@pytest.mark.parametrize("kind", [*FLOAT_TYPES, *TYPES, *DEQUANTIZED])
def test_dequantization_matches_the_gguf_package_across_chunks(kind: str, tmp_path: Path) -> None:
    """Uses more blocks than one chunk."""
    block, _ = gguf.GGML_QUANT_SIZES[Type[kind]]
    count = 2 * reading.CHUNK // block + 3
    data = (
        blocks(kind, count)
        if block > 1
        else torch.randn(count).to(FLOAT_TYPES[kind]).view(torch.uint8).numpy()
    )
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("pad", torch.zeros(3).numpy())
    writer.add_tensor("it", data.reshape(1, -1), raw_dtype=Type[kind])
    finish(writer)
    [_, reference_tensor] = gguf.GGUFReader(tmp_path / "one.gguf").tensors
    actual = reading.Tensors(tmp_path / "one.gguf", read_header(tmp_path / "one.gguf").tensors)[
        "it"
    ]
    expected = torch.from_numpy(data).view(FLOAT_TYPES[kind]) if kind in FLOAT_TYPES else None
    if expected is None:
        expected = torch.from_numpy(gguf.quants.dequantize(reference_tensor.data, Type[kind]))
    assert actual.shape == (1, count * block)
    assert torch.equal(actual.flatten(), expected.flatten())
    assert actual.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("kind", DEQUANTIZED)
def test_blocks_without_kernels_become_q4_0_or_int8(kind: str, tmp_path: Path) -> None:
    """Ternary weights keep their values."""
    sizes = {"hidden_size": 256, "intermediate_size": 512}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**CASES["llama"], **sizes}))

    def change(writer: gguf.GGUFWriter) -> None:
        for name, tensor in writer.tensors[0].items():
            if "blk" in name and len(tensor.shape) == 2:
                rows, columns = tensor.shape
                data = blocks(kind, rows * columns // 256, sum(name.encode()))
                tensor.tensor, tensor.dtype = data.reshape(rows, -1), Type[kind]
                tensor.nbytes = data.nbytes

    file = write(tmp_path / "model.gguf", model, change=change)
    floats = from_pretrained(file, device="cpu", quantize="none")
    ours = from_pretrained(file, device="cpu")
    layers = {
        path: module for path, module in ours.named_modules() if isinstance(module, Quantized)
    }
    assert len(layers) == 14
    assert {layer.kind for layer in layers.values()} == {"Q4_0" if kind in TERNARY else "int8"}
    for path, layer in layers.items():
        weight = floats.get_submodule(path).weight
        assert weight.unique().numel() > 2
        if kind in TERNARY:
            assert torch.equal(layer.weight, weight), path
        else:
            assert (layer.weight - weight).abs().max() <= weight.abs().max() / 127


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize(
    "name",
    ["llama", "llama-biases", "gpt2", "qwen3", "gemma2", "gpt_neox", "phi", "mixtral", "qwen3_moe"],
)
def test_quantize_auto_uses_the_blocks_of_the_file(name: str, kind: str, tmp_path: Path) -> None:
    """Weights are not quantized again, also if their rows are permuted; the C decoder matches
    `forward` with activations in float32.
    """
    file = write(tmp_path / "model.gguf", reference(name), kind)
    ours, floats = (
        from_pretrained(file, device="cpu", dtype="float32", quantize=how)
        for how in ("auto", "none")
    )
    cached = {
        path: module for path, module in ours.named_modules() if isinstance(module, Quantized)
    }
    assert {module.kind for module in cached.values()} == {kind_of(ours)} == {kind}
    matrices = nn.Linear | nn.Embedding | ExpertMatrices
    routers = sum(isinstance(module, Mixture) for module in floats.modules())
    assert len(cached) == sum(
        isinstance(module, matrices) for module in floats.modules()
    ) - routers - (
        name == "gpt2"  # positions are no layer of the steps that is quantized
    )
    for path, module in cached.items():
        other = floats.get_submodule(path)
        if isinstance(module, QuantizedExperts):
            for number in range(module.shape[0]):
                assert torch.equal(module.expert(number), other.expert(number)), path
        else:
            assert torch.equal(module.weight, other.weight), path
    expected = floats(IDS)[0]
    assert torch.equal(ours(IDS)[0], expected)
    runner = runner_of(ours)
    assert type(runner) is RUNNER
    actual = runner.forward({0: IDS[0].tolist()}, runner.new_cache(1, 48), every=True)
    assert (actual - expected).abs().max() <= 5e-5 * expected.abs().max()
    half = from_pretrained(file, device="cpu", quantize="auto", dtype="bfloat16")
    assert half(IDS).dtype == torch.bfloat16
    assert all(
        torch.equal(module.codes, cached[path].codes)
        for path, module in half.named_modules()
        if path in cached
    )


@pytest.mark.parametrize(("dtype", "bits"), [("auto", 8), ("bfloat16", 8), ("float32", 32)])
def test_activations_have_8_bits_unless_float32_is_requested(
    dtype: str, bits: int, tmp_path: Path
) -> None:
    """In the products of the blocks; in the head twice 8, as if each token were two."""
    file = write(tmp_path / "model.gguf", reference("llama"), "Q4_1")
    model = from_pretrained(file, device="cpu", dtype=dtype, quantize="auto")
    weights = [
        operation.linear.weight.int8_inputs
        for operation in NativeRunner(model).operations
        if operation.kind == KINDS["linear"]
    ]
    assert set(weights) == {int(bits == 8)}
    head = NativeRunner(model).operations[-1].logits.linear.weight
    assert head.int8_inputs == 2 * (bits == 8)


def test_gguf_files_use_their_blocks_by_default(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model = reference("llama")
    file = write(tmp_path / "model.gguf", model, "Q4_1")
    model.save_pretrained(tmp_path / "hub")
    assert kind_of(from_pretrained(file, device="cpu")) == "Q4_1"
    assert kind_of(llama_from_pretrained(file, device="cpu", quantize="auto")) == "Q4_1"
    assert kind_of(from_pretrained(file, device="cpu", quantize="none")) is None
    floats = from_pretrained(file, device="cpu", dtype="bfloat16")
    assert (kind_of(floats), floats.lm_head.weight.dtype) == (None, torch.bfloat16)
    assert kind_of(from_pretrained(file, device="cpu", dtype="bfloat16", quantize="auto")) == "Q4_1"
    assert kind_of(from_pretrained(tmp_path / "hub", device="cpu")) is None
    assert kind_of(from_pretrained(tmp_path / "hub", device="cpu", quantize="none")) is None
    with pytest.raises(
        ValueError, match=r'a quantized model cannot be saved: load it again with quantize = "none"'
    ):
        save_pretrained(from_pretrained(file, device="cpu"), tmp_path / "saved")
    assert not recwarn
    for path in (tmp_path / "hub", write(tmp_path / "half.gguf", model, "F16")):
        with pytest.warns(
            UserWarning,
            match=r'^quantize="auto" has no effect: it applies to the quantized weights',
        ):
            assert kind_of(from_pretrained(path, device="cpu", quantize="auto")) is None


def test_command_reports_the_default_quantization_of_a_gguf_file(file: Path) -> None:
    def notes(model: str, *options: str) -> str:
        result = CliRunner().invoke(
            main, ["generate", model, "Hello", "-n", "1", "--device", "cpu", *options]
        )
        assert result.exit_code == 0
        return result.stderr

    note = (
        "Note: using the file's quantized weights (Q8_0); --quantize none converts them to floating"
        " point.\n"
    )
    assert notes(str(file)) == note
    assert notes(str(file), "--quantize", "none") == notes(str(file), "--quantize", "auto") == ""
    assert 'Note: quantize="auto" has no effect' in notes(
        "minhub/shakespeare-gpt2", "--quantize", "auto"
    )


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "expected"), [("F16", None), ("IQ4_NL", "IQ4_NL"), ("MXFP4", "MXFP4")]
)
def test_quantize_auto_keeps_floats_and_blocks(
    kind: str, expected: str | None, tmp_path: Path
) -> None:
    """Floats stay floats, and a file of floats can have some blocks."""
    model = reference("llama")
    if kind == "F16":
        file = write(tmp_path / "model.gguf", model, kind)
    else:
        matrix = torch.from_numpy(blocks(kind, 64 * 64 // 32)).view(64, -1).numpy()
        file = write(
            tmp_path / "model.gguf",
            model,
            "F32",
            change=lambda writer: replace(writer, matrix, kind),
        )
    ours = from_pretrained(file, device="cpu")
    assert kind_of(ours) == expected
    floats = from_pretrained(file, device="cpu", quantize="none")
    assert torch.equal(ours(IDS), floats(IDS))
    assert generate(ours, [[1, 2, 3]], 4, temperature=0)


def replace(writer: gguf.GGUFWriter, rows: Any, kind: str) -> None:
    """Replace the first layer's output projection."""
    info = writer.tensors[0]["blk.0.attn_output.weight"]
    writer.tensors[0]["blk.0.attn_output.weight"] = dataclasses.replace(
        info, tensor=rows, dtype=Type[kind], nbytes=rows.nbytes
    )


READ = """
from minhub_py import generate
model = from_pretrained(sys.argv[1], device="cpu", quantize="auto")
generate(model, [[1, 2, 3]], 4, temperature=0)
report()
"""


@needs("decoder")
def test_blocks_share_the_memory_of_the_mapped_file(tmp_path: Path) -> None:
    """Only unquantized tensors, and q and k, whose rows are permuted, are copied."""
    CASES["wide"] = {
        **CASES["llama"],
        "hidden_size": 1024,
        "intermediate_size": 6144,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
    }
    file = write(tmp_path / "model.gguf", reference("wide"), "Q8_0")
    size = file.stat().st_size
    grown = growth(READ, file)
    assert size > 60 * MB
    assert grown["RssAnon"] < 30 * MB
    assert grown["VmRSS"] > 0.9 * size  # or else nothing was measured


READ_EXPERTS = """
import re
from minhub_py.inference.native_runner import NativeRunner

def mapped():
    parts = Path("/proc/self/smaps").read_text().split(sys.argv[1])[1:]
    return sum(int(re.search(r"Rss: +(\\d+)", part)[1]) * 1024 for part in parts)

runner = NativeRunner(from_pretrained(sys.argv[1], device="cpu"))
for tokens in ([1], list(range(2, 122))):
    loaded = mapped()
    runner.forward({0: tokens}, runner.new_cache(1, 128))
    print(json.dumps({"mapped": mapped() - loaded}))
report()
"""


@needs("decoder")
def test_only_selected_experts_of_a_mapped_file_are_read(tmp_path: Path) -> None:
    """One token reads one of 64 experts in each layer; loading and a prompt need no second copy."""
    CASES["experts"] = {
        **CASES["qwen3_moe"],
        "hidden_size": 256,
        "moe_intermediate_size": 512,
        "num_experts": 64,
        "num_local_experts": 64,
        "num_experts_per_tok": 1,
    }
    file = write(tmp_path / "model.gguf", reference("experts"), "Q8_0")
    size = file.stat().st_size
    code = f"{PREPARE}{READ_EXPERTS}"
    result = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    token, prompt, grown = (json.loads(line) for line in result.stdout.splitlines())
    assert size > 50 * MB
    assert token["mapped"] < 0.45 * size  # some systems map 2 MB around each page
    assert token["mapped"] + prompt["mapped"] > 0.7 * size  # or else nothing was measured
    assert grown["RssAnon"] < 100 * MB
    assert grown["VmRSS"] < size + 200 * MB


def test_tensors_stored_both_fused_and_split_are_rejected(tmp_path: Path) -> None:
    """Files of Phi 2 have q, k and v either in one tensor or in three."""
    model = reference("phi-all")
    parts = [getattr(model.model.layers[0].self_attn, f"{name}_proj") for name in "qkv"]
    complete = {
        "blk.0.attn_qkv.weight": torch.cat([part.weight.detach() for part in parts]),
        "blk.0.attn_qkv.bias": torch.cat([part.bias.detach() for part in parts]),
    }
    file = write(tmp_path / "both.gguf", model, extra=complete)
    with pytest.raises(
        ValueError,
        match=r"duplicate: model.layers.0.self_attn.k_proj.bias from blk.0.attn_qkv.bias",
    ):
        from_pretrained(file)

    def only_whole(writer: gguf.GGUFWriter) -> None:
        for name in [name for name in writer.tensors[0] if re.match(r"blk\.0\.attn_[qkv]\.", name)]:
            del writer.tensors[0][name]

    ours = from_pretrained(
        write(tmp_path / "whole.gguf", model, "Q8_0", extra=complete, change=only_whole),
        quantize="auto",
    )
    reference_model = from_pretrained(
        write(tmp_path / "parts.gguf", model, "Q8_0"), quantize="auto"
    )
    for name in ("q_proj", "k_proj", "v_proj"):
        actual, expected = (
            getattr(model.layers[0].self_attn, name) for model in (ours, reference_model)
        )
        assert torch.equal(actual.codes, expected.codes)
        assert torch.equal(actual.bias, expected.bias)


def test_head_that_copies_the_embedding_is_tied(tmp_path: Path) -> None:
    """A head with the embedding's bytes is tied; another head is a separate weight."""
    model = reference("gpt2")
    head = model.transformer.wte.weight.detach()
    same = from_pretrained(write(tmp_path / "same.gguf", model, extra={"output.weight": head}))
    other = from_pretrained(
        write(tmp_path / "other.gguf", model, extra={"output.weight": head + 1})
    )
    assert same.lm_head is None
    assert torch.equal(other.lm_head.weight, head + 1)


def test_gguf_tables_cover_the_weight_tables() -> None:
    """Each GGUF architecture maps to canonical Hub names and covers all required tensors."""
    from minhub_py.models.registry import architecture_of

    for architecture in weights_map.gguf_architectures.values():
        table = weights_map.tables[architecture_of(architecture.model_type).model_type].for_head(
            None
        )
        if architecture.name == "t5encoder":
            table = table.without_decoder()
        rows = [row for row in table.rows if row.operation.name != "drop"]
        known = {name: row.optional for row in rows for name in row.templates("hub")}
        # A file has at most one head for multi-token prediction, without an index.
        named = [
            name.replace("mtp.layers.0.", "mtp.layers.{}.")
            for row in architecture.rows
            for name in row.templates("native")
        ]
        assert (
            {name for name, optional in known.items() if not optional} <= set(named) <= set(known)
        ), architecture.name
        # Twice only where a file has the one or the other: a whole tensor, or its parts.
        twice = {name for name in named if named.count(name) > 1}
        assert not any(
            twice & set(row.templates("native")) for row in architecture.rows if not row.optional
        )


# --- Commands


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small Llama with its vocabulary, in Q8_0."""
    CASES["chatty"] = {**CASES["llama"], "vocab_size": 768}
    return write(tmp_path / "chatty.gguf", reference("chatty"), "Q8_0", tokenizer=chatty)


def test_commands_accept_gguf_files(file: Path, tmp_path: Path) -> None:
    report = json.loads(done("inspect", str(file), "--json"))
    assert (report["family"], report["config"]["hidden_size"], report["parameters"]["total"]) == (
        "llama",
        64,
        160_064,
    )
    q = next(
        tensor
        for tensor in report["tensors"]
        if tensor["native"] == "layers.0.self_attn.q_proj.weight"
    )
    assert (q["hub"], q["dtype"]) == ("model.layers.0.self_attn.q_proj.weight", "Q8_0")
    assert "Q8_0" in done("inspect", str(file))
    assert report["source"] == {"kind": "files", "folder": str(file), "layout": "gguf"}
    assert f"{file} (GGUF file)\n" in done("inspect", str(file))
    assert "no problems found" in done("verify", str(file))
    generated = json.loads(
        done("generate", str(file), "Hello", "-n", "4", "--temperature", "0", "--json")
    )
    assert len(generated["ids"]) == 4
    auto = json.loads(
        done("generate", str(file), "Hello", "-n", "4", "--quantize", "auto", "--json")
    )
    assert len(auto["ids"]) <= 4
    (tmp_path / "text.txt").write_text("Some text to score.")
    scored = json.loads(
        done("score", str(file), str(tmp_path / "text.txt"), "--json", "--quantize", "none")
    )
    done("convert", str(file), str(tmp_path / "hub"))
    again = json.loads(done("score", str(tmp_path / "hub"), str(tmp_path / "text.txt"), "--json"))
    assert_same(again["scores"], scored["scores"])
    # transformers loads the result, with tokenizer, chat template and end tokens.
    with torch.no_grad():
        reference_model = AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
        expected = reference_model(IDS).logits
        assert (
            from_pretrained(file, quantize="none")(IDS) - expected
        ).abs().max() <= 5e-5 * expected.abs().max()
    assert reference_model.config.eos_token_id == [0, 5]
    assert (tmp_path / "hub" / "chat_template.jinja").read_text() == TEMPLATE
    settings = json.loads((tmp_path / "hub" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["add_bos_token"]) == ("<|im_start|>", False)
    save_pretrained(
        from_pretrained(file, quantize="none"),
        tmp_path / "saved",
        tokenizer_from_pretrained(str(file)),
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "hub" / name).read_bytes()


def test_gguf_file_of_a_repository_is_downloaded_alone(hub: HubServer, file: Path) -> None:
    other = b"another"
    hub.add(
        "owner/name",
        {"README.md": b"x", "it.gguf": other, "sub/model-Q8_0.gguf": file.read_bytes()},
    )
    identifier = "owner/name:sub/model-Q8_0.gguf"
    ours = llama_from_pretrained(identifier, device="cpu")
    with torch.no_grad():
        assert torch.equal(ours(IDS), from_pretrained(file, device="cpu")(IDS))
    assert hub.fetched() == ["sub/model-Q8_0.gguf"]
    assert (
        tokenizer_from_pretrained(identifier).get_vocab_size()
        == read_tokenizer(file).get_vocab_size()
    )
    assert from_pretrained(identifier, local_files_only=True)
    assert hub.fetched() == ["sub/model-Q8_0.gguf"]
    assert "no problems found" in done("verify", identifier)
    assert json.loads(done("list", "--json"))["cached"][0]["repository"] == identifier
    assert "it.gguf, sub/model-Q8_0.gguf" in failed("generate", "owner/name:absent.gguf", "x")
    assert "owner/name:it.gguf" in failed("generate", "owner/name", "x")
    for name in (
        "owner/name:../it.gguf",
        "owner/name:it.safetensors",
        "owner/name:/etc/x.gguf",
        "owner/name:",
    ):
        assert "owner/name" in failed("generate", name, "x")
    assert "There is no file" in failed("generate", "absent.gguf", "x")
    assert "does not begin with GGUF" in failed("generate", "owner/name:it.gguf", "x")


def test_folder_with_only_a_gguf_file_names_the_file(file: Path, hub: HubServer) -> None:
    """The message has the path to pass."""
    for load in (from_pretrained, tokenizer_from_pretrained):
        with pytest.raises(
            FileNotFoundError, match=f"To open a GGUF file, name it: {re.escape(str(file))}$"
        ):
            load(str(file.parent))
    (file.parent / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(
        FileNotFoundError, match=f"has no weights .* name it: {re.escape(str(file))}$"
    ):
        from_pretrained(file.parent)
    hub.add("owner/name", {"config.json": '{"model_type": "llama"}', "it.gguf": b"GGUF"})
    with pytest.raises(
        FileNotFoundError, match=r"has no weights .* Name one file of it, as owner/name:it\.gguf"
    ):
        from_pretrained("owner/name")


# --- Reading


def test_missing_gguf_package_is_explained(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert "pip install 'minhub_py[gguf]'" in failed("generate", str(file), "x")


def test_header_is_read_once_per_file(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=chatty)
    first = read_header(file)
    assert read_header(file) is first
    write(file, reference("llama"))
    assert read_header(file).metadata.keys() < first.metadata.keys()


def test_opening_a_file_reads_the_header_only(tmp_path: Path) -> None:
    """Only accessed tensors are dequantized."""
    checkpoint = GGUFCheckpoint(write(tmp_path / "model.gguf", reference("llama-tied"), "Q8_0"))
    assert len(checkpoint) == len(checkpoint.contents.meta) == 20
    assert checkpoint._tensors._data is None
    assert checkpoint["model.norm.weight"].shape == (64,)
