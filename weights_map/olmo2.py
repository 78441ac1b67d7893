"""Weight tables of OLMo 2 and 3 and EXAONE 4: Llama's, with norms after attention and MLP instead of before them."""

from weights_map.engine import Row
from weights_map.llama import relative

AFTER = (
    Row("model.layers.{}.post_attention_layernorm.weight", "layers.{}.attention_output_norm.weight"),
    Row("model.layers.{}.post_feedforward_layernorm.weight", "layers.{}.mlp_output_norm.weight"),
)
BEFORE = ("layers.{}.input_layernorm.weight", "layers.{}.post_attention_layernorm.weight")

tables = tuple(relative(model_type, *AFTER, without=BEFORE) for model_type in ("olmo2", "olmo3", "exaone4"))
