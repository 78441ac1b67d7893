"""The hidden states of texts of different lengths in training.

Packing: the texts follow each other in one sequence, which needs no padding. All operations but
attention compute each position separately. Attention is computed for each text on its own
(`PackedPast`): no text attends to another.

Skipping: the tokens before the start of an activated adapter need no backward pass, because their
keys and values are the base's.
"""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, KeyValues
from minhub_py.models.packed import PackedPast
from minhub_py.models.steps import Attend


def supports_packing(model: LanguageModel) -> bool:
    """Whether only attention without a bias connects a text's positions, as in most decoders."""
    if model.encoder_only or model.encoder_decoder:
        return False
    if any(type(layer) is not KeyValues for layer in model.cache_layout()):
        return False
    return not any(isinstance(step, Attend) and step.bias is not None for step in model.steps())


def hidden_of_texts(model: LanguageModel, texts: Sequence[Tensor]) -> Tensor:
    """`model.hidden` of texts, each (T,) token IDs, without padding: (B, longest, C), with 0 after
    the end of a text.

    ValueError: a text has more positions than the model.
    """
    lengths = [len(text) for text in texts]
    model.check(texts[lengths.index(max(lengths))].unsqueeze(0), None)
    idx = torch.cat(list(texts)).unsqueeze(0)
    hidden = model.body(idx, PackedPast(idx, lengths))
    return pad_sequence(list(hidden[0].split(lengths)), batch_first=True)


def supports_skipping(model: LanguageModel) -> bool:
    """Whether `hidden_after` can compute a model: all layers have keys and values of each position."""
    return all(isinstance(layer, KeyValues) for layer in model.cache_layout())


def hidden_after(
    model: LanguageModel, idx: Tensor, lengths: Sequence[int], starts: Sequence[int]
) -> Tensor:
    """`model.hidden` of the tokens (B, T) of texts with an activated adapter, from each start on:
    (B, T, C), else 0.

    The keys and values before a start are the base's, which need no gradients and no memory for the
    backward pass.
    """
    assert model.base is not None
    before, after = (
        max(starts),
        max(length - start for length, start in zip(lengths, starts, strict=True)),
    )
    windows = [layer.window for layer in model.cache_layout() if isinstance(layer, KeyValues)]
    limit = min(
        size for size in (model.config.context_length, *windows, sys.maxsize) if size is not None
    )
    # positions do not exist, or padding would replace others in a window
    if len(idx) > 1 and before + after > limit:
        rows = zip(idx.split(1), lengths, starts, strict=True)
        return torch.cat(
            [hidden_after(model, row, [length], [start]) for row, length, start in rows]
        )
    # Autocast computes keys, values and attention in its dtype.
    device, dtype = idx.device, next(model.parameters()).dtype
    dtype = (
        torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
    )
    like = torch.empty(0, dtype=dtype, device=device)
    cache = Cache(model.cache_layout(), len(idx), before + after, 0, like)
    cache.adapter_starts = list(starts)
    with torch.no_grad():
        if before:
            model.base.hidden(idx[:, :before], cache)
    # what follows a start, also padding, is overwritten or not attended
    cache.lengths = list(starts)
    texts = torch.arange(len(idx), device=device).unsqueeze(1)
    positions = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(
        after, device=device
    )
    inside = positions < torch.tensor(lengths, device=device).unsqueeze(1)
    hidden = model.hidden(idx[texts, positions.clamp(max=idx.size(1) - 1)], cache)
    result = hidden.new_zeros(*idx.shape, hidden.size(-1))
    return result.index_put((texts.expand_as(positions)[inside], positions[inside]), hidden[inside])
