"""Surprisal and reading times: each word's surprisal, and how much of the variance of reading
times it explains.

The idea. People read less expected words more slowly (Hale, 2001; Levy, 2008; Smith & Levy, 2013).
A word's surprisal is -log2 of its probability given the words before it, in bits: the sum over
its tokens. This example simulates 30 readers whose times follow a known rule, 4 ms per letter and 5
ms per bit of surprisal, with noise and readers of different speed. Least squares with and without
surprisal then shows whether the analysis recovers the rule, beyond word length, which correlates
with surprisal.

    python examples/reading_times.py
    python examples/reading_times.py --model gpt2 --readers 100

Output. The surprisal of each word of pairs of sentences that differ in one word; the coefficients
with standard errors; and how much of the variance surprisal explains beyond length and reader.
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
PER_LETTER, PER_BIT = 4.0, 5.0  # the rule, in ms


def least_squares(
    columns: list[np.ndarray], times: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Coefficients of the columns, their standard errors, and the residual sum of squares."""
    X = np.column_stack(columns)
    coefficients, *_ = np.linalg.lstsq(X, times, rcond=None)
    residual = float(((times - X @ coefficients) ** 2).sum())
    variance = residual / (len(times) - X.shape[1])
    return coefficients, np.sqrt(variance * np.diag(np.linalg.inv(X.T @ X))), residual


def main() -> None:
    """Print surprisals, and fit simulated reading times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="minhub/shakespeare-gpt2")
    parser.add_argument("--readers", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    model, tokenizer = from_pretrained(options.model), tokenizer_from_pretrained(options.model)

    # One word per row, as in data of reading studies; `by` is each word's sentence.
    rows = [(item, word) for item, sentence in enumerate(SENTENCES) for word in sentence.split()]
    items, words = [item for item, _ in rows], [word for _, word in rows]
    surprisal = word_logprobs(model, tokenizer, words, by=items)["surprisal"]
    for item in range(len(SENTENCES)):
        print(
            "  ".join(
                f"{words[row]} {surprisal[row]:.1f}"
                for row in range(len(words))
                if items[row] == item
            )
        )

    # The last word after a context has the same surprisal.
    targets = ["dead.", "come.", "green."]
    ends = target_logprobs(model, tokenizer, ["My lord, the king is"] * 3, targets)
    print(
        "\nMy lord, the king is … ",
        "  ".join(f"{w} {b:.1f}" for w, b in zip(targets, ends["surprisal"], strict=True)),
    )

    # A sentence's first word has no context, and NaN as its surprisal.
    scored = ~np.isnan(surprisal)
    rng = np.random.default_rng(options.seed)
    bits = np.tile(surprisal[scored], options.readers)
    letters = np.tile(np.array([float(len(word)) for word in words])[scored], options.readers)
    reader = np.repeat(np.eye(options.readers), scored.sum(), axis=0)
    speed = reader @ rng.normal(220, 30, options.readers)
    times = speed + PER_LETTER * letters + PER_BIT * bits + rng.normal(0, 45, len(bits))

    _, _, baseline = least_squares([reader, letters], times)
    coefficients, errors, residual = least_squares([reader, letters, bits], times)
    print(f"\n{len(times)} reading times; ms per")
    for name, rule, value, error in zip(
        ("letter", "bit"), (PER_LETTER, PER_BIT), coefficients[-2:], errors[-2:], strict=True
    ):
        print(f"  {name:<7} {value:5.2f} ± {error:.2f}  (rule: {rule:.2f})")
    print(
        f"surprisal explains {1 - residual / baseline:.1%} of the variance beyond length and reader"
    )


if __name__ == "__main__":
    main()
