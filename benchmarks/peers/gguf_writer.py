"""GGUF files for llama.cpp, from checkpoints of GPT-2 and Llama.

The tables with which `minhub_py.checkpoints.gguf` reads such files (`weights_map.gguf`) are used in
reverse. The files have no tokenizer: the benchmark uses token IDs only.
"""

from pathlib import Path
from typing import Any

# Weights -> llama.cpp's name of the file type.
FILE_TYPES = {"BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0"}
# Model type -> settings for which llama.cpp has one value only.
ONLY_VALUE: dict[str, dict[str, object]] = {
    "gpt2": {
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    "llama": {"hidden_act": "silu"},
}


def write(folder: Path, out: Path) -> None:
    """Write the checkpoint in `folder` as a GGUF file in float32. ValueError: llama.cpp computes
    another model.
    """
    import gguf  # type: ignore[import-not-found,unused-ignore]

    import weights_map
    from minhub_py import from_pretrained
    from weights_map.conversion import Mapped

    model: Any = from_pretrained(folder, device="cpu", dtype="float32")
    settings = model.config.to_hub()
    architecture = weights_map.gguf_architectures[check(settings)]
    writer = gguf.GGUFWriter(out, architecture.name)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(model.config.vocab_size)
    metadata = {key: settings[name] for key, name in architecture.settings.items()}
    metadata["feed_forward_length"] = (
        metadata["feed_forward_length"] or 4 * metadata["embedding_length"]
    )  # GPT-2's null
    if "rope_parameters" in settings:
        metadata |= {
            "rope.freq_base": float(settings["rope_parameters"]["rope_theta"]),
            "rope.dimension_count": settings["head_dim"],
            "attention.value_length": settings["head_dim"],
        }
    for key, value in metadata.items():
        if value is not None:
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{architecture.name}.{key}", value)
    on_hub = weights_map.to_hub(architecture.model_type, model.state_dict(), model.config)
    for name, tensor in Mapped(architecture.table, on_hub, "native", model.config).items():
        writer.add_tensor(name, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(settings: dict[str, Any]) -> str:
    """The model type of settings in config.json. ValueError: llama.cpp does not compute this model."""
    kind = settings["model_type"]
    if kind not in ONLY_VALUE:
        raise ValueError(
            f"llama.cpp is measured with {' and '.join(ONLY_VALUE)} only, and this model is {kind}"
        )
    expected = dict(ONLY_VALUE[kind])
    results = {name: settings[name] for name in expected}
    if rope := settings.get("rope_parameters"):
        expected["rope_type"], results["rope_type"] = "default", rope["rope_type"]
    for name, value in expected.items():
        if results[name] != value:
            raise ValueError(
                f"llama.cpp is measured only with {name} {value}, and this model has"
                f" {results[name]}"
            )
    return str(kind)


def quantize(file: Path, out: Path, weights: str, threads: int) -> None:
    """Write a float32 GGUF file with other weights, with llama-quantize's defaults."""
    import llama_cpp  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.nthread = threads
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{FILE_TYPES[weights]}")
    if llama_cpp.llama_model_quantize(str(file).encode(), str(out).encode(), settings):
        raise RuntimeError(f"llama.cpp cannot write {weights}")
