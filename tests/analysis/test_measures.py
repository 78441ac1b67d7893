"""Further measures of words, compared with definitions on the complete distributions of `forward`."""

import itertools
import math

import numpy as np
import pytest
import torch
from guarantees import assert_same

from minhub_py import from_config, gpt2, lstm, target_logprobs, word_logprobs
from minhub_py.analysis.measures import Boundaries, correction
from minhub_py.checkpoints.tokenizers.tokenizer import characters, train_byte_level_bpe
from minhub_py.inference.generate import score

TEXT = """He realizes something. The apple doesn't fall far from the tree, is it? It's the apple's core, and nothing
else. Don't judge a book by its cover: "The prince answered nothing", but she looked at him, awaiting a reply."""
WORDS = "The apple doesn't fall far from the tree, is it?".split()
TOKENIZER = train_byte_level_bpe([TEXT] * 3, 320)
VOCABULARY = TOKENIZER.get_vocab()
END = VOCABULARY["<|endoftext|>"]
MARKED = [id for token, id in VOCABULARY.items() if token.startswith("Ġ")]
UNMARKED = [id for id in VOCABULARY.values() if id not in MARKED and id != END]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": len(VOCABULARY), "bos_token_id": END, "eos_token_id": END}
    model = gpt2(n_positions=64, n_embd=32, n_layer=2, n_head=4, **sizes).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@torch.no_grad()
def distributions(model, words: list[str]) -> tuple[torch.Tensor, list[list[int]]]:
    """The distribution after each token of BOS and the words (T + 1, V), and the positions of each
    word.
    """
    pieces = [words[0], *(" " + word for word in words[1:])]
    ids, positions = [END], []
    for piece in pieces:
        new = TOKENIZER.encode(piece).ids
        positions.append(list(range(len(ids), len(ids) + len(new))))
        ids += new
    probabilities = torch.softmax(model(torch.tensor([ids]))[0].double(), dim=-1)
    logprobs = torch.cat([torch.zeros(1, len(VOCABULARY)), probabilities])  # row t predicts token t
    return logprobs, [[(position, ids[position]) for position in word] for word in positions]


def corrected(
    model, words: list[str], following: list[int], opening: list[int] | None
) -> list[float]:
    probabilities, tokens = distributions(model, words)
    result = []
    for number, word in enumerate(tokens):
        value = math.prod(float(probabilities[position, id]) for position, id in word)
        before, after = word[0][0], word[-1][0] + 1
        if number:
            value /= float(probabilities[before, following].sum())
        elif opening is not None:
            value /= float(probabilities[before, opening].sum())
        result.append(math.log(value * float(probabilities[after, following].sum())))
    return result


def test_corrected_words_match_the_definition(model) -> None:
    """Also for the first and the last word of each of two texts, and for a target after its
    context.
    """
    sets = {"pimentel": ([*MARKED, END], [*UNMARKED, END]), "oh": (MARKED, None)}
    for method, (following, opening) in sets.items():
        result = word_logprobs(
            model, TOKENIZER, WORDS * 2, by=[0] * 10 + [1] * 10, bos=True, correct=method
        )
        expected = corrected(model, WORDS, following, opening)
        np.testing.assert_allclose(result["logprob"], expected * 2, rtol=2e-6)
        np.testing.assert_allclose(
            result["surprisal"], np.array(expected * 2) / -math.log(2), rtol=2e-6
        )
        [target] = target_logprobs(
            model, TOKENIZER, [" ".join(WORDS[:6])], WORDS[6:7], bos=True, correct=method
        )["logprob"]
        assert target == pytest.approx(expected[6], rel=2e-6)
        prefixed = word_logprobs(
            model, TOKENIZER, WORDS[3:], context=" ".join(WORDS[:3]), bos=True, correct=method
        )
        np.testing.assert_allclose(prefixed["logprob"], expected[3:], rtol=2e-6)
    plain = word_logprobs(model, TOKENIZER, WORDS, bos=True)
    assert (np.abs(plain["logprob"] - expected) > 0.001).all()
    no_context = word_logprobs(model, TOKENIZER, WORDS, correct="pimentel")["logprob"]
    assert np.isnan(no_context).tolist() == [True] + [False] * 9


def test_corrected_probabilities_of_all_words_sum_to_1() -> None:
    """At a word start, tokens with the mark have .95 and the end token .05; after them .5, .45 and
    .05 (other, marked, end). Word k has k tokens.
    """
    boundaries = Boundaries(frozenset([0]), frozenset([0, 1]), [0, 2], [1, 2])
    total = uncorrected = 0.0
    for length in range(1, 60):
        ids = [0] + [1] * (length - 1)
        probability = 0.95 * 0.5 ** (length - 1)
        values = {
            "following": np.log([1.0] + [0.5] * length),
            "opening": np.full(length + 1, np.nan),
        }
        [change] = correction(values, [0], [ids], [[0] * length], 1, boundaries)
        uncorrected += probability
        total += probability * math.exp(change)
    assert uncorrected == pytest.approx(1.9)
    assert total == pytest.approx(0.95)


def test_correction_is_refused_where_words_have_no_boundary(model) -> None:
    with pytest.raises(ValueError, match="words that are separated by a space"):
        word_logprobs(model, TOKENIZER, ["The", " apple", "'s"], sep="", bos=True, correct="oh")
    with pytest.raises(ValueError, match="leave ignore_regex unset"):
        word_logprobs(model, TOKENIZER, WORDS, ignore_regex=",", correct="oh")
    with pytest.raises(ValueError, match='correct must be "pimentel", "oh" or None'):
        word_logprobs(model, TOKENIZER, WORDS, correct="levy")
    letters = characters("abcdefghijklmnopqrstuvwxyz ")
    other = lstm(vocab_size=27, embedding_size=8, hidden_size=8, num_layers=1).eval()
    with pytest.raises(ValueError, match="tokenizer does not: leave correct unset"):
        word_logprobs(other, letters, ["ab", "cd"], correct="pimentel")


def test_the_answer_of_an_encoder_decoder_is_corrected() -> None:
    torch.manual_seed(0)
    model = from_config(
        "t5", vocab_size=len(VOCABULARY), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    ).eval()
    source, target = TOKENIZER.encode("The apple").ids, TOKENIZER.encode("tree, is").ids
    result = target_logprobs(model, TOKENIZER, ["The apple"], ["tree, is"], correct="oh")
    plain = float(score(model, [source], targets=[target])[0].sum())
    next_marked = [float(score(model, [source], targets=[[*target, id]])[0][-1]) for id in MARKED]
    assert float(result["logprob"][0]) == pytest.approx(
        plain + math.log(sum(map(math.exp, next_marked))), rel=1e-5
    )


def test_renyi_entropies_match_the_definition(model) -> None:
    orders = [0, 0.5, 1, 2, math.inf]
    result = word_logprobs(model, TOKENIZER, WORDS, bos=True, renyi=orders)
    probabilities, tokens = distributions(model, WORDS)
    for number, [(position, _), *_] in enumerate(tokens):
        p = probabilities[position]
        for order in (0, 0.5, 2):
            expected = float(p.pow(order).sum().log2()) / (1 - order)
            assert result[f"renyi_{order:g}"][number] == pytest.approx(expected, rel=1e-5)
        assert result["renyi_inf"][number] == pytest.approx(-math.log2(float(p.max())), rel=1e-5)
    np.testing.assert_allclose(result["renyi_1"], result["entropy"], rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"renyi must be an order of 0 or more, such as 0\.5, not -1"
    ):
        word_logprobs(model, TOKENIZER, WORDS, renyi=-1)


def test_pmi_compares_the_context_with_the_premise(model) -> None:
    for correct in (None, "pimentel"):
        result = word_logprobs(model, TOKENIZER, WORDS, bos=True, premise="Well,", correct=correct)
        alone = target_logprobs(model, TOKENIZER, ["Well,"] * 10, WORDS, bos=True, correct=correct)
        np.testing.assert_array_equal(
            result["pmi"], (result["logprob"] - alone["logprob"]) / math.log(2)
        )
    empty = word_logprobs(model, TOKENIZER, [*WORDS, None], bos=True, premise="")
    assert_same(float(empty["pmi"][0]), 0.0)  # the first word has the same context
    assert np.isnan(empty["pmi"][-1])
    with pytest.raises(
        ValueError, match="an empty premise needs a token before each word: set bos=True"
    ):
        word_logprobs(model, TOKENIZER, WORDS, premise="")


def test_lags_are_the_values_of_previous_words(model) -> None:
    words, by = ["The", "apple", None, "core", "It", "is"], ["a", "a", "a", "a", "b", "b"]
    result = word_logprobs(model, TOKENIZER, words, by=by, bos=True, lags=2)
    nan = math.nan
    for name in ("surprisal", "entropy"):
        values = result[name]
        np.testing.assert_array_equal(
            result[f"{name}_lag1"], [nan, values[0], nan, values[1], nan, values[4]]
        )
        np.testing.assert_array_equal(result[f"{name}_lag2"], [nan, nan, nan, values[0], nan, nan])
    order = word_logprobs(
        model, TOKENIZER, words[::-1], by=by[::-1], word_n=[6, 5, 4, 3, 2, 1], bos=True, lags=1
    )
    np.testing.assert_array_equal(order["surprisal_lag1"][::-1], result["surprisal_lag1"])


def test_the_warning_lists_the_words_that_share_a_token(model) -> None:
    words = ["The", " ", "apple", " ", "core", " ", "tree"]
    with pytest.warns(
        UserWarning,
        match=r"6 words have no log-probability.*: ' ' and 'apple'; ' ' and 'core'; ' ' and",
    ):
        word_logprobs(model, TOKENIZER, words, sep="")


def test_measures_do_not_change_the_other_columns(model) -> None:
    """One pass: the same logits give all measures."""
    plain = word_logprobs(model, TOKENIZER, WORDS, bos=True)
    for correct, renyi in itertools.product((None, "oh"), (None, [0.5])):
        result = word_logprobs(
            model, TOKENIZER, WORDS, bos=True, correct=correct, renyi=renyi, lags=1
        )
        for name in ("tokens", "entropy", *(["logprob"] if correct is None else [])):
            assert_same(result[name], plain[name])
