"""Each position mechanism at more than 256 positions: parity of `forward` and of the C decoder with
transformers.

Above 256, bfloat16 does not represent every integer, so that positions or distances in 16 bits are
wrong. The other tests have texts of 70 tokens, which cannot show it.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from encoder_cases import ENCODERS
from needs import need
from references import CASES, VOCABULARY, assert_close, read, save_reference
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import minhub_py
from minhub_py.inference.encoder_runner import NativeEncoder
from minhub_py.inference.native_runner import NativeRunner

LENGTH = 300
# Mechanism -> a case of tests/support/cases, and the setting for the largest number of positions.
DECODERS = {
    "rotary": ("llama", "max_position_embeddings"),
    "rotary-linear": ("llama-linear", "max_position_embeddings"),
    "rotary-dynamic": ("llama-dynamic", "max_position_embeddings"),
    "rotary-llama3": ("llama-llama3", "max_position_embeddings"),
    "rotary-yarn": ("llama-yarn", "max_position_embeddings"),
    "rotary-yarn-growth": ("ministral3", "max_position_embeddings"),
    "rotary-longrope": ("phi3-part", "max_position_embeddings"),
    "rotary-longrope-short": ("phi3-short", "max_position_embeddings"),
    "rotary-proportional": ("gemma4_text-ropes", "max_position_embeddings"),
    "rotary-partial": ("gpt_neox", "max_position_embeddings"),
    "rotary-interleaved": ("gptj", "n_positions"),
    "rotary-no-layers": ("smollm3", "max_position_embeddings"),
    "alibi": ("bloom", "seq_length"),
    "alibi-six-heads": ("bloom-six-heads", "seq_length"),
    "alibi-rounded": ("falcon-rw-twelve-heads", "max_position_embeddings"),
    "sinusoids": ("xglm", "max_position_embeddings"),
    "learned": ("gpt2", "n_positions"),
    "learned-offset": ("opt", "max_position_embeddings"),
}
ENCODER_CASES = {
    "learned": ("bert", {"max_position_embeddings": LENGTH}),
    "learned-counted": ("roberta", {"max_position_embeddings": LENGTH + 2}),
    "relative-buckets": ("mpnet", {"max_position_embeddings": LENGTH + 2}),
    "rotary": ("modernbert", {"max_position_embeddings": LENGTH}),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """load(name): transformers' model and the folder with its files."""
    loaded: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in loaded:
            case, context = DECODERS[name]
            settings = {**CASES[case].settings(case), context: LENGTH}
            if name == "rotary-longrope-short":
                settings["original_max_position_embeddings"] = LENGTH
            folder = tmp_path_factory.mktemp(name)
            loaded[name] = save_reference(settings, folder), folder
        return loaded[name]

    return get


PARTS = slice(70), slice(-40, None)  # the first and the last positions


def ids_of(first: int = 0) -> torch.Tensor:
    return torch.randint(first, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def error_of(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((actual.float() - expected).square().mean() / expected.square().mean()).sqrt())


def assert_equal_errors(actual: torch.Tensor, expected: torch.Tensor, growth: float) -> None:
    """The rounding of the last 40 positions is at most `growth` times the rounding of the first
    ones.
    """
    first, last = (error_of(actual[part], expected[part]) for part in PARTS)
    assert first < 0.08
    assert last < growth * first


def decoded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits (T, V) of the C decoder, in chunks and for single tokens."""
    need("decoder")
    runner, position, logits = NativeRunner(model), 0, []
    cache = runner.new_cache(1, LENGTH)
    for size in (250, 1, 1, 30, 1, LENGTH):
        chunk = ids[0, position : position + size].tolist()
        logits.append(runner.forward({0: chunk}, cache, every=True, exact=True).clone())
        position += len(chunk)
    return torch.cat(logits)


@pytest.mark.parametrize("heads", [1, 3, 4, 6, 71])
def test_slopes_have_the_largest_exponent_of_mpt(heads: int) -> None:
    """transformers' model ignores alibi_bias_max; its function of the slopes does not."""
    for largest in (8, 16):
        expected = build_mpt_alibi_tensor(heads, 2, largest)[:, 0, 0]
        slopes = minhub_py.from_config(
            "mpt", d_model=heads, n_heads=heads, n_layers=1, vocab_size=5,
            attn_config={"alibi_bias_max": largest},
        ).alibi.slopes  # fmt: skip
        torch.testing.assert_close(-torch.tensor(slopes), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_logits_match_transformers_beyond_256_positions(load: Any, name: str) -> None:
    reference, folder = load(name)
    model, ids = minhub_py.from_pretrained(folder, device="cpu"), ids_of()
    expected = reference(ids).logits
    assert_close(model(ids), expected)
    assert_close(read(model, ids, [250, 1, 1, 48], model.new_cache(1, LENGTH)), expected)
    assert_close(decoded(model, ids), expected[0])


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_bfloat16_logits_are_close_to_float32_beyond_256_positions(load: Any, name: str) -> None:
    """Of a model with the same, rounded weights."""
    reference, folder = load(name)
    model, ids = minhub_py.from_pretrained(folder, device="cpu", dtype=torch.bfloat16), ids_of()
    rounded = deepcopy(reference)
    for parameter in rounded.parameters():
        parameter.copy_(parameter.bfloat16())
    expected = rounded(ids).logits[0]
    # its queries become longer with the position
    growth = 5 if name == "rotary-yarn-growth" else 2.2
    forward, result = model(ids)[0], decoded(model, ids)
    assert_equal_errors(forward, expected, growth)
    assert_equal_errors(
        read(model, ids, [250, 1, 1, 48], model.new_cache(1, LENGTH))[0], expected, growth
    )
    # Without products in bfloat16, the decoder rounds keys and values only. Its errors are then
    # smaller than those of `forward`, but grow with the number of keys.
    errors = [
        [error_of(logits[part], expected[part]) for part in PARTS] for logits in (result, forward)
    ]
    if not all(error < other for error, other in zip(*errors, strict=True)):
        assert_equal_errors(result, expected, growth)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODER_CASES)
def test_encoders_match_transformers_beyond_256_positions(tmp_path: Path, name: str) -> None:
    need("decoder")
    case, changes = ENCODER_CASES[name]
    [cases] = [cases for cases in ENCODERS.values() if case in cases.cases]
    reference = save_reference({**cases.settings(case), **changes}, tmp_path, "")
    model, ids = minhub_py.from_pretrained(tmp_path, device="cpu"), ids_of(5)  # without padding
    expected = reference(input_ids=ids).last_hidden_state
    assert_close(model.hidden_states(ids), expected)
    assert_close(NativeEncoder(model).hidden_states(ids.tolist()), expected[0])
    half = minhub_py.from_pretrained(tmp_path, device="cpu", dtype=torch.bfloat16)
    assert error_of(half.hidden_states(ids)[0], expected[0]) < 0.08
    assert error_of(NativeEncoder(half).hidden_states(ids.tolist()), expected[0]) < 0.08


@torch.no_grad()
@pytest.mark.parametrize("distance", [20, 128])
def test_relative_buckets_of_an_encoder_decoder_match_transformers(
    tmp_path: Path, distance: int
) -> None:
    """Both sides have more than 256 positions."""
    settings = {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 44,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": distance,
    }
    reference = save_reference(settings, tmp_path, "ForSeq2SeqLM")
    assert isinstance(reference, transformers.T5ForConditionalGeneration)
    source, ids = ids_of(), ids_of().flip(1)
    expected = reference(input_ids=source, decoder_input_ids=ids).logits
    for dtype in (torch.float32, torch.bfloat16):
        model = minhub_py.from_pretrained(tmp_path, device="cpu", dtype=dtype)
        result = model(source, ids)
        need("decoder")
        runner = NativeRunner(model)
        cache = runner.new_cache(1, LENGTH)
        runner.encode(source[0].tolist(), cache, 0)
        native = runner.forward({0: ids[0].tolist()}, cache, every=True, exact=True)
        if dtype == torch.float32:
            assert_close(result, expected)
            assert_close(native, expected[0])
        else:  # T5 does not scale the scores, so that rounding changes them more
            assert error_of(result[0], expected[0]) < 0.12
            assert error_of(native, expected[0]) < 0.12
