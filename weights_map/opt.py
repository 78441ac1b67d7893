"""Weight table of OPT and Galactica. All matrices are nn.Linear on both sides."""

from weights_map.engine import Row, Table, same, tie

table = Table(
    model_type="opt",
    rows=(
        Row("model.decoder.embed_tokens.weight", "embed_tokens.weight", same),
        Row("model.decoder.embed_positions.weight", "embed_positions.weight", same),
        # The config decides which of the optional ones exist; the model reports missing ones.
        Row("model.decoder.project_in.weight", "project_in.weight", same, optional=True),
        Row(
            "model.decoder.layers.{}.self_attn.q_proj.weight",
            "layers.{}.self_attn.q_proj.weight",
            same,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.q_proj.bias",
            "layers.{}.self_attn.q_proj.bias",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.k_proj.weight",
            "layers.{}.self_attn.k_proj.weight",
            same,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.k_proj.bias",
            "layers.{}.self_attn.k_proj.bias",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.v_proj.weight",
            "layers.{}.self_attn.v_proj.weight",
            same,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.v_proj.bias",
            "layers.{}.self_attn.v_proj.bias",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.out_proj.weight",
            "layers.{}.self_attn.out_proj.weight",
            same,
        ),
        Row(
            "model.decoder.layers.{}.self_attn.out_proj.bias",
            "layers.{}.self_attn.out_proj.bias",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.layers.{}.self_attn_layer_norm.weight",
            "layers.{}.self_attn_layer_norm.weight",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.layers.{}.self_attn_layer_norm.bias",
            "layers.{}.self_attn_layer_norm.bias",
            same,
            optional=True,
        ),
        Row("model.decoder.layers.{}.fc1.weight", "layers.{}.fc1.weight", same),
        Row("model.decoder.layers.{}.fc1.bias", "layers.{}.fc1.bias", same, optional=True),
        Row("model.decoder.layers.{}.fc2.weight", "layers.{}.fc2.weight", same),
        Row("model.decoder.layers.{}.fc2.bias", "layers.{}.fc2.bias", same, optional=True),
        Row(
            "model.decoder.layers.{}.final_layer_norm.weight",
            "layers.{}.final_layer_norm.weight",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.layers.{}.final_layer_norm.bias",
            "layers.{}.final_layer_norm.bias",
            same,
            optional=True,
        ),
        Row(
            "model.decoder.final_layer_norm.weight", "final_layer_norm.weight", same, optional=True
        ),
        Row("model.decoder.final_layer_norm.bias", "final_layer_norm.bias", same, optional=True),
        Row("model.decoder.project_out.weight", "project_out.weight", same, optional=True),
        Row("lm_head.weight", "lm_head.weight", tie("model.decoder.embed_tokens.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
    ),
    spellings=(("decoder.", "model.decoder."),),  # the first published files
)
