"""Masked language models: tokens at a mask, probabilities of words in context, and
pseudo-log-likelihood of texts.

Sources
    Devlin et al. (2019), "BERT", for masked language models.
    Salazar et al. (2020), "Masked Language Model Scoring", for the pseudo-log-likelihood (PLL).
    Kauf & Ivanova (2023), "A Better Way to Do Masked Language Model Scoring", for PLL-word-l2r.
    The R package pangoling (Nicenboim, Emmerly and Cassani), for the probabilities of targets in
        context.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.encoders import Input, hidden_states, inputs_of
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.segments import as_texts
from minhub_py.analysis.tokens import token_strings
from minhub_py.inference.arguments import check_integer, check_tokenizer, model_of
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import MaskedLMHead
from minhub_py.system.tables import Columns

MASKS = ("[MASK]", "<mask>")
# Rows of logits at a time: bounds the memory for large vocabularies.
ROWS = 64


def masked_tokens(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: str | Iterable[str],
    n: int = 10,
    *,
    targets: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Compute the most likely tokens at each mask of texts.

        masked_tokens(model, tokenizer, "The capital of France is [MASK].", n=3)

    "[MASK]" is replaced by the tokenizer's mask token. Several masks of a text are predicted
    independently. A mask beyond the model's maximum length has no rows, and a warning names its
    text.

    Args:
        model: An encoder with a masked-LM head.
        tokenizer: The model's tokenizer.
        texts: One or more texts, each with at least one mask.
        n: Number of tokens per mask.
        targets: Tokens to report instead of the most likely tokens. Each is looked up in the
            vocabulary as it is; for a byte-level BPE such as RoBERTa's, a target within a text
            begins with a space.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns with `n` rows per mask, the most likely token first: text and mask (their numbers,
        from 0), token (its string), id, prob and logprob (nats).

    Raises:
        ValueError: The model has no masked-LM head; a text has no mask; a target is not one token
            of the vocabulary.
    """
    rows = [texts] if isinstance(texts, str) else as_texts("texts", texts)
    columns, truncated = predict_masks(model, tokenizer, rows, n, targets, progress)
    warn_truncated(model, truncated, "a mask")
    return columns


def predict_masks(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str | None],
    n: int,
    targets: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> tuple[Columns, list[int]]:
    """The columns of `masked_tokens`, and the numbers of texts with a mask beyond the maximum
    length.
    """
    model = masked_model(model, "masked_tokens()")
    n = min(check_integer("n", n, 1), model.config.vocab_size)
    mask = mask_of(tokenizer)
    masked = [(text or "").replace("[MASK]", mask) for text in texts]
    if without := [number for number, text in enumerate(masked) if mask not in text]:
        raise ValueError(f"text {without[0]} has no mask: write [MASK] in place of a word")
    inputs = list(inputs_of(model, tokenizer, masked))
    mask_id = tokenizer.token_to_id(mask)
    positions = [
        (number, i)
        for number, row in enumerate(inputs)
        for i, id in enumerate(row.ids)
        if id == mask_id
    ]
    target_ids = None if targets is None else [target_id(tokenizer, target) for target in targets]
    logprobs = logprobs_at(model, inputs, positions, progress)  # (masks, V)
    if target_ids is None:
        best = logprobs.topk(n, dim=1)
        values, ids = best.values, best.indices
    else:
        chosen = logprobs[:, target_ids]
        values, order = chosen.sort(dim=1, descending=True)
        ids = torch.tensor(target_ids)[order]
    counts = np.bincount([number for number, _ in positions], minlength=len(masked))
    count = ids.size(1)
    columns = Columns(
        {
            "text": np.repeat(np.array([number for number, _ in positions], np.int64), count),
            "mask": np.repeat(
                np.array([i for masks in counts for i in range(masks)], np.int64), count
            ),
            "token": token_strings(tokenizer, ids.flatten().tolist()),
            "id": ids.flatten().numpy(),
            "prob": values.flatten().double().exp().numpy(),
            "logprob": values.flatten().numpy(),
        }
    )
    return columns, [
        number for number, text in enumerate(masked) if counts[number] < text.count(mask)
    ]


def warn_truncated(model: Encoder, numbers: Sequence[int], what: str) -> None:
    """Warn about texts with a part beyond the maximum length."""
    if numbers:
        names = ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")
        warnings.warn(
            f"no result for {what} beyond {limit_of(model)}, in text {names}: shorten the text",
            stacklevel=3,
        )


def limit_of(model: Encoder) -> str:
    """A text's maximum length, for messages."""
    return f"the model's maximum length of {model.config.context_length} tokens"


def masked_logprobs(
    model: Encoder,
    tokenizer: Tokenizer,
    contexts: Iterable[str | None],
    targets: Iterable[str | None],
    after: Iterable[str | None] | str = "",
    *,
    progress: Progress | None = None,
) -> Columns:
    """Compute each target's log-probability between the text before and the text after it.

        masked_logprobs(model, tokenizer, ["The"], ["apple"], ["doesn't fall far from the tree."])

    All tokens of a target are masked at once; its log-probability is the sum over its tokens. The
    text is the context, a space, the masks, a space, and the text after. A target is tokenized
    without its context. This is the definition of pangoling's `masked_targets_pred`.

    Args:
        model: An encoder with a masked-LM head.
        tokenizer: The model's tokenizer.
        contexts: The text before each target; None for no text.
        targets: Words or texts.
        after: The text after each target, or one text for all.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns with one value per target: tokens (their number) and logprob (nats). Missing targets
        have 0 tokens and NaN. A target beyond the model's maximum length has NaN, and a warning
        names it.

    Raises:
        ValueError: The model has no masked-LM head, or the columns differ in length.
    """
    columns, truncated = score_targets(model, tokenizer, contexts, targets, after, progress)
    warn_truncated(model, truncated, "a target")
    return columns


def score_targets(
    model: Encoder,
    tokenizer: Tokenizer,
    contexts: Iterable[str | None],
    targets: Iterable[str | None],
    after: Iterable[str | None] | str,
    progress: Progress | None = None,
) -> tuple[Columns, list[int]]:
    """The columns of `masked_logprobs`, and the numbers of targets beyond the maximum length."""
    model = masked_model(model, "masked_logprobs()")
    contexts, targets = as_texts("contexts", contexts), as_texts("targets", targets)
    following = [after] * len(targets) if isinstance(after, str) else as_texts("after", after)
    if not len(contexts) == len(targets) == len(following):
        raise ValueError(
            f"contexts, targets and after must have equal lengths, not {len(contexts)},"
            f" {len(targets)} and {len(following)}"
        )
    mask = mask_of(tokenizer)
    mask_id = tokenizer.token_to_id(mask)
    ids = [
        tokenizer.encode(target, add_special_tokens=False).ids if target else []
        for target in targets
    ]
    used = [number for number, tokens in enumerate(ids) if tokens]
    texts = [
        " ".join(
            part
            for part in (contexts[number] or "", mask * len(ids[number]), following[number] or "")
            if part
        )
        for number in used
    ]
    inputs = list(inputs_of(model, tokenizer, texts))
    positions, expected, owners, truncated = [], [], [], []
    result = np.full(len(targets), np.nan)
    for row, number in enumerate(used):
        masks = [i for i, id in enumerate(inputs[row].ids) if id == mask_id][: len(ids[number])]
        if len(masks) < len(ids[number]):
            truncated.append(number)
            continue
        positions += [(row, i) for i in masks]
        expected += ids[number]
        owners += [number] * len(masks)
        result[number] = 0.0
    if positions:
        values = logprobs_at(model, inputs, positions, progress, expected).double().numpy()
        np.add.at(result, owners, values)
    return (
        Columns(tokens=np.array([len(tokens) for tokens in ids], np.int64), logprob=result),
        truncated,
    )


def pseudo_logprobs(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    *,
    method: Literal["original", "within_word_l2r"] = "within_word_l2r",
    progress: Progress | None = None,
) -> Columns:
    """Compute the pseudo-log-likelihood of texts: each token is masked and predicted from the other
    tokens.

    Args:
        model: An encoder with a masked-LM head.
        tokenizer: The model's tokenizer.
        texts: Texts. None and "" are missing.
        method: "original" masks one token at a time (Salazar et al., 2020). "within_word_l2r" also
            masks the later tokens of the same word, because they would reveal it (Kauf & Ivanova,
            2023).
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns with one row per token without special tokens: text (its number, from 0), token, id
        and logprob (nats). A text's pseudo-log-likelihood is the sum of its rows. A text
        beyond the model's maximum length has no rows, and a warning names it.

    Raises:
        ValueError: The model has no masked-LM head, or `method` is unknown.
    """
    columns, truncated = score_tokens(model, tokenizer, texts, method, progress)
    warn_truncated(model, truncated, "a text")
    return columns


def score_tokens(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    method: str,
    progress: Progress | None = None,
) -> tuple[Columns, list[int]]:
    """The columns of `pseudo_logprobs`, and the numbers of texts beyond the maximum length."""
    model = masked_model(model, "pseudo_logprobs()")
    if method not in ("original", "within_word_l2r"):
        raise ValueError(f'method must be "original" or "within_word_l2r", not {method!r}')
    texts = [text or "" for text in as_texts("texts", texts)]
    mask_id = tokenizer.token_to_id(mask_of(tokenizer))
    assert mask_id is not None
    inputs: list[Input] = []
    positions, expected, owners, truncated = [], [], [], []
    for number, text in enumerate(texts):
        encoding = tokenizer.encode(text)
        if len(encoding.ids) > (model.config.context_length or len(encoding.ids)):
            truncated.append(number)
            continue
        for i, (id, special) in enumerate(
            zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        ):
            if special:
                continue
            word = encoding.word_ids[i]
            masked = list(encoding.ids)
            masked[i] = mask_id
            if method == "within_word_l2r":
                for later in range(i + 1, len(masked)):
                    if encoding.word_ids[later] == word and not encoding.special_tokens_mask[later]:
                        masked[later] = mask_id
            positions.append((len(inputs), i))
            inputs.append(Input(masked, encoding.type_ids))
            expected.append(id)
            owners.append(number)
    values = logprobs_at(model, inputs, positions, progress, expected) if inputs else torch.empty(0)
    columns = Columns(
        {
            "text": np.array(owners, np.int64),
            "token": token_strings(tokenizer, expected),
            "id": np.array(expected, np.int64),
            "logprob": values.numpy(),
        }
    )
    return columns, truncated


@torch.inference_mode()
def logprobs_at(
    model: Encoder,
    inputs: Sequence[Input],
    positions: Sequence[tuple[int, int]],
    progress: Progress | None = None,
    expected: Sequence[int] | None = None,
) -> Tensor:
    """Log-probabilities at positions of inputs, float32: (positions, V), or (positions,) of the
    `expected` token IDs.

    positions: (index of the input, position) of each. The head is computed at these positions only.
    """
    by_input: dict[int, list[int]] = {}
    for number, (row, _) in enumerate(positions):
        by_input.setdefault(row, []).append(number)
    result = torch.empty(
        len(positions) if expected is not None else (len(positions), model.config.vocab_size)
    )
    waiting: list[int] = []
    rows: list[Tensor] = []
    device = next(model.parameters()).device
    dtype = next(parameter.dtype for parameter in model.parameters())

    def flush() -> None:
        if not waiting:
            return
        x = torch.stack(rows).to(device, dtype).unsqueeze(0)  # (1, rows, C)
        logprobs = model.head_of(x)[0].float().log_softmax(dim=1).cpu()
        if expected is None:
            result[waiting] = logprobs
        else:
            ids = torch.tensor([expected[number] for number in waiting])
            result[waiting] = logprobs.gather(1, ids.unsqueeze(1)).squeeze(1)
        waiting.clear()
        rows.clear()

    for i, x in hidden_states(model, inputs, progress):
        for number in by_input.get(i, ()):
            waiting.append(number)
            rows.append(x[positions[number][1]])
            if len(waiting) == ROWS:
                flush()
    flush()
    return result


def masked_model(model: object, call: str) -> Encoder:
    """The model. ValueError: it is not an encoder with a masked-LM head."""
    result = model_of(model, call)
    if not isinstance(result, Encoder):
        raise ValueError(
            f"{call} needs an encoder such as BERT; for a {result.config.TITLE} use next_tokens() or"
            " word_logprobs()"
        )
    if not isinstance(result.head, MaskedLMHead):
        raise ValueError(
            f"{call} needs a masked-LM head, which this checkpoint does not have: use a checkpoint"
            f" with an architecture …ForMaskedLM, not {(result.config.architectures or ['none'])[0]}"
        )
    return result


def mask_of(tokenizer: Tokenizer) -> str:
    """The mask token. ValueError: the tokenizer has none."""
    check_tokenizer(tokenizer, "encode_batch")
    for token in MASKS:
        if tokenizer.token_to_id(token) is not None:
            return token
    raise ValueError(
        "the tokenizer has no mask token ([MASK] or <mask>): use the tokenizer of a masked language"
        " model"
    )


def target_id(tokenizer: Tokenizer, target: str) -> int:
    """The token ID of a target. ValueError: it is not one token."""
    id = tokenizer.token_to_id(target)
    if id is not None:
        return int(id)
    ids = tokenizer.encode(target, add_special_tokens=False).ids
    if len(ids) != 1:
        raise ValueError(
            f"target {target!r} is {len(ids)} tokens, not one: masked_logprobs() scores longer"
            " targets"
        )
    return int(ids[0])
