"""The questions of typed decisions, the answers to them, and a repository's settings for both."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minhub_py.checkpoints.storage import read_settings
from minhub_py.checkpoints.tokenizers.tokenizer import FILES
from minhub_py.system.files import read_text

Type = Literal["noul", "choice", "score"]
TYPES: tuple[Type, ...] = ("noul", "choice", "score")
EXAMPLES = {
    "noul": '{"type": "noul", "instructions": "Is this spam?"}',
    "choice": '{"type": "choice", "instructions": "What is the tone?", "criteria": {"calm": null, "angry": null}}',
    "score": '{"type": "score", "instructions": "How urgent is it?", "criteria": ["Can wait", "Today"]}',
}
SETTINGS, TEMPLATE = "decision.json", "decision_template.jinja"


@dataclass(frozen=True)
class DecisionSettings:
    """A repository's settings for decisions: decision.json and decision_template.jinja.

    Attributes:
        labels: Labels of one token by type of question. Default: Yes and No, and A to Z.
        temperature: Temperature by type of question, which divides the scores. Default: 1.
        noul_options: The order of the options of a noul question.
        sanitize_control_tokens: Whether control tokens in texts and questions are ordinary text.
        chat_template: Jinja template of the prompt, with `state` and `question`, or `questions` for
            one prompt with all questions. Default: a prompt in the model's chat template.
    """

    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    temperature: Mapping[str, float] = field(default_factory=dict)
    noul_options: tuple[str, ...] = ("true", "false")
    sanitize_control_tokens: bool = True
    chat_template: str | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "DecisionSettings":
        """The settings beside the tokenizer's files. ValueError: decision.json is invalid."""
        file = FILES.get(tokenizer)
        if file is None or file.suffix == ".gguf":
            return cls()
        return cls.read(file.parent)

    @classmethod
    def read(cls, folder: Path) -> "DecisionSettings":
        """The settings in a folder. ValueError: decision.json is invalid."""
        values = read_settings(folder, SETTINGS)
        where = folder / SETTINGS
        labels, temperature = values.get("labels") or {}, values.get("temperature") or {}
        for name, entries in (("labels", labels), ("temperature", temperature)):
            if not isinstance(entries, Mapping) or not entries.keys() <= set(TYPES):
                raise ValueError(
                    f"{where}: {name} must map {', '.join(TYPES)} to values, not {brief(entries)}"
                )
        for kind, value in temperature.items():
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < float("inf")
            ):
                raise ValueError(
                    f"{where}: temperature of {kind} must be a positive number, not {brief(value)}"
                )
        for kind, names in labels.items():
            if not isinstance(names, list) or not all(
                isinstance(name, str) and name for name in names
            ):
                raise ValueError(
                    f"{where}: labels of {kind} must be a list of strings, not {brief(names)}"
                )
        options = values.get("noul_options", ["true", "false"])
        if not isinstance(options, list) or sorted(map(str, options)) != ["false", "true"]:
            raise ValueError(
                f'{where}: noul_options must be "true" and "false" in some order, not {brief(options)}'
            )
        if values.get("adapter"):
            raise ValueError(
                f"{where} names an adapter: load the model with"
                f" adapter={str(folder / str(values['adapter']))!r}, and pass"
                " settings=DecisionSettings(…)"
            )
        template = folder / TEMPLATE
        return cls(
            labels,
            temperature,
            tuple(options),
            bool(values.get("sanitize_control_tokens", True)),
            read_text(template) if template.exists() else None,
        )

    def labels_of(self, kind: Type) -> Sequence[str]:
        """The labels of a type of question."""
        return self.labels.get(kind) or (
            ("Yes", "No") if kind == "noul" else string.ascii_uppercase
        )

    def temperature_of(self, kind: Type) -> float:
        """The temperature of a type of question."""
        return float(self.temperature.get(kind, 1.0))


@dataclass(frozen=True)
class Question:
    """A question with its options in the order of the prompt.

    descriptions: of the options, as text or JSON; None for no description.    levels: for a score,
    the description of each level by name.
    """

    name: str
    type: Type
    instructions: Any
    options: tuple[str, ...]
    labels: tuple[str, ...]
    descriptions: tuple[Any, ...]

    def reordered(self, indices: Sequence[int]) -> "Question":
        """The question with its options in another order. Labels remain in place."""
        return replace(
            self,
            options=tuple(self.options[i] for i in indices),
            descriptions=tuple(self.descriptions[i] for i in indices),
        )

    def to_template(self) -> dict[str, Any]:
        """The variables of a decision template."""
        return {
            "name": self.name,
            "type": self.type,
            "instructions": self.instructions,
            "options": list(self.options),
            "labels": list(self.labels),
            "descriptions": list(self.descriptions),
        }

    def answer(self, probabilities: NDArray[np.float64]) -> dict[str, Any]:
        """The answer in the form of the System One API, from the probabilities of the options.

        confidence: 1 for one option with all probability, 0 for a uniform distribution.
        """
        by_option = dict(zip(self.options, map(float, probabilities), strict=True))
        count = len(by_option)
        if self.type == "noul":
            return {"type": "noul", "noul": by_option["true"]}
        best = max(by_option, key=lambda option: by_option[option])
        if self.type == "choice":
            confidence = (
                1.0 if count == 1 else max(0.0, (by_option[best] - 1 / count) / (1 - 1 / count))
            )
            return {
                "type": "choice",
                "choice": best,
                "confidence": confidence,
                "probabilities": by_option,
            }
        levels = np.arange(count)
        distance = float(np.abs(levels - int(best)) @ probabilities)
        uniform = float(np.abs(levels - (count - 1) / 2).mean())
        return {
            "type": "score",
            "score": float(levels @ probabilities),
            "legend": dict(zip(self.options, self.descriptions, strict=True)),
            "confidence": 1.0 if count == 1 else max(0.0, 1 - distance / uniform),
            "probabilities": by_option,
        }


def read_questions(path: Path) -> dict[str, Any]:
    """The questions in a YAML or JSON file. ValueError: it is not valid YAML, or has no questions."""
    import yaml  # type: ignore[import-untyped]

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must map names to questions, such as spam: {EXAMPLES['noul']}")
    # YAML reads an unquoted true or 1 as another type than text.
    return {str(name): spelled_criteria(question) for name, question in value.items()}


def spelled_criteria(question: Any) -> Any:
    """A question of a YAML file whose options are text."""
    if not isinstance(question, dict) or not isinstance(question.get("criteria"), dict):
        return question
    names = {True: "true", False: "false"}
    criteria = {
        names[key] if isinstance(key, bool) else str(key): value
        for key, value in question["criteria"].items()
    }
    return {**question, "criteria": criteria}


def parse_questions(questions: Any, settings: DecisionSettings) -> list[Question]:
    """The questions of a request. ValueError: lists every invalid question, with a valid example."""
    if not isinstance(questions, Mapping) or not questions:
        raise ValueError(
            f'questions must map names to questions, such as {{"spam": {EXAMPLES["noul"]}}}, not {brief(questions)}'
        )
    parsed, errors = list[Question](), list[str]()
    for name, value in questions.items():
        try:
            parsed.append(parse_question(str(name), value, settings))
        except ValueError as error:
            errors.append(f"question {str(name)!r}: {error}")
    if errors:
        raise ValueError("\n".join(errors))
    return parsed


def parse_question(name: str, value: Any, settings: DecisionSettings) -> Question:
    """A question. ValueError: it is invalid, or has more options than labels."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in TYPES:
        raise ValueError(
            f"type must be {', '.join(TYPES[:-1])} or {TYPES[-1]}, not"
            f" {brief(kind if isinstance(value, Mapping) else value)}"
        )
    if unknown := sorted(value.keys() - {"type", "instructions", "criteria"}):
        raise ValueError(
            f"unknown field {unknown[0]!r}: a {kind} question looks like {EXAMPLES[kind]}"
        )
    criteria = value.get("criteria")
    form: type = list if kind == "score" else dict
    if not isinstance(criteria, form | None) or (kind != "noul" and not criteria):
        raise ValueError(
            f"criteria must contain the {'levels' if kind == 'score' else 'options'}: a {kind}"
            f" question looks like {EXAMPLES[kind]}"
        )
    contents = criteria if isinstance(criteria, list) else list((criteria or {}).values())
    for content in (value.get("instructions"), *contents):
        if not isinstance(content, str | dict | list | None):
            raise ValueError(
                f"instructions and criteria must be text or JSON objects, not {brief(content)}"
            )
    if kind == "noul":
        criteria = criteria or {}
        if unknown := sorted(criteria.keys() - {"true", "false"}):
            raise ValueError(
                f"criteria of a noul question describe true and false, not {unknown[0]!r}"
            )
        criteria = {option: criteria.get(option) for option in settings.noul_options}
    elif kind == "score":
        criteria = {str(level): description for level, description in enumerate(criteria)}
    labels = settings.labels_of(kind)
    if len(labels) < len(criteria):
        raise ValueError(
            f"it has {len(criteria)} options, and this model's labels allow at most {len(labels)}:"
            " combine options, or ask two questions"
        )
    return Question(
        name,
        kind,
        value.get("instructions"),
        tuple(map(str, criteria)),
        tuple(labels[: len(criteria)]),
        tuple(criteria.values()),
    )
