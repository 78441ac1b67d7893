"""Small models of BART and its relatives, with transformers' models of the same weights."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import minhub_py

VOCABULARY = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 90,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
}
SCALED = {"scale_embedding": True}
SEPARATE = {**SCALED, "share_encoder_decoder_embeddings": False}
CASES: dict[str, dict[str, Any]] = {
    "bart": {"model_type": "bart", "bos_token_id": 0},
    "bart-scaled": {"model_type": "bart", **SCALED, "activation_function": "relu"},
    "bart-untied": {"model_type": "bart", "tie_word_embeddings": False, "decoder_layers": 3},
    "plbart": {"model_type": "plbart", **SCALED, "encoder_attention_heads": 2},
    "mbart": {"model_type": "mbart", **SCALED, "decoder_attention_heads": 2},
    "mbart-relu": {"model_type": "mbart", "activation_function": "relu", "encoder_layers": 1},
    "pegasus": {"model_type": "pegasus", **SCALED, "activation_function": "relu"},
    "pegasus-ids": {"model_type": "pegasus", "pad_token_id": 0, "eos_token_id": 1,
                    "decoder_start_token_id": 0, "encoder_layers": 3, "decoder_layers": 1},
    "marian": {"model_type": "marian", **SCALED, "activation_function": "swish"},
    "marian-ids": {"model_type": "marian", "pad_token_id": 60, "eos_token_id": 0,
                   "decoder_start_token_id": 60, "bad_words_ids": [[60], [5, 6]],
                   "forced_eos_token_id": 0},
    "marian-separate": {"model_type": "marian", **SEPARATE},
    "marian-two-sizes": {"model_type": "marian", **SEPARATE, "decoder_vocab_size": 47},
    "marian-separate-untied": {"model_type": "marian", **SEPARATE, "tie_word_embeddings": False},
    "m2m100": {"model_type": "m2m_100", **SCALED, "activation_function": "relu"},
    "m2m100-unscaled": {"model_type": "m2m_100", "scale_embedding": False, "pad_token_id": 5,
                        "bad_words_ids": [[5]], "encoder_ffn_dim": 64},
    "m2m100-wide": {"model_type": "m2m_100", "d_model": 48, "decoder_attention_heads": 3,
                    "activation_function": "gelu", **SCALED},
    "dropout": {"model_type": "bart", "dropout": 0.5, "activation_dropout": 0.3,
                "attention_dropout": 0.2},
}  # fmt: skip


def draw(model: Any) -> None:
    """Large random weights that preserve the size of activations; computed positions remain."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if not parameter.requires_grad or (
                "embed_positions" in name
                and "Sinus" in type(model.get_submodule(name.rpartition(".")[0])).__name__
            ):
                continue
            if parameter.dim() == 1:
                is_factor = "norm" in name and name.endswith("weight")
                parameter.copy_(1 + 0.3 * noise if is_factor else 0.1 * noise)
            elif "embed" in name or "shared" in name:
                # small: a tied model would repeat its last token
                parameter.copy_(noise * (0.2 if model.config.scale_embedding else 0.5))
            else:
                parameter.copy_(
                    noise
                    * (1.5 if name.endswith("q_proj.weight") else 1.4)
                    * parameter.shape[1] ** -0.5
                )
        if getattr(model, "final_logits_bias", None) is not None:
            bias = model.final_logits_bias
            bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))


def reference_of(settings: dict[str, Any]) -> Any:
    """transformers' model with random weights."""
    reference = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**settings)).eval()
    draw(reference)
    return reference


def saved(name: str, folder: Path) -> Any:
    """transformers' model of a case, which is saved in `folder` with the settings of the case."""
    settings = SMALL | CASES[name]
    reference = reference_of(settings)
    for setting in ("bad_words_ids", "forced_eos_token_id"):
        setattr(reference.generation_config, setting, settings.get(setting))
    reference.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**settings, "is_encoder_decoder": True}))
    return reference


def pair(name: str, folder: Path) -> tuple[Any, Any]:
    """transformers' model of a case, and ours of its file."""
    return saved(name, folder), minhub_py.from_pretrained(folder, device="cpu")
