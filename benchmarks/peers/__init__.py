"""Peers of this package in the benchmark `compare.py`.

Read in this order: `cases` (the measurements), `run` (models, and workers that take turns),
`worker` (one process per library), `engines` (the same tasks for each library), `gguf_writer`
(files for llama.cpp), `tables` and `plot` (the output). A new peer is a row of `run.PEERS`, its
class in `engines`, and a method of `engines.Converter` if it has its own file format.

Every ratio is one of medians, with both sides interleaved in one run after an uncounted warm-up
round. Everything runs on the CPU. This module imports nothing heavy, because --help needs the names
of the cases.
"""

from typing import Any

# JSON objects: a row of a case, and the result of a run.
Row = dict[str, Any]
Result = dict[str, Any]

# Weights, as each library names them -> bits of a number.
BITS = {
    "float32": 32,
    "F32": 32,
    "bfloat16": 16,
    "float16": 16,
    "BF16": 16,
    "int8": 8,
    "int8-bfloat16": 8,
    "int8-f32": 8,
    "Q8_0": 8,
    "nf4": 4,
    "nf4-bfloat16": 4,
    "int4": 4,
    "int4-f32": 4,
    "Q4_0": 4,
}
# Name -> description, in the order of the run.
CASES = {
    "bandwidth": "reading memory",
    "decode": "decoding one text",
    "llama": "decoding one text with a small Llama, also of llama.cpp's files",
    "positions": "time per token early and late in a text",
    "gptneo": "GPT-Neo near the end of its context",
    "files": "prompts and decoding of GGUF files (--file)",
    "batch": "several texts at once",
    "prefill": "time to the first new token",
    "speculation": "speculative decoding of repetitive text",
    "quality": "accuracy with 16-, 8- and 4-bit weights",
    "load": "loading a checkpoint in a new process",
    "start": "time from the command line to the first text, in a new process",
    "lstm": "an LSTM compared with a plain loop over nn.LSTM",
    "busy": "decoding while another program uses a core",
    "tokenize": "encoding text",
    "convert": "converting a checkpoint to another layout and dtype",
}
