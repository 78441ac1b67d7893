"""The model at the start of a run: of a checkpoint of the run, of the model to fine-tune, or with
random weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

from minhub_py.inference.quantize import QuantizedLinear
from minhub_py.loading.adapters.heads import with_head
from minhub_py.loading.facts import collect, fit
from minhub_py.loading.files import ModelFiles, open_files
from minhub_py.loading.pretrained import load
from minhub_py.models.base import LanguageModel
from minhub_py.models.registry import ENTRIES, Architecture
from minhub_py.models.skeleton import skeleton
from minhub_py.system.spelling import setting
from minhub_py.training import adapter_run, example_run
from minhub_py.training.errors import read_object, reading
from minhub_py.training.settings import Settings


def load_model(
    settings: Settings,
    start: ModelFiles | None,
    newest: Path | None,
    tokenizer: Tokenizer,
    labels: Sequence[str] | None = None,
) -> tuple[Architecture, LanguageModel]:
    """The model of the checkpoint `newest`, or of `start`, or else a new model with random weights.

    labels: of a classification head, or () for regression.
    """
    if settings.lora and start is not None:
        architecture, base = load_base(start, settings)
        if labels is not None:
            torch.manual_seed(settings.seed)
            base = with_head(base, labels)
        model = adapter_run.adapted_model(
            base,
            settings.lora,
            newest or start.adapter,
            tokenizer,
            start=settings.start,
            revision=settings.revision,
            seed=settings.seed,
        )
        return architecture, model
    if newest is not None:
        read_object(newest / "config.json")
        with reading(newest / "model.safetensors"):
            return load_files(open_files(newest))
    if start is not None and labels is not None:
        return example_run.load_classifier(start, settings, labels)
    if start is not None:
        return load_files(start, settings)
    entry = ENTRIES[settings.family or "gpt2"]
    torch.manual_seed(settings.seed)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    config = settings.fresh_config(entry, vocab_size, tokenizer.token_to_id("<|endoftext|>"))
    return entry.architecture, entry.architecture.new(config)


def load_base(files: ModelFiles, settings: Settings) -> tuple[Architecture, LanguageModel]:
    """The frozen model of a run that trains an adapter. Matrices are in the run's dtype, or
    quantized.
    """
    if settings.quantize is None:
        return load_files(files, settings)
    plain = replace(files, adapters={}, adapter=None)
    model = load(plain, device="cpu", dtype="float32", quantize=settings.quantize)
    settings.tuned_config(files.architecture, model.config)  # raises errors
    for module in model.modules():
        if isinstance(module, QuantizedLinear) and settings.dtype == "bfloat16":
            module.bfloat16()  # the dtype of the dequantized weight
    return files.architecture, model


def load_files(
    files: ModelFiles, settings: Settings | None = None
) -> tuple[Architecture, LanguageModel]:
    """A checkpoint's model in float32, with the dropout of `settings`."""
    facts = collect(files)
    architecture, model = facts.architecture, fit(facts)
    if files.adapter is not None and not (settings and settings.lora):
        raise ValueError(
            f"{files.adapter} is an adapter: continue it with {setting('lora', 16)}, or merge it "
            "with minhub convert --merge"
        )
    if settings is not None:
        model = skeleton(architecture.new, settings.tuned_config(architecture, model.config))
    tensors = facts.tensors
    # Contiguous float32 tensors train fastest. Embeddings, norms and factors are float32 in every
    # run.
    is_frozen = settings is not None and settings.lora and settings.dtype == "bfloat16"
    matrices = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if type(module) is nn.Linear and is_frozen
    }
    state = {
        name: (
            tensors[name]
            .to(torch.bfloat16 if name in matrices else torch.float32, copy=True)
            .contiguous()
        )
        for name in model.state_dict()
    }
    model.load_state_dict(state, assign=True)
    return architecture, model
