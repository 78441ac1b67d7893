"""Small random models under the names of the Hub repositories that the documentation uses."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from encoders import (
    write_cross_encoder,
    write_entailment_model,
    write_masked_lm,
    write_nomic_encoder,
    write_question_model,
    write_sentence_encoder,
    write_token_classifier,
)
from hub_server import HubServer
from peers_of_embeddings import write_pylate, write_splade
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from translation_models import save_languages, save_t5

from minhub_py import gpt2, llama, save_pretrained

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(*special: str, merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """A tokenizer of bytes, so that any text has tokens, and of these merges and special tokens."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=list(merges))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def publish(hub: HubServer, folder: Path) -> None:
    """Add gpt2, a chat model and text encoders to the Hub; `folder` receives their files."""
    torch.manual_seed(0)
    # marks words, like GPT-2's
    tokenizer = byte_tokenizer("<|endoftext|>", merges=[("Ġ", "t"), ("Ġ", "a")])
    model = gpt2(
        vocab_size=259,
        n_positions=256,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=258,
        eos_token_id=258,
    )
    save_pretrained(model, folder / "gpt2", tokenizer)
    hub.add("gpt2", folder / "gpt2")
    merges = [("Y", "e"), ("Ye", "s"), ("N", "o")]  # labels of decisions
    tokenizer = byte_tokenizer("<|im_start|>", "<|im_end|>", merges=merges)
    bot = llama(
        vocab_size=261,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=259,
        eos_token_id=260,
    )
    save_pretrained(bot, folder / "bot", tokenizer)
    settings = {"chat_template": TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "bot" / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    hub.add("HuggingFaceTB/SmolLM2-135M-Instruct", folder / "bot")
    for name, write in (
        ("sentence-transformers/all-MiniLM-L6-v2", write_sentence_encoder),
        ("naver/splade-v3", write_splade),
        ("lightonai/GTE-ModernColBERT-v1", write_pylate),
        ("nomic-ai/nomic-embed-text-v1.5", write_nomic_encoder),
        ("google-bert/bert-base-uncased", write_masked_lm),
        ("cross-encoder/nli-MiniLM2-L6-H768", write_entailment_model),
        ("cross-encoder/ms-marco-MiniLM-L6-v2", write_cross_encoder),
        ("dslim/bert-base-NER", write_token_classifier),
        ("distilbert/distilbert-base-cased-distilled-squad", write_question_model),
    ):
        hub.add(name, write(folder / name))
    name = "facebook/nllb-200-distilled-600M"
    save_languages(folder / name, ["eng_Latn", "deu_Latn"])
    hub.add(name, folder / name)
    save_t5(folder / "google-t5/t5-small")
    hub.add("google-t5/t5-small", folder / "google-t5/t5-small")
