"""Hunyuan without experts: Llama with norms of q and k after the rotation.

Sources
    Tencent (2025), "Hunyuan-7B"; the base of the rotation: "NTK-aware scaled RoPE" (2023).
    Hub docs: `transformers`, model_type "hunyuan_v1_dense".

Differences from similar architectures
    Qwen 3    norms each head of q and k before the rotation.
    Llama     rope_type dynamic depends on the length. Hunyuan's has a fixed alpha: theta · alpha^(D
    / (D - 2)).
"""

from dataclasses import dataclass, field
from typing import ClassVar

from minhub_py.models.decoder import Decoder
from minhub_py.models.structure import DecoderConfig, Structure, biases
from minhub_py.system.json_text import JsonObject


class Hunyuan(Decoder):
    config: "HunyuanConfig"


@dataclass(frozen=True)
class HunyuanConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Hunyuan"
    MODEL_TYPE: ClassVar = "hunyuan_v1_dense"
    ARCHITECTURE: ClassVar = "HunYuanDenseV1ForCausalLM"
    ONLY_VALUE: ClassVar = {
        "use_qk_norm": True,
        "use_cla": False,
        "mlp_bias": False,
        "num_experts": 1,
        "use_rotary_pos_emb": True,
        "norm_type": "rms",
    }
    NO_EFFECT: ClassVar = frozenset(
        "pretraining_tp eod_token_id im_start_id im_end_id im_newline_id mask_init_id text_start_id"
        " text_end_id org_vocab_size cla_share_factor add_classification_head class_num pool_type"
        " enable_lm_head_fp32 sep_token_id attention_head_dim dense_list pad_id".split()
    )

    vocab_size: int = 290943
    rms_norm_eps: float = 1e-5
    # None: hidden_size / heads
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})
    attention_bias: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults. alpha changes rope_theta."""
        rope = super().rope
        if rope["rope_type"] != "dynamic" or not rope.get("alpha"):
            return rope
        if not isinstance(rope["alpha"], int | float) or rope["alpha"] <= 0:
            raise ValueError(
                f"Hunyuan: rope_parameters' alpha must be above 0, not {rope['alpha']!r}"
            )
        size = self.head_size
        return {
            "rope_type": "default",
            "rope_theta": rope["rope_theta"] * rope["alpha"] ** (size / (size - 2)),
        }

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_bias),
            head_norms="after rotation",
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        return {**super().to_hub(), "rope_parameters": super().rope, "head_dim": self.head_size}
