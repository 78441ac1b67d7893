"""Characters -> LSTM: train a language model with a training loop written out in full.

The idea. A language model gives the probability of the next character, given all characters before
it. An LSTM reads one character at a time and summarizes the past in a state of fixed size, h and c.
It is trained with *teacher forcing*: the next input is always the true character, not the predicted
one, and the loss is -log of the probability of this character. Backpropagation through a whole book
would take too much memory, so the text is split into windows: the state is carried from window to
window, but its gradient is not. This is *truncated backpropagation through time*.

Sources. Hochreiter & Schmidhuber (1997) for the LSTM; Williams & Zipser (1989) for teacher forcing;
Williams & Peng (1990) for the truncation; Sutskever, Martens & Hinton (2011) and Graves (2013) for
generating text by characters.

    python examples/1_lstm_characters.py input.txt

Output. The loss falls from log(vocabulary), the loss of uniform guessing, and samples begin to look
like words. Then the same model is trained with a zero state at the start of each window. Its loss
is higher, and a table shows where: at a window's first characters, where it has no context.
Finally, `minhub_py.train` trains the model in one call.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py import generate, lstm, train
from minhub_py.checkpoints.tokenizers.tokenizer import characters

ROWS = 32  # parallel streams of text
EMBEDDING = 32
RATE = 3e-3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument(
        "--window", type=int, default=32, help="number of characters to backpropagate through"
    )
    parser.add_argument("--hidden", type=int, default=128, help="size of h and of c")
    args = parser.parse_args()

    text = args.text.read_text(encoding="utf-8")
    tokenizer = characters(sorted(set(text)))
    ids = torch.tensor(tokenizer.encode(text).ids)
    training, held_out = ids.tensor_split([int(len(ids) * 0.9)])
    if len(held_out) // ROWS <= args.window:
        parser.error(
            f"{args.text} is too short: give more than {ROWS * 10 * (args.window + 1):,} characters"
        )
    size = tokenizer.get_vocab_size()
    uniform = f"log({size}) = {math.log(size):.3f} nats"
    print(
        f"{len(ids):,} characters, {size} different ones; uniform guessing has a loss of {uniform}"
    )

    losses = {}  # at each position of a window
    for carry in (True, False):
        print(
            "\nThe state is"
            f" {'carried from window to window' if carry else 'zero at the start of each window'}:"
        )
        torch.manual_seed(1)
        model = lstm(
            vocab_size=size, embedding_size=EMBEDDING, hidden_size=args.hidden, num_layers=1
        )
        fit(model, streams(training), streams(held_out), args.steps, args.window, carry, tokenizer)
        losses[carry] = evaluate(model, streams(held_out), args.window, carry)

    print("\nHeld-out nats per character, by position in the window:")
    positions = sorted({2**i for i in range(args.window.bit_length())} | {args.window})
    for name, row in (("position", None), ("carried", losses[True]), ("zero", losses[False])):
        cells = [
            f"{position:6}" if row is None else f"{row[position - 1]:6.3f}"
            for position in positions
        ]
        print(f"  {name:8}", *cells, "   all" if row is None else f"{row.mean():6.3f}")

    gain = losses[False].mean() - losses[True].mean()
    print(f"Carrying the state gains {gain:.3f} nats per character.")

    # The defaults of `train` are for longer runs, with warm-up, cosine schedule and weight decay:
    # disable these.
    plain = {
        "learning_rate": RATE,
        "warm_up": 0,
        "floor": 1.0,
        "beta2": 0.999,
        "weight_decay": 0.0,
        "dropout": 0.0,
    }
    sizes = {
        "layers": 1,
        "width": args.hidden,
        "context": args.window,
        "config": {"embedding_size": EMBEDDING},
    }
    with tempfile.TemporaryDirectory() as folder:  # use a permanent folder to keep the run
        run = train(
            args.text,
            f"{folder}/run",
            family="lstm",
            batch=ROWS,
            steps=args.steps,
            **sizes,
            **plain,
        )
        print(f"\nThe same by train(..., family='lstm'): {run.best_loss:.3f} nats")


def streams(ids: Tensor) -> Tensor:
    """The text as ROWS parallel streams, (ROWS, length), so that each window continues the previous
    one.
    """
    length = len(ids) // ROWS
    return ids[: ROWS * length].view(ROWS, length)


def fit(
    model: Any,
    text: Tensor,
    held_out: Tensor,
    steps: int,
    window: int,
    carry: bool,
    tokenizer: Tokenizer,
) -> None:
    """The training loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    start, losses = 0, []
    state = model.new_cache(ROWS, window)  # h and c, zero
    for step in range(steps + 1):
        if step % max(1, steps // 4) == 0:
            mean = f"{sum(losses) / len(losses):6.3f}" if losses else "      "
            loss = evaluate(model, held_out, window, carry).mean()
            [new] = generate(
                model.eval(), [tokenizer.encode("\n").ids or [0]], 50, temperature=0.8, seed=1
            )
            print(
                f"  step {step:4}  training {mean}  held out {loss:6.3f} "
                f" {tokenizer.decode(new)!r}",
                flush=True,
            )
            losses = []
        if step == steps:
            return
        if start + window >= text.size(1):  # at the end of the streams, restart with a zero state
            start, state = 0, model.new_cache(ROWS, window)
        if not carry:
            state = model.new_cache(ROWS, window)
        rows = text[:, start : start + window + 1]
        start += window

        model.train()
        # teacher forcing; updates `state` in place and detaches it
        logits = model(rows[:, :-1], state)
        # targets are the next characters
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        # the gradient explodes in rare steps
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())


@torch.no_grad()
def evaluate(model: Any, text: Tensor, window: int, carry: bool) -> Tensor:
    """The mean loss at each position of a window, (window,)."""
    model.eval()
    state, losses = model.new_cache(ROWS, window), []
    for start in range(0, text.size(1) - window, window):
        if not carry:
            state = model.new_cache(ROWS, window)
        rows = text[:, start : start + window + 1]
        losses.append(
            F.cross_entropy(
                model(rows[:, :-1], state).transpose(1, 2), rows[:, 1:], reduction="none"
            )
        )
    return torch.cat(losses).mean(dim=0)


if __name__ == "__main__":
    main()
