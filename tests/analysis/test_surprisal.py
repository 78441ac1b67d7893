"""Predictability of words, against the plainest way to say the same: a whole text through the model for each token."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import real_data

import minhub_py
from minhub_py import gpt2, gptneo, lstm, next_tokens, qwen35, score, t5, target_logprobs, word_logprobs
from minhub_py.analysis import predictions, tokens
from minhub_py.analysis.matrix import logprob_matrix
from minhub_py.analysis.scores import token_scores
from minhub_py.checkpoints.tokenizers.tokenizer import byte_level_bpe, characters, read_tokenizer, train_byte_level_bpe
from minhub_py.inference.batch import context_start
from minhub_py.inference.generate import generate

TEXT = """He realizes something. The apple doesn't fall far from the tree, is it? It's the apple's core, and nothing
else. Don't judge a book by its cover: "The prince answered nothing", but she looked at him, awaiting a reply."""
SENTENCES = [
    "The apple doesn't fall far from the tree.",
    "He realizes something, is it?",
    "realizes something.",
    "The apple doesn't fall far from the book, but she looked at him and the apple's core is nothing else, is it?",
    "Nothing",
    "The apple",
]
WORDS = [word for text in SENTENCES for word in text.split()]
BY = [number for number, text in enumerate(SENTENCES) for _ in text.split()]
TOKENIZER = train_byte_level_bpe([TEXT] * 3, 320)
V, CONTEXT = TOKENIZER.get_vocab_size(), 16


def models() -> dict:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
    made = {
        "gpt2": gpt2(n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, **sizes),
        "gptneo": gptneo(max_position_embeddings=64, hidden_size=32, num_layers=2, num_heads=4, window_size=5, **sizes),
        "lstm": lstm(vocab_size=V, embedding_size=16, hidden_size=24, num_layers=2),
        "qwen35": qwen35(hidden_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                         intermediate_size=48, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
                         linear_value_head_dim=8, max_position_embeddings=64, vocab_size=V),
    }  # fmt: skip
    for model in made.values():
        model.eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return made


MODELS = models()
GPT2 = MODELS["gpt2"]


@pytest.fixture(params=itertools.product(MODELS, ["compiled", "eager"]), ids="-".join)
def model(request: pytest.FixtureRequest):
    name, runner = request.param
    model = MODELS[name]
    if runner == "compiled":
        yield model
    else:  # a hook is for the model's own forward alone
        handle = model.register_forward_hook(lambda *_: None)
        yield model
        handle.remove()


@torch.no_grad()
def logprobs_after(model, ids: list[int]) -> torch.Tensor:
    """By the rule for long texts, without any cache."""
    start = context_start(len(ids), model.config.context_length)
    return torch.log_softmax(model(torch.tensor([ids[start:]]))[0, -1], dim=-1)


def plainly(model, parts: list[str], *, before: tuple[int, ...] = ()) -> tuple[list[float], list[float]]:
    """Log-probabilities and entropies of parts, each encoded by itself, as pangoling does it."""
    ids = list(before)
    logprobs, entropies = [], []
    for part in parts:
        total, entropy = 0.0, None
        for id in TOKENIZER.encode(part).ids:
            after = logprobs_after(model, ids) if ids else torch.full((V,), math.nan)
            total += float(after[id])
            entropy = float(-(after.exp() * after).sum() / math.log(2)) if entropy is None else entropy
            ids.append(id)
        logprobs.append(total)
        entropies.append(entropy)
    return logprobs, entropies


def spaced(text: str) -> list[str]:
    first, *rest = text.split()
    return [first, *(" " + word for word in rest)]


def close(found, wanted) -> bool:
    np.testing.assert_allclose(np.array(found, float), np.array(wanted, float), rtol=0, atol=1e-4)
    return True


def test_words_of_texts_are_as_when_each_is_read_alone(model) -> None:
    found = word_logprobs(model, TOKENIZER, WORDS, by=BY)
    wanted = [plainly(model, spaced(text)) for text in SENTENCES]
    assert close(found["logprob"], [value for logprobs, _ in wanted for value in logprobs])
    assert close(found["entropy"], [value for _, entropies in wanted for value in entropies])
    assert close(found["surprisal"], -found["logprob"] / math.log(2))
    counts = [len(TOKENIZER.encode(part).ids) for text in SENTENCES for part in spaced(text)]
    assert found["tokens"].tolist() == counts
    assert max(counts) > 1
    assert len(TOKENIZER.encode(SENTENCES[3]).ids) > CONTEXT


def test_targets_of_contexts_that_begin_alike(model) -> None:
    contexts = ["The apple doesn't fall far from the"] * 3 + ["The apple doesn't fall", "Don't judge a book by its", ""]
    targets = ["tree", "apple's core", "tree, is it?", "far", "cover", "cover"]
    found = target_logprobs(model, TOKENIZER, contexts, targets)
    wanted = [
        plainly(model, [context, " " + target])[0][1] for context, target in zip(contexts[:5], targets, strict=False)
    ]
    assert close(found["logprob"], [*wanted, math.nan])


def test_next_tokens_of_many_contexts(model) -> None:
    contexts = ["The apple", "The apple doesn't fall", "The apple", SENTENCES[3], "It"]
    found = next_tokens(model, TOKENIZER, contexts, 3)
    for number, context in enumerate(contexts):
        best = logprobs_after(model, TOKENIZER.encode(context).ids).topk(3)
        rows = slice(3 * number, 3 * number + 3)
        assert found["context"][rows].tolist() == [number] * 3
        assert found["id"][rows].tolist() == best.indices.tolist()
        assert close(found["logprob"][rows], best.values)
        assert close(found["prob"][rows], best.values.exp())
        assert found["token"][rows] == [
            TOKENIZER.decode([id], skip_special_tokens=False) for id in best.indices.tolist()
        ]


def test_the_matrix_has_all_that_is_predicted(model, tmp_path: Path) -> None:
    columns, matrix = logprob_matrix(model, TOKENIZER, [SENTENCES[3], "", "The apple"])
    ids = [TOKENIZER.encode(text).ids for text in (SENTENCES[3], "The apple")]
    assert columns["id"].tolist() == ids[0] + ids[1]
    assert columns["text"].tolist() == [0] * len(ids[0]) + [2] * len(ids[1])
    assert columns["position"].tolist() == [*range(len(ids[0])), *range(len(ids[1]))]
    for row, (known, position) in enumerate((each, i) for each in ids for i in range(len(each))):
        assert (
            np.isnan(matrix[row]).all()
            if position == 0
            else close(matrix[row], logprobs_after(model, known[:position]))
        )
    file = tmp_path / "all.npy"
    _, mapped = logprob_matrix(model, None, [ids[0], ids[1]], out=file)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(np.load(file), matrix)
    assert [path.name for path in tmp_path.iterdir()] == ["all.npy"]


def test_words_in_any_order() -> None:
    wanted = word_logprobs(GPT2, TOKENIZER, WORDS, by=BY)["logprob"]
    order = np.random.default_rng(0).permutation(len(WORDS))
    places = [BY[:i].count(BY[i]) for i in range(len(WORDS))]
    shuffled = word_logprobs(
        GPT2,
        TOKENIZER,
        [WORDS[i] for i in order],
        by=[f"text {BY[i]}" for i in order],
        word_n=[places[i] for i in order],
    )
    np.testing.assert_array_equal(shuffled["logprob"], wanted[order])
    turn = [i for _, i in sorted(zip(places, range(len(WORDS)), strict=True))]  # first words first
    np.testing.assert_array_equal(
        word_logprobs(GPT2, TOKENIZER, [WORDS[i] for i in turn], by=[BY[i] for i in turn])["logprob"], wanted[turn]
    )


def test_missing_words_are_left_out() -> None:
    words = ["The", None, "apple", "", "doesn't", float("nan"), "fall", "far"]
    by = [1, 1, 1, 1, 1, 1, 1, None]
    found = word_logprobs(GPT2, TOKENIZER, words, by=by)
    there = [0, 2, 4, 6]
    wanted = word_logprobs(GPT2, TOKENIZER, ["The", "apple", "doesn't", "fall"])
    for name, values in found.items():
        np.testing.assert_array_equal(values[there], wanted[name])
        rest = [values[i] for i in (1, 3, 5, 7)]
        assert rest == [0] * 4 if name == "tokens" else np.isnan(rest).all()
    nothing = word_logprobs(GPT2, TOKENIZER, [])
    assert {name: len(values) for name, values in nothing.items()} == dict.fromkeys(found, 0)


def test_a_context_comes_before_the_words_and_is_not_scored() -> None:
    words = ["fall", "far", "The", "tree"]
    found = word_logprobs(GPT2, TOKENIZER, words, by=[1, 1, 2, 2], context=["The apple doesn't"] * 2 + [None, ""])
    wanted = plainly(GPT2, ["The apple doesn't", " fall", " far"])[0][1:] + plainly(GPT2, ["The", " tree"])[0]
    assert close(found["logprob"], wanted)
    for_all = word_logprobs(GPT2, TOKENIZER, words, by=[1, 1, 2, 2], context="It's")
    assert not np.isnan(for_all["logprob"]).any()
    with pytest.raises(ValueError, match=r"text 1 have different contexts: a text has one"):
        word_logprobs(GPT2, TOKENIZER, words, by=[1, 1, 2, 2], context=["a", "b", "c", "c"])
    with pytest.raises(ValueError, match=r"different contexts: pass by, or use target_logprobs\(\)"):
        word_logprobs(GPT2, TOKENIZER, words, context=list("abcd"))


def test_tokens_that_are_ignored_add_nothing() -> None:
    words = ['"The', "apple's", "core", "is", "nothing,", "is", "it", "?"]
    plain = word_logprobs(GPT2, TOKENIZER, words)
    bare = word_logprobs(GPT2, TOKENIZER, words, ignore_regex=r"^[^\w\s]$")
    text = " ".join(words)
    _, matrix = logprob_matrix(GPT2, TOKENIZER, [text])
    ids, texts = TOKENIZER.encode(text).ids, [TOKENIZER.decode([id]) for id in TOKENIZER.encode(text).ids]
    [comma] = [i for i, token in enumerate(texts) if token == ","]
    assert math.isnan(plain["logprob"][0])
    assert close(bare["logprob"][0], sum(matrix[i, ids[i]] for i in range(1, texts.index(" apple"))))
    assert close(bare["logprob"][4], plain["logprob"][4] - matrix[comma, ids[comma]])
    assert close(bare["logprob"][[1, 2, 3, 5, 6]], plain["logprob"][[1, 2, 3, 5, 6]])
    with pytest.raises(ValueError, match=r"it has no \[\[:punct:\]\]"):
        word_logprobs(GPT2, TOKENIZER, words, ignore_regex="^[[:punct:]]$")
    with pytest.raises(ValueError, match="is no regular expression"):
        word_logprobs(GPT2, TOKENIZER, words, ignore_regex="(")


def test_a_token_for_the_beginning_predicts_first_words() -> None:
    found = word_logprobs(GPT2, TOKENIZER, WORDS, by=BY, bos=True)
    wanted = [plainly(GPT2, spaced(text), before=(0,))[0] for text in SENTENCES]
    assert close(found["logprob"], list(itertools.chain.from_iterable(wanted)))
    written = word_logprobs(GPT2, TOKENIZER, ["<|endoftext|>The", "apple"])["logprob"]
    assert close(written, word_logprobs(GPT2, TOKENIZER, ["The", "apple"], bos=True)["logprob"])
    assert close(target_logprobs(GPT2, TOKENIZER, [None], ["The"], bos=True)["logprob"], written[:1])
    with pytest.raises(ValueError, match=r"bos=True: this model's config\.json has no bos_token_id"):
        word_logprobs(MODELS["lstm"], TOKENIZER, ["a"], bos=True)


def test_words_without_spaces_between_them() -> None:
    found = word_logprobs(GPT2, TOKENIZER, ["The", " apple", "'s", " core", "."], sep="")
    assert close(found["logprob"], plainly(GPT2, ["The", " apple", "'s", " core", "."])[0])
    with pytest.warns(
        UserWarning, match=r"3 words have no number, as a token is a part of two of them, such as of ' ' and 'rea'"
    ):
        found = word_logprobs(GPT2, TOKENIZER, ["He", " ", "rea", "lizes", " some"], sep="")
    assert np.isnan(found["logprob"]).tolist() == [True, True, True, True, False]


def test_characters_without_a_token_are_warned_of() -> None:
    tokenizer = characters("abc ")
    model = lstm(vocab_size=4, embedding_size=8, hidden_size=8).eval()
    with pytest.warns(UserWarning, match="not in the tokenizer's vocabulary, and left out: 'x'"):
        found = word_logprobs(model, tokenizer, ["ab", "x", "cxa"])
    assert found["tokens"].tolist() == [2, 1, 3]  # with the spaces


def test_characters_without_a_token_in_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning has those of all batches."""
    monkeypatch.setattr(tokens, "BATCH", 2)
    model = lstm(vocab_size=4, embedding_size=8, hidden_size=8).eval()
    with pytest.warns(UserWarning, match="left out: 'x' 'y'") as heard:
        next_tokens(model, characters("abc "), ["ax", "b", "c", "ya", "a"], 1)
    assert len(heard) == 1


def test_an_encoder_decoder_answers() -> None:
    torch.manual_seed(0)
    model = t5(vocab_size=V, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4).eval()
    contexts = ["The apple", "The apple", "It"]
    found = target_logprobs(model, TOKENIZER, contexts, ["tree", "book by", None])
    ids = [TOKENIZER.encode(text).ids for text in ("The apple", "tree", "book by")]
    wanted = [float(scores.sum()) for scores in score(model, [ids[0]] * 2, targets=ids[1:])]
    assert close(found["logprob"], [*wanted, math.nan])
    assert next_tokens(model, TOKENIZER, contexts, 1)["id"].tolist() == [
        id for ids in generate(model, [TOKENIZER.encode(text).ids for text in contexts], 1, temperature=0) for id in ids
    ]
    for call in (lambda: word_logprobs(model, TOKENIZER, ["a"]), lambda: logprob_matrix(model, TOKENIZER, "a")):
        with pytest.raises(
            ValueError, match=r"this model predicts the answer to a text.*target_logprobs\(\) takes both"
        ):
            call()


def test_scores_of_tokens(model) -> None:
    """As `score`, and entropies; what a target follows is not scored."""
    ids = [TOKENIZER.encode(text).ids for text in (SENTENCES[3], "", "The apple")]
    found = list(token_scores(model, ids))
    wanted = score(model, [each for each in ids if each])
    assert [len(logprobs) for logprobs, _ in found] == [len(ids[0]) - 1, 0, len(ids[2]) - 1]
    assert close(found[0][0], wanted[0])
    assert close(found[2][0], wanted[1])
    after = [logprobs_after(model, ids[0][:place]) for place in range(1, len(ids[0]))]
    assert close(found[0][1], [-(each.exp() * each).sum() / math.log(2) for each in after])
    [targets] = token_scores(model, [ids[0][:4]], [ids[0][4:]])
    for values, whole in zip(targets, found[0], strict=True):
        assert close(values, whole[3:])


def test_scores_of_answers() -> None:
    torch.manual_seed(0)
    model = t5(vocab_size=V, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4).eval()
    texts, targets = [[5, 6], [7], [5, 6]], [[1, 2, 3], [4], [9]]
    found = list(token_scores(model, texts, targets))
    for (logprobs, entropies), wanted in zip(found, score(model, texts, targets=targets), strict=True):
        assert close(logprobs, wanted)
        assert len(entropies) == len(wanted)
        assert (entropies > 0).all()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each reading has."""
    counts: list[int] = []

    def counting(model):
        runner = runner_of(model)
        read = runner.forward

        def counted(texts, *args, **keywords):
            counts.append(sum(map(len, texts.values())))
            return read(texts, *args, **keywords)

        runner.forward = counted
        return runner

    runner_of = predictions.runner_of
    monkeypatch.setattr(predictions, "runner_of", counting)
    return counts


def test_what_texts_begin_with_is_read_once(readings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = gpt2(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4).eval()
    context, vocabulary = SENTENCES[0], ["tree", "apple", "book", "cover", "core", "else", "something"] * 30
    whole = target_logprobs(model, TOKENIZER, [context] * 210, vocabulary)["logprob"]
    length = len(TOKENIZER.encode(context).ids)
    tails = {tuple(TOKENIZER.encode(" " + word).ids[:-1]) for word in vocabulary}
    assert sum(readings) <= length + sum(map(len, tails))
    assert len(readings) <= 4
    words = context.split()
    before = [" ".join(words[:i]) for i in range(1, len(words))]
    readings.clear()
    each = target_logprobs(model, TOKENIZER, before, words[1:])["logprob"]
    assert sum(readings) == length - 1
    assert close(each, word_logprobs(model, TOKENIZER, words)["logprob"][1:])
    # The same in many small blocks, each with the end of the last one's beginning.
    monkeypatch.setattr(predictions, "ROWS", 2)
    readings.clear()
    np.testing.assert_array_equal(target_logprobs(model, TOKENIZER, [context] * 210, vocabulary)["logprob"], whole)
    assert sum(readings) <= length + 2 * sum(map(len, tails))
    assert close(word_logprobs(model, TOKENIZER, WORDS, by=BY)["logprob"][:8], [math.nan, *each])


def test_texts_are_read_together(readings: list[int]) -> None:
    heard = []
    words = np.random.default_rng(0).choice(WORDS, 500)
    word_logprobs(GPT2, TOKENIZER, words, by=np.arange(500) // 5, progress=lambda *each: heard.append(each))
    assert max(readings) > 128
    assert heard[-1][0] == heard[-1][1]
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(heard))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: word_logprobs("gpt2", TOKENIZER, ["a"]), r"word_logprobs\(\) takes a model, not its name"),
        (lambda: word_logprobs(GPT2, "gpt2", ["a"]), r"tokenizer must be a tokenizers\.Tokenizer, not str"),
        (lambda: word_logprobs(GPT2, TOKENIZER, "a text"), "words must be a list of strings, not 'a text'"),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a", 5]), "words must be strings, but number 1 is 5"),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a"], by=[1, 2]), "by has 2 values for 1 words"),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a"], by="item"), "by must be a list, with a value for each word"),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a"], word_n=[None]), "word_n has missing values"),
        (lambda: target_logprobs(GPT2, TOKENIZER, ["a"], []), "0 targets for 1 contexts"),
        (lambda: target_logprobs(GPT2, TOKENIZER, ["a"], [" b"]), "^' b' starts with white space, and sep is a"),
        (lambda: target_logprobs(GPT2, TOKENIZER, ["a\n"], ["b"]), r"^'a\\n' ends with white space, and sep is"),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["a ", "b"]), "'a ' ends with white space.*set sep to an empty"),
        (lambda: word_logprobs(GPT2, TOKENIZER, ["b"], context="a "), "'a ' ends with white space"),
        (lambda: next_tokens(GPT2, TOKENIZER, ["a", ""]), "prompt 1 is empty"),
        (lambda: next_tokens(GPT2, TOKENIZER, ["a"], 0), "n must be a whole number of 1 or more"),
        (lambda: word_logprobs(lstm(vocab_size=3), TOKENIZER, ["the"]), "the tokenizer does not match the model"),
        (lambda: logprob_matrix(GPT2, TOKENIZER, "a", out="a.csv"), r"out must name a \.npy file"),
    ],
)  # fmt: skip
def test_mistakes(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_matrix_that_fails_leaves_no_file(tmp_path: Path) -> None:
    model = gpt2(vocab_size=V, n_positions=CONTEXT, n_embd=8, n_layer=1, n_head=1).eval()
    torch.nn.init.constant_(model.ln_f.weight, math.nan)
    with pytest.raises(ValueError, match="logits are NaN"):
        logprob_matrix(model, TOKENIZER, "The apple", out=tmp_path / "a.npy")
    assert not list(tmp_path.iterdir())


def test_masked_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 10}))
    with pytest.raises(ValueError, match="model_type is 'bert', .* it is a masked model, which fills in blanks"):
        minhub_py.from_pretrained(tmp_path)


def test_tokenizers_that_begin_texts_and_end_them() -> None:
    """As Llama's and T5's: what they put around a text is part of no word."""
    from minhub_py.checkpoints.tokenizers.tokenizer import Convention, surround

    tokenizer = byte_level_bpe(
        TOKENIZER.get_vocab(), [tuple(pair) for pair in json.loads(TOKENIZER.to_str())["model"]["merges"]]
    )
    tokenizer.add_special_tokens(["<|endoftext|>"])
    surround(tokenizer, {}, Convention("<|endoftext|>", "<|endoftext|>", add_bos=True, add_eos=True))
    wanted = word_logprobs(GPT2, TOKENIZER, WORDS, by=BY, bos=True)
    for bos in (None, True):
        found = word_logprobs(GPT2, tokenizer, WORDS, by=BY, bos=bos)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values)
    assert math.isnan(word_logprobs(GPT2, tokenizer, WORDS, by=BY, bos=False)["logprob"][0])


# What pangoling 1.0.3 gives (with transformers 4.57 and reticulate 1.28) for the model of the test below, saved beside
# GPT-2's tokenizer: causal_words_pred() of words that are joined by spaces here, with these arguments, and
# causal_targets_pred(). They are the cases of its own tests and help pages.
NA = math.nan
PROVERB = "The apple doesn't fall far from the tree."
MARKS = '"Well," she said - "it\'s (almost) done"; isn\'t it ? Yes: 3.14, 1,000 and $5!'
MIXED = "far judge book the fall its tree. doesn't by a apple Don't The cover. from"  # two sentences
MIXED_BY, MIXED_N = [1, 2, 2, 1, 1, 2, 1, 1, 2, 2, 1, 2, 1, 2, 1], [5, 10, 12, 7, 4, 14, 8, 3, 13, 11, 2, 9, 1, 15, 6]
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


def test_white_space_is_allowed_where_no_space_joins_it() -> None:
    """At the ends of a text, with another separator, and for an encoder-decoder, which joins nothing."""
    edges = word_logprobs(GPT2, TOKENIZER, [" far", "tree "])
    assert edges["tokens"].tolist() == [len(TOKENIZER.encode(" far").ids), len(TOKENIZER.encode(" tree ").ids)]
    joined = target_logprobs(GPT2, TOKENIZER, ["The"], ["tree"])
    apart = target_logprobs(GPT2, TOKENIZER, ["The"], [" tree"], sep="")
    np.testing.assert_array_equal(joined["logprob"], apart["logprob"])
    target_logprobs(t5(vocab_size=GPT2.config.vocab_size, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2).eval(),
                    TOKENIZER, ["The "], [" tree"])  # fmt: skip


def test_the_numbers_are_those_of_pangoling() -> None:
    tokenizer = read_tokenizer(real_data("gpt2-tokenizer"))
    model = gpt2(n_embd=64, n_layer=2, n_head=4).eval()
    torch.manual_seed(1)
    for _, weight in sorted(model.named_parameters()):
        torch.nn.init.normal_(weight, std=0.15)
    for text, arguments, wanted in PANGOLING:
        assert close(word_logprobs(model, tokenizer, text.split(), **arguments)["logprob"], wanted)
    joined = word_logprobs(model, tokenizer, ["The", " apple", "'s", " core", "."], sep="")
    assert close(joined["logprob"], [NA, -10.85723, -11.02919, -11.31556, -10.91998])
    contexts = ["Don't judge a book by its", "The apple doesn't fall far from the"]
    found = target_logprobs(model, tokenizer, contexts, ["cover.", "tree"])
    assert close(found["logprob"], [-21.70203, -10.43256])
