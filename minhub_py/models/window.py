"""Attention within a window, at the price of the window: for texts much longer than it.

Sources: Beltagy et al. (2020), "Longformer"; Child et al. (2019), "Sparse Transformers".
Notation: B batch rows, T queries, H heads, D head size, W window, P past positions in reach, N blocks of queries.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def local_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, window: int, dropout: float, scale: float
) -> Tensor:
    """Attention of each query to itself and the W - 1 positions before it, without paying for any other key.

    q (B, H, T, D); k, v (B, H, P + T, D), the last T of them at the queries' own positions; starts (B,), the first
    query's position in each row. Queries go in N blocks of W, each against the keys in its reach: T * 2W scores.
    """
    B, H, T, D = q.shape
    P = k.size(2) - T
    block = min(T, window)
    N = -(-T // block)
    reach = P if N == 1 else window  # keys before each block's first query
    pad = N * block - T
    q = F.pad(q, (0, 0, 0, pad))
    k = F.pad(k, (0, 0, reach - P, pad))
    v = F.pad(v, (0, 0, reach - P, pad))

    q = q.view(B, H, N, block, D).transpose(1, 2).reshape(B * N, H, block, D)
    k = k.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).reshape(B * N, H, block + reach, D)
    v = v.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).reshape(B * N, H, block + reach, D)

    query = torch.arange(block, device=q.device).unsqueeze(1)  # (block, 1)
    key = torch.arange(block + reach, device=q.device) - reach  # (block + reach,), 0 at the block's first query
    # The window includes the current position: at W = 4, position 5 sees 2 3 4 5.
    band = (key <= query) & (key > query - window)  # (block, block + reach)
    first = starts.unsqueeze(1) + torch.arange(N, device=q.device) * block  # (B, N), each block's first position
    exists = first.unsqueeze(-1) + key >= 0  # (B, N, block + reach)
    mask = (band & exists.unsqueeze(2)).view(B * N, 1, block, block + reach)

    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return y.view(B, N, H, block, D).transpose(1, 2).reshape(B, H, N * block, D)[:, :, :T]
