"""Weight table of Falcon H1: Llama's, with a state space in each layer, and other names of the MLP and of two norms."""

from weights_map.hybrid import MAMBA2, feed_forward, hybrid

table = hybrid("falcon_h1", MAMBA2, *feed_forward())
