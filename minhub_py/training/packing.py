"""Packing: texts of different lengths follow each other in one sequence, which needs no padding.

All operations but attention compute each position separately. Attention is computed for each text on its own
(models/cache.py), so that no text attends to another.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Past
from minhub_py.models.steps import Attend


def supports_packing(model: LanguageModel) -> bool:
    """Whether only attention without a bias connects the positions of a text, as in most decoders."""
    if model.encoder_only or model.encoder_decoder:
        return False
    if any(type(layer) is not KeyValues for layer in model.cache_layout()):
        return False
    return not any(isinstance(step, Attend) and step.bias is not None for step in model.steps())


def hidden_of_texts(model: LanguageModel, texts: Sequence[Tensor]) -> Tensor:
    """`model.hidden` of texts, each (T,) token IDs, without padding: (B, longest, C), with 0 after the end of a text.

    ValueError: a text has more positions than the model.
    """
    lengths = [len(text) for text in texts]
    model.check(texts[lengths.index(max(lengths))].unsqueeze(0), None)
    idx = torch.cat(list(texts)).unsqueeze(0)
    hidden = model.body(idx, Past(idx, lengths=lengths))
    return pad_sequence(list(hidden[0].split(lengths)), batch_first=True)
