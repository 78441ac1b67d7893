"""GGUF files of small models as llama.cpp's converter writes them: names by its package, order of
rows by its rules.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

ARCHITECTURES = {
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gpt_neox": "gptneox",
    "gemma3_text": "gemma3",
    "phi": "phi2",
}  # of the others it is the model_type


def write(
    path: Path,
    model: Any,
    kind: str = "F32",
    *,
    tokenizer: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    extra: Mapping[str, Tensor] | None = None,
    change: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
) -> Path:
    """The file of a model of transformers; matrices in `kind`, other tensors in float32, as in
    llama.cpp.

    tokenizer: adds one.    extra: tensors under GGUF's names.    change: changes the header before
    it is written.
    """
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    add_settings(writer, config)
    tokenizer(writer)
    layers = config.num_hidden_layers
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], layers)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del tensors["embed_out.weight" if "embed_out.weight" in tensors else "lm_head.weight"]
    for name, tensor in with_experts_apart(tensors).items():
        gguf_name = names.get_name(
            name.replace("lm_head", "embed_out") if architecture == "gptneox" else name,
            try_suffixes=(".weight", ".bias"),
        )
        assert gguf_name, name
        add_tensor(writer, gguf_name, reordered(config, name, tensor), kind)
    for name, tensor in (extra or {}).items():
        add_tensor(writer, name, tensor, kind)
    change(writer)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    """Write a writer's file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def with_experts_apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the stacked matrices of experts separated, under the names that the gguf
    package supports.
    """
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for part, matrices in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                result[name.replace("gate_up_proj", f"{part}_proj.weight")] = matrices
        else:
            result[f"{name}.weight" if name.endswith("experts.down_proj") else name] = tensor
    return result


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    type_ = Type[kind] if tensor.dim() >= 2 and "gate_inp" not in name else Type.F32
    writer.add_tensor(
        name, gguf.quants.quantize(tensor.contiguous().numpy(), type_), raw_dtype=type_
    )


def add_settings(writer: gguf.GGUFWriter, config: Any) -> None:
    kind = config.model_type
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    rope = config.rope_parameters
    if kind == "gemma3_text":
        rope = rope["full_attention"]
    if kind in ("gemma2", "gemma3_text"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_rope_freq_base(rope["rope_theta"])
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if kind == "gpt_neox":
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * size))
        writer.add_parallel_residual(config.use_parallel_residual)
        writer.add_layer_norm_eps(config.layer_norm_eps)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    if kind == "phi":
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * size))
        writer.add_layer_norm_eps(config.layer_norm_eps)
        return
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "num_experts_per_tok", None):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_vocab_size(config.vocab_size)
    if kind in ("llama", "mixtral"):
        writer.add_rope_dimension_count(size)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def reordered(config: Any, name: str, tensor: Tensor) -> Tensor:
    """A tensor with its rows in llama.cpp's order."""
    if config.model_type in ("llama", "mixtral") and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return (
            tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            .swapaxes(1, 2)
            .reshape(tensor.shape)
        )
    if config.model_type == "gpt2" and tensor.dim() == 2 and ".h." in name:
        return tensor.t()
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if "query_key_value" in name:
        parts = tensor.reshape(config.num_attention_heads, 3, -1, *tensor.shape[1:])
        return torch.cat([parts[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
    return tensor


def blocks(kind: str, count: int, seed: int = 0, scale: float = 0.01) -> "np.ndarray[Any, Any]":
    """Random blocks of a type, with scales that are small numbers, of about `scale`."""
    _, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    data = np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)
    if kind == "MXFP4":  # its scale is an exponent
        data[:, 0] = (
            127 + np.round(np.log2(scale)) + np.random.default_rng(seed).integers(-1, 2, count)
        )
        return data
    if kind == "IQ1_M":  # its scale is in the upper four bits of four numbers
        data[:, 55] = data[:, 55] & 15 | 0x20
    # Where each type has its float16 numbers.
    offsets = {
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "Q4_K": (0, 2),
        "Q5_K": (0, 2),
        "Q6_K": (208,),
        "Q4_1": (0, 2),
        "Q5_1": (0, 2),
        "TQ1_0": (52,),
        "TQ2_0": (64,),
        "IQ1_M": (),
    }.get(kind, (0,))
    for offset in offsets:
        scales = np.random.default_rng(offset).normal(0, scale, count).astype(np.float16)
        data[:, offset : offset + 2] = scales.view(np.uint8).reshape(count, 2)
    return data
