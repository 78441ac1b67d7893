"""The registry of architectures: classes, weight tables, public names, published sizes and training
defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from reprlib import repr as brief
from types import ModuleType
from typing import TYPE_CHECKING

from minhub_py.models import published
from minhub_py.models.config import build, changed
from minhub_py.models.relatives import GRANITE_HYBRID, RELATIVES, Relative

if TYPE_CHECKING:  # keeps `minhub` fast: PyTorch is imported on first use
    from minhub_py.models.base import LanguageModel
    from minhub_py.models.settings import ModelConfig


@dataclass(frozen=True)
class Training:
    """Training defaults of an architecture. The default sizes train on a CPU within minutes.

    Attention dropout is off unless a run's `config` sets it (attn_pdrop): PyTorch's fused attention
    does not support it on CPUs.
    """

    # layers, width, heads, inner, context, dropout -> fields of the config
    names: Mapping[str, tuple[str, ...]]
    # other settings that differ from the config's defaults
    small: Mapping[str, object] = field(default_factory=dict)
    layers: int = 4
    width: int = 128
    # inner width of the MLP / width, if the config has no default for the inner width
    expansion: float = 4.0
    learning_rate: float = 1.5e-3
    # the recurrent state continues from one row of the training text to the next
    carries_state: bool = False


@dataclass(frozen=True)
class Architecture:
    """An architecture. Its module and PyTorch are imported on first use of `Config` or `Model`."""

    name: str  # name of the module
    title: str  # name in text
    model_type: str  # key of the weights table, and of config.json unless `names` says otherwise
    classes: tuple[str, str]  # names of the config's dataclass and of the model's class
    training: Training
    owner: str = ""  # Hub owner of the published checkpoints
    # published size -> settings
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    # For a file that implements several model types: the public names, and the model types of each.
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()  # multimodal model types with a text_config of this architecture
    module: str = ""  # if several architectures share a module: its name
    is_encoder: bool = False  # a text encoder, which predicts no next token
    bidirectional_class: str = ""  # name of the model's class for a config that is `bidirectional`
    classifies: bool = False  # a decoder that can have a sequence classification head
    # name of the model's class with this head; default: `classifier_of` of `Model`
    classifier_class: str = ""
    encoder_class: str = ""  # name of the model's class for a config that is `encoder_only`

    @property
    def trainable(self) -> bool:
        """Whether `train` supports the architecture: `training.names` then lists the common
        settings.
        """
        return bool(self.training.names)

    @property
    def published(self) -> list[str]:
        """Full names of the published sizes on the Hub."""
        return [f"{self.owner}/{size}" if self.owner else size for size in self.presets]

    @property
    def _module(self) -> ModuleType:
        return import_module(f"minhub_py.models.{self.module or self.name}")

    @property
    def Config(self) -> "type[ModelConfig]":
        """The dataclass of settings."""
        return getattr(self._module, self.classes[0])

    @property
    def Model(self) -> "type[LanguageModel]":
        """The nn.Module."""
        return getattr(self._module, self.classes[1])

    def model_class(self, config: "ModelConfig") -> "type[LanguageModel]":
        """The nn.Module of a config: `Model`, or a class for bidirectional attention,
        classification or an encoder.
        """
        if self.bidirectional_class and getattr(config, "bidirectional", False):
            return getattr(self._module, self.bidirectional_class)
        if self.encoder_class and getattr(config, "encoder_only", False):
            return getattr(self._module, self.encoder_class)
        is_classifier = getattr(config, "head", None) == "sequence"
        if self.classifier_class and is_classifier:
            return getattr(self._module, self.classifier_class)
        if self.classifies and is_classifier:
            return import_module("minhub_py.models.encoder").classifier_of(self.Model)
        return self.Model

    def new(self, config: "ModelConfig") -> "LanguageModel":
        """A model with random weights, in training mode."""
        return self.model_class(config)(config)


@dataclass(frozen=True)
class Entry:
    """A public name of an architecture, with its model types. The family of `train` and the name in
    `from_config`.
    """

    name: str
    architecture: Architecture
    model_types: tuple[str, ...]

    def config(
        self, settings: Mapping[str, object], base: "ModelConfig | None" = None
    ) -> "ModelConfig":
        """The config for `settings`, with the other settings of `base` or the defaults.

        ValueError: a setting is unknown, or a value is not supported.
        """
        model_type = base.to_hub()["model_type"] if base is not None else self.model_types[0]
        values = {"model_type": model_type, **settings}
        if (requested := values["model_type"]) not in self.model_types:
            raise ValueError(
                f"{self.name} has model_type {' or '.join(self.model_types)}, not"
                f" {brief(requested)}"
            )
        if not self.architecture.names:  # the config has one model type, which is not a field
            del values["model_type"]
        return build(self.architecture.Config, values) if base is None else changed(base, values)


# Common settings of `train` -> fields of a config.
GPT2_NAMES = {
    "layers": ("n_layer",),
    "width": ("n_embd",),
    "heads": ("n_head",),
    "context": ("n_positions",),
    "dropout": ("embd_pdrop", "resid_pdrop"),
}
LLAMA_NAMES = {
    "layers": ("num_hidden_layers",),
    "width": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "inner": ("intermediate_size",),
    "context": ("max_position_embeddings",),
}
# With the defaults of Gemma and Qwen 3.5, the number of KV heads may not divide `heads`.
GROUPED_NAMES = {**LLAMA_NAMES, "heads": ("num_attention_heads", "num_key_value_heads")}

# expansion of a gated MLP: its three matrices have as many weights as two with an expansion of 4
GATED = 8 / 3


def relative(row: Relative) -> Architecture:
    """An architecture of the general decoder."""
    training = Training(GROUPED_NAMES, {"tie_word_embeddings": True}, expansion=GATED)
    return Architecture(
        row.name,
        row.title,
        row.model_type,
        (f"{row.model}Config", row.model),
        training,
        row.owner,
        row.sizes,
        module=row.module,
        classifies=True,
    )


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "gpt2",
            "GPT-2",
            "gpt2",
            ("GPT2Config", "GPT2"),
            Training(GPT2_NAMES, {"attn_pdrop": 0.0}),
            "openai-community",
            published.GPT2,
            classifies=True,
        ),
        Architecture(
            "openaigpt",
            "GPT",
            "openai-gpt",
            ("OpenAIGPTConfig", "OpenAIGPT"),
            Training(GPT2_NAMES, {"attn_pdrop": 0.0}),
            "openai-community",
            published.OPENAIGPT,
            classifies=True,
        ),
        Architecture(
            "gptneo",
            "GPT-Neo",
            "gpt_neo",
            ("GPTNeoConfig", "GPTNeo"),
            Training(
                {
                    "layers": ("num_layers",),
                    "width": ("hidden_size",),
                    "heads": ("num_heads",),
                    "context": ("max_position_embeddings",),
                    "dropout": ("embed_dropout", "resid_dropout"),
                },
                {"window_size": 32},
            ),
            "EleutherAI",
            published.GPTNEO,
            classifies=True,
        ),
        Architecture(
            "gptbigcode",
            "GPT-BigCode",
            "gpt_bigcode",
            ("GPTBigCodeConfig", "GPTBigCode"),
            Training(GPT2_NAMES, {"attn_pdrop": 0.0}),
            "bigcode",
            published.GPTBIGCODE,
            classifies=True,
        ),
        Architecture(
            "gptneox",
            "GPT-NeoX",
            "gpt_neox",
            ("GPTNeoXConfig", "GPTNeoX"),
            Training(
                {**LLAMA_NAMES, "dropout": ("hidden_dropout",)}, {"tie_word_embeddings": True}
            ),
            "EleutherAI",
            published.GPTNEOX,
            classifies=True,
        ),
        Architecture(
            "gptoss",
            "GPT-OSS",
            "gpt_oss",
            ("GPTOSSConfig", "GPTOSS"),
            Training(
                LLAMA_NAMES,
                {
                    "num_local_experts": 4,
                    "num_experts_per_tok": 2,
                    "head_dim": None,
                    "num_key_value_heads": None,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                    "tie_word_embeddings": True,
                },
                expansion=GATED / 2,  # two experts per token
            ),
            "openai",
            published.GPTOSS,
            classifies=True,
        ),
        Architecture(
            "gptj",
            "GPT-J",
            "gptj",
            ("GPTJConfig", "GPTJ"),
            Training(GPT2_NAMES, {"tie_word_embeddings": True, "rotary_dim": 8}),
            "EleutherAI",
            published.GPTJ,
            classifies=True,
        ),
        Architecture(
            "phi",
            "Phi",
            "phi",
            ("PhiConfig", "Phi"),
            Training(
                {**LLAMA_NAMES, "dropout": ("embd_pdrop", "resid_pdrop")},
                {"tie_word_embeddings": True},
            ),
            "microsoft",
            published.PHI,
            classifies=True,
        ),
        Architecture(
            "opt",
            "OPT",
            "opt",
            ("OPTConfig", "OPT"),
            Training({**LLAMA_NAMES, "inner": ("ffn_dim",), "dropout": ("dropout",)}),
            "facebook",
            published.OPT,
            classifies=True,
        ),
        Architecture(
            "lstm",
            "LSTM",
            "lstm",
            ("LSTMConfig", "LSTM"),
            Training(
                {"layers": ("num_layers",), "width": ("hidden_size",), "dropout": ("dropout",)},
                {"embedding_size": 64},
                layers=2,
                width=256,
                learning_rate=3e-3,
                carries_state=True,
            ),
        ),
        Architecture(
            "sinusoidal",
            "Sinusoidal",
            "sinusoidal",
            ("SinusoidalConfig", "Sinusoidal"),
            Training({**LLAMA_NAMES, "dropout": ("dropout",)}, {"attention_dropout": 0.0}),
        ),
        Architecture(
            "llama",
            "Llama",
            "llama",
            ("LlamaConfig", "Llama"),
            # Mistral's and Qwen's configs have defaults for large models.
            Training(
                LLAMA_NAMES,
                {"tie_word_embeddings": True, "num_key_value_heads": None, "head_dim": None},
                expansion=GATED,
            ),
            presets=published.LLAMA,
            names={
                "llama": ("llama",),
                "mistral": ("mistral",),
                "ministral": ("ministral", "ministral3"),
                "qwen2": ("qwen2",),
                "qwen3": ("qwen3",),
            },
            wrappers=("mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
            classifies=True,
        ),
        Architecture(
            "gemma",
            "Gemma",
            "gemma",
            ("GemmaConfig", "Gemma"),
            Training(GROUPED_NAMES, {"head_dim": 32}, expansion=GATED),
            "google",
            published.GEMMA,
            names={"gemma": ("gemma",), "gemma2": ("gemma2",), "gemma3": ("gemma3_text",)},
            wrappers=("gemma3",),
            bidirectional_class="EmbeddingGemma",
            classifies=True,
        ),
        Architecture(
            "gemma4",
            "Gemma 4",
            "gemma4_text",
            ("Gemma4Config", "Gemma4"),
            Training(
                GROUPED_NAMES,
                {"head_dim": 32, "global_head_dim": 32, "hidden_size_per_layer_input": 0},
                expansion=GATED,
            ),
            "google",
            published.GEMMA4,
            names={"gemma4": ("gemma4_text",)},
            wrappers=("gemma4",),
        ),
        Architecture(
            "llama4",
            "Llama 4",
            "llama4_text",
            ("Llama4Config", "Llama4"),
            Training(
                {**GROUPED_NAMES, "inner": ("intermediate_size", "intermediate_size_mlp")},
                {"tie_word_embeddings": True, "head_dim": None, "num_experts": 4},
                expansion=GATED / 2,  # an expert per token, and the shared one
            ),
            "meta-llama",
            published.LLAMA4,
            wrappers=("llama4",),
        ),
        *map(relative, RELATIVES),
        Architecture(
            "bloom",
            "BLOOM",
            "bloom",
            ("BloomConfig", "Bloom"),
            Training({name: LLAMA_NAMES[name] for name in ("layers", "width", "heads", "context")}),
            "bigscience",
            published.BLOOM,
            classifies=True,
        ),
        Architecture(
            "falcon",
            "Falcon",
            "falcon",
            ("FalconConfig", "Falcon"),
            Training(
                {
                    **LLAMA_NAMES,
                    "inner": ("ffn_hidden_size",),
                    "dropout": ("hidden_dropout",),
                }
            ),
            "tiiuae",
            published.FALCON,
            classifies=True,
        ),
        Architecture(
            "mpt",
            "MPT",
            "mpt",
            ("MPTConfig", "MPT"),
            Training(
                {
                    "layers": ("n_layers",),
                    "width": ("d_model",),
                    "heads": ("n_heads",),
                    "context": ("max_seq_len",),
                }
            ),
            "mosaicml",
            published.MPT,
            classifies=True,
        ),
        Architecture(
            "olmo",
            "OLMo",
            "olmo",
            ("OlmoConfig", "Olmo"),
            Training(LLAMA_NAMES, {"tie_word_embeddings": True}, expansion=GATED),
            "allenai",
            published.OLMO,
            classifies=True,
        ),
        Architecture(
            "apertus",
            "Apertus",
            "apertus",
            ("ApertusConfig", "Apertus"),
            Training(GROUPED_NAMES, {"tie_word_embeddings": True}),
            "swiss-ai",
            published.APERTUS,
        ),
        Architecture(
            "xglm",
            "XGLM",
            "xglm",
            ("XGLMConfig", "XGLM"),
            Training({**LLAMA_NAMES, "dropout": ("dropout",)}, {"attention_dropout": 0.0}),
            "facebook",
            published.XGLM,
        ),
        Architecture(
            "qwen35",
            "Qwen 3.5",
            "qwen3_5_text",
            ("Qwen35Config", "Qwen35"),
            Training(
                GROUPED_NAMES,
                {
                    "tie_word_embeddings": True,
                    "head_dim": 32,
                    "linear_num_key_heads": 4,
                    "linear_num_value_heads": 4,
                    "linear_key_head_dim": 32,
                    "linear_value_head_dim": 32,
                },
                expansion=GATED,
            ),
            "Qwen",
            published.QWEN35,
            names={"qwen35": ("qwen3_5_text",)},
            wrappers=("qwen3_5",),
            classifies=True,
        ),
        *(
            Architecture(
                name,
                title,
                model_type,
                ("Qwen35Config", "Qwen35"),
                Training(
                    {
                        **GROUPED_NAMES,
                        "inner": ("moe_intermediate_size", "shared_expert_intermediate_size"),
                    },
                    {
                        "tie_word_embeddings": True,
                        "head_dim": 32,
                        "linear_num_key_heads": 4,
                        "linear_num_value_heads": 4,
                        "linear_key_head_dim": 32,
                        "linear_value_head_dim": 32,
                        "num_experts": 4,
                        "num_experts_per_tok": 2,
                    },
                    expansion=GATED / 3,  # two experts per token, and the shared one
                ),
                "Qwen",
                sizes,
                names={name: (model_type,)},
                module="qwen35",
                wrappers=wrappers,
                classifies=True,
            )
            for name, title, model_type, sizes, wrappers in (
                (
                    "qwen35moe",
                    "Qwen 3.5 MoE",
                    "qwen3_5_moe_text",
                    published.QWEN35MOE,
                    ("qwen3_5_moe",),
                ),
                ("qwen3next", "Qwen 3 Next", "qwen3_next", published.QWEN3NEXT, ()),
            )
        ),
        *(
            Architecture(
                name,
                title,
                model_type,
                ("MixtralConfig", "Mixtral"),
                Training(
                    {**LLAMA_NAMES, "inner": (inner,)},
                    {
                        "num_experts": 4,
                        "num_experts_per_tok": 2,
                        "num_key_value_heads": None,
                        "tie_word_embeddings": True,
                    },
                    expansion=GATED / 2,  # two experts per token
                ),
                presets=sizes,
                names={name: (model_type,)},
                wrappers=("qwen3_vl_moe",) if name == "qwen3moe" else (),
                module="mixtral",
                classifies=True,
            )
            for name, title, model_type, inner, sizes in (
                ("mixtral", "Mixtral", "mixtral", "intermediate_size", published.MIXTRAL),
                ("olmoe", "OLMoE", "olmoe", "intermediate_size", published.OLMOE),
                (
                    "qwen2moe",
                    "Qwen 2 MoE",
                    "qwen2_moe",
                    "moe_intermediate_size",
                    published.QWEN2MOE,
                ),
                (
                    "qwen3moe",
                    "Qwen 3 MoE",
                    "qwen3_moe",
                    "moe_intermediate_size",
                    published.QWEN3MOE,
                ),
                (
                    "granitemoe",
                    "Granite MoE",
                    "granitemoe",
                    "intermediate_size",
                    published.GRANITEMOE,
                ),
            )
        ),
        *(
            Architecture(
                name,
                title,
                model_type,
                ("Lfm2Config", "Lfm2"),
                Training(names, small, expansion=expansion),
                "LiquidAI",
                sizes,
                names={name: (model_type,)},
                module="lfm2",
            )
            for name, title, model_type, names, small, expansion, sizes in (
                (
                    "lfm2",
                    "LFM2",
                    "lfm2",
                    GROUPED_NAMES,
                    {"block_auto_adjust_ff_dim": False, "full_attn_idxs": [1, 3]},
                    GATED,
                    published.LFM2,
                ),
                (
                    "lfm2moe",
                    "LFM2 MoE",
                    "lfm2_moe",
                    {**GROUPED_NAMES, "inner": ("intermediate_size", "moe_intermediate_size")},
                    {"num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 1},
                    GATED / 2,
                    published.LFM2MOE,
                ),
            )
        ),
        Architecture(
            "granitehybrid",
            "Granite 4",
            "granitemoehybrid",
            ("GraniteHybridConfig", "GraniteHybrid"),
            Training(
                GROUPED_NAMES,
                {
                    "tie_word_embeddings": True,
                    "num_experts": 0,
                    "mamba_n_heads": 8,
                    "mamba_d_state": 32,
                },
                expansion=GATED,
            ),
            "ibm-granite",
            GRANITE_HYBRID,
            module="granite",
            classifies=True,
        ),
        Architecture(
            "bamba",
            "Bamba",
            "bamba",
            ("BambaConfig", "Bamba"),
            Training(
                GROUPED_NAMES,
                {
                    "tie_word_embeddings": True,
                    "mamba_n_heads": 8,
                    "mamba_d_state": 32,
                    "attn_layer_indices": [0],
                },
                expansion=GATED,
            ),
            presets=published.BAMBA,
        ),
        Architecture(
            "falconh1",
            "Falcon H1",
            "falcon_h1",
            ("FalconH1Config", "FalconH1"),
            Training(
                GROUPED_NAMES,
                {
                    "tie_word_embeddings": True,
                    "mamba_d_ssm": None,
                    "mamba_n_heads": 8,
                    "mamba_d_state": 32,
                },
                expansion=GATED,
            ),
            "tiiuae",
            published.FALCONH1,
            module="falcon_h1",
        ),
        Architecture(
            "nemotronh",
            "Nemotron H",
            "nemotron_h",
            ("NemotronHConfig", "NemotronH"),
            Training(
                GROUPED_NAMES,
                {
                    "head_dim": 32,
                    "mamba_num_heads": 8,
                    "mamba_head_dim": 32,
                    "n_groups": 1,
                    "ssm_state_size": 32,
                    "tie_word_embeddings": True,
                },
            ),
            "nvidia",
            published.NEMOTRONH,
            module="nemotron_h",
        ),
        Architecture(
            "jamba",
            "Jamba",
            "jamba",
            ("JambaConfig", "Jamba"),
            Training(
                GROUPED_NAMES,
                {
                    "tie_word_embeddings": True,
                    "num_experts": 4,
                    "attn_layer_period": 4,
                    "attn_layer_offset": 1,
                },
                expansion=GATED / 2,  # two experts per token
            ),
            "ai21labs",
            published.JAMBA,
            classifies=True,
        ),
        *(
            Architecture(
                name,
                title,
                model_type,
                ("MambaConfig", "Mamba"),
                Training(
                    {"layers": ("num_hidden_layers",), "width": ("hidden_size",)},
                    {"tie_word_embeddings": True, **small},
                ),
                presets=sizes,
                names={name: (model_type,)},
                module="mamba",
            )
            for name, title, model_type, small, sizes in (
                ("mamba", "Mamba", "mamba", {}, published.MAMBA),
                (
                    "mamba2",
                    "Mamba 2",
                    "mamba2",
                    {"head_dim": 32, "state_size": 32, "n_groups": 1},
                    published.MAMBA2,
                ),
                ("falconmamba", "Falcon Mamba", "falcon_mamba", {}, published.FALCONMAMBA),
            )
        ),
        Architecture(
            "rwkv",
            "RWKV-4",
            "rwkv",
            ("RWKVConfig", "RWKV"),
            Training({"layers": ("num_hidden_layers",), "width": ("hidden_size",)}),
            "RWKV",
            published.RWKV,
        ),
        # `train` supports encoder-decoder models with labels only.
        Architecture(
            "t5",
            "T5",
            "t5",
            ("T5Config", "T5"),
            Training({}),
            presets=published.T5,
            classifier_class="T5Classifier",
            encoder_class="T5Encoder",
        ),
        Architecture(
            "bart",
            "BART",
            "bart",
            ("BartConfig", "Bart"),
            Training({}),
            presets=published.BART,
            names={
                "bart": ("bart",),
                "plbart": ("plbart",),
                "mbart": ("mbart",),
                "pegasus": ("pegasus",),
                "marian": ("marian",),
                "m2m100": ("m2m_100",),
            },
            classifier_class="BartClassifier",
        ),
        # Encoders.
        Architecture(
            "bert",
            "BERT",
            "bert",
            ("BertConfig", "Bert"),
            Training({}),
            presets=published.BERT,
            names={"bert": ("bert",)},
            is_encoder=True,
        ),
        Architecture(
            "roberta",
            "RoBERTa",
            "roberta",
            ("BertConfig", "Bert"),
            Training({}),
            presets=published.ROBERTA,
            names={
                "roberta": ("roberta",),
                "xlmroberta": ("xlm-roberta",),
                "camembert": ("camembert",),
            },
            module="bert",
            is_encoder=True,
        ),
        Architecture(
            "distilbert",
            "DistilBERT",
            "distilbert",
            ("BertConfig", "Bert"),
            Training({}),
            presets=published.DISTILBERT,
            names={"distilbert": ("distilbert",)},
            module="bert",
            is_encoder=True,
        ),
        Architecture(
            "electra",
            "ELECTRA",
            "electra",
            ("BertConfig", "Bert"),
            Training({}),
            presets=published.ELECTRA,
            names={"electra": ("electra",)},
            module="bert",
            is_encoder=True,
        ),
        Architecture(
            "albert",
            "ALBERT",
            "albert",
            ("BertConfig", "Bert"),
            Training({}),
            "albert",
            published.ALBERT,
            names={"albert": ("albert",)},
            module="bert",
            is_encoder=True,
        ),
        Architecture(
            "mpnet",
            "MPNet",
            "mpnet",
            ("MPNetConfig", "MPNet"),
            Training({}),
            presets=published.MPNET,
            is_encoder=True,
        ),
        Architecture(
            "modernbert",
            "ModernBERT",
            "modernbert",
            ("ModernBertConfig", "ModernBert"),
            Training({}),
            "answerdotai",
            published.MODERNBERT,
            is_encoder=True,
        ),
        Architecture(
            "debertav2",
            "DeBERTa",
            "deberta-v2",
            ("DebertaConfig", "Deberta"),
            Training({}),
            "microsoft",
            published.DEBERTAV2,
            names={"debertav2": ("deberta-v2",)},
            module="deberta",
            is_encoder=True,
        ),
        Architecture(
            "deberta",
            "DeBERTa",
            "deberta",
            ("DebertaConfig", "Deberta"),
            Training({}),
            "microsoft",
            published.DEBERTA,
            names={"deberta": ("deberta",)},
            is_encoder=True,
        ),
        *(
            Architecture(
                name,
                title,
                model_type,
                ("NomicBertConfig", "NomicBert"),
                Training({}),
                presets=sizes,
                names={name: model_types},
                module="nomicbert",
                is_encoder=True,
            )
            for name, title, model_type, sizes, model_types in (
                ("nomicbert", "NomicBERT", "nomic_bert", published.NOMICBERT, ("nomic_bert",)),
                ("gte", "GTE", "gte", published.GTE, ("gte", "new")),
                (
                    "jinav3",
                    "jina-embeddings-v3",
                    "jina_embeddings_v3",
                    published.JINAV3,
                    ("jina_embeddings_v3",),
                ),
                ("jinabert", "JinaBERT", "jina_bert", published.JINABERT, ("jina_bert",)),
                (
                    "jinabertcode",
                    "JinaBERT",
                    "jina_bert_code",
                    published.JINABERTCODE,
                    ("jina_bert_code",),
                ),
            )
        ),
        Architecture(
            "eurobert",
            "EuroBERT",
            "eurobert",
            ("EuroBertConfig", "EuroBert"),
            Training({}),
            "EuroBERT",
            published.EUROBERT,
            names={"eurobert": ("eurobert",)},
            is_encoder=True,
        ),
        Architecture(
            "laya",
            "Laya",
            "laya",
            ("LayaConfig", "Laya"),
            Training({}),
            "convaiinnovations",
            published.LAYA,
            is_encoder=True,
        ),
        Architecture(
            "embeddinggemma2",
            "EmbeddingGemma 2",
            "embedding_gemma2_text",
            ("EmbeddingGemma2Config", "EmbeddingGemma2"),
            Training({}),
            "google",
            published.EMBEDDINGGEMMA2,
            wrappers=("embedding_gemma2",),
            is_encoder=True,
        ),
    )
}


ENTRIES = {
    name: Entry(name, architecture, model_types)
    for architecture in ARCHITECTURES.values()
    for name, model_types in (
        architecture.names or {architecture.name: (architecture.model_type,)}
    ).items()
}


# relatives of supported model types that are not supported: the reason, and an alternative
MISSING = {
    "pegasus_x": "its encoder attends in blocks and to global tokens. Use a pegasus model, and"
    " divide long texts",
}


def entry_of(model_type: object) -> Entry:
    """The entry for config.json's model_type. ValueError: it is not supported; the message lists
    supported types.
    """
    for entry in ENTRIES.values():
        if model_type in entry.model_types:
            return entry
    if isinstance(model_type, str) and model_type in MISSING:
        raise ValueError(
            f"config.json's model_type is {brief(model_type)}, which is not supported:"
            f" {MISSING[model_type]}"
        )
    supported = ", ".join(
        model_type for entry in ENTRIES.values() for model_type in entry.model_types
    )
    raise ValueError(
        f"config.json's model_type is {brief(model_type)}, which is not supported; supported types:"
        f" {supported}"
    )


def declared_type(settings: Mapping[str, object]) -> object:
    """config.json's model_type. Files of JinaBERT have BERT's, and name their code instead.

    ValueError: the code is unknown.
    """
    model_type = settings.get("model_type")
    if model_type != "bert" or settings.get("position_embedding_type") != "alibi":
        return model_type
    code = f"{settings.get('auto_map')} {settings.get('_name_or_path')}"
    heads = settings.get("num_attention_heads", 12)
    is_power = isinstance(heads, int) and heads > 0 and heads & (heads - 1) == 0
    if "ForSequenceClassification" in f"{settings.get('architectures')}" and not is_power:
        # Its code halves some slopes.
        raise ValueError(
            "config.json describes a reranker of Jina with slopes of attention that differ from"
            " JinaBERT's, which are not supported: use another reranker"
        )
    return "jina_bert_code" if "qk-post-norm" in code else "jina_bert"


def named_entry(name: str) -> tuple[Entry, str] | None:
    """The entry and the model type of a name; None: no architecture has it.

    name: a model type ("qwen3_5_text"), also of a multimodal model ("qwen3_5"), or a public name
    ("qwen35").
    """
    for entry in ENTRIES.values():
        for model_type in entry.model_types:
            if model_type in (name, f"{name}_text"):
                return entry, model_type
    return (ENTRIES[name], ENTRIES[name].model_types[0]) if name in ENTRIES else None


def similar_model_type(name: str) -> str | None:
    """The model type that a misspelled name resembles; None without such a type.

    A name that continues a model type, such as xlm-roberta-base, can be a repository of the Hub.
    """
    types = [model_type for entry in ENTRIES.values() for model_type in entry.model_types]
    if any(name.startswith(f"{model_type}-") for model_type in types):
        return None
    return next(iter(get_close_matches(name.lower(), types, n=1, cutoff=0.85)), None)


def architecture_of(model_type: object) -> Architecture:
    """The architecture for config.json's model_type. ValueError: it is not supported."""
    return entry_of(model_type).architecture


def preset(name: str) -> "tuple[Architecture, ModelConfig] | None":
    """The architecture and config of a published size such as gpt2-xl, with or without its owner;
    None if unknown.
    """
    for architecture in ARCHITECTURES.values():
        for size, settings in architecture.presets.items():
            if name in (size, f"{architecture.owner}/{size}", size.rpartition("/")[2]):
                return architecture, entry_of(
                    settings.get("model_type", architecture.model_type)
                ).config(settings)
    return None
