"""Surprisal, compared with a simple reference: `forward` on each token's complete context,
without a cache.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import real_data

from minhub_py import (
    from_config,
    gpt2,
    gptneo,
    lstm,
    next_tokens,
    score,
    target_logprobs,
    word_logprobs,
)
from minhub_py.analysis import predictions, tokens
from minhub_py.analysis.matrix import logprob_matrix
from minhub_py.analysis.scores import token_scores
from minhub_py.checkpoints.tokenizers.tokenizer import (
    byte_level_bpe,
    characters,
    read_tokenizer,
    train_byte_level_bpe,
)
from minhub_py.inference.generate import generate
from minhub_py.inference.rows import context_start
from minhub_py.system.tables import Columns

TEXT = """He realizes something. The apple doesn't fall far from the tree, is it? It's the apple's core, and nothing
else. Don't judge a book by its cover: "The prince answered nothing", but she looked at him, awaiting a reply."""
SENTENCES = [
    "The apple doesn't fall far from the tree.",
    "He realizes something, is it?",
    "realizes something.",
    (
        "The apple doesn't fall far from the book, but she looked at him and the apple's core is"
        " nothing else, is it?"
    ),
    "Nothing",
    "The apple",
]
WORDS = [word for text in SENTENCES for word in text.split()]
BY = [number for number, text in enumerate(SENTENCES) for _ in text.split()]
TOKENIZER = train_byte_level_bpe([TEXT] * 3, 320)
V, CONTEXT = TOKENIZER.get_vocab_size(), 16


def test_notebooks_show_scores_as_a_table() -> None:
    page = word_logprobs(GPT2, TOKENIZER, ["apple"] * 31, context="The")._repr_html_()
    assert page.startswith("<table><thead><tr><th>tokens</th><th>logprob</th>")
    assert "20 of 31 rows" in page
    assert "<td>&lt;b&gt;</td>" in Columns(word=["<b>"])._repr_html_()
    assert (
        "<td>11484</td><td>0.01235</td>"
        in Columns(rate=[11484.4], loss=[0.012345678])._repr_html_()
    )
    assert "<td>10000</td>" in Columns(rate=[9999.96])._repr_html_()


def models() -> dict:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
    result = {
        "gpt2": gpt2(n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, **sizes),
        "gptneo": gptneo(
            max_position_embeddings=64,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            window_size=5,
            **sizes,
        ),
        "lstm": lstm(vocab_size=V, embedding_size=16, hidden_size=24, num_layers=2),
        "qwen35": from_config(
            "qwen3_5_text",
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            intermediate_size=48,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            max_position_embeddings=64,
            vocab_size=V,
        ),
    }
    for model in result.values():
        model.eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return result


MODELS = models()
GPT2 = MODELS["gpt2"]


@pytest.fixture(params=itertools.product(MODELS, ["compiled", "eager"]), ids="-".join)
def model(request: pytest.FixtureRequest):
    name, runner = request.param
    model = MODELS[name]
    if runner == "compiled":
        yield model
    else:  # with a hook, only `forward` computes
        handle = model.register_forward_hook(lambda *_: None)
        yield model
        handle.remove()


@torch.no_grad()
def logprobs_after(model, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of the next token, with the context window of long texts."""
    start = context_start(len(ids), model.config.context_length)
    return torch.log_softmax(model(torch.tensor([ids[start:]]))[0, -1], dim=-1)


def reference(
    model, parts: list[str], *, before: tuple[int, ...] = ()
) -> tuple[list[float], list[float]]:
    """Log-probabilities and entropies of parts, each encoded separately, as in pangoling."""
    ids = list(before)
    logprobs, entropies = [], []
    for part in parts:
        total, entropy = 0.0, None
        for id in TOKENIZER.encode(part).ids:
            after = logprobs_after(model, ids) if ids else torch.full((V,), math.nan)
            total += float(after[id])
            entropy = (
                float(-(after.exp() * after).sum() / math.log(2)) if entropy is None else entropy
            )
            ids.append(id)
        logprobs.append(total)
        entropies.append(entropy)
    return logprobs, entropies


def spaced(text: str) -> list[str]:
    first, *following = text.split()
    return [first, *(" " + word for word in following)]


def close(actual, expected) -> bool:
    np.testing.assert_allclose(
        np.array(actual, float), np.array(expected, float), rtol=0, atol=1e-4
    )
    return True


def test_word_logprobs_match_the_reference(model) -> None:
    result = word_logprobs(model, TOKENIZER, WORDS, by=BY)
    expected = [reference(model, spaced(text)) for text in SENTENCES]
    assert close(result["logprob"], [value for logprobs, _ in expected for value in logprobs])
    assert close(result["entropy"], [value for _, entropies in expected for value in entropies])
    assert close(result["surprisal"], -result["logprob"] / math.log(2))
    counts = [len(TOKENIZER.encode(part).ids) for text in SENTENCES for part in spaced(text)]
    assert result["tokens"].tolist() == counts
    assert max(counts) > 1
    assert len(TOKENIZER.encode(SENTENCES[3]).ids) > CONTEXT


def test_target_logprobs_of_contexts_with_common_prefixes_match_the_reference(model) -> None:
    contexts = ["The apple doesn't fall far from the"] * 3 + [
        "The apple doesn't fall",
        "Don't judge a book by its",
        "",
    ]
    targets = ["tree", "apple's core", "tree, is it?", "far", "cover", "cover"]
    result = target_logprobs(model, TOKENIZER, contexts, targets)
    expected = [
        reference(model, [context, " " + target])[0][1]
        for context, target in zip(contexts[:5], targets, strict=False)
    ]
    assert close(result["logprob"], [*expected, math.nan])


def test_next_tokens_match_the_reference(model) -> None:
    contexts = ["The apple", "The apple doesn't fall", "The apple", SENTENCES[3], "It"]
    result = next_tokens(model, TOKENIZER, contexts, 3)
    for number, context in enumerate(contexts):
        best = logprobs_after(model, TOKENIZER.encode(context).ids).topk(3)
        rows = slice(3 * number, 3 * number + 3)
        assert result["context"][rows].tolist() == [number] * 3
        assert result["id"][rows].tolist() == best.indices.tolist()
        assert close(result["logprob"][rows], best.values)
        assert close(result["prob"][rows], best.values.exp())
        assert result["token"][rows] == [
            TOKENIZER.decode([id], skip_special_tokens=False) for id in best.indices.tolist()
        ]


def test_logprob_matrix_matches_the_reference(model, tmp_path: Path) -> None:
    columns, matrix = logprob_matrix(model, TOKENIZER, [SENTENCES[3], "", "The apple"])
    ids = [TOKENIZER.encode(text).ids for text in (SENTENCES[3], "The apple")]
    assert columns["id"].tolist() == ids[0] + ids[1]
    assert columns["text"].tolist() == [0] * len(ids[0]) + [2] * len(ids[1])
    assert columns["position"].tolist() == [*range(len(ids[0])), *range(len(ids[1]))]
    for row, (prompt, position) in enumerate((text, i) for text in ids for i in range(len(text))):
        assert (
            np.isnan(matrix[row]).all()
            if position == 0
            else close(matrix[row], logprobs_after(model, prompt[:position]))
        )
    file = tmp_path / "all.npy"
    _, mapped = logprob_matrix(model, None, [ids[0], ids[1]], out=file)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(np.load(file), matrix)
    assert [path.name for path in tmp_path.iterdir()] == ["all.npy"]


def test_the_order_of_words_does_not_change_results() -> None:
    expected = word_logprobs(GPT2, TOKENIZER, WORDS, by=BY)["logprob"]
    order = np.random.default_rng(0).permutation(len(WORDS))
    numbers = [BY[:i].count(BY[i]) for i in range(len(WORDS))]
    shuffled = word_logprobs(
        GPT2,
        TOKENIZER,
        [WORDS[i] for i in order],
        by=[f"text {BY[i]}" for i in order],
        word_n=[numbers[i] for i in order],
    )
    np.testing.assert_array_equal(shuffled["logprob"], expected[order])
    # first words first
    by_number = [i for _, i in sorted(zip(numbers, range(len(WORDS)), strict=True))]
    np.testing.assert_array_equal(
        word_logprobs(
            GPT2, TOKENIZER, [WORDS[i] for i in by_number], by=[BY[i] for i in by_number]
        )["logprob"],
        expected[by_number],
    )


def test_missing_words_are_skipped() -> None:
    words = ["The", None, "apple", "", "doesn't", float("nan"), "fall", "far"]
    by = [1, 1, 1, 1, 1, 1, 1, None]
    result = word_logprobs(GPT2, TOKENIZER, words, by=by)
    present = [0, 2, 4, 6]
    expected = word_logprobs(GPT2, TOKENIZER, ["The", "apple", "doesn't", "fall"])
    for name, values in result.items():
        np.testing.assert_array_equal(values[present], expected[name])
        missing = [values[i] for i in (1, 3, 5, 7)]
        assert missing == [0] * 4 if name == "tokens" else np.isnan(missing).all()
    empty = word_logprobs(GPT2, TOKENIZER, [])
    assert {name: len(values) for name, values in empty.items()} == dict.fromkeys(result, 0)


def test_a_context_comes_before_the_words_and_is_not_scored() -> None:
    words = ["fall", "far", "The", "tree"]
    result = word_logprobs(
        GPT2, TOKENIZER, words, by=[1, 1, 2, 2], context=["The apple doesn't"] * 2 + [None, ""]
    )
    expected = (
        reference(GPT2, ["The apple doesn't", " fall", " far"])[0][1:]
        + reference(GPT2, ["The", " tree"])[0]
    )
    assert close(result["logprob"], expected)
    for_all = word_logprobs(GPT2, TOKENIZER, words, by=[1, 1, 2, 2], context="It's")
    assert not np.isnan(for_all["logprob"]).any()
    with pytest.raises(ValueError, match=r"text 1 have different contexts: use the same"):
        word_logprobs(GPT2, TOKENIZER, words, by=[1, 1, 2, 2], context=["a", "b", "c", "c"])
    with pytest.raises(
        ValueError, match=r"different contexts: pass by, or use target_logprobs\(\)"
    ):
        word_logprobs(GPT2, TOKENIZER, words, context=list("abcd"))


def test_ignored_tokens_contribute_nothing() -> None:
    words = ['"The', "apple's", "core", "is", "nothing,", "is", "it", "?"]
    complete = word_logprobs(GPT2, TOKENIZER, words)
    ignored = word_logprobs(GPT2, TOKENIZER, words, ignore_regex=r"^[^\w\s]$")
    text = " ".join(words)
    _, matrix = logprob_matrix(GPT2, TOKENIZER, [text])
    ids, texts = (
        TOKENIZER.encode(text).ids,
        [TOKENIZER.decode([id]) for id in TOKENIZER.encode(text).ids],
    )
    [comma] = [i for i, token in enumerate(texts) if token == ","]
    assert math.isnan(complete["logprob"][0])
    assert close(
        ignored["logprob"][0], sum(matrix[i, ids[i]] for i in range(1, texts.index(" apple")))
    )
    assert close(ignored["logprob"][4], complete["logprob"][4] - matrix[comma, ids[comma]])
    assert close(ignored["logprob"][[1, 2, 3, 5, 6]], complete["logprob"][[1, 2, 3, 5, 6]])
    with pytest.raises(ValueError, match="contains a POSIX class"):
        word_logprobs(GPT2, TOKENIZER, words, ignore_regex="^[[:punct:]]$")
    with pytest.raises(ValueError, match="is not a valid regular expression"):
        word_logprobs(GPT2, TOKENIZER, words, ignore_regex="(")


def test_bos_gives_first_words_a_context() -> None:
    result = word_logprobs(GPT2, TOKENIZER, WORDS, by=BY, bos=True)
    expected = [reference(GPT2, spaced(text), before=(0,))[0] for text in SENTENCES]
    assert close(result["logprob"], list(itertools.chain.from_iterable(expected)))
    written = word_logprobs(GPT2, TOKENIZER, ["<|endoftext|>The", "apple"])["logprob"]
    assert close(written, word_logprobs(GPT2, TOKENIZER, ["The", "apple"], bos=True)["logprob"])
    assert close(
        target_logprobs(GPT2, TOKENIZER, [None], ["The"], bos=True)["logprob"], written[:1]
    )
    with pytest.raises(ValueError, match="bos=True needs a bos_token_id, but this model has none"):
        word_logprobs(MODELS["lstm"], TOKENIZER, ["a"], bos=True)


def test_sep_is_configurable_and_shared_tokens_are_nan() -> None:
    result = word_logprobs(GPT2, TOKENIZER, ["The", " apple", "'s", " core", "."], sep="")
    assert close(result["logprob"], reference(GPT2, ["The", " apple", "'s", " core", "."])[0])
    with pytest.warns(
        UserWarning,
        match=r"3 words have no log-probability, because a token contains .*: ' ' and 'rea'",
    ):
        result = word_logprobs(GPT2, TOKENIZER, ["He", " ", "rea", "lizes", " some"], sep="")
    assert np.isnan(result["logprob"]).tolist() == [True, True, True, True, False]


def test_characters_without_a_token_cause_a_warning() -> None:
    tokenizer = characters("abc ")
    model = lstm(vocab_size=4, embedding_size=8, hidden_size=8).eval()
    with pytest.warns(UserWarning, match="not in the tokenizer's vocabulary, and left out: 'x'"):
        result = word_logprobs(model, tokenizer, ["ab", "x", "cxa"])
    # With the spaces. A word without known characters has none: the space before it is not its
    # token.
    assert result["tokens"].tolist() == [2, 0, 3]
    known = word_logprobs(model, tokenizer, ["ab", "ca"])["logprob"]
    assert np.isnan(result["logprob"][1])
    assert close(result["logprob"][[0, 2]], known)
    with pytest.warns(UserWarning, match="left out"):
        targets = target_logprobs(model, tokenizer, ["ab", "ab", "x", "ab"], ["c", "x", "c", "cx"])
    expected = target_logprobs(model, tokenizer, ["ab", "ab", None, "ab"], ["c", None, "c", "c"])
    assert close(targets["logprob"], expected["logprob"])


def test_one_warning_lists_the_unknown_characters_of_all_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "BATCH", 2)
    model = lstm(vocab_size=4, embedding_size=8, hidden_size=8).eval()
    with pytest.warns(UserWarning, match="left out: 'x' 'y'") as warnings:
        next_tokens(model, characters("abc "), ["ax", "b", "c", "ya", "a"], 1)
    assert len(warnings) == 1


def test_encoder_decoders_score_and_predict_targets() -> None:
    torch.manual_seed(0)
    model = from_config(
        "t5", vocab_size=V, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    ).eval()
    contexts = ["The apple", "The apple", "It"]
    result = target_logprobs(model, TOKENIZER, contexts, ["tree", "book by", None])
    ids = [TOKENIZER.encode(text).ids for text in ("The apple", "tree", "book by")]
    expected = [float(scores.sum()) for scores in score(model, [ids[0]] * 2, targets=ids[1:])]
    assert close(result["logprob"], [*expected, math.nan])
    assert next_tokens(model, TOKENIZER, contexts, 1)["id"].tolist() == [
        id
        for ids in generate(
            model, [TOKENIZER.encode(text).ids for text in contexts], 1, temperature=0
        )
        for id in ids
    ]
    for call in (
        lambda: word_logprobs(model, TOKENIZER, ["a"]),
        lambda: logprob_matrix(model, TOKENIZER, "a"),
    ):
        with pytest.raises(
            ValueError,
            match=r"an encoder-decoder predicts the decoder's text.*use target_logprobs\(\)",
        ):
            call()


def test_token_scores_match_score_and_the_entropies_of_the_reference(model) -> None:
    """With targets, only the targets are scored."""
    ids = [TOKENIZER.encode(text).ids for text in (SENTENCES[3], "", "The apple")]
    result = list(token_scores(model, ids))
    expected = score(model, [text for text in ids if text])
    assert [len(logprobs) for logprobs, _ in result] == [len(ids[0]) - 1, 0, len(ids[2]) - 1]
    assert close(result[0][0], expected[0])
    assert close(result[2][0], expected[1])
    after = [logprobs_after(model, ids[0][:position]) for position in range(1, len(ids[0]))]
    assert close(
        result[0][1], [-(logprobs.exp() * logprobs).sum() / math.log(2) for logprobs in after]
    )
    [targets] = token_scores(model, [ids[0][:4]], [ids[0][4:]])
    for values, complete in zip(targets, result[0], strict=True):
        assert close(values, complete[3:])


def test_token_scores_of_an_encoder_decoder_match_score() -> None:
    torch.manual_seed(0)
    model = from_config(
        "t5", vocab_size=V, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    ).eval()
    texts, targets = [[5, 6], [7], [5, 6]], [[1, 2, 3], [4], [9]]
    result = list(token_scores(model, texts, targets))
    for (logprobs, entropies), expected in zip(
        result, score(model, texts, targets=targets), strict=True
    ):
        assert close(logprobs, expected)
        assert len(entropies) == len(expected)
        assert (entropies > 0).all()


@pytest.fixture
def call_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens in each call of the runner."""
    counts: list[int] = []

    def counting(model):
        runner = runner_of(model)
        forward = runner.forward

        def counted(texts, *args, **keywords):
            counts.append(sum(map(len, texts.values())))
            return forward(texts, *args, **keywords)

        runner.forward = counted
        return runner

    runner_of = predictions.runner_of
    monkeypatch.setattr(predictions, "runner_of", counting)
    return counts


def test_common_prefixes_are_evaluated_once(
    call_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = gpt2(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4).eval()
    context, vocabulary = (
        SENTENCES[0],
        ["tree", "apple", "book", "cover", "core", "else", "something"] * 30,
    )
    expected = target_logprobs(model, TOKENIZER, [context] * 210, vocabulary)["logprob"]
    length = len(TOKENIZER.encode(context).ids)
    tails = {tuple(TOKENIZER.encode(" " + word).ids[:-1]) for word in vocabulary}
    assert sum(call_sizes) <= length + sum(map(len, tails))
    assert len(call_sizes) <= 4
    words = context.split()
    before = [" ".join(words[:i]) for i in range(1, len(words))]
    call_sizes.clear()
    logprobs = target_logprobs(model, TOKENIZER, before, words[1:])["logprob"]
    assert sum(call_sizes) == length - 1
    assert close(logprobs, word_logprobs(model, TOKENIZER, words)["logprob"][1:])
    # Many small batches, each with a prefix of the previous one.
    monkeypatch.setattr(predictions, "BATCH_ROWS", 2)
    call_sizes.clear()
    np.testing.assert_array_equal(
        target_logprobs(model, TOKENIZER, [context] * 210, vocabulary)["logprob"], expected
    )
    assert sum(call_sizes) <= length + 2 * sum(map(len, tails))
    assert close(
        word_logprobs(model, TOKENIZER, WORDS, by=BY)["logprob"][:8], [math.nan, *logprobs]
    )


def test_texts_are_batched(call_sizes: list[int]) -> None:
    calls = []
    words = np.random.default_rng(0).choice(WORDS, 500)
    word_logprobs(
        GPT2,
        TOKENIZER,
        words,
        by=np.arange(500) // 5,
        progress=lambda *counts: calls.append(counts),
    )
    assert max(call_sizes) > 128
    assert calls[-1][0] == calls[-1][1]
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(calls))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: word_logprobs("gpt2", TOKENIZER, ["a"]),
            r"word_logprobs\(\) takes a model, not its name",
        ),
        (
            lambda: word_logprobs(GPT2, "gpt2", ["a"]),
            r"must be a tokenizers\.Tokenizer, not its name: load it",
        ),
        (
            lambda: word_logprobs(GPT2, TOKENIZER, "a text"),
            "words must be a list of strings, not 'a text'",
        ),
        (
            lambda: word_logprobs(GPT2, TOKENIZER, ["a", 5]),
            "words must be strings, but number 1 is 5",
        ),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a"], by=[1, 2]), "by has 2 values for 1 words"),
        (
            lambda: word_logprobs(GPT2, TOKENIZER, ["a"], by="item"),
            "by must be a list with one value per word",
        ),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a"], word_n=[None]), "word_n has missing values"),
        (lambda: target_logprobs(GPT2, TOKENIZER, ["a"], []), "0 targets for 1 contexts"),
        (
            lambda: target_logprobs(GPT2, TOKENIZER, ["a"], [" b"]),
            "^' b' starts with white space, and sep is a",
        ),
        (
            lambda: target_logprobs(GPT2, TOKENIZER, ["a\n"], ["b"]),
            r"^'a\\n' ends with white space, and sep is",
        ),
        (
            lambda: word_logprobs(GPT2, TOKENIZER, ["a ", "b"]),
            "'a ' ends with white space.*set sep to an empty",
        ),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["b"], context="a "), "'a ' ends with white space"),
        (lambda: next_tokens(GPT2, TOKENIZER, ["a", ""]), "prompt 1 is empty"),
        (lambda: next_tokens(GPT2, TOKENIZER, ["a"], 0), "n must be a whole number of 1 or more"),
        (
            lambda: word_logprobs(lstm(vocab_size=3), TOKENIZER, ["the"]),
            "the tokenizer does not match the model",
        ),
        (lambda: logprob_matrix(GPT2, TOKENIZER, "a", out="a.csv"), r"out must name a \.npy file"),
    ],
)
def test_invalid_arguments_raise_value_errors(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_failed_logprob_matrix_leaves_no_file(tmp_path: Path) -> None:
    model = gpt2(vocab_size=V, n_positions=CONTEXT, n_embd=8, n_layer=1, n_head=1).eval()
    torch.nn.init.constant_(model.ln_f.weight, math.nan)
    with pytest.raises(ValueError, match="logits are NaN"):
        logprob_matrix(model, TOKENIZER, "The apple", out=tmp_path / "a.npy")
    assert not list(tmp_path.iterdir())


def test_special_tokens_of_the_tokenizer_belong_to_no_word() -> None:
    """The tokenizers of Llama and T5 add tokens before and after a text."""
    from minhub_py.checkpoints.tokenizers.tokenizer import Convention, surround

    tokenizer = byte_level_bpe(
        TOKENIZER.get_vocab(),
        [tuple(pair) for pair in json.loads(TOKENIZER.to_str())["model"]["merges"]],
    )
    tokenizer.add_special_tokens(["<|endoftext|>"])
    surround(
        tokenizer, {}, Convention("<|endoftext|>", "<|endoftext|>", add_bos=True, add_eos=True)
    )
    expected = word_logprobs(GPT2, TOKENIZER, WORDS, by=BY, bos=True)
    for bos in (None, True):
        result = word_logprobs(GPT2, tokenizer, WORDS, by=BY, bos=bos)
        for name, values in expected.items():
            np.testing.assert_array_equal(result[name], values)
    assert math.isnan(word_logprobs(GPT2, tokenizer, WORDS, by=BY, bos=False)["logprob"][0])


# Results of pangoling 1.0.3 (with transformers 4.57 and reticulate 1.28) for the model of the test
# below, saved with GPT-2's tokenizer: causal_words_pred() of each text's words, with these
# arguments, and causal_targets_pred(). The cases are from the package's tests and help pages.
NA = math.nan
PROVERB = "The apple doesn't fall far from the tree."
MARKS = '"Well," she said - "it\'s (almost) done"; isn\'t it ? Yes: 3.14, 1,000 and $5!'
# two sentences
MIXED = "far judge book the fall its tree. doesn't by a apple Don't The cover. from"
MIXED_BY, MIXED_N = (
    [1, 2, 2, 1, 1, 2, 1, 1, 2, 2, 1, 2, 1, 2, 1],
    [5, 10, 12, 7, 4, 14, 8, 3, 13, 11, 2, 9, 1, 15, 6],
)
PUNCTUATION, MARK = r"[!-/:-@\[-`{-~]", r"^[!-/:-@\[-`{-~]$"  # R's [[:punct:]]
PANGOLING = [
    (PROVERB, {}, [NA, -10.85723, -22.18761, -10.18652, -11.02112, -11.5155, -10.8716, -21.26604]),
    (PROVERB, {"ignore_regex": PUNCTUATION},
     [NA, -10.85723, -11.00034, -10.18652, -11.02112, -11.5155, -10.8716, -10.43256]),
    (MARKS, {}, [NA, -10.76062, -10.79758, -11.16452, -32.67314, -32.45545, -22.14436, -21.99483, -10.89557, -11.01763,
                 -21.61744, -44.04848, -32.66089, -11.10409, -32.32955]),
    (MARKS, {"ignore_regex": MARK},
     [-22.18937, -10.76062, -10.79758, -11.16452, -32.67314, -21.10389, -22.14436, -21.99483, -10.89557, -11.01763,
      -10.40885, -22.26269, -21.59486, -11.10409, -21.7677]),
    (MIXED, {"by": MIXED_BY}, [NA, NA, -10.77035, -10.80153, -10.33738, -11.21624, -21.22209, -21.9834, -10.68985,
                               -11.06102, -10.83813, -22.04702, -10.61963, -21.79876, -11.46671]),
    (MIXED, {"by": MIXED_BY, "word_n": MIXED_N},
     [-11.02112, -10.57194, -10.73845, -10.8716, -10.18652, -11.25607, -21.26604, -22.18761, -10.74688, -11.16237,
      -10.85723, NA, NA, -21.70203, -11.5155]),
    ("<|endoftext|>This is it", {}, [-11.15843, -10.8904, -11.0763]),
]  # fmt: skip


def test_white_space_is_allowed_unless_sep_doubles_it() -> None:
    """At a text's ends, with another separator, and for an encoder-decoder, which does not use
    `sep`.
    """
    edges = word_logprobs(GPT2, TOKENIZER, [" far", "tree "])
    assert edges["tokens"].tolist() == [
        len(TOKENIZER.encode(" far").ids),
        len(TOKENIZER.encode(" tree ").ids),
    ]
    joined = target_logprobs(GPT2, TOKENIZER, ["The"], ["tree"])
    apart = target_logprobs(GPT2, TOKENIZER, ["The"], [" tree"], sep="")
    np.testing.assert_array_equal(joined["logprob"], apart["logprob"])
    t5 = from_config(
        "t5",
        vocab_size=GPT2.config.vocab_size,
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=1,
        num_heads=2,
    )
    target_logprobs(t5.eval(), TOKENIZER, ["The "], [" tree"])


def test_results_equal_pangoling() -> None:
    tokenizer = read_tokenizer(real_data("gpt2-tokenizer"))
    model = gpt2(n_embd=64, n_layer=2, n_head=4).eval()
    torch.manual_seed(1)
    for _, weight in sorted(model.named_parameters()):
        torch.nn.init.normal_(weight, std=0.15)
    for text, arguments, expected in PANGOLING:
        assert close(
            word_logprobs(model, tokenizer, text.split(), **arguments)["logprob"], expected
        )
    joined = word_logprobs(model, tokenizer, ["The", " apple", "'s", " core", "."], sep="")
    assert close(joined["logprob"], [NA, -10.85723, -11.02919, -11.31556, -10.91998])
    contexts = ["Don't judge a book by its", "The apple doesn't fall far from the"]
    result = target_logprobs(model, tokenizer, contexts, ["cover.", "tree"])
    assert close(result["logprob"], [-21.70203, -10.43256])
