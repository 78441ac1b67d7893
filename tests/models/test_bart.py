"""BART, PLBART, mBART, Pegasus, Marian and M2M100, compared with transformers: the same files, the
same logits, texts, losses and gradients.
"""

import json
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from bart_models import CASES, SMALL, VOCABULARY, draw, pair, saved
from needs import need_kernels
from references import LOGPROBS, assert_close
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import minhub_py
import weights_map
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

FEW = ("bart", "mbart", "marian-separate", "m2m100")


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): the reference, our model of its saved file, and the folder. They are shared: do
    not change them.
    """
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            loaded[name] = *pair(name, folder), folder
        return loaded[name]

    return get


def ids_of(model: Any, rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Token IDs without padding: transformers gives it no position in M2M100."""
    generator = torch.Generator().manual_seed(100 * length + seed)
    ids = torch.randint(7, 47, (rows, length), generator=generator)
    return ids.where(ids != model.config.pad_token_id, 8)


def expected_logits(reference: Any, source: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = reference(
        input_ids=source,
        attention_mask=torch.ones_like(source),
        decoder_input_ids=ids,
        use_cache=False,
    ).logits
    return logits


@torch.no_grad()
def read(
    model: Any, source: torch.Tensor, ids: torch.Tensor, sizes: list[int], cache: Any
) -> torch.Tensor:
    """A text's logits in chunks of `sizes`, which are repeated until its end."""
    logits: list[torch.Tensor] = []
    position = 0
    for size in cycle(sizes):
        if position >= ids.size(1):
            break
        logits.append(model(None if logits else source, ids[:, position : position + size], cache))
        position += size
    return torch.cat(logits, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_logits_match_transformers(load, name: str) -> None:
    """Logits of one row and of three, to the last position; in one call, and with a cache."""
    reference, model, _ = load(name)
    for rows in (1, 3):
        source, ids = ids_of(model, rows, 90), ids_of(model, rows, 90, 1)
        expected = expected_logits(reference, source, ids)
        assert expected.std() > 0.3
        assert_close(model(source, ids), expected)
        for sizes in ([1, 1, 1, 87], [3, 1, 11, 1, 2]):
            assert_close(read(model, source, ids, sizes, model.new_cache(rows, 90)), expected)


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
        source, ids = ids_of(model, 1, 80), ids_of(model, 1, 60)[0].tolist()
        cache = runner.new_cache(1, 90)
        runner.encode(source[0].tolist(), cache, 0)
        for layer, (k, v) in model.encode(source).items():
            assert_close(cache.layers[layer][0][:, :, :80], k)
            assert_close(cache.layers[layer][1][:, :, :80], v)
        result = runner.forward({0: ids}, cache, every=True).clone()
        assert_close(result, model(source, torch.tensor([ids]))[0])
        cache.clear(0)
        pieces = [
            runner.forward({0: ids[start:end]}, cache, every=True).clone()
            for start, end in pairwise((0, 7, 8, 60))
        ]
        assert torch.equal(torch.cat(pieces), result)
        cache = runner.new_cache(3, 90)
        for row, count in enumerate((80, 3, 80)):
            runner.encode(source[0, :count].tolist(), cache, row)
        first = runner.forward({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache).clone()
        assert torch.equal(first[[0, 2]], result[[4, 1]])
        further = runner.forward({0: ids[5:6], 1: ids[40:44], 2: ids[2:4]}, cache, every=True)
        assert torch.equal(further[[0, 5, 6]], result[[5, 2, 3]])
        assert_close(further[1:5], model(source[:, :3], torch.tensor([ids[:44]]))[0, 40:])
    finally:
        library().choose(None)


@pytest.mark.parametrize("name", CASES)
def test_generated_texts_match_transformers(load, name: str) -> None:
    """Greedy text to its end equals transformers', with banned and forced tokens; rows of a batch
    equal single runs.
    """
    reference, model, _ = load(name)
    prompts = [ids_of(model, 1, length)[0].tolist() for length in (3, 17)]
    for penalty in (1.0, 2.0) if name in FEW else (2.0,):
        texts = minhub_py.generate(model, prompts, 12, temperature=0, repetition_penalty=penalty)
        for prompt, text in zip(prompts, texts, strict=True):
            ids = torch.tensor([prompt])
            # No cache: transformers' requires that encoder and decoder have equally many layers.
            expected = reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=12,
                num_beams=1,
                do_sample=False,
                use_cache=False,
                repetition_penalty=penalty,
            )
            assert text == expected[0, 1:].tolist()
            settings = {"temperature": 0, "repetition_penalty": penalty}
            assert list(minhub_py.stream(model, prompt, 12, **settings)) == text
    assert len({*texts[0], *texts[1]}) > 3


@pytest.mark.parametrize("source", ["generation_config", "config"])
def test_forced_and_banned_tokens_match_transformers(tmp_path: Path, source: str) -> None:
    """forced_bos_token_id, forced_eos_token_id and bad_words_ids of generation_config.json, or of
    config.json without this file.
    """
    reference = saved("bart", tmp_path)
    rules = {
        "forced_bos_token_id": 9,
        "forced_eos_token_id": 2,
        "bad_words_ids": [[10], [11, 12], [13]],
        "decoder_start_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    path = tmp_path / f"{source}.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **rules}))
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    for name, value in rules.items():
        setattr(reference.generation_config, name, value)
    prompts = ids_of(model, 4, 12)
    expected = reference.generate(prompts, max_new_tokens=9, do_sample=False, num_beams=1)
    texts = minhub_py.generate(model, prompts.tolist(), 9, temperature=0)
    for text, row in zip(texts, expected[:, 1:].tolist(), strict=True):
        assert text == row[: len(text)]
        assert (text[0], text[-1]) == (9, 2)
    drafts = minhub_py.generate(model, prompts.tolist(), 9, temperature=0, speculate=3)
    assert drafts == texts
    free = minhub_py.generate(model, prompts.tolist(), 9, seed=0)
    assert not {10, 13} & {id for text in free for id in text}
    assert minhub_py.generate(model, prompts.tolist(), 1, temperature=0) == [[2]] * 4
    # a target is scored as it is
    [scores] = minhub_py.score(model, prompts[:1].tolist(), targets=[[10, 11, 12]])
    assert torch.isfinite(scores).all()


def test_a_row_can_have_another_start_and_first_token(load) -> None:
    _, model, _ = load("mbart")
    prompts = ids_of(model, 3, 12).tolist()
    batch = Batch(model, 3, 40)
    greedy = Sampling(temperature=0)
    settings: list[dict[str, int]] = [{}, {"first": 20}, {"start": 30}]
    rows = {
        batch.admit(prompt, 6, sampling=greedy, **extra): []
        for prompt, extra in zip(prompts, settings, strict=True)
    }
    while len(batch):
        for event in batch.step():
            rows[event.row].append(event.id)
    plain, first, start = rows.values()
    assert [plain] == minhub_py.generate(model, prompts[:1], 6, temperature=0)
    ids = torch.tensor(prompts)
    for text, begin, forced, row in ((first, 2, [20], 1), (start, 30, [], 2)):
        assert text[: len(forced)] == forced
        decoder = [begin, *text]
        with torch.no_grad():
            logits = model(ids[row : row + 1], torch.tensor([decoder[:-1]]))[0]
        assert logits[len(forced) :].argmax(dim=1).tolist() == text[len(forced) :]


def test_targets_have_the_vocabulary_of_the_decoder(load) -> None:
    _, model, _ = load("marian-two-sizes")
    assert (model.config.vocab_size, model.output_size) == (61, 47)
    [scores] = minhub_py.score(model, [[60]], targets=[[46, 0]])
    assert scores.shape == (2,)
    with pytest.raises(ValueError, match="targets: token IDs must be whole numbers .* 0 and 46"):
        minhub_py.score(model, [[60]], targets=[[47]])


def test_texts_beyond_the_positions_are_rejected_and_replies_end_there(load) -> None:
    _, model, _ = load("m2m100")
    long = ids_of(model, 1, 91).tolist()
    with pytest.raises(ValueError, match="a prompt of 91 tokens exceeds the model's 90 positions"):
        minhub_py.generate(model, long, 5)
    with pytest.raises(ValueError, match="a target of 92 tokens exceeds the model's 90 positions"):
        minhub_py.score(model, [long[0][:5]], targets=long)
    with pytest.raises(ValueError, match="91 positions, but this model has 90"):
        model(torch.tensor(long), torch.tensor(long))
    [text] = minhub_py.generate(model, [long[0][:5]], 200, temperature=0, eos_id=None)
    assert len(text) == 89  # after the start


@pytest.mark.parametrize("name", FEW)
def test_texts_match_without_native_code(load, name: str) -> None:
    """With a hook, `forward` computes: the same greedy texts and scores."""
    _, model, folder = load(name)
    prompts = [ids_of(model, 1, length)[0].tolist() for length in (3, 30)]
    slow = minhub_py.from_pretrained(folder, device="cpu")
    slow.encoder.layers[0].fc1.register_forward_hook(lambda *_: None)
    assert type(runner_of(slow)) is TorchRunner
    texts = minhub_py.generate(slow, prompts, 20, temperature=0, eos_id=None)
    assert texts == minhub_py.generate(model, prompts, 20, temperature=0, eos_id=None)
    for actual, expected in zip(
        *(minhub_py.score(network, prompts, targets=texts) for network in (slow, model)),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_scores_match_the_loss(load, name: str) -> None:
    """The log-probabilities of targets, and the mean of them, which is the loss in transformers."""
    reference, model, _ = load(name)
    prompts = [ids_of(model, 1, length)[0].tolist() for length in (3, 30)]
    targets = [ids_of(model, 1, length, 1)[0].tolist() for length in (40, 11)]
    scores = minhub_py.score(model, prompts, targets=targets)
    for prompt, target, actual in zip(prompts, targets, scores, strict=True):
        labels = torch.tensor([target])
        with torch.no_grad():
            logits = expected_logits(
                reference, torch.tensor([prompt]), model.decoder_inputs(labels)
            )
        expected = logits[0].log_softmax(dim=-1).gather(1, labels.T).squeeze(1)
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=LOGPROBS * logits.abs().max().item()
        )


@pytest.mark.parametrize("name", [*FEW, "bart-untied", "pegasus", "marian-separate-untied"])
def test_gradients_match_transformers(name: str) -> None:
    settings = SMALL | CASES[name]
    reference = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**settings)).double().eval()
    draw(reference)
    architecture = architecture_of(settings["model_type"])
    config: Any = read_settings(architecture.Config, settings)
    config = config.with_tensors(reference.state_dict().keys())
    model = architecture.new(config).double().eval()
    named = weights_map.to_native("bart", reference.state_dict(), config)
    model.load_state_dict({key: named[key] for key in model.state_dict()})
    source, targets = ids_of(model, 2, 30), ids_of(model, 2, 20)
    inputs = model.decoder_inputs(targets)
    ours = model(source, inputs)
    theirs = expected_logits(reference, source, inputs)
    for logits in (ours, theirs):
        cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    gradients = {key: value.grad for key, value in reference.named_parameters()}
    gradients = {key: value for key, value in gradients.items() if value is not None}
    expected = weights_map.to_native("bart", gradients, config)
    for key, parameter in model.named_parameters():
        error = (parameter.grad - expected[key]).abs().max() / expected[key].abs().max().clamp(1e-9)
        assert error < 5e-5 or expected[key].abs().max() < 1e-9, (key, error)


def test_dropout_is_active_in_training_only(load) -> None:
    _, model, folder = load("dropout")
    source, ids = ids_of(model, 1, 9), ids_of(model, 1, 5)
    again = minhub_py.from_pretrained(folder, device="cpu").train()
    assert not torch.equal(again(source, ids), again(source, ids))
    assert torch.equal(again.eval()(source, ids), model(source, ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FEW)
def test_16_bit_logits_are_close_to_float32(load, name: str, dtype: torch.dtype) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", dtype=dtype)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {dtype}
    source, ids = ids_of(model, 2, 20), ids_of(model, 2, 40)
    with torch.no_grad():
        expected = expected_logits(reference, source, ids)
        actual = read(model, source, ids, [30, 1, 7], model.new_cache(2, 40))
    assert actual.dtype == dtype
    assert ((actual.float() - expected).square().mean() / expected.square().mean()).sqrt() < 0.1
    [text] = minhub_py.generate(model, source[:1].tolist(), 5, eos_id=None)
    assert len(text) == 5


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("name", FEW)
def test_quantized_logits_are_close_to_float32(load, name: str, kind: str) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    source, ids = ids_of(model, 1, 20), ids_of(model, 1, 40)
    with torch.no_grad():
        expected, actual = expected_logits(reference, source, ids), model(source, ids)
        error = ((actual - expected).square().mean() / expected.square().mean()).sqrt()
        assert 0 < error < (0.1 if kind == "int8" else 0.8)
        runner = runner_of(model)
        assert type(runner) is NativeRunner
        cache = runner.new_cache(1, 90)
        runner.encode(source[0].tolist(), cache, 0)
        native = runner.forward({0: ids[0].tolist()}, cache, every=True)
        # its activations are quantized, too
        error = ((native - actual[0]).square().mean() / actual.square().mean()).sqrt()
        assert error < 0.1
    # the encoder's, too
    assert not [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    prompts = source.tolist()
    [text] = minhub_py.generate(model, prompts, 12, temperature=0, eos_id=None)
    assert [text] == minhub_py.generate(model, prompts, 12, temperature=0, eos_id=None, speculate=4)


@pytest.mark.parametrize("name", CASES)
def test_transformers_loads_saved_models(load, name: str, tmp_path: Path) -> None:
    reference, model, folder = load(name)
    minhub_py.save_pretrained(model, tmp_path / "saved")
    convert(open_files(folder), tmp_path / "native", to="native")
    convert(open_files(tmp_path / "native"), tmp_path / "hub")
    source, ids = ids_of(model, 1, 20), ids_of(model, 1, 30)
    with torch.no_grad():
        expected = expected_logits(reference, source, ids)
        for kind in ("saved", "hub"):
            again, report = AutoModelForSeq2SeqLM.from_pretrained(
                tmp_path / kind, output_loading_info=True
            )
            assert not report["unexpected_keys"]
            assert not report["mismatched_keys"]
            assert type(again) is type(reference)
            # computed positions, and an embedding that separate ones replace, are not saved
            unused = ("embed_positions", "model.shared")
            assert all(any(name in key for name in unused) for key in report["missing_keys"])
            assert torch.equal(expected_logits(again.eval(), source, ids), expected)
        for kind in ("saved", "native", "hub"):
            assert verify(str(tmp_path / kind))["problems"] == []
            ours = minhub_py.from_pretrained(tmp_path / kind, device="cpu")
            assert torch.equal(ours(source, ids), model(source, ids))
            assert ours.config == model.config


@pytest.mark.parametrize("name", ["bart", "pegasus", "marian", "marian-separate", "m2m100"])
def test_the_files_of_transformers_and_of_a_body_load(load, name: str, tmp_path: Path) -> None:
    """transformers' own config.json; copies of the embedding, tables of computed positions; a body
    without a head, whose bias of logits is zero.
    """
    from safetensors.torch import load_file, save_file

    reference, model, _ = load(name)
    reference.save_pretrained(tmp_path)
    source, ids = ids_of(model, 1, 20), ids_of(model, 1, 30)
    with torch.no_grad():
        expected = model(source, ids)
        assert torch.equal(minhub_py.from_pretrained(tmp_path, device="cpu")(source, ids), expected)
        tensors = load_file(tmp_path / "model.safetensors")
        for stack in ("encoder", "decoder"):
            if "model.shared.weight" in tensors:
                tensors[f"model.{stack}.embed_tokens.weight"] = tensors["model.shared.weight"] + 0
            if name in ("pegasus", "marian"):
                tensors[f"model.{stack}.embed_positions.weight"] = torch.zeros(90, 32)
            if name == "m2m100":
                tensors[f"model.{stack}.embed_positions.weights"] = torch.zeros(92, 32)
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        again = minhub_py.from_pretrained(tmp_path, device="cpu")
        assert torch.equal(again(source, ids), expected)
        body = {
            key.removeprefix("model."): tensor
            for key, tensor in tensors.items()
            if key.startswith("model.")
        }
        save_file(body, tmp_path / "model.safetensors", {"format": "pt"})
        again = minhub_py.from_pretrained(tmp_path, device="cpu")
        bias = 0 if model.final_logits_bias is None else model.final_logits_bias
        assert_close(again(source, ids), expected - bias)


@pytest.mark.parametrize("name", [*FEW, "pegasus", "dropout"])
def test_torchscript_matches_the_model(load, name: str, tmp_path: Path) -> None:
    """Any batch and lengths, gradients; parameters under the model's names; dropout in training."""
    _, model, _ = load(name)
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    assert list(dict(script.named_parameters())) == list(dict(model.named_parameters()))
    with torch.no_grad():
        for rows, length in ((1, 1), (2, 9), (3, 50)):
            source, ids = ids_of(model, rows, 51 - length), ids_of(model, rows, length)
            assert_close(script(source, ids), model(source, ids), 1e-5)
        assert torch.equal(script.train()(source, ids), script(source, ids)) == (
            not model.config.dropout
        )
    script(ids_of(model, 2, 9), ids_of(model, 2, 5)).sum().backward()
    assert all(parameter.grad is not None for parameter in script.parameters())


REFUSED = (
    ("bart", {"is_encoder_decoder": False}, "sets is_encoder_decoder to False"),
    ("bart", {"normalize_before": True}, "normalize_before contradicts"),
    ("bart", {"decoder_start_token_id": 61}, r"decoder_start_token_id \(61\) must be below"),
    ("bart", {"encoder_attention_heads": 5}, "must be a multiple of encoder_attention_heads"),
    ("bart", {"decoder_vocab_size": 70}, "a bart model has no decoder_vocab_size"),
    ("marian", {"decoder_vocab_size": 70}, r"decoder_vocab_size \(70\) must be vocab_size"),
    ("marian", {"architectures": ["MarianForSequenceClassification"]}, "has no sequence classif"),
    ("m2m100", {"activation_function": "mish"}, "activation_function 'mish' is not one of"),
)


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED, ids=str)
def test_unsupported_settings_are_rejected(
    load, tmp_path: Path, name: str, settings: Any, message: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(load(name)[2] / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SMALL | CASES[name] | settings))
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(tmp_path)


def test_a_model_without_a_start_token_needs_one(tmp_path: Path) -> None:
    """mBART's published config.json has no decoder_start_token_id: the target language is the
    start.
    """
    reference = saved("mbart", tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["decoder_start_token_id"]
    (tmp_path / "config.json").write_text(json.dumps({**settings, "bos_token_id": None}))
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    source, ids = ids_of(model, 1, 9), ids_of(model, 1, 5)
    with torch.no_grad():
        assert_close(model(source, ids), expected_logits(reference, source, ids))
    with pytest.raises(ValueError, match="has no decoder_start_token_id"):
        minhub_py.generate(model, source.tolist(), 5)


PUBLISHED = {
    "facebook/bart-base": 139_420_416,
    "facebook/bart-large": 406_291_456,
    "facebook/bart-large-cnn": 406_290_432,
    "facebook/mbart-large-cc25": 610_851_840,
    "facebook/mbart-large-50": 610_879_488,
    "facebook/m2m100_418M": 483_905_536,
    "facebook/m2m100_1.2B": 1_239_470_080,
    "facebook/nllb-200-distilled-600M": 615_073_792,
    "facebook/nllb-200-1.3B": 1_370_638_336,
    "facebook/nllb-200-3.3B": 3_344_863_232,
    # without the tables of computed positions, which are 2 * 512 * 512 and 2 * 512 * 1024 numbers
    "Helsinki-NLP/opus-mt-en-de": 74_410_496 - 2 * 512 * 512,
    "google/pegasus-xsum": 569_748_480 - 2 * 512 * 1024,
}


@pytest.mark.parametrize(("size", "parameters"), PUBLISHED.items())
def test_published_sizes_have_the_published_parameter_counts(size: str, parameters: int) -> None:
    assert inspect(size)["parameters"]["total"] == parameters


def test_distilled_sizes_have_the_shapes_of_the_others() -> None:
    assert preset("facebook/nllb-200-distilled-1.3B") == preset("facebook/nllb-200-1.3B")
    assert SMALL["vocab_size"] == VOCABULARY


def test_pegasus_x_is_rejected_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "pegasus_x"}')
    with pytest.raises(ValueError, match="attends in blocks .* Use a pegasus model, and divide"):
        minhub_py.from_pretrained(tmp_path)
