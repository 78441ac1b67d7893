"""The sinusoidal decoder compared with torch.nn.TransformerEncoder, in files as christianb93's MLLM
writes them.
"""

import json
import pickle
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import succeeded
from guarantees import RUNNER
from needs import need_kernels
from references import assert_close, assert_identical, read
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import minhub_py
import weights_map
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.native.library import library
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.models.sinusoidal import SinusoidalConfig

LENGTH = 40
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 44,
    "max_position_embeddings": 48,
}
CASES: dict[str, dict[str, Any]] = {
    "as-in-mllm": {},
    "one-layer": {"num_hidden_layers": 1},
    "two-heads": {"num_attention_heads": 2},
    "one-head": {"num_attention_heads": 1},
    "odd-heads": {"hidden_size": 30, "num_attention_heads": 6},
    "narrow-inside": {"intermediate_size": 7},
    "gelu": {"hidden_act": "gelu"},
    "epsilon": {"layer_norm_eps": 0.1},
    "no-dropout": {"dropout": 0.0, "attention_dropout": 0.0},
    "longer": {"max_position_embeddings": 77},
    "other-vocabulary": {"vocab_size": 130},
    "two-layers": {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4},
}


class Reference(nn.Module):
    """PyTorch's encoder with a causal mask; parameters and buffers have MLLM's names."""

    def __init__(self, config: SinusoidalConfig) -> None:
        super().__init__()
        context, size = config.max_position_embeddings, config.hidden_size
        self._word_embedding = nn.Embedding(config.vocab_size, size)
        self._pe_embedding = nn.Module()
        table = [
            [[p / 10000 ** (i // 2 * 2 / size) + torch.pi / 2 * (i % 2) for i in range(size)]]
            for p in range(context)
        ]  # a cosine is a sine with another phase
        self._pe_embedding.register_buffer(
            "_pe", torch.tensor(table, dtype=torch.float64).sin().float()
        )
        layer = nn.TransformerEncoderLayer(
            size,
            config.num_attention_heads,
            config.intermediate_size,
            config.dropout,
            config.hidden_act,
            config.layer_norm_eps,
        )
        self._transformer = nn.TransformerEncoder(
            layer, config.num_hidden_layers, enable_nested_tensor=False
        )
        self._linear = nn.Linear(size, config.vocab_size)
        self.register_buffer(
            "_cached_mask", nn.Transformer.generate_square_subsequent_mask(context)
        )
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():  # large, so that attention is far from uniform
            for name, parameter in self.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.dim() == 1:
                    noise = 0.4 * noise + ("norm" in name and name.endswith("weight"))
                elif "embedding" not in name:
                    noise *= 1.7 * parameter.shape[1] ** -0.5
                parameter.copy_(noise)

    def forward(self, idx: Tensor) -> Tensor:
        x = self._word_embedding(idx.t()) + self._pe_embedding._pe[: idx.size(1)]
        x = self._transformer(x, mask=self._cached_mask[: idx.size(1), : idx.size(1)])
        return self._linear(x).transpose(0, 1)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """load(name): the reference, and our model of its model.pt. They are shared: do not change
    them.
    """
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Reference, Any, Path]:
        if name not in loaded:
            folder, settings = tmp_path_factory.mktemp(name), {**SMALL, **CASES[name]}
            reference = Reference(SinusoidalConfig(**settings)).eval()
            torch.save(reference.state_dict(), folder / "model.pt")
            (folder / "config.json").write_text(
                json.dumps({"model_type": "sinusoidal", **settings})
            )
            with torch.inference_mode(False):  # independent of the order of tests
                loaded[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return loaded[name]

    return get


def ids_of(rows: int, length: int = LENGTH) -> Tensor:
    return torch.randint(61, (rows, length), generator=torch.Generator().manual_seed(rows))


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_logits_match_pytorch(load: Any, name: str) -> None:
    """Logits of one row and of three; in one call, and with a cache in chunks of several sizes."""
    reference, model, _ = load(name)
    for rows in (1, 3):
        ids = ids_of(rows)
        expected = reference(ids)
        assert expected.abs().max() > 3
        assert_close(model(ids), expected)
        for pieces in ([1], [3, 1, 11, 1, 2]):
            assert_close(read(model, ids, pieces, model.new_cache(rows, LENGTH)), expected)


@torch.inference_mode()
@pytest.mark.parametrize("kernels", ["plain", "avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_native_logits_match_forward(load: Any, name: str, kernels: str) -> None:
    """The reference's logits, with each kernel; bitwise identical in one call, in chunks, and with
    other rows.
    """
    need_kernels(kernels)
    try:
        reference, model, _ = load(name)
        runner = runner_of(model)
        assert type(runner) is NativeRunner
        ids = ids_of(1)[0].tolist()
        result = runner.forward({0: ids}, runner.new_cache(1, LENGTH), every=True).clone()
        assert_close(result, reference(torch.tensor([ids]))[0])
        cache = runner.new_cache(1, LENGTH)
        pieces = [
            runner.forward({0: ids[start:end]}, cache, every=True).clone()
            for start, end in pairwise((0, 13, 14, 15, LENGTH))
        ]
        assert torch.equal(torch.cat(pieces), result)
        cache = runner.new_cache(3, LENGTH)
        first = runner.forward({0: ids[:5], 1: ids[:30], 2: ids[:2]}, cache).clone()
        assert torch.equal(first, result[[4, 29, 1]])
    finally:
        library().choose(None)


@torch.no_grad()
def test_a_state_dict_alone_is_a_model(load: Any, tmp_path: Path) -> None:
    """model.pt as MLLM's train.py writes it, without a config.json: 8 heads; other sizes follow
    from the tensors.
    """
    reference, model, _ = load("as-in-mllm")
    torch.save(reference.state_dict(), tmp_path / "model.pt")
    result = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert {name: getattr(result.config, name) for name in SMALL} == SMALL
    assert_close(result(ids_of(2)), reference(ids_of(2)))
    assert torch.equal(
        minhub_py.from_pretrained(tmp_path, device="cpu")(ids_of(2)), model(ids_of(2))
    )


@torch.no_grad()
def test_saved_models_load_in_the_reference(load: Any, tmp_path: Path) -> None:
    """Saved under MLLM's names, without the mask."""
    reference, model, _ = load("two-heads")
    minhub_py.save_pretrained(model, tmp_path)
    again = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert again.config == model.config
    assert torch.equal(again(ids_of(1)), model(ids_of(1)))
    written = weights_map.to_hub("sinusoidal", again.state_dict(), again.config)
    other = Reference(again.config)
    assert other.load_state_dict(dict(written), strict=False) == (["_cached_mask"], [])
    assert_identical(other.state_dict(), reference.state_dict())


@torch.no_grad()
def test_the_positions_of_a_file_count(load: Any, tmp_path: Path) -> None:
    reference, model, folder = load("two-heads")
    state = reference.state_dict()
    state["_pe_embedding._pe"] = state["_pe_embedding._pe"].flip(0)
    torch.save(state, tmp_path / "model.pt")
    (tmp_path / "config.json").symlink_to(folder / "config.json")
    other = Reference(model.config).eval()
    other.load_state_dict(state)
    result = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert_close(result(ids_of(2)), other(ids_of(2)))
    runner = runner_of(result)
    read = runner.forward({0: ids_of(1)[0].tolist()}, runner.new_cache(1, LENGTH), every=True)
    assert_close(read, other(ids_of(1))[0])


def test_gradients_match_pytorch() -> None:
    config = SinusoidalConfig(**SMALL)
    reference = Reference(config).double().eval()
    model = minhub_py.from_config("sinusoidal", **SMALL).double().eval()
    names = dict(weights_map.to_native("sinusoidal", reference.state_dict(), config))
    model.load_state_dict(names)
    ids = ids_of(2)
    cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    cross_entropy(reference(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = {key: value.grad for key, value in reference.named_parameters()}
    gradients["_pe_embedding._pe"] = reference.state_dict()["_pe_embedding._pe"]  # which has none
    expected = weights_map.to_native("sinusoidal", gradients, config)
    for key, parameter in model.named_parameters():
        assert (parameter.grad - expected[key]).abs().max() < 1e-9 * expected[key].abs().max(), key


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_logits_are_close_to_float32(load: Any, dtype: torch.dtype) -> None:
    reference, _, folder = load("as-in-mllm")
    model = minhub_py.from_pretrained(folder, device="cpu", dtype=dtype)
    expected, actual = reference(ids_of(2)), model(ids_of(2))
    assert actual.dtype == dtype
    assert ((actual.float() - expected).square().mean() / expected.square().mean()).sqrt() < 0.08


@torch.no_grad()
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_logits_are_close_to_float32(load: Any, kind: str) -> None:
    reference, _, folder = load("as-in-mllm")
    model = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    assert type(runner_of(model)) is RUNNER
    expected, actual = reference(ids_of(1)), model(ids_of(1))
    assert (
        0
        < ((actual - expected).square().mean() / expected.square().mean()).sqrt()
        < (0.1 if kind == "int8" else 0.6)
    )


def test_torchscript_matches_the_model(load: Any, tmp_path: Path) -> None:
    """Any batch and length, gradients, dropout in training; the file contains the positions."""
    _, model, _ = load("as-in-mllm")
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    assert list(dict(script.named_parameters())) == list(dict(model.named_parameters()))
    with torch.no_grad():
        for rows, length in ((1, 1), (2, 9), (3, LENGTH)):
            assert_close(script(ids_of(rows, length)), model(ids_of(rows, length)), 1e-5)
    script.train()
    assert not torch.equal(script(ids_of(1)), script(ids_of(1)))
    script(ids_of(2)).sum().backward()
    assert all(parameter.grad is not None for parameter in script.parameters())


def test_generated_text(load: Any) -> None:
    """Greedy text equals the reference's, and rows of a batch equal single runs."""
    reference, model, _ = load("as-in-mllm")
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17)]
    texts = minhub_py.generate(model, prompts, 20, temperature=0, eos_id=None)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(20):
                ids.append(int(reference(torch.tensor([ids]))[0, -1].argmax()))
        assert text == ids[len(prompt) :]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_attention_heads": 5},
            r"hidden_size \(32\) must be even, and a multiple of num_attention_heads \(5\)",
        ),
        ({"hidden_size": 33, "num_attention_heads": 3}, "must be even"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings True is not one of False"),
        ({"norm_first": True}, "a setting 'norm_first' that this implementation does not know"),
        (
            {"max_position_embeddings": 50},
            r"positions.weight is \(48, 32\), the config says \(50, 32\)",
        ),
    ],
)
def test_unsupported_settings_are_rejected(
    load: Any, tmp_path: Path, settings: Any, message: str
) -> None:
    (tmp_path / "model.pt").symlink_to(load("as-in-mllm")[2] / "model.pt")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "sinusoidal", **SMALL, **settings})
    )
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(tmp_path)


def test_the_architecture_can_be_trained(tmp_path: Path) -> None:
    """Training from scratch with the settings of the registry, and fine-tuning of the result."""
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose is a rose. " * 200)
    small = {
        "layers": 1,
        "width": 16,
        "heads": 2,
        "context": 16,
        "batch": 4,
        "tokenizer": "characters",
        "seed": 1,
    }
    run = minhub_py.train(
        text,
        tmp_path / "run",
        family="sinusoidal",
        steps=40,
        evaluate_every=20,
        **small,
        progress=False,
    )
    assert run.losses[-1]["held_out_loss"] < run.losses[0]["held_out_loss"]
    model = minhub_py.from_pretrained(tmp_path / "run", device="cpu")
    assert type(runner_of(model)) is RUNNER
    minhub_py.train(
        text,
        tmp_path / "tuned",
        start=str(tmp_path / "run"),
        steps=2,
        batch=4,
        context=16,
        progress=False,
    )


def test_commands_train_compare_inspect_verify_and_generate(tmp_path: Path) -> None:
    """minhub train, resume, generate and verify; positions are not trained and not counted as
    parameters.
    """
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("a rose is a rose is a rose. " * 200)
    options = [
        "--family",
        "sinusoidal",
        "--layers",
        1,
        "--width",
        16,
        "--context",
        16,
        "--batch",
        4,
        "--threads",
        1,
        "--steps",
        6,
        "--tokenizer",
        "bpe",
        "--vocab-size",
        260,
        "--sample",
        "a rose",
        "--sample-tokens",
        5,
        "--set",
        "num_attention_heads=2",
    ]
    shown = succeeded("train", text, "--out", run, *options).stderr
    model = minhub_py.from_pretrained(run, device="cpu")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"Sinusoidal, {parameters:,} parameters, on cpu" in shown
    assert f"Sinusoidal, {parameters:,} parameters, float32" in (run / "README.md").read_text()
    assert json.loads(succeeded("compare", run, "--json").stdout)[0]["parameters"] == parameters
    assert (
        json.loads(succeeded("inspect", run, "--json").stdout)["parameters"]["total"] == parameters
    )
    assert json.loads(succeeded("verify", run, "--json").stdout)["problems"] == []
    assert (model.config.num_attention_heads, model.config.max_position_embeddings) == (2, 16)
    assert (run / "samples.txt").read_text().count("a rose") >= 2
    succeeded("train", "--resume", run, "--steps", 8)
    assert succeeded("generate", run, "a rose", "-n", 40, "--seed", 1).stdout.startswith("a rose")


# The tokenizer: vocab.dat and rules.dat

RULES = [
    "t h",
    "th e</w>",
    "i n",
    "in g</w>",
    "e r</w>",
    "e r",
    "th er",
    "a n",
    "an d</w>",
    "s t",
    "th e",
    "o th",
    "oth er</w>",
]
LETTERS = [
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"{letter}</w>" for letter in "abcdefghijklmnopqrstuvwxyz.,é"),
]
SYMBOLS = [
    "</unk>",
    *LETTERS,
    "th",
    "the</w>",
    "in",
    "ing</w>",
    "er",
    "er</w>",
    "ther",
    "an",
    "and</w>",
    "st",
    "the",
    "oth",
    "other</w>",
]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    (tmp_path / "vocab.dat").write_text(
        "".join(f"{symbol}\n" for symbol in SYMBOLS), encoding="utf-8"
    )
    (tmp_path / "rules.dat").write_text("".join(f"{rule}\n" for rule in RULES), encoding="utf-8")
    return tmp_path


def by_the_rules(text: str) -> list[int]:
    """Apply each rule in order to each word, from the left."""
    ids = []
    for word in text.split():
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        for left, right in map(str.split, RULES):
            at = 0
            while at < len(symbols) - 1:
                if symbols[at : at + 2] == [left, right]:
                    symbols[at : at + 2] = [left + right]
                at += 1
        ids += [SYMBOLS.index(symbol) if symbol in SYMBOLS else 0 for symbol in symbols]
    return ids


def test_words(words: Path) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(words))
    text = "the other and  another string,\n then\tneither thing stands. é the"
    assert tokenizer.encode(text).ids == by_the_rules(text)
    assert tokenizer.encode("the").tokens == ["the</w>"]
    assert tokenizer.decode(tokenizer.encode(text).ids) == " ".join(text.split())
    assert tokenizer.encode("ß tßh ßt").ids == by_the_rules("ß tßh ßt")
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        text = "".join(
            "thering and os. "[i] for i in torch.randint(16, (60,), generator=generator).tolist()
        )
        assert tokenizer.encode(text).ids == by_the_rules(text)


def test_words_are_saved_as_tokenizer_json(words: Path, load: Any, tmp_path: Path) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(words))
    minhub_py.save_pretrained(load("as-in-mllm")[1], tmp_path / "saved", tokenizer)
    again = minhub_py.tokenizer_from_pretrained(str(tmp_path / "saved"))
    assert again.encode("the other string").ids == tokenizer.encode("the other string").ids


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rules.dat", None, "copy its rules.dat"),
        ("rules.dat", b"", "is empty"),
        ("rules.dat", b"t h e\n", "a pair of symbols on each line"),
        ("rules.dat", b"t h\nt z\n", r"lacks a symbol of the pair 't z'"),
        ("vocab.dat", b"</unk>\n\nt\n", "a symbol and a pair"),
        ("vocab.dat", b"</unk>\nt\n", "lacks a symbol"),
        ("vocab.dat", pickle.dumps(["</unk>", "t"]), "Pickles are not supported"),
    ],
)
def test_corrupt_word_bpe_files_are_rejected(
    words: Path, name: str, content: bytes | None, message: str
) -> None:
    (words / name).unlink() if content is None else (words / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        minhub_py.tokenizer_from_pretrained(str(words))
