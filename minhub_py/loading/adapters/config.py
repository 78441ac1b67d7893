"""An adapter's settings: PEFT's adapter_config.json.

Every setting that changes the result is supported or rejected by name. Defaults are PEFT's (0.21).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import Annotated, TypedDict

from minhub_py.loading.adapters.patterns import full_match, parse
from minhub_py.system.shapes import TokenID, Within, convert, members

# Settings without an effect on the result of a saved adapter. fan_in_fan_out describes the base's
# memory layout.
NO_EFFECT = frozenset(
    """arrow_config auto_mapping base_model_name_or_path corda_config eva_config fan_in_fan_out
    inference_mode init_lora_weights loftq_config lora_ga_config megatron_config megatron_core monteclora_config
    peft_type peft_version qalora_group_size revision runtime_config task_type velora_config""".split()
)
# These methods of initialization leave the base unchanged; others, such as pissa, need another
# base.
INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
# PEFT's targets if target_modules is absent, by model_type.
DEFAULT_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon"), ("query_key_value",)),
    **dict.fromkeys(
        (
            "gptj",
            "gpt_neo",
            "opt",
            "llama",
            "mistral",
            "mixtral",
            "gemma",
            "gemma2",
            "gemma3_text",
            "qwen2",
            "qwen3",
            "stablelm",
        ),
        ("q_proj", "v_proj"),
    ),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mpt": ("Wqkv",),
    "rwkv": ("key", "value", "receptance", "output"),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "t5": ("q", "v"),
    "bart": ("q_proj", "v_proj"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), ("query", "value")),
    "distilbert": ("q_lin", "v_lin"),
    "deberta": ("in_proj",),
    "deberta-v2": ("query_proj", "value_proj"),
}
ALL_LINEAR = "all-linear"
SORTED = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_pattern",
    "layers_to_transform",
)
ADVICE = "correct the file, or save the adapter again"
TokenIDs = Annotated[tuple[TokenID, ...], Within(1)]


class AdapterFile(TypedDict, total=False):
    """The members of adapter_config.json that concern the base, in the formats of PEFT and mlx-lm."""

    peft_type: str
    task_type: str
    base_model_name_or_path: str
    revision: str


@dataclass(frozen=True)
class AdapterConfig:
    """A LoRA adapter's settings, by their names in adapter_config.json.

    target_modules: names or endings of names; a text is a regular expression for the full name, or
    "all-linear".
    None: PEFT's choice for the architecture.
    ensure_weight_tying: trained copies of a tied embedding also apply to the head, and the reverse.
    trainable_token_indices: token IDs whose rows of the embedding are trained, or such IDs by
    module.
    alora_invocation_tokens: token IDs that activate the adapter (models/lora.py); None: it is
    always active.
    """

    r: Annotated[int, Within(1, 2**24)] = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    target_modules: tuple[str, ...] | str | None = None
    exclude_modules: tuple[str, ...] | str | None = None
    modules_to_save: tuple[str, ...] = ()
    bias: str = "none"
    use_rslora: bool = False
    use_dora: bool = False
    layers_to_transform: tuple[Annotated[int, Within(0, 2**24)], ...] | None = None
    layers_pattern: tuple[str, ...] = ()
    rank_pattern: Mapping[str, Annotated[int, Within(1, 2**24)]] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    ensure_weight_tying: bool = False
    trainable_token_indices: TokenIDs | Mapping[str, TokenIDs] | None = None
    alora_invocation_tokens: TokenIDs | None = None
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        for name, shape in members(AdapterConfig)[0].items():
            convert(getattr(self, name), shape, path=name)
        for name, value in (("lora_alpha", self.lora_alpha), *self.alpha_pattern.items()):
            if value <= 0:
                raise ValueError(f"{name} must be a number above 0, not {value!r}")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(
                f"lora_dropout must be at least 0 and below 1, not {self.lora_dropout!r}"
            )
        if self.bias not in ("none", "all", "lora_only"):
            raise ValueError(f"bias must be none, all or lora_only, not {self.bias!r}")
        indices = self.trainable_token_indices
        for ids in indices.values() if isinstance(indices, Mapping) else [indices or ()]:
            if len(set(ids)) < len(ids):
                raise ValueError(
                    "trainable_token_indices must be a list of different token IDs, or such lists"
                    f" by module, not {brief(indices)}"
                )
        self._check_patterns()
        if self.alora_invocation_tokens is not None:
            self._check_activated()

    def _check_patterns(self) -> None:
        """ValueError: a regular expression is invalid or not supported."""
        texts = [(name, getattr(self, name)) for name in ("target_modules", "exclude_modules")]
        patterns = [
            (name, text) for name, text in texts if isinstance(text, str) and text != ALL_LINEAR
        ]
        for name in ("rank_pattern", "alpha_pattern", "layers_pattern"):
            patterns += [(name, ending(pattern)) for pattern in getattr(self, name)]
        for name, pattern in patterns:
            try:
                parse(pattern)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error

    def _check_activated(self) -> None:
        """ValueError: a setting that an activated adapter does not support."""
        always = [
            name
            for name in ("use_dora", "modules_to_save", "trainable_token_indices")
            if getattr(self, name)
        ]
        always += ["bias"] * (self.bias != "none")
        if always:
            raise ValueError(
                f"{', '.join(always)} cannot be combined with alora_invocation_tokens, which"
                " activates factors of LoRA only"
            )
        if self.task_type not in (None, "CAUSAL_LM"):
            raise ValueError(
                "alora_invocation_tokens is for language models, not for task_type"
                f" {self.task_type}"
            )

    def rank(self, module: str) -> int:
        """A module's rank, by its Hub name."""
        return int(pattern_value(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        """A module's factor s: alpha / r, or alpha / √r."""
        rank, alpha = self.rank(module), pattern_value(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def to_json(self, transposed: bool) -> dict[str, object]:
        """The content of adapter_config.json.    transposed: the base stores its weights (in, out),
        as GPT-2.
        """
        targets, tokens = self.target_modules, self.alora_invocation_tokens
        indices = self.trainable_token_indices
        return {
            "peft_type": "LORA",
            "auto_mapping": None,
            "inference_mode": True,
            "fan_in_fan_out": transposed,
            "base_model_name_or_path": self.base_model_name_or_path,
            "revision": self.revision,
            # PEFT looks for the invocation with this task type only.
            "task_type": self.task_type if tokens is None else "CAUSAL_LM",
            "r": self.r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": list(targets) if isinstance(targets, tuple) else targets,
            "exclude_modules": (
                list(self.exclude_modules)
                if isinstance(self.exclude_modules, tuple)
                else self.exclude_modules
            ),
            "modules_to_save": list(self.modules_to_save) or None,
            "bias": self.bias,
            "use_rslora": self.use_rslora,
            "use_dora": self.use_dora,
            "init_lora_weights": True,
            "layers_to_transform": (
                None if self.layers_to_transform is None else list(self.layers_to_transform)
            ),
            "layers_pattern": list(self.layers_pattern) or None,
            "rank_pattern": dict(self.rank_pattern),
            "alpha_pattern": dict(self.alpha_pattern),
            "alora_invocation_tokens": None if tokens is None else list(tokens),
            "ensure_weight_tying": self.ensure_weight_tying,
            "trainable_token_indices": (
                {name: list(ids) for name, ids in indices.items()}
                if isinstance(indices, Mapping)
                else None
                if indices is None
                else list(indices)
            ),
        }


def ending(pattern: str) -> str:
    """The regular expression of names that end with a match of `pattern`, after a dot."""
    return rf"(.*\.)?({pattern})"


def pattern_value(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first pattern that matches the end of a module's name."""
    for pattern, value in patterns.items():
        if full_match(ending(pattern), module):
            return value
    return default


def read_config(values: Mapping[str, object], source: str) -> AdapterConfig:
    """The settings in adapter_config.json. ValueError: a setting is not supported; the message
    names it.
    """
    kind = values.get("peft_type")
    if kind != "LORA":
        raise ValueError(
            f"{source}: peft_type is {brief(kind)}; only LORA adapters are supported, which include"
            " DoRA"
        )
    if values.get("init_lora_weights") not in INITIALIZATIONS:
        raise ValueError(
            f"{source}: init_lora_weights is {brief(values['init_lora_weights'])}, whose adapter"
            " does not fit the unchanged base: convert it with PEFT's save_pretrained(…,"
            " path_initial_model_for_weight_conversion=…)"
        )
    names = AdapterConfig.__dataclass_fields__
    if unsupported := sorted(
        name for name, value in values.items() if name not in NO_EFFECT | names.keys() and value
    ):
        raise ValueError(
            f"{source}: {', '.join(unsupported)} is not supported: retrain the adapter without it"
        )
    settings = {
        name: normal(name, value)
        for name, value in values.items()
        if name in names and value is not None
    }
    try:
        config: AdapterConfig = convert(settings, AdapterConfig, advice=ADVICE)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return config


def normal(name: str, value: object) -> object:
    """A setting in one form: lists of names and of layers are sorted; a single layer and pattern
    are lists.
    """
    if (name == "layers_to_transform" and type(value) is int) or (
        name == "layers_pattern" and isinstance(value, str)
    ):
        return [value]
    if name == "layers_to_transform" and value == []:
        return None  # as in PEFT: all layers
    if (
        name in SORTED
        and isinstance(value, list)
        and len(set(map(type, value))) == 1
        and type(value[0]) in (int, str)
    ):
        return sorted(value)
    return value
