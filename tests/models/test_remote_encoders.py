"""Files of encoders whose repositories contain their own code: the settings and names of that code
are read, and the code is never run.
"""

import json
from pathlib import Path
from typing import Any

import jina_reference
import pytest
import torch
import transformers
from encoders import write_sentence_encoder
from needs import needs
from random_weights import draw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import minhub_py
from minhub_py.inference.encoder_runner import NativeEncoder, encoder_runner
from minhub_py.loading.inspection import inspect, verify

jina_reference.register()
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 44,
    "max_position_embeddings": 60,
    "pad_token_id": 0,
}
IDS = torch.arange(5, 55).unsqueeze(0)
NOMIC = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "fused_bias_fc": True,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 30,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 44,
    "n_layer": 2,
    "n_positions": 60,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 40,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "summary_type": "cls_index",
    "type_vocab_size": 2,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "vocab_size": 61,
}
GTE = {
    **SMALL,
    "model_type": "new",
    "architectures": ["NewModel"],
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 2.0, "type": "ntk"},
    "rope_theta": 30,
    "type_vocab_size": 0,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}
JINA = {
    **SMALL,
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
    "model_max_length": 8192,
    "position_embedding_type": "alibi",
    "type_vocab_size": 2,
}


def reference_of(model_type: str, auto: Any = transformers.AutoModel, **settings: Any) -> Any:
    """A random model of transformers."""
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **settings})
    reference = auto.from_config(config).eval()
    draw(reference)
    return reference


def write(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def tensors_of(reference: nn.Module, folder: Path) -> dict[str, Tensor]:
    """The tensors under the names in files, which the repositories' code has, too."""
    reference.save_pretrained(folder / "reference")
    return load_file(folder / "reference" / "model.safetensors")


@torch.no_grad()
def assert_equal(folder: Path, expected: Tensor) -> Any:
    """The model of the files gives the expected hidden states, in PyTorch and in C."""
    model = minhub_py.from_pretrained(folder, device="cpu")
    runner = encoder_runner(model)
    assert type(runner) is NativeEncoder
    for result in (model.hidden_states(IDS)[0], runner.hidden_states(IDS.tolist())):
        assert (result - expected).abs().max() <= 5e-5 * expected.abs().max()
    assert verify(str(folder))["problems"] == []
    return model


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_nomic_s_own_settings(tmp_path: Path, prefix: str, activation: str) -> None:
    act = {"swiglu": "silu", "geglu": "gelu"}[activation]
    rope = {"rope_type": "default", "rope_theta": 40.0}
    reference = reference_of("nomic_bert", hidden_act=act, rope_parameters=rope)
    tensors = {prefix + name: x for name, x in tensors_of(reference, tmp_path).items()}
    assert f"{prefix}encoder.layers.1.attn.Wqkv.weight" in tensors
    settings = {**NOMIC, "activation_function": activation}
    model = assert_equal(write(tmp_path / "own", settings, tensors), reference(IDS)[0][0])
    assert model.config.context_length == 60
    assert inspect(str(tmp_path / "own"))["context"] == 60
    minhub_py.save_pretrained(model, tmp_path / "saved")
    again = transformers.AutoModel.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(again(IDS)[0], reference(IDS)[0])


def test_scaled_positions_of_nomic_end_with_the_trained_ones(tmp_path: Path) -> None:
    """The code would change the angles of all positions of a longer text, and of its batch."""
    reference = reference_of(
        "nomic_bert", rope_parameters={"rope_type": "default", "rope_theta": 40.0}
    )
    settings = {**NOMIC, "rotary_scaling_factor": 2.0}
    folder = write(tmp_path / "own", settings, tensors_of(reference, tmp_path))
    model = minhub_py.from_pretrained(folder, device="cpu")
    with torch.no_grad():
        expected = reference(IDS[:, :30])[0]
        assert (model(IDS[:, :30]) - expected).abs().max() <= 5e-5 * expected.abs().max()
    with pytest.raises(ValueError, match="50 positions, but this model has 30"):
        model(IDS)
    minhub_py.save_pretrained(model, tmp_path / "saved")
    assert minhub_py.from_pretrained(tmp_path / "saved", device="cpu").config.context_length == 30


@torch.no_grad()
def test_nomic_s_own_masked_lm_head_has_no_biases(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 40.0}
    reference = reference_of("nomic_bert", transformers.AutoModelForMaskedLM, rope_parameters=rope)
    for name in ("cls.predictions.bias", "cls.predictions.transform.dense.bias"):
        reference.get_parameter(name).zero_()
    tensors = {
        name.replace("nomic_bert.", "bert."): x
        for name, x in tensors_of(reference, tmp_path).items()
        if name not in ("cls.predictions.bias", "cls.predictions.transform.dense.bias")
    }
    settings = {**NOMIC, "architectures": ["NomicBertForPreTraining"]}
    model = minhub_py.from_pretrained(write(tmp_path / "own", settings, tensors), device="cpu")
    expected = reference(IDS).logits
    assert (model(IDS) - expected).abs().max() <= 5e-5 * expected.abs().max()
    minhub_py.save_pretrained(model, tmp_path / "saved")
    assert torch.equal(minhub_py.from_pretrained(tmp_path / "saved", device="cpu")(IDS), model(IDS))
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "saved").eval()
    assert (again(IDS).logits - expected).abs().max() <= 5e-5 * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("form", ["fused", "with-prefix", "separate", "gte"])
@pytest.mark.parametrize("factor", [None, 2.0, 8.0])
def test_gte_s_own_settings(tmp_path: Path, form: str, factor: float | None) -> None:
    """NTK scaling: a theta times the factor, and all frequencies divided by factor^(2 / D)."""
    rope = {"rope_type": "default", "rope_theta": 30.0}
    reference = reference_of("gte", type_vocab_size=0, rope_parameters=rope)
    settings: dict[str, Any] = dict(GTE)
    if factor is None:
        settings["rope_scaling"] = None
    else:
        settings["rope_scaling"] = {"factor": factor, "type": "ntk"}
        exponents = torch.arange(0, 8, 2) / 8
        frequencies = (30.0 * factor) ** -exponents / factor ** (2 / 8)
        reference.rotary_emb.inv_freq.copy_(frequencies)
    tensors = tensors_of(reference, tmp_path)
    if form == "gte":  # the model_type of Snowflake's files
        settings |= {"model_type": "gte", "architectures": ["GteModel"]}
    if form == "with-prefix":
        tensors = {f"new.{name}": tensor for name, tensor in tensors.items()}
    if form == "separate":  # pack_qkv: false
        settings["pack_qkv"] = False
        fused = [name for name in tensors if "qkv_proj" in name]
        for name in fused:
            for part, tensor in zip("qkv", tensors.pop(name).chunk(3), strict=True):
                tensors[name.replace("qkv_proj", f"{part}_proj")] = tensor
    expected = reference(IDS)[0]
    model = assert_equal(write(tmp_path / "own", settings, tensors), expected[0])
    minhub_py.save_pretrained(model, tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (saved["model_type"], saved["architectures"]) == ("gte", ["GteModel"])
    again = transformers.AutoModel.from_pretrained(tmp_path / "saved").eval()
    assert (again(IDS)[0] - expected).abs().max() <= 5e-5 * expected.abs().max()
    assert torch.equal(minhub_py.from_pretrained(tmp_path / "saved", device="cpu")(IDS), model(IDS))


@torch.no_grad()
@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "MaskedLM"])
def test_heads_of_gte_s_own_code(tmp_path: Path, head: str) -> None:
    auto = getattr(transformers, f"AutoModelFor{head}")
    rope = {"rope_type": "default", "rope_theta": 30.0}
    reference = reference_of("gte", auto, rope_parameters=rope, num_labels=1)
    tensors = {
        name.replace("gte.", "new.", 1): x for name, x in tensors_of(reference, tmp_path).items()
    }
    changes = {"rope_scaling": None, "type_vocab_size": 1, "id2label": {"0": "LABEL_0"}}
    settings = {**GTE, **changes, "architectures": [f"NewFor{head}"]}
    folder = write(tmp_path / "own", settings, tensors)
    expected = reference(IDS).logits
    model = minhub_py.from_pretrained(folder, device="cpu")
    assert (model(IDS) - expected).abs().max() <= 5e-5 * expected.abs().max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "has 'mixed_b', which"),
        ({"rope_scaling": {"type": "ntk"}}, "lacks factor"),
        ({"logn_attention_scale": True}, "sets logn_attention_scale to True"),
    ],
)
def test_other_settings_of_gte_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(write(tmp_path / "own", {**GTE, **changes}, {}))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["jina_bert", "jina_bert_code"])
def test_jina_s_files_have_bert_s_model_type(tmp_path: Path, kind: str) -> None:
    """A masked language model is named, but the published files have no head."""
    reference = reference_of(kind)
    settings: dict[str, Any] = dict(JINA)
    if kind == "jina_bert_code":
        settings["auto_map"] = {
            "AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"
        }
    folder = write(tmp_path / "own", settings, tensors_of(reference, tmp_path))
    model = assert_equal(folder, reference(IDS)[0][0])
    assert model.head is None
    minhub_py.save_pretrained(model, tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert saved["model_type"] == kind
    assert saved["auto_map"]["AutoModel"] == settings["auto_map"]["AutoModel"]
    assert torch.equal(minhub_py.from_pretrained(tmp_path / "saved", device="cpu")(IDS), model(IDS))


def test_jina_s_rerankers_are_refused(tmp_path: Path) -> None:
    """Their code has other slopes, unless the number of heads is a power of two."""
    settings = {**JINA, "architectures": ["JinaBertForSequenceClassification"]}
    changes = {"num_attention_heads": 12, "hidden_size": 48}
    with pytest.raises(ValueError, match="reranker of Jina with slopes of attention that differ"):
        minhub_py.from_pretrained(write(tmp_path / "twelve", {**settings, **changes}, {}))
    auto = transformers.AutoModelForSequenceClassification
    reference = reference_of("jina_bert", auto, num_labels=1)
    folder = write(
        tmp_path / "four", {**settings, "id2label": {"0": "yes"}}, tensors_of(reference, tmp_path)
    )
    with torch.no_grad():
        result = minhub_py.from_pretrained(folder, device="cpu")(IDS)
        assert torch.allclose(result, reference(input_ids=IDS).logits, atol=5e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["nomic_bert", "gte", "jina_embeddings_v3"])
def test_names_of_transformers_modules_are_accepted(tmp_path: Path, kind: str) -> None:
    reference = reference_of(kind, transformers.AutoModelForMaskedLM)
    settings = {**reference.config.to_dict(), "architectures": [type(reference).__name__]}
    tensors = {
        name: tensor.clone()
        for name, tensor in reference.state_dict().items()
        if not name.endswith(("position_ids", "inv_freq"))
    }
    assert any("self_attn.q_proj" in name for name in tensors)
    model = minhub_py.from_pretrained(write(tmp_path / "modules", settings, tensors), device="cpu")
    expected = reference(IDS).logits
    assert (model(IDS) - expected).abs().max() <= 5e-5 * expected.abs().max()


FAMILIES = {
    "nomicbert": "NomicBertModel",
    "gte": "GteModel",
    "jinav3": "JinaEmbeddingsV3Model",
    "jinabert": "JinaBertModel",
    "jinabertcode": "JinaBertModel",
    "eurobert": "EuroBertModel",
}


@needs("sentence_transformers")
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_equal_sentence_transformers(tmp_path: Path, family: str, pooling: str) -> None:
    """With prompts such as Nomic's, and a maximum length."""
    from sentence_transformers import SentenceTransformer

    settings = {"architecture": FAMILIES[family], "family": family, "pad_token_id": 0}
    folder = write_sentence_encoder(tmp_path / "folder", max_length=16, **settings)
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    names = {f"{name}_token": token for name, token in special.items()}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    )
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 48, f"pooling_mode_{pooling}": True})
    )
    prompts = {"query": "search_query: ", "document": "search_document: "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    texts = ["the cat sat on the mat", "a dog", "lovely weather " * 20]
    reference = SentenceTransformer(str(folder), device="cpu")
    model = minhub_py.from_pretrained(folder, device="cpu")
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    for prompt in (None, "query", "document"):
        expected = torch.tensor(reference.encode(texts, prompt_name=prompt))
        result = minhub_py.embed(model, tokenizer, texts, prompt=prompt)
        vectors = torch.as_tensor(getattr(result, "vectors", result))
        assert (vectors - expected).abs().max() <= 2e-5
