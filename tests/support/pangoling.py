"""Results of the R package pangoling 1.0.3 for a small masked language model, which R's functions
must reproduce.

`pangoling_results` computes them with pangoling itself, which needs reticulate and transformers 4;
TARGET_LOGPROBS and MASK_LOGPROBS store them.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from needs import RSCRIPT
from paths import PROGRAMS

from minhub_py import from_config

CONTEXTS = ["The", "The", "The apple does not fall,", "", "A traveler lost"]
TARGETS = ["apple", "pears", "souvenir", "so far", "the table"]
AFTER = [
    "doesn't fall far from the tree.",
    "doesn't fall far from the tree.",
    "traveler",
    ", so the tree.",
    "",
]
SENTENCES = ["The apple doesn't fall far from the [MASK].", "The [MASK] lost the so[MASK] [MASK]"]
# By pangoling 1.0.3 with transformers 4.57.1: the logprob of each target, and of each token of the
# vocabulary at each mask of SENTENCES.
TARGET_LOGPROBS = [-4.301360, -7.254117, -12.288405, -7.844102, -10.012606]
MASK_LOGPROBS = [
    [
        -3.907828, -5.277353, -4.801899, -3.951579, -2.778468, -4.586088, -4.303611, -3.497133, -3.257278, -1.855007,
        -5.928874, -3.797631, -4.548331, -2.817221, -3.752361, -3.294015, -3.538702, -4.568789, -3.888535, -3.408089,
        -3.527272, -2.351011, -4.118317, -5.427836, -2.698351, -2.088386, -4.043661, -4.373019, -3.881754,
    ],
    [
        -3.901925, -5.269525, -4.791282, -3.952168, -2.773432, -4.589504, -4.299240, -3.501311, -3.256063, -1.856961,
        -5.929458, -3.801799, -4.539639, -2.817333, -3.754605, -3.286522, -3.542128, -4.572602, -3.886252, -3.403002,
        -3.531916, -2.354707, -4.115358, -5.426386, -2.702110, -2.087836, -4.038391, -4.365709, -3.884210,
    ],
    [
        -3.901857, -5.269533, -4.791142, -3.952273, -2.773327, -4.589568, -4.299152, -3.501281, -3.256050, -1.857004,
        -5.929666, -3.801739, -4.539428, -2.817303, -3.754724, -3.286516, -3.542215, -4.572729, -3.886388, -3.402996,
        -3.531932, -2.354739, -4.115320, -5.426418, -2.702227, -2.087741, -4.038401, -4.365742, -3.884132,
    ],
    [
        -3.903232, -5.273899, -4.796185, -3.950287, -2.775892, -4.588471, -4.300299, -3.501469, -3.256160, -1.855623,
        -5.928810, -3.800967, -4.544052, -2.817687, -3.753110, -3.288068, -3.541683, -4.571808, -3.888248, -3.404720,
        -3.531511, -2.353333, -4.116104, -5.426092, -2.700908, -2.087882, -4.039532, -4.368637, -3.883812,
    ],
]  # fmt: skip


def masked_model(vocab_size: int) -> Any:
    """The model. Its weights are the same with every version of PyTorch and NumPy."""
    model = from_config(
        "bert",
        architectures=["BertForMaskedLM"],
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=40,
    ).eval()
    generator = np.random.RandomState(7)  # its numbers are frozen, unlike default_rng's
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(generator.standard_normal(parameter.shape) * 0.4))
    return model


def pangoling_results(folder: Path) -> dict[str, Any]:
    """pangoling's results for a checkpoint: logprobs of TARGETS, and the vocabulary's logprobs at
    each mask.
    """
    arguments = {"contexts": CONTEXTS, "targets": TARGETS, "after": AFTER, "sentences": SENTENCES}
    command = [str(RSCRIPT), str(PROGRAMS / "pangoling.R"), str(folder), json.dumps(arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
