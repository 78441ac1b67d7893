"""Fields of requests that the server does not use, but that clients and other servers know.

An ignored field does not change the reply: it concerns accounts, storage, scheduling or hardware.
An unsupported field is rejected unless it has a value without an effect. All other fields that the
server does not read are unknown (`Fields.finish`).

Sources: the types of the clients openai 3.54, anthropic 2.14 and ollama 0.6; the documentation of
vLLM, llama.cpp, SGLang, Text Generation Inference and Ollama.
"""

from minhub_py.serve.validation import Fields

# Of accounts and storage.
ACCOUNT = frozenset(("metadata", "safety_identifier", "service_tier", "store", "user"))
# Of caches and scheduling in the server. Replies do not depend on a prefix cache.
SCHEDULING = frozenset(
    (
        "cache_prompt",
        "cache_salt",
        "id_slot",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "slot_id",
    )
)
# Details of unsupported settings, which alone have no effect; names of the library that compiles
# grammars.
DETAILS = frozenset(
    (
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "guided_decoding_backend",
        "mirostat_eta",
        "mirostat_tau",
        "xtc_threshold",
    )
)
GENERATION = ACCOUNT | SCHEDULING | DETAILS

CHAT = GENERATION | {
    "prediction",  # text that is likely to occur, for speed
    "stream.1",  # tidyllm repeats the argument `stream`
}
COMPLETION = GENERATION
RESPONSES = GENERATION | {"access_programs", "background_options", "max_tool_calls", "truncation"}
MESSAGES = GENERATION | {
    "anthropic_beta",
    "betas",
    "billing_policy",
    "cache_control",
    "compaction",
    "context_management",
    "diagnostics",
    "fallback_credit_token",
    "inference_geo",
    "speed",
    "user_profile_id",
    "workspace_id",
}
OLLAMA = DETAILS | {"keep_alive", "model", "name", "shift", "truncate"}
# The context of the server has one length for all requests.
OLLAMA_OPTIONS = DETAILS | {
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
}
EMBEDDING = ACCOUNT | SCHEDULING | {"encoding_format"}
# Of requests with the fields of a generation that only count or render its prompt.
PROMPT = (
    CHAT
    | RESPONSES
    | MESSAGES
    | {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "n",
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "stop_sequences",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)

# Sampling of other servers -> values without an effect, in addition to false, 0 and empty ones.
SAMPLING: dict[str, tuple[object, ...]] = {
    "dry_multiplier": (),
    "dynatemp_range": (),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (),
    "eta_cutoff": (),
    "guidance_scale": (1,),
    "length_penalty": (1,),
    "logits_processors": (),
    "lora": (),
    "min_keep": (1,),
    "mirostat": (),
    "mirostat_mode": (),
    "n_indent": (),
    "no_repeat_ngram_size": (),
    "penalty_alpha": (),
    "samplers": (),
    "smoothing_factor": (),
    "t_max_predict_ms": (-1,),
    "tfs": (1,),
    "tfs_z": (1,),
    "top_a": (),
    "top_n_sigma": (-1,),
    "typical": (1,),
    "typical_p": (1,),
    "use_beam_search": (),
    "xtc_probability": (),
}
# Further content and forms of replies.
OUTPUT: dict[str, tuple[object, ...]] = {
    "audio": (), "background": (), "chat_template": (), "container": (), "conversation": (), "echo": (),
    "fallbacks": (), "grammar_lazy": (), "grammar_triggers": (), "guided_whitespace_pattern": (), "image": (),
    "image_data": (), "images": (), "logprobs": (), "mcp_servers": (), "modalities": (["text"],), "moderation": (),
    "n_probs": (), "personality": (), "post_sampling_probs": (), "previous_response_id": (), "prompt_logprobs": (),
    "return_progress": (), "return_token_ids": (), "return_tokens": (), "return_tokens_as_token_ids": (),
    "suffix": (), "template": (), "timings_per_token": (), "top_logprobs": (), "verbosity": ("medium",),
    "web_search_options": (),
}  # fmt: skip
# Settings whose only supported value is not an empty one.
FIXED: dict[str, tuple[object, ...]] = {
    "parse_tool_calls": (True,),
    "spaces_between_special_tokens": (True,),
}


def reject_unsupported(fields: Fields, *groups: dict[str, tuple[object, ...]]) -> None:
    """Reject a request's unsupported fields, except those that have been read. groups: of this
    module.
    """
    for group in groups:
        for name in group.keys() - fields.read:
            fields.reject(name, harmless=group[name], empty=group is not FIXED)
