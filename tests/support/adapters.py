"""Adapters with large random factors for small models."""

from pathlib import Path
from typing import Any

import torch

from minhub_py.loading.adapters.attach import attach, new_adapter, save_adapter
from minhub_py.loading.adapters.config import AdapterConfig


def random_adapter(model: Any, folder: Path, seed: int = 0, **settings: Any) -> Path:
    """Write an adapter for a model that changes its tokens."""
    adapter = new_adapter(
        model, AdapterConfig(**{"r": 4, "target_modules": "all-linear", **settings}), seed
    )
    generator = torch.Generator().manual_seed(seed)
    for factors in adapter.factors.values():
        factors.lora_B.data.normal_(std=0.3, generator=generator)
    save_adapter(attach(model, adapter), folder)
    return folder
