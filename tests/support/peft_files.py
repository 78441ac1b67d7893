"""Files of PEFT's adapters with random tensors, and the weights that they mean by the definitions
of the settings.

A case lists the tensors of its file, with PEFT's names: tests/loading/test_peft_settings.py
compares them with PEFT's.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCABULARY = 60
SMALL = {
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HIDDEN = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
BASES: dict[str, dict[str, Any]] = {
    "llama": {
        **SMALL,
        **HIDDEN,
        "model_type": "llama",
        "num_key_value_heads": 2,
        "attention_bias": True,
    },
    "gpt2": {
        **SMALL,
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
    },
    "gpt_neox": {**SMALL, **HIDDEN, "model_type": "gpt_neox"},
}
BASES |= {
    f"{name} tied": {**settings, "tie_word_embeddings": True} for name, settings in BASES.items()
}
EMBEDDING = {
    "llama": "model.embed_tokens",
    "gpt2": "transformer.wte",
    "gpt_neox": "gpt_neox.embed_in",
}
HEAD = {"llama": "lm_head", "gpt2": "lm_head", "gpt_neox": "embed_out"}
E, H = EMBEDDING["llama"], HEAD["llama"]
RANK, ALPHA = 4, 6
EMBEDDING_FACTORS = f"{E}.lora_embedding_A {E}.lora_embedding_B"
HEAD_FACTORS = f"{H}.lora_A.weight {H}.lora_B.weight"
BIASES = " ".join(f"model.layers.{i}.self_attn.{name}_proj.bias" for i in (0, 1) for name in "kov")
NORMS = " ".join(
    f"model.layers.{i}.{name}_layernorm.weight"
    for i in (0, 1)
    for name in ("input", "post_attention")
)
TOKENS = "token_adapter.trainable_tokens_delta"


@dataclass(frozen=True)
class Case:
    """An adapter: the settings, and the tensors of its file in addition to the factors of
    `targets`.

    tied, untied: the tensors for each kind of base; None if the case does not apply.    rows: of
    the embeddings.
    """

    settings: Mapping[str, Any]
    untied: str | None = ""
    tied: str | None = "as untied"
    targets: tuple[str, ...] = ("q_proj",)
    rows: int = VOCABULARY
    base: str = "llama"
    # that targets select; by default all with these endings
    modules: tuple[str, ...] = field(default=())

    def names(self, tied: bool) -> list[str] | None:
        names = self.untied if not tied or self.tied == "as untied" else self.tied
        return None if names is None else names.split()


TARGET = {"target_modules": ["q_proj"]}
LLAMA = {
    "rank and alpha patterns": Case(
        {
            **TARGET,
            "rank_pattern": {r"0\.self_attn\.q_proj": 2},
            "use_rslora": True,
            "alpha_pattern": {"^model.layers.1.self_attn.q_proj": 3},
        }
    ),
    "layers": Case(
        {**TARGET, "layers_to_transform": [1], "layers_pattern": "layers"},
        modules=("model.layers.1.self_attn.q_proj",),
    ),
    "no layers": Case({**TARGET, "layers_to_transform": []}),
    "regular expression": Case(
        {"target_modules": r"^(?!.*\.1\.).*\.(?:q|down)_proj$"},
        modules=("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"),
    ),
    "exclude": Case(
        {**TARGET, "exclude_modules": r".*\.0\..*"}, modules=("model.layers.1.self_attn.q_proj",)
    ),
    "dora": Case({**TARGET, "use_dora": True}),
    "head": Case({"target_modules": ["q_proj", H]}, f"{HEAD_FACTORS} {H}.base_layer.weight"),
    "head dora": Case(
        {"target_modules": ["q_proj", H], "use_dora": True, "use_rslora": True},
        f"{HEAD_FACTORS} {H}.base_layer.weight {H}.lora_magnitude_vector",
    ),
    "embedding": Case(
        {"target_modules": ["q_proj", "embed_tokens"]}, f"{EMBEDDING_FACTORS} {E}.base_layer.weight"
    ),
    "embedding dora": Case(
        {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
        f"{EMBEDDING_FACTORS} {E}.base_layer.weight {E}.lora_magnitude_vector",
    ),
    "embedding and head": Case(
        {"target_modules": ["q_proj", "embed_tokens", H]},
        f"{EMBEDDING_FACTORS} {HEAD_FACTORS} {E}.base_layer.weight {H}.base_layer.weight",
    ),
    "tied factors": Case(
        {"target_modules": ["q_proj", "embed_tokens", E], "ensure_weight_tying": True},
        None,
        f"{EMBEDDING_FACTORS} {HEAD_FACTORS} {E}.base_layer.weight {H}.base_layer.weight",
    ),
    "bias all": Case({**TARGET, "bias": "all"}, BIASES),
    "bias of targets": Case({**TARGET, "bias": "lora_only", "use_dora": True}),
    "bias and copies": Case(
        {**TARGET, "bias": "all", "modules_to_save": ["v_proj"]},
        BIASES
        + " ".join(
            f" model.layers.{i}.self_attn.v_proj.{name}"
            for i in (0, 1)
            for name in ("weight", "modules_to_save.bias", "original_module.bias")
        ),
    ),
    "copy of the embedding": Case({**TARGET, "modules_to_save": ["embed_tokens"]}, f"{E}.weight"),
    "copy of the head": Case({**TARGET, "modules_to_save": ["lm_head"]}, f"{H}.weight"),
    "copies of both": Case(
        {**TARGET, "modules_to_save": ["embed_tokens", "lm_head"]}, f"{E}.weight {H}.weight"
    ),
    "tied copies": Case(
        {**TARGET, "modules_to_save": [E], "ensure_weight_tying": True},
        None,
        f"{E}.weight {H}.weight",
    ),
    "copies of norms": Case({**TARGET, "modules_to_save": ["norm"]}, f"{NORMS} model.norm.weight"),
    "tokens": Case({**TARGET, "trainable_token_indices": [7, 3]}, f"{E}.{TOKENS}"),
    "tokens of the head": Case(
        {**TARGET, "trainable_token_indices": {"lm_head": [7, 3]}}, f"{H}.{TOKENS}"
    ),
    "tokens of both": Case(
        {**TARGET, "trainable_token_indices": {"embed_tokens": [3, 7], "lm_head": [3, 7]}},
        f"{E}.{TOKENS} {H}.{TOKENS}",
        f"{E}.{TOKENS}",
    ),
    "other tokens of the head": Case(
        {**TARGET, "trainable_token_indices": {"embed_tokens": [3, 7], "lm_head": [4]}},
        f"{E}.{TOKENS} {H}.{TOKENS}",
    ),
    "tied tokens": Case(
        {**TARGET, "trainable_token_indices": [3, 7], "ensure_weight_tying": True},
        None,
        f"{E}.{TOKENS}",
    ),
    "added tokens": Case(TARGET, f"{E}.weight {H}.weight", rows=64),
    "removed tokens": Case(TARGET, f"{E}.weight {H}.weight", rows=50),
    "added tokens, copy": Case(
        {**TARGET, "modules_to_save": ["embed_tokens"]},
        f"{E}.weight {H}.weight {E}.modules_to_save.weight {E}.original_module.weight",
        rows=64,
    ),
    "added tokens, copies": Case(
        {**TARGET, "modules_to_save": ["embed_tokens", "lm_head"]},
        " ".join(
            f"{module}.{name}"
            for module in (E, H)
            for name in ("weight", "modules_to_save.weight", "original_module.weight")
        ),
        rows=64,
    ),
    "added tokens, trained": Case(
        {**TARGET, "trainable_token_indices": [60, 63]},
        f"{E}.{TOKENS} {E}.token_adapter.base_layer.weight {H}.weight",
        f"{E}.{TOKENS} {H}.{TOKENS} {E}.token_adapter.base_layer.weight"
        f" {H}.token_adapter.base_layer.weight",
        rows=64,
    ),
    "added tokens, head": Case(
        {"target_modules": ["q_proj", H]}, None, f"{HEAD_FACTORS} {H}.base_layer.weight", rows=64
    ),
}
OTHERS = {
    "gpt2 bias": Case(
        {"target_modules": ["c_attn"], "bias": "lora_only"}, targets=("attn.c_attn",), base="gpt2"
    ),
    "gpt2 copies": Case(
        {"target_modules": ["c_fc"], "modules_to_save": ["ln_f", "wte", "0.mlp.c_proj"]},
        "transformer.ln_f.weight transformer.ln_f.bias transformer.wte.weight "
        "transformer.h.0.mlp.c_proj.weight transformer.h.0.mlp.c_proj.bias",
        targets=("c_fc",),
        base="gpt2",
    ),
    "gpt2 embeddings": Case(
        {"target_modules": ["c_fc", "wte", "wpe"]},
        " ".join(
            f"transformer.{name}.lora_embedding_{part}" for name in ("wte", "wpe") for part in "AB"
        ),
        targets=("c_fc",),
        base="gpt2",
    ),
    "gpt2 tokens": Case(
        {"target_modules": ["c_fc"], "trainable_token_indices": {"wte": [5]}},
        f"transformer.wte.{TOKENS}",
        targets=("c_fc",),
        base="gpt2",
    ),
    "neox bias": Case(
        {"target_modules": ["query_key_value"], "bias": "lora_only"},
        targets=("query_key_value",),
        base="gpt_neox",
    ),
}
CASES = LLAMA | OTHERS
TABLE = [
    (name, tied)
    for name, case in CASES.items()
    for tied in (False, True)
    if case.names(tied) is not None
]


@torch.no_grad()
def logits(model: Any, ids: Tensor) -> Tensor:
    """A model's logits, ours or transformers'."""
    result = model(ids)
    return result if isinstance(result, Tensor) else result.logits  # type: ignore[no-any-return]


class PeftFile:
    """A case's tensors by PEFT's names without their prefix, and the weights of the model with
    the adapter.

    state: the tensors of the base in transformers' layout.
    """

    def __init__(self, case: Case, tied: bool, state: Mapping[str, Tensor]) -> None:
        self.case, self.tied = case, tied
        self.embedding, self.head = EMBEDDING[case.base], HEAD[case.base]
        self.state = {
            **state,
            f"{self.head}.weight": state.get(
                f"{self.head}.weight", state[f"{self.embedding}.weight"]
            ),
        }
        self.transposed = case.base == "gpt2"
        self.tensors: dict[str, Tensor] = {}
        names = case.names(tied)
        assert names is not None
        for module in self.targets():
            names += [f"{module}.lora_A.weight", f"{module}.lora_B.weight"]
            names += [f"{module}.lora_magnitude_vector"] * case.settings.get("use_dora", False)
            names += [f"{module}.base_layer.bias"] * (case.settings.get("bias", "none") != "none")
        generator = torch.Generator().manual_seed(len(names))
        for name in names:
            shape = self.shape(name)
            self.tensors[name] = 0.3 * torch.randn(shape, generator=generator)
            if name.endswith(("magnitude_vector", "norm.weight", "ln_f.weight")):
                self.tensors[name] += 1
            elif "weight" in name and "lora" not in name:
                self.tensors[name] *= 3
        self.make_consistent()

    def targets(self) -> list[str]:
        modules = [name.removesuffix(".weight") for name in self.state if name.endswith(".weight")]
        return list(self.case.modules) or [
            name for name in modules if name.endswith(self.case.targets)
        ]

    def rank(self, module: str) -> int:
        patterns = self.case.settings.get("rank_pattern", {})
        return next(
            (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)),
            RANK,
        )

    def scale(self, module: str) -> float:
        patterns, rank = self.case.settings.get("alpha_pattern", {}), self.rank(module)
        alpha = next(
            (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)),
            ALPHA,
        )
        return alpha / (math.sqrt(rank) if self.case.settings.get("use_rslora") else rank)

    def weight(self, module: str) -> Tensor:
        """The weight (out, in) of a linear layer of the base, or (tokens, channels)."""
        weight = self.state[f"{module}.weight"]
        return (
            weight.t()
            if self.transposed and "transformer.h." in module and weight.dim() == 2
            else weight
        )

    def shape(self, name: str) -> tuple[int, ...]:
        for ending in (
            ".token_adapter",
            ".base_layer",
            ".original_module",
            ".modules_to_save",
            ".lora",
        ):
            module, found, part = name.partition(ending)
            if found:
                break
        else:
            module, _, part = name.rpartition(".")
        if part.endswith("bias"):
            return tuple(self.state[f"{module}.bias"].shape)
        if not found or (".weight" in part and "_A" not in part and "_B" not in part):
            shape = tuple(self.state[f"{module}.weight"].shape)
            return (self.case.rows, *shape[1:]) if module in (self.embedding, self.head) else shape
        out, inner = self.weight(module).shape
        out = self.case.rows if module in (self.embedding, self.head) else out
        rank, is_embedding = self.rank(module), module == self.embedding
        ids = self.case.settings.get("trainable_token_indices", [])
        ids = (
            next((ids[key] for key in ids if module.endswith(key)), [])
            if isinstance(ids, dict)
            else ids
        )
        return {
            "_A.weight": (rank, inner),
            "_B.weight": (out, rank),
            "_embedding_A": (rank, out),
            "_embedding_B": (inner, rank),
            "_magnitude_vector": (inner if is_embedding else out,),
            ".trainable_tokens_delta": (len(ids), inner),
        }[part]

    def make_consistent(self) -> None:
        """Give tensors that PEFT shares the same values."""
        embedding, head, tensors = self.embedding, self.head, self.tensors
        for name in list(tensors):
            if ".modules_to_save." in name:
                tensors[name] = tensors[name.replace(".modules_to_save.", ".")].clone()
        if not self.tied:
            return
        if self.case.settings.get("ensure_weight_tying") and f"{head}.lora_A.weight" in tensors:
            tensors[f"{head}.lora_A.weight"] = (
                tensors[f"{embedding}.lora_embedding_B"].t().contiguous()
            )
            tensors[f"{head}.lora_B.weight"] = (
                tensors[f"{embedding}.lora_embedding_A"].t().contiguous()
            )
        saved = self.case.settings.get("modules_to_save", [])
        same = ["base_layer.weight", "token_adapter.base_layer.weight", "original_module.weight"]
        same += [TOKENS] * (not isinstance(self.case.settings.get("trainable_token_indices"), dict))
        same += ["weight"] * (not saved or self.case.settings.get("ensure_weight_tying", False))
        for name in same:
            if {f"{embedding}.{name}", f"{head}.{name}"} <= tensors.keys():
                tensors[f"{head}.{name}"] = tensors[f"{embedding}.{name}"].clone()
        if f"{embedding}.original_module.weight" in tensors and "lm_head" not in saved:
            tensors[f"{head}.weight"] = tensors[f"{embedding}.original_module.weight"].clone()

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        save_file(self.with_prefix(), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(self.config()))
        return folder

    def with_prefix(self) -> dict[str, Tensor]:
        """The tensors by their names in the file."""
        return {f"base_model.model.{name}": tensor for name, tensor in self.tensors.items()}

    def config(self) -> dict[str, Any]:
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": RANK,
            "lora_alpha": ALPHA,
            "inference_mode": True,
            "fan_in_fan_out": self.transposed,
            "base_model_name_or_path": None,
            **self.case.settings,
        }

    def weights(self) -> dict[str, Tensor]:
        """The weights of a model with an untied head that computes the same."""
        weights = {name: self.copy(name) for name in self.state}
        for module in {name.partition(".lora_")[0] for name in self.tensors if ".lora_" in name}:
            weights[f"{module}.weight"] = self.with_factors(module, weights[f"{module}.weight"])
        for module in (self.embedding, self.head):
            twin = self.embedding if self.tied else module
            owner = next(
                (each for each in (module, twin) if f"{each}.{TOKENS}" in self.tensors), None
            )
            if owner is not None:
                ids = self.case.settings["trainable_token_indices"]
                ids = ids[owner.rpartition(".")[2]] if isinstance(ids, dict) else ids
                rows = self.tensors[f"{owner}.{TOKENS}"]
                weights[f"{module}.weight"] = weights[f"{module}.weight"].index_copy(
                    0, torch.tensor(ids), rows
                )
        return weights

    def copy(self, name: str) -> Tensor:
        """The tensor without factors and tokens: the trained copy, or the tensor of the base."""
        module, _, leaf = name.rpartition(".")
        saved = any(module.endswith(key) for key in self.case.settings.get("modules_to_save", []))
        forms = [
            f"{module}.{leaf}",
            f"{module}.base_layer.{leaf}",
            f"{module}.token_adapter.base_layer.{leaf}",
        ]
        if module in (self.embedding, self.head) and self.tied:
            twin = self.head if module == self.embedding else self.embedding
            shares = not any(
                key.rpartition(".")[2] in f"{self.embedding} {self.head}"
                for key in self.case.settings.get("modules_to_save", [])
            )
            if shares or not saved:
                forms += [f"{module}.original_module.{leaf}", f"{twin}.original_module.{leaf}"]
            if shares:
                forms += [
                    f"{twin}.{leaf}",
                    f"{twin}.base_layer.{leaf}",
                    f"{twin}.token_adapter.base_layer.{leaf}",
                ]
        return next(
            (self.tensors[form] for form in forms if form in self.tensors), self.state[name]
        ).clone()

    def with_factors(self, module: str, weight: Tensor) -> Tensor:
        tensors, scale = self.tensors, self.scale(module)
        if f"{module}.lora_embedding_A" in tensors:
            a, b = tensors[f"{module}.lora_embedding_A"], tensors[f"{module}.lora_embedding_B"]
            changed = weight + scale * (b @ a).t()
            magnitude = tensors.get(f"{module}.lora_magnitude_vector")
            return changed if magnitude is None else changed * magnitude / changed.norm(dim=0)
        transposed = self.transposed and "transformer.h." in module
        changed = (weight.t() if transposed else weight) + scale * (
            tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]
        )
        magnitude = tensors.get(f"{module}.lora_magnitude_vector")
        if magnitude is not None:
            changed = changed * (magnitude / changed.norm(dim=1)).unsqueeze(1)
        return changed.t() if transposed else changed
