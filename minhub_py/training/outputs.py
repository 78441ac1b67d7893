"""A run's outputs: the model in Hub layout, or its adapter, and generated samples."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

import weights_map
from minhub_py.checkpoints.embedding_files import embedding_files
from minhub_py.checkpoints.tokenizers.tokenizer import encode_prompt, tokenizer_files
from minhub_py.checkpoints.writing import write_checkpoint
from minhub_py.inference.generate import generate
from minhub_py.loading.files import file_settings
from minhub_py.models.base import LanguageModel
from minhub_py.models.config import with_older_rope
from minhub_py.models.encoder import channels_of
from minhub_py.training import adapter_run


def write_model(
    folder: Path,
    model: LanguageModel,
    model_type: str,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer,
) -> None:
    """Write a model in Hub layout, or its adapter.

    model_type: of the weight table.    state: the native tensors; empty for an adapter, which is
    written as it is.
    """
    companions = dict(tokenizer_files(tokenizer))
    if model.embedding_settings is not None:
        companions |= embedding_files(model.embedding_settings, channels_of(model))
    if not state:
        adapter_run.save(model, folder, companions)
        return
    tensors = weights_map.to_hub(model_type, state, model.config)
    hub_config = file_settings(
        {**with_older_rope(model.config, model.config.to_hub()), "dtype": "float32"}
    )
    # a single file can be replaced atomically
    size = sum(tensor.nbytes for tensor in state.values()) + 1
    write_checkpoint(folder, tensors, hub_config, companions=companions, max_shard_size=size)


def sample_text(
    model: LanguageModel, tokenizer: Tokenizer, prompt: str, tokens: int, seed: int
) -> str:
    """The prompt with generated text: `tokens` tokens, with the same random numbers at each call."""
    model.eval()
    [new] = generate(model, [encode_prompt(tokenizer, prompt)], tokens, seed=seed, temperature=0.8)
    return prompt + tokenizer.decode(new)
