"""R's spelling of settings and calls in messages. The service activates it for each request."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import ClassVar

from minhub_py.system.spelling import Spelling, use_spelling

# `from` is a keyword in Python.
R_NAMES = {"start": "from"}

# The end of the path of minhub_install()'s virtual environment (R/python.R).
INSTALLED = ("minhubpy", "venv")

# Python's functions with another name in R.
R_FUNCTIONS = {
    "embed": "text_embeddings", "score": "token_logprobs", "classify": "classify_texts",
    "similarity": "text_similarity", "search": "text_search", "Chat": "minhub_chat",
    "annotate": "annotate_texts", "agreement": "label_agreement", "estimate": "corrected_estimate",
    "decide": "decide_texts", "calibrate": "calibrate_decisions",
    "translate": "translate_texts", "summarize": "summarize_texts",
    "patching": "activation_patching", "direction": "steering_direction", "probe": "linear_probe",
    "attribution": "logit_attribution", "rollout": "attention_rollout",
}  # fmt: skip
_FUNCTION = re.compile(rf"(?<![\w.])({'|'.join(R_FUNCTIONS)})\(\)")


def with_r_names(message: str) -> str:
    """A message with R's names of functions."""
    return _FUNCTION.sub(lambda call: f"{R_FUNCTIONS[call[1]]}()", message)


class RSpelling(Spelling):
    """Settings as arguments and commands as calls, for R users."""

    train = "minhub_train()"
    calls: ClassVar[Mapping[str, str]] = {
        "embed": "text_embeddings()",
        "decide": "decide_texts()",
        "masked": "masked_tokens()",
        "classify": "classify_texts()",
        "rerank": "rerank()",
        "entities": "classify_tokens()",
        "answer": "answer_questions()",
    }

    def setting(self, name: str, value: object = None) -> str:
        """An argument: batch = 8, carry = FALSE, from = "run"."""
        name = R_NAMES.get(name, name)
        if value is None:
            return name
        return f"{name} = {str(value).upper() if isinstance(value, bool) else _quote(value)}"

    def download(self, identifier: str, revision: str) -> str:
        """A call of from_pretrained(), which downloads missing files."""
        arguments = [
            _quote(identifier),
            *([] if revision == "main" else [self.setting("revision", revision)]),
        ]
        return f"from_pretrained({', '.join(arguments)})"

    def resume(self, folder: str | PathLike[str], **changes: object) -> str:
        """A call of minhub_resume()."""
        settings = [self.setting(*change) for change in changes.items()]
        return f"minhub_resume({', '.join([_quote(str(folder)), *settings])})"

    def install(self, extra: str) -> str | None:
        """A call of minhub_install() if it created this Python, which may have neither pip nor uv."""
        return (
            f"minhub_install(extras = {_quote(extra)})"
            if Path(sys.prefix).parts[-2:] == INSTALLED
            else None
        )


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def use_r_spelling() -> Iterator[None]:
    """Use the names of R's arguments and functions in messages."""
    with use_spelling(RSpelling()):
        yield
