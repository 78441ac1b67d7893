"""Gemma 3 with bidirectional attention (EmbeddingGemma) compared with transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from random_weights import draw
from references import assert_close
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel

import minhub_py
from minhub_py import embed
from minhub_py.inference.encoder_runner import TorchEncoder, encoder_runner
from minhub_py.models.config import read
from minhub_py.models.encoder import Encoder
from minhub_py.models.registry import ENTRIES

SETTINGS: dict[str, Any] = {
    "model_type": "gemma3_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "sliding_window": 8, "query_pre_attn_scalar": 20, "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 100000.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}},
}  # fmt: skip
WORDS = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    *"task : search result | query title none text a cat sat on the mat".split(),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random weights as transformers writes it, and the modules of
    sentence-transformers.
    """
    folder = tmp_path_factory.mktemp("embeddinggemma")
    reference = AutoModel.from_config(AutoConfig.for_model(**SETTINGS)).eval()
    draw(reference)
    reference.save_pretrained(folder)
    generator = torch.Generator().manual_seed(2)
    for number, (rows, columns) in ((2, (48, 32)), (3, (32, 48))):
        dense = folder / f"{number}_Dense"
        dense.mkdir()
        weight = torch.randn(rows, columns, generator=generator)
        save_file({"linear.weight": weight}, dense / "model.safetensors")
        settings = {
            "in_features": columns,
            "out_features": rows,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        (dense / "config.json").write_text(json.dumps(settings))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    kinds = {
        "": "Transformer",
        "1_Pooling": "Pooling",
        "2_Dense": "Dense",
        "3_Dense": "Dense",
        "4_Normalize": "Normalize",
    }
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"path": path, "type": f"sentence_transformers.models.{kind}"}
                for path, kind in kinds.items()
            ]
        )
    )
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    tokenizer = Tokenizer(
        models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return minhub_py.from_pretrained(folder, device="cpu")


@torch.no_grad()
def states(folder: Path, ids: list[int]) -> torch.Tensor:
    """transformers' hidden states of a text."""
    return AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]


def texts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 61, (length,), generator=generator).tolist() for length in lengths]


def test_hidden_states_match_transformers(folder: Path, model: Any) -> None:
    """In C and in PyTorch, with texts longer than the window, in ragged batches."""
    assert isinstance(model, Encoder)
    texts = texts_of(40, 17, 5, 9, 1)
    expected = torch.cat([states(folder, ids) for ids in texts])
    for runner in (encoder_runner(model), TorchEncoder(model)):
        assert_close(runner.hidden_states(texts), expected)
    causal = states(folder, texts[0][:20])[:10]
    assert (causal - expected[:10]).abs().max() > 0.1  # later tokens matter


@pytest.mark.parametrize("window", [7, 9])
def test_odd_windows_match_transformers(tmp_path: Path, window: int) -> None:
    reference = AutoModel.from_config(
        AutoConfig.for_model(**SETTINGS | {"sliding_window": window})
    ).eval()
    draw(reference)
    reference.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SETTINGS | {"sliding_window": window}))
    [ids] = texts_of(30)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).last_hidden_state[0]
    assert_close(
        encoder_runner(minhub_py.from_pretrained(tmp_path, device="cpu")).hidden_states([ids]),
        expected,
    )


def test_embeddings_follow_the_modules(folder: Path, model: Any) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    weights = [module.weight for module in model.embedding_settings.dense]
    for name, prompt in (
        (None, ""),
        ("query", "task: search result | query: "),
        ("document", "title: none | text: "),
    ):
        vectors = embed(model, tokenizer, ["a cat sat", "the mat"], prompt=name)
        for vector, text in zip(vectors, ["a cat sat", "the mat"], strict=True):
            ids = tokenizer.encode(prompt + text).ids
            assert (ids[0], ids[-1]) == (2, 1)
            expected = states(folder, ids).mean(0)
            for weight in weights:
                expected = weight @ expected
            assert_close(vector, expected / expected.norm())


def test_saved_models_match_transformers(folder: Path, model: Any, tmp_path: Path) -> None:
    minhub_py.save_pretrained(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["use_bidirectional_attention"], config["sliding_window"]) == (True, 8)
    assert config["architectures"] == ["Gemma3TextModel"]
    [ids] = texts_of(30)
    assert_close(states(tmp_path, ids), states(folder, ids))
    again = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert torch.equal(
        again.hidden_states(torch.tensor([ids])), model.hidden_states(torch.tensor([ids]))
    )


@pytest.mark.parametrize("quantize", ["int8", "nf4"])
def test_quantized_models_are_close(folder: Path, model: Any, quantize: str) -> None:
    texts = texts_of(40, 17)
    quantized = encoder_runner(
        minhub_py.from_pretrained(folder, device="cpu", quantize=quantize)
    ).hidden_states(texts)
    exact = encoder_runner(model).hidden_states(texts)
    assert torch.cosine_similarity(quantized, exact, dim=1).mean() > (
        0.999 if quantize == "int8" else 0.9
    )


def test_calls_that_predict_tokens_reject_encoders(model: Any) -> None:
    bert = minhub_py.from_config(
        "bert",
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
    )
    for encoder in (model, bert):
        for call in (
            lambda: minhub_py.generate(encoder, [[5]], 3),  # noqa: B023
            lambda: minhub_py.stream(encoder, [5], 3),  # noqa: B023
            lambda: minhub_py.score(encoder, [[5, 6]]),  # noqa: B023
            lambda: minhub_py.Chat(encoder, None),  # noqa: B023
            lambda: minhub_py.next_tokens(encoder, None, [[5]]),  # noqa: B023
        ):
            with pytest.raises(ValueError, match="encoder, which does not predict the next token"):
                call()


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in ("lstm", "sinusoidal")])
def test_causal_and_bidirectional_attention_are_supported_or_rejected_by_name(name: str) -> None:
    """transformers computes bidirectional attention of a decoder for is_causal: false. Encoders
    have no causal one.
    """
    entry = ENTRIES[name]
    Config, is_encoder = entry.architecture.Config, entry.architecture.is_encoder
    for model_type in entry.model_types:
        expected_settings = {"model_type": model_type, "is_causal": not is_encoder}
        rest = {"is_encoder_decoder": True} if name == "t5" else {}
        assert read(Config, {**expected_settings, **rest}) == read(
            Config, {"model_type": model_type, **rest}
        )
        with pytest.raises(ValueError, match=f"sets is_causal to {is_encoder}"):
            read(Config, {**expected_settings, **rest, "is_causal": is_encoder})
        if model_type != "gemma3_text":
            with pytest.raises(ValueError, match="use_bidirectional_attention"):
                read(
                    Config, {"model_type": model_type, **rest, "use_bidirectional_attention": True}
                )
