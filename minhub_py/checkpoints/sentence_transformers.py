"""The settings of text embeddings in repositories of sentence-transformers: pooling, dense layers, prompts.

`modules.json` lists the modules after each other: a transformer, pooling, dense layers and normalization. Module types
have three spellings, of old and new releases; only the last part of the name is compared.

Source: the file formats of sentence-transformers 2 to 6 (Reimers & Gurevych, 2019, "Sentence-BERT").
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from minhub_py.checkpoints.storage import read_json, read_object

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
# Settings of old releases, one for each pooling.
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x, "Tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu, "Sigmoid": torch.sigmoid,
    "SiLU": F.silu,
}  # fmt: skip
# Names of the settings of the transformer module.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta", "albert")
)


@dataclass(frozen=True)
class Dense:
    """A linear layer after pooling. weight: (out, in) float32."""

    weight: Tensor
    bias: Tensor | None
    activation: str
    residual: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        y = ACTIVATIONS[self.activation](F.linear(x, self.weight, self.bias))
        return x + y if self.residual else y


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a repository computes text embeddings. The defaults are for repositories without modules.json.

    pooling: several are concatenated.    max_length: in tokens, with special tokens; None: the model's.
    prompts: name -> text before each text.    include_prompt: whether pooling includes the prompt's tokens.
    """

    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_prompt: str | None = None
    dimensions: int | None = None


def read_embedding_settings(folder: Path) -> EmbeddingSettings | None:
    """The settings of a folder; None without modules.json.

    ValueError: a file is corrupt, or a module is not supported; the message names it.
    """
    if not folder.is_dir() or not (folder / "modules.json").exists():
        return None
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{folder / 'modules.json'} is corrupt: it must be a list of modules")
    pooling: tuple[str, ...] = ("mean",)
    include_prompt, normalize = True, False
    dense: list[Dense] = []
    for module in modules:
        kind, path = str(module.get("type")).rpartition(".")[2], str(module.get("path", ""))
        if kind in ("Transformer", "LogitScore"):  # the latter scores "yes" against "no", as rerank() does
            continue
        if kind == "Pooling":
            pooling, include_prompt = read_pooling(inside(folder, path) / "config.json")
        elif kind == "Dense" and not normalize:
            dense.append(read_dense(inside(folder, path)))
        elif kind == "Normalize":
            normalize = True
        else:
            raise ValueError(f"{folder / 'modules.json'} has a module {brief(kind)}, which is not supported")
    general = folder / "config_sentence_transformers.json"
    settings = read_object(general) if general.exists() else {}
    transformer: dict[str, Any] = {}
    for name in TRANSFORMER_SETTINGS:
        if (folder / name).exists():
            transformer = read_object(folder / name)
    prompts = settings.get("prompts") or {}
    return EmbeddingSettings(
        pooling=pooling, include_prompt=include_prompt, dense=tuple(dense), normalize=normalize,
        max_length=max_length(folder, transformer), lower_case=bool(transformer.get("do_lower_case")),
        prompts=MappingProxyType({str(name): str(text) for name, text in dict(prompts).items()}),
        default_prompt=settings.get("default_prompt_name"), dimensions=settings.get("truncate_dim"),
    )  # fmt: skip


def inside(folder: Path, path: str) -> Path:
    """A module's folder. ValueError: it is not in `folder`."""
    if path and not (path.replace("_", "").isalnum() and path.isascii()):
        raise ValueError(f"{folder / 'modules.json'} names a folder {brief(path)}: do not use it")
    return folder / path


def max_length(folder: Path, transformer: Mapping[str, Any]) -> int | None:
    """Maximum number of tokens: of the transformer module, or else of the tokenizer."""
    length = transformer.get("max_seq_length")
    if length is None and (folder / "tokenizer_config.json").exists():
        length = read_object(folder / "tokenizer_config.json").get("model_max_length")
    return int(length) if isinstance(length, int | float) and 0 < length < 2**31 else None


def read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """The poolings, and whether they include the prompt. ValueError: a pooling is unknown."""
    settings = read_object(path)
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [name for old, name in OLD_POOLINGS.items() if settings.get(old)]
    modes = [modes] if isinstance(modes, str) else list(modes)
    for mode in modes:
        if mode not in POOLINGS:
            raise ValueError(f"{path} has pooling {brief(mode)}; supported are {', '.join(POOLINGS)}")
    return tuple(modes) or ("mean",), bool(settings.get("include_prompt", True))


def read_dense(folder: Path) -> Dense:
    """A dense layer. ValueError: its activation is unknown; FileNotFoundError: its weights are missing."""
    settings = read_object(folder / "config.json")
    name = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ValueError(f"{folder / 'config.json'} has activation {brief(name)}, which is not supported")
    path = folder / "model.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: download the repository again, or convert pytorch_model.bin")
    tensors = load_file(path)
    bias = tensors.get("linear.bias")
    return Dense(
        tensors["linear.weight"].float(), None if bias is None else bias.float(), name,
        bool(settings.get("use_residual", False)),
    )  # fmt: skip
