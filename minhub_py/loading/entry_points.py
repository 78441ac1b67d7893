"""Models of a config, and the functions of eight architectures.

`from_config` creates a model of any architecture with random weights, as `from_pretrained` loads a
model of any. The architectures of R's package minhub and the LSTM also have functions of their
names: `gpt2()` creates a model from settings, `gpt2_from_config()` from a repository's config, and
`gpt2_from_pretrained()` loads a GPT-2.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from minhub_py.loading.pretrained import _from_pretrained, from_pretrained, read_config
from minhub_py.models.base import LanguageModel
from minhub_py.models.gemma import Gemma
from minhub_py.models.gpt2 import GPT2
from minhub_py.models.gptbigcode import GPTBigCode
from minhub_py.models.gptneo import GPTNeo
from minhub_py.models.gptneox import GPTNeoX
from minhub_py.models.gptoss import GPTOSS
from minhub_py.models.llama import Llama
from minhub_py.models.lstm import LSTM
from minhub_py.models.registry import (
    ENTRIES,
    Architecture,
    Entry,
    entry_of,
    named_entry,
    preset,
    similar_model_type,
)
from minhub_py.models.settings import ModelConfig
from minhub_py.system.habits import with_hints
from minhub_py.system.json_text import JsonObject
from minhub_py.system.printable import printable

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
M = TypeVar("M", bound=LanguageModel)


def from_config(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
    **settings: object,
) -> LanguageModel:
    """Create a model with random weights, in training mode.

        from_config("mixtral", hidden_size=64, num_hidden_layers=2, …)
        from_config("Qwen/Qwen3-0.6B", num_hidden_layers=2)

    Args:
        identifier: A model type of config.json, such as "mixtral" or "xlm-roberta", with the
            settings of its first published model by default, or an identifier as in
            `from_pretrained`, with the settings of its config.json. A model type takes precedence:
            "./llama" is the folder llama. Published sizes such as "gpt2-xl" need no network.
        revision: A branch, tag or commit of the repository.
        token: A Hub access token, as in `from_pretrained`.
        local_files_only: Use cached files only and open no connection.
        **settings: Settings with other values, by their names in config.json. With fewer
            layers, layer_types is cut.

    Raises:
        ValueError: A setting is unknown, or a value is not supported. Also the errors of
            `from_pretrained`.
    """
    return _from_config(
        None, identifier, revision, token=token, local_files_only=local_files_only, **settings
    )


def _from_config(
    entry: Entry | None,
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
    **settings: object,
) -> LanguageModel:
    """`from_config` for repositories with the architecture of `entry`; for all architectures by
    default.
    """
    access = {"token": token, "local_files_only": local_files_only}
    architecture, config, _ = new_config(identifier, revision, settings, entry=entry, **access)
    return architecture.new(config)


def new_config(
    identifier: str | os.PathLike[str],
    revision: str,
    settings: Mapping[str, object],
    *,
    entry: Entry | None = None,
    **access: Any,
) -> tuple[Architecture, ModelConfig, Path | None]:
    """The architecture and config of a new model, and the folder of the config.json, if there is
    one.

    entry: accepts repositories with this architecture only, and no model types.
    Raises the errors of `from_config`.
    """
    named = (
        named_entry(identifier)
        if entry is None and revision == "main" and isinstance(identifier, str)
        else None
    )
    if named is not None:
        entry, model_type = named
        return entry.architecture, entry.config({"model_type": model_type, **settings}), None
    if entry is None and isinstance(identifier, str):
        check_model_type(identifier)
    architecture, config, folder = read_config(identifier, revision, entry=entry, **access)
    return architecture, entry_of(config.to_hub()["model_type"]).config(settings, config), folder


def check_model_type(name: str) -> None:
    """ValueError: the name is neither a folder nor a published size, and resembles a model type."""
    is_model = preset(name) is not None or Path(name).exists()
    if not is_model and (similar := similar_model_type(name)) is not None:
        raise ValueError(
            f"there is no model type {printable(name)!r}: did you mean {similar!r}? A repository"
            " on the Hub is owner/name"
        )


def restricted(name: str, public: Callable[P, LanguageModel], Model: type[M]) -> Callable[P, M]:
    """`public` for one architecture: from_config or from_pretrained."""
    entry, signature = ENTRIES[name], inspect.signature(public)
    loads = public is from_pretrained
    function: Callable[..., Any] = (
        partial(_from_pretrained, entry=entry) if loads else partial(_from_config, entry)
    )

    @wraps(public)
    def call(*arguments: P.args, **options: P.kwargs) -> M:
        call = signature.bind(*arguments, **options)
        return function(*call.args, **call.kwargs)

    call.__name__ = call.__qualname__ = f"{name}_{public.__name__}"
    call.__module__ = __name__
    what = "Load a pretrained" if loads else "Create a new"
    call.__doc__ = f"""{what} {Model.__name__} model. See {public.__name__}() for arguments and errors.

    Raises:
        ValueError: Also for a model of another architecture.
    """
    return with_hints(call)


def new(name: str, settings: Mapping[str, object]) -> Any:
    """A model with a public name and random weights."""
    entry = ENTRIES[name]
    return entry.architecture.new(entry.config(settings))


class CommonSettings(TypedDict, total=False):
    """Settings of all architectures."""

    vocab_size: int
    initializer_range: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None


class ClassifierSettings(CommonSettings, total=False):
    """Settings of architectures that can have a classification head."""

    architectures: list[str] | None
    id2label: JsonObject | None
    num_labels: int | None
    problem_type: str | None


class RotarySettings(ClassifierSettings, total=False):
    """Settings of architectures with rotary embeddings."""

    rope_parameters: JsonObject | None
    rope_theta: float
    rope_scaling: dict[str, object] | None


class GPT2Settings(ClassifierSettings, total=False):
    """Settings of GPT-2."""

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
    scale_attn_weights: bool
    scale_attn_by_inverse_layer_idx: bool
    reorder_and_upcast_attn: bool


class GPTNeoSettings(ClassifierSettings, total=False):
    """Settings of GPT-Neo."""

    max_position_embeddings: int
    hidden_size: int
    num_layers: int
    num_heads: int
    attention_types: list | None  # type: ignore[type-arg]
    window_size: int
    intermediate_size: int | None
    activation_function: str
    resid_dropout: float
    embed_dropout: float
    attention_dropout: float
    layer_norm_epsilon: float


class LSTMSettings(CommonSettings, total=False):
    """Settings of LSTM."""

    embedding_size: int
    hidden_size: int
    num_layers: int
    dropout: float


class LlamaSettings(RotarySettings, total=False):
    """Settings of Llama."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    hidden_act: str
    max_position_embeddings: int
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    use_sliding_window: bool
    max_window_layers: int
    layer_types: list[str] | None
    attention_dropout: float


class GPTNeoXSettings(RotarySettings, total=False):
    """Settings of GPT-NeoX."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    use_parallel_residual: bool
    attention_bias: bool
    attention_dropout: float
    hidden_dropout: float
    max_position_embeddings: int
    layer_norm_eps: float
    rotary_emb_base: float
    rotary_pct: float


class GPTBigCodeSettings(ClassifierSettings, total=False):
    """Settings of GPT-BigCode."""

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
    scale_attn_weights: bool


class GPTOSSSettings(RotarySettings, total=False):
    """Settings of GPT-OSS."""

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
    sliding_window: int | None
    layer_types: list[str] | None
    hidden_act: str
    attention_bias: bool
    attention_dropout: float
    swiglu_alpha: float
    swiglu_limit: float
    quantization_config: JsonObject | None


class GemmaSettings(RotarySettings, total=False):
    """Settings of Gemma 3."""

    model_type: str
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


def gpt2(**settings: "Unpack[GPT2Settings]") -> GPT2:
    """Create a GPT-2 model with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("gpt2", settings)


gpt2_from_config = restricted("gpt2", from_config, GPT2)
gpt2_from_pretrained = restricted("gpt2", from_pretrained, GPT2)


def gptneo(**settings: "Unpack[GPTNeoSettings]") -> GPTNeo:
    """Create a GPT-Neo model with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("gptneo", settings)


gptneo_from_config = restricted("gptneo", from_config, GPTNeo)
gptneo_from_pretrained = restricted("gptneo", from_pretrained, GPTNeo)


def lstm(**settings: "Unpack[LSTMSettings]") -> LSTM:
    """Create an LSTM with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("lstm", settings)


lstm_from_config = restricted("lstm", from_config, LSTM)
lstm_from_pretrained = restricted("lstm", from_pretrained, LSTM)


def llama(**settings: "Unpack[LlamaSettings]") -> Llama:
    """Create a Llama model with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("llama", settings)


llama_from_config = restricted("llama", from_config, Llama)
llama_from_pretrained = restricted("llama", from_pretrained, Llama)


def gptneox(**settings: "Unpack[GPTNeoXSettings]") -> GPTNeoX:
    """Create a GPT-NeoX model with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("gptneox", settings)


gptneox_from_config = restricted("gptneox", from_config, GPTNeoX)
gptneox_from_pretrained = restricted("gptneox", from_pretrained, GPTNeoX)


def gptbigcode(**settings: "Unpack[GPTBigCodeSettings]") -> GPTBigCode:
    """Create a GPT-BigCode model with random weights, in training mode. Settings have their names
    in config.json.
    """
    return new("gptbigcode", settings)


gptbigcode_from_config = restricted("gptbigcode", from_config, GPTBigCode)
gptbigcode_from_pretrained = restricted("gptbigcode", from_pretrained, GPTBigCode)


def gptoss(**settings: "Unpack[GPTOSSSettings]") -> GPTOSS:
    """Create a GPT-OSS model with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("gptoss", settings)


gptoss_from_config = restricted("gptoss", from_config, GPTOSS)
gptoss_from_pretrained = restricted("gptoss", from_pretrained, GPTOSS)


def gemma3(**settings: "Unpack[GemmaSettings]") -> Gemma:
    """Create a Gemma 3 model with random weights, in training mode. Settings have their names in
    config.json.
    """
    return new("gemma3", settings)


gemma3_from_config = restricted("gemma3", from_config, Gemma)
gemma3_from_pretrained = restricted("gemma3", from_pretrained, Gemma)
