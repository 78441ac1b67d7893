"""Rows of typed decisions for training: state, question and answer.

Rows have `decide`'s prompt, and the loss is the cross-entropy of the options' scores at the
position of the answer, divided by the temperature of the question's type: the negative
log-probability that `decide` gives to the right option.
"""

from tokenizers import Tokenizer

from minhub_py.analysis.coded import option_index
from minhub_py.analysis.decision_prompts import DecisionPrompts
from minhub_py.analysis.decisions import rows_of
from minhub_py.analysis.questions import DecisionSettings, parse_questions
from minhub_py.loading.files import ModelFiles
from minhub_py.training.examples import Decision, DecisionEncoder
from minhub_py.training.rows import Row, parsed


def decision_encoder(tokenizer: Tokenizer, start: ModelFiles) -> DecisionEncoder:
    """The encoder of rows for a model to fine-tune and its tokenizer. ValueError: it has no chat
    template, or its decision.json is invalid.
    """
    settings = DecisionSettings.of(tokenizer)
    prompts = DecisionPrompts(tokenizer, settings)

    def encode(row: Row) -> tuple[list[int], Decision]:
        for name in ("state", "question", "answer"):
            if row.get(name) in (None, ""):
                raise ValueError(f"{name} is missing")
        definition = parsed(row["question"], "question", dict)
        [question] = parse_questions({"question": definition}, settings)
        answer = option_index(question, row["answer"])
        options = rows_of(start.config, prompts, question)
        [prompt] = prompts.prompts(row["state"], [question])
        ids = prompt.ids[: prompt.marks[0]]
        return ids, Decision(options, answer, settings.temperature_of(question.type))

    return encode
