"""Types of the functions of each architecture. Generated from the registry by `make stub`; do not edit."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

import torch
from typing_extensions import Unpack

from minhub_py.models.bert import Bert
from minhub_py.models.bloom import Bloom
from minhub_py.models.cohere import Cohere
from minhub_py.models.cohere import Cohere2
from minhub_py.models.deberta import Deberta
from minhub_py.models.ernie45 import Ernie45
from minhub_py.models.exaone4 import Exaone4
from minhub_py.models.gemma import Gemma
from minhub_py.models.gemma4 import Gemma4
from minhub_py.models.glm4 import GLM4
from minhub_py.models.gpt2 import GPT2
from minhub_py.models.gptbigcode import GPTBigCode
from minhub_py.models.gptj import GPTJ
from minhub_py.models.gptneo import GPTNeo
from minhub_py.models.gptneox import GPTNeoX
from minhub_py.models.gptoss import GPTOSS
from minhub_py.models.granite import Granite
from minhub_py.models.granite import GraniteHybrid
from minhub_py.models.hunyuan import Hunyuan
from minhub_py.models.internlm3 import InternLM3
from minhub_py.models.lfm2 import Lfm2
from minhub_py.models.llama import Llama
from minhub_py.models.lstm import LSTM
from minhub_py.models.mixtral import Mixtral
from minhub_py.models.modernbert import ModernBert
from minhub_py.models.mpnet import MPNet
from minhub_py.models.olmo2 import Olmo2
from minhub_py.models.olmo2 import Olmo3
from minhub_py.models.opt import OPT
from minhub_py.models.phi import Phi
from minhub_py.models.phi3 import Phi3
from minhub_py.models.qwen35 import Qwen35
from minhub_py.models.seedoss import SeedOSS
from minhub_py.models.sinusoidal import Sinusoidal
from minhub_py.models.smollm3 import SmolLM3
from minhub_py.models.stablelm import StableLM
from minhub_py.models.starcoder2 import StarCoder2
from minhub_py.models.t5 import T5
from minhub_py.models.xglm import XGLM

__all__ = [
    "gpt2",
    "gpt2_from_config",
    "gpt2_from_pretrained",
    "gptneo",
    "gptneo_from_config",
    "gptneo_from_pretrained",
    "gptbigcode",
    "gptbigcode_from_config",
    "gptbigcode_from_pretrained",
    "gptneox",
    "gptneox_from_config",
    "gptneox_from_pretrained",
    "gptoss",
    "gptoss_from_config",
    "gptoss_from_pretrained",
    "gptj",
    "gptj_from_config",
    "gptj_from_pretrained",
    "phi",
    "phi_from_config",
    "phi_from_pretrained",
    "opt",
    "opt_from_config",
    "opt_from_pretrained",
    "lstm",
    "lstm_from_config",
    "lstm_from_pretrained",
    "sinusoidal",
    "sinusoidal_from_config",
    "sinusoidal_from_pretrained",
    "llama",
    "llama_from_config",
    "llama_from_pretrained",
    "mistral",
    "mistral_from_config",
    "mistral_from_pretrained",
    "ministral",
    "ministral_from_config",
    "ministral_from_pretrained",
    "qwen2",
    "qwen2_from_config",
    "qwen2_from_pretrained",
    "qwen3",
    "qwen3_from_config",
    "qwen3_from_pretrained",
    "gemma",
    "gemma_from_config",
    "gemma_from_pretrained",
    "gemma2",
    "gemma2_from_config",
    "gemma2_from_pretrained",
    "gemma3",
    "gemma3_from_config",
    "gemma3_from_pretrained",
    "gemma4",
    "gemma4_from_config",
    "gemma4_from_pretrained",
    "olmo2",
    "olmo2_from_config",
    "olmo2_from_pretrained",
    "olmo3",
    "olmo3_from_config",
    "olmo3_from_pretrained",
    "phi3",
    "phi3_from_config",
    "phi3_from_pretrained",
    "smollm3",
    "smollm3_from_config",
    "smollm3_from_pretrained",
    "granite",
    "granite_from_config",
    "granite_from_pretrained",
    "granitehybrid",
    "granitehybrid_from_config",
    "granitehybrid_from_pretrained",
    "exaone4",
    "exaone4_from_config",
    "exaone4_from_pretrained",
    "ernie45",
    "ernie45_from_config",
    "ernie45_from_pretrained",
    "seedoss",
    "seedoss_from_config",
    "seedoss_from_pretrained",
    "internlm3",
    "internlm3_from_config",
    "internlm3_from_pretrained",
    "hunyuan",
    "hunyuan_from_config",
    "hunyuan_from_pretrained",
    "starcoder2",
    "starcoder2_from_config",
    "starcoder2_from_pretrained",
    "glm4",
    "glm4_from_config",
    "glm4_from_pretrained",
    "cohere",
    "cohere_from_config",
    "cohere_from_pretrained",
    "cohere2",
    "cohere2_from_config",
    "cohere2_from_pretrained",
    "stablelm",
    "stablelm_from_config",
    "stablelm_from_pretrained",
    "bloom",
    "bloom_from_config",
    "bloom_from_pretrained",
    "xglm",
    "xglm_from_config",
    "xglm_from_pretrained",
    "qwen35",
    "qwen35_from_config",
    "qwen35_from_pretrained",
    "qwen35moe",
    "qwen35moe_from_config",
    "qwen35moe_from_pretrained",
    "qwen3next",
    "qwen3next_from_config",
    "qwen3next_from_pretrained",
    "mixtral",
    "mixtral_from_config",
    "mixtral_from_pretrained",
    "olmoe",
    "olmoe_from_config",
    "olmoe_from_pretrained",
    "qwen3moe",
    "qwen3moe_from_config",
    "qwen3moe_from_pretrained",
    "granitemoe",
    "granitemoe_from_config",
    "granitemoe_from_pretrained",
    "lfm2",
    "lfm2_from_config",
    "lfm2_from_pretrained",
    "lfm2moe",
    "lfm2moe_from_config",
    "lfm2moe_from_pretrained",
    "t5",
    "t5_from_config",
    "t5_from_pretrained",
    "bert",
    "bert_from_config",
    "bert_from_pretrained",
    "roberta",
    "roberta_from_config",
    "roberta_from_pretrained",
    "xlmroberta",
    "xlmroberta_from_config",
    "xlmroberta_from_pretrained",
    "camembert",
    "camembert_from_config",
    "camembert_from_pretrained",
    "distilbert",
    "distilbert_from_config",
    "distilbert_from_pretrained",
    "electra",
    "electra_from_config",
    "electra_from_pretrained",
    "albert",
    "albert_from_config",
    "albert_from_pretrained",
    "mpnet",
    "mpnet_from_config",
    "mpnet_from_pretrained",
    "modernbert",
    "modernbert_from_config",
    "modernbert_from_pretrained",
    "debertav2",
    "debertav2_from_config",
    "debertav2_from_pretrained",
    "deberta",
    "deberta_from_config",
    "deberta_from_pretrained",
]

class GPT2Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None
    activation_function: str
    resid_pdrop: float
    embd_pdrop: float
    attn_pdrop: float
    layer_norm_epsilon: float
    initializer_range: float
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    reorder_and_upcast_attn: bool
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class GPTNeoSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    num_layers: int
    num_heads: int
    attention_types: list[Any] | None
    window_size: int
    intermediate_size: int | None
    activation_function: str
    resid_dropout: float
    embed_dropout: float
    attention_dropout: float
    layer_norm_epsilon: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class GPTBigCodeSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None
    activation_function: str
    multi_query: bool
    resid_pdrop: float
    embd_pdrop: float
    attn_pdrop: float
    layer_norm_epsilon: float
    initializer_range: float
    scale_attn_weights: bool
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class GPTNeoXSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    rope_parameters: dict[str, Any] | None
    use_parallel_residual: bool
    attention_bias: bool
    attention_dropout: float
    hidden_dropout: float
    max_position_embeddings: int
    initializer_range: float
    layer_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rotary_emb_base: float
    rotary_pct: float

class GPTOSSSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_local_experts: int
    num_experts_per_tok: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any] | None
    sliding_window: int | None
    layer_types: list[str] | None
    hidden_act: str
    attention_bias: bool
    attention_dropout: float
    swiglu_alpha: float
    swiglu_limit: float
    quantization_config: dict[str, Any] | None
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class GPTJSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None
    rotary_dim: int
    activation_function: str
    resid_pdrop: float
    embd_pdrop: float
    attn_pdrop: float
    layer_norm_epsilon: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class PhiSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    resid_pdrop: float
    embd_pdrop: float
    max_position_embeddings: int
    initializer_range: float
    layer_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float

class OPTSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    ffn_dim: int
    max_position_embeddings: int
    do_layer_norm_before: bool
    _remove_final_layer_norm: bool
    word_embed_proj_dim: int | None
    dropout: float
    attention_dropout: float
    num_attention_heads: int
    activation_function: str
    init_std: float
    enable_bias: bool
    layer_norm_elementwise_affine: bool
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class LSTMSettings(TypedDict, total=False):
    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_layers: int
    dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class SinusoidalSettings(TypedDict, total=False):
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    max_position_embeddings: int
    layer_norm_eps: float
    dropout: float
    attention_dropout: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class LlamaSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any] | None
    attention_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    use_sliding_window: bool
    max_window_layers: int
    layer_types: list[str] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class GemmaSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    hidden_activation: str | None
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any] | None
    rope_local_base_freq: float | None
    attention_bias: bool
    query_pre_attn_scalar: int | None
    attn_logit_softcapping: float | None
    final_logit_softcapping: float | None
    sliding_window: int | None
    sliding_window_pattern: int | None
    layer_types: list[str] | None
    use_bidirectional_attention: bool | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Gemma4Settings(TypedDict, total=False):
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    use_double_wide_mlp: bool
    num_hidden_layers: int
    num_kv_shared_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    num_global_key_value_heads: int | None
    head_dim: int
    global_head_dim: int
    per_layer_config: dict[str, Any] | None
    attention_k_eq_v: bool
    enable_moe_block: bool
    num_experts: int | None
    top_k_experts: int | None
    moe_intermediate_size: int | None
    hidden_activation: str
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any] | None
    attention_bias: bool
    attention_dropout: float
    final_logit_softcapping: float | None
    sliding_window: int
    layer_types: list[str] | None
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Olmo2Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    attention_bias: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Olmo3Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    attention_bias: bool
    sliding_window: int | None
    layer_types: list[str] | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Phi3Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    sliding_window: int | None
    embd_pdrop: float
    resid_pdrop: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float
    original_max_position_embeddings: float

class SmolLM3Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    no_rope_layers: list[int] | None
    no_rope_layer_interval: int
    use_sliding_window: bool
    sliding_window: int | None
    layer_types: list[str] | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class GraniteSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class GraniteHybridSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float
    layer_types: list[str] | None
    position_embedding_type: str | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Exaone4Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    sliding_window: int | None
    sliding_window_pattern: int | str | None
    layer_types: list[str] | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Ernie45Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    head_dim: int | None
    rms_norm_eps: float
    use_bias: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class SeedOSSSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    head_dim: int | None
    rms_norm_eps: float
    attention_bias: bool
    attention_out_bias: bool
    mlp_bias: bool
    residual_dropout: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class InternLM3Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    head_dim: int | None
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class HunyuanSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rms_norm_eps: float
    head_dim: int | None
    attention_bias: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class StarCoder2Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    norm_epsilon: float
    use_bias: bool
    sliding_window: int | None
    residual_dropout: float
    embedding_dropout: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class GLM4Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    head_dim: int | None
    rms_norm_eps: float
    attention_bias: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float

class CohereSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    layer_norm_eps: float
    logit_scale: float
    attention_bias: bool
    use_qk_norm: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Cohere2Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    layer_norm_eps: float
    logit_scale: float
    attention_bias: bool
    use_qk_norm: bool
    sliding_window: int | None
    sliding_window_pattern: int
    layer_types: list[str] | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class StableLMSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    hidden_act: str
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    layer_norm_eps: float
    use_qkv_bias: bool
    qk_layernorm: bool
    use_parallel_residual: bool
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float

class BloomSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    layer_norm_epsilon: float
    hidden_dropout: float
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class XGLMSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str
    max_position_embeddings: int
    dropout: float
    attention_dropout: float
    initializer_range: float
    scale_embedding: bool
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class Qwen35Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: list[int] | None
    mtp_layers: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    layer_types: list[str] | None
    full_attention_interval: int
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    rope_parameters: dict[str, Any] | None
    attention_bias: bool
    attention_dropout: float
    max_position_embeddings: int
    initializer_range: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    partial_rotary_factor: float

class MixtralSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: list[int] | None
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any] | None
    attention_bias: bool
    sliding_window: int | None
    use_sliding_window: bool
    attention_multiplier: float
    embedding_multiplier: float
    residual_multiplier: float
    logits_scaling: float
    attention_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class Lfm2Settings(TypedDict, total=False):
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    block_ff_dim: int | None
    block_auto_adjust_ff_dim: bool
    block_ffn_dim_multiplier: float | None
    block_multiple_of: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    layer_types: list[str] | None
    full_attn_idxs: list[int] | None
    conv_L_cache: int
    conv_bias: bool
    moe_intermediate_size: int
    num_dense_layers: int
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    use_expert_bias: bool
    max_position_embeddings: int
    norm_eps: float
    rope_parameters: dict[str, Any] | None
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class T5Settings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_decoder_layers: int | None
    num_heads: int
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    dropout_rate: float
    classifier_dropout: float
    layer_norm_epsilon: float
    initializer_factor: float
    feed_forward_proj: str
    tie_word_embeddings: bool
    is_encoder_decoder: bool
    scale_decoder_outputs: bool | None
    decoder_start_token_id: int
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class BertSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    model_type: str
    vocab_size: int
    hidden_size: int
    embedding_size: int | None
    num_hidden_layers: int
    num_hidden_groups: int
    inner_group_num: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    classifier_dropout: float | None
    qa_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class MPNetSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    max_position_embeddings: int
    layer_norm_eps: float
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class ModernBertSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_activation: str
    max_position_embeddings: int
    norm_eps: float
    global_attn_every_n_layers: int
    layer_types: list[str] | None
    local_attention: int
    rope_parameters: dict[str, Any] | None
    global_rope_theta: float | None
    local_rope_theta: float | None
    attention_dropout: float
    embedding_dropout: float
    mlp_dropout: float
    classifier_pooling: str
    classifier_activation: str
    classifier_dropout: float
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    rope_theta: float
    rope_scaling: dict[str, Any] | None

class DebertaSettings(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, Any] | None
    num_labels: int | None
    problem_type: str | None
    model_type: str
    vocab_size: int
    hidden_size: int
    embedding_size: int | None
    num_hidden_layers: int
    num_attention_heads: int
    attention_head_size: int | None
    intermediate_size: int
    hidden_act: str
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    relative_attention: bool
    max_relative_positions: int
    position_buckets: int
    share_att_key: bool
    pos_att_type: list[str] | str | None
    norm_rel_ebd: str
    position_biased_input: bool
    conv_kernel_size: int
    conv_groups: int
    conv_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    pooler_dropout: float
    pooler_hidden_act: str
    pooler_hidden_size: int | None
    cls_dropout: float | None
    legacy: bool
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None

class TrainSettings(TypedDict, total=False):
    family: str | None
    start: str | None
    tokenizer: str | None
    revision: str | None
    vocab_size: int
    held_out: float
    layers: int | None
    width: int | None
    heads: int | None
    context: int | None
    dropout: float | None
    config: Mapping[str, object]
    lora: Mapping[str, object]
    quantize: str | None
    objective: str | None
    na: Sequence[str]
    beta: float
    keep_weight: float
    epochs: float | None
    checkpointing: bool
    steps: int
    batch: int
    accumulate: int
    learning_rate: float | None
    warm_up: int
    floor: float
    weight_decay: float
    beta2: float
    clip: float
    carry: bool
    evaluate_every: int
    evaluate_tokens: int
    checkpoint_every: int
    patience: int | None
    sample: str | None
    sample_tokens: int
    seed: int
    device: str
    dtype: str
    compile: bool
    parallel: str
    threads: int | None

class ResumeSettings(TypedDict, total=False):
    steps: int
    evaluate_every: int
    checkpoint_every: int
    patience: int | None
    sample: str | None
    sample_tokens: int
    device: str
    compile: bool
    parallel: str
    threads: int | None

class SamplingSettings(TypedDict, total=False):
    temperature: float
    top_k: int | None
    top_p: float | None
    repetition_penalty: float
    min_p: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None

class ChatSettings(TypedDict, total=False):
    max_new_tokens: int
    temperature: float | Literal["auto"]
    top_k: int | None | Literal["auto"]
    top_p: float | None | Literal["auto"]
    repetition_penalty: float | Literal["auto"]
    min_p: float | None | Literal["auto"]
    presence_penalty: float | Literal["auto"]
    frequency_penalty: float | Literal["auto"]
    logit_bias: Mapping[int, float] | None | Literal["auto"]
    seed: int | None
    stop: str | Sequence[str]
    top: int

def gpt2(**config: Unpack[GPT2Settings]) -> GPT2: ...
def gpt2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPT2: ...
def gpt2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPT2: ...

def gptneo(**config: Unpack[GPTNeoSettings]) -> GPTNeo: ...
def gptneo_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTNeo: ...
def gptneo_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTNeo: ...

def gptbigcode(**config: Unpack[GPTBigCodeSettings]) -> GPTBigCode: ...
def gptbigcode_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTBigCode: ...
def gptbigcode_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTBigCode: ...

def gptneox(**config: Unpack[GPTNeoXSettings]) -> GPTNeoX: ...
def gptneox_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTNeoX: ...
def gptneox_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTNeoX: ...

def gptoss(**config: Unpack[GPTOSSSettings]) -> GPTOSS: ...
def gptoss_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTOSS: ...
def gptoss_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTOSS: ...

def gptj(**config: Unpack[GPTJSettings]) -> GPTJ: ...
def gptj_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTJ: ...
def gptj_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GPTJ: ...

def phi(**config: Unpack[PhiSettings]) -> Phi: ...
def phi_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Phi: ...
def phi_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Phi: ...

def opt(**config: Unpack[OPTSettings]) -> OPT: ...
def opt_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> OPT: ...
def opt_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> OPT: ...

def lstm(**config: Unpack[LSTMSettings]) -> LSTM: ...
def lstm_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> LSTM: ...
def lstm_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> LSTM: ...

def sinusoidal(**config: Unpack[SinusoidalSettings]) -> Sinusoidal: ...
def sinusoidal_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Sinusoidal: ...
def sinusoidal_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Sinusoidal: ...

def llama(**config: Unpack[LlamaSettings]) -> Llama: ...
def llama_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...
def llama_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...

def mistral(**config: Unpack[LlamaSettings]) -> Llama: ...
def mistral_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...
def mistral_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...

def ministral(**config: Unpack[LlamaSettings]) -> Llama: ...
def ministral_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...
def ministral_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...

def qwen2(**config: Unpack[LlamaSettings]) -> Llama: ...
def qwen2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...
def qwen2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...

def qwen3(**config: Unpack[LlamaSettings]) -> Llama: ...
def qwen3_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...
def qwen3_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Llama: ...

def gemma(**config: Unpack[GemmaSettings]) -> Gemma: ...
def gemma_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma: ...
def gemma_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma: ...

def gemma2(**config: Unpack[GemmaSettings]) -> Gemma: ...
def gemma2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma: ...
def gemma2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma: ...

def gemma3(**config: Unpack[GemmaSettings]) -> Gemma: ...
def gemma3_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma: ...
def gemma3_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma: ...

def gemma4(**config: Unpack[Gemma4Settings]) -> Gemma4: ...
def gemma4_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma4: ...
def gemma4_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Gemma4: ...

def olmo2(**config: Unpack[Olmo2Settings]) -> Olmo2: ...
def olmo2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Olmo2: ...
def olmo2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Olmo2: ...

def olmo3(**config: Unpack[Olmo3Settings]) -> Olmo3: ...
def olmo3_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Olmo3: ...
def olmo3_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Olmo3: ...

def phi3(**config: Unpack[Phi3Settings]) -> Phi3: ...
def phi3_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Phi3: ...
def phi3_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Phi3: ...

def smollm3(**config: Unpack[SmolLM3Settings]) -> SmolLM3: ...
def smollm3_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> SmolLM3: ...
def smollm3_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> SmolLM3: ...

def granite(**config: Unpack[GraniteSettings]) -> Granite: ...
def granite_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Granite: ...
def granite_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Granite: ...

def granitehybrid(**config: Unpack[GraniteHybridSettings]) -> GraniteHybrid: ...
def granitehybrid_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GraniteHybrid: ...
def granitehybrid_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GraniteHybrid: ...

def exaone4(**config: Unpack[Exaone4Settings]) -> Exaone4: ...
def exaone4_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Exaone4: ...
def exaone4_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Exaone4: ...

def ernie45(**config: Unpack[Ernie45Settings]) -> Ernie45: ...
def ernie45_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Ernie45: ...
def ernie45_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Ernie45: ...

def seedoss(**config: Unpack[SeedOSSSettings]) -> SeedOSS: ...
def seedoss_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> SeedOSS: ...
def seedoss_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> SeedOSS: ...

def internlm3(**config: Unpack[InternLM3Settings]) -> InternLM3: ...
def internlm3_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> InternLM3: ...
def internlm3_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> InternLM3: ...

def hunyuan(**config: Unpack[HunyuanSettings]) -> Hunyuan: ...
def hunyuan_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Hunyuan: ...
def hunyuan_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Hunyuan: ...

def starcoder2(**config: Unpack[StarCoder2Settings]) -> StarCoder2: ...
def starcoder2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> StarCoder2: ...
def starcoder2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> StarCoder2: ...

def glm4(**config: Unpack[GLM4Settings]) -> GLM4: ...
def glm4_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> GLM4: ...
def glm4_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> GLM4: ...

def cohere(**config: Unpack[CohereSettings]) -> Cohere: ...
def cohere_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Cohere: ...
def cohere_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Cohere: ...

def cohere2(**config: Unpack[Cohere2Settings]) -> Cohere2: ...
def cohere2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Cohere2: ...
def cohere2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Cohere2: ...

def stablelm(**config: Unpack[StableLMSettings]) -> StableLM: ...
def stablelm_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> StableLM: ...
def stablelm_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> StableLM: ...

def bloom(**config: Unpack[BloomSettings]) -> Bloom: ...
def bloom_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bloom: ...
def bloom_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bloom: ...

def xglm(**config: Unpack[XGLMSettings]) -> XGLM: ...
def xglm_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> XGLM: ...
def xglm_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> XGLM: ...

def qwen35(**config: Unpack[Qwen35Settings]) -> Qwen35: ...
def qwen35_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Qwen35: ...
def qwen35_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Qwen35: ...

def qwen35moe(**config: Unpack[Qwen35Settings]) -> Qwen35: ...
def qwen35moe_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Qwen35: ...
def qwen35moe_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Qwen35: ...

def qwen3next(**config: Unpack[Qwen35Settings]) -> Qwen35: ...
def qwen3next_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Qwen35: ...
def qwen3next_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Qwen35: ...

def mixtral(**config: Unpack[MixtralSettings]) -> Mixtral: ...
def mixtral_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...
def mixtral_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...

def olmoe(**config: Unpack[MixtralSettings]) -> Mixtral: ...
def olmoe_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...
def olmoe_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...

def qwen3moe(**config: Unpack[MixtralSettings]) -> Mixtral: ...
def qwen3moe_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...
def qwen3moe_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...

def granitemoe(**config: Unpack[MixtralSettings]) -> Mixtral: ...
def granitemoe_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...
def granitemoe_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Mixtral: ...

def lfm2(**config: Unpack[Lfm2Settings]) -> Lfm2: ...
def lfm2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Lfm2: ...
def lfm2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Lfm2: ...

def lfm2moe(**config: Unpack[Lfm2Settings]) -> Lfm2: ...
def lfm2moe_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Lfm2: ...
def lfm2moe_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Lfm2: ...

def t5(**config: Unpack[T5Settings]) -> T5: ...
def t5_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> T5: ...
def t5_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> T5: ...

def bert(**config: Unpack[BertSettings]) -> Bert: ...
def bert_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def bert_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def roberta(**config: Unpack[BertSettings]) -> Bert: ...
def roberta_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def roberta_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def xlmroberta(**config: Unpack[BertSettings]) -> Bert: ...
def xlmroberta_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def xlmroberta_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def camembert(**config: Unpack[BertSettings]) -> Bert: ...
def camembert_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def camembert_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def distilbert(**config: Unpack[BertSettings]) -> Bert: ...
def distilbert_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def distilbert_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def electra(**config: Unpack[BertSettings]) -> Bert: ...
def electra_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def electra_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def albert(**config: Unpack[BertSettings]) -> Bert: ...
def albert_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...
def albert_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Bert: ...

def mpnet(**config: Unpack[MPNetSettings]) -> MPNet: ...
def mpnet_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> MPNet: ...
def mpnet_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> MPNet: ...

def modernbert(**config: Unpack[ModernBertSettings]) -> ModernBert: ...
def modernbert_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> ModernBert: ...
def modernbert_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> ModernBert: ...

def debertav2(**config: Unpack[DebertaSettings]) -> Deberta: ...
def debertav2_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Deberta: ...
def debertav2_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Deberta: ...

def deberta(**config: Unpack[DebertaSettings]) -> Deberta: ...
def deberta_from_config(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Deberta: ...
def deberta_from_pretrained(
    identifier: str | PathLike[str],
    revision: str = "main",
    *,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    quantize: str | None = None,
    parallel: str | None = None,
    adapter: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    mtp: bool = False,
    token: str | None = None,
    local_files_only: bool = False,
) -> Deberta: ...
