"""Adapters whose logits PEFT has computed on another processor. The module needs the real data."""

import numpy as np
import pytest
import torch
from needs import package
from peft_files import logits
from real_data import real_data

from minhub_py import from_pretrained

FOLDER = real_data("peft")
# The largest error of our float32 logits with AVX-512, AVX2 and without vector instructions, and of
# our float64 logits, from the logits that PEFT computed in float32 on another processor (x 1e-7):
#                    gpt2                                  llama
#                    AVX-512  AVX2  none  float64          AVX-512  AVX2  none  float64
#   lora_default         1.0   0.9   1.2      0.8              1.1   1.1   1.1      0.8
#   lora_all_linear      6.7   7.9  12.8      1.6              3.3   3.4   3.5      3.8
#   rslora               6.7   7.9  12.8      1.6              3.3   3.4   3.5      3.8
#   dora                 1.6   1.2   1.9      1.3              3.1   3.4   3.1      3.8
#   regex_layer1         0.9   0.9   1.2      1.1              0.9   0.6   0.9      1.0
#   patterns             2.2   1.6   2.4      1.8              0.7   1.0   0.9      0.7
#   save_head            2.2   2.4   2.7      2.2              2.8   2.8   2.8      2.5
# Values above 3 are rounding errors of sums: in float64 our logits are those of PEFT within 5e-16,
# and on the same processor in float32 within 3e-7. PEFT's own float32 logits here have the same
# errors, up to 12.3 for gpt2's rslora.
CASES = [
    "lora_default",
    "lora_all_linear",
    "rslora",
    "dora",
    "regex_layer1",
    "patterns",
    "save_head",
]
# Tolerances of float32 and float64 that exceed 3e-7.
ROUNDED = {
    ("gpt2", "lora_all_linear"): (1e-6, 3e-7),
    ("gpt2", "rslora"): (1e-6, 3e-7),
    ("llama", "dora"): (4e-7, 4e-7),
    ("llama", "lora_all_linear"): (4e-7, 4e-7),
    ("llama", "rslora"): (4e-7, 4e-7),
}


@pytest.mark.parametrize("base", ["gpt2", "llama"])
def test_published_adapters_have_the_logits_of_peft(base: str) -> None:
    ids = torch.from_numpy(np.load(FOLDER / "ids.npy")).long().view(1, -1)
    model = from_pretrained(
        FOLDER / base / "base", adapter={case: FOLDER / base / case for case in CASES}
    )
    double = from_pretrained(
        FOLDER / base / "base", adapter={case: FOLDER / base / case for case in CASES}
    )
    double.double()
    for case in CASES:
        expected = torch.from_numpy(np.load(FOLDER / base / case / "logits.npy"))
        adapted = model.adapter(case)
        rounded, exact = ROUNDED.get((base, case), (3e-7, 3e-7))
        assert (logits(adapted, ids) - expected).abs().max() <= rounded
        assert (logits(double.adapter(case).double(), ids) - expected).abs().max() <= exact
    expected = torch.from_numpy(np.load(FOLDER / base / "base_logits.npy"))
    assert (logits(model, ids) - expected).abs().max() <= 3e-7
    assert model.adapter(None) is model


@pytest.mark.filterwarnings("ignore")  # PEFT's warnings about transformers
@pytest.mark.parametrize("base", ["gpt2", "llama"])
def test_published_adapters_equal_peft_on_this_processor(base: str) -> None:
    """In float64 up to the last digits, in float32 within 3e-7."""
    peft = package("peft")
    import transformers

    ids = torch.from_numpy(np.load(FOLDER / "ids.npy")).long().view(1, -1)
    for case in CASES:
        model = from_pretrained(FOLDER / base / "base", adapter=FOLDER / base / case)
        reference = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / base / "base")
        reference = peft.PeftModel.from_pretrained(reference, FOLDER / base / case).eval()
        assert (logits(model, ids) - logits(reference, ids)).abs().max() <= 3e-7
        assert (logits(model.double(), ids) - logits(reference.double(), ids)).abs().max() <= 1e-15
