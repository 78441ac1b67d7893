"""Repositories of sentence-transformers: the files of save_pretrained(), and pooling without the
prompt.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders import write_sentence_encoder
from needs import needs
from safetensors.torch import load_file, save_file

from minhub_py import embed, from_pretrained, gpt2, save_pretrained, tokenizer_from_pretrained
from minhub_py.checkpoints.pooling import pooled
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings, read_embedding_settings
from minhub_py.cli.main import main

TEXTS = ["The cat sat on the mat", "a dog ran", "", "lovely weather " * 30]


def write_dense(
    folder: Path, number: int, rows: int, columns: int, activation: str, **settings: Any
) -> None:
    path = folder / f"{number}_Dense"
    path.mkdir()
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(number))
    save_file(
        {
            "linear.weight": weight,
            **({"linear.bias": weight[:, 0].clone()} if settings["bias"] else {}),
        },
        path / "model.safetensors",
    )
    (path / "config.json").write_text(
        json.dumps(
            {
                "in_features": columns,
                "out_features": rows,
                "activation_function": activation,
                **settings,
            }
        )
    )


def write_kinds(folder: Path, *kinds: str) -> None:
    """modules.json with these modules after the pooling."""
    paths = [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        *((kind, f"{i}_{kind}") for i, kind in enumerate(kinds, 2)),
    ]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (kind, path) in enumerate(paths)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.fixture(params=["mean", "several", "dense", "bin", "prompt"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = write_sentence_encoder(tmp_path / "repository", max_length=32)
    settings: dict[str, Any] = {"word_embedding_dimension": 48}
    if request.param == "bin":  # the weights of the dense layer as in old repositories
        settings |= {"pooling_mode_mean_tokens": True}
        write_dense(folder, 2, 20, 48, "torch.nn.modules.activation.Tanh", bias=True)
        tensors = load_file(folder / "2_Dense" / "model.safetensors")
        torch.save(tensors, folder / "2_Dense" / "pytorch_model.bin")
        (folder / "2_Dense" / "model.safetensors").unlink()
        write_kinds(folder, "Dense", "Normalize")
    elif request.param == "mean":
        settings |= {"pooling_mode_mean_tokens": True}
    elif request.param == "several":  # in an order that the old names cannot express
        settings |= {
            "pooling_mode": ["weightedmean", "cls", "mean_sqrt_len_tokens"],
            "embedding_dimension": 48,
        }
    elif request.param == "prompt":
        settings |= {"pooling_mode_weightedmean_tokens": True, "include_prompt": False}
        (folder / "config_sentence_transformers.json").write_text(
            json.dumps(
                {
                    "prompts": {"query": "the dog ran : "},
                    "default_prompt_name": "query",
                    "truncate_dim": 20,
                    "similarity_fn_name": "dot",
                }
            )
        )
    else:
        settings |= {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
        write_dense(folder, 2, 20, 96, "torch.nn.modules.activation.Tanh", bias=True)
        write_dense(
            folder, 3, 20, 20, "torch.nn.modules.linear.Identity", bias=False, use_residual=True
        )
        write_kinds(folder, "Dense", "Dense", "Normalize")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return folder


def settings_without_weights(folder: Path) -> dict[str, Any]:
    settings = vars(read_embedding_settings(folder)).copy()
    settings["dense"] = [
        (dense.activation, dense.residual, dense.bias is None) for dense in settings["dense"]
    ]
    return settings


@pytest.mark.parametrize("way", ["save", "convert"])
def test_a_saved_model_has_the_same_embeddings(repository: Path, way: str, tmp_path: Path) -> None:
    model, tokenizer = (
        from_pretrained(repository, device="cpu"),
        tokenizer_from_pretrained(repository),
    )
    saved = tmp_path / "saved"
    if way == "save":
        save_pretrained(model, saved, tokenizer)
    else:
        main(["convert", str(repository), str(saved)], standalone_mode=False)
    again = from_pretrained(saved, device="cpu")
    assert settings_without_weights(saved) == settings_without_weights(repository)
    vectors = embed(model, tokenizer, TEXTS)
    assert torch.equal(embed(again, tokenizer_from_pretrained(saved), TEXTS), vectors)
    model.embedding_settings = None
    # the settings of the previous model do not remain, but its tokenizer does
    save_pretrained(model, saved)
    assert read_embedding_settings(saved) is None
    assert tokenizer_from_pretrained(saved).to_str() == tokenizer.to_str()


@needs("sentence_transformers")
def test_sentence_transformers_loads_what_is_saved(repository: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model, tokenizer = (
        from_pretrained(repository, device="cpu"),
        tokenizer_from_pretrained(repository),
    )
    save_pretrained(model, tmp_path / "saved", tokenizer)
    vectors = embed(model, tokenizer, TEXTS)
    for folder in (repository, tmp_path / "saved"):
        peer = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
        assert (peer - vectors).abs().max() < 1e-5 * vectors.abs().max()


def test_generation_settings_of_decoders_are_saved(tmp_path: Path) -> None:
    model = gpt2(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    save_pretrained(model, tmp_path / "first")
    assert not (tmp_path / "first" / "generation_config.json").exists()
    settings = {"temperature": 0.6, "top_p": 0.95, "eos_token_id": 7}
    (tmp_path / "first" / "generation_config.json").write_text(json.dumps(settings))
    loaded = from_pretrained(tmp_path / "first")
    save_pretrained(loaded, tmp_path / "second")
    assert json.loads((tmp_path / "second" / "generation_config.json").read_text()) == settings
    save_pretrained(model, tmp_path / "second")
    assert not (tmp_path / "second" / "generation_config.json").exists()


# Pooling without the prompt, by the rules of sentence-transformers' Pooling.


def test_weights_of_positions_count_the_prompt() -> None:
    x = torch.randn(5, 3)
    settings = EmbeddingSettings(("weightedmean",), include_prompt=False)
    expected = (3 * x[2] + 4 * x[3] + 5 * x[4]) / 12
    torch.testing.assert_close(pooled(x, settings, 2), expected)


@pytest.mark.parametrize("length", [4, 5, 9])
def test_a_text_truncated_within_its_prompt_pools_no_token(length: int) -> None:
    x = torch.randn(4, 3)
    modes = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
    result = pooled(x, EmbeddingSettings(modes, include_prompt=False), length)
    assert torch.equal(result, torch.cat([x[0], torch.zeros(15)]))
    assert pooled(x, EmbeddingSettings(modes), length).count_nonzero() == 18


def test_a_truncated_prompt_leaves_the_last_special_token(tmp_path: Path) -> None:
    folder = write_sentence_encoder(tmp_path, max_length=12)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode": "mean", "include_prompt": False})
    )
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"long": "the dog ran on " * 6}})
    )
    model, tokenizer = from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(folder)
    result = embed(model, tokenizer, TEXTS, prompt="long")
    ids = tokenizer.encode("the dog ran on " * 6).ids
    with torch.no_grad():
        last = model.hidden_states(torch.tensor([[*ids[:11], ids[-1]]]))[0, -1]
    torch.testing.assert_close(
        result, torch.nn.functional.normalize(last, dim=0).expand(4, 48), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("pooling", ["mean", "weightedmean", "cls"])
@needs("sentence_transformers")
def test_prompts_left_out_equal_sentence_transformers(pooling: str, tmp_path: Path) -> None:
    """Also where the maximum length cuts the text, or the prompt."""
    from sentence_transformers import SentenceTransformer

    folder = write_sentence_encoder(tmp_path / "repository", max_length=12)
    name = {"cls": "pooling_mode_cls_token"}.get(pooling, f"pooling_mode_{pooling}_tokens")
    settings = {"word_embedding_dimension": 48, "include_prompt": False, name: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    prompts = {"short": "the dog : ", "long": "the dog ran on " * 6}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    model, tokenizer = from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(folder)
    peer = SentenceTransformer(str(folder), device="cpu")
    for prompt in prompts:
        expected = peer.encode(TEXTS, prompt_name=prompt, convert_to_tensor=True)
        torch.testing.assert_close(
            embed(model, tokenizer, TEXTS, prompt=prompt), expected, rtol=0, atol=1e-5
        )
