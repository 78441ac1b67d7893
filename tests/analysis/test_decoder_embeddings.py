"""Text embeddings and reranking with decoders (Qwen3-Embedding, Qwen3-Reranker) compared with
transformers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from paths import TEXT
from random_weights import draw
from references import assert_close
from tokenizers import Tokenizer, processors
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import minhub_py
from minhub_py import embed, rerank
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
SETTINGS = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 400,
}
QUERY = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
LENGTH = 60
TEXTS = ["What is the capital of China?", "The capital of China is Beijing.", "", "a " * 200]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level BPE like Qwen's, which appends the end token."""
    text = TEXT.read_text(encoding="utf-8")
    tokenizer = train_byte_level_bpe([text, "yes no " * 1000], 500)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(["yes", "no"])
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>",
        pair="$A <|endoftext|> $B",
        special_tokens=[("<|endoftext|>", end)],
    )
    return tokenizer


Folder = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="module")
def make(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """make(auto_class): a folder as transformers writes it, and its model."""

    def folder_of(auto_class: Any) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("qwen3")
        config = AutoConfig.for_model(**SETTINGS, vocab_size=tokenizer.get_vocab_size())
        reference = auto_class.from_config(config).eval()
        draw(reference)
        reference.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        return folder, reference

    return folder_of


def write_modules(folder: Path, pooling: str = "lasttoken", **settings: Any) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    mode = {f"pooling_mode_{pooling}": True, **settings}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(mode))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": QUERY, "document": ""}})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": LENGTH}))


@pytest.fixture(scope="module")
def embedding(make: Folder) -> tuple[Path, Any]:
    folder, reference = make(AutoModel)  # names without "model."
    write_modules(folder)
    return folder, reference


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token IDs after truncation: the end token remains."""
    return [
        *tokenizer.encode(text, add_special_tokens=False).ids[: LENGTH - 1],
        tokenizer.token_to_id("<|endoftext|>"),
    ]


@torch.no_grad()
def states(reference: Any, ids: list[int], layer: int = -1) -> torch.Tensor:
    return reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]


def test_last_token_embeddings_match_transformers(
    embedding: tuple[Path, Any], tokenizer: Tokenizer
) -> None:
    """With the end token of the tokenizer, prompts, truncation and normalization, also of an empty
    text.
    """
    folder, reference = embedding
    model = minhub_py.from_pretrained(folder, device="cpu")
    ours = minhub_py.tokenizer_from_pretrained(str(folder))
    for name, prompt in ((None, ""), ("query", QUERY), ("document", "")):
        expected = [
            F.normalize(states(reference, ids_of(tokenizer, prompt + text))[-1], dim=0)
            for text in TEXTS
        ]
        vectors = embed(model, ours, [*TEXTS, None], prompt=name)
        assert_close(vectors[:-1], torch.stack(expected))
        assert vectors[-1].isnan().all()
    matrices = embed(model, ours, TEXTS, pool="none")
    assert [len(matrix) for matrix in matrices] == [len(ids_of(tokenizer, text)) for text in TEXTS]
    middle = embed(model, ours, TEXTS, layer=1, pool="mean")
    assert_close(
        middle,
        torch.stack([states(reference, ids_of(tokenizer, text), 1).mean(0) for text in TEXTS]),
    )
    cut = embed(model, ours, TEXTS, dimensions=8, normalize=True)
    assert_close(cut.norm(dim=1), torch.ones(len(TEXTS)))


@pytest.mark.parametrize(
    "pooling", ["mean_tokens", "weightedmean_tokens", "max_tokens", "cls_token"]
)
def test_other_poolings_of_decoders(
    embedding: tuple[Path, Any], tokenizer: Tokenizer, pooling: str
) -> None:
    """A pooling without the prompt's tokens, too."""
    folder, reference = embedding
    write_modules(folder, pooling, include_prompt=False)
    model = minhub_py.from_pretrained(folder, device="cpu")
    write_modules(folder)
    prompt = len(tokenizer.encode(QUERY, add_special_tokens=False).ids)
    texts = TEXTS[:2]
    for vector, text in zip(embed(model, tokenizer, texts, prompt="query"), texts, strict=True):
        x = states(reference, ids_of(tokenizer, QUERY + text))[prompt:]
        weights = torch.arange(1.0, len(x) + 1).unsqueeze(1)
        expected = {
            "mean_tokens": x.mean(0),
            "max_tokens": x.amax(0),
            "cls_token": x[0],
            "weightedmean_tokens": (x * weights).sum(0) / weights.sum(),
        }[pooling]
        assert_close(vector, F.normalize(expected, dim=0))


def test_texts_beyond_the_prefill_chunk_match_transformers(
    make: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minhub_py.analysis import embeddings as module

    folder, reference = make(AutoModel)
    write_modules(folder)
    (folder / "tokenizer_config.json").unlink()
    monkeypatch.setattr(module, "TOKENS", 16)
    monkeypatch.setattr(module, "CHUNK", 9)
    model = minhub_py.from_pretrained(folder, device="cpu")
    texts = [torch.randint(400, (length,)).tolist() for length in (70, 3, 20)]
    expected = torch.stack([F.normalize(states(reference, ids)[-1], dim=0) for ids in texts])
    assert_close(embed(model, None, texts), expected)


def test_models_without_output_head_predict_no_tokens(embedding: tuple[Path, Any]) -> None:
    model = minhub_py.from_pretrained(embedding[0], device="cpu")
    for call in (
        lambda: minhub_py.generate(model, [[5]], 3),
        lambda: minhub_py.score(model, [[5, 6]]),
    ):
        with pytest.raises(ValueError, match="needs a model with an output head"):
            call()


SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and"
    ' the Instruct provided. Note that the answer can only be "yes" or'
    ' "no".<|im_end|>\n<|im_start|>user\n'
)
ANSWER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("instruction", [None, "Find a passage"])
def test_rerank_with_a_decoder_matches_transformers(
    make: Folder, tokenizer: Tokenizer, instruction: str | None
) -> None:
    """The softmax over the logits of "yes" and "no" after the prompt; long documents are truncated."""
    folder, reference = make(AutoModelForCausalLM)
    model = minhub_py.from_pretrained(folder, device="cpu")
    query, texts = (
        "What is the capital of China?",
        [*TEXTS[1:], "No", "{} braces {0}", "word " * 400],
    )
    expected = []
    for text in texts:
        task = (
            instruction
            or "Given a web search query, retrieve relevant passages that answer the query"
        )
        parts = (SYSTEM, f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {text}", ANSWER)
        first, body, last = (tokenizer.encode(part, add_special_tokens=False).ids for part in parts)
        ids = [*first, *body[: 400 - len(first) - len(last)], *last]
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0, -1]
        expected.append(
            logits[[tokenizer.token_to_id("no"), tokenizer.token_to_id("yes")]].softmax(0)[1].item()
        )
    calls = []
    result = rerank(
        model, tokenizer, query, texts, instruction=instruction, progress=lambda *n: calls.append(n)
    )
    assert [expected[i] for i in result["text"]] == sorted(expected, reverse=True)
    assert result["score"] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert calls[-1] == (len(texts),) * 2
    raw = rerank(model, tokenizer, query, texts, k=2, instruction=instruction, raw_scores=True)
    assert torch.tensor(raw["score"]).sigmoid().tolist() == pytest.approx(
        result["score"][:2].tolist(), abs=1e-5
    )


def test_rerank_rejects_models_without_the_tokens() -> None:
    model = minhub_py.gpt2(vocab_size=61, n_positions=40, n_embd=24, n_layer=2, n_head=4).eval()
    tokenizer = train_byte_level_bpe(["a b c"], 300)
    with pytest.raises(
        ValueError, match="needs a cross-encoder, or a decoder whose tokenizer has the tokens"
    ):
        rerank(model, tokenizer, "a", ["b"])
    bert = minhub_py.from_config(
        "bert",
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        num_labels=1,
        architectures=["BertForSequenceClassification"],
    )
    with pytest.raises(ValueError, match="instruction is for decoders"):
        rerank(bert.eval(), tokenizer, "a", ["b"], instruction="c")
