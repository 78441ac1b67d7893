"""A random Qwen3-30B-A3B of the real shape with few layers: memory after loading and decoding, and speed.

    python tests/benchmarks/experts.py write FILE.gguf [LAYERS] [TYPE]
    python tests/benchmarks/experts.py minhub FILE.gguf|FOLDER
    python tests/benchmarks/experts.py llama.cpp FILE.gguf       (needs llama-cpp-python)

Prints the resident memory in MB and tokens per second: decoding of 32 tokens after a prompt of 256, and the prompt.
"""

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

SHAPE = {
    "hidden": 2048,
    "expert": 768,
    "experts": 128,
    "top": 8,
    "heads": 32,
    "groups": 4,
    "size": 128,
    "vocab": 151936,
}
PROMPT, NEW, REPEATS = 256, 32, 5


def memory() -> dict[str, int]:
    """Resident memory of this process in MB: total, peak, and anonymous memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[name].split()[0]) // 1000 for name in ("VmRSS", "VmHWM", "RssAnon")}


def write(path: str, layers: int = 8, kind: str = "Q4_K") -> None:
    """Write the file: random blocks whose scales keep the size of activations."""
    import gguf  # type: ignore[import-not-found,unused-ignore]

    sys.path.append(str(Path(__file__).parents[1] / "support"))
    from gguf_files import blocks  # type: ignore[import-not-found,unused-ignore]

    C, inner, E, H, G, D, V = (
        SHAPE[name] for name in ("hidden", "expert", "experts", "heads", "groups", "size", "vocab")
    )
    writer = gguf.GGUFWriter(path, "qwen3moe", use_temp_file=False)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(V)
    writer.add_context_length(40960)
    writer.add_embedding_length(C)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(6144)
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_count(E)
    writer.add_expert_used_count(SHAPE["top"])
    writer.add_head_count(H)
    writer.add_head_count_kv(G)
    writer.add_key_length(D)
    writer.add_value_length(D)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    type_ = gguf.GGMLQuantizationType[kind]
    size, _ = gguf.GGML_QUANT_SIZES[type_]
    generator = np.random.default_rng(0)

    def matrix(name: str, *shape: int) -> None:
        count = int(np.prod(shape)) // size
        data = blocks(kind, count, generator.integers(2**31), 0.02 * shape[-1] ** -0.5)
        writer.add_tensor(name, data.reshape(*shape[:-1], -1), raw_dtype=type_)

    def floats(name: str, *shape: int) -> None:
        noise = 1 if len(shape) == 1 else 3 * shape[-1] ** -0.5 * generator.standard_normal(shape)
        writer.add_tensor(name, (noise + np.zeros(shape)).astype(np.float32))

    matrix("token_embd.weight", V, C)
    for layer in range(layers):
        block = f"blk.{layer}."
        floats(f"{block}attn_norm.weight", C)
        floats(f"{block}ffn_norm.weight", C)
        floats(f"{block}attn_q_norm.weight", D)
        floats(f"{block}attn_k_norm.weight", D)
        floats(f"{block}ffn_gate_inp.weight", E, C)
        for name, heads in (("q", H), ("k", G), ("v", G)):
            matrix(f"{block}attn_{name}.weight", heads * D, C)
        matrix(f"{block}attn_output.weight", C, H * D)
        for name, shape in (("gate", (inner, C)), ("up", (inner, C)), ("down", (C, inner))):
            matrix(f"{block}ffn_{name}_exps.weight", E, *shape)
    floats("output_norm.weight", C)
    matrix("output.weight", V, C)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def report(name: str, load: Any, read: Any) -> None:
    """load: returns a model.    read: read(model, token IDs, is_new) reads them, after those before unless is_new."""
    before = memory()
    start = time.perf_counter()
    model = load()
    print(f"{name}: loaded in {time.perf_counter() - start:.1f} s, {before} -> {memory()}")
    generator = np.random.default_rng(0)
    prompts, steps = [], []
    for _ in range(REPEATS):
        ids = generator.integers(0, SHAPE["vocab"], PROMPT + NEW).tolist()
        start = time.perf_counter()
        read(model, ids[:PROMPT], True)
        prompts.append(PROMPT / (time.perf_counter() - start))
        start = time.perf_counter()
        for id in ids[PROMPT:]:
            read(model, [id], False)
        steps.append(NEW / (time.perf_counter() - start))
    print(f"{name}: prompt {median(prompts):.1f}, decoding {median(steps):.2f} tokens/s; {memory()}")


def minhub(path: str) -> None:
    """This package, with its native runner."""
    import torch

    import minhub_py
    from minhub_py.inference.native_runner import runner_of

    state: dict[str, Any] = {}

    def load() -> Any:
        return runner_of(minhub_py.from_pretrained(path, device="cpu"))

    def read(runner: Any, ids: list[int], is_new: bool) -> None:
        if is_new:
            state["cache"] = runner.new_cache(1, PROMPT + NEW)
        with torch.inference_mode():
            runner.forward({0: ids}, state["cache"])

    report("minhub", load, read)


def llama_cpp(path: str) -> None:
    """llama.cpp by llama-cpp-python."""
    from llama_cpp import Llama  # type: ignore[import-not-found,import-untyped,unused-ignore]

    threads = len(__import__("os").sched_getaffinity(0))

    def load() -> Any:
        return Llama(path, n_ctx=PROMPT + NEW, n_threads=threads, n_threads_batch=threads, verbose=False)

    def read(model: Any, ids: list[int], is_new: bool) -> None:
        if is_new:
            model.reset()
        model.eval(ids)

    report("llama.cpp", load, read)


if __name__ == "__main__":
    command, file, *rest = sys.argv[1:]
    if command == "write":
        write(file, *(kind(value) for kind, value in zip((int, str), rest, strict=False)))
    else:
        {"minhub": minhub, "llama.cpp": llama_cpp}[command](file)
