"""Training of an adapter: the model of a run with the setting `lora`, and the files of its
checkpoints.

The base is frozen and never saved. A checkpoint contains the adapter in PEFT's format, which is
also the result of the run: `from_pretrained(base, adapter=RUN)`, or PEFT.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer
from torch import nn

from minhub_py.checkpoints.storage import open_tensors
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.loading.adapters.attach import attach, new_adapter, save_adapter
from minhub_py.loading.adapters.config import ALL_LINEAR, AdapterConfig, read_config
from minhub_py.loading.adapters.files import CONFIG, WEIGHTS
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.loading.adapters.heads import SEQUENCE_TASK, head_modules, labels_of
from minhub_py.loading.files import ModelFiles
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import Invocation
from minhub_py.system.json_text import JsonObject
from minhub_py.system.spelling import setting, unknown
from minhub_py.training.errors import read_object, reading

FILES = (CONFIG, WEIGHTS, "tokenizer.json")
# Settings of `lora`, short and as in PEFT -> fields of AdapterConfig.
NAMES = {
    "r": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "targets": "target_modules",
    "rslora": "use_rslora",
    "dora": "use_dora",
    "save": "modules_to_save",
    "invocation": "alora_invocation_tokens",
}
NAMES |= {
    name: name
    for name in (
        *NAMES.values(),
        "exclude_modules",
        "rank_pattern",
        "alpha_pattern",
        "layers_to_transform",
    )
}


def adapter_config(lora: Mapping[str, object], tokenizer: Tokenizer | None = None) -> AdapterConfig:
    """The settings of a new adapter. Defaults: all linear layers, alpha = 2 r. ValueError: a
    setting is invalid.

    tokenizer: of the base, for an invocation that is a text; None to check the other settings
    before it is read.
    """
    if invalid := sorted(set(lora) - set(NAMES)):
        raise ValueError(f"{setting('lora')}: {unknown(invalid, sorted(NAMES))}")
    values: JsonObject = {
        "target_modules": ALL_LINEAR,
        **{NAMES[name]: value for name, value in lora.items()},
    }
    values.setdefault("r", 16)
    values.setdefault("lora_alpha", 2 * values["r"])
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    if (
        isinstance(targets := values["target_modules"], str)
        and targets != ALL_LINEAR
        and "," in targets
    ):
        values["target_modules"] = tuple(name.strip() for name in targets.split(","))
    if (invocation := values.get("alora_invocation_tokens")) is not None:
        values["alora_invocation_tokens"] = invocation_ids(invocation, tokenizer)
    if values.get("modules_to_save"):
        raise ValueError(
            f"{setting('lora')}: save is not supported: all trained weights are factors of linear"
            " layers"
        )
    try:
        return AdapterConfig(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{setting('lora')}: {error}") from error


def invocation_ids(invocation: object, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The token IDs of an invocation. ValueError: it is invalid.    tokenizer: see
    `adapter_config`.
    """
    name = setting("lora")
    if isinstance(invocation, str):
        ids = [0] if tokenizer is None else encode(tokenizer, invocation, add_special_tokens=False)
        if not ids:
            raise ValueError(
                f"{name}: invocation {invocation!r} has no token in the tokenizer of the model"
            )
        return tuple(ids)
    if (
        not isinstance(invocation, tuple)
        or not invocation
        or not all(type(id) is int and id >= 0 for id in invocation)
    ):
        raise ValueError(
            f"{name}: invocation must be a text in quotes or a list of token IDs, not"
            f" {invocation!r}"
        )
    if tokenizer is not None and max(invocation) >= (size := tokenizer.get_vocab_size()):
        raise ValueError(
            f"{name}: invocation contains {max(invocation)}: token IDs must be below {size}"
        )
    return invocation


def adapted_model(
    base: LanguageModel,
    lora: Mapping[str, object],
    newest: Path | None,
    tokenizer: Tokenizer,
    *,
    start: str | None,
    revision: str | None,
    seed: int,
) -> LanguageModel:
    """`base` with a new adapter, or with the adapter in the folder `newest`. Only the adapter is
    trained.
    """
    if newest is not None:
        with reading(newest / WEIGHTS):
            adapter = read_adapter(newest, base)
    else:
        config = replace(
            adapter_config(lora, tokenizer), base_model_name_or_path=start, revision=revision
        )
        if labels_of(base) is not None:
            config = replace(config, modules_to_save=head_modules(base), task_type=SEQUENCE_TASK)
        adapter = new_adapter(base, config, seed)
    if changed := [*adapter.embeddings, *adapter.tokens]:
        raise ValueError(
            f"{setting('lora')}: an adapter of linear layers is trained, not of embeddings or"
            f" tokens, {', '.join(changed)}: choose other targets, or continue a merged model"
            " (minhub convert)"
        )
    base.requires_grad_(False)
    # without dropout, the base is the reference of preference pairs
    return attach(base.eval(), adapter)


def invocation_of(
    lora: Mapping[str, object], start: ModelFiles | None, tokenizer: Tokenizer | None
) -> Invocation | None:
    """The tokens that activate a run's adapter; None if it is always active. ValueError: a
    setting is invalid.

    start, tokenizer: see `adapter_config`; the run continues the adapter of `start`, if it has one.
    """
    if not lora:
        return None
    new = tokens = adapter_config(lora, tokenizer).alora_invocation_tokens
    if start is not None and start.adapter is not None:
        tokens = read_config(
            read_object(start.adapter / CONFIG), str(start.adapter)
        ).alora_invocation_tokens
        if new is not None and (tokens is None or (tokenizer is not None and new != tokens)):
            raise ValueError(
                f"{setting('lora')}: the run continues the adapter of {setting('start')}, which"
                f" {'is always active' if tokens is None else 'has another invocation'}: remove"
                " invocation"
            )
    return None if tokens is None else Invocation(tokens)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model that are trained, by name."""
    return {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }


def save(model: LanguageModel, folder: Path, companions: Mapping[str, bytes]) -> None:
    """Write the adapter and further files, such as the tokenizer."""
    save_adapter(model, folder)
    for name, content in companions.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains an adapter."""
    return (folder / CONFIG).exists()


def check_files(folder: Path) -> None:
    """CorruptError: a file of an adapter is missing or not readable."""
    for name in FILES:
        with reading(folder / name):
            (folder / name).stat()
    read_object(folder / CONFIG)
    with reading(folder / WEIGHTS):
        open_tensors(folder / WEIGHTS)
