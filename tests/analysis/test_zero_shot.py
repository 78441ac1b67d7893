"""Zero-shot classification compared with transformers' pipeline, on random checkpoints."""

from pathlib import Path
from typing import Any

import pytest
from paths import TEXT
from question_models import WRITERS
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    ZeroShotClassificationPipeline,
)

from minhub_py import classify, from_pretrained, tokenizer_from_pretrained

LIMITS = {"bert": 64, "roberta": 98, "deberta": 512}
TEXTS = [
    "The cat sat on the mat.",
    "Who wins the election?",
    " ".join(TEXT.read_text(encoding="utf-8").split()[:500]),
]
# Order of the labels in config.json, as checkpoints of the Hub have them.
NLI = {
    "three": ["entailment", "neutral", "contradiction"],
    "reversed": ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"],
    "two": ["entailment", "not_entailment"],
}
NAMES = {
    "bert": {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
    "deberta": {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"},
    "roberta": {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"},
}


@pytest.fixture(
    scope="module", params=[(kind, labels) for kind in WRITERS for labels in NLI], ids=" ".join
)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, Any]:
    """Our model and tokenizer, and transformers' pipeline."""
    kind, labels = request.param
    names = {str(number): label for number, label in enumerate(NLI[labels])}
    folder: Path = WRITERS[kind](
        tmp_path_factory.mktemp("model"), "ForSequenceClassification", id2label=names
    )
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if kind == "bert" else [])]
    tokenizer = tokenizer_from_pretrained(str(folder))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LIMITS[kind],
        model_input_names=inputs,
        **NAMES[kind],
    )
    reference = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    pipeline = ZeroShotClassificationPipeline(model=reference, tokenizer=fast, device="cpu")
    return from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder)), pipeline


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("hypothesis", ["This example is {}.", "This text is about {}."])
def test_labels_and_scores_equal_transformers(
    loaded: tuple[Any, Any, Any], multi_label: bool, hypothesis: str
) -> None:
    model, tokenizer, pipeline = loaded
    for labels in (["politics", "sports", "a film"], ["weather"]):
        columns = classify(
            model, tokenizer, TEXTS, labels, hypothesis=hypothesis, multi_label=multi_label
        )
        for number, text in enumerate(TEXTS):
            expected = pipeline(
                text, labels, hypothesis_template=hypothesis, multi_label=multi_label
            )
            assert columns["label"][number] == expected["labels"][0]
            assert abs(columns["prob"][number] - expected["scores"][0]) <= 1e-5
            for label, score in zip(expected["labels"], expected["scores"], strict=True):
                assert abs(columns[f"prob_{label}"][number] - score) <= 1e-5


@pytest.mark.parametrize("labels", [["no", "yes"], ["LABEL_0", "LABEL_1", "LABEL_2"]])
def test_a_checkpoint_without_a_label_of_entailment_is_rejected(
    tmp_path: Path, labels: list[str]
) -> None:
    names = {str(number): label for number, label in enumerate(labels)}
    folder = WRITERS["deberta"](tmp_path, "ForSequenceClassification", id2label=names)
    model, tokenizer = from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder))
    with pytest.raises(
        ValueError, match="need an entailment model, but this checkpoint has the labels .*NLI"
    ):
        classify(model, tokenizer, TEXTS, ["politics", "sports"])
