"""Tuned lens: the logit lens after a learned affine map of each layer's hidden states.

The logit lens reads a layer's states as if the later layers did nothing. The tuned lens
predicts their contribution: with a layer's states h,

    logits = head(norm(h + A h + b)),

where A (C, C) and b (C,) start at zero and minimize the KL divergence from the model's own
predictions.

Source: Belrose et al. (2023), "Eliciting Latent Predictions from Transformers with the Tuned Lens".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.hidden_states import LayerStates, steps_after_layers
from minhub_py.analysis.lens import final
from minhub_py.analysis.tokens import Text, rows_of_texts
from minhub_py.inference.arguments import check_integer, check_list, decoder_of
from minhub_py.inference.quantize import kind_of
from minhub_py.models.base import LanguageModel

TOKENS = 256  # of a training step


@dataclass(frozen=True)
class TunedLens:
    """The maps of a model's layers, for `logit_lens(lens=…)`.

    Attributes:
        weights: A and b of each layer, by its number.
        before: The mean KL divergence (nats) of each layer's logit lens from the model's
            predictions, by its number.
        after: The same with the maps.
    """

    weights: dict[int, tuple[Tensor, Tensor]] = field(repr=False)
    before: dict[int, float]
    after: dict[int, float]

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        """The states x (T, C) of a layer, mapped. ValueError: the lens belongs to a model with
        another width.
        """
        if layer not in self.weights:
            return x
        A, b = self.weights[layer]
        if A.size(1) != x.size(-1):
            raise ValueError(
                f"lens belongs to a model with {A.size(1)} channels, not {x.size(-1)}: train one"
                " for this model"
            )
        return x + (x.float() @ A.to(x.device).T + b.to(x.device)).to(x.dtype)


def tuned_lens(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    *,
    steps: int = 200,
    rate: float = 1e-3,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> TunedLens:
    """Train a tuned lens on texts.

        lens = tuned_lens(model, tokenizer, texts)
        logit_lens(model, tokenizer, "The cat sat", lens=lens).plot("lens.png")

    Args:
        model: A decoder-only model of this package with weights in floating point; it does not
            change.
        tokenizer: The model's tokenizer; None if the texts are token IDs.
        texts: Texts within the context length, as many tokens as possible.
        steps: Steps of Adam for each layer, on 256 random tokens each.
        rate: Learning rate.
        seed: Seed of the choice of tokens.
        progress: Called with the number of completed steps and the total.

    Returns:
        The lens, with the KL divergence of each layer before and after, over all tokens of the
        texts.

    Raises:
        ValueError: An encoder-decoder, an LSTM, quantized weights; or a text as for `activations`.
    """
    model = decoder_of(model, "tuned_lens()")
    if model.encoder_decoder:
        raise ValueError(f"tuned_lens() needs a decoder-only model, not {model.config.TITLE}")
    if kind_of(model):
        raise ValueError(
            "tuned_lens() needs weights in floating point: load the model with quantize='none'"
        )
    steps = check_integer("steps", steps, 1)
    check_list("texts", texts, "texts")
    states = LayerStates(model, "tuned_lens()")
    if states.recurrent:
        raise ValueError(
            f"tuned_lens() needs a transformer, not {model.config.TITLE}: use logit_lens()"
        )
    device = next(model.parameters()).device
    layers = range(states.count)
    rows: dict[int, list[Tensor]] = {layer: [] for layer in range(states.count + 1)}
    with torch.no_grad():
        for ids in rows_of_texts(model, tokenizer, list(texts), "texts"):
            hidden = states.compute(torch.tensor([ids], device=device), range(states.count + 1))
            for layer, x in hidden.items():
                rows[layer].append(x[0])
    inputs = {layer: torch.cat(parts) for layer, parts in rows.items()}
    tail = steps_after_layers(states.model.steps())

    def predictions(x: Tensor) -> Tensor:
        return states.model.logits(final(tail, x)).float().log_softmax(dim=-1)

    def divergence(x: Tensor, chosen: Tensor) -> Tensor:
        with torch.no_grad():
            target = states.model.logits(inputs[states.count][chosen]).float().log_softmax(dim=-1)
        return (target.exp() * (target - predictions(x))).sum(dim=-1).mean()

    def mean_divergence(lens: TunedLens, layer: int) -> float:
        parts = torch.arange(len(inputs[layer]), device=device).split(TOKENS)
        with torch.no_grad():
            total = sum(
                float(divergence(lens(layer, inputs[layer][part]), part)) * len(part)
                for part in parts
            )
        return total / len(inputs[layer])

    generator = torch.Generator().manual_seed(seed)
    lens, empty = TunedLens({}, {}, {}), TunedLens({}, {}, {})
    for layer in layers:
        x = inputs[layer]
        A = torch.zeros(x.size(1), x.size(1), device=device, requires_grad=True)
        b = torch.zeros(x.size(1), device=device, requires_grad=True)
        optimizer = torch.optim.Adam([A, b], lr=rate)
        for step in range(steps):
            chosen = torch.randint(len(x), (TOKENS,), generator=generator).to(device)
            part = x[chosen].float()
            loss = divergence((part + part @ A.T + b).to(x.dtype), chosen)
            optimizer.zero_grad()
            gradients = torch.autograd.grad(loss, [A, b])
            A.grad, b.grad = gradients
            optimizer.step()
            if progress is not None:
                progress(layer * steps + step + 1, states.count * steps)
        lens.weights[layer] = (A.detach(), b.detach())
        lens.before[layer], lens.after[layer] = (
            mean_divergence(empty, layer),
            mean_divergence(lens, layer),
        )
    return lens
