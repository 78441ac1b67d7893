"""Adapters in the C decoder: the same logits as PyTorch's, over floats and quantized weights, and
batch invariance.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from needs import needs
from random_weights import draw
from references import assert_close, random_model, texts_of
from small_models import T5

from minhub_py import from_config, from_pretrained, generate, save_pretrained, score
from minhub_py.inference.encoder_runner import NativeEncoder, TorchEncoder
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.torch_runner import TorchRunner

ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"r": 5},
    "dora": {"use_dora": True, "use_rslora": True},
}


def logits_of(runner: Any, model: Any, texts: list[list[int]]) -> torch.Tensor:
    cache = runner.new_cache(len(texts), max(map(len, texts)) + 1)
    return runner.forward(dict(enumerate(texts)), cache, every=True).clone()


@needs("decoder")
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "gemma2", "qwen3", "granite"])
@pytest.mark.parametrize("kind", [None, "int8", "nf4"])
def test_the_decoder_adds_adapters_without_merging(
    name: str, kind: str | None, tmp_path: Path
) -> None:
    model = random_model(name)
    save_pretrained(model, tmp_path / "base")
    for adapter, settings in ADAPTERS.items():
        random_adapter(model, tmp_path / adapter, **settings)
    loaded = from_pretrained(
        tmp_path / "base",
        adapter={each: tmp_path / each for each in ADAPTERS},
        quantize=kind,
        dtype="float32",
    )
    texts = texts_of(30, 3, 1)
    for adapter in ADAPTERS:
        adapted = loaded.adapter(adapter)
        runner = runner_of(adapted)
        assert isinstance(runner, NativeRunner)
        actual = logits_of(runner, adapted, texts)
        # Quantized activations of the C decoder round its results, as without an adapter
        # (quantize.py).
        assert_close(
            actual, logits_of(TorchRunner(adapted), adapted, texts), 5e-5 if kind is None else 2e-3
        )
        base = logits_of(runner_of(loaded), loaded, texts)
        assert (actual - base).abs().max() > 0.05 * base.abs().max()
        batch = generate(adapted, texts, 6, temperature=0, eos_id=None)
        assert batch == [
            generate(adapted, [text], 6, temperature=0, eos_id=None)[0] for text in texts
        ]


@needs("decoder")
def test_encoders_and_encoder_decoders(tmp_path: Path) -> None:
    """BERT by hidden states; T5 with adapters of the cross-attention, whose keys and values are
    merged.
    """
    torch.manual_seed(0)
    encoder = from_config(
        "bert",
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    draw(encoder)
    save_pretrained(encoder.eval(), tmp_path / "bert")
    random_adapter(encoder, tmp_path / "bert_adapter")
    adapted = from_pretrained(tmp_path / "bert", adapter=tmp_path / "bert_adapter")
    texts = texts_of(9, 150)
    assert_close(
        NativeEncoder(adapted).hidden_states(texts), TorchEncoder(adapted).hidden_states(texts)
    )
    both = from_config("t5", **T5)
    draw(both)
    save_pretrained(both.eval(), tmp_path / "t5")
    random_adapter(both, tmp_path / "t5_adapter")
    adapted = from_pretrained(tmp_path / "t5", adapter=tmp_path / "t5_adapter")
    assert isinstance(runner_of(adapted), NativeRunner)
    [native] = score(adapted, [[5, 6, 7]], targets=[[8, 9, 10]])
    with torch.no_grad():
        inputs = torch.tensor([[adapted.decoder_start, 8, 9]])
        logprobs = adapted(torch.tensor([[5, 6, 7]]), inputs).log_softmax(-1)[0]
    assert_close(native, logprobs[range(3), [8, 9, 10]])


def test_factors_that_change_in_place_are_used(tmp_path: Path) -> None:
    model = random_model("gpt2")
    save_pretrained(model, tmp_path / "base")
    random_adapter(model, tmp_path / "a")
    adapted = from_pretrained(tmp_path / "base", adapter=tmp_path / "a")
    base = generate(adapted.adapter(None), texts_of(9), 8, temperature=0, eos_id=None)
    assert generate(adapted, texts_of(9), 8, temperature=0, eos_id=None) != base
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    assert generate(adapted, texts_of(9), 8, temperature=0, eos_id=None) == base
