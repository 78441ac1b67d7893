"""GPT-OSS with experts in MXFP4, as in the published files; tests/support/cases/gptoss.py has the
other cases.

The reference is transformers' model with weights that transformers unpacks from the blocks and
scales.
"""

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from guarantees import RUNNER
from memory import MB, growth
from needs import need_kernels, needs
from random_weights import draw
from references import LENGTH, assert_close, ids_of, read
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import minhub_py
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.export.convert import convert
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.native.library import library
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.loading.files import open_files
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.experts import Packed
from minhub_py.models.registry import preset

MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
SMALL = {
    "model_type": "gpt_oss",
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "max_position_embeddings": 96,
}


@torch.no_grad()
def packed_checkpoint(
    folder: Path, settings: dict[str, Any], dtype: torch.dtype = torch.float32
) -> Any:
    """Write a file with random experts in MXFP4. Returns the reference in float32, unpacked by
    transformers.
    """
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**settings), dtype=torch.float32
    ).eval()
    draw(reference)
    tensors = {name: tensor.to(dtype) for name, tensor in reference.state_dict().items()}
    reference.load_state_dict(tensors)  # rounded equally
    generator = torch.Generator().manual_seed(1)
    for name, weight in reference.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            E, inputs, outputs = weight.shape
            blocks = torch.randint(
                256, (E, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8
            )
            # Near the scale that preserves the size of activations, different for each group.
            middle = 127 + round(float(torch.tensor(0.6 * inputs**-0.5).log2()))
            low, high = middle - 2, middle + 2
            scales = torch.randint(
                low, high, (E, outputs, inputs // 32), generator=generator, dtype=torch.uint8
            )
            weight.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": MXFP4}))
    return reference


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """The reference, our model, and the file. They are shared: do not change them."""
    folder = tmp_path_factory.mktemp("mxfp4")
    reference = packed_checkpoint(folder, SMALL)
    return reference, minhub_py.from_pretrained(folder, device="cpu"), folder


def experts_of(model: Any) -> list[Packed]:
    return [module for module in model.modules() if type(module) is Packed]


@torch.no_grad()
def test_logits_match_transformers(packed) -> None:
    reference, model, _ = packed
    for rows in (1, 3):
        ids = ids_of(rows)
        expected = reference(ids).logits
        assert expected.abs().max() > 3
        assert_close(model(ids), expected)
        assert_close(read(model, ids, [3, 1, 11], model.new_cache(rows, LENGTH)), expected)


def test_weights_of_experts_are_transformers_own(packed) -> None:
    reference, model, _ = packed
    for ours, reference_layer in zip(model.layers, reference.model.layers, strict=True):
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(reference_layer.mlp.experts, name)
            for number in range(SMALL["num_local_experts"]):
                assert torch.equal(
                    getattr(ours.mlp.experts, name).expert(number, torch.float32), weight[number]
                )


@torch.inference_mode()
@pytest.mark.parametrize("kernels", ["plain", "avx2", "avx512"])
def test_native_logits_match_forward(packed, kernels: str) -> None:
    """From the bytes of the file; bitwise identical in one call, in chunks, and with other rows."""
    need_kernels(kernels)
    try:
        reference, model, _ = packed
        runner = runner_of(model)
        assert type(runner) is NativeRunner
        held = {tensor.data_ptr() for tensor in runner.program.references}
        assert all(
            {experts.blocks.data_ptr(), experts.scales.data_ptr()} <= held
            for experts in experts_of(model)
        )
        ids = ids_of(1)[0].tolist()
        result = runner.forward({0: ids}, runner.new_cache(1, LENGTH), every=True).clone()
        assert_close(result, reference(torch.tensor([ids])).logits[0])
        cache = runner.new_cache(1, LENGTH)
        pieces = [
            runner.forward({0: ids[start:end]}, cache, every=True).clone()
            for start, end in pairwise((0, 13, 14, 15, 40, LENGTH))
        ]
        assert torch.equal(torch.cat(pieces), result)
        cache = runner.new_cache(3, LENGTH)
        assert torch.equal(
            runner.forward({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache), result[[4, 39, 1]]
        )
    finally:
        library().choose(None)


@torch.inference_mode()
def test_scores_that_are_no_numbers_keep_to_their_memory(packed) -> None:
    """A router with NaN or infinity still chooses different experts; the logits show the error."""
    for value in (torch.nan, -torch.inf, torch.inf):
        model = copy.deepcopy(packed[1])
        model.layers[0].mlp.router.bias.fill_(value)
        runner = runner_of(model)
        assert type(runner) is RUNNER
        result = runner.forward({0: ids_of(1)[0].tolist()}, runner.new_cache(1, LENGTH), every=True)
        assert result.isnan().all()


@needs("decoder")
def test_16_bits_and_long_texts(packed, tmp_path: Path) -> None:
    """The C decoder computes long texts of a bfloat16 file, too: `forward` would unpack experts at
    each call.
    """
    reference = packed_checkpoint(tmp_path, SMALL, torch.bfloat16)
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {experts.blocks.dtype for experts in experts_of(model)} == {torch.uint8}
    runner, ids = runner_of(model), ids_of(1)
    assert type(runner) is NativeRunner
    assert runner.long_prompt is None
    with torch.no_grad():
        expected = reference(ids).logits[0]
        actual = [
            runner.forward({0: ids[0].tolist()}, runner.new_cache(1, LENGTH), every=True),
            model(ids)[0].float(),
        ]
    for logits, most in zip(actual, (0.02, 0.08), strict=True):
        assert ((logits - expected).square().mean() / expected.square().mean()).sqrt() < most
    wide = minhub_py.from_pretrained(tmp_path, device="cpu", dtype="float32")
    with torch.no_grad():
        assert_close(wide(ids)[0], expected)


def test_packed_stays_packed(packed, tmp_path: Path) -> None:
    """Saved, and converted in both directions: the bytes of the experts and the logits are the
    same.
    """
    _, model, folder = packed
    ids = ids_of(2)
    minhub_py.save_pretrained(model, tmp_path / "saved")
    convert(open_files(folder), tmp_path / "hub", max_shard_size=30_000)
    convert(open_files(tmp_path / "hub"), tmp_path / "native", to="native")
    convert(open_files(tmp_path / "native"), tmp_path / "back")
    for name in ("saved", "hub", "native", "back"):
        again = minhub_py.gptoss_from_pretrained(tmp_path / name, device="cpu")
        assert torch.equal(again(ids), model(ids))
    original = load_file(folder / "model.safetensors")
    for name in ("saved", "back"):
        tensors = load_file(tmp_path / name / "model.safetensors")
        assert tensors.keys() == original.keys()
        assert all(torch.equal(tensor, original[key]) for key, tensor in tensors.items())
    convert(open_files(folder), tmp_path / "half", dtype=torch.bfloat16)
    half = Checkpoint(tmp_path / "half")
    assert {tensor.dtype for tensor in half.contents.meta.values()} == {torch.bfloat16, torch.uint8}
    for name in ("saved", "hub", "native", "back", "half"):
        # transformers needs Triton to load it, even on a CPU. It reads these settings:
        assert AutoConfig.from_pretrained(tmp_path / name).quantization_config == MXFP4


def test_texts_are_the_references(packed) -> None:
    """Greedy texts, and rows of a batch equal single runs."""
    reference, model, _ = packed
    reference.generation_config.eos_token_id = None
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17, 30)]
    texts = minhub_py.generate(model, prompts, 25, temperature=0, eos_id=None)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids,
            max_new_tokens=25,
            do_sample=False,
            pad_token_id=0,
            attention_mask=torch.ones_like(ids),
        )
        assert text == expected[0, len(prompt) :].tolist()
        assert minhub_py.generate(model, [prompt], 25, temperature=0, eos_id=None) == [text]


def test_inspect_and_verify_read_packed_experts(packed) -> None:
    reference, _, folder = packed
    expected = sum(parameter.numel() for parameter in reference.parameters())
    report = inspect(str(folder))
    assert report["parameters"]["total"] == expected
    assert {"dtype": "uint8", "shape": [6, 192, 2, 16]}.items() <= next(
        row
        for row in report["tensors"]
        if row["native"] == "layers.1.mlp.experts.gate_up_proj.blocks"
    ).items()
    assert verify(str(folder))["problems"] == []


@pytest.mark.parametrize("layout", ["hub", "native"])
def test_verify_finds_scales_that_are_nan(packed, tmp_path: Path, layout: str) -> None:
    """255 is NaN in MXFP4, for 32 numbers at once; 254 is a number."""
    file = tmp_path / layout / "model.safetensors"
    convert(open_files(packed[2]), file.parent, to=layout)
    with safe_open(file, "pt") as opened:
        about = opened.metadata()  # which determines the layout
    tensors = load_file(file)
    first, *_, last = (name for name in tensors if name.endswith("scales"))
    tensors[first].view(-1)[[0, 5, -1]] = torch.tensor([255, 254, 255], dtype=torch.uint8)
    tensors[last].view(-1)[-1] = 255
    file.unlink()
    save_file(tensors, file, about)
    size = tensors[first].numel()
    result = verify(str(file.parent))["problems"]
    assert result[0] == f"{first}: 2 of {size} scales are 255, which means NaN"
    assert [problem.split(":")[0] for problem in result] == [first, last]


def test_a_tensor_of_another_form_is_refused(packed, tmp_path: Path) -> None:
    folder = packed[2]
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_"
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for change, message in (
        (
            {f"{name}blocks": tensors[f"{name}blocks"].float()},
            "wrong dtype: layers.0.mlp.experts.down_proj.blocks",
        ),
        (
            {f"{name}scales": tensors[f"{name}scales"][:, :, :1]},
            r"down_proj.scales is \(6, 64, 1\), the config says",
        ),
        (
            {"model.layers.0.mlp.experts.down_proj": torch.ones(1)},
            "unused: layers.0.mlp.experts.down_proj",
        ),
    ):
        save_file(
            {**tensors, **{key: tensor.contiguous() for key, tensor in change.items()}},
            tmp_path / "model.safetensors",
        )
        with pytest.raises(ValueError, match=message):
            minhub_py.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_logits_are_close_to_float32(packed, kind: str) -> None:
    """Attention, embedding and head are quantized; the experts do not change."""
    reference, model, folder = packed
    smaller = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    assert type(runner_of(smaller)) is RUNNER
    for ours, other in zip(experts_of(smaller), experts_of(model), strict=True):
        assert torch.equal(ours.blocks, other.blocks)
    ids = ids_of(1)
    with torch.no_grad():
        expected, actual = reference(ids).logits, smaller(ids)
    assert (
        0
        < ((actual - expected).square().mean() / expected.square().mean()).sqrt()
        < (0.1 if kind == "int8" else 0.6)
    )
    [text] = minhub_py.generate(smaller, ids[:, :5].tolist(), 12, temperature=0, eos_id=None)
    assert (
        text
        == minhub_py.generate(
            smaller, ids[:, :5].tolist(), 12, temperature=0, eos_id=None, speculate=4
        )[0]
    )


def test_operations_that_need_floats_are_rejected(packed, tmp_path: Path) -> None:
    _, model, folder = packed
    with pytest.raises(
        ValueError, match="experts in MXFP4 cannot be written as TorchScript: use the model in BF16"
    ):
        save_torchscript(model, tmp_path / "model.pt")
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose is a rose. " * 200)
    with pytest.raises(
        ValueError, match="weights in mxfp4 cannot be trained: use the model in BF16"
    ):
        minhub_py.train(
            text,
            tmp_path / "run",
            start=str(folder),
            tokenizer="characters",
            steps=1,
            progress=False,
        )


def test_a_fresh_packed_model(packed) -> None:
    """A model from a packed file's config has random blocks, with the scale of the config."""
    fresh = minhub_py.gptoss_from_config(packed[2])
    assert fresh.config == packed[1].config
    weight = torch.stack([experts.expert(0, torch.float32).std() for experts in experts_of(fresh)])
    assert ((weight / fresh.config.initializer_range).log2().abs() < 0.6).all()
    for moved in (fresh.to(torch.bfloat16), copy.deepcopy(fresh).double()):
        assert {experts.blocks.dtype for experts in experts_of(moved)} == {torch.uint8}
    again = minhub_py.gptoss_from_config(packed[2])
    again.load_state_dict(fresh.state_dict())
    assert all(
        torch.equal(one.blocks, other.blocks)
        for one, other in zip(experts_of(fresh), experts_of(again), strict=True)
    )


def test_published_files_have_packed_experts() -> None:
    config = preset("openai/gpt-oss-20b")[1]
    assert config.quantization_config["quant_method"] == "mxfp4"
    names = {row["hub"]: row for row in inspect("openai/gpt-oss-20b")["tensors"]}
    assert names["model.layers.23.mlp.experts.gate_up_proj_blocks"]["shape"] == [32, 5760, 90, 16]
    assert names["model.layers.23.mlp.experts.down_proj_scales"]["shape"] == [32, 2880, 90]
    assert config.rope["rope_type"] == "yarn"


READ = """
from minhub_py.inference.native_runner import runner_of
model = from_pretrained(sys.argv[1], device="cpu")
runner = runner_of(model)
ids = json.loads(sys.argv[2])
logits = runner.forward({0: ids}, runner.new_cache(1, 256), every=True).clone()
torch.save(logits, sys.argv[3])
report()
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)  # transformers makes 1.6 billion numbers of the blocks
def test_at_the_real_width(tmp_path: Path) -> None:
    """The logits and the memory of two layers with the published sizes, 0.9 GB."""
    settings = {
        "model_type": "gpt_oss",
        "vocab_size": 2000,
        "num_hidden_layers": 2,
        "num_local_experts": 32,
    }
    reference = packed_checkpoint(tmp_path, settings)
    # longer than the window, 128
    ids = torch.randint(2000, (1, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(ids).logits[0]
    del reference
    size = (tmp_path / "model.safetensors").stat().st_size
    grown = growth(READ, tmp_path, json.dumps(ids[0].tolist()), tmp_path / "logits.pt")
    assert_close(torch.load(tmp_path / "logits.pt"), expected)
    assert grown["RssAnon"] < 100 * MB
    assert grown["VmHWM"] < size + 100 * MB
    assert grown["VmRSS"] > 0.8 * size  # otherwise nothing was measured
