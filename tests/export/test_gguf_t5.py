"""GGUF files of T5: an encoder-decoder with one or two input matrices in its MLPs, and a unigram
tokenizer.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from random_weights import draw
from references import ids_of
from sentencepiece_files import texts, train
from tokenizers import Tokenizer

from minhub_py import from_config, from_pretrained, save_pretrained, tokenizer_from_pretrained
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.export.gguf import write_gguf
from minhub_py.loading.files import open_files
from minhub_py.models.attention import Past
from minhub_py.models.t5 import T5Encoder
from minhub_py.serve.loading import task_at

SMALL = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 10,
    "d_ff": 44,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
}


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    ids, targets = ids_of(1, 30), ids_of(2, 9)[:1]
    return model.logits(model.body(targets, Past(targets, encoder=model.encode(ids))))


def written(folder: Path, **settings: Any) -> tuple[Any, Path]:
    """A random model, and its GGUF file."""
    model = from_config("t5", **{**SMALL, **settings})
    draw(model)
    save_pretrained(model.eval(), folder / "hub")
    write_gguf(open_files(folder / "hub"), folder / "model.gguf", "F32")
    return model, folder / "model.gguf"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"relative_attention_num_buckets": 12},
    ],
    ids=["relu", "gated", "buckets"],
)
def test_written_files_have_the_settings_and_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model, file = written(tmp_path, **settings)
    again = from_pretrained(file, device="cpu")
    assert torch.equal(logits_of(again), logits_of(model))
    actual, expected = again.config.to_hub(), model.config.to_hub()
    for config in (actual, expected):  # a folder without a tokenizer has no token IDs in the file
        del config["eos_token_id"], config["pad_token_id"]
    assert actual == expected
    names = read_header(file).tensors.keys()
    assert ("dec.blk.1.ffn_gate.weight" in names) == model.config.is_gated_act
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, SMALL["num_layers"])
    hub = Checkpoint(tmp_path / "hub")
    assert {known.get_name(name, try_suffixes=(".weight",)) for name in hub} == names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, "has no setting for feed_forward_proj"),
        (
            {"relative_attention_max_distance": 60},
            "has no setting for relative_attention_max_distance",
        ),
        ({"num_decoder_layers": 4}, "requires at least as many encoder as decoder layers"),
    ],
)
def test_settings_that_llama_cpp_lacks_are_rejected(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        written(tmp_path, **settings)


@torch.no_grad()
@pytest.mark.parametrize(
    "settings", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}]
)
def test_encoder_without_a_decoder(settings: dict[str, Any], tmp_path: Path) -> None:
    model, file = written(tmp_path, architectures=["T5EncoderModel"], **settings)
    header = read_header(file)
    assert header.metadata["general.architecture"] == "t5encoder"
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5ENCODER, SMALL["num_layers"])
    assert {
        known.get_name(name, try_suffixes=(".weight",)) for name in Checkpoint(tmp_path / "hub")
    } == (header.tensors.keys())
    ids = ids_of(1, 30)
    again = from_pretrained(file, device="cpu")
    assert isinstance(again, T5Encoder)
    assert torch.equal(again(ids), model(ids))
    assert task_at(file) == "embedding"


def test_unigram_tokenizer_is_that_of_the_folder(tmp_path: Path) -> None:
    save_pretrained(from_config("t5", **{**SMALL, "vocab_size": 3100}), tmp_path / "hub")
    (tmp_path / "hub" / "spiece.model").write_bytes(
        train(model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    )
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf")
    theirs = read_tokenizer(tmp_path / "hub")
    ours = tokenizer_from_pretrained(str(tmp_path / "model.gguf"))
    for text in texts(300):
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        ids = theirs.encode(text).ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.encode("a").ids[-1] == 1
    again = Tokenizer.from_str(json.dumps(json.loads(ours.to_str())))
    assert again.encode("one two").ids == ours.encode("one two").ids
