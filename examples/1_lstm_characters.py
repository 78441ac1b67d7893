"""Characters -> LSTM: a language model learnt by a loop that you can see.

The idea. A language model gives the probability of the next character, given all before it. An LSTM reads one
character at a time and keeps what it has seen in a state of fixed size, h and c. It is trained with *teacher forcing*:
whatever it would have written, its next input is the true character, and the loss is -log of the probability that it
gave to it. Gradients through a whole book would never end, so the text is read in windows: the state is carried on from
window to window, and its gradient is not. That is *truncated backpropagation through time*.

Sources. Hochreiter & Schmidhuber (1997) for the LSTM; Williams & Zipser (1989) for teacher forcing; Williams & Peng
(1990) for the truncation; Sutskever, Martens & Hinton (2011) and Graves (2013) for texts written by characters.

    python examples/1_lstm_characters.py input.txt

You see the loss fall from log(vocabulary), where nothing is known, and samples that begin to look like words. Then the
same model learns with a state of zero at the start of each window. It does worse, and a table says where: at the first
characters of a window, of which it knows no past. At the end `minhub_py.train` does the same in one call.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py import generate, lstm, train
from minhub_py.files.tokenizer import characters

ROWS = 32  # streams of text that are read side by side
EMBEDDING = 32
RATE = 3e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--window", type=int, default=32, help="characters that gradients flow back through")
    parser.add_argument("--hidden", type=int, default=128, help="size of h, and of c")
    args = parser.parse_args()

    text = args.text.read_text(encoding="utf-8")
    tokenizer = characters(sorted(set(text)))
    ids = torch.tensor(tokenizer.encode(text).ids)
    known, held_out = ids.tensor_split([int(len(ids) * 0.9)])  # what trains, and what measures
    if len(held_out) // ROWS <= args.window:
        parser.error(f"{args.text} is too short: give more than {ROWS * 10 * (args.window + 1):,} characters")
    size = tokenizer.get_vocab_size()
    unknowing = f"log({size}) = {math.log(size):.3f} nats"
    print(f"{len(ids):,} characters, {size} different ones; knowing nothing costs {unknowing}")

    places = {}  # the loss at each place in a window
    for carry in (True, False):
        print(f"\nThe state is {'carried on from window to window' if carry else 'zero at the start of each window'}:")
        torch.manual_seed(1)
        model = lstm(vocab_size=size, embedding_size=EMBEDDING, hidden_size=args.hidden, num_layers=1)
        learn(model, streams(known), streams(held_out), args.steps, args.window, carry, tokenizer)
        places[carry] = measure(model, streams(held_out), args.window, carry)

    print("\nHeld-out nats per character, by the character's place in its window:")
    chosen = sorted({2**i for i in range(args.window.bit_length())} | {args.window})
    for name, row in (("place", None), ("carried", places[True]), ("zero", places[False])):
        cells = [f"{place:6}" if row is None else f"{row[place - 1]:6.3f}" for place in chosen]
        print(f"  {name:8}", *cells, "   all" if row is None else f"{row.mean():6.3f}")

    gain = places[False].mean() - places[True].mean()
    print(f"To carry the state on is worth {gain:.3f} nats per character.")

    # Its defaults are for longer runs: they warm up, decay along a cosine, and shrink the weights. Not so here.
    plain = {"learning_rate": RATE, "warm_up": 0, "floor": 1.0, "beta2": 0.999, "weight_decay": 0.0, "dropout": 0.0}
    sizes = {"layers": 1, "width": args.hidden, "context": args.window, "config": {"embedding_size": EMBEDDING}}
    with tempfile.TemporaryDirectory() as folder:  # name a folder of your own to keep the run
        run = train(args.text, f"{folder}/run", family="lstm", batch=ROWS, steps=args.steps, **sizes, **plain)
        print(f"\nThe same by train(..., family='lstm'): {run.best_loss:.3f} nats")


def streams(ids: Tensor) -> Tensor:
    """The text cut into ROWS pieces, one below the other: each row of a window goes on where it ended before."""
    length = len(ids) // ROWS
    return ids[: ROWS * length].view(ROWS, length)


def learn(model: Any, text: Tensor, held_out: Tensor, steps: int, window: int, carry: bool, tokenizer: Any) -> None:
    """The loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    place, losses = 0, []
    state = model.new_cache(ROWS, window)  # h and c, zero
    for step in range(steps + 1):
        if step % max(1, steps // 4) == 0:
            mean = f"{sum(losses) / len(losses):6.3f}" if losses else "      "
            loss = measure(model, held_out, window, carry).mean()
            [new] = generate(model.eval(), [tokenizer.encode("\n").ids or [0]], 50, temperature=0.8, seed=1)
            print(f"  step {step:4}  training {mean}  held out {loss:6.3f}  {tokenizer.decode(new)!r}", flush=True)
            losses = []
        if step == steps:
            return
        if place + window >= text.size(1):  # the end of the streams: from the beginning, with nothing known
            place, state = 0, model.new_cache(ROWS, window)
        if not carry:
            state = model.new_cache(ROWS, window)
        rows = text[:, place : place + window + 1]
        place += window

        model.train()
        logits = model(rows[:, :-1], state)  # teacher forcing: true characters in; `state` moves on, without its graph
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())  # each should give the one that follows
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the rare step whose gradient explodes
        optimizer.step()
        losses.append(loss.item())


@torch.no_grad()
def measure(model: Any, text: Tensor, window: int, carry: bool) -> Tensor:
    """The mean loss at each place of a window, (window,)."""
    model.eval()
    state, found = model.new_cache(ROWS, window), []
    for place in range(0, text.size(1) - window, window):
        if not carry:
            state = model.new_cache(ROWS, window)
        rows = text[:, place : place + window + 1]
        found.append(F.cross_entropy(model(rows[:, :-1], state).transpose(1, 2), rows[:, 1:], reduction="none"))
    return torch.cat(found).mean(dim=0)


if __name__ == "__main__":
    main()
