"""Pairs of texts for encoder-decoders: the encoder reads the prompt, and the loss is of the
completion.

The tokenizer adds its tokens to the prompt, such as T5's </s>. With a translation model that has
tokens of languages, `source` and `target` are the codes of a row's languages (src_lang and tgt_lang
of tokenizer_config.json by default). Prompt and completion have at most `context` tokens each.
"""

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.chat.templates import ChatTemplate
from minhub_py.checkpoints.tokenizers.languages import languages_of
from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
from minhub_py.checkpoints.tokenizers.surroundings import stored_settings
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.training.examples import Encoded, ExampleEncoder, text
from minhub_py.training.rows import Row

LANGUAGES = {"source": "src_lang", "target": "tgt_lang"}  # columns -> tokenizer_config.json


class PairEncoder(ExampleEncoder):
    """Encodes rows with prompt and completion for an encoder-decoder."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, eos: int | None, context: int
    ) -> None:
        super().__init__(tokenizer, template, eos, context)
        self.languages = languages_of(tokenizer)
        self.defaults = stored_settings(tokenizer)

    def encode(self, objective: str, row: Row) -> list[Encoded]:
        """The pair of a row as one sequence, whose first target ends the prompt. ValueError: a
        value is missing or has another type, or a language is unknown.
        """
        if self.languages is None:
            self.note_unused(row, "prompt", "completion")
        else:
            self.note_unused(row, "prompt", "completion", *LANGUAGES)
        source, target = self.pair(text(row, "prompt"), text(row, "completion"), row)
        limit = self.context
        truncated = len(source) > limit or len(target) > limit
        source, target = self.shortened(source), self.shortened(target)
        targets = [False] * len(source) + [True] * len(target)
        return [Encoded([*source, *target], targets, truncated)]

    def shortened(self, ids: list[int]) -> list[int]:
        """The first `context` tokens, with the special tokens at the end."""
        if len(ids) <= self.context:
            return ids
        end = len(ids)
        while end and (ids[end - 1] == self.eos or self.template.is_special(ids[end - 1])):
            end -= 1
        last = ids[max(end, len(ids) - self.context) :]
        return [*ids[: self.context - len(last)], *last]

    def pair(self, prompt: str, completion: str, row: Row) -> tuple[list[int], list[int]]:
        """The token IDs of prompt and completion."""
        if self.languages is None:
            ids = encode(target_tokenizer(self.tokenizer), completion)
            ids += [] if self.eos is None or ids[-1:] == [self.eos] else [self.eos]
            return encode(self.tokenizer, prompt), ids
        source, target = (
            row.get(name) or self.defaults.get(setting) for name, setting in LANGUAGES.items()
        )
        if not isinstance(target, str):
            raise ValueError("target is missing: add a column with the code of the language")
        source = source if isinstance(source, str) else None
        return (
            self.languages.source_ids(prompt, source=source, target=target),
            self.languages.target_ids(completion, target=target),
        )


def hidden_of_pairs(
    model: LanguageModel, idx: Tensor, mask: Tensor, sources: Sequence[int]
) -> Tensor:
    """The input (B, T - 1, C) of the head that predicts each token but the first; 0 for tokens of
    the prompts.

    idx, mask: pairs (B, T), prompts first, with padding at the end.    sources: the lengths of the
    prompts.
    """
    decoder: Any = model
    starts = torch.tensor(sources, device=idx.device).unsqueeze(1)  # (B, 1)
    lengths = mask.sum(dim=1, keepdim=True) - starts
    positions = torch.arange(idx.size(1), device=idx.device).unsqueeze(0)  # (1, T)
    longest, count = int(starts.max()), int(lengths.max())
    attended = positions[:, :longest] < starts  # (B, E)
    source = idx[:, :longest].where(attended, 0)
    target = idx.gather(1, (starts + positions[:, :count]).clamp(max=idx.size(1) - 1))  # (B, D)
    inputs = decoder.decoder_inputs(target.where(positions[:, :count] < lengths, 0), lengths)
    model.check(source, None)
    model.check(inputs, None, model.output_size)
    tokens = None if bool(attended.all()) else attended
    encoder = decoder.encode(source, Past(source, attended_tokens=tokens))
    hidden = model.body(inputs, Past(inputs, encoder=encoder, attended_tokens=tokens))
    numbers = positions[:, 1:] - starts  # of the predicted tokens in the completions
    inside = (numbers >= 0) & (numbers < count)
    chosen = numbers.clamp(0, count - 1).unsqueeze(2).expand(-1, -1, hidden.size(2))
    return hidden.gather(1, chosen) * inside.unsqueeze(2)
