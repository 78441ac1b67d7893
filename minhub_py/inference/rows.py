"""A batch's rows: sequences in progress, and the part of a long sequence that is attended."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from minhub_py.inference.beams import Beams
from minhub_py.inference.mask_threads import ThreadedMatcher
from minhub_py.inference.prefixes import CachedPrefix
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.inference.speculative import Drafter


def context_start(length: int, context: int | None) -> int:
    """The start of the context that predicts the token after `length` tokens.

    With n tokens and a context length of C, the next token is predicted from all n tokens while n
    <= C. Beyond, the context starts at a multiple of C // 2: a full context restarts with its
    second half. The attended tokens depend on n only, not on the length of the prompt, and half a
    context is prefilled again every C // 2 tokens.
    """
    if context is None or length <= context:
        return 0
    hop = max(context // 2, 1)
    return -(-(length - context) // hop) * hop


@dataclass
class BatchRow:
    """A sequence in progress. `slot` is its row of the cache; `text` contains the prompt's `start`
    tokens first.

    For an encoder-decoder, `encoder_ids` is the prompt, and `text` begins with the decoder's start
    token.
    """

    key: int
    encoder_ids: list[int]
    text: list[int]
    start: int
    output_start: int  # number of prompt tokens in `text` that penalties of the output ignore
    end: int  # maximum number of tokens in `text`
    sampling: Sampling
    generator: torch.Generator
    stop: StopCriteria
    drafter: Drafter
    targets: list[int]  # the continuation to score, if any
    logprobs: bool
    top: int
    like: int | None
    adapter_start: int | None  # the first position in `text` that an activated adapter changes
    matcher: ThreadedMatcher | None = None
    slot: int = -1
    in_prefill: bool = True
    loading: "Future[CachedPrefix | None] | None" = None  # a prefix on disk
    draft: list[int] = field(default_factory=list)  # tokens after the last one in the current step
    # (1 + draft tokens, V), if the mask of the grammar is still being computed
    logits: Tensor | None = None
    stop_reason: Literal["stop", "length", "error"] | None = None
    beams: Beams | None = None  # of a beam search, whose beams are rows with the same key
    beam: int = 0
    forked: bool = False  # whether this row is one beam; otherwise, it stands for all of them

    @property
    def width(self) -> int:
        """The number of slots of the cache that the row needs."""
        return 1 if self.beams is None or self.forked else self.beams.settings.beams

    @property
    def can_continue(self) -> bool:
        """Whether the next token can be computed: the prompt is complete, and so is the mask if
        there are logits.
        """
        return not self.in_prefill and (
            self.logits is None or self.matcher is None or self.matcher.ready
        )

    def start_of_adapter(self, begin: int) -> int | None:
        """`adapter_start` in a context that starts at position `begin`."""
        return None if self.adapter_start is None else max(self.adapter_start - begin, 0)
