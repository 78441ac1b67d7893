"""Activations, interventions, directions, probes, patching, attribution and head scores.

In R, layers, heads and positions count from 1.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from r_bridge.arguments import character, frame, id_rows, is_text, scalar
from r_bridge.convert import Frame, Numeric, as_array
from r_bridge.methods.models import about
from r_bridge.methods.text import find_tokenizer, prompt_texts
from r_bridge.objects import Model, Session, Tokenizer


def activations(
    session: Session,
    model: Model,
    texts: object,
    tokenizer: Tokenizer | None,
    at: list[str],
    pool: str,
    targets: object = None,
) -> dict[str, object]:
    """Each point's matrices, and a frame that describes their rows."""
    from minhub_py.analysis.activations import activations as compute

    tok = find_tokenizer(model, tokenizer, needed=is_text(texts) or is_text(targets))
    result = compute(
        model.module,
        tok,
        _texts(model, texts),
        at,
        pool=pool,  # type: ignore[arg-type]
        targets=None if targets is None else _texts(model, targets),
    )
    pooled = pool == "mean"
    return {
        "values": {
            name: as_array(values).astype(np.float64) for name, values in result.values.items()
        },
        "rows": Frame(
            {
                "text": np.array(result.texts, np.int32) + 1,
                "position": np.ma.MaskedArray(np.array(result.positions, np.int32) + 1, pooled),
                "token": [None] * len(result.ids) if pooled else prompt_texts(tok, result.ids),
            }
        ),
    }


def intervene(
    session: Session,
    model: Model,
    at: list[str],
    how: str,
    value: Mapping[str, Numeric] | Numeric | None,
    scale: float,
    positions: object,
) -> dict[str, object]:
    """A model with interventions. value: a vector or matrix, or a named list of them by point; or
    None.
    """
    from minhub_py.analysis.interventions import intervene as new_handle
    from minhub_py.analysis.points import Points, recipe_of

    indices = (
        None
        if positions is None
        else [int(position) - 1 for position in as_array(positions).reshape(-1)]
    )
    module = model.module
    arrays: list[tuple[str | list[str], Numeric | None]] = [(at, None)]
    if isinstance(value, Mapping):
        names = [point.name for point in Points(recipe_of(module).model).find(at)]
        if absent := [name for name in names if name not in value]:
            raise ValueError(
                f"value has no activations at {absent[0]!r}: call activations() with this point"
            )
        arrays = [(name, value[name]) for name in names]
    elif value is not None:
        arrays = [(at, value)]
    for name, array in arrays:
        tensor = None if array is None else np.ascontiguousarray(as_array(array), dtype=np.float32)
        module = new_handle(module, name, how, tensor, scale=scale, positions=indices)
    handle = Model(module, model.folder, model.identifier, signature=model.signature)
    return about(handle, session.add(handle)) | {
        "commit": None,
        "interventions": str(module).splitlines()[1:],
    }


def direction(
    session: Session,
    model: Model,
    positive: object,
    negative: object,
    tokenizer: Tokenizer | None,
    at: str,
    kind: str,
    pool: str,
) -> dict[str, object]:
    """The vector of minhub_py.direction, and the projections of the texts."""
    from minhub_py.analysis.directions import direction as compute

    tok = find_tokenizer(model, tokenizer, needed=is_text(positive) or is_text(negative))
    texts = _texts(model, positive), _texts(model, negative)
    result = compute(model.module, tok, *texts, at, method=kind, pool=pool)  # type: ignore[arg-type]
    return {
        "vector": result.vector.double(),
        "projections": [part.double() for part in result.projections],
    }


def probe(
    session: Session,
    x: object,
    y: object,
    groups: object,
    folds: int,
    penalty: float,
    bootstrap: int,
    seed: int,
) -> dict[str, object]:
    """The result of minhub_py.probe."""
    from minhub_py.analysis.probes import probe as fit

    result = fit(
        as_array(x),
        y if isinstance(y, list) else as_array(y),
        groups=None if groups is None else groups if isinstance(groups, list) else as_array(groups),
        folds=folds,
        penalty=penalty,
        bootstrap=bootstrap,
        seed=seed,
    )
    words = isinstance(y, list)
    return {
        "metric": result.metric,
        "score": result.score,
        "interval": np.array(result.interval),
        "control": result.control,
        "baseline": result.baseline,
        "folds": result.folds.astype(np.int32) + 1,
        "predictions": character(map(str, result.predictions)) if words else result.predictions,
        "classes": character(map(str, result.classes)),
        "coef": result.coef,
        "intercept": result.intercept,
    }


def patching(
    session: Session,
    model: Model,
    clean: object,
    corrupted: object,
    answers: list[str],
    kinds: list[str],
    position: int | None,
    target: object,
    tokenizer: Tokenizer | None,
) -> dict[str, object]:
    """The table of minhub_py.patching, and the metrics of both runs."""
    from minhub_py.analysis.patching import patching as compute

    tok = find_tokenizer(
        model, tokenizer, needed=is_text(clean) or is_text(corrupted) or is_text(answers)
    )
    pair: Any = (
        tuple(answers)
        if is_text(answers)
        else tuple(int(id) for id in as_array(answers).reshape(-1))
    )
    [first], [second] = _texts(model, clean), _texts(model, corrupted)
    written = None if target is None else _texts(model, target)[0]
    result = compute(
        model.module,
        tok,
        first,
        second,
        pair,
        kinds=kinds,
        position=position,
        target=written,
        progress=session.progress,
    )
    table = result.table()
    return {
        "clean": result.clean,
        "corrupted": result.corrupted,
        "tokens": character(result.tokens),
        "corrupted_tokens": character(result.corrupted_tokens),
        "frame": frame(
            table, "kind", "layer", "position", "head", "token", "value", from_1=("position",)
        ),
    }


def attribution(
    session: Session,
    model: Model,
    text: object,
    token: object,
    against: object,
    position: int,
    heads: bool,
    tokenizer: Tokenizer | None,
    target: object = None,
) -> dict[str, object]:
    """The parts of minhub_py.attribution."""
    from minhub_py.analysis.attribution import attribution as compute

    tok = find_tokenizer(
        model, tokenizer, needed=is_text(text) or is_text(token) or is_text(against)
    )
    [row] = _texts(model, text)
    tokens = [scalar(value, str if is_text(value) else int) for value in (token, against)]
    output = None if target is None else _texts(model, target)[0]
    result = compute(
        model.module, tok, row, tokens[0], tokens[1], position=position, heads=heads, target=output
    )
    return {
        "logit": result.logit,
        "frame": frame({"component": result.components, "value": result.values}),
    }


def head_scores(session: Session, model: Model, length: int, samples: int, seed: int) -> Frame:
    """The scores of minhub_py.head_scores, with a row per layer and head."""
    from minhub_py.analysis.heads import head_scores as compute

    result = compute(model.module, length=length, samples=samples, seed=seed)
    layers, heads = result.induction.shape
    return Frame(
        {
            "layer": np.repeat(np.array(result.layers, np.int32), heads),
            "head": np.tile(np.arange(1, heads + 1, dtype=np.int32), layers),
            "induction": result.induction.flatten().double(),
            "previous_token": result.previous_token.flatten().double(),
            "duplicate_token": result.duplicate_token.flatten().double(),
        }
    )


def _texts(model: Model, texts: object) -> list[str] | list[list[int]]:
    """Texts as strings or lists of token IDs."""
    return list(texts) if is_text(texts) else id_rows(texts, model.module.config.vocab_size)
