"""Trained models in GGUF compared with transformers and llama.cpp: make test-real.

The files are described in tests/support/real_models.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from needs import needs
from paths import TEXT
from real_models import MODELS, Real, path_of
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from minhub_py import from_pretrained, generate, save_pretrained, score, tokenizer_from_pretrained
from minhub_py.inference.quantize import Quantized

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PAGE = TEXT.read_text(encoding="utf-8")[:5000]
PROMPT = "The three largest cities of France are"


@pytest.fixture(scope="module", params=MODELS)
def real(request: pytest.FixtureRequest) -> Real:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def file(real: Real) -> Path:
    return path_of(real)


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    """The model as transformers reads the same file."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    )
    # Its from_pretrained() would require the package accelerate.
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.float().load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # which is tied
    return model.eval()


@pytest.fixture(scope="module")
def ours(file: Path) -> Any:
    return from_pretrained(file, device="cpu", quantize="none")


@pytest.fixture(scope="module")
def ids(file: Path) -> list[int]:
    return tokenizer_from_pretrained(str(file)).encode(PAGE).ids


def log_probabilities(logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of each token after the first."""
    return logits[:-1].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]


def perplexity(scores: torch.Tensor) -> float:
    return (-scores.double().mean()).exp().item()


@torch.no_grad()
def test_logits_and_perplexity(theirs: Any, ours: Any, ids: list[int]) -> None:
    logits = theirs(torch.tensor([ids])).logits[0]
    assert (ours(torch.tensor([ids]))[0] - logits).abs().max() <= 5e-5 * logits.abs().max()
    expected = log_probabilities(logits, ids)
    [actual] = score(ours, [ids])
    assert (actual - expected).abs().max() < 1e-2
    print(f"perplexity {perplexity(actual):.6f}, in transformers {perplexity(expected):.6f}")
    assert perplexity(actual) == pytest.approx(perplexity(expected), rel=1e-3)


@torch.no_grad()
def test_greedy_text(theirs: Any, ours: Any, file: Path) -> None:
    tokenizer = tokenizer_from_pretrained(str(file))
    prompt = tokenizer.encode(PROMPT).ids
    expected = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None
    )
    [actual] = generate(ours, [prompt], 40, temperature=0, eos_id=None)
    print(tokenizer.decode(actual))
    assert actual == expected[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(actual)


# --- llama.cpp

# tokens of the text: more than Gemma's window, but few, since every type is tested
LONG, SHORT = 600, 200
SHOWN = 100  # the last tokens, whose logits are compared
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K"]


def requantize(file: Path, out: Path, kind: str) -> Path:
    """Write a file with other types of weights, by llama.cpp's name of a mix of types or F32."""
    import llama_cpp

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.allow_requantize, settings.nthread = True, torch.get_num_threads()
    settings.ftype = getattr(
        llama_cpp, f"LLAMA_FTYPE_{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"
    )
    assert llama_cpp.llama_model_quantize(str(file).encode(), str(out).encode(), settings) == 0
    return out


@contextmanager
def llama_cpp_of(file: Path) -> Iterator[Any]:
    from peers.engines import LlamaCpp

    theirs = LlamaCpp(str(file), torch.get_num_threads(), cache="float32")
    yield theirs
    theirs.close()


def last_logits(theirs: Any, ids: list[int]) -> torch.Tensor:
    """llama.cpp's logits after a text's last tokens, in one call."""
    context = theirs.context(1, 1024)
    theirs.api.llama_memory_clear(theirs.api.llama_get_memory(context), True)
    batch = theirs.api.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for position, id in enumerate(ids):
        (
            batch.token[position],
            batch.pos[position],
            batch.n_seq_id[position],
            batch.seq_id[position][0],
        ) = (id, position, 1, 0)
        batch.logits[position] = position >= len(ids) - SHOWN
    assert theirs.api.llama_decode(context, batch) == 0
    rows = [
        theirs.api.llama_get_logits_ith(context, position)
        for position in range(len(ids) - SHOWN, len(ids))
    ]
    logits = torch.stack(
        [torch.from_numpy(theirs.np.ctypeslib.as_array(row, (theirs.size,)).copy()) for row in rows]
    )
    theirs.api.llama_batch_free(batch)
    return logits


def in_8_bits(x: torch.Tensor) -> torch.Tensor:
    """Round inputs of quantized products as llama.cpp does: 32 numbers share a scale."""
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return ((blocks / scale.clamp(min=1e-30)).round() * scale.half()).flatten(-2)


ROUNDED = {
    "F32": lambda x: x,
    "F16": lambda x: x.half().float(),
    "BF16": lambda x: x.bfloat16().float(),
}


def cost_of_rounding(
    model: Any, ids: list[int], exact: torch.Tensor, kind: str, monkeypatch: pytest.MonkeyPatch
) -> float:
    """Mean difference from the log-probabilities `exact` with inputs rounded as in llama.cpp.

    The result differs from llama.cpp's, since after a few layers the two round differently. The
    distance is similar.
    """
    linear, gelu, rounded = F.linear, F.gelu, ROUNDED.get(kind, in_8_bits)
    with monkeypatch.context() as patch:
        patch.setattr(F, "linear", lambda x, weight, bias=None: linear(rounded(x), weight, bias))
        # A table of llama.cpp has GELU in float16.
        patch.setattr(
            F, "gelu", lambda x, **options: gelu(x.half().float(), **options).half().float()
        )
        actual = log_probabilities(model(torch.tensor([ids]))[0, -SHOWN:], ids[-SHOWN:])
    return (actual - exact).abs().mean().item()


@pytest.fixture(scope="module")
def in_float32(file: Path) -> Iterator[Path]:
    """The file with its weights in float32, by llama.cpp."""
    with TemporaryDirectory() as folder:  # pytest would keep a gigabyte
        yield requantize(file, Path(folder) / "model.gguf", "F32")


@needs("llama_cpp")
@torch.no_grad()
def test_llama_cpp_in_float32(
    real: Real,
    ours: Any,
    file: Path,
    in_float32: Path,
    ids: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only file for which llama.cpp does not round inputs, except Gemma's GELU."""
    model = from_pretrained(in_float32, device="cpu")
    for (name, own_value), other in zip(
        ours.state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(own_value, other), name
    prompt, ids = tokenizer_from_pretrained(str(file)).encode(PROMPT).ids, ids[:LONG]
    with llama_cpp_of(in_float32) as theirs:
        assert generate(model, [prompt], 40, temperature=0, eos_id=None) == theirs.generate(
            [prompt], 40
        )
        expected = last_logits(theirs, ids)
    actual = model(torch.tensor([ids]))[0, -SHOWN:]
    apart = ((actual - expected).abs().max() / expected.abs().max()).item()
    own_value, other = (log_probabilities(logits, ids[-SHOWN:]) for logits in (actual, expected))
    difference = (own_value - other).abs().mean().item()
    rounding = cost_of_rounding(model, ids, own_value, "F32", monkeypatch)
    print(
        f"F32: logits differ by {apart:.1e} of the largest, log-probabilities by {difference:.1e}"
        f" on average (GELU: {rounding:.1e}); perplexity {perplexity(own_value):.5f}, in llama.cpp"
        f" {perplexity(other):.5f}"
    )
    assert apart < (5e-5 if rounding == 0 else 2e-3)
    assert difference < 5e-5 + 1.5 * rounding
    assert perplexity(own_value) == pytest.approx(
        perplexity(other), rel=1e-5 if rounding == 0 else 2e-4
    )


@needs("llama_cpp")
@torch.no_grad()
@pytest.mark.parametrize("kind", ["as published", *TYPES])
def test_llama_cpp_on_the_same_file(
    kind: str, file: Path, in_float32: Path, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published file, and llama.cpp's file of each type: weights equal llama.cpp's.

    Logits differ: llama.cpp rounds the inputs of products to the weights' 16 bits, or to 8.
    """
    prompt, ids = tokenizer_from_pretrained(str(file)).encode(PROMPT).ids, ids[:SHORT]
    with TemporaryDirectory() as folder:
        if kind != "as published":
            file = requantize(in_float32, Path(folder) / "model.gguf", kind)
        model = from_pretrained(file, device="cpu", quantize="none")
        back = from_pretrained(requantize(file, Path(folder) / "back.gguf", "F32"), device="cpu")
        for (name, actual), other in zip(
            model.state_dict().items(), back.state_dict().values(), strict=True
        ):
            assert torch.equal(actual, other), name
        # uses the blocks of the file, if it has some
        packed = from_pretrained(file, device="cpu", dtype="float32", quantize="auto")
        [auto], [text] = (
            score(packed, [ids]),
            generate(packed, [prompt], 40, temperature=0, eos_id=None),
        )
        with llama_cpp_of(file) as theirs:
            [expected] = theirs.generate([prompt], 40)
            other = log_probabilities(last_logits(theirs, ids), ids[-SHOWN:])
    actual = log_probabilities(model(torch.tensor([ids]))[0, -SHOWN:], ids[-SHOWN:])
    assert (auto[-SHOWN + 1 :] - actual).abs().max() < 1e-2
    difference = (actual - other).abs().mean().item()
    rounding = cost_of_rounding(model, ids, actual, kind, monkeypatch)
    same = next(
        (
            position
            for position, pair in enumerate(zip(text, expected, strict=True))
            if len(set(pair)) > 1
        ),
        40,
    )
    print(
        f"{kind}: {same} of 40 greedy ids are llama.cpp's; log-probabilities differ by"
        f" {difference:.4f} on average, rounding alone makes {rounding:.4f}; perplexity"
        f" {perplexity(actual):.4f}, in llama.cpp {perplexity(other):.4f}"
    )
    if same < 40:  # then the two tokens are about equally likely
        ahead = model(torch.tensor([prompt + text[:same]]))[0, -1]
        assert (ahead[text[same]] - ahead[expected[same]]).abs() < 10 * rounding
    assert 0 < difference < 2 * rounding
    assert perplexity(actual) == pytest.approx(perplexity(other), rel=0.05)


# --- Tokenizer, quantization


def test_tokenizer(file: Path, tmp_path: Path) -> None:
    """transformers' tokenizer of the file, and of the saved files."""
    ours = tokenizer_from_pretrained(str(file))
    save_pretrained(from_pretrained(file, quantize="none"), tmp_path, ours)
    for theirs in (
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        for text in (
            PAGE,
            "In 1234 it's 56.78 €!\n\n\tÀ bientôt, 漢字 😀",
            "<|im_start|>user\nHi<|im_end|>\n",
        ):
            assert ours.encode(text).ids == theirs(text)["input_ids"]


@torch.no_grad()
def test_what_quantization_costs(real: Real, file: Path, ours: Any, ids: list[int]) -> None:
    """A model in the file's blocks has the perplexity of the unpacked weights, if activations are
    not rounded to 8 bits.
    """
    complete = perplexity(score(ours, [ids])[0])
    print(f"float32 {complete:9.4f}")
    for kind, most in real.loss.items():
        model = from_pretrained(file, device="cpu", quantize=kind)
        result = perplexity(score(model, [ids])[0])
        print(f"{kind:7} {result:9.4f} {100 * (result / complete - 1):+6.2f} %")
        assert result < most * complete
        if kind == "auto":
            exact = from_pretrained(file, device="cpu", dtype="float32", quantize="auto")
            assert perplexity(score(exact, [ids])[0]) < 1.0001 * complete
            assert {
                part.kind for part in model.modules() if isinstance(part, Quantized)
            } <= real.types
