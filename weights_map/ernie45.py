"""Weight table of ERNIE 4.5: Llama's."""

from weights_map.llama import relative

table = relative("ernie4_5")
