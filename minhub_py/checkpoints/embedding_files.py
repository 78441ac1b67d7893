"""The files of a repository of sentence-transformers, from the settings of its embeddings."""

import json
from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor

from minhub_py.checkpoints.sentence_transformers import (
    OLD_POOLINGS,
    EmbeddingSettings,
    LayerNorm,
)
from minhub_py.checkpoints.token_modules import mask_files, splade_files, transformer_settings

ACTIVATION_CLASSES = {
    "Identity": "torch.nn.modules.linear.Identity",
    **{
        name: f"torch.nn.modules.activation.{name}"
        for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
    },
}
# The packages of modules that are not in sentence_transformers.models.
PACKAGES = {
    "MLMTransformer": "sparse_encoder.models",
    "SpladePooling": "sparse_encoder.models",
    "MultiVectorMask": "multi_vector_encoder.modules",
}


def embedding_files(settings: EmbeddingSettings, size: int) -> dict[str, bytes]:
    """The files of a repository of sentence-transformers with these settings. size: of the hidden
    states.
    """
    modules = [("MLMTransformer" if settings.splade else "Transformer", "")]
    files: dict[str, object] = {}
    level = {} if settings.tokens is None else {"module_input_name": "token_embeddings"}

    def add(kind: str, content: Mapping[str, object] | None, tensors: Mapping[str, Tensor]) -> None:
        path = f"{len(modules)}_{kind}"
        modules.append((kind, path))
        if content is not None:
            files[f"{path}/config.json"] = content
        if tensors:
            contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
            files[f"{path}/model.safetensors"] = save(contiguous)

    if settings.splade is not None:
        add("SpladePooling", splade_files(settings.splade), {})
    elif settings.has_pooling and settings.tokens is None:
        add("Pooling", pooling_files(settings, size), {})
    for layer in settings.dense:
        if isinstance(layer, LayerNorm):
            tensors = {"norm.weight": layer.weight, "norm.bias": layer.bias}
            add("LayerNorm", {"dimension": len(layer.weight)}, tensors)
            continue
        content: dict[str, object] = {
            "in_features": layer.weight.size(1),
            "out_features": layer.weight.size(0),
            "bias": layer.bias is not None,
            "activation_function": ACTIVATION_CLASSES[layer.activation],
            **({"use_residual": True} if layer.residual else {}),
            **level,
        }
        bias = {} if layer.bias is None else {"linear.bias": layer.bias}
        add("Dense", content, {"linear.weight": layer.weight, **bias})
    if settings.tokens is not None:
        add("MultiVectorMask", mask_files(settings.tokens), {})
    if settings.normalize:
        add("Normalize", level or None, {})
    files["modules.json"] = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.{PACKAGES.get(kind, 'models')}.{kind}",
        }
        for index, (kind, path) in enumerate(modules)
    ]
    files["sentence_bert_config.json"] = {
        "max_seq_length": settings.max_length,
        "do_lower_case": settings.lower_case,
        **({} if settings.tokens is None else transformer_settings(settings.tokens)),
    }
    dimensions = "truncate_dim" if settings.splade is None else "max_active_dims"
    kind = "SparseEncoder" if settings.splade else "MultiVectorEncoder" if settings.tokens else None
    files["config_sentence_transformers.json"] = {
        "prompts": dict(settings.prompts),
        "default_prompt_name": settings.default_prompt,
        **({} if kind is None else {"model_type": kind}),
        **({} if settings.dimensions is None else {dimensions: settings.dimensions}),
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


def pooling_files(settings: EmbeddingSettings, size: int) -> dict[str, object]:
    """A pooling module's settings. size: of the hidden states."""
    pooling: dict[str, object] = {
        "word_embedding_dimension": size,
        "include_prompt": settings.include_prompt,
    }
    chosen = {name: mode in settings.pooling for name, mode in OLD_POOLINGS.items()}
    if (
        tuple(mode for mode in OLD_POOLINGS.values() if mode in settings.pooling)
        == settings.pooling
    ):
        return pooling | chosen
    # the old names have no order
    names = {mode: name.removeprefix("pooling_mode_") for name, mode in OLD_POOLINGS.items()}
    modes = [names[mode] if mode == "mean_sqrt_len" else mode for mode in settings.pooling]
    return pooling | {"pooling_mode": modes, "embedding_dimension": size}
