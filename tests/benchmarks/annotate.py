"""Labels by `annotate()` beside a loop as in lm-eval over transformers: SmolLM2-135M's shape, random weights.

    python tests/benchmarks/annotate.py [TEXTS]

Both score the same token IDs: TEXTS texts with four labels each. The loop evaluates the pairs of prompt and label,
sorted by length, in padded batches of eight, keeps the logits of
the labels only, and takes log_softmax and gather. Both take
turns on quarters of the texts. Prints seconds, the ratio, and the largest difference of probabilities.
"""

import random
import sys
import tempfile
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from minhub_py import annotate, from_pretrained, llama, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

LABELS = ["positive", "negative", "neutral", "mixed feelings"]
WORDS = "the film was long but I liked its music and the actors played well though the end came too soon for me".split()
INSTRUCTION = "Read the review of a film. " + "Decide how the author liked it, and answer with one label. " * 2
BATCH, ROUNDS, THREADS = 8, 4, 2


def theirs(model: Any, pairs: list[tuple[list[int], list[int]]]) -> list[float]:
    """The log-probability of each answer after its prompt."""
    order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
    found = [0.0] * len(pairs)
    for first in range(0, len(order), BATCH):
        rows = order[first : first + BATCH]
        texts = [[*pairs[i][0], *pairs[i][1]][:-1] for i in rows]
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
        logits = model(ids).logits
        for row, i in enumerate(rows):
            start, answer = len(pairs[i][0]) - 1, pairs[i][1]
            logprobs = logits[row, start : start + len(answer)].log_softmax(dim=-1)
            found[i] = float(logprobs.gather(1, torch.tensor(answer)[:, None]).sum())
    return found


@torch.inference_mode()
def main() -> None:
    """Create the model and the texts, and measure."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 48
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(20, 60))) for _ in range(count)]
    tokenizer = train_byte_level_bpe([*texts, INSTRUCTION, *LABELS], 49152)
    with tempfile.TemporaryDirectory() as folder:
        network = llama(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
        )  # fmt: skip
        save_pretrained(network, folder)
        model, reference = from_pretrained(folder, device="cpu"), AutoModelForCausalLM.from_pretrained(folder).eval()
    seconds, worst = [0.0, 0.0], 0.0
    for part in range(ROUNDS):
        batch = texts[part::ROUNDS]
        began = time.perf_counter()
        ours = annotate(model, tokenizer, batch, LABELS, instruction=INSTRUCTION)
        seconds[0] += time.perf_counter() - began
        began = time.perf_counter()
        prompts = [tokenizer.encode(f"{INSTRUCTION.strip()}\n\nText: {text}\nLabel:").ids for text in batch]
        answers = [tokenizer.encode(f" {label}").ids for label in LABELS]
        values = theirs(reference, [(prompt, answer) for prompt in prompts for answer in answers])
        seconds[1] += time.perf_counter() - began
        probs = torch.tensor(values).view(-1, len(LABELS)).softmax(dim=1)
        mine = torch.tensor([[ours[f"prob_{label}"][i] for label in LABELS] for i in range(len(batch))])
        worst = max(worst, float((probs - mine).abs().max()))
    print(f"{count} texts x {len(LABELS)} labels, prompts of about {len(prompts[0])} tokens: "
          f"minhub_py {seconds[0]:.1f} s, transformers {seconds[1]:.1f} s: "
          f"{seconds[1] / seconds[0]:.1f} times; difference {worst:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
