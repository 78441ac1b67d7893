"""A translation model's languages, and how its tokenizer marks them.

    style      token of a language    source text                    decoder starts with    first token
    nllb       eng_Latn               language, text, </s>           the model's            language
    mbart50    en_XX                  language, text, </s>           the model's            language
    m2m100     __en__ (code en)       language, text, </s>           the model's            language
    mbart      en_XX                  text, </s>, language           language               none
    marian     >>deu<< (code deu)     target language, text, </s>    the model's            none

To translate a text:

    languages = languages_of(tokenizer)  # None: the tokenizer has no tokens of languages
    ids = languages.source_ids("A text.", source="eng_Latn", target="deu_Latn")
    batch.admit(ids, …, first=languages.first_id("deu_Latn"), start=languages.start_id("deu_Latn"))
    tokenizer.decode(new_ids)

A model of one pair of languages, such as opus-mt-en-de, has no tokens of languages: its source text
is `tokenizer.encode(text)`. Marian has two SentencePiece models; see paired.py.

Sources: transformers' tokenizers for the order of the tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
from minhub_py.checkpoints.tokenizers.surroundings import stored_settings
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.system.spelling import similar

# style -> the form of a language's token; the group is its code
FORMS = {
    "nllb": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "mbart": re.compile(r"([a-z]{2}_[A-Z]{2})"),
    "m2m100": re.compile(r"__([a-z]{2,3})__"),
    "marian": re.compile(r">>(.{1,40})<<"),
}
# tokenizer_class, without Tokenizer or TokenizerFast -> style
CLASSES = {
    "Nllb": "nllb",
    "MBart": "mbart",
    "MBart50": "mbart50",
    "M2M100": "m2m100",
    "Marian": "marian",
}
MBART_COUNT = 25  # languages of mBART; mBART-50 has more


@dataclass(frozen=True)
class Languages:
    """A translation model's languages.

    style: see above.    ids: the token ID of each language, by its code.    end: of </s>.
    """

    tokenizer: Tokenizer
    style: str
    ids: Mapping[str, int]
    end: int

    @property
    def codes(self) -> list[str]:
        """The codes of the languages. Marian's are target languages only."""
        return [*self.ids]

    @property
    def marks_source(self) -> bool:
        """Whether the source language must be known."""
        return self.style != "marian"

    def id_of(self, code: str) -> int:
        """The token ID of a language. ValueError: the model does not have it."""
        if code not in self.ids:
            listed = similar([code], self.codes, "its languages")
            raise ValueError(f"the model has no language {code!r}: {listed}")
        return self.ids[code]

    def source_ids(self, text: str, *, source: str | None, target: str) -> list[int]:
        """The encoder's token IDs of a text. source, target: codes; the source may be None if it is
        not marked.

        ValueError: the model does not have a language, or the source is missing.
        """
        code = source if self.marks_source else target
        if code is None:
            raise ValueError("the model marks the source language: state it")
        self.id_of(target)
        return self._around(text, self.tokenizer, code)

    def first_id(self, target: str) -> int | None:
        """A translation's first token, which is forced; None if it is free."""
        return None if self.style in ("mbart", "marian") else self.id_of(target)

    def start_id(self, target: str) -> int | None:
        """The token before the first one; None for the model's decoder_start_token_id."""
        return self.id_of(target) if self.style == "mbart" else None

    def target_ids(self, text: str, *, target: str) -> list[int]:
        """The token IDs of a translation, as the decoder writes them: targets for training."""
        if self.style == "marian":
            return encode(target_tokenizer(self.tokenizer), text)
        return self._around(text, self.tokenizer, target)

    def _around(self, text: str, tokenizer: Tokenizer, code: str) -> list[int]:
        """The token IDs of a text, with a language and </s>."""
        ids, language = encode(tokenizer, text, add_special_tokens=False), self.id_of(code)
        if self.style == "mbart":
            return [*ids, self.end, language]
        return [language, *ids, self.end]


def languages_of(tokenizer: Tokenizer) -> Languages | None:
    """A tokenizer's languages; None if it has no tokens of languages."""
    settings = stored_settings(tokenizer)
    name = str(settings.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
    added = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
    tokens = {**tokenizer.get_vocab(), **added} if name == "Marian" else added
    styles = [CLASSES[name].removesuffix("50")] if name in CLASSES else [*FORMS]
    for style in styles:
        codes = {
            match[1]: id
            for token, id in sorted(tokens.items(), key=lambda item: item[1])
            if (match := FORMS[style].fullmatch(token))
        }
        end = tokenizer.token_to_id("</s>")
        if codes and end is not None:
            if style == "mbart" and (name == "MBart50" or len(codes) > MBART_COUNT):
                style = "mbart50"  # noqa: PLW2901
            return Languages(tokenizer, style, codes, end)
    return None
