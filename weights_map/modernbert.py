"""Weight table of ModernBERT. All matrices are nn.Linear on both sides. The classification heads
share their names.
"""

from collections.abc import Mapping

from weights_map.engine import HubConfig, Row, Table, drop, same, tie
from weights_map.gguf import SIZES, GGUFArchitecture

table = Table(
    model_type="modernbert",
    prefix="model.",
    rows=(
        Row("embeddings.tok_embeddings.weight", "embed_tokens.weight", same),
        Row("embeddings.norm.weight", "norm.weight", same),
        # none in layer 0
        Row("layers.{}.attn_norm.weight", "layers.{}.attention_norm.weight", same, optional=True),
        Row("layers.{}.attn.Wqkv.weight", "layers.{}.attention.qkv.weight", same),
        Row("layers.{}.attn.Wo.weight", "layers.{}.attention.o.weight", same),
        Row("layers.{}.attn.rotary_emb.inv_freq", (), drop),
        Row("layers.{}.mlp_norm.weight", "layers.{}.mlp_norm.weight", same),
        Row("layers.{}.mlp.Wi.weight", "layers.{}.mlp.wi.weight", same),
        Row("layers.{}.mlp.Wo.weight", "layers.{}.mlp.wo.weight", same),
        Row("final_norm.weight", "final_norm.weight", same),
        Row("head.dense.weight", "head.transform.weight", same, head="masked_lm"),
        Row("head.norm.weight", "head.norm.weight", same, head="masked_lm"),
        Row(
            "decoder.weight",
            "head.decoder.weight",
            tie("model.embeddings.tok_embeddings.weight"),
            head="masked_lm",
        ),
        Row("decoder.bias", "head.bias", same, head="masked_lm"),
        *(
            row
            for head in ("sequence", "tokens", "questions")
            for row in (
                Row("head.dense.weight", "head.dense.weight", same, head=head),
                Row("head.norm.weight", "head.norm.weight", same, head=head),
                Row("classifier.weight", "head.out.weight", same, head=head),
                Row("classifier.bias", "head.out.bias", same, head=head),
            )
        ),
    ),
)


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The pattern of global layers, which is a period or a list."""
    pattern = settings.get("global_attn_every_n_layers", 3)
    if not isinstance(pattern, list):
        return {"global_attn_every_n_layers": pattern}
    types = ["sliding_attention" if sliding else "full_attention" for sliding in pattern]
    return {"global_attn_every_n_layers": 3, "layer_types": types}


def encode(config: HubConfig) -> Mapping[str, object]:
    """ValueError: llama.cpp lacks a setting of the model."""
    if not config["architectures"][0].endswith("Model"):
        raise ValueError(
            "a GGUF file of ModernBERT has no head, so that config.json must have the architectures"
            " ['ModernBertModel']"
        )
    if config["hidden_activation"] not in ("gelu", "silu"):
        raise ValueError("llama.cpp's modern-bert supports the activations gelu and silu only")
    ropes = config["rope_parameters"]
    if any(rope["rope_type"] != "default" for rope in ropes.values()):
        raise ValueError("llama.cpp's modern-bert supports rope_type default only")
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    periods = (
        n
        for n in range(1, len(sliding) + 1)
        if sliding == [layer % n > 0 for layer in range(len(sliding))]
    )
    return {
        "attention.sliding_window_pattern": next(periods, sliding),
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
    }


GGUF_LAYERS = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}
gguf = (
    GGUFArchitecture(
        "modern-bert",
        model_type="modernbert",
        settings={
            **SIZES,
            "attention.layer_norm_epsilon": "norm_eps",
            "attention.sliding_window": "local_attention",
            "attention.sliding_window_pattern": "global_attn_every_n_layers",
            "hidden_activation": "hidden_activation",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        rows=(
            Row("token_embd.weight", "embeddings.tok_embeddings.weight"),
            Row("token_embd_norm.weight", "embeddings.norm.weight"),
            Row("blk.{}.attn_norm.weight", "layers.{}.attn_norm.weight", optional=True),
            *(
                Row(f"blk.{{}}.{gguf_name}.weight", f"layers.{{}}.{hub}.weight")
                for gguf_name, hub in GGUF_LAYERS.items()
            ),
            Row("output_norm.weight", "final_norm.weight"),
        ),
        required={"attention.causal": False},
        derive=derive,
        encode=encode,
        rope_by_type=True,
    ),
)
