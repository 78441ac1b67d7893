"""Loading of a model and its tokenizer for a command, and conversion of text to token IDs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from minhub_py.system.console import note

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.distributed.process_group import ProcessGroup
    from minhub_py.loading.files import ModelFiles
    from minhub_py.models.base import LanguageModel


class LoadingOptions(TypedDict):
    """The values of `loading_options`, arguments of `open_model`."""

    revision: str
    device: str
    dtype: str
    quantize: str | None


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
    from minhub_py.loading.files import open_files
    from minhub_py.loading.pretrained import ADAPTER_IN_GROUP, load

    def opening() -> "tuple[ModelFiles, Tokenizer]":
        """The files and the tokenizer. Errors precede the download of the weights."""
        files = open_files(identifier, revision, adapter=adapter, weights="later")
        if files.adapters and group is not None:
            raise ValueError(ADAPTER_IN_GROUP)
        if not encoders and files.model_class.encoder_only:
            raise ValueError(not_a_decoder(files.config))
        tokenizer = read_tokenizer(files.path)
        return files.complete(), tokenizer

    files, tokenizer = opening() if group is None else group.run_in_turn(opening)
    model = load(files, device=device, dtype=dtype, quantize=quantize, group=group, mtp=mtp)
    note_quantized(model, quantize)
    return model, tokenizer


def note_quantized(model: "LanguageModel", quantize: str | None) -> None:
    """Print a note if the file's quantized weights are used by default."""
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
