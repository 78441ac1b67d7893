"""Small JSON files of all kinds: how a folder with a valid one is made, its declared shape, and
what reads it.
"""

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from adapters import random_adapter
from commands import done
from corruption import save
from encoders import write_sentence_encoder
from safetensors.torch import save_file

import minhub_py
from minhub_py.analysis.minimal_pairs import Suite, read_blimp, read_suite
from minhub_py.chat.conversation import Chat, SavedChat
from minhub_py.chat.defaults import default_sampling
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints import sentence_transformers as st
from minhub_py.checkpoints import token_modules as tm
from minhub_py.checkpoints.embedding_files import embedding_files
from minhub_py.checkpoints.fingerprint import read_cache
from minhub_py.checkpoints.layout import Index
from minhub_py.checkpoints.local import BUILTIN
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.tiktoken import Tekken, read_tekken
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.jobs.manifest import Manifest
from minhub_py.loading.adapters.config import AdapterConfig, AdapterFile, normal
from minhub_py.loading.adapters.files import stored_adapter
from minhub_py.loading.adapters.loading import with_adapter
from minhub_py.loading.adapters.mlx import MLXFile
from minhub_py.system.shapes import TokenID
from minhub_py.training.settings import Settings, read_settings

MODEL = BUILTIN / "shakespeare-gpt2"


@dataclass(frozen=True)
class Case:
    """A file. name: in the folder.    shape: its declared shape; None if other checks read its
    values.

    prepare: makes the folder with a valid file.    use: reads it.
    """

    name: str
    shape: Any
    prepare: Callable[[Path], object]
    use: Callable[[Path], object]


@cache
def llama() -> Any:
    torch.manual_seed(0)
    return minhub_py.llama(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )


def change(path: Path, **members: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def adapter(folder: Path) -> None:
    random_adapter(llama(), folder, target_modules=("q_proj", "v_proj"))
    change(
        folder / "adapter_config.json",
        rank_pattern={"q_proj": 4},
        alpha_pattern={"v_proj": 8.0},
        layers_pattern=["layers"],
        layers_to_transform=[0],
        exclude_modules=["lm_head"],
    )


def mlx(folder: Path) -> None:
    module = "model.layers.0.self_attn.q_proj"
    save_file(
        {f"{module}.lora_a": torch.zeros(8, 2), f"{module}.lora_b": torch.zeros(2, 8)},
        folder / "adapters.safetensors",
    )
    settings = {
        "fine_tune_type": "lora",
        "model": "a/b",
        "num_layers": 1,
        "lora_parameters": {"rank": 2, "scale": 2.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]},
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def config(folder: Path) -> None:
    minhub_py.save_pretrained(llama(), folder)
    rope = {
        "rope_type": "yarn",
        "rope_theta": 500000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 8,
        "beta_fast": 32.0,
        "attention_factor": 1.0,
    }
    change(folder / "config.json", rope_parameters=rope, rope_theta=500000.0, rope_scaling=None)


def use_model(folder: Path) -> None:
    model: Any = minhub_py.from_pretrained(folder)
    model(torch.tensor([[0]]) % model.config.vocab_size)


def tokenizer(folder: Path) -> None:
    shutil.copy(MODEL / "tokenizer.json", folder)
    token = {
        "content": "<|im_end|>",
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    settings = {
        "bos_token": "<s>",
        "eos_token": token,
        "pad_token": None,
        "add_bos_token": True,
        "model_max_length": 1e30,
        "added_tokens_decoder": {"65": token},
        "additional_special_tokens": ["<a>", token],
        "extra_special_tokens": {"image_token": "<i>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"unk_token": {"content": "<u>"}, "sep_token": "<x>"})
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "vocab_size": 100,
                "bos_token_id": 1,
                "task_specific_params": {"conversational": {}},
            }
        )
    )


def vocabulary(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "<|endoftext|>": 2}))
    (folder / "added_tokens.json").write_text(json.dumps({"<x>": 3, "<y>": 4}))
    settings = {
        "add_prefix_space": True,
        "added_tokens_decoder": {"5": {"content": "<z>", "special": True}},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def use_tokenizer(folder: Path) -> None:
    tokenizer = minhub_py.tokenizer_from_pretrained(str(folder))
    tokenizer.decode(encode(tokenizer, "a\u00e9"))
    chat_template_of(folder, tokenizer)


def tekken(folder: Path) -> None:
    vocabulary = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode()}
        for byte in range(256)
    ]
    names = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}]
    settings = {"pattern": ".", "default_vocab_size": 258, "default_num_special_tokens": 2}
    content = {"config": settings, "vocab": vocabulary, "special_tokens": names}
    (folder / "tekken.json").write_text(json.dumps(content))


def sentences(folder: Path) -> None:
    write_sentence_encoder(folder / "encoder")
    for path in (folder / "encoder").iterdir():
        path.rename(folder / path.name)
    dense = st.Dense(torch.zeros(4, 8), None, "Tanh")
    settings = st.EmbeddingSettings(
        pooling=("cls", "mean"),
        dense=(dense,),
        normalize=True,
        max_length=9,
        prompts={"query": "q: "},
        default_prompt="query",
        dimensions=3,
    )
    write_settings(folder, settings)
    change(folder / "1_Pooling" / "config.json", pooling_mode=["cls", "mean_tokens"])


def write_settings(folder: Path, settings: st.EmbeddingSettings) -> None:
    for name, content in embedding_files(settings, 4).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def splade(folder: Path) -> None:
    write_settings(folder, st.EmbeddingSettings(pooling=("splade",), splade=tm.Splade("sum", True)))


def late_interaction(folder: Path) -> None:
    expansion = tm.Expansion(5, truncates=True, attend=True, token="[MASK]")
    vectors = tm.TokenVectors(7, 9, expansion, (".", "!"), ("document",))
    settings = st.EmbeddingSettings(pooling=("none",), tokens=vectors, normalize=True)
    write_settings(folder, settings)


def shards(folder: Path) -> None:
    save("gpt2", folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {
        "metadata": {"total_size": 9},
        "weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def manifest(folder: Path) -> None:
    (folder / "in.csv").write_text("text\nROMEO\nJULIET\n")
    done(
        "score",
        MODEL,
        folder / "in.csv",
        "--out",
        folder / "out.csv",
        "--manifest",
        folder / "job.json",
    )


def suite(folder: Path) -> None:
    regions = [{"region_number": 1, "content": "A"}, {"region_number": "2", "content": "b"}]
    items = [{"item_number": 1, "conditions": [{"condition_name": "x", "regions": regions}]}]
    content = {
        "meta": {"name": "s", "metric": "sum"},
        "predictions": [{"type": "formula", "formula": "(1;%x%) < 2"}],
        "items": items,
    }
    (folder / "suite.json").write_text(json.dumps(content))


def saved_chat(folder: Path) -> None:
    chat = Chat(str(MODEL), max_new_tokens=2, top=1, logit_bias={3: 1.0})
    chat.say("Hi")
    chat.save(folder / "chat.json")


@cache
def chat() -> Chat:
    return Chat(str(MODEL))


def write(name: str, content: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(content))


def use_adapter(folder: Path) -> None:
    with_adapter(llama(), folder)


CASES: Mapping[str, Case] = {
    "adapter": Case("adapter_config.json", AdapterFile, adapter, use_adapter),
    "mlx": Case("adapter_config.json", MLXFile, mlx, stored_adapter),
    "config": Case("config.json", None, config, use_model),
    "generation": Case(
        "generation_config.json",
        None,
        write(
            "generation_config.json",
            {
                "do_sample": True,
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
                "repetition_penalty": 1.05,
                "min_p": 0.0,
                "eos_token_id": [1, 2],
                "bos_token_id": 0,
            },
        ),
        default_sampling,
    ),
    "tokenizer": Case("tokenizer_config.json", None, tokenizer, use_tokenizer),
    "special tokens": Case("special_tokens_map.json", None, tokenizer, use_tokenizer),
    "tokenizer's model": Case("config.json", None, tokenizer, use_tokenizer),
    "vocabulary": Case("vocab.json", dict[str, TokenID] | list[str], vocabulary, use_tokenizer),
    "added tokens": Case("added_tokens.json", dict[str, TokenID], vocabulary, use_tokenizer),
    "old tokenizer": Case("tokenizer_config.json", None, vocabulary, use_tokenizer),
    "tekken": Case(
        "tekken.json", Tekken, tekken, lambda folder: read_tekken(folder / "tekken.json")
    ),
    "modules": Case("modules.json", list[st.Module], sentences, st.read_embedding_settings),
    "pooling": Case(
        "1_Pooling/config.json", st.PoolingSettings, sentences, st.read_embedding_settings
    ),
    "dense": Case("2_Dense/config.json", st.DenseSettings, sentences, st.read_embedding_settings),
    "SPLADE": Case(
        "1_SpladePooling/config.json", tm.SpladeSettings, splade, st.read_embedding_settings
    ),
    "skipped tokens": Case(
        "1_MultiVectorMask/config.json",
        tm.MaskSettings,
        late_interaction,
        st.read_embedding_settings,
    ),
    "normalization": Case(
        "2_Normalize/config.json",
        st.NormalizeSettings,
        late_interaction,
        st.read_embedding_settings,
    ),
    "queries": Case(
        "sentence_bert_config.json",
        st.TransformerSettings,
        late_interaction,
        st.read_embedding_settings,
    ),
    "prompts": Case(
        "config_sentence_transformers.json",
        st.SentenceTransformersSettings,
        sentences,
        st.read_embedding_settings,
    ),
    "transformer": Case(
        "sentence_bert_config.json", st.TransformerSettings, sentences, st.read_embedding_settings
    ),
    "shards": Case(
        "model.safetensors.index.json", Index, shards, lambda folder: Checkpoint(folder).files
    ),
    "manifest": Case(
        "job.json",
        Manifest,
        manifest,
        lambda folder: minhub_py.replay(folder / "job.json", rows=1, variants=[(1, 1)]),
    ),
    "suite": Case("suite.json", Suite, suite, lambda folder: read_suite(folder / "suite.json")),
    "pairs": Case(
        "pairs.jsonl",
        None,
        write("pairs.jsonl", {"sentence_good": "a", "sentence_bad": "b", "UID": "x"}),
        lambda folder: [*read_blimp(folder / "pairs.jsonl")],
    ),
    "chat": Case(
        "chat.json", SavedChat, saved_chat, lambda folder: chat().load(folder / "chat.json")
    ),
    "digests": Case(
        "fingerprints.json",
        None,
        write("fingerprints.json", {"a": [1, 2, "0" * 64]}),
        lambda folder: read_cache(folder / "fingerprints.json"),
    ),
    "training": Case(
        "settings.json",
        None,
        lambda folder: (folder / "settings.json").write_text(Settings().to_json()),
        lambda folder: read_settings(folder / "settings.json"),
    ),
}


def declared(name: str, content: Any) -> tuple[Any, Any]:
    """The content of a case's file and its shape; for adapters, the settings that PEFT and this
    package share.
    """
    # PEFT's format
    if name == "mlx" and isinstance(content, dict) and "lora_parameters" not in content:
        return content, AdapterFile
    if name != "adapter" or not isinstance(content, dict):
        return content, CASES[name].shape
    names = AdapterConfig.__dataclass_fields__
    settings = {
        key: normal(key, value)
        for key, value in content.items()
        if key in names and value is not None
    }
    return settings, AdapterConfig
