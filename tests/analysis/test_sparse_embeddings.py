"""SPLADE, ColBERT and the modules of sentence-transformers, compared with that package."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import write_encoder, write_masked_lm, write_sentence_encoder
from needs import needs
from peers_of_embeddings import modules, settings, write_colbert, write_pylate, write_splade
from safetensors.torch import save_file

from minhub_py import (
    embed,
    from_pretrained,
    gpt2,
    save_pretrained,
    search,
    similarity,
    tokenizer_from_pretrained,
)
from minhub_py.analysis.embeddings import embedded_ids

TEXTS = ["The cat sat on the mat.", "a dog, ran!", "", "lovely weather " * 30, "this film is good"]
QUERIES = ["good film", "the dog ran today"]


def loaded(folder: Path) -> tuple[Any, Any]:
    return from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder))


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-5 * b.abs().max())


@needs("sentence_transformers")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")  # of the peer
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_splade_equals_sentence_transformers(
    old: bool, pooling: str, activation: str, tmp_path: Path
) -> None:
    from sentence_transformers import SparseEncoder

    folder = write_splade(
        tmp_path / "splade", old, pooling_strategy=pooling, activation_function=activation
    )
    peer = SparseEncoder(str(folder), device="cpu")
    model, tokenizer = loaded(folder)
    vectors = embed(model, tokenizer, TEXTS)
    assert vectors.is_sparse
    assert 0 < vectors._nnz() < vectors.numel()
    assert close(vectors.to_dense(), peer.encode(TEXTS).to_dense())
    queries = embed(model, tokenizer, QUERIES, prompt="query")
    assert close(queries.to_dense(), peer.encode_query(QUERIES).to_dense())
    largest = embed(model, tokenizer, TEXTS, dimensions=5)
    assert close(largest.to_dense(), peer.encode(TEXTS, max_active_dims=5).to_dense())
    scores = similarity(queries, vectors)
    assert close(scores, peer.similarity(queries, vectors))


@needs("sentence_transformers")
def test_sentence_transformers_loads_a_saved_splade_model(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    folder = write_splade(tmp_path / "splade", pooling_strategy="sum")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_active_dims": 7}))
    model, tokenizer = loaded(folder)
    save_pretrained(model, tmp_path / "saved", tokenizer)
    vectors = embed(model, tokenizer, TEXTS)
    assert vectors._nnz() <= 7 * len(TEXTS)
    again = embed(*loaded(tmp_path / "saved"), TEXTS)
    assert torch.equal(again.to_dense(), vectors.to_dense())
    peer = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    assert close(vectors.to_dense(), peer.encode(TEXTS).to_dense())


def test_splade_of_a_masked_language_model_uses_its_head(tmp_path: Path) -> None:
    model, tokenizer = loaded(write_masked_lm(tmp_path))
    [row] = embed(model, tokenizer, [TEXTS[0]], pool="splade").to_dense()
    logits = model(torch.tensor([tokenizer.encode(TEXTS[0]).ids]))[0]
    assert close(row, logits.relu().log1p().amax(dim=0).detach())
    unit = embed(model, tokenizer, TEXTS, pool="splade", normalize=True).to_dense()
    assert torch.allclose(unit.norm(dim=1), torch.ones(len(TEXTS)))


def test_a_missing_text_has_no_sparse_embedding(tmp_path: Path) -> None:
    model, tokenizer = loaded(write_masked_lm(tmp_path))
    vectors = embed(model, tokenizer, [TEXTS[0], None, TEXTS[1]], pool="splade")
    assert vectors.to_dense()[1].isnan().sum() == 1
    found = search(embed(model, tokenizer, [QUERIES[0]], pool="splade"), vectors)
    assert sorted(found["text"]) == [0, 2]
    assert similarity(vectors)[1].isnan().all()
    assert embed(model, tokenizer, [], pool="splade").shape == (0, model.config.vocab_size)


def test_a_checkpoint_without_a_masked_lm_head_has_no_splade(tmp_path: Path) -> None:
    model, tokenizer = loaded(write_encoder(tmp_path))
    with pytest.raises(ValueError, match="need a masked-LM head.*…ForMaskedLM, not BertModel"):
        embed(model, tokenizer, TEXTS, pool="splade")
    with pytest.raises(ValueError, match="need a masked-LM head.*not GPT-2"):
        embed(gpt2(n_layer=1, n_embd=8, n_head=1, vocab_size=9), None, [[1]], pool="splade")
    model, tokenizer = loaded(write_masked_lm(tmp_path / "mlm"))
    with pytest.raises(ValueError, match="uses the last layer: remove layer"):
        embed(model, tokenizer, TEXTS, pool="splade", layer=1)


EXPANSIONS = {
    "none": None,
    "fixed": {"strategy": "fixed", "length": 12},
    "attended": {"strategy": "fixed", "length": 12, "attend": True},
    "minimum": {"strategy": "min", "length": 6, "token": "[SEP]"},
}


@needs("sentence_transformers")
@pytest.mark.parametrize("expansion", EXPANSIONS.values(), ids=EXPANSIONS)
def test_colbert_equals_sentence_transformers(
    expansion: dict[str, Any] | None, tmp_path: Path
) -> None:
    from sentence_transformers import MultiVectorEncoder

    lengths = {} if expansion else {"query_length": 7}
    folder = write_colbert(
        tmp_path / "colbert", expansion, (".", "!", "word"), document_length=20, **lengths
    )
    peer = MultiVectorEncoder(str(folder), device="cpu")
    model, tokenizer = loaded(folder)
    save_pretrained(model, tmp_path / "saved", tokenizer)
    saved = MultiVectorEncoder(str(tmp_path / "saved"), device="cpu")
    queries = [*QUERIES, "the weather is lovely today and this film is good"]
    ours = {
        "query": embed(model, tokenizer, queries, prompt="query"),
        "document": embed(model, tokenizer, TEXTS, prompt="document"),
        None: embed(model, tokenizer, TEXTS),
    }
    for other in (peer, saved):
        theirs = {
            "query": other.encode_query(queries),
            "document": other.encode_document(TEXTS),
            None: other.encode(TEXTS),
        }
        for task, vectors in ours.items():
            for a, b in zip(vectors, theirs[task], strict=True):
                assert close(a, b)
    for method in ("maxsim", "meanmaxsim"):
        peer.similarity_fn_name = method
        scores = similarity(ours["query"], ours["document"], method)
        assert close(scores, peer.similarity(ours["query"], ours["document"]))
    assert torch.equal(
        similarity(ours["query"], ours["document"]),
        similarity(ours["query"], ours["document"], "maxsim"),
    )
    ids = embedded_ids(model, tokenizer, TEXTS, "document", pool=None)
    assert [len(row) for row in ids] == [len(row) for row in ours["document"]]
    assert tokenizer.token_to_id(".") not in ids[0]


PYLATE = {
    "default": {"query_prefix": "[MASK] ", "document_prefix": "[SEP] "},
    "lengths": {
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 9,
        "document_length": 11,
        "attend_to_expansion_tokens": True,
        "skiplist_words": ["cat", "nothing"],
    },
    "plain": {
        "do_query_expansion": False,
        "query_length": 9,
        "skiplist_words": [],
        "prompts": {"query": "a "},
    },
}


@needs("sentence_transformers")
@pytest.mark.parametrize("repository", PYLATE.values(), ids=PYLATE)
def test_models_of_pylate_equal_sentence_transformers(
    repository: dict[str, Any], tmp_path: Path
) -> None:
    from sentence_transformers import MultiVectorEncoder

    folder = write_pylate(tmp_path / "pylate", **repository)
    peer = MultiVectorEncoder(str(folder), device="cpu")
    model, tokenizer = loaded(folder)
    pairs = [
        (embed(model, tokenizer, QUERIES, prompt="query"), peer.encode_query(QUERIES)),
        (embed(model, tokenizer, TEXTS, prompt="document"), peer.encode_document(TEXTS)),
    ]
    for ours, theirs in pairs:
        for a, b in zip(ours, theirs, strict=True):
            assert close(a, b)


@needs("sentence_transformers")
def test_search_finds_the_texts_of_late_interaction(tmp_path: Path) -> None:
    model, tokenizer = loaded(
        write_colbert(tmp_path / "colbert", skipped=tuple(string.punctuation))
    )
    texts = embed(model, tokenizer, [*TEXTS, None], prompt="document")
    query = embed(model, tokenizer, QUERIES, prompt="query")
    found = search(query, texts, k=10)
    expected = torch.stack(
        [torch.stack([(q @ t.T).amax(dim=1).sum() for t in texts[:-1]]) for q in query]
    ).sort(dim=1, descending=True)
    assert np.array_equal(found["text"], expected.indices.flatten())
    assert torch.allclose(torch.tensor(found["score"]), expected.values.flatten())
    with pytest.raises(ValueError, match="must be of one kind"):
        search(torch.rand(1, 16), texts)
    with pytest.raises(ValueError, match='must be "maxsim" or "meanmaxsim" for vectors per token'):
        search(query, texts, method="cosine")
    with pytest.raises(ValueError, match="dimensions"):
        search([torch.rand(3, 4)], texts)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")  # of to_sparse_csr()
def test_similarity_of_sparse_embeddings_equals_that_of_dense_ones() -> None:
    a, b = torch.rand(3, 50), torch.rand(4, 50)
    a, b = a * (a > 0.8), b * (b > 0.8)
    for method in ("dot", "cosine"):
        expected = similarity(a, b, method)
        for left in (a, a.to_sparse(), a.to_sparse_csr()):
            for right in (b, b.to_sparse()):
                assert close(similarity(left, right, method), expected)
    with pytest.raises(ValueError, match='must be "dot" or "cosine" for sparse embeddings'):
        similarity(a.to_sparse(), b, "euclidean")
    assert close(similarity(a.to_sparse(), b), similarity(a, b, "dot"))


@needs("sentence_transformers")
def test_a_layer_norm_after_pooling_equals_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write_sentence_encoder(tmp_path / "repository")
    package = "sentence_transformers.models"
    kinds = (
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        ("Dropout", "2_Dropout"),
        ("LayerNorm", "3_LayerNorm"),
    )
    modules(folder, *((f"{package}.{kind}", path) for kind, path in kinds))
    settings(
        folder,
        "1_Pooling/config.json",
        {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 48},
    )
    settings(folder, "2_Dropout/config.json", {"dropout": 0.5})
    settings(folder, "3_LayerNorm/config.json", {"dimension": 48})
    weights = {"norm.weight": torch.rand(48), "norm.bias": torch.rand(48)}
    save_file(weights, folder / "3_LayerNorm" / "model.safetensors")
    model, tokenizer = loaded(folder)
    save_pretrained(model, tmp_path / "saved", tokenizer)
    vectors = embed(model, tokenizer, TEXTS)
    for path in (folder, tmp_path / "saved"):
        peer = SentenceTransformer(str(path), device="cpu")
        assert close(vectors, torch.tensor(peer.encode(TEXTS)))
    assert torch.equal(embed(*loaded(tmp_path / "saved"), TEXTS), vectors)


REJECTED = {
    "StaticEmbedding": "it looks up a vector per token and has no transformer",
    "Router": "queries and documents pass through separate models",
    "Asym": "queries and documents pass through separate models",
    "WeightedLayerPooling": "combines several layers",
    "SparseAutoEncoder": "computes sparse embeddings from dense ones",
}


@pytest.mark.parametrize("kind", REJECTED)
def test_other_modules_are_rejected_with_the_reason(kind: str, tmp_path: Path) -> None:
    # Repositories with these modules often have no config.json at the top.
    modules(tmp_path, (f"sentence_transformers.models.{kind}", f"0_{kind}"))
    with pytest.raises(
        ValueError, match=f"module {kind}, which is not supported: .*{REJECTED[kind]}"
    ):
        from_pretrained(tmp_path)


def test_modules_in_an_order_without_meaning_are_rejected(tmp_path: Path) -> None:
    folder = write_sentence_encoder(tmp_path / "repository")
    package = "sentence_transformers.models"
    modules(folder, (f"{package}.Normalize", "2_Normalize"), (f"{package}.Pooling", "1_Pooling"))
    with pytest.raises(
        ValueError, match="'Pooling', which is not supported after the modules before"
    ):
        from_pretrained(folder)
    modules(folder, (f"{package}.Transformer", ""), (f"{package}.Normalize", "2_Normalize"))
    settings(folder, "2_Normalize/config.json", {"module_input_name": "token_embeddings"})
    with pytest.raises(
        ValueError, match="'token_embeddings', which is not supported: only sentence"
    ):
        from_pretrained(folder)


def test_a_dense_layer_of_token_vectors_precedes_the_normalization(tmp_path: Path) -> None:
    folder = write_colbert(tmp_path / "colbert", skipped=())
    names = json.loads((folder / "modules.json").read_text())
    kinds = {row["type"].rpartition(".")[2]: row for row in names}
    order = ["Transformer", "MultiVectorMask", "Normalize", "Dense"]
    rows = [{**kinds[kind], "idx": index} for index, kind in enumerate(order)]
    (folder / "modules.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match="'Dense', which is not supported after the modules"):
        from_pretrained(folder)


def test_an_empty_list_of_tasks_keeps_all_tokens(tmp_path: Path) -> None:
    folder = write_colbert(tmp_path / "colbert", skipped=(".",))
    file = next(folder.glob("*_MultiVectorMask")) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "skiplist_tasks": []}))
    model, tokenizer = loaded(folder)
    [vectors] = embed(model, tokenizer, ["The cat."], prompt="document")
    file.write_text(json.dumps({**json.loads(file.read_text()), "skiplist_tasks": ["document"]}))
    [fewer] = embed(*loaded(folder), ["The cat."], prompt="document")
    assert len(vectors) == len(fewer) + 1


def test_hidden_states_have_the_requested_dimensions(tmp_path: Path) -> None:
    model, tokenizer = loaded(write_sentence_encoder(tmp_path / "repository"))
    [states] = embed(model, tokenizer, TEXTS[:1], pool="none")
    [short] = embed(model, tokenizer, TEXTS[:1], pool="none", dimensions=3, normalize=True)
    assert close(short, torch.nn.functional.normalize(states[:, :3], dim=1))
