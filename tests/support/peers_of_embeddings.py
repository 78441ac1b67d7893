"""Random models of sentence-transformers that compute sparse embeddings, or one vector per token."""

import json
from pathlib import Path
from typing import Any

import torch
from encoders import wordpiece, write_encoder


def modules(folder: Path, *entries: tuple[str, str]) -> None:
    """modules.json with the type and the path of each module."""
    content = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (kind, path) in enumerate(entries)
    ]
    (folder / "modules.json").write_text(json.dumps(content))


def settings(folder: Path, name: str, content: object) -> None:
    """A JSON file of the folder."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def write_tokenizer_settings(folder: Path) -> None:
    """The settings with which transformers reads the tokenizer as this package does."""
    names = ("pad", "unk", "cls", "sep", "mask")
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in names}
    content = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **tokens}
    settings(folder, "tokenizer_config.json", content)


def write_splade(folder: Path, old: bool = True, **pooling: Any) -> Path:
    """A SPLADE repository. old: with the modules of sentence-transformers 5."""
    write_encoder(folder, "BertForMaskedLM")
    write_tokenizer_settings(folder)
    package = "sentence_transformers.sparse_encoder.models"
    if old:
        modules(
            folder,
            (f"{package}.MLMTransformer", ""),
            (f"{package}.SpladePooling", "1_SpladePooling"),
        )
        settings(folder, "sentence_bert_config.json", {"max_seq_length": 32})
    else:
        package = "sentence_transformers.sparse_encoder.modules.splade_pooling"
        modules(
            folder,
            ("sentence_transformers.base.modules.transformer.Transformer", ""),
            (f"{package}.SpladePooling", "1_SpladePooling"),
        )
        settings(
            folder,
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask", "max_seq_length": 32},
        )
    settings(folder, "1_SpladePooling/config.json", pooling)
    settings(
        folder,
        "config_sentence_transformers.json",
        {"model_type": "SparseEncoder", "prompts": {"query": "query : ", "document": ""}},
    )
    return folder


def write_colbert(
    folder: Path,
    expansion: dict[str, Any] | None = None,
    skipped: tuple[str, ...] = (),
    **lengths: int,
) -> Path:
    """A ColBERT repository, saved by sentence-transformers."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    base = write_encoder(folder.with_name(f"{folder.name}-base"))
    write_tokenizer_settings(base)
    torch.manual_seed(1)
    transformer = Transformer(str(base), query_expansion=expansion, max_seq_length=40, **lengths)
    dense = Dense(
        48,
        16,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    peer = MultiVectorEncoder(
        modules=[
            transformer,
            dense,
            MultiVectorMask(skiplist_words=list(skipped)),
            Normalize(module_input_name="token_embeddings"),
        ],
        prompts={"query": "query : ", "document": "the "},
        device="cpu",
    )
    peer.save_pretrained(str(folder))
    return folder


def write_pylate(folder: Path, **repository: Any) -> Path:
    """A ColBERT repository in PyLate's form, whose prefixes are tokens of the vocabulary."""
    from safetensors.torch import save_file

    write_encoder(folder)
    write_tokenizer_settings(folder)
    modules(
        folder,
        ("sentence_transformers.models.Transformer", ""),
        ("pylate.models.Dense.Dense", "1_Dense"),
    )
    torch.manual_seed(2)
    settings(
        folder,
        "1_Dense/config.json",
        {
            "in_features": 48,
            "out_features": 16,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    save_file({"linear.weight": torch.randn(16, 48)}, folder / "1_Dense" / "model.safetensors")
    settings(folder, "sentence_bert_config.json", {"max_seq_length": 40})
    settings(folder, "config_sentence_transformers.json", {"model_type": "ColBERT", **repository})
    assert wordpiece().token_to_id("[MASK]") is not None
    return folder
