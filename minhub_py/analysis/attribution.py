"""Direct logit attribution: the part of a logit that each component writes to the residual stream.

Source: Elhage et al. (2021), "A Mathematical Framework for Transformer Circuits".

The final norm is linear once its scale is fixed. With the scale of the whole residual stream x = Σ
x_c,

    logit = bias + Σ_c  w · (γ ⊙ center(x_c)) / σ(x),

where w is the token's row of the head, center subtracts the mean (layer norm) or nothing (RMS
norm), and σ is the standard deviation or the root mean square. `bias` collects the biases of the
norm and of the head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from minhub_py.analysis.activations import forward, recorder
from minhub_py.analysis.hidden_states import steps_after_layers
from minhub_py.analysis.patching import check_position, token_id
from minhub_py.analysis.points import ADDED, ENCODER, Points, norms_between_additions, recipe_of
from minhub_py.analysis.tokens import Text, single_row
from minhub_py.inference.arguments import decoder_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.layers import LinearLayer, RMSNorm, weight_of
from minhub_py.models.steps import Add, Linear, Logits, Norm, Recurrent, ScaleResidual
from minhub_py.system.tables import Columns, Result


@dataclass(frozen=True)
class Attribution(Result):
    """The parts of a logit, or of the difference of two logits.

    Attributes:
        components: Each component's name: "embeddings", "layers.1.attn" or the heads of it, …,
            and "bias".
        values: The part of each component; their sum is `logit` up to rounding.
        logit: The model's logit or difference of logits, before a soft cap.
    """

    components: list[str]
    values: list[float]
    logit: float

    def table(self) -> Columns:
        """Columns component and value."""
        return Columns(component=self.components, value=self.values)

    def heading(self) -> list[str]:
        """The logit."""
        return [f"logit {self.logit:.4g}"]


@torch.no_grad()
def attribution(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: Text,
    token: str | int,
    against: str | int | None = None,
    *,
    position: int = -1,
    heads: bool = False,
    target: Text = None,
) -> Attribution:
    """Split a token's logit into the parts that the embeddings, attention and MLPs of all
    layers contribute.

    Args:
        model: A transformer of this package whose layers add to the residual stream, with a
            decoder.
        tokenizer: The model's tokenizer; None if the text and the tokens are IDs.
        text: A string or a list of token IDs; for an encoder-decoder, the encoder's input.
        token: The token whose logit is split, a string of one token or an ID.
        against: A token whose logit is subtracted.
        position: The position of the text, from 0, after which the token is predicted; negative
            numbers count from the end.
        heads: Split attention into its heads, and a part for the bias of the output projection.
        target: For an encoder-decoder: the decoder's output so far; None for its beginning.
            Positions and parts, which include `layers.1.cross` and so on, are the decoder's.

    Returns:
        The parts.

    Raises:
        ValueError: An encoder, an LSTM, or a model that applies norms to the residual stream
            itself; a string that is not one token; a target for a decoder-only model; heads of an
            activated adapter; or as `activations`.
    """
    model = decoder_of(model, "attribution()")
    base = recipe_of(model).model
    if any(isinstance(step, Recurrent) for step in base.steps()) or norms_between_additions(
        base.steps()
    ):
        raise ValueError(
            "attribution() supports transformers whose layers add to the residual stream, such as"
            f" GPT-2, Llama and T5, not this {model.config.TITLE}: use patching()"
        )
    if heads and base.invocation is not None:
        raise ValueError(
            "attribution(heads=True) needs one weight for all tokens, which an activated adapter"
            " does not have: use heads=False"
        )
    ids = single_row(model, tokenizer, text, prompt=True)
    inputs = None
    if model.encoder_decoder:
        target_ids = [] if target is None else single_row(model, tokenizer, target, "target")
        assert model.decoder_start is not None
        inputs = [model.decoder_start, *target_ids]
    elif target is not None:
        raise ValueError("target is for an encoder-decoder such as T5: make it part of the text")
    index = check_position(position, len(ids if inputs is None else inputs))
    tokens = [token_id(model, tokenizer, token, "token")]
    if against is not None:
        tokens.append(token_id(model, tokenizer, against, "against"))
    points = Points(base)
    own = [name for name in points.sources if not name.startswith(ENCODER)]
    names = [
        "embeddings",
        *(name for name in own if name.endswith(ADDED)),
    ]
    head_inputs = [name for name in own if heads and name.endswith(".heads")]
    last = f"layers.{max(points.sources[name].layer for name in own)}.resid"
    copy, recorded = recorder(model, points.find([*names, *head_inputs, last]), "attribution()")
    forward(copy, [ids], inputs)
    stored = {name: x[index].float() for name, x in recorded.items()}
    tail = steps_after_layers(base.steps())
    head = next(step for step in tail if isinstance(step, Logits))
    rows = weights_of_rows(head, tokens)  # (C,)
    components = components_of(copy, points, names, stored, heads)
    total = stored[last]
    factors = [float(step.factor) for step in base.steps() if isinstance(step, ScaleResidual)]
    x = torch.stack([vector * factor_of(name, factors) for name, vector in components.items()])
    for step in tail:
        if isinstance(step, Norm):
            x, total = (
                frozen(step.layer, x, total),
                step.layer(total.to(next(base.parameters()).dtype)).float(),
            )
        elif isinstance(step, Linear):
            weight = torch.cat([layer.weight.float() for layer in step.layers])
            x, total = (
                F.linear(x, weight),
                torch.cat([layer(total.to(layer.weight.dtype)).float() for layer in step.layers]),
            )
    values = (x @ rows * head.scale).tolist()
    bias = head.bias if head.bias is not None else getattr(head.layer, "bias", None)
    signs = [1.0, -1.0][: len(tokens)]
    offset = (
        0.0
        if bias is None
        else sum(sign * float(bias[id]) for sign, id in zip(signs, tokens, strict=True))
    )
    logit = float(total @ rows * head.scale) + offset
    return Attribution([*components, "bias"], [*values, logit - sum(values)], logit)


def factor_of(name: str, factors: Sequence[float]) -> float:
    """The product of the factors of the residual stream, one at the end of each layer, that follow
    a component.
    """
    layer = int(name.split(".")[1]) if name.startswith("layers.") else 1
    return math.prod(factors[layer - 1 :])


def components_of(
    model: LanguageModel, points: Points, names: list[str], stored: dict[str, Tensor], heads: bool
) -> dict[str, Tensor]:
    """The vector (C,) that each component adds to the residual stream. heads: split attention into
    its heads.
    """
    if not heads:
        return {name: stored[name] for name in names}
    paths = {id(module): name for name, module in model.named_modules()}
    projections = {paths[id(step.layer)]: step for step in model.steps() if isinstance(step, Add)}
    components: dict[str, Tensor] = {}
    for name in names:
        if not name.endswith(".attn"):
            components[name] = stored[name]
            continue
        start = name.removesuffix("attn")
        source = points.sources[f"{start}heads"]
        step = projections[source.path]
        parts = head_outputs(step.layer, stored[f"{start}heads"], source.units)
        if step.norm is not None:  # with the scale of the norm of the sum
            parts = frozen(step.norm, parts, parts.sum(dim=0) + bias_of(step.layer, parts))
        parts = parts * step.scale
        components.update({f"{start}heads.{number}": part for number, part in enumerate(parts, 1)})
        components[f"{name}.bias"] = stored[name] - parts.sum(dim=0)
    return components


def weights_of_rows(head: Logits, tokens: list[int]) -> Tensor:
    """The head's row of the first token, minus the row of the second, if any: float32 (C,)."""
    layer = head.layer
    rows = (layer.rows(tokens) if hasattr(layer, "rows") else layer.weight[tokens]).float()
    return rows[0] if len(tokens) == 1 else rows[0] - rows[1]


def head_outputs(layer: LinearLayer, z: Tensor, heads: int) -> Tensor:
    """The output (H, C) of each head through the output projection without its bias, for z (H *
    D,).
    """
    weight = layer.weight.float()
    return torch.stack(
        [weight[:, part] @ z[part] for part in torch.arange(len(z), device=z.device).chunk(heads)]
    )


def bias_of(layer: LinearLayer, like: Tensor) -> Tensor:
    """A linear layer's bias, or zero."""
    return like.new_zeros(()) if layer.bias is None else layer.bias.float()


def frozen(norm: nn.LayerNorm | RMSNorm, parts: Tensor, total: Tensor) -> Tensor:
    """The parts (n, C) of a value through its norm, with the scale of the whole value (C,), and
    without bias.
    """
    if isinstance(norm, nn.LayerNorm):
        scale = (total.var(unbiased=False) + norm.eps).rsqrt()
        weight = weight_of(norm).float().to(parts.device)
        return (parts - parts.mean(dim=-1, keepdim=True)) * scale * weight
    return parts * (total.square().mean() + norm.eps).rsqrt() * (norm.weight.float() + norm.offset)
