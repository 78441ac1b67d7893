"""Weight tables of Mamba 1, Mamba 2 and Falcon Mamba. Falcon Mamba is not written as GGUF: llama.cpp
uses one epsilon for all of its norms.
"""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, Table, same, squeeze, tie
from weights_map.gguf import GGUFArchitecture, inverse
from weights_map.hybrid import MAMBA1, MAMBA2, decay, gguf_mamba2, quotient

# The biases exist in some models; the model reports missing ones.
LAYER = "backbone.layers.{}"


def table(model_type: str, names: tuple[str, ...]) -> Table:
    """The table of a model type. names: of the mixer's tensors."""
    return Table(
        model_type,
        (
            Row("backbone.embeddings.weight", "embeddings.weight", same),
            Row(f"{LAYER}.norm.weight", "layers.{}.norm.weight", same),
            *(
                Row(
                    f"{LAYER}.mixer.{name}",
                    f"layers.{{}}.mixer.{name}",
                    same,
                    optional=name.endswith("bias"),
                )
                for name in names
            ),
            Row("backbone.norm_f.weight", "norm_f.weight", same),
            Row("lm_head.weight", "lm_head.weight", tie("backbone.embeddings.weight")),
        ),
        # Older files have `embedding`.
        (("backbone.embedding.", "backbone.embeddings."), ("", "backbone.")),
    )


tables = (
    table("mamba", MAMBA1),
    table("mamba2", MAMBA2),
    table("falcon_mamba", MAMBA1),
)


def encode(config: HubConfig) -> Mapping[str, object]:
    """Keys that llama.cpp requires. ValueError: it lacks a setting of the model."""
    kind = config["model_type"]
    if not config["use_conv_bias"] or config["use_bias"]:
        raise ValueError(f"llama.cpp's {kind} requires use_conv_bias true and use_bias false")
    return {"context_length": 2**20, "feed_forward_length": 0, "attention.head_count": 0}


HUB = f"{LAYER}.mixer"
SETTINGS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.inner_size": "intermediate_size",
    "ssm.state_size": "state_size",
}
ROWS = (
    Row("token_embd.weight", "backbone.embeddings.weight"),
    Row("blk.{}.attn_norm.weight", f"{LAYER}.norm.weight"),
    Row("output_norm.weight", "backbone.norm_f.weight"),
    Row("output.weight", "lm_head.weight", optional=True),
)
NOT_USED = {"feed_forward_length": 0, "attention.head_count": 0}
gguf = (
    GGUFArchitecture(
        "mamba",
        model_type="mamba",
        settings={**SETTINGS, "ssm.time_step_rank": "time_step_rank"},
        rows=(
            *ROWS,
            Row("blk.{}.ssm_in.weight", f"{HUB}.in_proj.weight"),
            Row("blk.{}.ssm_conv1d.weight", f"{HUB}.conv1d.weight", inverse(squeeze(1))),
            Row("blk.{}.ssm_conv1d.bias", f"{HUB}.conv1d.bias"),
            Row("blk.{}.ssm_x.weight", f"{HUB}.x_proj.weight"),
            Row("blk.{}.ssm_dt.weight", f"{HUB}.dt_proj.weight"),
            Row("blk.{}.ssm_dt.bias", f"{HUB}.dt_proj.bias"),
            Row("blk.{}.ssm_a", f"{HUB}.A_log", decay),
            Row("blk.{}.ssm_d", f"{HUB}.D"),
            Row("blk.{}.ssm_out.weight", f"{HUB}.out_proj.weight"),
        ),
        required={**NOT_USED, "ssm.dt_b_c_rms": False},
        encode=encode,
    ),
    GGUFArchitecture(
        "mamba2",
        model_type="mamba2",
        settings={**SETTINGS, "ssm.time_step_rank": "num_heads", "ssm.group_count": "n_groups"},
        rows=(
            *ROWS,
            *gguf_mamba2(HUB, "n_groups", optional=False),
        ),
        derive=lambda settings: {"head_dim": quotient(settings, "intermediate_size", "num_heads")},
        required=NOT_USED,
        encode=encode,
    ),
)
