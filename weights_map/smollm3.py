"""Weight table of SmolLM3: Llama's."""

from weights_map.llama import relative

table = relative("smollm3")
