"""Loading of a model and its tokenizer for a command, and conversion of text to token IDs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minhub_py.system.console import note

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.checkpoints.storage import Checkpoint
    from minhub_py.distributed.process_group import ProcessGroup


def open_model(
    identifier: str,
    revision: str,
    device: str,
    dtype: str,
    quantize: str | None,
    group: "ProcessGroup | None" = None,
    *,
    encoders: bool = False,
    adapter: str | Mapping[str, str] | None = None,
    mtp: bool = False,
) -> tuple[Any, "Tokenizer"]:
    """Load a model, or this process's shard of it, and its tokenizer.

    adapter, mtp: as in `from_pretrained`.
    ValueError: a text encoder, unless `encoders`.
    """
    from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
    from minhub_py.inference.arguments import not_a_decoder
    from minhub_py.loading.adapters.loading import DEFAULT_ADAPTER, adapter_folders, load_adapters
    from minhub_py.loading.fitting import describe
    from minhub_py.loading.pretrained import load, open_checkpoint

    tokenizers: list[Any] = []

    def check(files: "Checkpoint") -> None:  # runs before the weights are downloaded
        architecture, config = describe(files)
        if not encoders and architecture.model_class(config).encoder_only:
            raise ValueError(not_a_decoder(config))
        tokenizers.append(read_tokenizer(files.path))

    if adapter is not None and group is not None:
        raise ValueError(
            "a model with an adapter cannot be split among processes: run minhub convert --merge"
            " first"
        )
    folders = adapter_folders(adapter)
    checkpoint = open_checkpoint(identifier, revision, check=check, group=group)
    model = load(checkpoint, device=device, dtype=dtype, quantize=quantize, group=group, mtp=mtp)
    note_quantized(model, quantize)
    load_adapters(model, folders)
    return model.adapter(DEFAULT_ADAPTER) if isinstance(adapter, str) else model, tokenizers[0]


def note_quantized(model: Any, quantize: str | None) -> None:
    """Print a note if the quantized weights of a GGUF file are used by default."""
    from minhub_py.inference.quantize import kind_of

    if quantize is None and (kind := kind_of(model)):
        note(
            f"Note: using the file's quantized weights ({kind}); --quantize none converts them to"
            " floating point."
        )


def decode_utf8(data: bytes, source: str) -> str:
    """Decode the bytes of `source`. ValueError: the bytes are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8 text ({error.reason} at byte {error.start}): convert it first"
        ) from error


def encode(tokenizer: "Tokenizer", text: str, *, prompt: bool = False) -> list[int]:
    """Encode a text; print a note about characters outside the vocabulary. ValueError: the text is
    not UTF-8.

    prompt: the model continues the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the command line was not UTF-8
        raise ValueError("PROMPT is not UTF-8 text: convert it first") from error
    from minhub_py.checkpoints.tokenizers.tokenizer import (
        describe_unknown,
        encode_prompt,
        unknown_characters,
        working,
    )

    with working(tokenizer):
        token_ids = encode_prompt(tokenizer, text, source=not prompt)
        unknown = unknown_characters(tokenizer, text, token_ids)
    if unknown:
        note(f"Note: {describe_unknown(tokenizer, unknown)}")
    return token_ids
