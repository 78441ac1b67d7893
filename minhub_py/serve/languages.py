"""The languages of a translation in a request: `source_language` and `target_language`.

A request for a translation model reads one text, such as the last message of a conversation, as
`translate` does. Without settings of sampling, the most likely tokens are the reply.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from minhub_py.analysis.text_to_text import task_settings
from minhub_py.analysis.translation import languages_between
from minhub_py.chat.content import text_of
from minhub_py.checkpoints.tokenizers.languages import Languages, languages_of
from minhub_py.checkpoints.tokenizers.paired import PairedTokenizer
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.inference.sampling import Sampling
from minhub_py.inference.token_limits import model_limits
from minhub_py.serve.models import ServedModel
from minhub_py.serve.validation import Fields, invalid
from minhub_py.system.json_text import JsonObject
from minhub_py.system.spelling import SettingError

SOURCE, TARGET = "source_language", "target_language"
GREEDY = {**asdict(Sampling()), "temperature": 0.0}


@dataclass(frozen=True)
class Translation:
    """The translation of a request.

    source_ids: the encoder's token IDs of a text.
    settings: of `engine.Request`, for the beginning of the reply.
    """

    source_ids: Callable[[str], list[int]]
    settings: JsonObject


def parse_translation(
    fields: Fields, served: ServedModel, *, text: bool = True
) -> Translation | None:
    """The translation that a request describes; None for other models. text: whether the request
    has a text.

    RequestError: the model lacks a language, or needs one.
    """
    source, target = fields.string(SOURCE) or None, fields.string(TARGET) or None
    named, tokenizer = source is not None or target is not None, served.tokenizer
    if not served.model.encoder_decoder:
        for name in (SOURCE, TARGET):
            fields.reject(name)
        return None
    languages = languages_of(tokenizer)
    if not named and languages is None and not isinstance(tokenizer, PairedTokenizer):  # as T5
        return None
    fields.reject("add_special_tokens", harmless=(True,), empty=False)
    fields.reject("truncate_prompt_tokens", "tools", "functions")
    if not named and (not text or has_target(served, languages)):
        return Translation(lambda text: encode(tokenizer, text), {})
    try:
        pair = languages_between(served.model, tokenizer, source, target, (SOURCE, TARGET))
    except SettingError as error:
        name = SOURCE if SOURCE in str(error) else TARGET
        raise invalid(str(error), name) from error
    prefix = str(task_settings(served.model, pair.task).get("prefix") or "")
    return Translation(lambda text: pair.source(prefix + text), dict(pair.admission))


def has_target(served: ServedModel, languages: Languages | None) -> bool:
    """Whether the model's files determine the language of its replies."""
    if languages is None or model_limits(served.model).first:
        return True
    return languages.style == "mbart" and served.model.decoder_start in languages.ids.values()


async def encode_text(served: ServedModel, translation: Translation, text: str) -> list[int]:
    """The token IDs of the text of a request. RequestError: it is empty or too long."""
    served.check_characters(len(text), "prompt")
    if not text.strip():
        raise invalid("the text of a translation must not be empty", "prompt")
    ids = await served.texts.run(lambda: translation.source_ids(text))
    served.check_length(ids)
    return ids


def text_of_chat(messages: list[JsonObject]) -> str:
    """The text of a conversation that a translation model reads: the last message.

    Earlier questions and replies do not change its translation.    RequestError: the last message
    is not the user's, or there is a system message.
    """
    if messages[-1]["role"] != "user" or any(message["role"] == "system" for message in messages):
        raise invalid(
            "a translation model reads the last message, which must be the user's, and no system"
            " message",
            "messages",
        )
    return text_of(messages[-1]["content"])
