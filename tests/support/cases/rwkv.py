"""RWKV-4."""

from cases import Cases

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}
# transformers 5.24 requires hidden_size in place of attention_hidden_size in its cache, and two layers.
UNCACHED = {"use_cache": False}
CASES = {
    "rwkv": {},
    "rwkv-sizes": {"attention_hidden_size": 40, "intermediate_size": 72, "rescale_every": 0, **UNCACHED},
    # the residual stream is halved after each of five layers
    "rwkv-rescaled": {"num_hidden_layers": 5, "rescale_every": 1, "layer_norm_epsilon": 0.1, "intermediate_size": 51},
    "rwkv-tied": {"tie_word_embeddings": True, "num_hidden_layers": 3, "rescale_every": 2, "intermediate_size": 19},
    "rwkv-odd": {"hidden_size": 33, "attention_hidden_size": 17, "num_hidden_layers": 3, "rescale_every": -1,
                 **UNCACHED},
    "rwkv-wide": {"hidden_size": 288, "attention_hidden_size": 90, "intermediate_size": 64, "rescale_every": 2,
                  "context_length": 16, **UNCACHED},
}  # fmt: skip
PUBLISHED = {
    "RWKV/rwkv-4-169m-pile": 169_342_464,
    "RWKV/rwkv-4-430m-pile": 430_397_440,
    "RWKV/rwkv-4-1b5-pile": 1_515_106_304,
    "RWKV/rwkv-4-3b-pile": 2_984_627_200,
    "RWKV/rwkv-4-7b-pile": 7_392_649_216,
    "RWKV/rwkv-4-14b-pile": 14_148_597_760,
}

FAMILY = Cases(
    SMALL,
    CASES,
    few=("rwkv-rescaled",),
    gradients=("rwkv-sizes", "rwkv-odd"),
    published=PUBLISHED,
)
