"""The text model of EmbeddingGemma 2 compared with transformers and sentence-transformers.

The weights are large: a wrong position or window changes the results by far more than the
tolerance.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import needs
from random_weights import draw
from references import assert_close
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel

import minhub_py
import weights_map
from minhub_py import embed
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.encoder_runner import NativeEncoder, TorchEncoder
from minhub_py.loading.inspection import inspect, verify

FULL, SLIDING = "full_attention", "sliding_attention"
SMALL: dict[str, Any] = {
    "model_type": "embedding_gemma2_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 44,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16,
    "hidden_size_per_layer_input": 6, "embedding_dim": 40, "max_position_embeddings": 60, "sliding_window": 4,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "small": {},
    "pattern": {"layer_types": None, "sliding_window_pattern": 2, "num_global_key_value_heads": 4},
    "pattern-of-six": {"layer_types": None, "num_hidden_layers": 7, "sliding_window": 1},
    "equal-sizes": {"per_layer_config": {}, "num_key_value_heads": 1, "hidden_activation": "silu"},
    "head-size-only": {"per_layer_config": {"1": {"head_dim": 20}, "3": {"head_dim": 20}}},
    "biases": {"attention_bias": True, "rms_norm_eps": 0.1, "sliding_window": 400},
    "thetas": {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 300.0},
                                   SLIDING: {"rope_type": "linear", "rope_theta": 20.0, "factor": 3.0}}},
    "proportional": {"rope_parameters": {FULL: {"rope_type": "proportional", "rope_theta": 300.0,
                                                "partial_rotary_factor": 0.25},
                                         SLIDING: {"rope_type": "default", "rope_theta": 20.0}}},
    "narrow": {"embedding_dim": 24, "num_hidden_layers": 1, "layer_types": [FULL], "attention_dropout": 0.4},
}  # fmt: skip
Load = Callable[[str], tuple[Any, Any, Path]]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """load(name): transformers' model, ours, and the folder. They are shared: do not change them."""
    created: dict[str, tuple[Any, Any, Path]] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in created:
            folder = tmp_path_factory.mktemp("embeddinggemma2")
            settings = {
                key: value for key, value in {**SMALL, **CASES[name]}.items() if value is not None
            }
            reference = AutoModel.from_config(AutoConfig.for_model(**deepcopy(settings))).eval()
            draw(reference)
            for block in reference.layers:
                block.layer_scalar.fill_(0.7)
            reference.save_pretrained(folder)
            (folder / "config.json").write_text(json.dumps(settings))
            created[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return created[name]

    return get  # fmt: skip


def texts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 61, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_hidden_states_match_transformers(load: Load, name: str) -> None:
    """With padding, and in C, with texts longer than the window in ragged batches."""
    reference, model, _ = load(name)
    ids = torch.tensor(texts_of(50, 50, 50))
    mask = torch.ones_like(ids)
    mask[1, 30:], mask[2, 3:] = 0, 0
    expected = reference(ids, attention_mask=mask).last_hidden_state
    assert_close(model(ids, mask)[mask.bool()], expected[mask.bool()])
    texts = texts_of(50, 17, 5, 9, 1)
    expected = torch.cat([reference(torch.tensor([text])).last_hidden_state[0] for text in texts])
    for runner in (TorchEncoder(model), NativeEncoder(model)):
        assert_close(runner.hidden_states(texts), expected)


def test_gradients_equal_transformers(load: Load) -> None:
    name = "biases"
    _, _, folder = load(name)
    reference, model = AutoModel.from_pretrained(folder), minhub_py.from_pretrained(folder).float()
    ids = torch.tensor(texts_of(20))
    reference(ids).last_hidden_state.square().sum().backward()
    model(ids).square().sum().backward()
    gradients = {key: value.grad for key, value in reference.named_parameters()}
    buffers = {key: value for key, value in reference.state_dict().items() if "scalar" in key}
    expected = weights_map.to_native("embedding_gemma2_text", gradients | buffers, model.config)
    largest = max(float(parameter.grad.abs().max()) for parameter in model.parameters())
    for key, parameter in model.named_parameters():
        scale = expected[key].abs().max().clamp_min(2e-2 * largest)
        assert (parameter.grad - expected[key]).abs().max() <= 5e-5 * scale, key


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_transformers_loads_what_is_saved(load: Load, name: str, tmp_path: Path) -> None:
    reference, model, _ = load(name)
    minhub_py.save_pretrained(model, tmp_path)
    again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is type(reference)
    assert not any(report.values())
    ids = torch.tensor(texts_of(30))
    assert torch.equal(again.eval()(ids).last_hidden_state, reference(ids).last_hidden_state)
    loaded = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert loaded.config.to_hub() == model.config.to_hub()


@torch.no_grad()
def test_the_text_model_of_a_multimodal_file(load: Load, tmp_path: Path) -> None:
    """The parts for images and sounds are ignored; quantized models are close."""
    _, model, folder = load("small")
    tensors = load_file(folder / "model.safetensors")
    nested = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    parts = ("vision_tower.encoder.x", "audio_tower.x", "embed_vision.x", "embed_audio.x")
    save_file(nested | {name: torch.zeros(2) for name in parts}, tmp_path / "model.safetensors")
    settings = {"model_type": "embedding_gemma2", "text_config": SMALL, "vision_config": {}}
    (tmp_path / "config.json").write_text(
        json.dumps({**settings, "architectures": ["EmbeddingGemma2Model"], "image_token_id": 5})
    )
    ids = torch.tensor(texts_of(30))
    assert torch.equal(minhub_py.from_pretrained(tmp_path, device="cpu")(ids), model(ids))
    for quantize, least in (("int8", 0.99), ("nf4", 0.8)):
        quantized = minhub_py.from_pretrained(tmp_path, device="cpu", quantize=quantize)
        states = NativeEncoder(quantized).hidden_states(ids.tolist())
        assert torch.cosine_similarity(states, model(ids)[0], dim=1).mean() > least


@torch.no_grad()
def test_torchscript_inspection_and_published_size(load: Load, tmp_path: Path) -> None:
    _, model, folder = load("small")
    save_torchscript(model, tmp_path / "model.pt")
    ids = torch.tensor(texts_of(40))
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids), model(ids))
    assert verify(str(folder))["problems"] == []
    report = inspect("google/embeddinggemma-2")
    assert (report["parameters"]["total"], report["context"]) == (271_002_624, 262_144)


def test_the_config_of_transformers_is_read(tmp_path: Path) -> None:
    """With the default 24 layers, which transformers numbers with two digits."""
    reference = AutoConfig.for_model("embedding_gemma2_text")
    reference.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    _, config = minhub_py.loading.files.describe(settings, {})
    assert config.kinds == reference.layer_types
    assert config.head_sizes == [256, 256, 256, 256, 256, 512] * 4
    assert config.kv_heads == [2, 2, 2, 2, 2, 1] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"is_causal": True}, "sets is_causal to True"),
        ({"head_dim": 7}, r"the head size \(7\) must be even"),
        ({"num_key_value_heads": 3}, r"must be a multiple of the KV heads of each layer \(3\)"),
        ({"per_layer_config": {"0": {"head_dim": 16}}}, "per_layer_config must contain the same"),
        ({"layer_types": [FULL]}, "for each of 4 layers"),
        ({"rope_parameters": {"other": {}}}, "must contain settings for full_attention and"),
        ({"architectures": ["EmbeddingGemma2ForMaskedLM"]}, "model has no head"),
        ({"hidden_activation": "mish"}, "hidden_activation 'mish' is not one of"),
    ],
)
def test_unsupported_settings_are_refused_by_name(settings: Any, message: str) -> None:
    values = {"model_type": "embedding_gemma2_text", **SMALL, **settings}
    with pytest.raises(ValueError, match=message):
        minhub_py.loading.files.describe(values, {})


@needs("sentence_transformers")
def test_embeddings_equal_sentence_transformers(load: Load, tmp_path: Path) -> None:
    """With its modules and prompts."""
    from sentence_transformers import SentenceTransformer

    reference, _, _ = load("small")
    reference.save_pretrained(tmp_path)
    words = "task : search result | query title none text a cat sat on the mat".split()
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *words]
    vocabulary = {word: id for id, word in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(special))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 40, "pooling_mode_mean_tokens": True})
    )
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]  # fmt: skip
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    texts = ["a cat sat", "the mat", "a cat sat on the mat the cat"]
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    tokenizer = minhub_py.tokenizer_from_pretrained(str(tmp_path))
    for prompt in (None, *prompts):
        expected = theirs.encode(texts, prompt_name=prompt, convert_to_tensor=True)
        assert_close(embed(model, tokenizer, texts, prompt=prompt), expected)
