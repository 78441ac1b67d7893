"""Hints for names that users know from other programs: commands, options, and arguments of
functions.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# Other name -> command
COMMANDS = {
    "pull": "download", "get": "download", "fetch": "download",
    "ls": "list", "models": "list", "ps": "list",
    "rm": "delete", "remove": "delete", "del": "delete",
    "run": "chat", "talk": "chat",
    "complete": "generate", "completion": "generate", "predict": "classify",
    "server": "serve", "api": "serve",
    "show": "inspect", "info": "inspect", "check": "verify",
    "quantize": "convert", "export": "convert", "merge": "convert",
    "finetune": "train", "fine-tune": "train", "sft": "train",
    "embedding": "embed", "embeddings": "embed", "encode": "embed",
    "perplexity": "score", "ppl": "score", "surprisal": "words", "ner": "entities",
    "qa": "answer", "squad": "answer",
    "benchmark": "bench",
}  # fmt: skip
# Other name -> option, with a value if the name implies one. A name can mean several options, in
# this order.
OPTIONS = {
    "--lr": ["--learning-rate"], "--batch-size": ["--batch"], "--per-device-train-batch-size": ["--batch"],
    "--gradient-accumulation-steps": ["--accumulate"], "--num-train-epochs": ["--epochs"], "--num-epochs": ["--epochs"],
    "--max-steps": ["--steps"], "--warmup": ["--warm-up"], "--warmup-steps": ["--warm-up"],
    "--grad-clip": ["--clip"], "--max-grad-norm": ["--clip"], "--gradient-checkpointing": ["--checkpointing"],
    "--lora-r": ["--lora"], "--lora-rank": ["--lora"], "--rank": ["--lora"],
    "--model": ["--from", "MODEL as an argument"], "--base-model": ["--from"], "--init-from": ["--from"],
    "--output": ["--out"], "--output-dir": ["--out"], "-o": ["--out"],
    "--block-size": ["--context"], "--ctx-size": ["--context"], "--max-model-len": ["--context"],
    "--max-seq-length": ["--context"], "--max-length": ["--max-new-tokens", "--context"],
    "--max-tokens": ["--max-new-tokens"], "--num-predict": ["--max-new-tokens"], "--n-predict": ["--max-new-tokens"],
    "--num-beams": ["--beams"], "--beam-size": ["--beams"],
    "--temp": ["--temperature"], "--prompt": ["PROMPT as an argument"], "-p": ["PROMPT as an argument"],
    "--system-prompt": ["--system"], "--repeat-penalty": ["--repetition-penalty"],
    "--load-in-8bit": ["--quantize int8"], "--load-in-4bit": ["--quantize nf4"],
    "--bf16": ["--dtype bfloat16"], "--fp16": ["--dtype float16"], "--torch-dtype": ["--dtype"],
    "--device-map": ["--device"], "--cpu": ["--device cpu"], "--cuda": ["--device cuda"],
    "--num-threads": ["--threads"], "-t": ["--threads"], "--parallel": ["--max-requests"],
    "--tensor-parallel-size": ["--tensor-parallel"], "--tp": ["--tensor-parallel"], "--served-model-name": ["--alias"],
    "--lora-modules": ["--adapter"], "--lora-adapter": ["--adapter"],
    "--outtype": ["--type"], "--quantization": ["--quantize"], "--pooling": ["--pool"], "--force": ["--overwrite"],
}  # fmt: skip
# Other name of an argument in Python -> the argument here
ARGUMENTS = {
    "torch_dtype": "dtype", "device_map": "device", "load_in_8bit": 'quantize="int8"', "load_in_4bit": 'quantize="nf4"',
    "quantization_config": 'quantize="int8" or "nf4"', "use_auth_token": "token",
    "max_tokens": "max_new_tokens", "max_length": "max_new_tokens",
    "num_return_sequences": "a prompt several times, or beam_search()",
    "num_beams": "beams", "beam_width": "beams", "beams": "generate(): a beam search has no tokens before its end",
    "do_sample": "temperature (0: greedy decoding)", "eos_token_id": "eos_id", "stop_strings": "stop",
    "assistant_model": "draft", "input_ids": "prompts, lists of token IDs",
    "lr": "learning_rate", "batch_size": "batch", "num_train_epochs": "epochs", "output_dir": "out",
    "gradient_accumulation_steps": "accumulate", "max_steps": "steps", "warmup_steps": "warm_up",
}  # fmt: skip
# Arguments that have no effect here, with the reason
UNNECESSARY = {
    "trust_remote_code": "no code of a repository is run",
    "low_cpu_mem_usage": "weights are always memory-mapped",
    "attn_implementation": "there is one implementation of attention",
    "use_safetensors": "the format is detected",
    "cache_dir": "set the environment variable HF_HOME",
    "pad_token_id": "prompts need no padding",
    "attention_mask": "prompts need no padding",
    "use_cache": "the cache is always used",
}


def argument_hint(name: str) -> str | None:
    """Advice for an argument with the name of another library; None for other names."""
    if name in ARGUMENTS:
        return f"use {ARGUMENTS[name]}"
    return f"remove it: {UNNECESSARY[name]}" if name in UNNECESSARY else None


def with_hints(function: F) -> F:
    """A decorator: the TypeError for an argument with the name of another library names the
    argument here.
    """
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*arguments: object, **settings: object) -> Any:
        for name in settings:
            if name not in names and (hint := argument_hint(name)):
                raise TypeError(f"{call.__name__}() has no argument {name}: {hint}")
        return function(*arguments, **settings)

    return call  # type: ignore[return-value]
