"""JinaBERT for transformers, written from the papers and the published tensor names: transformers
does not contain it.

Günther et al. (2023), "Jina Embeddings 2"; Press et al. (2022), "ALiBi". `JinaBertModel` norms the
sums with the residual stream, has a gated MLP, and adds a bias of the distance to the scores. The
variant for code norms queries and keys, and has one norm more in each block.
"""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import transformers
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import BertConfig
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import BertOnlyMLMHead, BertPooler, BertPreTrainedModel


@strict
class JinaBertConfig(BertConfig):
    model_type = "jina_bert"
    feed_forward_type: str = "geglu"
    position_embedding_type: str = "alibi"
    max_position_embeddings: int = 8192


@strict
class JinaBertCodeConfig(JinaBertConfig):
    model_type = "jina_bert_code"


def slopes_of(heads: int) -> list[float]:
    """A geometric sequence; between powers of two, every second slope of twice as many heads."""
    if math.log2(heads).is_integer():
        first = 2.0 ** (-8.0 / heads)
        return [first ** (head + 1) for head in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return slopes_of(power) + slopes_of(2 * power)[::2][: heads - power]


class SelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        C, eps = config.hidden_size, config.layer_norm_eps
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(C, C) for _ in range(3))
        if config.model_type == "jina_bert_code":
            self.layer_norm_q, self.layer_norm_k = (nn.LayerNorm(C, eps=eps) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if hasattr(self, "layer_norm_q"):
            q, k = self.layer_norm_q(q), self.layer_norm_k(k)
        q, k, v = (y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        positions = torch.arange(x.size(1))
        distances = (positions[None] - positions[:, None]).abs()
        bias = -torch.tensor(slopes_of(self.heads)).view(-1, 1, 1) * distances
        scores = q @ k.transpose(2, 3) / math.sqrt(q.size(3)) + bias + mask
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class Output(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self, self.output = SelfAttention(config), Output(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.output.LayerNorm(self.output.dense(self.self(x, mask)) + x)


class MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        self.act = F.gelu if config.feed_forward_type == "geglu" else F.relu
        if config.model_type == "jina_bert":
            self.gated_layers = nn.Linear(C, 2 * inner, bias=False)
            self.wo = nn.Linear(inner, C)
            self.layernorm = nn.LayerNorm(C, eps=config.layer_norm_eps)
        else:
            self.up_gated_layer = nn.Linear(C, 2 * inner, bias=False)
            self.down_layer = nn.Linear(inner, C)

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "gated_layers"):
            gate, up = self.gated_layers(x).chunk(2, dim=2)
            return self.layernorm(self.wo(self.act(gate) * up) + x)
        up, gate = self.up_gated_layer(x).chunk(2, dim=2)
        return self.down_layer(up * self.act(gate))


class Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(config), MLP(config)
        if config.model_type == "jina_bert_code":
            C, eps = config.hidden_size, config.layer_norm_eps
            self.layer_norm_1, self.layer_norm_2 = (nn.LayerNorm(C, eps=eps) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.attention(x, mask)
        if not hasattr(self, "layer_norm_1"):
            return self.mlp(y)
        x = self.layer_norm_1(x + y)
        return self.layer_norm_2(x + self.mlp(x))


class Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        C = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, C)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, C)
        self.LayerNorm = nn.LayerNorm(C, eps=config.layer_norm_eps)


class Encoder(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))


class JinaBertModel(BertPreTrainedModel):
    config_class = JinaBertConfig

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings, self.encoder = Embeddings(config), Encoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **settings: Any,
    ) -> BaseModelOutput:
        embeddings = self.embeddings
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = embeddings.word_embeddings(input_ids) + embeddings.token_type_embeddings(types)
        x = embeddings.LayerNorm(x)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        hidden = x.new_zeros(mask.shape).masked_fill(mask == 0, torch.finfo(x.dtype).min)
        for layer in self.encoder.layer:
            x = layer(x, hidden[:, None, None])
        return BaseModelOutput(last_hidden_state=x)


class JinaBertForMaskedLM(BertPreTrainedModel):
    config_class = JinaBertConfig
    _tied_weights_keys: ClassVar = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert, self.cls = JinaBertModel(config, False), BertOnlyMLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.cls.predictions.decoder

    def forward(self, *ids: Tensor, **inputs: Any) -> MaskedLMOutput:
        return MaskedLMOutput(logits=self.cls(self.bert(*ids, **inputs).last_hidden_state))


class JinaBertForSequenceClassification(BertPreTrainedModel):
    config_class = JinaBertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, *ids: Tensor, **inputs: Any) -> SequenceClassifierOutput:
        pooled = self.bert.pooler(self.bert(*ids, **inputs).last_hidden_state)
        return SequenceClassifierOutput(logits=self.classifier(pooled))


class JinaBertForTokenClassification(BertPreTrainedModel):
    config_class = JinaBertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config, False)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, *ids: Tensor, **inputs: Any) -> TokenClassifierOutput:
        return TokenClassifierOutput(
            logits=self.classifier(self.bert(*ids, **inputs).last_hidden_state)
        )


class JinaBertForQuestionAnswering(BertPreTrainedModel):
    config_class = JinaBertConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config, False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(self, *ids: Tensor, **inputs: Any) -> QuestionAnsweringModelOutput:
        start, end = self.qa_outputs(self.bert(*ids, **inputs).last_hidden_state).unbind(dim=2)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


def variant(model: type[Any]) -> type[Any]:
    """The class of the variant for code, with the same name."""
    return type(model.__name__, (model,), {"config_class": JinaBertCodeConfig})


AUTO = {
    transformers.AutoModel: JinaBertModel,
    transformers.AutoModelForMaskedLM: JinaBertForMaskedLM,
    transformers.AutoModelForSequenceClassification: JinaBertForSequenceClassification,
    transformers.AutoModelForTokenClassification: JinaBertForTokenClassification,
    transformers.AutoModelForQuestionAnswering: JinaBertForQuestionAnswering,
}


def register() -> None:
    """Make AutoConfig and the classes of AUTO create these models."""
    for config in (JinaBertConfig, JinaBertCodeConfig):
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
    for auto, model in AUTO.items():
        auto.register(JinaBertConfig, model, exist_ok=True)
        auto.register(JinaBertCodeConfig, variant(model), exist_ok=True)
