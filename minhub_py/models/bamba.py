"""Bamba: Llama with a selective state space in place of attention in most layers.

Sources
    IBM, Princeton, CMU and UIUC (2024), "Bamba: Inference-Efficient Hybrid Mamba2 Model"; models/hybrid.py for
        the layers, and models/state_space.py for the scan.
    Hub docs: `transformers`, model_type "bamba".

Differences from similar architectures
    Llama      has attention in all layers, and rotates all numbers of a head. Bamba rotates the first half.
    Granite 4  has factors, experts, and no positions in the sizes with Mamba layers.

transformers always rotates half of each head, as the original code does; a file with another partial_rotary_factor is
rejected by name.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.hybrid import Hybrid, Mamba2Settings, layer_kinds
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.structure import Structure, biases
from minhub_py.system.json_text import JsonObject

HALF = 0.5


class Bamba(Hybrid):
    config: "BambaConfig"


@dataclass(frozen=True)
class BambaConfig(Mamba2Settings):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Bamba"
    MODEL_TYPE: ClassVar = "bamba"
    ARCHITECTURE: ClassVar = "BambaForCausalLM"
    ROTATED: ClassVar = HALF
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}
    # attn_rotary_emb: of the original files, the number of rotated numbers of a head
    NO_EFFECT: ClassVar = frozenset(
        "num_logits_to_keep z_loss_coefficient mamba_chunk_size use_mamba_kernels attn_rotary_emb".split()
    )
    DERIVED: ClassVar = ("head_dim", "layer_types", "layers_block_type")

    vocab_size: int = 128000
    intermediate_size: int = 14336
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    max_position_embeddings: int = field(default=2**18, metadata={"range": (1, 2**31)})
    attn_layer_indices: list[int] | None = None  # layers with attention
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = self.rope["partial_rotary_factor"]
        if factor != HALF:
            raise ValueError(
                f"Bamba: partial_rotary_factor must be {HALF}, the only value in transformers, not {factor}"
            )
        layers = self.num_hidden_layers
        if any(not 0 <= layer < layers for layer in self.attn_layer_indices or ()):
            raise ValueError(
                f"Bamba: attn_layer_indices must be layers from 0 to {layers - 1}, not"
                f" {self.attn_layer_indices!r:.80}"
            )
        self.check_heads()

    @property
    def kinds(self) -> list[str]:
        """mamba or attention, for each layer."""
        return layer_kinds(self.num_hidden_layers, self.attn_layer_indices or ())

    @property
    def layer_types(self) -> list[str]:
        """transformers' names of the layers' kinds."""
        names = {"attention": "full_attention", "mamba": "linear_attention"}
        return [names[kind] for kind in self.kinds]

    @property
    def layers_block_type(self) -> list[str]:
        """The same; transformers writes both."""
        return self.layer_types

    @property
    def structure(self) -> Structure:
        """The differences of the attention from Llama's."""
        qkvo = self.attention_bias
        return self.declared(eps=self.rms_norm_eps, biases=biases(qkvo, qkvo, self.mlp_bias))

    def mlp(self, layer: int) -> GatedMLP:  # the same in all layers
        """The MLP of a layer."""
        return GatedMLP(self.hidden_size, self.intermediate_size, self.hidden_act, self.mlp_bias)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        return settings if self.attn_layer_indices else {**settings, "attn_layer_indices": []}
