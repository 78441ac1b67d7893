"""Read config.json into an architecture's dataclass: check types, ranges and unsupported settings.

A model file declares its settings as data:

    class GPT2Config            a frozen dataclass. Its fields are the settings that change the result, by their names
                                on the Hub. __post_init__ contains only architecture-specific checks.
        TITLE                   name of the architecture in messages
        ONLY_VALUE              settings that would change the result, each with the only supported value
        NO_EFFECT               names of settings without effect, in addition to NO_EFFECT below
        DERIVED                 properties of the dataclass that config.json may repeat but not contradict
        ROPE_NAMES              older names of rotary settings, in addition to rope_theta -> names in rope_parameters
        LOCAL_THETA             older name of rope_theta in layers with a window, if rope_parameters are dicts per layer
                                type. Without this name, such rope_parameters have no older form
        ROPE_DEFAULT            default rope_parameters, if not rope_type "default"
        ALIASES                 for a model_type, its names of settings -> names of fields, for files and for new models
        DEFAULTS                defaults of each model_type, for files that implement several model types

A value must have the type of the field's annotation; an int is accepted as a float, and a bool only
as a bool. An `int` field is a size, 1 to 2**24, and a `float` field a rate, 0 to 1, unless the
field's metadata has another "range". Fields with other annotations have no range unless the
metadata gives one. Further metadata: "choices", the allowed values; "model_types", the model types
with this setting. Other model types must use the default.

A setting that changes the result is never ignored: it is used, or an error names it.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from reprlib import repr as brief
from typing import TYPE_CHECKING, TypeVar

from minhub_py.models.settings import HEAD_SETTINGS, unavailable
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.shapes import fits
from minhub_py.system.spelling import setting, similar

if TYPE_CHECKING:  # keeps `minhub` fast: PyTorch is imported on first use
    from minhub_py.models.settings import ModelConfig

C = TypeVar("C", bound="ModelConfig")

MAX_LIST = 10_000  # items of a setting: the layers have up to 4,096
SIZE, RATE = (1, 2**24), (0.0, 1.0)

# Settings of generation, now in generation_config.json, and of tasks.
GENERATION = frozenset(
    """
    prefix task_specific_params forced_bos_token_id forced_eos_token_id
    do_sample temperature top_k top_p typical_p min_length max_length num_beams num_beam_groups diversity_penalty
    length_penalty repetition_penalty encoder_no_repeat_ngram_size no_repeat_ngram_size bad_words_ids
    renormalize_logits
    suppress_tokens begin_suppress_tokens exponential_decay_length_penalty remove_invalid_values
    num_return_sequences early_stopping min_new_tokens
    """.split()
)
# Settings without effect on the logits: metadata, generation defaults, and output heads for other
# tasks.
NO_EFFECT = GENERATION | frozenset(
    """
    model_type architectures transformers_version torch_dtype dtype use_cache gradient_checkpointing auto_map
    tokenizer_class name_or_path problem_type id2label label2id num_labels finetuning_task
    output_attentions output_hidden_states output_past output_scores return_dict
    return_dict_in_generate torchscript use_bfloat16 tf_legacy_loss is_decoder cross_attention_hidden_size
    sep_token_id unk_token_id decoder_start_token_id eos_token_ids xla_device attn_implementation
    transformers.js_config unsloth_fixed unsloth_version
    """.split()
)
# Settings that would change the result of any model, with the only supported value.
ONLY_VALUE = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "chunk_size_feed_forward": 0,
    "tie_encoder_decoder": False,
    # transformers computes bidirectional attention if a decoder's file sets False
    "is_causal": True,
    "use_bidirectional_attention": False,
    "use_mrope": False,  # three-dimensional positions, for images; Qwen's text models set False
}


def read(Config: type[C], hub: Mapping[str, object]) -> C:
    """The dataclass for a config.json. ValueError: a setting or value is not supported; the message
    names it.
    """
    names = {field.name for field in dataclasses.fields(Config)}
    only = ONLY_VALUE | dict(getattr(Config, "ONLY_VALUE", {}))
    ignored = (NO_EFFECT | getattr(Config, "NO_EFFECT", frozenset())) - getattr(
        Config, "ONLY_VALUE", {}
    ).keys()
    derived = getattr(Config, "DERIVED", ())
    title = Config.TITLE
    aliases = getattr(Config, "ALIASES", {}).get(hub.get("model_type"), {})
    hub = one_rope(Config, {aliases.get(name, name): value for name, value in hub.items()})
    for name, value in hub.items():
        if name in names or name in ignored or name in derived or name.startswith("_"):
            continue
        if name not in only:
            raise ValueError(
                f"{title}: config.json has a setting {name[:80]!r} that this implementation does"
                " not know. If it does not change the model, delete it from a local copy and load"
                " that folder"
            )
        if value not in (only[name], None):
            if name == "quantization_config" and isinstance(value, dict):
                raise ValueError(
                    f"{title}: config.json sets quantization_config: the weights are quantized"
                    f" (quant_method {brief(value.get('quant_method'))}), which this package does"
                    " not read; take the repository of the same model in BF16 or F16"
                    f" ({setting('quantize', 'int8')} makes it as small)"
                )
            raise ValueError(
                f"{title}: config.json sets {name} to {brief(value)}; this implementation has"
                f" {only[name]!r} only"
            )
    config = build(Config, {name: value for name, value in hub.items() if name in names})
    for name in derived:
        if hub.get(name, getattr(config, name)) != getattr(config, name):
            raise ValueError(f"{title}: config.json's {name} contradicts its other settings")
    return config


def build(Config: type[C], settings: Mapping[str, object]) -> C:
    """The dataclass for `settings`, each checked by type and range. ValueError: a setting is
    unknown or invalid.
    """
    fields = {field.name: field for field in dataclasses.fields(Config)}
    title = Config.TITLE
    settings = one_rope(Config, renamed(Config, settings, fields))
    if unknown := sorted(set(settings) - set(fields)):
        # stable: the architecture's own come first
        listed = sorted(fields, key=lambda name: name in HEAD_SETTINGS)
        valid = [*listed, *aliases_of(Config, settings), *older_rope_names(Config)]
        raise ValueError(
            f"{title} has no setting {', '.join(unknown)};"
            f" {similar(unknown, valid, 'its settings')}"
        )
    kinds = getattr(Config, "DEFAULTS", {})
    kind = settings.get("model_type", fields["model_type"].default) if kinds else None
    if kinds and kind not in list(kinds):  # not `in kinds`: a value from a file may be unhashable
        raise ValueError(f"{title}: model_type {brief(kind)} is not one of {', '.join(kinds)}")
    values = {**kinds.get(kind, {}), **settings}
    for name, value in values.items():
        check(title, fields[name], value)
    for name, default in sorted(unavailable(Config, str(kind)).items()) if kinds else ():
        if values.get(name, default) != default:
            raise ValueError(f"{title}: a {kind} model has no {name}, but config.json sets it")
    return Config(**values)


def renamed(
    Config: "type[ModelConfig]", settings: Mapping[str, object], fields: Collection[str]
) -> dict[str, object]:
    """The settings with the names of fields, where they have config.json's names for a model type
    (ALIASES).

    ValueError: two names of one setting.
    """
    aliases = {
        name: field for name, field in aliases_of(Config, settings).items() if name not in fields
    }
    for name in aliases.keys() & settings.keys():
        if aliases[name] in settings:
            raise ValueError(
                f"{Config.TITLE}: {name} and {aliases[name]} are names of one setting: use one of"
                " them"
            )
    return {aliases.get(name, name): value for name, value in settings.items()}


def aliases_of(Config: object, settings: Mapping[str, object]) -> Mapping[str, str]:
    """ALIASES for the model type in `settings`, or else for the default model type."""
    tables = getattr(Config, "ALIASES", {})
    return tables.get(
        settings.get("model_type", getattr(Config, "model_type", next(iter(tables), None))), {}
    )


def rope_names(Config: object) -> dict[str, str]:
    """Older names of rotary settings -> names in rope_parameters."""
    return {"rope_theta": "rope_theta", **getattr(Config, "ROPE_NAMES", {})}


def older_rope_names(Config: "type[ModelConfig]") -> list[str]:
    """Names of rotary settings that `one_rope` moves to rope_parameters; none without rotary
    embeddings.
    """
    if not any(field.name == "rope_parameters" for field in dataclasses.fields(Config)):
        return []
    return [*rope_names(Config), "rope_scaling"]


def changed(config: C, changes: Mapping[str, object]) -> C:
    """A copy of `config` with some settings changed, each checked as in `build`. Accepts aliases
    and older names. With fewer layers, the settings of each layer are cut.
    """
    values: JsonObject = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(config)
    }
    kind = {"model_type": values["model_type"]} if "model_type" in values else {}
    changes = renamed(type(config), kind | dict(changes), values)
    one_rope(type(config), changes)  # ValueError: they contradict each other
    older = older_rope_names(type(config))
    if "rope_parameters" not in changes and changes.keys() & {
        *older,
        getattr(config, "LOCAL_THETA", None),
    }:
        values["rope_parameters"] = changed_rope(type(config), values["rope_parameters"], changes)
        changes = {name: value for name, value in changes.items() if name not in older}
    if "num_hidden_layers" in changes.keys() & values.keys():
        values |= layer_settings(type(config), values, changes)
    return build(type(config), values | changes)


def layer_settings(
    Config: "type[ModelConfig]", values: JsonMapping, changes: JsonMapping
) -> JsonObject:
    """The settings of `values` that have an element per layer, for another num_hidden_layers.

    ValueError: there are more layers than before.
    """
    old, new = values["num_hidden_layers"], changes["num_hidden_layers"]
    names = [
        name
        for name in ("layer_types", "no_rope_layers")
        if name not in changes and isinstance(values.get(name), list | tuple)
    ]
    if names and type(new) is int and new > old:
        raise ValueError(
            f"{Config.TITLE}: {names[0]} describes {old} layers, not {new}: set {names[0]}, too,"
            f" or num_hidden_layers to at most {old}"
        )
    return {name: values[name][:new] for name in names if type(new) is int}


def changed_rope(
    Config: object, parameters: Mapping[str, object] | None, changes: JsonMapping
) -> dict[str, object] | None:
    """The rope_parameters with the values that `changes` has under older names. `one_rope`
    describes these names.
    """
    merged = dict(parameters or getattr(Config, "ROPE_DEFAULT", {}))
    is_nested = any(isinstance(value, Mapping) for value in merged.values())
    rope, names = merged.get("full_attention") or {} if is_nested else merged, rope_names(Config)
    if "rope_scaling" in changes:
        rope = {to: rope[to] for to in names.values() if to in rope} | (
            changes["rope_scaling"] or {}
        )
    rope = {**rope, **{to: changes[name] for name, to in names.items() if name in changes}}
    if not is_nested:
        return rope or None
    merged["full_attention"] = rope
    theta = getattr(Config, "LOCAL_THETA", "")
    if theta in changes:
        merged["sliding_attention"] = {
            **(merged.get("sliding_attention") or {}),
            "rope_theta": changes[theta],
        }
    return merged


def check(title: str, field: "dataclasses.Field[object]", value: object) -> None:
    """ValueError: the value has the wrong type or is out of range."""
    if not fits(value, field.type) or (isinstance(value, list | tuple) and len(value) > MAX_LIST):
        raise ValueError(f"{title}: {field.name} cannot be {brief(value)}")
    usual = SIZE if field.type is int else RATE if field.type is float else (-math.inf, math.inf)
    low, high = field.metadata.get("range", usual)
    if isinstance(value, int | float) and not low <= value <= high:  # also refuses NaN
        bounds = f"{low:g} to {high:g}" if field.type is float else f"{low} to {high}"
        raise ValueError(
            f"{title}: {field.name} cannot be {brief(value)}: it is a number of {bounds}"
        )
    if "choices" in field.metadata and value not in field.metadata["choices"]:
        raise ValueError(
            f"{title}: {field.name} {brief(value)} is not one of"
            f" {', '.join(map(str, field.metadata['choices']))}"
        )


def one_rope(Config: "type[ModelConfig]", hub: JsonMapping) -> JsonMapping:
    """Merge all rotary settings into rope_parameters, a dict with rope_type and rope_theta.

    Older files have rope_theta, rope_scaling (with `type` for rope_type) and the names in
    Config.ROPE_NAMES. The result may contain one dict per layer type. Settings of an architecture
    without rotary embeddings are returned unchanged.
    ValueError: the settings contradict each other.
    """
    if not older_rope_names(Config):
        return hub
    title, names = Config.TITLE, rope_names(Config)
    settings = dict(hub)
    new, old = settings.pop("rope_parameters", None), settings.pop("rope_scaling", None)
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(value, dict | None):
            raise ValueError(f"{title}: {name} cannot be {brief(value)}")
    separate = [
        (to, value) for name, to in names.items() if (value := settings.pop(name, None)) is not None
    ]
    if new and any(isinstance(value, dict) for value in new.values()):
        # One dict per layer type. Older names apply to the layers with full attention.
        merged = one_rope(Config, {**hub, "rope_parameters": new.get("full_attention")})
        return {
            **merged,
            "rope_parameters": {**new, "full_attention": merged.get("rope_parameters")},
        }
    if not (new or old or separate):
        return settings if new is None else {**settings, "rope_parameters": new}
    rope = dict(old or new or getattr(Config, "ROPE_DEFAULT", {}))
    for name in names.values():
        values = [source[name] for source in (new, old) if source and name in source]
        values += [value for to, value in separate if to == name]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"{title}: config.json names two values of {name}: {brief(values[0])} and"
                f" {brief(values[-1])}"
            )
        rope |= {name: values[0]} if values else {}
    if (
        new
        and old
        and any(value != _settings(old).get(name, value) for name, value in _settings(new).items())
    ):
        raise ValueError(
            f"{title}: config.json's rope_parameters and rope_scaling contradict each other"
        )
    rope["rope_type"] = _kind(rope)
    rope.pop("type", None)
    return {**settings, "rope_parameters": rope}


def _kind(rope: Mapping[str, object]) -> object:
    return rope.get("rope_type", rope.get("type", "default"))


def _settings(rope: Mapping[str, object]) -> dict[str, object]:
    """Rotary settings with rope_type, without its older name."""
    return {
        **{name: value for name, value in rope.items() if name != "type"},
        "rope_type": _kind(rope),
    }


def with_older_rope(config: "ModelConfig", settings: JsonMapping) -> dict[str, object]:
    """The settings of a config.json with rope_parameters, and the same in the older form: the
    inverse of `one_rope`.

    transformers 4 ignores rope_parameters. Names of the older form that have a value in `settings`
    keep it. Settings without an older form, such as different scalings of two layer types, are
    returned unchanged.
    """
    parameters, stated = (
        settings.get("rope_parameters") or {},
        getattr(config, "rope_parameters", None) or {},
    )
    if not parameters:
        return dict(settings)
    names = {to: name for name, to in rope_names(config).items()}
    older: dict[str, object] = {"rope_scaling": None}
    nested = any(isinstance(value, Mapping) for value in parameters.values())
    if nested:
        theta, local = (
            getattr(config, "LOCAL_THETA", None),
            parameters.get("sliding_attention") or {},
        )
        parameters, stated = (
            parameters.get("full_attention") or {},
            stated.get("full_attention", stated) or {},
        )
        two = theta == "rope_theta" and local.get("rope_theta") != parameters.get("rope_theta")
        if theta is None or two or _kind(local) != "default":
            return dict(settings)
        older[theta] = local.get("rope_theta")
    older |= {name: parameters[to] for to, name in names.items() if to in parameters}
    if (kind := _kind(parameters)) != "default":
        # transformers 4 requires all settings of llama3, and some of its classes reject defaults of
        # other kinds.
        expected = (
            set(parameters if kind == "llama3" else stated or parameters)
            - names.keys()
            - {"rope_type", "type"}
        )
        scaling = {name: value for name, value in parameters.items() if name in expected}
        older["rope_scaling"] = {
            "rope_type" if nested or kind == "llama3" else "type": kind,
            **scaling,
        }
    return {
        **settings,
        **{name: value for name, value in older.items() if settings.get(name) is None},
    }
