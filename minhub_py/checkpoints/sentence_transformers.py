"""The settings of text embeddings in repositories of sentence-transformers: pooling, dense layers,
prompts.

`modules.json` lists the modules after each other: a transformer, pooling, dense layers and
normalization. Module types have several spellings, of old and new releases; only the last part of
the name is compared. `token_modules` reads the modules of sparse embeddings and of vectors per
token.

Source: the file formats of sentence-transformers 2 to 6 (Reimers & Gurevych, 2019,
"Sentence-BERT").
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType
from typing import Annotated, TypedDict, TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from minhub_py.checkpoints.layout import TRANSFORMER_SETTINGS
from minhub_py.checkpoints.pickles import open_pickle
from minhub_py.checkpoints.token_modules import (
    LateInteraction,
    Splade,
    TokenVectors,
    prefixes,
    read_splade,
    read_token_vectors,
)
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
# Modules without an effect on embeddings. LogitScore scores "yes" against "no", as rerank() does.
IGNORED = ("Transformer", "MLMTransformer", "LogitScore", "Dropout")
# Modules that are not supported, with the reason.
UNSUPPORTED = {
    "StaticEmbedding": "it looks up a vector per token and has no transformer",
    "SparseStaticEmbedding": "it looks up a weight per token and has no transformer",
    "Router": "queries and documents pass through separate models",
    "Asym": "queries and documents pass through separate models",
    "WeightedLayerPooling": "it combines several layers of the transformer",
    "SparseAutoEncoder": "it computes sparse embeddings from dense ones",
    "HierarchicalTokenPooling": "it merges the vectors of similar tokens",
    "CLIPModel": "it embeds images",
}
T = TypeVar("T")
DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in order of preference


class Module(TypedDict, total=False):
    """A module in modules.json."""

    type: str
    path: str


class SentenceTransformersSettings(LateInteraction, total=False):
    """config_sentence_transformers.json."""

    model_type: str
    prompts: dict[str, str]
    default_prompt_name: str
    truncate_dim: Annotated[int, Within(1, 2**24)]
    max_active_dims: Annotated[int, Within(1, 2**24)]
    similarity_fn_name: str


class TransformerSettings(LateInteraction, total=False):
    """sentence_bert_config.json, or another of TRANSFORMER_SETTINGS."""

    max_seq_length: float
    do_lower_case: bool


class TokenizerLength(TypedDict, total=False):
    """The maximum length in tokenizer_config.json; 1e30 for none."""

    model_max_length: float


class PoolingSettings(TypedDict, total=False):
    """A pooling module's settings. Old releases write a bool for each name of OLD_POOLINGS."""

    pooling_mode: str | list[str]
    include_prompt: bool


class DenseSettings(TypedDict, total=False):
    """A dense layer's settings."""

    activation_function: str
    use_residual: bool
    module_input_name: str
    module_output_name: str


class NormalizeSettings(TypedDict, total=False):
    """A normalization's settings."""

    module_input_name: str


@dataclass(frozen=True)
class LayerNorm:
    """A layer normalization after pooling. weight, bias: (C,) float32."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.device), self.bias.to(x.device)
        return F.layer_norm(x, weight.shape, weight, bias)


@dataclass(frozen=True)
class Dense:
    """A linear layer after pooling. weight: (out, in) float32."""

    weight: Tensor
    bias: Tensor | None
    activation: str
    residual: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.device)
        y = ACTIVATIONS[self.activation](F.linear(x, self.weight.to(x.device), bias))
        return x + y if self.residual else y


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a repository computes text embeddings. The defaults are for repositories without
    modules.json.

    pooling: several are concatenated.    has_pooling: whether a module of the repository pools;
    rerankers have none.
    dense: the layers after pooling.    max_length: in tokens, with special tokens; None: the model's.
    prompts: name -> text before each text.    include_prompt: whether pooling includes the prompt's
    tokens.
    dimensions: the leading dimensions of embeddings, or the largest weights of sparse embeddings.
    similarity: the repository's `similarity_fn_name`, which only clients of sentence-transformers
    use.
    splade: of sparse embeddings, whose pooling is "splade".    tokens: of vectors per token, whose
    pooling is "none".
    """

    pooling: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    dense: tuple[Dense | LayerNorm, ...] = ()
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_prompt: str | None = None
    dimensions: int | None = None
    similarity: str | None = None
    has_pooling: bool = True
    splade: Splade | None = None
    tokens: TokenVectors | None = None


def read_embedding_settings(folder: Path) -> EmbeddingSettings | None:
    """A folder's settings; None without modules.json.

    ValueError: a file is corrupt, or a module is not supported; the message names it.
    """
    if not folder.is_dir() or not (folder / "modules.json").exists():
        return None
    modules = read_modules(folder)
    settings = read_optional(
        folder / "config_sentence_transformers.json", SentenceTransformersSettings
    )
    files = [folder / name for name in TRANSFORMER_SETTINGS if (folder / name).exists()]
    transformer = read_json(files[-1], TransformerSettings) if files else TransformerSettings()
    is_pylate = settings.get("model_type") == "ColBERT"
    per_token = is_pylate or any(kind == "MultiVectorMask" for kind, _ in modules)
    result = EmbeddingSettings(
        max_length=max_length(folder, transformer),
        lower_case=bool(transformer.get("do_lower_case")),
        prompts=MappingProxyType(prompts_of(settings, per_token)),
        default_prompt=settings.get("default_prompt_name"),
        dimensions=settings.get("truncate_dim"),
        similarity=settings.get("similarity_fn_name"),
        has_pooling=False,
    )
    mask: Path | None = None
    level = "token_embeddings" if per_token else "sentence_embedding"
    for kind, path in modules:
        result = with_module(result, kind, path, level, folder)
        if kind == "MultiVectorMask":
            mask = path / "config.json"
    if is_pylate:
        result = replace(result, normalize=True)
    if result.splade is not None:
        result = replace(result, dimensions=settings.get("max_active_dims"))
    if not per_token:
        return result
    vectors = read_token_vectors(
        mask, transformer, settings, files[-1] if files else folder / "modules.json"
    )
    return replace(result, pooling=("none",), has_pooling=True, tokens=vectors)


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module in modules.json. ValueError: one is not supported."""
    file = folder / "modules.json"
    modules = []
    for module in read_json(file, list[Module]):
        kind, path = (module.get("type") or "").rpartition(".")[2], module.get("path") or ""
        if kind in UNSUPPORTED:
            raise ValueError(
                f"{file} has a module {kind}, which is not supported: {UNSUPPORTED[kind]}. Use"
                " sentence-transformers for this repository"
            )
        modules.append((kind, inside(folder, path)))
    return modules


def with_module(
    settings: EmbeddingSettings, kind: str, path: Path, level: str, folder: Path
) -> EmbeddingSettings:
    """The settings with one more module. level: "sentence_embedding" or "token_embeddings".

    ValueError: the module is not supported, also after the previous modules.
    """
    is_first = settings.splade is None and not settings.normalize and not settings.dense
    if kind in IGNORED or (kind == "MultiVectorMask" and level == "token_embeddings"):
        return settings
    if kind == "Pooling" and is_first and level == "sentence_embedding":
        pooling, include_prompt = read_pooling(path / "config.json")
        return replace(settings, pooling=pooling, include_prompt=include_prompt, has_pooling=True)
    if kind == "SpladePooling" and is_first and level == "sentence_embedding":
        splade = read_splade(path / "config.json")
        return replace(settings, pooling=("splade",), splade=splade, has_pooling=True)
    if kind in ("Dense", "LayerNorm") and settings.splade is None and not settings.normalize:
        layer = read_dense(path, level) if kind == "Dense" else read_layer_norm(path)
        return replace(settings, dense=(*settings.dense, layer))
    if kind == "Normalize" and settings.splade is None:
        normalize = read_optional(path / "config.json", NormalizeSettings)
        check_level(path / "config.json", normalize.get("module_input_name"), level)
        return replace(settings, normalize=True)
    raise ValueError(
        f"{folder / 'modules.json'} has a module {brief(kind)}, which is not supported"
        f"{'' if is_first else ' after the modules before it'}"
    )


def check_level(path: Path, name: str | None, level: str) -> None:
    """ValueError: a module reads or writes something else than the embeddings of this level."""
    if name not in (None, level):
        raise ValueError(
            f"{path} has a module that reads or writes {brief(name)}, which is not supported: only"
            f" {level} is"
        )


def prompts_of(settings: SentenceTransformersSettings, per_token: bool) -> dict[str, str]:
    """A repository's prompts, after PyLate's prefixes. With vectors per token, there always are
    queries and documents.
    """
    prompts = {"query": "", "document": ""} if per_token else {}
    prompts |= settings.get("prompts") or {}
    for name, prefix in prefixes(settings).items():
        prompts[name] = prefix + prompts.get(name, "").removeprefix(prefix)
    return prompts


def prefixes_of(folder: Path) -> list[str]:
    """PyLate's prefixes of queries and documents in a folder."""
    file = folder / "config_sentence_transformers.json"
    return (
        [*prefixes(read_json(file, SentenceTransformersSettings)).values()] if file.exists() else []
    )


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


def read_dense(folder: Path, level: str) -> Dense:
    """A dense layer. ValueError: its activation is unknown; FileNotFoundError: its weights are
    missing.
    """
    file = folder / "config.json"
    settings = read_json(file, DenseSettings)
    for key in ("module_input_name", "module_output_name"):
        check_level(file, settings.get(key), level)  # type: ignore[arg-type]
    name = (settings.get("activation_function") or "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ValueError(f"{file} has activation {brief(name)}, which is not supported")
    tensors = read_layer(folder, "linear.weight")
    bias = tensors.get("linear.bias")
    return Dense(
        tensors["linear.weight"].float(),
        None if bias is None else bias.float(),
        name,
        bool(settings.get("use_residual")),
    )


def read_layer_norm(folder: Path) -> LayerNorm:
    """A layer normalization. FileNotFoundError: its weights are missing."""
    tensors = read_layer(folder, "norm.weight", "norm.bias")
    return LayerNorm(tensors["norm.weight"].float(), tensors["norm.bias"].float())


def read_layer(folder: Path, *names: str) -> Mapping[str, Tensor]:
    """A module's weights. FileNotFoundError, ValueError: they are missing."""
    path = next((folder / file for file in DENSE_WEIGHTS if (folder / file).exists()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has no {' or '.join(DENSE_WEIGHTS)}: download the repository again"
        )
    tensors = load_file(path) if path.suffix == ".safetensors" else open_pickle(path)
    for name in names:
        if name not in tensors:
            raise ValueError(f"{path} has no {name}: download the repository again")
    return tensors
