"""The profile of the C decoder: every operation with the products that it computes. No test asserts
a time.
"""

import math
from pathlib import Path

import pytest
import torch
from decoders import ROUNDING, new, some_ids
from encoders import write_encoder
from needs import need
from torch import nn
from translation_models import save_languages

from minhub_py import from_pretrained
from minhub_py.inference.native.library import PEAKS, UnsupportedError, library
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.profile import CONVERSION, OUTSIDE, Profiler, peak_rates
from minhub_py.models.base import LanguageModel

TOKENS, NEW = 140, 3  # two calls of the decoder


@pytest.fixture(autouse=True)
def _decoder() -> None:
    need("decoder")


def matrices(model: nn.Module) -> int:
    """The number of weights in the products of a block."""
    return sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))


def test_the_products_of_layers_are_their_weights_times_tokens() -> None:
    model = new("gptneo-untied")
    head = model.lm_head.weight.numel()
    expected = matrices(model) - head
    profiler, ids = Profiler(model), some_ids(model, TOKENS)
    for rows, tokens, heads in (
        (profiler.prompt(ids), TOKENS, 1),
        (profiler.decode(ids, NEW), NEW, NEW),
    ):
        layers = [row for row in rows if row.weights and not row.name.startswith("Logits")]
        assert sum(row.products for row in layers) == expected * tokens
        logits = next(row for row in rows if row.name.startswith("Logits"))
        assert logits.products == head * heads
        assert logits.bytes == 4 * head * heads
        reads = NEW if tokens == NEW else 2
        assert sum(row.bytes for row in layers) == 4 * expected * reads


def test_a_model_with_an_encoder_has_no_profile(tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder")
    save_languages(tmp_path / "encoder-decoder", ["eng_Latn", "deu_Latn"])
    for name in ("encoder", "encoder-decoder"):
        model = from_pretrained(tmp_path / name, device="cpu", dtype="float32")
        with pytest.raises(UnsupportedError, match="it has an encoder"):
            Profiler(model)


def test_attention_counts_the_positions_of_its_window() -> None:
    model = new("gptneo-local-first")
    profiler, ids = Profiler(model), some_ids(model, TOKENS)
    size, window = model.config.hidden_size, model.config.window_size
    distances = torch.arange(TOKENS + NEW).unsqueeze(1) - torch.arange(TOKENS + NEW)
    attended = (distances >= 0).sum(1) + ((distances >= 0) & (distances < window)).sum(1)
    for rows, part in (
        (profiler.prompt(ids), attended[:TOKENS]),
        (profiler.decode(ids, NEW), attended[TOKENS:]),
    ):
        attention = [row.products for row in rows if row.name == "Attend"]
        assert attention == [2 * size * int(part.sum())]


def test_operations_have_the_names_of_steps_and_layers_in_order() -> None:
    rows = Profiler(new("gpt2-untied")).prompt([1, 2, 3])
    assert [row.name for row in rows] == [
        "Embed",
        "Norm",
        "Linear h.attn.c_attn",
        "Attend",
        "Add h.attn.c_proj",
        "Linear h.mlp.c_fc",
        "Add h.mlp.c_proj",
        "Logits lm_head",
        CONVERSION,
        OUTSIDE,
    ]


@pytest.mark.parametrize(
    ("dtype", "factors"),
    [("float32", "float32"), ("int8", "int16"), ("int8+bfloat16", "int8"), ("nf4", "int16")],
)
def test_rows_name_weights_and_factors(dtype: str, factors: str) -> None:
    model = new("gpt2-heads-of-64", dtype)
    rows = Profiler(model).prompt(some_ids(model, 20))
    layer = next(row for row in rows if row.name == "Linear h.mlp.c_fc")
    assert (layer.weights, layer.factors) == (dtype.removesuffix("+bfloat16"), factors)
    conversion = next(row for row in rows if row.name == CONVERSION)
    assert (conversion.seconds > 0) == (dtype != "float32")
    assert all(math.isfinite(row.seconds) for row in rows)


def test_a_profile_leaves_the_runner_without_measurements_and_results_unchanged() -> None:
    model: LanguageModel = new("gpt2-heads-of-64")
    ids = some_ids(model, 20)
    profiler, runner = Profiler(model), NativeRunner(model)
    profiler.prompt(ids)
    assert profiler.runner.times is None
    expected = runner.forward({0: ids}, runner.new_cache(1, 20)).clone()
    for times in (None, profiler.times):
        profiler.runner.times = times
        found = profiler.runner.forward({0: ids}, profiler.runner.new_cache(1, 20))
        assert torch.equal(found, expected)


def test_each_kernel_counts_its_products(kernel: str) -> None:
    decoder = library()
    for number, factors in enumerate(PEAKS):
        products = decoder.add_products(number, 100)
        assert decoder.add_products(number, 300) == 3 * products
        assert (products > 0) == (factors != "bfloat16" or kernel in ROUNDING)
    assert set(peak_rates(decoder)) >= set(PEAKS) - {"bfloat16"}
