"""GGUF files of random blocks in published shapes, compared with llama.cpp: decoding and prompts.

    python benchmarks/experts.py write FILE.gguf SHAPE TYPE       SHAPE: a key of SHAPES; TYPE: Q4_K_M, Q8_0, ...
    python benchmarks/experts.py compare FILE.gguf [THREADS...]   (needs llama-cpp-python)

Prints tokens per second: of a prompt of 256 tokens, and of decoding 32 tokens after it. The two
sides alternate, each in a separate process; the fastest of ROUNDS rounds counts, as machines are
noisy. With one thread, seconds are CPU seconds, which other processes change less.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from machine import announce

from minhub_py.export.k_quants import FALLBACKS, MIXES, type_in_mix

# Architecture, layers, width, inner width of MLPs or experts, experts, selected experts, query and
# KV heads, head size, vocabulary.
SHAPES = {
    "qwen3-30b-a3b-8-layers": ("qwen3moe", 8, 2048, 768, 128, 8, 32, 4, 128, 151936),
    "smollm2-135m": ("llama", 30, 576, 1536, 0, 0, 9, 3, 64, 49152),
}
PROMPT, NEW, ROUNDS = 256, 32, 7


def write(path: str, shape: str, kind: str) -> None:
    """Write the file: random blocks whose scales keep the size of activations. kind: a type, or a
    mix of types.
    """
    import gguf  # type: ignore[import-not-found,unused-ignore]

    sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
    from gguf_files import blocks  # type: ignore[import-not-found,unused-ignore]

    architecture, layers, C, inner, E, top, H, G, D, V = SHAPES[shape]
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=False)
    writer.add_tokenizer_model("none")
    settings = {
        "vocab_size": V,
        "context_length": 8192,
        "embedding_length": C,
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": H,
        "attention.head_count_kv": G,
    }
    if E:
        settings |= {
            "expert_feed_forward_length": inner,
            "expert_count": E,
            "expert_used_count": top,
            "attention.key_length": D,
            "attention.value_length": D,
        }
    else:
        settings["rope.dimension_count"] = D
    for name, value in settings.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    generator = np.random.default_rng(0)

    def matrix(name: str, *sizes: int) -> None:
        chosen = (
            type_in_mix(name.replace("_exps", ""), kind, layers, not E) if kind in MIXES else kind
        )
        if sizes[-1] % 256:
            chosen = FALLBACKS.get(chosen, chosen)
        type_ = gguf.GGMLQuantizationType[chosen]
        count = int(np.prod(sizes)) // gguf.GGML_QUANT_SIZES[type_][0]
        data = blocks(chosen, count, generator.integers(2**31), 0.02 * sizes[-1] ** -0.5)
        writer.add_tensor(name, data.reshape(*sizes[:-1], -1), raw_dtype=type_)

    def floats(name: str, *sizes: int) -> None:
        noise = 1 if len(sizes) == 1 else 3 * sizes[-1] ** -0.5 * generator.standard_normal(sizes)
        writer.add_tensor(name, (noise + np.zeros(sizes)).astype(np.float32))

    matrix("token_embd.weight", V, C)
    for layer in range(layers):
        block = f"blk.{layer}."
        floats(f"{block}attn_norm.weight", C)
        floats(f"{block}ffn_norm.weight", C)
        for name, heads in (("q", H), ("k", G), ("v", G)):
            matrix(f"{block}attn_{name}.weight", heads * D, C)
        matrix(f"{block}attn_output.weight", C, H * D)
        if E:
            floats(f"{block}attn_q_norm.weight", D)
            floats(f"{block}attn_k_norm.weight", D)
            floats(f"{block}ffn_gate_inp.weight", E, C)
        suffix, experts = ("_exps", (E,)) if E else ("", ())
        for name, size in (("gate", (inner, C)), ("up", (inner, C)), ("down", (C, inner))):
            matrix(f"{block}ffn_{name}{suffix}.weight", *experts, *size)
    floats("output_norm.weight", C)
    if E:
        matrix("output.weight", V, C)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare(path: str, threads: int) -> None:
    """Print the speed of both sides, and our ratio."""
    from peers.worker import Worker

    workers = {name: Worker(name, {"folder": path}, threads) for name in ("Minhub", "LlamaCpp")}
    generator = np.random.default_rng(0)
    seconds: dict[str, dict[int, list[float]]] = {name: {1: [], NEW + 1: []} for name in workers}
    for worker in workers.values():
        worker.ready()
        worker.ask("timed", prompts=[list(range(1, PROMPT + 1))], new=NEW + 1)
    for _ in range(ROUNDS):
        prompts: list[Any] = [generator.integers(1, 40_000, PROMPT).tolist()]
        for new in (1, NEW + 1):
            for name, worker in workers.items():
                times = worker.ask("timed", prompts=prompts, new=new)
                seconds[name][new].append(times["cpu_seconds" if threads == 1 else "seconds"])
    speeds = []
    for name, by_new in seconds.items():
        workers[name].close()
        prompt = min(by_new[1])
        speeds.append((NEW / (min(by_new[NEW + 1]) - prompt), PROMPT / prompt))
        print(
            f"{Path(path).name}, {threads} threads, {name}: decoding {speeds[-1][0]:.1f}, prompt"
            f" {speeds[-1][1]:.1f}"
        )
    print(
        f"ratio: decoding {speeds[0][0] / speeds[1][0]:.2f}, prompt"
        f" {speeds[0][1] / speeds[1][1]:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    announce()
    command, file, *words = sys.argv[1:]
    if command == "write":
        write(file, *words)
    else:
        for count in words or ["1", "2"]:
            compare(file, int(count))
