"""Adapters in PEFT's format: the values that PEFT computes, names, and errors."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from adapters import random_adapter
from needs import package
from references import assert_close, ids_of, random_model
from safetensors.torch import load_file, save_file
from small_models import T5

from minhub_py import from_pretrained, generate, save_adapter, save_pretrained
from minhub_py.loading.adapters.attach import attach
from minhub_py.loading.adapters.config import DEFAULT_TARGETS
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.models.lora import LoRAFactors
from minhub_py.models.registry import ENTRIES

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
# transformers' class, settings, endings of target modules
MODELS: dict[str, tuple[str, dict[str, Any], list[str] | str]] = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40},
             ["c_attn", "c_fc"]),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL, ["query_key_value", "dense"]),
    "llama": ("LlamaForCausalLM", GROUPED, "all-linear"),
    "qwen3": ("Qwen3ForCausalLM", GROUPED, ["q_proj", "o_proj", "down_proj"]),
    "gemma3_text": ("Gemma3ForCausalLM", GROUPED | {"sliding_window": 8}, ["k_proj", "up_proj"]),
    "t5": ("T5ForConditionalGeneration", T5 | {"decoder_start_token_id": 0}, ["q", "v", "wo"]),
    "bert": ("BertForSequenceClassification", SMALL | {"num_labels": 3}, ["query", "value", "dense"]),
}  # fmt: skip


def call(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The result of a model, ours or transformers'."""
    with torch.no_grad():
        if getattr(model, "encoder_decoder", False):  # ours
            result = model(ids, ids[:, :4])
        elif getattr(model.config, "is_encoder_decoder", False):
            result = model(input_ids=ids, decoder_input_ids=ids[:, :4])
        else:
            result = model(ids)
    return result if isinstance(result, torch.Tensor) else result.logits


def test_default_targets_are_those_of_peft() -> None:
    """For each supported model_type that PEFT has a default for."""
    package("peft")
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as EXPECTED

    types = [kind for entry in ENTRIES.values() for kind in entry.model_types if kind in EXPECTED]
    assert {kind: DEFAULT_TARGETS.get(kind) for kind in types} == {
        kind: tuple(EXPECTED[kind]) for kind in types
    }
    assert DEFAULT_TARGETS.keys() - EXPECTED.keys() == {"distilbert"}


@pytest.mark.filterwarnings("ignore")  # PEFT's warnings about transformers
@pytest.mark.parametrize("name", MODELS)
def test_peft_reads_our_adapters_and_we_read_its(name: str, tmp_path: Path) -> None:
    """Large random factors, LoRA and DoRA, in both directions; tensors stay bitwise the same."""
    peft = package("peft")
    import transformers

    cls, settings, targets = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **settings)
    reference = getattr(transformers, cls)(config).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reference.save_pretrained(tmp_path / "base")
    ids = torch.randint(61, (2, 12))
    for dora in (False, True):
        task = "SEQ_CLS" if name == "bert" else None
        wrapped = peft.get_peft_model(
            getattr(transformers, cls).from_pretrained(tmp_path / "base"),
            peft.LoraConfig(
                r=4,
                lora_alpha=6,
                target_modules=targets,
                use_dora=dora,
                init_lora_weights=False,
                use_rslora=dora,
                task_type=task,
            ),
        ).eval()
        wrapped.save_pretrained(tmp_path / f"peft{dora}")
        adapted = from_pretrained(tmp_path / "base", adapter=tmp_path / f"peft{dora}")
        expected = call(wrapped, ids)
        scale = expected.abs().max()
        assert (call(adapted, ids) - expected).abs().max() <= 2e-6 * scale
        assert (call(adapted.adapter(None), ids) - expected).abs().max() > 1e-2 * scale
        save_adapter(adapted, tmp_path / f"ours{dora}")
        ours = load_file(tmp_path / f"ours{dora}" / "adapter_model.safetensors")
        original = load_file(tmp_path / f"peft{dora}" / "adapter_model.safetensors")
        assert ours.keys() == original.keys()
        assert all(torch.equal(ours[key], original[key]) for key in ours)
        plain = getattr(transformers, cls).from_pretrained(tmp_path / "base")
        again = peft.PeftModel.from_pretrained(plain, tmp_path / f"ours{dora}").eval()
        assert (call(again, ids) - expected).abs().max() <= 1e-6 * scale


def test_misfits_are_reported_by_name(tmp_path: Path) -> None:
    model, base = random_model("llama"), tmp_path / "base"
    save_pretrained(model, base)
    random_adapter(model, tmp_path / "a", target_modules=["q_proj", "v_proj"])
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")

    def error(
        changes: Mapping[str, Any] = MappingProxyType({}),
        removed: str = "",
        added: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> str:
        (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({**config, **changes}))
        left = {name: tensor for name, tensor in tensors.items() if name != removed}
        save_file({**left, **added}, tmp_path / "a" / "adapter_model.safetensors")
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            from_pretrained(base, adapter=tmp_path / "a")
        return str(caught.value)

    prefix = "base_model.model.model.layers"
    assert "missing: model.layers.0.self_attn.q_proj (A)" in error(
        removed=f"{prefix}.0.self_attn.q_proj.lora_A.weight"
    )
    other = {f"{prefix}.0.mlp.up_proj.lora_A.weight": torch.zeros(4, 32)}
    assert f"unexpected: {prefix}.0.mlp.up_proj.lora_A.weight" in error(added=other)
    assert f"unknown: {prefix}.0.attn.w" in error(added={f"{prefix}.0.attn.w": torch.zeros(1)})
    assert "wrong shape: model.layers.0.self_attn.q_proj (A) is (4, 32), not (5, 32)" in error(
        {"r": 5}
    )
    assert "peft_type is 'IA3'" in error({"peft_type": "IA3"})
    assert "use_qalora, use_soft" in error({"use_qalora": True, "use_soft": 1})
    assert "init_lora_weights is 'pissa'" in error({"init_lora_weights": "pissa"})
    assert "target_modules nothing matches no linear layer" in error(
        {"target_modules": ["nothing"]}
    )
    with pytest.raises(FileNotFoundError, match=r"no adapter_config\.json"):
        from_pretrained(base, adapter=base)


def test_adapters_share_the_weights_of_the_base(tmp_path: Path) -> None:
    model = random_model("gpt2")
    save_pretrained(model, tmp_path / "base")
    random_adapter(model, tmp_path / "a", target_modules=["c_attn"])
    random_adapter(model, tmp_path / "b", 1, target_modules=["c_attn", "c_fc"], use_dora=True)
    model = from_pretrained(tmp_path / "base", adapter={"a": tmp_path / "a", "b": tmp_path / "b"})
    a, b = model.adapter("a"), model.adapter("b")
    assert a.wte.weight is model.wte.weight
    assert b.h[0].mlp.c_fc.base is model.h[0].mlp.c_fc
    assert a.adapter("b") is b
    assert sum(isinstance(module, LoRAFactors) for module in a.modules()) == len(a.h)
    with pytest.raises(KeyError, match="'c': available are a, b"):
        model.adapter("c")
    with pytest.raises(ValueError, match="save_adapter"):
        save_pretrained(a, tmp_path)
    with pytest.raises(ValueError, match="no adapter: use save_pretrained"):
        save_adapter(model, tmp_path)
    prompts = [[1, 2, 3], [4, 5]]
    alone = [generate(network, prompts, 8, temperature=0, eos_id=None) for network in (model, a, b)]
    assert alone[0] != alone[1] != alone[2]


@pytest.mark.parametrize("dora", [False, True])
@torch.no_grad()
def test_adapters_of_mlx_are_read(dora: bool, tmp_path: Path) -> None:
    """The formula of mlx-lm applied to the weights: scale is not divided by the rank."""
    model = random_model("llama")
    weight = model.layers[1].self_attn.q_proj.weight
    a, b = torch.randn(weight.size(1), 4) * 0.2, torch.randn(4, weight.size(0)) * 0.2
    name = "model.layers.1.self_attn.q_proj"
    tensors = {f"{name}.lora_a": a, f"{name}.lora_b": b}
    changed = weight + 3.0 * (b.t() @ a.t())
    if dora:
        tensors[f"{name}.m"] = torch.rand(weight.size(0)) + 0.5
        changed = changed * (tensors[f"{name}.m"] / changed.norm(dim=1)).unsqueeze(1)
    save_file(tensors, tmp_path / "adapters.safetensors")
    settings = {"rank": 4, "scale": 3.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    kind = "dora" if dora else "lora"
    content = {"fine_tune_type": kind, "num_layers": 1, "lora_parameters": settings}
    (tmp_path / "adapter_config.json").write_text(json.dumps(content))
    actual = attach(model, read_adapter(tmp_path, model))(ids_of(1, 9))
    weight.copy_(changed)
    assert_close(actual, model(ids_of(1, 9)), 1e-5)
    (tmp_path / "adapter_config.json").write_text(json.dumps(content | {"fine_tune_type": "full"}))
    with pytest.raises(ValueError, match="fine_tune_type is 'full'"):
        read_adapter(tmp_path, model)
