"""Tokenizers and checkpoints of chat models."""

import json
from pathlib import Path

import torch
from paths import TEXT
from tokenizers import AddedToken, Tokenizer

from minhub_py import gpt2, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe


def chat_tokenizer() -> Tokenizer:
    """A byte-level BPE of 400 tokens, <|im_start|> and <|im_end|>."""
    text = TEXT.read_text(encoding="utf-8")
    tokenizer = train_byte_level_bpe([text], 400)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")]
    )
    return tokenizer


def write_dialogpt(folder: Path, tokenizer: Tokenizer) -> Path:
    """A random checkpoint of DialoGPT's layout: GPT-2, no chat template, and a setting for
    conversations.
    """
    torch.manual_seed(1)
    save_pretrained(
        gpt2(vocab_size=402, n_positions=128, n_embd=16, n_layer=2, n_head=2, eos_token_id=0),
        folder,
        tokenizer,
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["task_specific_params"] = {"conversational": {"max_length": 1000}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
