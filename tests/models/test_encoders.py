"""Each encoder compared with transformers: the same files, the same results. The cases are in
tests/support/encoder_cases.

The weights are large, so that attention is far from uniform: a wrong position, window or bias
changes the results by thousands of times the tolerance. Texts have the maximum length, beyond any
window.
"""

import json
import re
import shutil
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from decoders import KERNELS, kernel  # noqa: F401  # a fixture
from encoder_cases import ENCODERS
from guarantees import assert_same
from pairs import in_pairs, with_variants
from random_weights import draw
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import CONFIG_MAPPING, AutoConfig

import minhub_py
import weights_map
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe
from minhub_py.cli.main import main
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.encoder_runner import NativeEncoder, TorchEncoder, encoder_runner
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.registry import architecture_of

TOLERANCE = 5e-5  # of the largest value
VOCABULARY, FIRST = 61, 5  # of all cases; the first token ID that is not padding
CASES = {name: cases for cases in ENCODERS.values() for name in cases.cases}
TYPES = [model_type for cases in ENCODERS.values() for model_type in cases.small]
AUTO = {
    None: transformers.AutoModel,
    "masked_lm": transformers.AutoModelForMaskedLM,
    "sequence": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "questions": transformers.AutoModelForQuestionAnswering,
}
HEADS = list(AUTO)


def heads_of(names: Iterable[str]) -> list[tuple[str, str | None]]:
    """The names with each head that transformers has for them."""
    without = {
        name
        for name in names
        if CONFIG_MAPPING[name.partition(":")[0]]
        not in transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING
    }
    return [
        (name, head)
        for name in names
        for head in HEADS
        if head != "questions" or name not in without
    ]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name, head): the reference, and our model of the file that it saves. They are shared: do
    not change them.
    """
    created: dict[Any, Any] = {}

    def get(name: str, head: str | None = None) -> tuple[Any, Any, Path]:
        if (name, head) not in created:
            folder = tmp_path_factory.mktemp("encoder")
            reference = new_reference(name, head)
            reference.save_pretrained(folder)
            # The settings of the case, in old or new spelling, and not as transformers writes them.
            settings = {**settings_of(name, head), "architectures": [type(reference).__name__]}
            (folder / "config.json").write_text(json.dumps(settings))
            created[name, head] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return created[name, head]

    return get


def settings_of(name: str, head: str | None) -> dict[str, Any]:
    """A case's settings. The two outputs for an answer's start and end are labels in
    transformers.
    """
    settings = CASES[name].settings(name)
    labels = ("id2label", "label2id", "num_labels") if head == "questions" else ()
    return {key: value for key, value in settings.items() if key not in labels}


def new_reference(name: str, head: str | None) -> Any:
    settings = deepcopy(settings_of(name, head))  # transformers completes rope_parameters in place
    reference = AUTO[head].from_config(AutoConfig.for_model(**settings)).eval()
    draw(reference)
    return reference


def pad_of(reference: Any) -> int:
    return 1 if reference.config.model_type == "mpnet" else reference.config.pad_token_id


def inputs_of(reference: Any, length: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Token IDs and mask of three texts; the second and third are padded."""
    ids = torch.randint(
        FIRST, VOCABULARY, (3, length), generator=torch.Generator().manual_seed(seed)
    )
    mask = torch.ones_like(ids)
    mask[1, length - length // 3 :] = 0
    mask[2, 3:] = 0
    return ids.where(mask.bool(), pad_of(reference)), mask


def types_of(reference: Any, ids: torch.Tensor) -> torch.Tensor | None:
    """Random token types, if the reference has them."""
    model_type = reference.config.model_type
    count = (
        getattr(reference.config, "type_vocab_size", 1)
        if model_type not in ("mpnet", "distilbert")
        else 1
    )
    generator = torch.Generator().manual_seed(2)
    return torch.randint(count, ids.shape, generator=generator) if count > 1 else None


def output_of(
    reference: Any, ids: torch.Tensor, mask: Any = None, types: Any = None
) -> torch.Tensor:
    settings = {} if types is None else {"token_type_ids": types}
    output = reference(input_ids=ids, attention_mask=mask, **settings)
    if hasattr(output, "start_logits"):
        return torch.stack((output.start_logits, output.end_logits), dim=2)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def assert_close(
    result: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE
) -> None:
    assert result.shape == expected.shape
    assert expected.abs().max() > 0.05, "the weights are too small to show a difference"
    assert (result - expected).abs().max() <= tolerance * expected.abs().max()


# `make test` compares each configuration without a head, and each head of one configuration.
HEADS_OF_TYPES = heads_of(TYPES)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "head"),
    with_variants(heads_of(CASES), [*HEADS_OF_TYPES, *((name, None) for name in CASES)]),
)
def test_results_equal_transformers(load, name: str, head: str | None) -> None:
    """With and without padding, at the end or the beginning, and with token types."""
    reference, model, _ = load(name, head)
    ids, mask = inputs_of(reference, model.config.context_length)
    full = ids[:1]
    assert_close(model(full), output_of(reference, full))
    assert_close(model(full[:, :1]), output_of(reference, full[:, :1]))
    types = types_of(reference, ids)
    for kind in (None,) if types is None else (None, types):
        result, expected = model(ids, mask, kind), output_of(reference, ids, mask, kind)
        chosen = slice(None) if head == "sequence" else mask.bool()
        assert_close(result[chosen], expected[chosen])
    if head != "sequence":
        ids, mask = ids.flip(1), mask.flip(1)
        assert_close(model(ids, mask)[mask.bool()], output_of(reference, ids, mask)[mask.bool()])


@torch.no_grad()
@pytest.mark.parametrize("name", TYPES)
def test_padding_does_not_change_a_text(load, name: str) -> None:
    reference, model, _ = load(name)
    ids, mask = inputs_of(reference, model.config.context_length)
    for row in (1, 2):
        length = int(mask[row].sum())
        assert_close(
            model(ids, mask)[row : row + 1, :length], model(ids[row : row + 1, :length]), 1e-5
        )


@pytest.mark.parametrize("head", ["masked_lm", "sequence"])
@pytest.mark.parametrize("name", TYPES)
def test_gradients_equal_transformers(name: str, head: str) -> None:
    reference = new_reference(name, head)
    model = minhub_model(reference)
    [size] = {3 if head == "sequence" else 30}
    ids, mask = inputs_of(reference, 30)
    ids, mask = (ids, mask) if head == "sequence" else (ids[:1], mask[:1])
    for network, output in (
        (model, model(ids, mask)),
        (reference, output_of(reference, ids, mask)),
    ):
        scores = output.reshape(size, -1)
        cross_entropy(scores, torch.arange(size) % scores.size(1)).backward()
        assert any(parameter.grad is not None for parameter in network.parameters())
    gradients = {
        key: value.grad
        for key, value in reference.named_parameters(remove_duplicate=False)
        if value.grad is not None
    }
    expected = weights_map.to_native(
        architecture_of(reference.config.model_type).model_type, gradients, model.config
    )
    pad = pad_of(reference)
    for key, parameter in model.named_parameters():
        result, other = parameter.grad.clone(), expected[key].clone()
        # transformers has no gradient of padding
        if key in ("embed_tokens.weight", "embed_positions.weight"):
            result[pad], other[pad] = 0, 0
        # The gradient of a bias of keys is zero: it adds the same to all scores.
        scale = other.abs().max().clamp_min(2e-2 * gradient_scale(model))
        assert (result - other).abs().max() <= 5e-5 * scale, key


def gradient_scale(model: Any) -> float:
    return max(float(parameter.grad.abs().max()) for parameter in model.parameters())


def minhub_model(reference: Any) -> Any:
    """Our model of the reference's weights, without a file."""
    settings = {**reference.config.to_dict(), "architectures": [type(reference).__name__]}
    architecture = architecture_of(settings["model_type"])
    config = minhub_py.models.config.read(
        architecture.Config, {k: v for k, v in settings.items() if v is not None}
    )
    model = architecture.Model(config).eval()
    tensors = {
        key: value
        for key, value in reference.state_dict().items()
        if not key.endswith("position_ids")
    }
    native = dict(weights_map.to_native(architecture.model_type, tensors, config))
    model.load_state_dict({key: native[key].clone() for key in model.state_dict()})
    return model


@pytest.mark.parametrize(("name", "head"), with_variants(heads_of(CASES), HEADS_OF_TYPES))
def test_transformers_loads_what_is_saved(
    load, name: str, head: str | None, tmp_path: Path
) -> None:
    reference, model, _ = load(name, head)
    minhub_py.save_pretrained(model, tmp_path)
    again, report = AUTO[head].from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is type(reference)
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert all("pooler." in key for key in report["missing_keys"])
    if head is not None:
        assert not report["missing_keys"]
    expected = reference.state_dict()
    for key, tensor in again.state_dict().items():
        assert key in report["missing_keys"] or torch.equal(tensor, expected[key]), key
    ids, mask = inputs_of(reference, model.config.context_length)
    with torch.no_grad():
        assert_close(output_of(again.eval(), ids, mask), output_of(reference, ids, mask), 1e-6)
    assert again.config.num_labels == reference.config.num_labels
    assert again.config.id2label == reference.config.id2label
    assert (
        minhub_py.from_pretrained(tmp_path, device="cpu").config.to_hub() == model.config.to_hub()
    )


def rewritten(folder: Path, target: Path, architecture: str, rename: Any) -> Path:
    """A copy of a folder with other tensor names; None drops a tensor."""
    tensors = {
        rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors.pop(None, None)
    save_file(tensors, target / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**settings, "architectures": [architecture]}))
    return target


@torch.no_grad()
@pytest.mark.parametrize("name", TYPES)
def test_names_with_and_without_the_prefix(load, name: str, tmp_path: Path) -> None:
    reference, model, folder = load(name, "masked_lm")
    prefix, full = reference.base_model_prefix + ".", type(reference).__name__
    base = full.removesuffix("ForMaskedLM") + "Model"
    ids = inputs_of(reference, 30)[0][:1]
    expected = model.hidden_states(ids)
    renames = {
        "body": (base, lambda key: key.removeprefix(prefix) if key.startswith(prefix) else None),
        "body-with-prefix": (base, lambda key: key if key.startswith(prefix) else None),
        "unused-head": (base, lambda key: key),
        "head-without-prefix": (full, lambda key: key.removeprefix(prefix)),
        "body-with-wrong-class": (
            full,
            lambda key: key.removeprefix(prefix) if key.startswith(prefix) else None,
        ),
    }
    for kind, (architecture, rename) in renames.items():
        (tmp_path / kind).mkdir()
        other = minhub_py.from_pretrained(
            rewritten(folder, tmp_path / kind, architecture, rename), device="cpu"
        )
        assert torch.equal(other.hidden_states(ids), expected), kind
        assert (other.head is None) == (kind != "head-without-prefix")
    assert torch.equal(
        minhub_py.from_pretrained(tmp_path / "head-without-prefix", device="cpu")(ids), model(ids)
    )


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in TYPES
        if name not in ("modernbert", "nomic_bert", "jina_embeddings_v3", "eurobert")
    ],
)
def test_gamma_and_beta_are_weight_and_bias(load, name: str, tmp_path: Path) -> None:
    _, model, folder = load(name, "masked_lm")

    def rename(key: str) -> str:
        return key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )

    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    old = minhub_py.from_pretrained(rewritten(folder, tmp_path, architecture, rename), device="cpu")
    assert "gamma" in "".join(load_file(tmp_path / "model.safetensors"))
    ids = torch.arange(FIRST, 30).unsqueeze(0)
    assert torch.equal(old(ids), model(ids))
    assert inspect(str(tmp_path))["parameters"] == inspect(str(folder))["parameters"]


@pytest.mark.parametrize("head", ["sequence", "tokens"])
@pytest.mark.parametrize("name", TYPES)
def test_a_missing_classification_head_is_refused_by_name(
    load, name: str, head: str, tmp_path: Path
) -> None:
    _, _, folder = load(name)
    reference, _, complete = load(name, head)
    architecture = type(reference).__name__
    rewritten(folder, tmp_path, architecture, lambda key: key)
    with pytest.raises(
        ValueError, match=f"has no weights of the head of {architecture}, which config.json names"
    ):
        minhub_py.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"has no weights of the head of {architecture}"):
        inspect(str(tmp_path))
    missing = "classifier.out_proj.bias" if head == "sequence" else "classifier.bias"
    names = load_file(complete / "model.safetensors")
    missing = missing if missing in names else "classifier.bias"
    rewritten(complete, tmp_path, architecture, lambda key: None if key == missing else key)
    with pytest.raises(ValueError, match=f"missing: {missing}"):
        minhub_py.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", [name for name in TYPES if name != "eurobert"])  # a single tensor
def test_an_incomplete_masked_lm_head_is_refused_by_name(load, name: str, tmp_path: Path) -> None:
    reference, _, folder = load(name, "masked_lm")
    prefix = reference.base_model_prefix + "."
    missing = next(
        key for key in sorted(load_file(folder / "model.safetensors")) if not key.startswith(prefix)
    )
    rewritten(
        folder, tmp_path, type(reference).__name__, lambda key: None if key == missing else key
    )
    with pytest.raises(ValueError, match=f"missing: {missing}"):
        minhub_py.from_pretrained(tmp_path)
    [problem, *_] = verify(str(tmp_path))["problems"]
    assert f"missing: {missing}" in problem


REFUSED = [refusal for cases in ENCODERS.values() for refusal in cases.refused]


@pytest.mark.parametrize(
    ("name", "settings", "message"), REFUSED, ids=[str(refusal[:2]) for refusal in REFUSED]
)
def test_unsupported_settings_are_refused(
    load, tmp_path: Path, name: str, settings: Any, message: str
) -> None:
    _, _, folder = load(name)
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    before = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**before, **settings}))
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(tmp_path)


def test_the_discriminator_of_electra_has_no_head(tmp_path: Path) -> None:
    """Its pretraining head detects replaced tokens; only the body is used."""
    settings = AutoConfig.for_model(**CASES["electra"].settings("electra"))
    reference = transformers.ElectraForPreTraining(settings).eval()
    draw(reference)
    reference.save_pretrained(tmp_path)
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert model.head is None
    ids = inputs_of(reference, 30)[0][:1]
    with torch.no_grad():
        assert_close(model(ids), reference.electra(ids)[0])


# Runners


def texts_of(reference: Any, model: Any) -> tuple[list[list[int]], list[list[int]] | None]:
    """Texts of different lengths, the first of one token and one of the maximum; and their token
    types.
    """
    longest = model.config.context_length
    generator = torch.Generator().manual_seed(3)
    texts = [
        torch.randint(FIRST, VOCABULARY, (length,), generator=generator).tolist()
        for length in (1, 3, longest, 17, 9, longest - 1)
    ]
    types = [types_of(reference, torch.tensor(ids)) for ids in texts]
    return texts, None if types[0] is None else [row.tolist() for row in types]


@pytest.mark.parametrize(("kernel", "name"), in_pairs(KERNELS, list(CASES)), indirect=["kernel"])
def test_the_native_encoder(load, kernel, name: str) -> None:  # noqa: F811
    """The hidden states of `forward`; a text in a batch is bitwise identical to a single text."""
    reference, model, _ = load(name)
    runner = encoder_runner(model)
    assert type(runner) is NativeEncoder
    texts, types = texts_of(reference, model)
    for kinds in (None,) if types is None else (None, types):
        result = runner.hidden_states(texts, kinds)
        assert_close(result, TorchEncoder(model).hidden_states(texts, kinds))
        pairs = zip(texts, kinds or texts, strict=True)
        single = [
            runner.hidden_states([ids], None if kinds is None else [row]) for ids, row in pairs
        ]
        assert torch.equal(torch.cat(single), result)
        assert torch.equal(
            runner.hidden_states(texts[::-1], kinds and kinds[::-1]), torch.cat(single[::-1])
        )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", TYPES)
def test_threads_do_not_change_hidden_states(load, name: str, threads: int) -> None:
    reference, model, _ = load(name)
    texts, types = texts_of(reference, model)
    expected = encoder_runner(model).hidden_states(texts, types)
    torch.set_num_threads(threads)
    assert_same(encoder_runner(model).hidden_states(texts, types), expected)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("name", TYPES)
def test_quantized_encoders(load, name: str, kind: str) -> None:
    reference, model, folder = load(name)
    quantized = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    texts, types = texts_of(reference, model)
    expected = TorchEncoder(model).hidden_states(texts, types)
    runner = encoder_runner(quantized)
    result = runner.hidden_states(texts, types)
    # Between the runners the sums of rounded activations differ by a unit of the rounding.
    assert_close(result, TorchEncoder(quantized).hidden_states(texts, types), 5e-3)
    error = ((result - expected).square().mean() / expected.square().mean()).sqrt()
    assert 0 < error < (0.1 if kind == "int8" else 0.8)
    single = [runner.hidden_states([ids], types and [types[row]]) for row, ids in enumerate(texts)]
    assert_same(torch.cat(single), result)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", TYPES)
def test_encoders_in_16_bits(load, name: str, dtype: torch.dtype) -> None:
    reference, model, folder = load(name)
    half = minhub_py.from_pretrained(folder, device="cpu", dtype=dtype)
    texts, types = texts_of(reference, model)
    expected = TorchEncoder(model).hidden_states(texts, types)
    for runner in (encoder_runner(half), TorchEncoder(half)):
        result = runner.hidden_states(texts, types)
        assert result.dtype == torch.float32
        assert ((result - expected).square().mean() / expected.square().mean()).sqrt() < 0.08


def test_runners_refuse_invalid_texts(load) -> None:
    _, model, _ = load("bert")
    for runner in (encoder_runner(model), TorchEncoder(model)):
        with pytest.raises(
            ValueError, match="BERT: a text has 51 tokens, but this model has 50 positions"
        ):
            runner.hidden_states([[7], [8] * 51])
        with pytest.raises(
            ValueError, match="token IDs must be between 0 and 60, but range from 7 to 61"
        ):
            runner.hidden_states([[7], [8, 61]])
        with pytest.raises(ValueError, match="token types must be between 0 and 1"):
            runner.hidden_states([[7], [8, 9]], [[0], [0, 2]])
        with pytest.raises(ValueError, match="a text must have as many token types as tokens"):
            runner.hidden_states([[7], [8, 9]], [[0], [0]])


@pytest.mark.parametrize("name", ["roberta", "roberta:pad-4", "xlm-roberta", "camembert", "mpnet"])
def test_a_padding_token_within_a_text_has_no_position(load, name: str) -> None:
    reference, model, _ = load(name)
    ids = inputs_of(reference, 20)[0][:1]
    ids[0, 7] = pad_of(reference)
    with torch.no_grad():
        expected = output_of(reference, ids)[0]
        assert_close(model(ids)[0], expected)
    assert_close(encoder_runner(model).hidden_states(ids.tolist()), expected)


def test_masks_and_types_must_fit(load) -> None:
    _, model, _ = load("bert")
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(ValueError, match=r"BERT: attention_mask must be \(1, 3\), not \(1, 2\)"):
        model(ids, torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"BERT: token_type_ids must be \(1, 3\), not \(3,\)"):
        model(ids, token_type_ids=torch.zeros(3).long())
    with pytest.raises(ValueError, match="51 positions, but this model has 50"):
        model(torch.full((1, 51), 7))


# Calls that predict the next token

NEXT_TOKEN = {
    "generate()": lambda model, tokenizer: minhub_py.generate(model, [[5, 6]], 3),
    "stream()": lambda model, tokenizer: list(minhub_py.stream(model, [5, 6], 3)),
    "score()": lambda model, tokenizer: minhub_py.score(model, [[5, 6]]),
    "word_logprobs()": lambda model, tokenizer: minhub_py.word_logprobs(
        model, tokenizer, ["a rose"]
    ),
    "target_logprobs()": lambda model, tokenizer: minhub_py.target_logprobs(
        model, tokenizer, ["a"], ["rose"]
    ),
    "next_tokens()": lambda model, tokenizer: minhub_py.next_tokens(model, tokenizer, ["a"]),
    "logprob_matrix()": lambda model, tokenizer: minhub_py.logprob_matrix(
        model, tokenizer, "a rose"
    ),
    "logit_lens()": lambda model, tokenizer: minhub_py.logit_lens(model, tokenizer, "a rose"),
    "Chat()": minhub_py.Chat,
}


@pytest.mark.parametrize("call", NEXT_TOKEN)
def test_calls_that_predict_the_next_token_refuse_encoders(load, call: str) -> None:
    _, model, _ = load("bert", "masked_lm")
    message = (
        rf"^{re.escape(call)}: BERT is a text encoder, .*: use embed\(\) or masked_tokens\(\)$"
    )
    with pytest.raises(ValueError, match=message):
        NEXT_TOKEN[call](model, train_byte_level_bpe(["a rose is a rose"], 260))


def test_commands_that_predict_the_next_token_refuse_encoders(load, tmp_path: Path) -> None:
    _, _, folder = load("roberta", "masked_lm")
    here = tmp_path / "encoder"
    shutil.copytree(folder, here)
    train_byte_level_bpe(["a rose is a rose is a rose"], 61 + 200).save(
        str(here / "tokenizer.json")
    )
    texts = tmp_path / "texts.csv"
    texts.write_text("text\na rose\n")
    for arguments in (
        ["generate", str(here), "rose"],
        ["score", str(here), str(texts)],
        ["generate", str(here), str(texts), "--out", str(tmp_path / "out.csv")],
        ["score", str(here), str(texts), "--out", str(tmp_path / "out.csv")],
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, (arguments, result.output)
        message = " ".join(result.output.split())
        assert (
            "is a text encoder, which does not predict the next token: use minhub embed" in message
        ), result.output


def test_training_refuses_a_new_encoder(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a rose is a rose is a rose. " * 100)
    settings = {"family": "bert", "tokenizer": "characters", "steps": 2}
    with pytest.raises(
        ValueError, match="fine-tunes one .* with the objective masked, labels, pairs or triplets"
    ):
        minhub_py.train(tmp_path / "text.txt", tmp_path / "run", progress=False, **settings)


# Export, reports, entry points


@pytest.mark.parametrize(
    ("name", "head"), with_variants(HEADS_OF_TYPES, [(name, "masked_lm") for name in TYPES])
)
def test_torchscript_of_encoders(load, name: str, head: str | None, tmp_path: Path) -> None:
    reference, model, _ = load(name, head)
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    assert list(dict(script.named_parameters())) == list(dict(model.named_parameters()))
    with torch.no_grad():
        for rows, length in ((1, 1), (2, 9), (3, model.config.context_length)):
            ids = inputs_of(reference, length)[0][:rows]
            assert_close(script(ids), model(ids), 1e-5)
    script(ids).sum().backward()
    assert all(
        parameter.grad is not None
        for name, parameter in script.named_parameters()
        if "types" not in name
    )


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("modernbert:every-second", "sequence"),
        ("bert:untied", "masked_lm"),
        ("electra:untied", "masked_lm"),
    ],
)
def test_torchscript_of_other_heads(load, name: str, head: str, tmp_path: Path) -> None:
    """With the mean of all tokens, and with an untied decoder."""
    reference, model, _ = load(name, head)
    save_torchscript(model, tmp_path / "model.pt")
    ids = inputs_of(reference, 40)[0]
    with torch.no_grad():
        assert_close(torch.jit.load(tmp_path / "model.pt")(ids), model(ids), 1e-5)


@pytest.mark.parametrize(("name", "head"), heads_of(TYPES))
def test_inspect_and_verify(load, name: str, head: str | None) -> None:
    _, model, folder = load(name, head)
    report = inspect(str(folder))
    assert report["context"] == model.config.context_length
    assert report["parameters"]["total"] == sum(
        parameter.numel() for parameter in model.parameters()
    )
    stored = load_file(folder / "model.safetensors")
    assert {tensor["hub"] for tensor in report["tensors"]} == set(stored)
    operations = {tensor["operation"] for tensor in report["tensors"]}
    assert operations <= {"same", "drop", "split along 0", "unfuse heads of 3 parts"}
    assert verify(str(folder))["problems"] == []


PUBLISHED = [size for cases in ENCODERS.values() for size in cases.published.items()]


@pytest.mark.parametrize(("size", "parameters"), PUBLISHED)
def test_published_sizes(size: str, parameters: int) -> None:
    assert inspect(size)["parameters"]["total"] == parameters


@pytest.mark.parametrize("name", TYPES)
def test_models_are_created_from_a_config_and_from_a_model_type(load, name: str) -> None:
    _, model, folder = load(name)
    fresh = minhub_py.from_config(folder)
    assert fresh.training
    assert fresh.config == model.config
    settings = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 61,
    }
    assert minhub_py.from_config(name, **settings).config.to_hub()["model_type"] == name
    with pytest.raises(ValueError, match=r", not gpt2: use from_pretrained\(\) or from_config\(\)"):
        minhub_py.gpt2_from_pretrained(folder)
