"""Completion of a text in one call: `complete`."""

from collections.abc import Sequence
from reprlib import repr as brief
from typing import TYPE_CHECKING

from minhub_py.chat.defaults import default_sampling
from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, encode_prompt, until
from minhub_py.inference.arguments import check_tokenizer, decoder_of, is_text
from minhub_py.inference.generate import stream
from minhub_py.inference.limits import stop_strings
from minhub_py.inference.sampling import Sampling
from minhub_py.system.spelling import unknown

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from typing_extensions import Unpack

    from minhub_py.chat.turns import SamplingSettings
    from minhub_py.models.base import LanguageModel


def complete(
    model: "LanguageModel",
    tokenizer: "Tokenizer",
    text: str,
    max_new_tokens: int = 64,
    *,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    **sampling: "Unpack[SamplingSettings]",
) -> str:
    """Continue a text. For conversations, see `Chat`.

        complete(model, tokenizer, "ROMEO:", seed=1)

    Args:
        model: A model of this package. An encoder-decoder answers the text.
        tokenizer: The model's `tokenizers.Tokenizer`.
        text: The text to continue.
        max_new_tokens: Maximum number of new tokens.
        seed: Random seed. None draws one from PyTorch's default generator.
        stop: Strings that end the new text, which does not include them.
        sampling: Sampling settings of `generate`, such as temperature and top_p. By default, the
            settings in the model's generation_config.json, or else the model's own distribution.

    Returns:
        The new text, without the given one.

    Raises:
        ValueError: The text has no tokens, the model is an encoder, or a setting is unknown or out
            of range.
    """
    decoder = decoder_of(model, "complete()")
    check_tokenizer(tokenizer, "encode")
    if not is_text(text):
        raise ValueError(f"complete() takes one text, not {brief(text)}")
    if invalid := sorted(set(sampling) - set(Sampling.names())):
        raise ValueError(unknown(invalid, [*Sampling.names()]))
    ids = encode_prompt(tokenizer, text, source=decoder.encoder_decoder)
    if not ids:
        raise ValueError(
            "the text has no tokens in the model's vocabulary: pass a text that is not empty"
        )
    stops = stop_strings(stop)
    settings = {**default_sampling(decoder, chat=False), **sampling}
    new = stream(
        decoder, ids, max_new_tokens, seed=seed, stop=stops, tokenizer=tokenizer, **settings
    )
    return "".join(
        until(decode_stream(tokenizer, new, [] if decoder.encoder_decoder else ids), stops)
    )
