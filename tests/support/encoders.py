"""Small random text encoders with a WordPiece tokenizer, as the repositories of the Hub have them."""

import json
import string
from pathlib import Path
from typing import Any

from random_weights import draw
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from minhub_py import from_config, save_pretrained

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "dog",
    "ran",
    "weather",
    "is",
    "lovely",
    "today",
    "this",
    "example",
    "a",
    "film",
    "good",
    "bad",
    "politics",
    "sports",
]
CONTEXT = 64
SETTINGS = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT,
}


def wordpiece() -> Tokenizer:
    """BERT's tokenizer with the words above, and letters for all other words."""
    letters = [*string.ascii_lowercase, *string.digits]
    tokens = [
        *SPECIAL,
        *letters,
        *(f"##{letter}" for letter in letters),
        *string.punctuation,
        *WORDS,
    ]
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def write_encoder(
    folder: Path, architecture: str = "BertModel", family: str = "bert", **settings: Any
) -> Path:
    """A checkpoint of an encoder with a head, such as BertForMaskedLM."""
    tokenizer = wordpiece()
    model = from_config(
        family,
        vocab_size=tokenizer.get_vocab_size(),
        architectures=[architecture],
        **{**SETTINGS, **settings},
    )
    draw(model)
    save_pretrained(model, folder, tokenizer)
    return folder


def write_sentence_encoder(folder: Path, max_length: int = 32, **settings: Any) -> Path:
    """A repository of sentence-transformers: mean pooling, normalization, two prompts, a maximum
    length.
    """
    write_encoder(folder, **settings)
    modules = (
        ("models.Transformer", ""),
        ("models.Pooling", "1_Pooling"),
        ("models.Normalize", "2_Normalize"),
    )
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {
                    "idx": index,
                    "name": str(index),
                    "path": path,
                    "type": f"sentence_transformers.{kind}",
                }
                for index, (kind, path) in enumerate(modules)
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length}))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "query : ", "document": ""}})
    )
    return folder


def write_nomic_encoder(folder: Path) -> Path:
    """A repository without prompts."""
    write_sentence_encoder(folder, architecture="NomicBertModel", family="nomicbert")
    (folder / "config_sentence_transformers.json").unlink()
    return folder


def write_cross_encoder(folder: Path) -> Path:
    """A reranker: one label."""
    return write_encoder(folder, "BertForSequenceClassification", id2label={"0": "LABEL_0"})


def write_classifier(folder: Path) -> Path:
    return write_encoder(
        folder, "BertForSequenceClassification", id2label={"0": "bad", "1": "fair", "2": "good"}
    )


def write_token_classifier(folder: Path) -> Path:
    labels = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "LOC"}
    return write_encoder(folder, "BertForTokenClassification", id2label=labels)


def write_question_model(folder: Path) -> Path:
    return write_encoder(folder, "BertForQuestionAnswering")


def write_entailment_model(folder: Path) -> Path:
    labels = {"0": "contradiction", "1": "neutral", "2": "entailment"}
    return write_encoder(folder, "BertForSequenceClassification", id2label=labels)


def write_masked_lm(folder: Path) -> Path:
    return write_encoder(folder, "BertForMaskedLM")
