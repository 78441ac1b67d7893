"""Files written as GGUF, read again: the same settings and weights."""

import re
import resource
from pathlib import Path

import gguf
import pytest
import torch
from cases.falcon_h1 import FAMILY as FALCON_H1
from cases.gemma4 import SMALL as GEMMA4
from commands import done, failed
from gguf_cases import WORDS, character_bpe, trained
from random_weights import draw
from references import FIRST, ids_of, random_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import weights_map
from minhub_py import (
    from_config,
    from_pretrained,
    gemma3,
    llama,
    save_pretrained,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.export.gguf import write_gguf
from minhub_py.export.k_quants import quantize
from minhub_py.loading.files import open_files
from weights_map.blocks import unpack_rows

ALPHABET = pre_tokenizers.ByteLevel.alphabet()
REFUSED = {
    "exaone4": "windows in models with 64 layers only",
    "ernie4_5-biases": "supports no biases",
    "seed_oss-biases": "biases of q, k and v only",
    "olmo3-types": "supports no attention biases",
    "cohere-norms": "requires a tied head",
    "smollm3-layers": "rotary embeddings in all layers except every fourth",
    "granitemoehybrid-groups": "requires mamba_expand 2, mamba_conv_bias true",
    "falcon_h1-biases": "falcon-h1 requires mamba_conv_bias true, no other biases",
    "jamba-sizes": "llama.cpp's jamba requires mamba_expand 2",
    "nemotron_h-types": "nemotron_h requires use_bias false, use_conv_bias true",
    "nemotron_h-activations": "the activations relu2 and silu",
    "granitemoehybrid-no-positions": "requires rotary embeddings",
    "mistral-window": "llama.cpp's llama has no setting for windows of this model",
    "starcoder2-window": "has no setting for windows",
    "llama-gelu": "has no setting for hidden_act",
    "gemma4_text-long-sharing": "requires a sliding and then a full attention layer before the layers",
    "gemma4_text-ropes": "requires rope_type proportional without a factor in full attention",
    "qwen3_5_text": "requires keys and values of equal size in linear attention",
    "gpt_oss-no-bias": "requires attention biases, a separate head and windows",
    "gpt_oss-tied": "a separate head",
    "gpt_oss-gate": "swiglu_alpha 1.702 and",
    "gpt_bigcode-relu": "has no setting for activation_function",
    "gpt_bigcode-unscaled": "has no setting for scale_attn_weights",
    "falcon-rw": "rotary embeddings, no biases, and attention and MLP in parallel",
    "olmo-biases": "llama.cpp's olmo has no biases",
    "mpt-scale": "has no setting for scale",
    "qwen2_moe-normalized": "has no setting for norm_topk_prob",
    "mamba-sizes": "requires use_conv_bias true",
    "mamba-relu": "has no setting for hidden_act",
    "mamba2-biases": "and use_bias false",
    "falcon_mamba": "a model of the type falcon_mamba cannot be written as GGUF",
    "apertus": "a model of the type apertus cannot be written as GGUF",
    "opt": "a model of the type opt cannot be written as GGUF; possible are",
}
# Cases of hybrid models, their architecture in llama.cpp, a layer with Mamba, and KV heads.
HYBRIDS = {
    "granitemoehybrid": (gguf.MODEL_ARCH.GRANITE_HYBRID, 2, [0, 2, 0]),
    "granitemoehybrid-experts": (gguf.MODEL_ARCH.GRANITE_HYBRID, 2, [0, 2, 0]),
    "falcon_h1": (gguf.MODEL_ARCH.FALCON_H1, 1, 2),
    "nemotron_h": (gguf.MODEL_ARCH.NEMOTRON_H, 3, [0, 0, 2, 0]),
    "jamba": (gguf.MODEL_ARCH.JAMBA, 2, [0, 2, 0]),
    "falcon_h1-norm": (gguf.MODEL_ARCH.FALCON_H1, 1, 2),
}
# Cases with further settings, or instead of a first case in REFUSED.
FURTHER = (
    "llama",
    "llama-biases",
    "llama-yarn",
    "mistral",
    "qwen2",
    "phi3",
    "phi3-part",
    "phi3-short",
    "smollm3",
    "olmo3",
    "olmo3-scaled",
    "exaone4-everywhere",
    "starcoder2",
    "cohere",
    "stablelm-norms",
    "stablelm-parallel",
    "gemma4_text",
    "gemma4_text-experts",
    "granitemoehybrid-attention",
    "granitemoehybrid",
    "granitemoehybrid-experts",
    "granitemoehybrid-all-experts",
    "granitemoehybrid-last",
    "nemotron_h",
    "nemotron_h-mlp-last",
    "nemotron_h-sizes",
    "nemotron_h-older-names",
    "jamba",
    "jamba-all-experts",
    "jamba-no-experts",
    "jamba-last",
    "falcon_h1",
    "falcon_h1-plain",
    "falcon_h1-norm",
    "qwen3_5_text-long-convolution",
    "qwen3_5_moe_text-layers",
    "qwen3_next-all-experts",
    "gpt_oss",
    "gpt_oss-layer-types",
    "gpt_oss-rope",
    "gpt_oss-yarn-old",
    "falcon",
    "falcon-new",
    "falcon-new-one-norm",
    "mpt",
    "mpt-unclipped",
    "nemotron",
    "nemotron-biases",
    "gpt_bigcode",
    "gpt_bigcode-untied-many-queries",
    "gpt_bigcode-inner",
)
TYPES = {
    kind
    for each in weights_map.gguf_architectures.values()
    for kind in each.model_types or (each.model_type,)
}
# Gemma 3 has a separate test
TYPES -= {"gemma3_text", *(name.partition("-")[0] for name in FURTHER)}
WRITTEN = [*FURTHER, *(name for kind, name in FIRST.items() if kind in TYPES)]


@torch.no_grad()
@pytest.mark.parametrize("name", WRITTEN)
def test_written_files_have_the_settings_and_weights(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    again = from_pretrained(tmp_path / "model.gguf", device="cpu")
    ids = ids_of(1, 30)
    expected = model(ids)
    assert (again(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_progress_counts_bytes(tmp_path: Path) -> None:
    model = random_model("gpt2")
    save_pretrained(model, tmp_path / "hub")
    calls: list[tuple[int, int]] = []
    write_gguf(
        open_files(tmp_path / "hub"),
        tmp_path / "model.gguf",
        "F32",
        lambda *call: calls.append(call),
    )
    [total] = {total for _, total in calls}
    assert total == sum(parameter.nbytes for parameter in model.parameters())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == total


@torch.no_grad()
def test_written_gemma3_has_its_windows_and_rotations(tmp_path: Path) -> None:
    small = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 7,
        "head_dim": 8,
    }
    model = gemma3(
        **small,
        num_attention_heads=4,
        num_key_value_heads=2,
        query_pre_attn_scalar=8,
        sliding_window=6,
    )
    draw(model)
    save_pretrained(model.eval(), tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    ids = ids_of(1, 30)
    expected = model(ids)
    actual = from_pretrained(tmp_path / "model.gguf", device="cpu")(ids)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_bloom_has_the_order_of_rows_of_llama_cpp(tmp_path: Path) -> None:
    """All q, all k, all v. Reading a file that we wrote would not show another order."""
    model = random_model("bloom")
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    tensors = {
        tensor.name: torch.tensor(tensor.data)
        for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    attn = model.layers[1].self_attn
    rows = torch.cat([layer.weight for layer in (attn.q_proj, attn.k_proj, attn.v_proj)])
    assert torch.equal(tensors["blk.1.attn_qkv.weight"], rows)


def test_gpt_bigcode_has_the_order_of_rows_of_llama_cpp(tmp_path: Path) -> None:
    """All q, all k, all v, as in the native model; the Hub has q, k and v of each head."""
    model = random_model("gpt_bigcode-many-queries")
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    tensors = {
        tensor.name: torch.tensor(tensor.data)
        for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    assert torch.equal(tensors["blk.1.attn_qkv.bias"], model.h[1].attn.c_attn.bias)


def test_falcon_has_the_names_and_the_order_of_rows_of_llama_cpp(tmp_path: Path) -> None:
    """All q, all k, all v; with two norms, attn_norm is the norm of the MLP."""
    model = random_model("falcon-new")
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    tensors = {
        tensor.name: torch.tensor(tensor.data)
        for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    block = model.layers[1]
    assert torch.equal(tensors["blk.1.attn_qkv.weight"], block.attention.query_key_value.weight)
    assert torch.equal(tensors["blk.1.attn_norm.weight"], block.mlp_norm.weight)
    assert torch.equal(tensors["blk.1.attn_norm_2.weight"], block.input_layernorm.weight)


def test_nemotron_has_the_weights_of_norms_of_llama_cpp(tmp_path: Path) -> None:
    """1 + the Hub's weights."""
    model = random_model("nemotron")
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    tensors = {
        tensor.name: torch.tensor(tensor.data)
        for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    assert torch.equal(tensors["output_norm.weight"], model.norm.weight + 1)


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrid_models_have_the_names_and_values_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """A is stored as -e^A_log, matrices in llama.cpp's shapes, and Mamba layers have no KV heads."""
    arch, layer, kv_heads = HYBRIDS[name]
    model = random_model(name)
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    tensors = {
        tensor.name: torch.tensor(tensor.data)
        for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    named = {name.removesuffix(".weight").removesuffix(".bias") for name in tensors}
    assert {re.sub(r"\.\d+\.", ".{bid}.", name) for name in named} <= known
    names = gguf.get_tensor_name_map(arch, len(model.layers))
    for hub_name in open_files(tmp_path / "hub").checkpoint:
        if "_mlp." not in hub_name and "experts" not in hub_name and "_moe." not in hub_name:
            # llama.cpp's converter renames the bias
            renamed = hub_name.replace("dt_bias", "dt_proj.bias")
            assert names.get_name(renamed, (".weight", ".bias")) in tensors, hub_name
    metadata = read_header(tmp_path / "model.gguf").metadata
    prefix = gguf.MODEL_ARCH_NAMES[arch]
    assert metadata["general.architecture"] == prefix
    assert metadata[f"{prefix}.attention.head_count_kv"] == kv_heads
    block = model.layers[layer]
    mixer = block.mixer if hasattr(block, "mixer") else block.mamba
    decay, skip = -mixer.A_log.exp(), mixer.D
    if metadata.get(f"{prefix}.ssm.group_count"):  # Mamba 2
        decay, skip = decay.unsqueeze(1), skip.unsqueeze(1)
    assert torch.equal(tensors[f"blk.{layer}.ssm_a"], decay)
    assert torch.equal(tensors[f"blk.{layer}.ssm_d"], skip)
    assert torch.equal(tensors[f"blk.{layer}.ssm_conv1d.weight"], mixer.conv1d.weight.squeeze(1))
    if f"blk.{layer}.ssm_norm.weight" in tensors:
        rows = mixer.norm.weight.view(metadata[f"{prefix}.ssm.group_count"], -1)
        assert torch.equal(tensors[f"blk.{layer}.ssm_norm.weight"], rows)


@torch.no_grad()
def test_factors_of_falcon_h1_are_in_the_weights_as_in_llama_cpp(tmp_path: Path) -> None:
    """With heads whose sizes together differ from the width, and the rotation of published files."""
    settings = {
        **FALCON_H1.settings("falcon_h1"),
        "head_dim": 12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e11},
    }
    model = from_config("falcon_h1", **settings)
    draw(model)
    save_pretrained(model.eval(), tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    tensors = {
        tensor.name: torch.tensor(tensor.data)
        for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors
    }
    block, factors = model.layers[1], model.config
    x, b = slice(48, 96), slice(96, 104)  # the rows of x and b, after 48 of z
    scan = block.mamba.in_proj.weight * factors.ssm_in_multiplier
    for name, expected in {
        "token_embd": model.embed_tokens.weight * factors.embedding_multiplier,
        "output": model.lm_head.weight * factors.lm_head_multiplier,
        "blk.1.attn_k": block.self_attn.k_proj.weight
        * (factors.key_multiplier * factors.attention_in_multiplier),
        "blk.1.attn_v": block.self_attn.v_proj.weight * factors.attention_in_multiplier,
        "blk.1.ffn_gate": block.mlp.gate_proj.weight * factors.mlp_multipliers[0],
        "blk.1.ffn_down": block.mlp.down_proj.weight * factors.mlp_multipliers[1],
        "blk.1.ffn_up": block.mlp.up_proj.weight,
    }.items():
        torch.testing.assert_close(tensors[f"{name}.weight"], expected)
    for number, rows in ((1, x), (2, b)):
        torch.testing.assert_close(
            tensors["blk.1.ssm_in.weight"][rows], scan[rows] * factors.ssm_multipliers[number]
        )
    ids = ids_of(1, 30)
    expected = model(ids)
    actual = from_pretrained(tmp_path / "model.gguf", device="cpu")(ids)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()
    tied = from_config("falcon_h1", **settings, tie_word_embeddings=True)
    save_pretrained(tied, tmp_path / "tied")
    with pytest.raises(ValueError, match="requires a separate head, or factors of 1"):
        write_gguf(open_files(tmp_path / "tied"), tmp_path / "tied.gguf", "F32")


def test_routers_and_convolutions_are_not_quantized(tmp_path: Path) -> None:
    save_pretrained(random_model("lfm2_moe"), tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "Q8_0")
    types = {
        name: tensor.type for name, tensor in read_header(tmp_path / "model.gguf").tensors.items()
    }
    parts = ("ffn_gate_inp.weight", "shortconv.conv.weight")
    assert {types[name] for name in types if name.endswith(parts)} == {"F32"}
    assert types["token_embd.weight"] == "Q8_0"


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_gguf_lacks_are_rejected(name: str, tmp_path: Path) -> None:
    save_pretrained(random_model(name), tmp_path / "hub")
    with pytest.raises(ValueError, match=REFUSED[name]) as error:
        write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    assert "convert to a folder instead" in str(error.value) or "possible are" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


@pytest.mark.parametrize("pre", WORDS)
def test_word_patterns_of_tokenizers_are_recognized(pre: str, tmp_path: Path) -> None:
    """The tokenizer of the file splits and joins as the tokenizer of the folder."""
    tokenizer = trained(pre)
    small = {"vocab_size": 768, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    save_pretrained(
        llama(**small, num_attention_heads=2, eos_token_id=[0, 5]), tmp_path / "hub", tokenizer
    )
    (tmp_path / "hub" / "chat_template.jinja").write_text("{{ messages }}")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F16")
    header = read_header(tmp_path / "model.gguf").metadata
    assert (header["tokenizer.ggml.pre"], header["tokenizer.chat_template"]) == (
        pre,
        "{{ messages }}",
    )
    assert (header["tokenizer.ggml.eos_token_id"], header["tokenizer.ggml.eot_token_id"]) == (0, 5)
    again = tokenizer_from_pretrained(str(tmp_path / "model.gguf"))
    for text in ("It's 1234 roses!\n\n  <x>  and <|im_start|>more", "\u00e9te\u0301 HelloWorld"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert again.encode(text, add_special_tokens=False).ids == ids
        assert again.decode(ids, skip_special_tokens=False) == tokenizer.decode(
            ids, skip_special_tokens=False
        )


def test_gemma4_tokenizers_are_written(tmp_path: Path) -> None:
    """With the types of llama.cpp: bytes, and tokens of tool calls that it shows."""
    tokenizer = character_bpe()
    begin = [("<bos>", tokenizer.token_to_id("<bos>"))]
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=begin)
    count = tokenizer.get_vocab_size()
    model = from_config(
        "gemma4_text", **{**GEMMA4, "vocab_size": count, "vocab_size_per_layer_input": count}
    )
    save_pretrained(model, tmp_path / "hub", tokenizer)
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf")
    header = read_header(tmp_path / "model.gguf").metadata
    tokens, kinds = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.token_type"].tolist()
    assert [kinds[tokens.index(token)] for token in ("<bos>", "<0x41>", "<|tool_call>", "a")] == [
        3,
        6,
        4,
        1,
    ]
    again = tokenizer_from_pretrained(str(tmp_path / "model.gguf"))
    for text in ("It's  1234 roses!\n\n\n<|tool_call>\t", "\u6f22 \U0001f999"):
        ids = tokenizer.encode(text).ids
        assert again.encode(text).ids == ids
        assert again.decode(ids, skip_special_tokens=False) == tokenizer.decode(
            ids, skip_special_tokens=False
        )
    save_pretrained(model, tmp_path / "plain", character_bpe())
    with pytest.warns(UserWarning, match="programs add <bos> to each text of a Gemma 4 file"):
        write_gguf(open_files(tmp_path / "plain"), tmp_path / "plain.gguf")


def test_other_tokenizers_are_rejected(tmp_path: Path) -> None:
    model = llama(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    vocabulary = {letter: id for id, letter in enumerate(sorted(ALPHABET))}
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("isolated"), pre_tokenizers.ByteLevel(False)]
    )
    for kind, message in (
        (models.BPE(vocabulary, []), "by none of"),
        (models.WordLevel(vocabulary, "a"), "WordLevel"),
    ):
        tokenizer = Tokenizer(kind)
        tokenizer.pre_tokenizer, tokenizer.decoder = words, decoders.ByteLevel()
        save_pretrained(model, tmp_path / message, tokenizer)
        with pytest.raises(ValueError, match=message):
            write_gguf(open_files(tmp_path / message), tmp_path / "model.gguf")


def test_command_writes_files_that_are_written_again(tmp_path: Path) -> None:
    """A file becomes another type without loss of its settings; the tokenizer is copied."""
    save_pretrained(random_model("qwen3-tied"), tmp_path / "hub")
    file, again = tmp_path / "model.gguf", tmp_path / "again.gguf"
    assert f"{file}\n" in done("convert", str(tmp_path / "hub"), str(file), "--type", "q8_0")
    types = {name: stored.type for name, stored in read_header(file).tensors.items()}
    assert types["blk.0.attn_q.weight"] == "Q8_0"
    assert types["output_norm.weight"] == "F32"
    assert "token_embd.weight" in types
    assert "output.weight" not in types
    assert types["blk.0.ffn_down.weight"] == "F16"  # rows of 44 numbers are no blocks
    done("convert", str(file), str(again), "--type", "F32")
    ids = ids_of(1, 20)
    with torch.no_grad():
        expected = from_pretrained(file, device="cpu", quantize="none")(ids)
        assert torch.equal(from_pretrained(again, device="cpu")(ids), expected)
    for options, message in (
        (
            ["--type", "Q8_0", str(tmp_path / "out")],
            "--type applies to GGUF files only, but --to is hub",
        ),
        (["--dtype", "float16", str(again)], "does not apply to GGUF files: use --type"),
        (["--to", "gguf", str(tmp_path / "out")], "OUT must end in .gguf"),
        (["--to", "hub", str(tmp_path / "new.gguf")], "use --to gguf or choose a folder"),
        ([str(again)], "already exists"),
    ):
        assert message in failed("convert", str(file), *options, status=2)


@pytest.mark.parametrize(("type", "limit"), [("Q4_K", 0.08), ("Q5_K", 0.038), ("Q6_K", 0.019)])
def test_k_quants_are_read_by_the_gguf_package(type: str, limit: float) -> None:
    """Rows of normal, one-sided, small and zero weights; the error is that of the bits."""
    weights = torch.randn(6, 512, generator=torch.Generator().manual_seed(1))
    weights[1] = weights[1].abs()
    weights[2] = -weights[2].abs() - 1
    weights[3] *= 1e-3
    weights[4] = 0
    weights[5, :300] = 0
    rows = quantize(weights, type)
    values = torch.from_numpy(gguf.quants.dequantize(rows.numpy(), gguf.GGMLQuantizationType[type]))
    assert torch.equal(unpack_rows(rows, type), values)
    errors = (values - weights).square().mean(dim=1).sqrt() / weights.square().mean(
        dim=1
    ).sqrt().clamp_min(1e-30)
    assert errors[4] == 0
    assert (errors[[0, 1, 2, 5]] < limit).all(), errors
    assert errors[3] < 3 * limit, errors  # its scales are subnormal in float16


def test_mixes_have_the_types_of_llama_cpp(tmp_path: Path) -> None:
    model = llama(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=2,
    )
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "Q4_K_M")
    types = {
        name: stored.type for name, stored in read_header(tmp_path / "model.gguf").tensors.items()
    }
    precise = [layer for layer in range(8) if types[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert precise == [0, 3, 6, 7]
    assert (
        types["blk.1.attn_q.weight"]
        == types["token_embd.weight"]
        == types["blk.1.attn_v.weight"]
        == "Q4_K"
    )
    assert types["output.weight"] == "Q6_K"
    assert (
        from_pretrained(tmp_path / "model.gguf", device="cpu")(torch.tensor([[1, 2]]))
        .isfinite()
        .all()
    )


@pytest.mark.parametrize("size", [1_000, 100_000, 590_000])
def test_a_full_disk_names_the_file_and_the_remedy(tmp_path: Path, size: int) -> None:
    """While the header, the first matrix and a later one are written; the existing file is
    unchanged.
    """
    torch.manual_seed(0)
    model = llama(
        vocab_size=2000,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    save_pretrained(model, tmp_path / "hub")
    out = tmp_path / "model.gguf"
    out.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))  # resembles a full disk
    try:
        with pytest.raises(OSError, match="free disk space, or name another file") as raised:
            write_gguf(open_files(tmp_path / "hub"), out, "F32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(raised.value).startswith(f"{out} cannot be written (")
    assert {path.name for path in tmp_path.iterdir()} == {"hub", "model.gguf"}
    assert out.read_bytes() == b"before"
