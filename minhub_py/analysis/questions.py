"""The questions of typed decisions, the answers to them, and a repository's settings for both."""

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minhub_py.checkpoints.layout import AGENT_SETTINGS
from minhub_py.checkpoints.storage import agent_settings
from minhub_py.checkpoints.tokenizers.tokenizer import FILES
from minhub_py.system.files import read_text
from minhub_py.system.json_text import JsonObject
from minhub_py.system.shapes import ADVICE, ShapeError, Within, convert, read_json

Type = Literal["noul", "choice", "score"]
TYPES: tuple[Type, ...] = ("noul", "choice", "score")
EXAMPLES = {
    "noul": '{"type": "noul", "instructions": "Is this spam?"}',
    "choice": '{"type": "choice", "instructions": "What is the tone?", "criteria": {"calm": null, "angry": null}}',
    "score": '{"type": "score", "instructions": "How urgent is it?", "criteria": ["Can wait", "Today"]}',
}
SETTINGS, TEMPLATE = "decision.json", "decision_template.jinja"
# Settings of decision heads in their original formats, which transformers converts.
OTHER_HEADS = ("judge_config.json", "decision_config.json")
# Of Laya: the order of its temperatures, the largest number of options, and the names of numbers.
AGENT_TYPES: tuple[Type, ...] = ("choice", "score", "noul")
AGENT_OPTIONS = 255
SIZES = ((2, "2"), (5, "3-5"), (10, "6-10"))
Content = str | dict | list | None  # type: ignore[type-arg]


class QuestionType(TypedDict):
    """A question's type, which determines its form."""

    type: Type


@dataclass(frozen=True)
class NoulForm:
    """A noul question of a request."""

    type: Literal["noul"]
    instructions: Content = None
    criteria: dict[str, Content] | None = None


@dataclass(frozen=True)
class ChoiceForm:
    """A choice question of a request."""

    type: Literal["choice"]
    criteria: Annotated[dict[str, Content], Within(1)]
    instructions: Content = None


@dataclass(frozen=True)
class ScoreForm:
    """A score question of a request."""

    type: Literal["score"]
    criteria: Annotated[list[Content], Within(1)]
    instructions: Content = None


FORMS: dict[Type, object] = {"noul": NoulForm, "choice": ChoiceForm, "score": ScoreForm}
Labels = list[Annotated[str, Within(1)]]
Temperature = Annotated[float, Within(1e-6, 1e6)]


class LabelsByType(TypedDict, total=False):
    """Labels in a decision.json."""

    noul: Labels
    choice: Labels
    score: Labels


class TemperatureByType(TypedDict, total=False):
    """Temperatures in a decision.json."""

    noul: Temperature
    choice: Temperature
    score: Temperature


class DecisionFile(TypedDict, total=False):
    """The content of a decision.json."""

    labels: LabelsByType
    temperature: TemperatureByType
    noul_options: list[str]
    sanitize_control_tokens: bool
    adapter: str


class AgentFile(TypedDict, total=False):
    """The temperatures in an rl_agent_config.json."""

    temperature: list[float]
    temperature_by_options: dict[str, float]


def by_type(values: Mapping[str, object] | None) -> JsonObject:
    """The values that are set, by type of question."""
    return {kind: value for kind, value in (values or {}).items() if value}


@dataclass(frozen=True)
class DecisionSettings:
    """A repository's settings for decisions: decision.json and decision_template.jinja.

    Attributes:
        labels: Labels of one token by type of question. Default: Yes and No, and A to Z.
        temperature: Temperature by type of question, which divides the scores. Default: 1.
        noul_options: The order of a noul question's options.
        sanitize_control_tokens: Whether control tokens in texts and questions are ordinary text.
        chat_template: Jinja template of the prompt, with `state` and `question`, or `questions` for
            one prompt with all questions. Default: a prompt in the model's chat template.
        scales: Numbers by type of question and number of options, such as "choice:3-5", that divide
            the scores before the temperature (Laya). Default: 1.
    """

    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    temperature: Mapping[str, float] = field(default_factory=dict)
    noul_options: tuple[str, ...] = ("true", "false")
    sanitize_control_tokens: bool = True
    chat_template: str | None = None
    scales: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "DecisionSettings":
        """The settings in the folder of the tokenizer's files. ValueError: decision.json is invalid."""
        file = FILES.get(tokenizer)
        if file is None or file.suffix == ".gguf":
            return cls()
        folder = file.parent.parent
        return cls.read(folder if (folder / AGENT_SETTINGS).exists() else file.parent)

    @classmethod
    def read(cls, folder: Path) -> "DecisionSettings":
        """The settings in a folder. ValueError: decision.json is invalid."""
        if (agent := agent_settings(folder)) is not None:
            return cls.of_agent(folder, agent)
        path, template = folder / SETTINGS, folder / TEMPLATE
        if not path.exists() and (
            heads := [name for name in OTHER_HEADS if (folder / name).exists()]
        ):
            raise ValueError(
                f"{folder / heads[0]} describes a decision head in another format: save the model"
                " by transformers, JevForDecision.from_pretrained(…).save_pretrained(folder), and"
                " load that folder. settings=DecisionSettings() ignores the head"
            )
        values = read_json(path, DecisionFile) if path.exists() else DecisionFile()
        options = values.get("noul_options") or ["true", "false"]
        if sorted(options) != ["false", "true"]:
            raise ValueError(
                f'{path}: noul_options must be "true" and "false", not {brief(options)}'
            )
        if adapter := values.get("adapter"):
            raise ValueError(
                f"{path} names an adapter: load the model with adapter={str(folder / adapter)!r},"
                " and pass settings=DecisionSettings(…)"
            )
        sanitize = values.get("sanitize_control_tokens")
        return cls(
            by_type(values.get("labels")),
            by_type(values.get("temperature")),
            tuple(options),
            True if sanitize is None else sanitize,
            read_text(template) if template.exists() else None,
        )

    @classmethod
    def of_agent(cls, folder: Path, agent: JsonObject) -> "DecisionSettings":
        """The settings of Laya, whose temperatures also depend on the number of options. As in its
        package, they are limited to 0.5 to 5. A decision.json replaces the temperatures of types.
        """

        def limited(number: float) -> float:
            return min(5.0, max(0.5, number))

        path = folder / AGENT_SETTINGS
        values: AgentFile = convert(agent, AgentFile, str(path), ADVICE)
        stored = values.get("temperature") or [1.0] * len(AGENT_TYPES)
        if len(stored) != len(AGENT_TYPES):
            raise ValueError(f"{path}: temperature must have three numbers: {ADVICE}")
        by_kind = dict(zip(AGENT_TYPES, map(limited, stored), strict=True))
        scales = {
            name: limited(value) / by_kind[kind]
            for name, value in (values.get("temperature_by_options") or {}).items()
            for kind in AGENT_TYPES
            if name.startswith(f"{kind}:")
        }
        file = folder / SETTINGS
        own = read_json(file, DecisionFile).get("temperature") if file.exists() else None
        return cls(
            ANY_LABELS.labels,
            by_kind | by_type(own),
            ("false", "true"),
            scales=scales,
        )

    def labels_of(self, kind: Type) -> Sequence[str]:
        """The labels of a type of question."""
        return self.labels.get(kind) or (
            ("Yes", "No") if kind == "noul" else string.ascii_uppercase
        )

    def temperature_of(self, kind: Type) -> float:
        """The temperature of a type of question."""
        return float(self.temperature.get(kind, 1.0))

    def scale_of(self, question: "Question") -> float:
        """The number that divides the scores of a question before its temperature."""
        size = next((name for most, name in SIZES if len(question.options) <= most), "11+")
        return float(self.scales.get(f"{question.type}:{size}", 1.0))


# Of models without labels, and to check questions before the model is known.
ANY_LABELS = DecisionSettings(dict.fromkeys(TYPES, tuple(map(str, range(AGENT_OPTIONS)))))


@dataclass(frozen=True)
class Question:
    """A question with its options in the order of the prompt.

    descriptions: of the options, as text or JSON; None for no description.    levels: for a score,
    each level's description by name.
    """

    name: str
    type: Type
    instructions: object
    options: tuple[str, ...]
    labels: tuple[str, ...]
    descriptions: tuple[object, ...]

    def reordered(self, indices: Sequence[int]) -> "Question":
        """The question with its options in another order. Labels remain in place."""
        return replace(
            self,
            options=tuple(self.options[i] for i in indices),
            descriptions=tuple(self.descriptions[i] for i in indices),
        )

    def to_template(self) -> JsonObject:
        """A decision template's variables."""
        return {
            "name": self.name,
            "type": self.type,
            "instructions": self.instructions,
            "options": list(self.options),
            "labels": list(self.labels),
            "descriptions": list(self.descriptions),
        }

    def answer(self, probabilities: NDArray[np.float64]) -> JsonObject:
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


def read_questions(path: Path) -> JsonObject:
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


def spelled_criteria(question: object) -> object:
    """A question of a YAML file whose options are text."""
    if not isinstance(question, dict) or not isinstance(question.get("criteria"), dict):
        return question
    names = {True: "true", False: "false"}
    criteria = {
        names[key] if isinstance(key, bool) else str(key): value
        for key, value in question["criteria"].items()
    }
    return {**question, "criteria": criteria}


def parse_questions(questions: object, settings: DecisionSettings) -> list[Question]:
    """A request's questions. ValueError: lists every invalid question, with a valid example."""
    if not isinstance(questions, Mapping) or not questions:
        raise ValueError(
            f'questions must map names to questions, such as {{"spam": {EXAMPLES["noul"]}}}, not {brief(questions)}'
        )
    parsed, errors = list[Question](), list[str]()
    for name, value in questions.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
            parsed.append(parse_question(str(name), value, settings))
        except UnicodeEncodeError:
            errors.append(f"question {str(name)!a}: it has half of a character (a lone surrogate)")
        except TypeError as error:
            errors.append(f"question {str(name)!r}: it is not JSON: {error}")
        except ValueError as error:
            errors.append(f"question {str(name)!r}: {error}")
    if errors:
        raise ValueError("\n".join(errors))
    return parsed


def parse_question(name: str, value: object, settings: DecisionSettings) -> Question:
    """A question. ValueError: it is invalid, or has more options than labels."""
    kind: Type = convert(value, QuestionType)["type"]
    example = f"a {kind} question looks like {EXAMPLES[kind]}"
    try:
        question = convert(value, FORMS[kind])
    except ShapeError as error:
        raise ValueError(f"{error.reason}: {example}") from error
    criteria = question.criteria
    if isinstance(question, NoulForm):
        described = criteria or {}
        if unknown := sorted(described.keys() - {"true", "false"}):
            raise ValueError(f"criteria describe true and false, not {unknown[0]!r}: {example}")
        options = {option: described.get(option) for option in settings.noul_options}
    elif isinstance(question, ScoreForm):
        options = {str(level): text for level, text in enumerate(question.criteria)}
    else:
        options = dict(question.criteria)
    labels = settings.labels_of(kind)
    if len(labels) < len(options):
        raise ValueError(
            f"it has {len(options)} options, and this model's labels allow at most {len(labels)}:"
            " combine options, or ask two questions"
        )
    return Question(
        name,
        kind,
        question.instructions,
        tuple(options),
        tuple(labels[: len(options)]),
        tuple(options.values()),
    )
