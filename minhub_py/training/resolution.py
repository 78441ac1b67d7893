"""A run's settings in full: values for None and "auto", which depend on the model, the data
and the machine.
"""

import dataclasses
from collections.abc import Collection

import torch
from tokenizers import Tokenizer

from minhub_py.checkpoints import hub
from minhub_py.checkpoints.tokenizers.tokenizer import (
    characters,
    encode_prompt,
    read_tokenizer,
    train_byte_level_bpe,
)
from minhub_py.distributed import environment
from minhub_py.loading.files import ModelFiles, open_files
from minhub_py.models.registry import ENTRIES, entry_of
from minhub_py.models.settings import ModelConfig
from minhub_py.system.device import choose_device, has_onednn_bfloat16
from minhub_py.system.processor import has_bfloat16
from minhub_py.system.spelling import setting
from minhub_py.training import adapter_run, example_run, memory
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.data import CorpusText, split_at_words
from minhub_py.training.errors import read_object
from minhub_py.training.examples import EMBEDDING, KEEPING
from minhub_py.training.settings import CONTEXT, Settings

# of an adapter; 10 times the rate of full fine-tuning, as in trl's "LoRA without regret"
LORA_RATE = 5e-4
MAX_DEFAULT_CONTEXT = 1024  # maximum context that a run adopts from the model to fine-tune


def open_start(settings: Settings) -> ModelFiles | None:
    """The files of the model that a run fine-tunes. Raises the errors of `from_pretrained`."""
    return (
        None if settings.start is None else open_files(settings.start, settings.revision or "main")
    )


def resolve_settings(settings: Settings, start: ModelFiles | None) -> Settings:
    """Replace None and "auto". ValueError: the settings do not fit each other, the model or the
    machine.
    """
    if start is None:
        entry = ENTRIES[settings.family or "gpt2"]
        # raises errors before a long text is read
        config = settings.fresh_config(entry, settings.vocab_size)
        context = CONTEXT
    else:
        architecture, config = start.architecture, start.config
        entry = entry_of(config.to_hub()["model_type"])
        if settings.family not in (None, entry.name):
            raise ValueError(
                f"{settings.start} contains a {entry.name} model, not {settings.family}: remove "
                f"{setting('family')}"
            )
        context = min(
            settings.tuned_config(architecture, config).context_length or CONTEXT,
            MAX_DEFAULT_CONTEXT,
        )
        # A long example is better than a truncated one, but texts have sequences of any length.
        is_text = settings.objective == "text"
        size = memory.activation_memory() if is_text else memory.free_memory() // 2
        context = min(context, tokens_in_memory(settings, start, size, sliced=not is_text))
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        method = quantization.get("quant_method")
        raise ValueError(f"weights in {method} cannot be trained: use the model in BF16 or F32")
    training = entry.architecture.training
    device = choose_device(settings.device)
    dtype, rate = settings.dtype, settings.learning_rate
    if dtype == "auto":
        # cuDNN's LSTM computes in float16 under autocast, where small gradients underflow.
        fast = (
            device.name.startswith("cuda")
            and "bfloat16" in device.dtypes
            and not training.carries_state
        )
        # The frozen weights of an adapter's base can be stored in bfloat16, too.
        fast = fast or (
            device.name == "cpu"
            and bool(settings.lora)
            and has_bfloat16()
            and has_onednn_bfloat16()
        )
        dtype = "bfloat16" if fast else "float32"
    # raises errors before a long text is read
    activated = adapter_run.invocation_of(settings.lora, start, None)
    if activated is not None and settings.objective not in ("chat", "completion", "preference"):
        raise ValueError(
            f"{setting('lora')}: invocation needs chats, prompts with completions, or preference"
            " pairs: in other data, no prompt activates the adapter"
        )
    if rate is None:
        rate = (
            LORA_RATE if settings.lora else training.learning_rate * (1 if start is None else 0.1)
        )
        if settings.objective == "preference" or not settings.lora:
            rate = example_run.RATES.get(str(settings.objective), rate)
    return dataclasses.replace(
        settings,
        family=entry.name,
        context=settings.context or context,
        tokenizer=settings.tokenizer or settings.start or "characters",
        learning_rate=rate,
        dtype=dtype,
        threads=settings.threads or torch.get_num_threads(),
    )


def check_effect(settings: Settings, requested: Collection[str], *, kept: bool = True) -> None:
    """ValueError: a given setting has no effect on this run. settings: with the objective.    kept:
    rows are kept.
    """
    requirements = {
        "beta": (settings.objective == "preference", "preference pairs (prompt, chosen, rejected)"),
        "scale": (
            settings.objective in EMBEDDING and settings.margin is None,
            "pairs or triplets (anchor, positive, negative) and in-batch negatives",
        ),
        "margin": (settings.objective == "triplets", "triplets (anchor, positive, negative)"),
        "keep_weight": (
            kept and settings.objective in KEEPING and settings.start is not None,
            "rows whose column keep is true",
        ),
        "epochs": (settings.start is not None, setting("start")),
        "na": (settings.start is not None, "files with examples, such as .csv"),
        "vocab_size": (settings.tokenizer == "bpe", setting("tokenizer", "bpe")),
    }
    for name in requested:
        met, requirement = requirements.get(name, (True, ""))
        if not met:
            raise ValueError(f"{setting(name)} has no effect without {requirement}: remove it")


def with_example_defaults(
    folder: RunFolder, settings: Settings, start: ModelFiles | None, requested: Collection[str]
) -> Settings:
    """The settings with the defaults for fine-tuning, which depend on the examples and on the size
    of the model.
    """
    if start is None:
        return settings
    examples = dict(read_object(folder.tokens / "tokens.json"))
    has_examples = "objective" in examples
    if not has_examples:  # a text: sequences of `context` tokens
        examples |= {
            "length": settings.context,
            "train": examples["train"] // (settings.context or CONTEXT),
        }
    check_effect(settings, requested, kept=bool(examples.get("kept")))
    most = tokens_in_memory(settings, start, memory.activation_memory(), sliced=has_examples)
    return example_run.with_defaults(settings, requested, examples, most)


def tokens_in_memory(settings: Settings, start: ModelFiles, size: int, *, sliced: bool) -> int:
    """The number of tokens whose activations have at most `size` bytes; a constant for GPUs and
    several processes.
    """
    if choose_device(settings.device).name != "cpu" or environment.world_size() > 1:
        return memory.MICRO_BATCH_TOKENS
    tokens = memory.tokens_in_memory(start.config, start.architecture.new, size, sliced=sliced)
    return min(tokens, memory.MICRO_BATCH_TOKENS)


def tokenizer_of(settings: Settings, start: ModelFiles | None, text: CorpusText) -> Tokenizer:
    """A run's tokenizer. Raises the errors of `tokenizer_from_pretrained`."""
    if settings.tokenizer == "characters":
        return characters(text.alphabet)
    if settings.tokenizer == "bpe":
        return train_byte_level_bpe(
            split_at_words(text.train("Learning tokens")), settings.vocab_size
        )
    if start is not None and settings.tokenizer == settings.start:
        return read_tokenizer(start.path)
    return read_tokenizer(hub.fetch(str(settings.tokenizer), weights=False))


def check_model(settings: Settings, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """ValueError: the model's vocabulary or context is too small, or the prompt of samples has no
    token.
    """
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    if vocab_size > config.vocab_size:
        raise ValueError(
            f"the model has {config.vocab_size} token IDs, but the tokenizer has {vocab_size}:"
            f" remove {setting('tokenizer')} or vocab_size"
        )
    if config.context_length is not None and (settings.context or 0) > config.context_length:
        raise ValueError(
            f"{setting('context')} must be at most {config.context_length}, the number of the"
            f" model's positions, not {settings.context}"
        )
    if settings.sample is not None and not encode_prompt(tokenizer, settings.sample):
        raise ValueError(
            f"{setting('sample')} {settings.sample!r} has no token in the model's vocabulary: use"
            " another prompt"
        )
