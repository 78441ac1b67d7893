"""Small translation models with tokenizers of a few words."""

import json
from pathlib import Path
from typing import Any

from bart_models import SMALL, reference_of
from references import save_reference
from small_models import T5
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

WORDS = "the a cat dog sat ran on in mat house and . , ! ? die eine Katze Hund".split()
TASKS = {
    "translation_en_to_de": {"prefix": "the dog ran ", "num_beams": 3, "max_length": 12},
    "translation_en_to_fr": {"prefix": "a cat ", "num_beams": 2, "max_length": 9},
}


def tokenizer(codes: list[str]) -> Tokenizer:
    """A tokenizer that appends </s>, with tokens of languages after 61 - `codes` others."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *WORDS]
    words += [f"w{number}" for number in range(61 - len(words) - len(codes))]
    result = Tokenizer(
        models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="<unk>")
    )
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<s>", "<pad>", "</s>", "<unk>", *codes]
    result.add_special_tokens([AddedToken(token, special=True) for token in special])
    result.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return result


def save_languages(
    folder: Path, codes: list[str], *, tokenizer_class: str = "NllbTokenizer", **settings: Any
) -> Any:
    """transformers' model of NLLB or of another type, saved with a tokenizer of these languages."""
    config = {**SMALL, "model_type": "m2m_100", "scale_embedding": True, **settings}
    reference = reference_of(config)
    reference.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**config, "is_encoder_decoder": True}))
    (folder / "generation_config.json").write_text(json.dumps({"max_length": 14, "num_beams": 3}))
    tokenizer(codes).save(str(folder / "tokenizer.json"))
    if codes:
        names = {"tokenizer_class": tokenizer_class}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return reference


def save_pair(folder: Path, source: str | None, target: str | None) -> Any:
    """transformers' model of Marian for one pair of languages, saved with a tokenizer."""
    reference = save_languages(folder, [], model_type="marian")
    names = {"source_lang": source, "target_lang": target} if source and target else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return reference


def save_t5(folder: Path) -> Any:
    """transformers' T5 with two translation tasks, saved with a tokenizer."""
    settings = {"model_type": "t5", **T5, "decoder_start_token_id": 1, "eos_token_id": 2}
    settings |= {"pad_token_id": 1, "task_specific_params": TASKS}
    reference = save_reference(settings, folder, "ForSeq2SeqLM")
    tokenizer([]).save(str(folder / "tokenizer.json"))
    return reference
