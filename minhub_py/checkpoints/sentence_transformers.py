"""The settings of text embeddings in repositories of sentence-transformers: pooling, dense layers,
prompts.

`modules.json` lists the modules after each other: a transformer, pooling, dense layers and
normalization. Module types have three spellings, of old and new releases; only the last part of the
name is compared.

Source: the file formats of sentence-transformers 2 to 6 (Reimers & Gurevych, 2019,
"Sentence-BERT").
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType
from typing import Annotated, TypedDict, TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor

from minhub_py.checkpoints.layout import TRANSFORMER_SETTINGS
from minhub_py.checkpoints.pickles import open_pickle
from minhub_py.system.shapes import Within, read_json

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
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": F.silu,
}
T = TypeVar("T")
DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in order of preference
ACTIVATION_CLASSES = {
    "Identity": "torch.nn.modules.linear.Identity",
    **{
        name: f"torch.nn.modules.activation.{name}"
        for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
    },
}


class Module(TypedDict, total=False):
    """A module in modules.json."""

    type: str
    path: str


class SentenceTransformersSettings(TypedDict, total=False):
    """config_sentence_transformers.json."""

    prompts: dict[str, str]
    default_prompt_name: str
    truncate_dim: Annotated[int, Within(1, 2**24)]
    similarity_fn_name: str


class TransformerSettings(TypedDict, total=False):
    """sentence_bert_config.json, or another of TRANSFORMER_SETTINGS."""

    max_seq_length: float
    do_lower_case: bool


class TokenizerLength(TypedDict, total=False):
    """The maximum length in tokenizer_config.json; 1e30 for none."""

    model_max_length: float


class PoolingSettings(TypedDict, total=False):
    """The settings of a pooling module. Old releases write a bool for each name of OLD_POOLINGS."""

    pooling_mode: str | list[str]
    include_prompt: bool


class DenseSettings(TypedDict, total=False):
    """The settings of a dense layer."""

    activation_function: str
    use_residual: bool


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
    """How a repository computes text embeddings. The defaults are for repositories without
    modules.json.

    pooling: several are concatenated.    has_pooling: whether a module of the repository pools;
    rerankers have none.
    max_length: in tokens, with special tokens; None: the model's.
    prompts: name -> text before each text.    include_prompt: whether pooling includes the prompt's
    tokens.
    similarity: the repository's `similarity_fn_name`, which only clients of sentence-transformers
    use.
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
    similarity: str | None = None
    has_pooling: bool = True


def read_embedding_settings(folder: Path) -> EmbeddingSettings | None:
    """The settings of a folder; None without modules.json.

    ValueError: a file is corrupt, or a module is not supported; the message names it.
    """
    if not folder.is_dir() or not (folder / "modules.json").exists():
        return None
    modules = read_json(folder / "modules.json", list[Module])
    pooling: tuple[str, ...] = ("mean",)
    include_prompt, normalize, has_pooling = True, False, False
    dense: list[Dense] = []
    for module in modules:
        kind, path = (module.get("type") or "").rpartition(".")[2], module.get("path") or ""
        # the latter scores "yes" against "no", as rerank() does
        if kind in ("Transformer", "LogitScore"):
            continue
        if kind == "Pooling":
            pooling, include_prompt = read_pooling(inside(folder, path) / "config.json")
            has_pooling = True
        elif kind == "Dense" and not normalize:
            dense.append(read_dense(inside(folder, path)))
        elif kind == "Normalize":
            normalize = True
        else:
            raise ValueError(
                f"{folder / 'modules.json'} has a module {brief(kind)}, which is not supported"
            )
    settings = read_optional(
        folder / "config_sentence_transformers.json", SentenceTransformersSettings
    )
    files = [folder / name for name in TRANSFORMER_SETTINGS if (folder / name).exists()]
    transformer = read_json(files[-1], TransformerSettings) if files else TransformerSettings()
    return EmbeddingSettings(
        pooling=pooling,
        include_prompt=include_prompt,
        dense=tuple(dense),
        normalize=normalize,
        max_length=max_length(folder, transformer),
        lower_case=bool(transformer.get("do_lower_case")),
        prompts=MappingProxyType(settings.get("prompts") or {}),
        default_prompt=settings.get("default_prompt_name"),
        dimensions=settings.get("truncate_dim"),
        similarity=settings.get("similarity_fn_name"),
        has_pooling=has_pooling,
    )


def embedding_files(settings: EmbeddingSettings, size: int) -> dict[str, bytes]:
    """The files of a repository of sentence-transformers with these settings. size: of the hidden
    states.
    """
    modules = [("Transformer", ""), *([("Pooling", "1_Pooling")] if settings.has_pooling else [])]
    pooling: dict[str, object] = {
        "word_embedding_dimension": size,
        "include_prompt": settings.include_prompt,
    }
    chosen = {name: mode in settings.pooling for name, mode in OLD_POOLINGS.items()}
    if (
        tuple(mode for mode in OLD_POOLINGS.values() if mode in settings.pooling)
        == settings.pooling
    ):
        pooling |= chosen
    else:  # the old names have no order
        names = {mode: name.removeprefix("pooling_mode_") for name, mode in OLD_POOLINGS.items()}
        modes = [names[mode] if mode == "mean_sqrt_len" else mode for mode in settings.pooling]
        pooling |= {"pooling_mode": modes, "embedding_dimension": size}
    files: dict[str, object] = {"1_Pooling/config.json": pooling} if settings.has_pooling else {}
    for number, dense in enumerate(settings.dense, 2):
        path = f"{number}_Dense"
        modules.append(("Dense", path))
        files[f"{path}/config.json"] = {
            "in_features": dense.weight.size(1),
            "out_features": dense.weight.size(0),
            "bias": dense.bias is not None,
            "activation_function": ACTIVATION_CLASSES[dense.activation],
            **({"use_residual": True} if dense.residual else {}),
        }
        tensors = {"linear.weight": dense.weight.contiguous()}
        if dense.bias is not None:
            tensors["linear.bias"] = dense.bias.contiguous()
        files[f"{path}/model.safetensors"] = save(tensors)
    if settings.normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    files["modules.json"] = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (kind, path) in enumerate(modules)
    ]
    files["sentence_bert_config.json"] = {
        "max_seq_length": settings.max_length,
        "do_lower_case": settings.lower_case,
    }
    files["config_sentence_transformers.json"] = {
        "prompts": dict(settings.prompts),
        "default_prompt_name": settings.default_prompt,
        **({} if settings.dimensions is None else {"truncate_dim": settings.dimensions}),
        **({} if settings.similarity is None else {"similarity_fn_name": settings.similarity}),
    }
    return {
        name: (
            content
            if isinstance(content, bytes)
            else (json.dumps(content, indent=2) + "\n").encode()
        )
        for name, content in files.items()
    }


def inside(folder: Path, path: str) -> Path:
    """A module's folder. ValueError: it is not in `folder`."""
    if path and not (path.replace("_", "").isalnum() and path.isascii() and len(path) < 200):
        raise ValueError(f"{folder / 'modules.json'} names a folder {brief(path)}: do not use it")
    return folder / path


def read_optional(path: Path, shape: type[T]) -> T:
    """The settings in a file; none if it is missing."""
    return read_json(path, shape) if path.exists() else shape()


def max_length(folder: Path, transformer: TransformerSettings) -> int | None:
    """Maximum number of tokens: of the transformer module, or else of the tokenizer."""
    length = transformer.get("max_seq_length")
    if length is None:
        length = read_optional(folder / "tokenizer_config.json", TokenizerLength).get(
            "model_max_length"
        )
    return int(length) if length is not None and 0 < length < 2**31 else None


def read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    """The poolings, and whether they include the prompt. ValueError: a pooling is unknown."""
    settings = read_json(path, PoolingSettings)
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [name for old, name in OLD_POOLINGS.items() if settings.get(old)]
    modes = [
        mode.removesuffix("_tokens") for mode in ([modes] if isinstance(modes, str) else modes)
    ]
    for mode in modes:
        if mode not in POOLINGS:
            raise ValueError(
                f"{path} has pooling {brief(mode)}; supported are {', '.join(POOLINGS)}"
            )
    return tuple(modes) or ("mean",), settings.get("include_prompt") is not False


def read_dense(folder: Path) -> Dense:
    """A dense layer. ValueError: its activation is unknown; FileNotFoundError: its weights are
    missing.
    """
    settings = read_json(folder / "config.json", DenseSettings)
    name = (settings.get("activation_function") or "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{folder / 'config.json'} has activation {brief(name)}, which is not supported"
        )
    path = next((folder / file for file in DENSE_WEIGHTS if (folder / file).exists()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has no {' or '.join(DENSE_WEIGHTS)}: download the repository again"
        )
    tensors = load_file(path) if path.suffix == ".safetensors" else open_pickle(path)
    if "linear.weight" not in tensors:
        raise ValueError(f"{path} has no linear.weight: download the repository again")
    bias = tensors.get("linear.bias")
    return Dense(
        tensors["linear.weight"].float(),
        None if bias is None else bias.float(),
        name,
        bool(settings.get("use_residual")),
    )
