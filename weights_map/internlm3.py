"""Weight table of InternLM 3: Llama's."""

from weights_map.llama import relative

table = relative("internlm3")
