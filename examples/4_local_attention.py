"""Local (banded) and full attention: masks, a check against plain matrix products, cost, and
receptive field.

The idea. In full causal attention each position attends to itself and to all positions before it,
so the cost grows with the square of the length. In a *local* layer it attends to the last W
positions only, itself included: the mask is a band along the diagonal, and the cost is linear in
the length. Several layers reach further back: each adds W - 1 positions. GPT-Neo alternates, so
every second layer attends to all positions.

Sources. Child et al. (2019) and Beltagy et al. (2020) for windows; Black et al. (2021) for GPT-Neo;
Rae & Razavi (2020) on how few layers need a long range.

    python examples/4_local_attention.py

Output. The two masks; the largest difference between GPT-Neo's layer, which uses only the keys in
the window, and full attention with a banded mask (a band that is off by one differs clearly); the
number of computed scores, and the time; and the receptive field of several layers, by formula and
by a model's gradients.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py import gptneo
from minhub_py.models.attention import Past, local_attention


def full_mask(T: int) -> Tensor:
    """(T, T), True where a query (row) attends to a key (column): on and below the diagonal."""
    return torch.ones(T, T, dtype=torch.bool).tril()


def band_mask(T: int, W: int) -> Tensor:
    """The full mask without positions W or more back: for W = 3, position 5 attends to 3, 4 and 5."""
    return full_mask(T) ^ full_mask(T).tril(-W)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention by matrix products; q, k, v are (B, H, T, D). GPT-Neo was trained without the
    factor 1/sqrt(D).
    """
    scores = (q @ k.transpose(2, 3)).masked_fill(~mask, -torch.inf)  # (B, H, T, T)
    return scores.softmax(dim=-1) @ v


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--window", type=int, default=64, help="window for timing; the published models have 256"
    )
    parser.add_argument("--longest", type=int, default=2048, help="longest text for timing")
    args = parser.parse_args()
    torch.manual_seed(1)
    draw_masks(8, 3)
    check_layer(40, 7)
    show_cost(args.window, args.longest)
    show_reach(24, 4)


def draw_masks(T: int, W: int) -> None:
    """Print both masks, one row per query."""
    print(f"Attention masks for {T} positions:\n  {'full':{2 * T + 3}} local, window {W}")
    for full, band in zip(full_mask(T).tolist(), band_mask(T, W).tolist(), strict=True):
        print(
            "  "
            + " ".join(".x"[allowed] for allowed in full)
            + "     "
            + " ".join(".x"[allowed] for allowed in band)
        )


@torch.no_grad()
def check_layer(T: int, W: int) -> None:
    """Compare GPT-Neo's local layer with full attention and a banded mask. ValueError: they differ."""
    model = gptneo(
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        vocab_size=9,
        max_position_embeddings=T,
        window_size=W,
    )
    layer = model.eval().h[1].attn  # layers are global, local, global, …
    x = torch.randn(2, T, 32)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        # large scores: nearly uniform attention would hide errors
        torch.nn.init.normal_(projection.weight, std=0.3)
    q, k, v = (
        f(x).view(2, T, 4, 8).transpose(1, 2) for f in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    local = layer(x, Past(torch.zeros(2, T, dtype=torch.long)))
    print(
        f"\nLargest difference between GPT-Neo's local layer ({T} positions, window {W}) and"
        " attention with"
    )
    masks = {"the band": band_mask(T, W), "a band wider by 1": band_mask(T, W + 1)}
    masks |= {"a band narrower by 1": band_mask(T, W - 1), "the full mask": full_mask(T)}
    differences = {}
    for name, mask in masks.items():
        y = plain_attention(q, k, v, mask).transpose(1, 2).reshape(2, T, 32)
        differences[name] = (
            layer.out_proj(y) - local
        ).abs().max().item() / local.abs().max().item()
        print(f"  {name:20} {differences[name]:.1e} of the largest value")
    if not differences["the band"] < 1e-5 < min(list(differences.values())[1:]):
        raise ValueError("the local layer is not full attention with a banded mask")


@torch.no_grad()
def show_cost(W: int, longest: int) -> None:
    """Print the number of required and computed scores, and the time, for several lengths."""
    print(f"\nScores per head, window {W}, and milliseconds for 4 heads of size 32 (best of 5):")
    print("  length       full  in the band  computed in blocks   full ms  local ms")
    for T in (W * 2**i for i in range((longest // W).bit_length())):
        q, k, v = torch.randn(3, 1, 4, T, 32)
        full = milliseconds(F.scaled_dot_product_attention, q, k, v, is_causal=True, scale=1.0)
        local = milliseconds(local_attention, q, k, v, torch.tensor([0]), W, 1.0)
        counts = int(full_mask(T).sum()), int(band_mask(T, W).sum()), T * min(2 * W, T)
        # Blocks of W queries are multiplied with the 2 W keys of their windows.
        cells = [f"{count:{width},}" for count, width in zip(counts, (11, 13, 20), strict=True)]
        print(f"  {T:6}{''.join(cells)}  {full:8.2f}  {local:8.2f}")


def milliseconds(function: Callable[..., object], *arguments: object, **settings: object) -> float:
    """The best time of five calls, in milliseconds."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function(*arguments, **settings)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def show_reach(T: int, W: int) -> None:
    """Print the receptive field of the last position after one to five local layers, and with a
    global layer.
    """
    print(
        f"\nReceptive field of the last of {T} positions, by gradients, window {W}; expected: 1 +"
        f" {W - 1} per layer"
    )
    for kinds in (["local"], ["local"] * 2, ["local"] * 3, ["local"] * 5, ["local", "global"]):
        model = gptneo(
            hidden_size=16,
            num_layers=len(kinds),
            num_heads=2,
            vocab_size=9,
            max_position_embeddings=T,
            window_size=W,
            attention_types=[[kinds, 1]],
        ).eval()
        y = x = torch.randn(1, T, 16, requires_grad=True)
        for block in model.h:
            y = block(y, Past(torch.zeros(1, T, dtype=torch.long)))
        y[0, -1].norm().backward()
        reached = (x.grad.norm(dim=-1) > 0)[0]
        expected = min(T, 1 + len(kinds) * (W - 1)) if "global" not in kinds else T
        if int(reached.sum()) != expected:
            raise ValueError(f"{kinds} reach {int(reached.sum())} positions, not {expected}")
        print(
            f"  {' '.join('.x'[value] for value in reached.tolist())}  {expected:3} "
            f" {', '.join(kinds)}"
        )


if __name__ == "__main__":
    main()
