"""Train a small character model on one text file: the plain loop that made the built-in models.

    python examples/train_shakespeare.py input.txt gpt2 out/
    minhub generate out/ "ROMEO:"

The text of the built-ins is the 1.1 MB of Shakespeare's plays known as "tiny shakespeare" (char-rnn, A. Karpathy).
The first 90% train, the last 10% are held out. On one core: GPT-2 and GPT-Neo half an hour each, the LSTM a quarter.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from minhub_py import gpt2, gptneo, lstm, save_pretrained
from minhub_py.tokenizer import characters

BATCH, CONTEXT = 16, 256
NO_END = {"bos_token_id": None, "eos_token_id": None}  # a character model has no special ids
FAMILIES = {
    "gpt2": lambda size: gpt2(
        vocab_size=size, n_positions=CONTEXT, n_embd=192, n_layer=4, n_head=6,
        embd_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.0, **NO_END,
    ),
    "gptneo": lambda size: gptneo(
        vocab_size=size, max_position_embeddings=CONTEXT, hidden_size=192, num_layers=4, num_heads=6, window_size=32,
        embed_dropout=0.1, resid_dropout=0.1, **NO_END,
    ),
    "lstm": lambda size: lstm(vocab_size=size, embedding_size=64, hidden_size=384, num_layers=2, dropout=0.2),
}  # fmt: skip
STEPS = {"gpt2": 4000, "gptneo": 4000, "lstm": 6000}
LEARNING_RATE = {"gpt2": 1.5e-3, "gptneo": 1.5e-3, "lstm": 3e-3}
WEIGHT_DECAY = {"gpt2": 0.1, "gptneo": 0.1, "lstm": 0.01}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, help="default: as the built-in models were trained")
    parser.add_argument("--every", type=int, default=250, help="steps between two looks at the held-out text")
    args = parser.parse_args()
    steps = STEPS[args.family] if args.steps is None else args.steps

    torch.manual_seed(1337)
    text = args.text.read_text(encoding="utf-8")
    tokenizer = characters(sorted(set(text)))
    ids = torch.tensor(tokenizer.encode(text).ids)
    train, held_out = ids.tensor_split([int(len(ids) * 0.9)])
    if len(held_out) <= CONTEXT:
        parser.error(f"{args.text} is too short: a tenth of it must be longer than {CONTEXT} characters")
    model = FAMILIES[args.family](tokenizer.get_vocab_size())

    decayed = [p for p in model.parameters() if p.dim() >= 2]  # matrices, not biases and gains
    others = [p for p in model.parameters() if p.dim() < 2]
    peak = LEARNING_RATE[args.family]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY[args.family]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.99), fused=True)

    best, started = math.inf, time.time()
    for step in range(steps + 1):
        if step % args.every == 0 or step == steps:
            loss = evaluate(model, held_out)
            print(f"step {step:5}  held-out loss {loss:.4f}  {time.time() - started:.0f} s", flush=True)
            if loss < best:
                best = loss
                save_pretrained(model, args.out, tokenizer)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        starts = torch.randint(len(train) - CONTEXT - 1, (BATCH,))
        optimizer.zero_grad()
        loss_of(model, torch.stack([train[i : i + CONTEXT + 1] for i in starts])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Up in 100 steps, then down a cosine to a tenth."""
    warm_up = min(100, steps // 2)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1))))


def loss_of(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood in nats per character; rows (B, T + 1) are inputs and, one further, targets."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(rows[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """The loss over all of `ids`, in pieces of one context."""
    model.eval()
    count = (len(ids) - 1) // CONTEXT
    rows = torch.stack([ids[i * CONTEXT : (i + 1) * CONTEXT + 1] for i in range(count)])
    total = sum(loss_of(model, batch).item() * len(batch) for batch in rows.split(32))
    model.train()
    return total / count


if __name__ == "__main__":
    main()
