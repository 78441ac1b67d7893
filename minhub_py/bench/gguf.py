"""GGUF files for llama.cpp, from Llama checkpoints.

Keys and names are those of the package gguf, which is llama.cpp's own. The files have no tokenizer: ids
are enough here.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

# Weights -> llama.cpp's name of the file type.
FILE_TYPES = {"BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0"}


def write(folder: Path, out: Path) -> None:
    """Write the checkpoint in `folder` as a GGUF file in float32. ValueError: it is not a plain Llama."""
    import gguf  # type: ignore[import-not-found,unused-ignore]

    from minhub_py.files.storage import Checkpoint
    from minhub_py.pretrained import describe

    checkpoint = Checkpoint(folder)
    config: Any = describe(checkpoint)[1]
    if (config.model_type, config.hidden_act, config.rope["rope_type"]) != ("llama", "silu", "default"):
        raise ValueError("llama.cpp is measured only with model_type llama, silu, and rope_type default")
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(config.rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, stored in checkpoint.items():
        tensor = stored.float()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = neighbours(tensor, config.head_size)
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            raise ValueError(f"GGUF has no name for {name}")
        writer.add_tensor(known, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def neighbours(weight: Tensor, size: int) -> Tensor:
    """The rows of q or k as llama.cpp wants them: of each head, i and i + D/2 side by side, since it rotates pairs."""
    return weight.view(-1, 2, size // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def quantize(file: Path, out: Path, weights: str, threads: int) -> None:
    """Write a float32 GGUF file with other weights, with llama-quantize's defaults."""
    import llama_cpp  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.nthread = threads
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{FILE_TYPES[weights]}")
    if llama_cpp.llama_model_quantize(str(file).encode(), str(out).encode(), settings):
        raise RuntimeError(f"llama.cpp cannot write {weights}")
