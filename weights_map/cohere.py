"""Weight tables of Command R and R7B: Llama's, with one norm in each block."""

from weights_map.llama import relative

tables = tuple(
    relative(model_type, without=("layers.{}.post_attention_layernorm.weight",)) for model_type in ("cohere", "cohere2")
)
