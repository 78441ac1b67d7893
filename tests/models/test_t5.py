"""T5, an encoder-decoder, compared with transformers: the same files, the same logits, texts,
losses and gradients.

test_architectures.py has the same checks for decoders.
"""

import json
from itertools import cycle, pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from needs import need_kernels, needs
from references import LOGPROBS, assert_close
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, T5ForConditionalGeneration

import minhub_py
import weights_map
from minhub_py.cli.main import main
from minhub_py.export.convert import convert
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.batch import Batch
from minhub_py.inference.native.library import library
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.sampling import Sampling
from minhub_py.inference.torch_runner import TorchRunner
from minhub_py.loading.files import open_files
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.config import read as read_settings
from minhub_py.models.registry import architecture_of, preset
from r_bridge.methods import models as methods_of_models
from r_bridge.methods import text as methods_of_text
from r_bridge.objects import Model, Session

VOCABULARY = 61
SMALL = {
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 44,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
CASES: dict[str, dict[str, Any]] = {
    "t5": {},
    "gated": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated-relu": {"feed_forward_proj": "gated-relu"},
    "gated-silu": {"feed_forward_proj": "gated-silu"},
    "gelu": {"feed_forward_proj": "gelu"},
    "unscaled": {"tie_word_embeddings": False},
    "unscaled-new-spelling": {"tie_word_embeddings": True, "scale_decoder_outputs": False},
    "deep-decoder": {"num_layers": 1, "num_decoder_layers": 3},
    "deep-encoder": {"num_layers": 3, "num_decoder_layers": 1},
    "wide-heads": {"d_kv": 20},
    "narrow-heads": {"d_kv": 5},
    "one-head": {"num_heads": 1, "d_kv": 16},
    "six-heads": {"num_heads": 6},
    "published-buckets": {
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
    "few-buckets": {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 9},
    "odd-buckets": {"relative_attention_num_buckets": 7, "relative_attention_max_distance": 33},
    "epsilon": {"layer_norm_epsilon": 0.1},
    "another-start": {"decoder_start_token_id": 7, "eos_token_id": 9, "pad_token_id": 3},
    "dropout": {"dropout_rate": 0.5},
}
FEW = ("t5", "gated")


def draw(model: torch.nn.Module) -> None:
    """Large random weights that preserve the size of activations; attention is far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.4 * noise)
            # small IDs: a tied model would repeat its last token
            elif "shared" in name or "relative" in name:
                parameter.copy_(noise * (0.5 if "shared" in name else 2.0))
            else:
                parameter.copy_(
                    noise
                    * (0.6 if name.endswith(".q.weight") else 1.7)
                    * parameter.shape[1] ** -0.5
                )


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): the reference, and our model of its saved file. They are shared: do not change
    them.
    """
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            settings = SMALL | CASES[name]
            reference = T5ForConditionalGeneration(AutoConfig.for_model(**settings)).eval()
            if name == "gated":  # an untied head, as in T5 1.1
                reference.config.tie_word_embeddings = False
                reference.lm_head.weight = torch.nn.Parameter(reference.lm_head.weight.clone())
            draw(reference)
            reference.save_pretrained(folder)
            (folder / "generation_config.json").unlink()
            (folder / "config.json").write_text(json.dumps(settings))  # the settings of the case
            loaded[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return loaded[name]

    return get


def ids_of(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(100 * length + seed)
    )


def wanted_of(reference: Any, source: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = reference(
        input_ids=source,
        attention_mask=torch.ones_like(source),
        decoder_input_ids=ids,
        use_cache=False,
    ).logits
    return logits


@torch.no_grad()
def read(
    model: Any, source: torch.Tensor, ids: torch.Tensor, pieces: list[int], cache: Any
) -> torch.Tensor:
    """A text's logits in chunks of `sizes`, which are repeated until its end."""
    logits: list[torch.Tensor] = []
    position = 0
    for size in cycle(pieces):
        if position >= ids.size(1):
            break
        logits.append(model(None if logits else source, ids[:, position : position + size], cache))
        position += size
    return torch.cat(logits, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_logits_match_transformers(load, name: str) -> None:
    """Logits of one row and of three; in one call, and with a cache in chunks; beyond the last
    bucket.
    """
    reference, model, _ = load(name)
    for rows in (1, 3):
        source, ids = ids_of(rows, 47), ids_of(rows, 60)
        expected = wanted_of(reference, source, ids)
        assert expected.std() > 0.3
        assert_close(model(source, ids), expected)
        for pieces in ([1, 1, 1, 57], [3, 1, 11, 1, 2]):
            assert_close(read(model, source, ids, pieces, model.new_cache(rows, 60)), expected)


@torch.no_grad()
def test_rows_of_different_lengths_match_single_rows(load) -> None:
    """Rows with inputs and texts of different lengths in one cache, and the remaining rows after
    some leave.
    """
    reference, model, _ = load("t5")
    sources, ids = [ids_of(1, length) for length in (3, 40, 17)], ids_of(3, 50)
    lengths, cache = [0, 9, 30], model.new_cache(3, 60)
    for row, (source, length) in enumerate(zip(sources, lengths, strict=True)):
        one = model.new_cache(1, 60)
        one.set_encoder(model.encode(source))
        if length:
            model(None, ids[row : row + 1, :length], one)
        cache.set_row(row, one)
    expected = [
        wanted_of(reference, source, ids[row : row + 1])[0] for row, source in enumerate(sources)
    ]
    for size in (1, 4):
        actual = model(
            None, torch.stack([ids[row, n : n + size] for row, n in enumerate(lengths)]), cache
        )
        for row, n in enumerate(lengths):
            assert_close(actual[row], expected[row][n : n + size])
        lengths = [n + size for n in lengths]
    cache.leave(0)
    actual = model(None, torch.stack([ids[row, lengths[row]][None] for row in (2, 1)]), cache)
    assert_close(actual[0], expected[2][lengths[2] :][:1])
    assert_close(actual[1], expected[1][lengths[1] :][:1])


def test_invalid_calls_are_rejected(load) -> None:
    _, model, _ = load("t5")
    ids = ids_of(1, 4)
    with pytest.raises(ValueError, match="without a cache, pass idx, the token IDs of the encoder"):
        model(None, ids)
    with pytest.raises(
        ValueError, match="a row of the cache has no encoder output: pass idx in the first call"
    ):
        model(None, ids, model.new_cache(1, 9))
    with pytest.raises(ValueError, match="12 encoder positions do not fit a cache of 9"):
        model(ids_of(1, 12), ids, model.new_cache(1, 9))
    with pytest.raises(ValueError, match="token IDs must be 0 to 60"):
        model(torch.tensor([[61]]), ids)
    with pytest.raises(ValueError, match="predicts its output, not the prompt"):
        minhub_py.score(model, [[1, 2, 3]])
    with pytest.raises(ValueError, match="1 targets for 2 prompts"):
        minhub_py.score(model, [[1, 2, 3], [4]], targets=[[5]])
    with pytest.raises(ValueError, match="targets: prompt 0 is empty"):
        minhub_py.score(model, [[1, 2, 3]], targets=[[]])
    batch = Batch(model, 1, 8)
    with pytest.raises(
        ValueError, match="a prompt of 9 tokens does not fit a batch with max_length 8"
    ):
        batch.admit([1] * 9, 3)


@pytest.mark.parametrize("name", CASES)
def test_generated_texts_match_transformers(load, name: str) -> None:
    """Greedy text to its end equals transformers'; rows of a batch equal single runs.

    Also with a repetition penalty: without it, random weights generate a text of few different
    tokens.
    """
    reference, model, _ = load(name)
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17)]
    for penalty in (1.0, 2.0) if name in FEW else (2.0,):
        texts = minhub_py.generate(model, prompts, 12, temperature=0, repetition_penalty=penalty)
        for prompt, text in zip(prompts, texts, strict=True):
            ids = torch.tensor([prompt])
            # No cache: transformers' requires that encoder and decoder have equally many layers.
            expected = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=12,
                do_sample=False,
                use_cache=False,
                repetition_penalty=penalty,
            )
            assert text == expected[0, 1:].tolist()
            settings = {"temperature": 0, "repetition_penalty": penalty}
            assert list(minhub_py.stream(model, prompt, 12, **settings)) == text
    assert len({*texts[0], *texts[1]}) > 5


@pytest.mark.parametrize("name", FEW)
def test_samples_follow_seeds_drafts_and_stop_criteria(load, name: str) -> None:
    """Seeds, drafts and stop criteria."""
    _, model, _ = load(name)
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17, 30)]
    rows = minhub_py.generate(model, prompts, 30, seed=[1, 2, 3], eos_id=None)
    assert rows == [
        minhub_py.generate(model, [prompt], 30, seed=seed, eos_id=None)[0]
        for seed, prompt in enumerate(prompts, 1)
    ]
    assert rows == minhub_py.generate(model, prompts, 30, seed=[1, 2, 3], eos_id=None, speculate=4)
    assert (
        minhub_py.generate(model, prompts, 30, seed=[1, 2, 3], eos_id=rows[0][4])[0]
        == (rows[0][: rows[0].index(rows[0][4]) + 1])
    )


@pytest.mark.parametrize("name", CASES)
def test_scores_match_the_loss(load, name: str) -> None:
    """The log-probabilities of targets, and the mean of them, which is the loss in transformers."""
    reference, model, _ = load(name)
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 30)]
    targets = [ids_of(1, length, 1)[0].tolist() for length in (40, 11)]
    scores = minhub_py.score(model, prompts, targets=targets)
    for prompt, target, actual in zip(prompts, targets, scores, strict=True):
        source, labels = torch.tensor([prompt]), torch.tensor([target])
        with torch.no_grad():
            out = reference(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                labels=labels,
                use_cache=False,
            )
        expected = out.logits[0].log_softmax(dim=-1).gather(1, labels.T).squeeze(1)
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=LOGPROBS * out.logits.abs().max().item()
        )
        torch.testing.assert_close(-actual.mean(), out.loss, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*FEW, "unscaled", "odd-buckets"])
def test_gradients_match_transformers(load, name: str) -> None:
    settings = SMALL | CASES[name]
    reference = T5ForConditionalGeneration(AutoConfig.for_model(**settings)).double().eval()
    draw(reference)
    config = read_settings(
        architecture_of("t5").Config,
        settings
        | {
            "tie_word_embeddings": True,
            "scale_decoder_outputs": settings.get("tie_word_embeddings", True),
        },
    )
    model = architecture_of("t5").Model(config).double().eval()
    named = weights_map.to_native("t5", reference.state_dict())
    model.load_state_dict({key: named[key] for key in model.state_dict()})
    source, targets = ids_of(2, 30), ids_of(2, 20)
    loss = cross_entropy(
        model(source, model.decoder_inputs(targets)).flatten(0, 1), targets.flatten()
    )
    wanted_loss = reference(
        input_ids=source, attention_mask=torch.ones_like(source), labels=targets, use_cache=False
    ).loss
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-6, atol=0)
    loss.backward()
    wanted_loss.backward()
    gradients = {key: value.grad for key, value in reference.named_parameters()}
    expected = weights_map.to_native("t5", gradients)
    for key, parameter in model.named_parameters():
        error = (parameter.grad - expected[key]).abs().max() / expected[key].abs().max()
        assert error < 5e-5, (key, error)  # the norms' means are float32 in both


def test_dropout_is_active_in_training_only(load) -> None:
    _, model, folder = load("dropout")
    source, ids = ids_of(1, 9), ids_of(1, 5)
    again = minhub_py.from_pretrained(folder, device="cpu").train()
    assert not torch.equal(again(source, ids), again(source, ids))
    assert torch.equal(again.eval()(source, ids), model(source, ids))
    again.train()
    assert minhub_py.generate(again, source.tolist(), 9, temperature=0) == minhub_py.generate(
        model, source.tolist(), 9, temperature=0
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FEW)
def test_16_bit_logits_are_close_to_float32(load, name: str, dtype: torch.dtype) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    source, ids = ids_of(2, 20), ids_of(2, 40)
    with torch.no_grad():
        expected = wanted_of(reference, source, ids)
        actual = read(model, source, ids, [30, 1, 7], model.new_cache(2, 40))
    assert actual.dtype == dtype
    assert ((actual.float() - expected).square().mean() / expected.square().mean()).sqrt() < 0.08
    [text] = minhub_py.generate(model, source[:1].tolist(), 5, eos_id=None)
    assert len(text) == 5


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("name", FEW)
def test_quantized_logits_are_close_to_float32(load, name: str, kind: str) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    source, ids = ids_of(1, 20), ids_of(1, 40)
    with torch.no_grad():
        expected, actual = wanted_of(reference, source, ids), model(source, ids)
    error = ((actual - expected).square().mean() / expected.square().mean()).sqrt()
    assert 0 < error < (0.1 if kind == "int8" else 0.8)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert not layers  # the encoder's, too
    [text] = minhub_py.generate(model, source.tolist(), 12, temperature=0, eos_id=None)
    assert (
        text
        == minhub_py.generate(model, source.tolist(), 12, temperature=0, eos_id=None, speculate=4)[
            0
        ]
    )


@pytest.mark.parametrize(
    "name", ["t5", "gated", "unscaled", "unscaled-new-spelling", "deep-decoder", "another-start"]
)
def test_transformers_loads_saved_models(load, name: str, tmp_path: Path) -> None:
    reference, model, folder = load(name)
    minhub_py.save_pretrained(model, tmp_path / "saved")
    convert(open_files(folder), tmp_path / "native", to="native")
    convert(open_files(tmp_path / "native"), tmp_path / "hub")
    source, ids = ids_of(1, 20), ids_of(1, 30)
    with torch.no_grad():
        expected = wanted_of(reference, source, ids)
        for saved in ("saved", "hub"):
            reference_model = T5ForConditionalGeneration.from_pretrained(tmp_path / saved).eval()
            assert (
                reference_model.config.decoder_start_token_id
                == reference.config.decoder_start_token_id
            )
            assert torch.equal(wanted_of(reference_model, source, ids), expected)
        for saved in ("saved", "native", "hub"):
            assert verify(str(tmp_path / saved))["problems"] == []
            again = minhub_py.from_pretrained(tmp_path / saved, device="cpu")
            assert torch.equal(again(source, ids), model(source, ids))


def test_what_transformers_saves(load, tmp_path: Path) -> None:
    """Its own config.json, with settings that follow from others; copies of the embedding, and an
    unused table.
    """
    reference, model, _ = load("gated")
    reference.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["scale_decoder_outputs"] is False
    source, ids = ids_of(1, 20), ids_of(1, 30)
    again = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert torch.equal(again(source, ids), model(source, ids))
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        tensors[name] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(
        8, 4
    )
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(
        minhub_py.from_pretrained(tmp_path, device="cpu")(source, ids), model(source, ids)
    )


def test_t5_is_created_from_a_config_and_from_its_model_type(load) -> None:
    _, model, folder = load("t5")
    source, ids = ids_of(1, 20), ids_of(1, 30)
    assert torch.equal(
        minhub_py.from_pretrained(folder, device="cpu")(source, ids), model(source, ids)
    )
    fresh = minhub_py.from_config(folder)
    assert fresh.training
    assert fresh.config == model.config
    model = minhub_py.from_config(
        "t5", vocab_size=61, d_model=16, d_kv=4, d_ff=20, num_layers=1, num_heads=2
    )
    assert model.config.to_hub()["model_type"] == "t5"
    assert model(source, ids).std() > 0.1
    with pytest.raises(ValueError, match=r"architecture t5, not gpt2: use from_pretrained\(\)"):
        minhub_py.gpt2_from_pretrained(folder)


@pytest.mark.parametrize("name", [*FEW, "gelu", "dropout", "deep-decoder"])
def test_torchscript_matches_the_model(load, name: str, tmp_path: Path) -> None:
    """Any batch and lengths, gradients; parameters under the model's names; dropout in training."""
    _, model, _ = load(name)
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    assert list(dict(script.named_parameters())) == list(dict(model.named_parameters()))
    with torch.no_grad():
        for rows, length in ((1, 1), (2, 9), (3, 50)):
            source, ids = ids_of(rows, 51 - length), ids_of(rows, length)
            assert_close(script(source, ids), model(source, ids), 1e-5)
        assert torch.equal(script.train()(source, ids), script(source, ids)) == (
            not model.config.dropout_rate
        )
    script(ids_of(2, 9), ids_of(2, 5)).sum().backward()
    assert all(parameter.grad is not None for parameter in script.parameters())


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kernels"),
    [(name, None) for name in CASES]
    + [(name, kind) for name in FEW for kind in ("plain", "avx2", "avx512")],
)
def test_native_logits_match_forward(load, name: str, kernels: str | None) -> None:
    """The logits of `forward`, with each kernel; bitwise identical in one call, in chunks, and with
    other rows.
    """
    need_kernels(kernels)
    try:
        model = load(name)[1]
        runner = runner_of(model)
        assert type(runner) is NativeRunner
        source, ids = ids_of(1, 80)[0].tolist(), ids_of(1, 60)[0].tolist()
        cache = runner.new_cache(1, 90)
        runner.encode(source, cache, 0)
        memory = model.encode(torch.tensor([source]))
        for layer, (k, v) in memory.items():
            assert_close(cache.layers[layer][0][:, :, :80], k)
            assert_close(cache.layers[layer][1][:, :, :80], v)
        result = runner.forward({0: ids}, cache, every=True).clone()
        assert_close(result, model(torch.tensor([source]), torch.tensor([ids]))[0])
        cache.clear(0)
        pieces = [
            runner.forward({0: ids[start:end]}, cache, every=True).clone()
            for start, end in pairwise((0, 7, 8, 60))
        ]
        assert torch.equal(torch.cat(pieces), result)
        cache = runner.new_cache(3, 90)
        for row, text in enumerate((source, source[:3], source)):
            runner.encode(text, cache, row)
        first = runner.forward({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache).clone()
        assert torch.equal(first[[0, 2]], result[[4, 1]])
        further = runner.forward({0: ids[5:6], 1: ids[40:44], 2: ids[2:4]}, cache, every=True)
        assert torch.equal(further[[0, 5, 6]], result[[5, 2, 3]])
        assert_close(
            further[1:5], model(torch.tensor([source[:3]]), torch.tensor([ids[:44]]))[0, 40:]
        )
    finally:
        library().choose(None)


@needs("decoder")
def test_each_prompt_is_read_once_by_the_encoder(load, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, _ = load("t5")
    read = []
    encode = NativeRunner.encode
    monkeypatch.setattr(
        NativeRunner,
        "encode",
        lambda self, ids, *rest: (read.append(ids), encode(self, ids, *rest)),
    )
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17, 30)]
    minhub_py.generate(model, prompts, 20, eos_id=None, speculate=3)
    assert read == prompts


def test_a_row_like_another_keeps_its_own_source(load) -> None:
    """All texts begin with the same token, but only rows with the same prompt can share prefixes."""
    _, model, _ = load("t5")
    prompts = [ids_of(1, 17, seed)[0].tolist() for seed in (0, 1)]
    alone = minhub_py.generate(model, prompts, 12, temperature=0, eos_id=None)
    assert alone[0] != alone[1]
    batch = Batch(model, 3, 40)
    first = batch.admit(prompts[0], 12, sampling=Sampling(temperature=0))
    generated = {first: [event.id for event in batch.step()]}
    for prompt in prompts:
        generated[batch.admit(prompt, 12, sampling=Sampling(temperature=0), like=first)] = []
    while len(batch):
        for event in batch.step():
            generated[event.row].append(event.id)
    assert [*generated.values()] == [alone[0], *alone]


def test_texts_match_without_native_code(load) -> None:
    """With a hook, `forward` computes: the same greedy texts, scores and log-probabilities."""
    _, model, folder = load("gated")
    prompts, targets = [ids_of(1, length)[0].tolist() for length in (3, 30)], [[5, 6, 7], [9]]
    slow = minhub_py.from_pretrained(folder, device="cpu")
    recorded = []
    slow.encoder.norm.register_forward_hook(
        lambda module, args, result: recorded.append(result.size(1))
    )
    assert type(runner_of(slow)) is TorchRunner
    texts = minhub_py.generate(slow, prompts, 20, temperature=0, eos_id=None)
    assert recorded == [3, 30]
    assert texts == minhub_py.generate(model, prompts, 20, temperature=0, eos_id=None)
    for actual, expected in zip(
        *(minhub_py.score(network, prompts, targets=targets) for network in (slow, model)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    batch = Batch(model, 2, 40)
    row = batch.admit(prompts[1], 5, sampling=Sampling(temperature=0), logprobs=True)
    events = [event for _ in range(5) for event in batch.step()]
    [expected] = minhub_py.score(model, prompts[1:], targets=[texts[1][:5]])
    assert [(event.row, event.id) for event in events] == [(row, id) for id in texts[1][:5]]
    torch.testing.assert_close(
        torch.tensor([event.logprob for event in events]), expected, rtol=0, atol=1e-5
    )


def test_targets_of_a_decoder_alone() -> None:
    """The log-probabilities of a target equal the last ones of the complete text."""
    model = minhub_py.from_pretrained("minhub/shakespeare-gpt2", device="cpu")
    [complete] = minhub_py.score(model, [list(range(20))])
    [result] = minhub_py.score(model, [list(range(12))], targets=[list(range(12, 20))])
    torch.testing.assert_close(result, complete[11:], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def with_tokenizer(load, tmp_path_factory) -> Path:
    """A folder with a model of 61 token IDs and a tokenizer with fewer, like T5's: unigrams, and
    </s> after a text.
    """
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -2.0),
        *((c, -3.0) for c in "abcdefghijklmnopqrstuvwxyz:."),
    ]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("▁the", -1.0), ("house", -1.5)], 2, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    folder: Path = tmp_path_factory.mktemp("with-tokenizer")
    minhub_py.save_pretrained(load("t5")[1], folder, tokenizer)
    return folder


def test_commands_generate_and_score(with_tokenizer: Path) -> None:
    """generate prints the output only; IDs without a token have no text; perplexity needs a target."""
    folder, prompt = str(with_tokenizer), "translate: the house."
    model, tokenizer = (
        minhub_py.from_pretrained(folder),
        minhub_py.tokenizer_from_pretrained(folder),
    )
    ids = tokenizer.encode(prompt).ids
    assert ids[-1] == 1
    [expected] = minhub_py.generate(model, [ids], 20, temperature=0)
    assert {*expected} - {*tokenizer.get_vocab().values()}
    command = ["generate", folder, prompt, "-n", "20", "--temperature", "0"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0
    assert result.stdout == tokenizer.decode(expected) + "\n"
    report = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
    assert (report["ids"], report["text"]) == (expected, tokenizer.decode(expected))
    (with_tokenizer / "text.txt").write_text("the house")
    failed = CliRunner().invoke(main, ["score", folder, str(with_tokenizer / "text.txt")])
    assert failed.exit_code == 1
    assert (
        "predicts the answer to a prompt, not the prompt" in str(failed.exception) + failed.stderr
    )
    shown = CliRunner().invoke(main, ["inspect", folder]).stdout
    assert "decoder.block.{}.layer.{}.EncDecAttention.q.weight" in shown


def test_r_generates_and_scores(with_tokenizer: Path) -> None:
    """R's generate(), next_tokens() and token_logprobs() with targets; a prompt has no logits."""
    module, tokenizer = (
        read(str(with_tokenizer))
        for read in (minhub_py.from_pretrained, minhub_py.tokenizer_from_pretrained)
    )
    session, model, prompts = Session(), Model(module, with_tokenizer), ["the house", "a tree."]
    rows = [tokenizer.encode(prompt).ids for prompt in prompts]
    emitted: list[Any] = []
    session.start_request(emitted.append, Event())
    settings = {
        "tokenizer": None,
        "max_new_tokens": 12,
        "temperature": 0.0,
        "top_k": None,
        "top_p": None,
        "repetition_penalty": 1.0,
        "eos_id": None,
        "stop": None,
    }
    result = methods_of_text.generate(
        session, model, prompts, **settings, seeds=[0, 0], stream=False
    )
    expected = minhub_py.generate(module, rows, 12, temperature=0)
    assert [ids.tolist() for ids in result["ids"]] == expected
    assert list(result["texts"]) == [tokenizer.decode(ids) for ids in expected]
    emitted.clear()  # of the progress bar
    methods_of_text.generate(session, model, prompts[:1], **settings, seeds=[0], stream=True)
    assert "".join(emitted) == tokenizer.decode(expected[0])
    assert methods_of_text.next_tokens(session, model, prompts, None, 3).columns["id"][
        ::3
    ].tolist() == [ids[0] for ids in expected]
    scored = methods_of_text.score(session, model, prompts, None, ["house", "a"]).columns
    targets = [tokenizer.encode(target).ids for target in ("house", "a")]
    assert scored["id"].tolist() == [id for ids in targets for id in ids]
    assert scored["position"].tolist() == [
        position for ids in targets for position in range(1, len(ids) + 1)
    ]
    torch.testing.assert_close(
        torch.tensor(scored["logprob"]), torch.cat(minhub_py.score(module, rows, targets=targets))
    )
    with pytest.raises(
        ValueError, match=r"use generate\(\), next_tokens\(\), or token_logprobs\(\) with targets"
    ):
        methods_of_models.forward(session, model, [[1, 2]], 0, False)


REFUSED = (
    ({"is_encoder_decoder": False}, "sets is_encoder_decoder to False"),
    ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj 'gated-mish' is not one of"),
    ({"dense_act_fn": "relu", "feed_forward_proj": "gated-gelu"}, "dense_act_fn contradicts"),
    ({"relative_attention_num_buckets": 3}, "it is a number of 4 to"),
    ({"relative_attention_max_distance": 4}, r"\(4\) must be more than half"),
    ({"decoder_start_token_id": 61}, r"decoder_start_token_id \(61\) must be below vocab_size"),
)


@pytest.mark.parametrize(
    ("settings", "message"), REFUSED, ids=[str(settings) for settings, _ in REFUSED]
)
def test_unsupported_settings_are_rejected(
    load, tmp_path: Path, settings: Any, message: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(load("t5")[2] / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SMALL | settings))
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(tmp_path)


def test_training_is_rejected(load, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a rose is a rose is a rose. " * 20)
    for start in ({"family": "t5"}, {"start": str(load("t5")[2]), "tokenizer": "characters"}):
        with pytest.raises(ValueError, match=r"train\(\) does not support t5 without pairs"):
            minhub_py.train(tmp_path / "text.txt", tmp_path / "run", progress=False, **start)


PUBLISHED = {
    "google-t5/t5-small": 60_506_624,
    "google-t5/t5-base": 222_903_552,
    "google-t5/t5-large": 737_668_096,
    "google-t5/t5-3b": 2_851_598_336,
    "google-t5/t5-11b": 11_307_321_344,
    "google/t5-v1_1-small": 76_961_152,
    "google/t5-v1_1-base": 247_577_856,
    "google/t5-v1_1-large": 783_150_080,
    "google/t5-v1_1-xl": 2_849_757_184,
    "google/t5-v1_1-xxl": 11_135_332_352,
}


@pytest.mark.parametrize(("size", "parameters"), PUBLISHED.items())
def test_published_sizes_have_the_published_parameter_counts(size: str, parameters: int) -> None:
    assert inspect(size)["parameters"]["total"] == parameters


def test_flan_has_the_sizes_of_1_1() -> None:
    for size in ("small", "base", "large", "xl", "xxl"):
        assert preset(f"google/flan-t5-{size}") == preset(f"google/t5-v1_1-{size}")
