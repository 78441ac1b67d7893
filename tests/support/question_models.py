"""Small random checkpoints for question answering, with each kind of tokenizer."""

import json
from pathlib import Path
from typing import Any

from encoder_tokenizers import train_unigram
from encoders import write_encoder
from paths import TEXT
from random_weights import draw
from tokenizers import processors

import minhub_py
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 44,
}
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_bert(folder: Path, head: str, **settings: Any) -> Path:
    """WordPiece, token types, 64 positions."""
    return write_encoder(folder, f"Bert{head}", **settings)


def write_roberta(folder: Path, head: str, **settings: Any) -> Path:
    """Byte-level BPE, no token types, 98 positions."""
    tokenizer = train_byte_level_bpe([TEXT.read_text(encoding="utf-8")], 400)
    tokenizer.add_special_tokens(ROBERTA)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(
        *ends, trim_offsets=True, add_prefix_space=False
    )
    model = minhub_py.from_config(
        "roberta",
        **SIZES,
        vocab_size=tokenizer.get_vocab_size(),
        architectures=[f"Roberta{head}"],
        max_position_embeddings=100,
        type_vocab_size=1,
        pad_token_id=1,
        **settings,
    )
    draw(model)
    minhub_py.save_pretrained(model, folder, tokenizer)
    settings = {
        "tokenizer_class": "RobertaTokenizer",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_deberta(folder: Path, head: str, **settings: Any) -> Path:
    """SentencePiece, relative positions, 512 positions."""
    names = {"bos_piece": "[CLS]", "eos_piece": "[SEP]", "pad_piece": "[PAD]", "unk_piece": "[UNK]"}
    (folder / "spm.model").write_bytes(
        train_unigram(**names, pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    )
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    model = minhub_py.from_config(
        "deberta-v2",
        **SIZES,
        vocab_size=tokenizer.get_vocab_size(),
        architectures=[f"DebertaV2{head}"],
        relative_attention=True,
        position_biased_input=False,
        position_buckets=32,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type="p2c|c2p",
        **settings,
    )
    draw(model)
    minhub_py.save_pretrained(model, folder, tokenizer)
    (folder / "spm.model").unlink(missing_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "model_max_length": 512,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


WRITERS = {"bert": write_bert, "roberta": write_roberta, "deberta": write_deberta}
