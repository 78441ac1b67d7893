"""Weight table of Bamba: Llama's, with Mamba layers and other names of the MLP and of two norms."""

from weights_map.hybrid import MAMBA2, feed_forward, hybrid

table = hybrid("bamba", MAMBA2, *feed_forward())
