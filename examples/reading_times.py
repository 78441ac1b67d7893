"""Surprisal and reading times: how predictable each word is, and whether that explains how long it is read.

The idea. People read a word the slower the less they expect it (Hale, 2001; Levy, 2008; Smith & Levy, 2013). The
surprisal of a word is -log2 of its probability given the words before it, in bits: the sum over its tokens. Here 30
readers are made up, whose times follow a known rule, 4 ms for each letter and 5 ms for each bit of surprisal, with
noise and readers of different speed. Least squares with and without surprisal then shows whether the analysis finds
what was put in, beyond the length of the words, which goes with it.

    python examples/reading_times.py
    python examples/reading_times.py --model gpt2 --readers 100

Output. The surprisal of each word of pairs of sentences that differ in one word; what the least squares find, with
standard errors; and how much of the variance surprisal explains beyond length and reader.
"""

import argparse

import numpy as np

from minhub_py import from_pretrained, target_logprobs, tokenizer_from_pretrained, word_logprobs

SENTENCES = [
    "My lord, the king is dead.",
    "My lord, the king is green.",
    "I will not speak with him, for he is mad.",
    "I will not speak with oxen, for he is mad.",
    "Good night, good night! The day is done.",
    "Good night, good night! The wig is done.",
    "What news from the duke, my friend?",
    "What jazz from the duke, my friend?",
]
PER_LETTER, PER_BIT = 4.0, 5.0  # ms, the rule


def least_squares(columns: list[np.ndarray], times: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients of the columns, their standard errors, and the sum of squares that is left."""
    X = np.column_stack(columns)
    coefficients, *_ = np.linalg.lstsq(X, times, rcond=None)
    rest = float(((times - X @ coefficients) ** 2).sum())
    variance = rest / (len(times) - X.shape[1])
    return coefficients, np.sqrt(variance * np.diag(np.linalg.inv(X.T @ X))), rest


def main() -> None:
    """Print surprisals, and fit the times of readers that are made up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minhub/shakespeare-gpt2")
    parser.add_argument("--readers", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    model, tokenizer = from_pretrained(options.model), tokenizer_from_pretrained(options.model)

    # One word a row, as reading studies have them; `by` says which sentence a word belongs to.
    rows = [(item, word) for item, sentence in enumerate(SENTENCES) for word in sentence.split()]
    items, words = [item for item, _ in rows], [word for _, word in rows]
    found = word_logprobs(model, tokenizer, words, by=items)
    for item in range(len(SENTENCES)):
        bits = [f"{word} {found['surprisal'][row]:.1f}" for row, (which, word) in enumerate(rows) if which == item]
        print("  ".join(bits))

    # Only the last word, after a context: the same numbers.
    targets = ["dead.", "come.", "green."]
    ends = target_logprobs(model, tokenizer, ["My lord, the king is"] * 3, targets)
    print(
        "\nMy lord, the king is … ", "  ".join(f"{w} {b:.1f}" for w, b in zip(targets, ends["surprisal"], strict=True))
    )

    # Nothing predicts the first word of a sentence: it is NaN.
    seen = ~np.isnan(found["surprisal"])
    chance = np.random.default_rng(options.seed)
    bits = np.tile(found["surprisal"][seen], options.readers)
    letters = np.tile([float(len(word)) for word, there in zip(words, seen, strict=True) if there], options.readers)
    reader = np.repeat(np.eye(options.readers), seen.sum(), axis=0)
    speed = reader @ chance.normal(220, 30, options.readers)
    times = speed + PER_LETTER * letters + PER_BIT * bits + chance.normal(0, 45, len(bits))

    _, _, without = least_squares([reader, letters], times)
    coefficients, errors, rest = least_squares([reader, letters, bits], times)
    print(f"\n{len(times)} reading times; ms for each")
    for name, rule, value, error in zip(
        ("letter", "bit"), (PER_LETTER, PER_BIT), coefficients[-2:], errors[-2:], strict=True
    ):
        print(f"  {name:<7} {value:5.2f} ± {error:.2f}  (the rule has {rule:.2f})")
    print(f"surprisal explains {1 - rest / without:.1%} of what length and reader leave")


if __name__ == "__main__":
    main()
