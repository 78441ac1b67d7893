"""Weight table of Falcon. The Hub's file has the query heads, the key and the value of each KV head
together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weights_map.engine import Operation, Row, Table, same, tie
from weights_map.gguf import GGUFArchitecture, inverse

KINDS = ("weight", "bias")
LAYERS = {
    "self_attention.dense": "attention.dense",
    "mlp.dense_h_to_4h": "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
}
# Hub name -> native name and the property of models with it
NORMS = {
    "input_layernorm": ("input_layernorm", "has_usual_norms"),
    "post_attention_layernorm": ("mlp_norm", "has_usual_norms"),
    "ln_attn": ("input_layernorm", "has_parallel_norms"),
    "ln_mlp": ("mlp_norm", "has_parallel_norms"),
}


def ungroup(tensors: Sequence[Tensor], groups: tuple[int, int]) -> Sequence[Tensor]:
    """All q, all k, all v, from the queries, the key and the value of each group."""
    kv_heads, queries = groups
    heads = tensors[0].unflatten(0, (kv_heads, queries + 2, -1))
    return [torch.cat([part.flatten(0, 2) for part in heads.split([queries, 1, 1], 1)])]


def regroup(tensors: Sequence[Tensor], groups: tuple[int, int]) -> Sequence[Tensor]:
    """The inverse of `ungroup`."""
    kv_heads, queries = groups
    heads = tensors[0].unflatten(0, (kv_heads * (queries + 2), -1))
    parts = heads.split([kv_heads * queries, kv_heads, kv_heads])
    return [torch.cat([part.unflatten(0, (kv_heads, -1)) for part in parts], 1).flatten(0, 2)]


heads = Operation("ungroup heads", ungroup, regroup, setting="groups", permutes=True)

table = Table(
    model_type="falcon",
    rows=(
        Row("transformer.word_embeddings.weight", "embed_tokens.weight"),
        *(
            Row(
                f"transformer.h.{{}}.{hub}.{kind}",
                f"layers.{{}}.{native}.{kind}",
                optional=hub == "post_attention_layernorm",
                only=only,
            )
            for hub, (native, only) in NORMS.items()
            for kind in KINDS
        ),
        *(
            Row(
                f"transformer.h.{{}}.self_attention.query_key_value.{kind}",
                f"layers.{{}}.attention.query_key_value.{kind}",
                heads,
                optional=kind == "bias",
            )
            for kind in KINDS
        ),
        *(
            Row(
                f"transformer.h.{{}}.{hub}.{kind}",
                f"layers.{{}}.{native}.{kind}",
                optional=kind == "bias",
            )
            for hub, native in LAYERS.items()
            for kind in KINDS
        ),
        *(Row(f"transformer.ln_f.{kind}", f"norm.{kind}") for kind in KINDS),
        Row("lm_head.weight", "lm_head.weight", tie("transformer.word_embeddings.weight")),
        Row("score.weight", "head.out.weight", same, optional=True, head="sequence"),
    ),
)


def derive(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The form of the Hub's newer models, which can express Falcon 7B, too."""
    heads, kv_heads = settings["num_attention_heads"], settings["num_kv_heads"]
    assert isinstance(heads, int)
    if not isinstance(kv_heads, int) or kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"attention.head_count_kv cannot be {kv_heads!r:.80}")
    return {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1,
        "groups": (kv_heads, heads // kv_heads),
    }


def derive_with_two_norms(settings: Mapping[str, object]) -> Mapping[str, object]:
    """`derive` for files with attn_norm_2."""
    return {**derive(settings), "num_ln_in_parallel_attn": 2}


def encode(config: Mapping[str, object]) -> Mapping[str, object]:
    """ValueError: llama.cpp's falcon lacks ALiBi, biases, and layers that are not parallel."""
    parallel = config["new_decoder_architecture"] or config["parallel_attn"]
    if config["alibi"] or config["bias"] or not parallel:
        raise ValueError(
            "llama.cpp's falcon has rotary embeddings, no biases, and attention and MLP in"
            " parallel, but this model differs"
        )
    return {"tensor_data_layout": "jploski"}


def gguf_norms(attention: str, mlp: str) -> tuple[Row, ...]:
    """The rows of the norms. attention, mlp: GGUF's names of ln_attn and ln_mlp."""
    names = {"input_layernorm": "attn_norm", "ln_attn": attention, "ln_mlp": mlp}
    return tuple(
        Row(f"blk.{{}}.{gguf}.{kind}", f"transformer.h.{{}}.{hub}.{kind}", optional=True)
        for hub, gguf in names.items()
        for kind in KINDS
    )


GGUF_LAYERS = {
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_one_norm = GGUFArchitecture(
    "falcon",
    model_type="falcon",
    settings={
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "ffn_hidden_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_kv_heads",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    rows=(
        Row("token_embd.weight", "transformer.word_embeddings.weight"),
        *gguf_norms("attn_norm_2", "attn_norm"),
        Row(
            "blk.{}.attn_qkv.weight",
            "transformer.h.{}.self_attention.query_key_value.weight",
            inverse(heads),
        ),
        *(
            Row(f"blk.{{}}.{gguf}.weight", f"transformer.h.{{}}.{hub}.weight")
            for gguf, hub in GGUF_LAYERS.items()
        ),
        *(Row(f"output_norm.{kind}", f"transformer.ln_f.{kind}") for kind in KINDS),
        Row("output.weight", "lm_head.weight", optional=True),
    ),
    derive=derive,
    encode=encode,
)
_two_norms = replace(
    _one_norm,
    rows=tuple(row for row in _one_norm.rows if "input_layernorm" not in str(row.native)),
    derive=derive_with_two_norms,
)
gguf = (replace(_one_norm, alternative=("blk.0.attn_norm_2.weight", _two_norms)),)
