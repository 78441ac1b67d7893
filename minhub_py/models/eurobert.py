"""EuroBERT, an encoder with the layers of Llama and bidirectional attention.

Sources
    Boizard et al. (2025), "EuroBERT: Scaling Multilingual Encoders for European Languages".
    Hub docs: `transformers`, model_type "eurobert".

Differences from similar architectures
    llama         is a decoder: a token attends to the tokens before it. The layers are equal.
    modernbert    has layer norms, windows, and norms its embeddings.

Notation
    B batch rows    T positions    C channels, hidden_size    V vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.attention import Past
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import MaskedLMHead, SequenceHead, TokenHead
from minhub_py.models.llama import Llama, LlamaConfig
from minhub_py.models.steps import HiddenStates, Logits, Step

POOLINGS: dict[str, Literal["cls", "mean", "late"]] = {"bos": "cls", "mean": "mean", "late": "late"}


class EuroBert(Encoder, Llama):  # type: ignore[misc]  # the config of an encoder, and of Llama
    config: "EuroBertConfig"

    def __init__(self, config: "EuroBertConfig") -> None:
        super().__init__(config)
        self.remove_head()
        self.head = head_of(config)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        return Llama.body(self, idx, past)

    def steps(self) -> Iterator[Step]:
        yield from (step for step in Llama.steps(self) if not isinstance(step, Logits))
        yield HiddenStates(self.config.hidden_size)


def head_of(config: "EuroBertConfig") -> nn.Module | None:
    """The head of the checkpoint."""
    C, labels = config.hidden_size, len(config.labels)
    if config.head == "masked_lm":
        tied, bias = config.tie_word_embeddings, config.mlp_bias
        return MaskedLMHead(C, C, config.vocab_size, None, None, False, tied, output_bias=bias)
    if config.head == "sequence":
        return SequenceHead(C, labels, F.gelu, pooling=POOLINGS[config.classifier_pooling])
    return TokenHead(C, labels) if config.head == "tokens" else None


@dataclass(frozen=True)
class EuroBertConfig(LlamaConfig):
    """The settings of config.json that change the result. Defaults: EuroBERT-210m."""

    TITLE: ClassVar = "EuroBERT"
    IS_ENCODER: ClassVar = True
    CAUSAL: ClassVar = False
    ONLY_VALUE: ClassVar = {"is_causal": False, "is_decoder": False}
    NO_EFFECT: ClassVar = LlamaConfig.NO_EFFECT | frozenset(
        "bos_token eos_token pad_token mask_token mask_token_id hidden_dropout".split()
    )
    ALIASES: ClassVar = {"eurobert": {"clf_pooling": "classifier_pooling"}}  # in older files
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "eurobert": {"vocab_size": 128256, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                     "num_attention_heads": 12, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
                     "bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128001},
    }  # fmt: skip

    model_type: str = "eurobert"
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_pooling: str = field(default="late", metadata={"choices": tuple(POOLINGS)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "questions":
            raise ValueError("EuroBERT: a eurobert model has no question answering head")

    def to_hub(self) -> dict[str, object]:
        """The config.json of this model for transformers."""
        dropped = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
        settings = self.hub_settings("EuroBert")
        settings = {name: value for name, value in settings.items() if name not in dropped}
        return settings | {"rope_parameters": self.rope, "head_dim": self.head_size}
