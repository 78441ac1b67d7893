"""Weight table of Llama 4's text model. Files stack the transposed matrices of the experts."""

from weights_map.engine import Row, Table, drop, same, tie
from weights_map.mixtral import PROJECTIONS, unstack_transposed

LAYER, NATIVE = "model.layers.{}", "layers.{}"
EXPERTS = f"{LAYER}.feed_forward.experts"

table = Table(
    model_type="llama4_text",
    rows=(
        Row("model.embed_tokens.weight", "embed_tokens.weight", same),
        Row(f"{LAYER}.input_layernorm.weight", f"{NATIVE}.input_layernorm.weight", same),
        *(
            Row(
                f"{LAYER}.self_attn.{letter}_proj.{part}",
                f"{NATIVE}.self_attn.{letter}_proj.{part}",
                same,
                optional=part == "bias",
            )
            for part in ("weight", "bias")
            for letter in "qkvo"
        ),
        Row(
            f"{LAYER}.post_attention_layernorm.weight",
            f"{NATIVE}.post_attention_layernorm.weight",
            same,
        ),
        Row(
            f"{LAYER}.feed_forward.router.weight", f"{NATIVE}.mlp.gate.weight", same, optional=True
        ),
        Row(
            (f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"),
            tuple(f"{NATIVE}.mlp.experts.{name}.{{}}" for name in PROJECTIONS),
            unstack_transposed("num_experts"),
            optional=True,
        ),
        *(
            Row(
                f"{LAYER}.feed_forward.shared_expert.{name}.weight",
                f"{NATIVE}.shared_expert.{name}.weight",
                same,
                optional=True,
            )
            for name in PROJECTIONS
        ),
        # Layers without experts
        *(
            Row(
                f"{LAYER}.feed_forward.{name}.weight",
                f"{NATIVE}.mlp.{name}.weight",
                same,
                optional=True,
            )
            for name in PROJECTIONS
        ),
        # Quantized files have the matrices of each expert apart.
        *(
            Row(
                f"{EXPERTS}.{{}}.{name}.weight",
                f"{NATIVE}.mlp.experts.{name}.{{}}",
                same,
                optional=True,
            )
            for name in PROJECTIONS
        ),
        Row("model.norm.weight", "norm.weight", same),
        Row("lm_head.weight", "lm_head.weight", tie("model.embed_tokens.weight")),
        # The other parts of a llama4 file
        Row("vision_model.*", (), drop),
        Row("multi_modal_projector.*", (), drop),
    ),
    spellings=(
        ("language_model.", ""),
        ("model.language_model.", "model."),
        ("model.", ""),
        ("", "model."),
    ),
)
