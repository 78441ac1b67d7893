"""Labels by `annotate()` compared with a loop over transformers, as in lm-eval: SmolLM2-135M's
shape, random weights.

    python benchmarks/annotate.py [TEXTS] [SAMPLE]

Both score the same token IDs, with four labels for each text; as with SmolLM2's tokenizer, three
labels are one token and the last is two. The loop evaluates equal inputs (prompt and label without
its last token) once, as lm-eval 0.4 does, in padded batches of eight, sorted by length; it takes
log_softmax and gather of the logits of the labels only. Both take turns on parts of the texts:
`annotate()` on all of a part, the loop on SAMPLE random texts of it (default: all). Prints seconds
and processor seconds per text, their ratios, and the largest difference of probabilities.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import announce
from transformers import AutoModelForCausalLM

from minhub_py import annotate, from_pretrained, llama, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

LABELS = ["positive", "negative", "neutral", "mixed feelings"]
WORDS = (
    "the film was long but I liked its music and the actors played well though the end came too"
    " soon for me".split()
)
INSTRUCTION = (
    "Read the review of a film. "
    + "Decide how the author liked it, and answer with one label. " * 2
)
BATCH, PART, THREADS = 8, 40, int(os.environ.get("OMP_NUM_THREADS", "1"))


def theirs(model: Any, pairs: list[tuple[list[int], list[int]]]) -> list[float]:
    """Each answer's log-probability after its prompt."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, (prompt, answer) in enumerate(pairs):
        groups.setdefault((*prompt, *answer[:-1]), []).append(number)
    inputs = sorted(groups, key=len, reverse=True)
    results = [0.0] * len(pairs)
    for first in range(0, len(inputs), BATCH):
        rows = inputs[first : first + BATCH]
        ids = torch.tensor([[*row, *[0] * (len(rows[0]) - len(row))] for row in rows])
        logits = model(ids).logits
        for row, text in enumerate(rows):
            for number in groups[text]:
                prompt, answer = pairs[number]
                logprobs = logits[row, len(prompt) - 1 : len(text)].log_softmax(dim=-1)
                results[number] = float(logprobs.gather(1, torch.tensor(answer)[:, None]).sum())
    return results


def timed(call: Callable[[], Any], seconds: list[float]) -> Any:
    """The result of a call. Adds its seconds and processor seconds to `seconds`."""
    began = time.perf_counter(), time.process_time()
    result = call()
    seconds[0] += time.perf_counter() - began[0]
    seconds[1] += time.process_time() - began[1]
    return result


@torch.inference_mode()
def main() -> None:
    """Create the model and the texts, and measure."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    count, sample = (
        int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 80), (2, PART))
    )
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(20, 60))) for _ in range(count)]
    answered = [f"Label: {label}" for label in LABELS] * 3
    tokenizer = train_byte_level_bpe([*texts, *[INSTRUCTION] * 3, *answered], 49152)
    answers = [tokenizer.encode(f" {label}").ids for label in LABELS]
    assert [len(answer) for answer in answers] == [1, 1, 1, 2]
    with tempfile.TemporaryDirectory() as folder:
        network = llama(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
        )
        save_pretrained(network, folder)
        model, reference = (
            from_pretrained(folder, device="cpu"),
            AutoModelForCausalLM.from_pretrained(folder).eval(),
        )
    own, reference_times = [0.0, 0.0], [0.0, 0.0]
    worst, compared, tokens = 0.0, 0, 0
    for first in range(0, count, PART):
        part = texts[first : first + PART]
        ours = timed(
            lambda part=part: annotate(model, tokenizer, part, LABELS, instruction=INSTRUCTION), own
        )
        chosen = sorted(chance.sample(range(len(part)), min(sample, len(part))))
        prompts = [
            tokenizer.encode(f"{INSTRUCTION.strip()}\n\nText: {part[i]}\nLabel:").ids
            for i in chosen
        ]
        pairs = [(prompt, answer) for prompt in prompts for answer in answers]
        values = timed(lambda pairs=pairs: theirs(reference, pairs), reference_times)
        probs = torch.tensor(values).view(-1, len(LABELS)).softmax(dim=1)
        actual = torch.tensor([[ours[f"prob_{label}"][i] for label in LABELS] for i in chosen])
        worst = max(worst, float((probs - actual).abs().max()))
        compared, tokens = compared + len(chosen), tokens + sum(map(len, prompts))
    print(
        f"{count} texts x {len(LABELS)} labels, {THREADS} threads; the loop on {compared} of them,"
        f" with prompts of {tokens / compared:.0f} tokens; difference {worst:.1e}"
    )
    for kind, actual, loop in zip(
        ("seconds", "processor seconds"), own, reference_times, strict=True
    ):
        ratio = (loop / compared) / (actual / count)
        print(
            f"{kind} per text: minhub_py {actual / count:.3f}, transformers {loop / compared:.3f}:"
            f" {ratio:.1f} times"
        )


if __name__ == "__main__":
    announce()
    main()
