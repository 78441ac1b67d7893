"""GGUF files in llama.cpp's form, compared with the checkpoints that they were converted from."""

import dataclasses
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
import torch
from click.testing import CliRunner
from gguf import GGMLQuantizationType as Type
from gguf_files import blocks, write
from hub_server import HubServer
from random_weights import draw
from test_cli import done, failed
from test_corrupt_files import peak, reset_peak
from test_memory import MB, growth
from test_tokenizer_forms import LLAMA, OWN, texts, train
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import weights_map
from minhub_py import from_pretrained, generate, llama_from_pretrained, save_pretrained, tokenizer_from_pretrained
from minhub_py.checkpoints import gguf as reading
from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.gguf_header import BLOCK_TYPES, FLOAT_TYPES, MAX_PAIRS, MAX_STRINGS, MAX_TENSORS, read_header
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.cli.main import main
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.quantize import Quantized, kind_of

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 48, "n_embd": 64, "n_layer": 2, "n_head": 4}
LLAMA_SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48}  # fmt: skip
NEOX = {**LLAMA_SIZES, "model_type": "gpt_neox"}
NEOX.pop("num_key_value_heads")
GEMMA = {**LLAMA_SIZES, "head_dim": 24, "tie_word_embeddings": True}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 12}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 96, "layer_norm_epsilon": 0.01},
    "llama": {**LLAMA_SIZES, "model_type": "llama"},
    "llama-tied": {**LLAMA_SIZES, "model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama-biases": {**LLAMA_SIZES, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-head-dim": {**LLAMA_SIZES, "model_type": "llama", "head_dim": 24, "rope_parameters": YARN},
    "llama3": {**LLAMA_SIZES, "model_type": "llama", "rope_parameters": LLAMA3, "head_dim": 32},
    "llama-linear": {**LLAMA_SIZES, "model_type": "llama",
                     "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    "qwen2": {**LLAMA_SIZES, "model_type": "qwen2", "rms_norm_eps": 1e-5},
    "qwen3": {**LLAMA_SIZES, "model_type": "qwen3", "head_dim": 24, "rope_parameters": {"rope_type": "default",
              "rope_theta": 1e6}, "tie_word_embeddings": True},
    "qwen3-bias": {**LLAMA_SIZES, "model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "gemma": {**GEMMA, "model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": {**GEMMA, "model_type": "gemma2", "query_pre_attn_scalar": 24, "sliding_window": 8},
    "gemma3": {**GEMMA, "model_type": "gemma3_text", "query_pre_attn_scalar": 24, "sliding_window": 8,
               "num_hidden_layers": 7},
    "phi": {**LLAMA_SIZES, "model_type": "phi"},
    "phi-all": {**LLAMA_SIZES, "model_type": "phi", "num_key_value_heads": 4, "partial_rotary_factor": 1.0,
                "layer_norm_eps": 0.1},
    "gpt_neox": NEOX,
    "gpt_neox-in-turn": {**NEOX, "use_parallel_residual": False, "rotary_pct": 1.0, "attention_bias": False},
    "gpt_neox-tied": {**NEOX, "rotary_pct": 0.5, "tie_word_embeddings": True, "layer_norm_eps": 0.1},
}  # fmt: skip
IDS = torch.arange(40).unsqueeze(0) * 7 % 64


def reference(name: str) -> Any:
    """A transformers model with large random weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CASES[name])).eval()
    draw(model)
    return model


def rope_factors(model: Any) -> dict[str, torch.Tensor]:
    """Llama 3's frequency factors, as llama.cpp's converter writes them."""
    if CASES["llama3"]["rope_parameters"] != getattr(model.config, "rope_parameters", None):
        return {}
    factors = []
    for pair in range(0, model.config.head_dim, 2):
        turns = 8192 / (2 * math.pi * 5e5 ** (pair / model.config.head_dim))  # within the original context
        part = (turns - 1) / (4 - 1)
        factors.append(32.0 if turns < 1 else 1.0 if turns > 4 else 1 / ((1 - part) / 32 + part))
    return {"rope_freqs.weight": torch.tensor(factors)}


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_float32_file_is_bitwise_identical_to_the_checkpoint(name: str, tmp_path: Path) -> None:
    model = reference(name)
    model.save_pretrained(tmp_path / "hub")
    file = write(tmp_path / "model.gguf", model, extra=rope_factors(model))
    ours, theirs = from_pretrained(file, device="cpu"), from_pretrained(tmp_path / "hub", device="cpu")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for key, tensor in theirs.state_dict().items():
        if not name.startswith("gemma"):
            assert torch.equal(ours.state_dict()[key], tensor), key
        assert torch.allclose(ours.state_dict()[key], tensor, rtol=0, atol=2e-7), key  # 1 + w - 1
    assert name.startswith("gemma") or torch.equal(ours(IDS), theirs(IDS))
    wanted = model(IDS).logits
    assert (ours(IDS) - wanted).abs().max() <= 5e-5 * wanted.abs().max()
    # Configs are equal except for token IDs and Qwen's unused windows.
    if name.startswith("gemma"):
        return
    apart = {"bos_token_id", "eos_token_id", "pad_token_id", "sliding_window", "layer_types"}
    found, saved = ours.config.to_hub(), theirs.config.to_hub()
    found, saved = ({key: value for key, value in each.items() if key not in apart} for each in (found, saved))
    for each in (found, saved):
        each["n_inner"] = each.get("n_inner") or 4 * each.get("n_embd", 0)
    assert found == saved


@torch.no_grad()
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_quantized_file_matches_the_gguf_package(name: str, kind: str, tmp_path: Path) -> None:
    model = reference(name)
    file = write(tmp_path / "model.gguf", model, kind)
    for key, parameter in model.named_parameters():
        if parameter.dim() == 2:
            rows = parameter.t() if name == "gpt2" and ".h." in key else parameter
            found = gguf.quants.dequantize(gguf.quants.quantize(rows.contiguous().numpy(), Type[kind]), Type[kind])
            found = torch.from_numpy(found)
            parameter.copy_(found.t() if name == "gpt2" and ".h." in key else found)
    model.save_pretrained(tmp_path / "hub")
    ours = from_pretrained(file, device="cpu", quantize="none")
    theirs = from_pretrained(tmp_path / "hub", device="cpu")
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], tensor), key
    half = from_pretrained(file, device="cpu", dtype="bfloat16")
    assert torch.equal(half.state_dict()[key], tensor.bfloat16())


@pytest.mark.parametrize("kind", [*FLOAT_TYPES, *BLOCK_TYPES])
def test_dequantization_matches_the_gguf_package_across_chunks(kind: str, tmp_path: Path) -> None:
    """Uses more blocks than one chunk."""
    block, _ = gguf.GGML_QUANT_SIZES[Type[kind]]
    count = 2 * reading.CHUNK // block + 3
    data = blocks(kind, count) if block > 1 else torch.randn(count).to(FLOAT_TYPES[kind]).view(torch.uint8).numpy()
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("pad", torch.zeros(3).numpy())
    writer.add_tensor("it", data.reshape(1, -1), raw_dtype=Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [_, theirs] = gguf.GGUFReader(tmp_path / "one.gguf").tensors
    found = reading.Tensors(tmp_path / "one.gguf", read_header(tmp_path / "one.gguf").tensors)["it"]
    wanted = torch.from_numpy(data).view(FLOAT_TYPES[kind]) if kind in FLOAT_TYPES else None
    if wanted is None:
        wanted = torch.from_numpy(gguf.quants.dequantize(theirs.data, Type[kind]))
    assert found.shape == (1, count * block)
    assert torch.equal(found.flatten(), wanted.flatten())
    assert found.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("name", ["llama", "llama-biases", "gpt2", "qwen3", "gemma2", "gpt_neox", "phi"])
def test_quantize_auto_uses_the_blocks_of_the_file(name: str, kind: str, tmp_path: Path) -> None:
    """Weights are not quantized again, also if their rows are permuted; the C decoder matches `forward`."""
    file = write(tmp_path / "model.gguf", reference(name), kind)
    ours, floats = (from_pretrained(file, device="cpu", quantize=how) for how in ("auto", "none"))
    kept = {path: module for path, module in ours.named_modules() if isinstance(module, Quantized)}
    assert {module.kind for module in kept.values()} == {kind_of(ours)} == {kind}
    assert len(kept) == sum(isinstance(module, nn.Linear | nn.Embedding) for module in floats.modules()) - (
        name == "gpt2"  # positions are no layer of the steps that is quantized
    )
    for path, module in kept.items():
        assert torch.equal(module.weight, floats.get_submodule(path).weight), path
    wanted = floats(IDS)[0]
    assert torch.equal(ours(IDS)[0], wanted)
    runner = runner_of(ours)
    assert isinstance(runner, NativeRunner)
    found = runner.forward({0: IDS[0].tolist()}, runner.new_cache(1, 48), every=True)
    assert (found - wanted).abs().max() <= 5e-5 * wanted.abs().max()
    half = from_pretrained(file, device="cpu", quantize="auto", dtype="bfloat16")
    assert half(IDS).dtype == torch.bfloat16
    assert all(torch.equal(module.codes, kept[path].codes) for path, module in half.named_modules() if path in kept)


def test_gguf_files_use_their_blocks_by_default(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
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
    with pytest.raises(ValueError, match=r'a quantized model cannot be saved: load it again with quantize = "none"'):
        save_pretrained(from_pretrained(file, device="cpu"), tmp_path / "saved")
    assert not recwarn
    for path in (tmp_path / "hub", write(tmp_path / "half.gguf", model, "F16")):
        with pytest.warns(UserWarning, match=r'^quantize="auto" has no effect: it applies to the quantized weights'):
            assert kind_of(from_pretrained(path, device="cpu", quantize="auto")) is None


def test_command_reports_the_default_quantization_of_a_gguf_file(file: Path) -> None:
    def notes(model: str, *options: str) -> str:
        result = CliRunner().invoke(main, ["generate", model, "Hello", "-n", "1", "--device", "cpu", *options])
        assert result.exit_code == 0
        return result.stderr

    note = "Note: using the file's quantized weights (Q8_0); --quantize none converts them to floating point.\n"
    assert notes(str(file)) == note
    assert notes(str(file), "--quantize", "none") == notes(str(file), "--quantize", "auto") == ""
    assert 'Note: quantize="auto" has no effect' in notes("minhub/shakespeare-gpt2", "--quantize", "auto")


@torch.no_grad()
@pytest.mark.parametrize(("kind", "wanted"), [("F16", None), ("IQ4_NL", "int8")])
def test_quantize_auto_converts_unsupported_types_to_int8(kind: str, wanted: str | None, tmp_path: Path) -> None:
    """Floats stay floats; block types without kernels become int8."""
    model = reference("llama")
    if kind == "F16":
        file = write(tmp_path / "model.gguf", model, kind)
    else:
        matrix = torch.from_numpy(blocks(kind, 64 * 64 // 32)).view(64, -1).numpy()
        file = write(tmp_path / "model.gguf", model, "F32", change=lambda writer: replace(writer, matrix, kind))
    ours = from_pretrained(file, device="cpu")
    assert kind_of(ours) == wanted
    floats = from_pretrained(file, device="cpu", quantize="none")
    assert (ours(IDS) - floats(IDS)).abs().max() < 0.02 * floats(IDS).abs().max()
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
tell()
"""


def test_blocks_share_the_memory_of_the_mapped_file(tmp_path: Path) -> None:
    """Only unquantized tensors, and q and k, whose rows are permuted, are copied."""
    CASES["wide"] = {**CASES["llama"], "hidden_size": 1024, "intermediate_size": 6144, "num_hidden_layers": 3,
                     "num_attention_heads": 8, "num_key_value_heads": 1}  # fmt: skip
    file = write(tmp_path / "model.gguf", reference("wide"), "Q8_0")
    size = file.stat().st_size
    grown = growth(READ, file)
    assert size > 60 * MB
    assert grown["RssAnon"] < 30 * MB
    assert grown["VmRSS"] > 0.9 * size  # or else nothing was measured


def test_tensors_stored_both_fused_and_split_are_rejected(tmp_path: Path) -> None:
    """Files of Phi 2 have q, k and v either in one tensor or in three."""
    model = reference("phi-all")
    parts = [getattr(model.model.layers[0].self_attn, f"{name}_proj") for name in "qkv"]
    whole = {"blk.0.attn_qkv.weight": torch.cat([part.weight.detach() for part in parts]),
             "blk.0.attn_qkv.bias": torch.cat([part.bias.detach() for part in parts])}  # fmt: skip
    file = write(tmp_path / "both.gguf", model, extra=whole)
    with pytest.raises(ValueError, match=r"duplicate: model.layers.0.self_attn.k_proj.bias from blk.0.attn_qkv.bias"):
        from_pretrained(file)

    def only_whole(writer: gguf.GGUFWriter) -> None:
        for name in [name for name in writer.tensors[0] if re.match(r"blk\.0\.attn_[qkv]\.", name)]:
            del writer.tensors[0][name]

    ours = from_pretrained(
        write(tmp_path / "whole.gguf", model, "Q8_0", extra=whole, change=only_whole), quantize="auto"
    )
    theirs = from_pretrained(write(tmp_path / "parts.gguf", model, "Q8_0"), quantize="auto")
    for name in ("q_proj", "k_proj", "v_proj"):
        found, wanted = (getattr(each.layers[0].self_attn, name) for each in (ours, theirs))
        assert torch.equal(found.codes, wanted.codes)
        assert torch.equal(found.bias, wanted.bias)


def test_head_that_copies_the_embedding_is_tied(tmp_path: Path) -> None:
    """A head with the embedding's bytes is tied; another head is a separate weight."""
    model = reference("gpt2")
    head = model.transformer.wte.weight.detach()
    same = from_pretrained(write(tmp_path / "same.gguf", model, extra={"output.weight": head}))
    other = from_pretrained(write(tmp_path / "other.gguf", model, extra={"output.weight": head + 1}))
    assert same.lm_head is None
    assert torch.equal(other.lm_head.weight, head + 1)


def test_gguf_tables_cover_the_weight_tables() -> None:
    """Each GGUF architecture maps to canonical Hub names and covers all required tensors."""
    from minhub_py.registry import architecture_of

    for architecture in weights_map.gguf_architectures.values():
        table = weights_map.tables[architecture_of(architecture.model_type).model_type].for_head(None)
        rows = [row for row in table.rows if row.operation.name != "drop"]
        known = {name: row.optional for row in rows for name in row.templates("hub")}
        named = [name for row in architecture.rows for name in row.templates("native")]
        assert {name for name, optional in known.items() if not optional} <= set(named) <= set(known), architecture.name
        # Twice only where a file has the one or the other: a whole tensor, or its parts.
        twice = {name for name in named if named.count(name) > 1}
        assert not any(twice & set(row.templates("native")) for row in architecture.rows if not row.optional)


# --- Tokenizers

BYTES = pre_tokenizers.ByteLevel
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), BYTES(add_prefix_space=False, use_regex=False)]
    )


# tokenizer.ggml.pre -> the words, the normalizer, and whether words are left whole, as in published tokenizer.json.
WORDS: dict[str, tuple[Any, Any, bool]] = {
    "gpt-2": (BYTES(add_prefix_space=False), None, False),
    "olmo": (BYTES(add_prefix_space=False), normalizers.NFC(), False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES(add_prefix_space=False)]),
               None, False),
    "llama-bpe": (split_by(LLAMA3_WORDS), None, True),
    "qwen2": (split_by(LLAMA3_WORDS.replace("{1,3}", "")), normalizers.NFC(), False),
}  # fmt: skip


def trained(pre: str) -> Tokenizer:
    """A byte-level BPE with special tokens, and an added token that is not special."""
    words, normalizer, whole = WORDS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer, tokenizer.decoder = words, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>", "<|im_start|>"],
                                  initial_alphabet=BYTES.alphabet(), show_progress=False)  # fmt: skip
    tokenizer.train_from_iterator(list(texts(200)), trainer)
    tokenizer.add_tokens(["<x>"])
    return tokenizer


def add_bpe(writer: gguf.GGUFWriter, tokenizer: Tokenizer, pre: str | None) -> None:
    saved = json.loads(tokenizer.to_str())
    ids = {id: token for token, id in tokenizer.get_vocab().items()}
    special = {token["content"]: 3 if token["special"] else 4 for token in saved["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([ids[id] for id in range(len(ids))])
    writer.add_token_types([special.get(ids[id], 1) for id in range(len(ids))])
    writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)


@pytest.mark.parametrize("pre", WORDS)
def test_byte_level_bpe_matches_the_original(pre: str, tmp_path: Path) -> None:
    theirs = trained(pre)
    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=lambda writer: add_bpe(writer, theirs, pre))
    ours = tokenizer_from_pretrained(str(file))
    again = Tokenizer.from_str(ours.to_str())
    for text in [*texts(400), "<|im_start|>1234 it's<x>IT'S 5678<|endoftext|>", "é e\u0301 \u212b"]:
        wanted, found, saved = (each.encode(text, add_special_tokens=False).ids for each in (theirs, ours, again))
        assert wanted == found == saved
        assert ours.decode(wanted) == theirs.decode(wanted)
    begins = [1] if pre == "llama-bpe" else []
    assert ours.encode("a").ids == begins + theirs.encode("a").ids
    assert from_pretrained(file).config.eos_token_id == 0


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_matches_the_original(prefix: bool, tmp_path: Path) -> None:
    """Llama 2's form with a prefix space; Gemma's without it, with user-defined tokens, without an "unknown" type."""
    own = {} if prefix else {"add_dummy_prefix": False, "user_defined_symbols": OWN}
    (tmp_path / "tokenizer.model").write_bytes(train(**LLAMA, **own))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    pieces = range(theirs.vocab_size())

    def kind(id: int) -> int:
        if theirs.is_unknown(id) and not prefix:
            return 3
        tests = {2: theirs.is_unknown, 3: theirs.is_control, 5: theirs.is_unused, 6: theirs.is_byte}
        own_piece = theirs.id_to_piece(id) in own.get("user_defined_symbols", ())
        return 4 if own_piece else next((number for number, test in tests.items() if test(id)), 1)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([theirs.id_to_piece(id) for id in pieces])
        writer.add_token_scores([theirs.get_score(id) for id in pieces])
        writer.add_token_types([kind(id) for id in pieces])
        if not prefix:
            writer.add_unk_token_id(theirs.unk_id())
            writer.add_add_space_prefix(False)
            writer.add_add_bos_token(False)

    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=add)
    ours, usual = tokenizer_from_pretrained(str(file)), read_tokenizer(tmp_path)
    for text in texts(400):
        wanted = usual.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == wanted
        if not set("<\u2581") & set(text):
            assert wanted == theirs.encode(text)
    assert ours.encode("a").ids == [1] * prefix + theirs.encode("a")


TEMPLATE = "{{ messages[0]['content'] }}"


def chatty(writer: gguf.GGUFWriter) -> None:
    add_bpe(writer, trained("smollm"), "smollm")
    writer.add_chat_template(TEMPLATE)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 5)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small Llama with its vocabulary, in Q8_0."""
    CASES["chatty"] = {**CASES["llama"], "vocab_size": 768}
    return write(tmp_path / "chatty.gguf", reference("chatty"), "Q8_0", tokenizer=chatty)


def test_commands_accept_gguf_files(file: Path, tmp_path: Path) -> None:
    report = json.loads(done("inspect", str(file), "--json"))
    assert (report["family"], report["config"]["hidden_size"], report["parameters"]["total"]) == ("llama", 64, 160_064)
    q = next(tensor for tensor in report["tensors"] if tensor["native"] == "layers.0.self_attn.q_proj.weight")
    assert (q["hub"], q["dtype"]) == ("model.layers.0.self_attn.q_proj.weight", "Q8_0")
    assert "Q8_0" in done("inspect", str(file))
    assert report["source"] == {"kind": "files", "folder": str(file), "layout": "gguf"}
    assert f"{file} (GGUF file)\n" in done("inspect", str(file))
    assert "no problems found" in done("verify", str(file))
    made = json.loads(done("generate", str(file), "Hello", "-n", "4", "--temperature", "0", "--json"))
    assert len(made["ids"]) == 4
    auto = json.loads(done("generate", str(file), "Hello", "-n", "4", "--quantize", "auto", "--json"))
    assert len(auto["ids"]) <= 4
    (tmp_path / "text.txt").write_text("Some text to score.")
    scored = json.loads(done("score", str(file), str(tmp_path / "text.txt"), "--json", "--quantize", "none"))
    done("convert", str(file), str(tmp_path / "hub"))
    again = json.loads(done("score", str(tmp_path / "hub"), str(tmp_path / "text.txt"), "--json"))
    assert again["scores"] == scored["scores"]
    # transformers loads the result, with tokenizer, chat template and end tokens.
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
        wanted = theirs(IDS).logits
        assert (from_pretrained(file, quantize="none")(IDS) - wanted).abs().max() <= 5e-5 * wanted.abs().max()
    assert theirs.config.eos_token_id == [0, 5]
    assert (tmp_path / "hub" / "chat_template.jinja").read_text() == TEMPLATE
    settings = json.loads((tmp_path / "hub" / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["add_bos_token"]) == ("<|im_start|>", False)
    save_pretrained(from_pretrained(file, quantize="none"), tmp_path / "saved", tokenizer_from_pretrained(str(file)))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "hub" / name).read_bytes()


def test_gguf_file_of_a_repository_is_downloaded_alone(hub: HubServer, file: Path) -> None:
    other = b"another"
    hub.add("owner/name", {"README.md": b"x", "it.gguf": other, "sub/model-Q8_0.gguf": file.read_bytes()})
    identifier = "owner/name:sub/model-Q8_0.gguf"
    ours = llama_from_pretrained(identifier, device="cpu")
    with torch.no_grad():
        assert torch.equal(ours(IDS), from_pretrained(file, device="cpu")(IDS))
    assert hub.fetched() == ["sub/model-Q8_0.gguf"]
    assert tokenizer_from_pretrained(identifier).get_vocab_size() == read_tokenizer(file).get_vocab_size()
    assert from_pretrained(identifier, local_files_only=True)
    assert hub.fetched() == ["sub/model-Q8_0.gguf"]
    assert "no problems found" in done("verify", identifier)
    assert json.loads(done("list", "--json"))["cached"][0]["repository"] == identifier
    assert "it.gguf, sub/model-Q8_0.gguf" in failed("generate", "owner/name:absent.gguf", "x")
    assert "owner/name:it.gguf" in failed("generate", "owner/name", "x")
    for name in ("owner/name:../it.gguf", "owner/name:it.safetensors", "owner/name:/etc/x.gguf", "owner/name:"):
        assert "owner/name" in failed("generate", name, "x")
    assert "There is no file" in failed("generate", "absent.gguf", "x")
    assert "does not begin with GGUF" in failed("generate", "owner/name:it.gguf", "x")


def test_folder_with_only_a_gguf_file_names_the_file(file: Path, hub: HubServer) -> None:
    """The message has the path to pass."""
    for load in (from_pretrained, tokenizer_from_pretrained):
        with pytest.raises(FileNotFoundError, match=f"To open a GGUF file, name it: {re.escape(str(file))}$"):
            load(str(file.parent))
    (file.parent / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(FileNotFoundError, match=f"has no weights .* name it: {re.escape(str(file))}$"):
        from_pretrained(file.parent)
    hub.add("owner/name", {"config.json": '{"model_type": "llama"}', "it.gguf": b"GGUF"})
    with pytest.raises(FileNotFoundError, match=r"has no weights .* Name one file of it, as owner/name:it\.gguf"):
        from_pretrained("owner/name")


# --- Rejected files


def change(key: str, value: Any, kind: str = "uint32") -> Callable[[gguf.GGUFWriter], None]:
    def apply(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        getattr(writer, f"add_{kind}")(key, value)

    return apply


REFUSED: list[tuple[Callable[[gguf.GGUFWriter], None], str]] = [
    (change("general.architecture", "mamba", "string"), "'mamba' is not supported; supported are bert, gemma"),
    (change("llama.expert_count", 8), "llama.expert_count is 8, which is not supported"),
    (change("llama.attention.sliding_window", 8), "llama.attention.sliding_window is 8"),
    (change("llama.rope.dimension_count", 8), "llama.rope.dimension_count is 8"),
    (change("llama.attention.value_length", 8), "llama.attention.value_length is 8"),
    (change("llama.rope.scaling.type", "longrope", "string"), "rope_type 'longrope' is not one of"),
    (change("llama.attention.head_count", 0), "llama.attention.head_count cannot be 0"),
    (change("llama.attention.head_count", [4, 4], "array"), r"head_count cannot be \[4, 4\]"),
    (change("llama.rope.freq_base", "x", "string"), "rope_theta cannot be 'x'"),
    (change("llama.block_count", 3), "missing: layers.2"),
    (change("llama.embedding_length", 32), "wrong shape"),
    (change("llama.\x1b[2J", 8), r"llama\.\\x1b\[2J is 8, which is not supported"),
    (change("llama.block_count", ["a", "b"], "array"), r"num_hidden_layers cannot be an array of 2 strings"),
    (change("split.count", 2, "uint16"), "one of 2 parts: join them with llama-gguf-split"),
    (change("tokenizer.ggml.eos_token_id", "x", "string"), "special tokens cannot be"),
    (lambda writer: writer.add_tensor("blk.0.strange.weight", torch.zeros(2).numpy()), "unknown: blk.0.strange.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("apply", "message"), REFUSED)
def test_unsupported_settings_are_rejected_by_name(
    apply: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "model.gguf", reference("llama"), change=apply)
    with pytest.raises(ValueError, match=message):
        from_pretrained(file)


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (change("tokenizer.ggml.pre", "poro-chat", "string"), "pre 'poro-chat' is not supported; supported are gpt-2"),
        (change("tokenizer.ggml.model", "t5", "string"), "model is 't5'; supported are gpt2 and llama"),
        (change("tokenizer.ggml.bos_token_id", 9999), "bos_token_id cannot be 9999"),
        (change("tokenizer.ggml.merges", ["a"], "array"), "is not a valid tokenizer"),
        (change("tokenizer.ggml.merges", ["a zzz"], "array"), "the result of a merge is not a token"),
        (change("tokenizer.ggml.tokens", ["a" * 200_000, "b"], "array"), "token of 200,000 characters"),
        (change("tokenizer.ggml.tokens", [1], "array"), "tokens is not a list of strings"),
        (change("tokenizer.ggml.token_type", [1], "array"), "does not have one number per token"),
    ],
)
def test_unsupported_tokenizers_are_rejected_by_name(
    apply: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=chatty, change=apply)
    with pytest.raises(ValueError, match=message):
        tokenizer_from_pretrained(str(file))


def test_missing_pre_tokenizer_is_accepted_for_gpt2_only(tmp_path: Path) -> None:
    """Old files lack tokenizer.ggml.pre: GPT-2's words are the default, Llama's are unknown."""
    theirs = trained("gpt-2")
    for name in ("gpt2", "llama"):
        write(tmp_path / f"{name}.gguf", reference(name), tokenizer=lambda writer: add_bpe(writer, theirs, None))
    ours = tokenizer_from_pretrained(str(tmp_path / "gpt2.gguf"))
    assert ours.encode("it's").ids == theirs.encode("it's").ids
    with pytest.raises(ValueError, match=r"pre None is not supported"):
        tokenizer_from_pretrained(str(tmp_path / "llama.gguf"))
    with pytest.raises(FileNotFoundError, match="has no tokenizer"):
        read_tokenizer(write(tmp_path / "none.gguf", reference("llama")))


def test_rope_factors_other_than_llama3_are_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", reference("llama3"), extra={"rope_freqs.weight": torch.arange(1.0, 17.0)})
    with pytest.raises(ValueError, match=r"rope_freqs\.weight has other factors"):
        from_pretrained(file)


def test_missing_gguf_package_is_explained(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert "pip install 'minhub_py[gguf]'" in failed("generate", str(file), "x")


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def header(pairs: int = 0, tensors: int = 0, *parts: bytes, version: int = 3) -> bytes:
    return b"".join([b"GGUF", struct.pack("<IQQ", version, tensors, pairs), *parts])


def info(name: str, shape: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


HUGE = 2**60
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "does not begin with GGUF"),
    "magic": (b"GGML" + bytes(99), "does not begin with GGUF"),
    "only magic": (b"GGUF", "ends within its header"),
    "version": (header(version=1), "version is 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version is 50331648"),
    "pairs": (header(HUGE), "too short"),
    "tensors": (header(0, HUGE), "too short"),
    "key": (header(1, 0, struct.pack("<Q", HUGE) + bytes(99)), "string of"),
    "key beyond the end": (header(1, 0, struct.pack("<Q", 1000) + bytes(99)), "ends within its header"),
    "key that is no text": (header(1, 0, struct.pack("<Q", 2) + b"\xff\xff" + bytes(99)), "cannot be read"),
    "type": (header(1, 0, string("a") + struct.pack("<I", 77) + bytes(9)), "unknown type 77"),
    "strings": (header(1, 0, string("a") + struct.pack("<IIQ", 9, 8, HUGE) + bytes(99)), "too short for"),
    "numbers": (header(1, 0, string("a") + struct.pack("<IIQ", 9, 4, HUGE) + bytes(99)), "too short for"),
    "lists in lists": (header(1, 0, string("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(99)), "unknown type 9"),
    "key twice": (header(2, 0, (string("a") + struct.pack("<IB", 0, 1)) * 2), "'a' twice"),
    "long key": (header(1, 0, string("a" * 65_536) + bytes(99)), "string of 65,536 bytes"),
    "many pairs": (header(MAX_PAIRS + 1, 0, bytes(13 * MAX_PAIRS + 99)), "10,001 pairs; the maximum is 10,000"),
    "many tensors": (header(0, MAX_TENSORS + 1, bytes(24 * MAX_TENSORS + 99)), "20,001 tensors; the maximum is"),
    "many strings": (
        header(1, 0, string("a") + struct.pack("<IIQ", 9, 8, MAX_STRINGS + 1) + bytes(8 * MAX_STRINGS + 99)),
        "2,097,153 strings; the maximum is 2,097,152",
    ),
    "many strings in two arrays": (
        header(2, 0, *(string(name) + struct.pack("<IIQ", 9, 8, MAX_STRINGS // 2 + 1) + bytes(4 * MAX_STRINGS + 8)
                       for name in "ab")),
        "1,048,577 strings; the maximum is 1,048,575",
    ),
    "alignment": (header(1, 0, string("general.alignment") + struct.pack("<II", 4, 24)), "alignment cannot be 24"),
    "dimensions": (header(0, 1, info("x", (1,) * 5), bytes(99)), "x has 5 dimensions"),
    "no dimensions": (header(0, 1, info("x", ()), bytes(99)), "x has 0 dimensions"),
    "size": (header(0, 1, info("x", (HUGE,)), bytes(99)), "ends within x"),
    "sizes": (header(0, 1, info("x", (2**62, 2**62, 2**62)), bytes(99)), "ends within x"),
    "nothing": (header(0, 1, info("x", (0, 4)), bytes(99)), "x has the shape"),
    "tensor type": (header(0, 1, info("x", kind=999), bytes(99)), "x has the unknown type 999"),
    "tensor without code": (header(0, 1, info("x", kind=26), bytes(99)), "x is stored as I32; supported types are"),
    "block": (header(0, 1, info("x", (31,), kind=8), bytes(99)), "x has the shape"),
    "offset": (header(0, 1, info("x", offset=HUGE), bytes(99)), "ends within x"),
    "askew": (header(0, 1, info("x", offset=4), bytes(99)), "x is not aligned"),
    "overlap": (header(0, 2, info("x", (64,)), info("y", offset=32), bytes(999)), "y begins within x"),
    "name twice": (header(0, 2, info("x"), info("x", offset=32), bytes(999)), "x twice"),
    "name": (header(0, 1, info("\x1b[2J"), bytes(99)), r"contains a tensor named '\x1b"),
    "no architecture": (header(), "architecture None"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_corrupt_headers_are_rejected_with_the_reason(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED[name]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        from_pretrained(path)
    assert "damaged.gguf" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_unused_arrays_need_no_memory(tmp_path: Path) -> None:
    count = 100_000_000
    path = tmp_path / "large.gguf"
    path.write_bytes(header(1, 0, string("general.numbers") + struct.pack("<IIQ", 9, 0, count)))
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + count)
    reset_peak()
    before = peak()
    assert str(read_header(path).metadata["general.numbers"]) == "an array of 100,000,000 numbers"
    assert peak() - before < 50 * 2**20


def test_header_is_read_once_per_file(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=chatty)
    first = read_header(file)
    assert read_header(file) is first
    write(file, reference("llama"))
    assert read_header(file).metadata.keys() < first.metadata.keys()


def cuts(data: bytes) -> Iterator[bytes]:
    yield from (data[:size] for size in [*range(0, 3000, 37), *range(3000, len(data), 5000), len(data) - 1])


def flips(data: bytes) -> Iterator[bytes]:
    """Changes each byte of the header: lengths, counts, types, offsets and names."""
    for place in range(4, 2500, 3):
        yield data[:place] + bytes([data[place] ^ (0x80 if place % 2 else 0xFF)]) + data[place + 1 :]


@torch.no_grad()
@pytest.mark.parametrize("mutants", [cuts, flips])
def test_mutated_files_are_rejected_or_loaded(mutants: Callable[[bytes], Iterator[bytes]], tmp_path: Path) -> None:
    """Mutated files need little memory and raise one-line errors that name the file or a tensor."""
    data = write(tmp_path / "sound.gguf", reference("llama"), "Q8_0").read_bytes()
    reset_peak()
    before, loaded, count, longest = peak(), 0, 0, 0
    for count, mutant in enumerate(mutants(data)):
        path = tmp_path / f"{count}.gguf"
        path.write_bytes(mutant)
        try:
            from_pretrained(path)(IDS)
            loaded += 1
        except (ValueError, OSError) as error:
            longest = max(longest, len(str(error).splitlines()))
        path.unlink()
    assert longest == 1
    assert count > 50
    assert loaded if mutants is flips else not loaded
    assert peak() - before < 200 * 2**20


def test_opening_a_file_reads_the_header_only(tmp_path: Path) -> None:
    """Only accessed tensors are dequantized."""
    checkpoint = GGUFCheckpoint(write(tmp_path / "model.gguf", reference("llama-tied"), "Q8_0"))
    assert len(checkpoint) == len(checkpoint.meta) == 20
    assert checkpoint._tensors._data is None
    assert checkpoint["model.norm.weight"].shape == (64,)
