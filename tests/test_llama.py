"""Llama, Mistral, Ministral, Ministral 3, Qwen 2 and 3 against transformers: the same files, the same logits.

The weights are drawn large, so that attention is far from uniform: a wrong angle, window or group of heads moves the
logits by thousands of times the tolerance. All positions are compared, most of them beyond the windows and beyond the
original context of the stretched ropes.
"""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

import minhub_py
import weights_map
from minhub_py.registry import ENTRIES, entry_of

TOLERANCE = 5e-5  # of the largest logit
LENGTH = 70
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 24}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 24}
MINISTRAL3 = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
              "llama_4_scaling_beta": 0.3}  # fmt: skip
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

# By model_type; each differs from SMALL as it says.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-one-group": {"num_key_value_heads": 1},
    "llama-no-groups": {"num_key_value_heads": 4},
    "llama-groups-null": {"num_key_value_heads": None},
    "llama-head-dim": {"head_dim": 10},
    "llama-wide-heads": {"head_dim": 24, "num_attention_heads": 8, "num_key_value_heads": 4},
    "llama-attention-bias": {"attention_bias": True},
    "llama-mlp-bias": {"mlp_bias": True},
    "llama-biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-epsilon": {"rms_norm_eps": 0.1},
    "llama-gelu": {"hidden_act": "gelu"},
    "llama-tanh-gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "llama-relu": {"hidden_act": "relu"},
    "llama-theta": {"rope_theta": 37.0},
    "llama-theta-new": {"rope_parameters": {"rope_type": "default", "rope_theta": 37.0}},
    "llama-linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 50.0},
    "llama-linear-new": {"rope_parameters": {"rope_type": "linear", "factor": 0.5, "rope_theta": 50.0}},
    "llama-dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama-llama3": {"rope_parameters": LLAMA3},
    "llama-llama3-old": {"rope_scaling": {key: LLAMA3[key] for key in LLAMA3 if key != "rope_theta"},
                         "rope_theta": 500.0},
    "llama-llama3-no-original": {"rope_parameters": {key: LLAMA3[key] for key in LLAMA3 if key[:8] != "original"}},
    "llama-yarn": {"rope_parameters": YARN},
    "llama-yarn-old": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}},
    "llama-yarn-betas": {"rope_parameters": {**YARN, "beta_fast": 4.0, "beta_slow": 0.5}},
    "llama-yarn-exact": {"rope_parameters": {**YARN, "truncate": False}},
    "llama-yarn-attention": {"rope_parameters": {**YARN, "attention_factor": 0.7}},
    "llama-yarn-mscales": {"rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.2}},
    "llama-dropout": {"attention_dropout": 0.5},
    "mistral": {"sliding_window": None},
    "mistral-window": {"sliding_window": 7},
    "mistral-window-1": {"sliding_window": 1},
    "mistral-head-dim": {"sliding_window": 9, "head_dim": 12},
    "mistral-window-absent": {},
    "mistral-yarn": {"sliding_window": 20, "rope_parameters": YARN},
    "ministral": {"head_dim": 8, "sliding_window": 6},
    "ministral-mixed": {"head_dim": 12, "sliding_window": 6, "layer_types": MIXED},
    "ministral3": {"rope_parameters": MINISTRAL3},
    "ministral3-head-dim": {"rope_parameters": {**MINISTRAL3, "llama_4_scaling_beta": 0.1}, "head_dim": 8},
    "ministral3-window": {"rope_parameters": MINISTRAL3, "sliding_window": 11},
    "qwen2": {},
    "qwen2-windows": QWEN_WINDOWS,
    "qwen2-windows-unused": {"sliding_window": 5, "max_window_layers": 1},
    "qwen2-windows-everywhere": {**QWEN_WINDOWS, "max_window_layers": 0},
    "qwen2-layer-types": {"use_sliding_window": True, "sliding_window": 4, "layer_types": MIXED},
    "qwen2-tied-yarn": {"tie_word_embeddings": True, "rope_parameters": YARN},
    "qwen3": {},
    "qwen3-head-dim": {"head_dim": 20, "num_attention_heads": 8, "num_key_value_heads": 1},
    "qwen3-biases": {"attention_bias": True, "head_dim": 8},
    "qwen3-windows": {**QWEN_WINDOWS, "head_dim": 16},
    "qwen3-tied": {"tie_word_embeddings": True, "head_dim": 16, "rms_norm_eps": 1e-3},
}  # fmt: skip
# One for each model_type, and one for each kind of cache, for what does not depend on the other settings.
FEW = ["llama", "mistral-window", "ministral-mixed", "ministral3", "qwen2-windows", "qwen3"]


def settings_of(name: str) -> dict[str, Any]:
    return {"model_type": name.split("-", maxsplit=1)[0], **SMALL, **CASES[name]}


def draw(model: torch.nn.Module) -> None:
    """Large random weights, by which activations keep their size."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.4 * noise + ("norm" in name))
            else:
                parameter.copy_(noise * (2.0 if "embed" in name else 1.7 * parameter.shape[1] ** -0.5))


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): the reference, and our model of the file that it saves. They are shared: leave them as they are."""
    made: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any, Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            settings = settings_of(name)
            reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).eval()
            draw(reference)
            reference.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
            # As it was given, in the old spelling or the new, and not as transformers writes it.
            (folder / "config.json").write_text(json.dumps(settings))
            made[name] = reference, minhub_py.from_pretrained(folder, device="cpu"), folder
        return made[name]

    return get


def ids_of(rows: int, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(SMALL["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(rows))


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


@torch.no_grad()
def read(model: Any, ids: torch.Tensor, pieces: list[int], cache: Any) -> torch.Tensor:
    """The logits of a text that is read in pieces, their sizes again and again until its end."""
    logits, place = [], 0
    for size in cycle(pieces):
        if place >= ids.size(1):
            return torch.cat(logits, dim=1)
        logits.append(model(ids[:, place : place + size], cache))
        place += size
    raise AssertionError


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_logits(load, name: str) -> None:
    """Of one row and of three; at once, and by a cache in pieces of several sizes."""
    reference, model, _ = load(name)
    for rows in (1, 3):
        ids = ids_of(rows)
        wanted = reference(ids).logits
        assert wanted.abs().max() > 3
        assert_close(model(ids), wanted)
        for pieces in ([1], [3, 1, 11, 1, 2], [41, 1, 1, 27]):
            assert_close(read(model, ids, pieces, model.new_cache(rows, LENGTH)), wanted)


@torch.no_grad()
@pytest.mark.parametrize("name", FEW)
def test_rows_of_different_lengths(load, name: str) -> None:
    reference, model, _ = load(name)
    ids, lengths = ids_of(4), [0, 3, 29, 40]
    wanted = reference(ids).logits
    cache = model.new_cache(4, LENGTH)
    for row, length in enumerate(lengths):
        if length:
            one = model.new_cache(1, LENGTH)
            model(ids[row : row + 1, :length], one)
            cache.set_row(row, one)
    for size in (1, 4, 1, 9):
        pieces = torch.stack([ids[row, length : length + size] for row, length in enumerate(lengths)])
        found = model(pieces, cache)
        for row, length in enumerate(lengths):
            assert_close(found[row], wanted[row, length : length + size])
        lengths = [length + size for length in lengths]
    cache.select([3, 1])
    found = model(torch.stack([ids[3, lengths[3] :][:2], ids[1, lengths[1] :][:2]]), cache)
    assert_close(found[0], wanted[3, lengths[3] : lengths[3] + 2])
    assert_close(found[1], wanted[1, lengths[1] : lengths[1] + 2])


def test_layers_keep_no_more_than_their_window(load) -> None:
    model = load("qwen2-windows")[1]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 50).layers] == [50, 5, 5]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 4).layers] == [4, 4, 4]


@pytest.mark.parametrize("name", CASES)
def test_saved_again_transformers_loads_it(load, name: str, tmp_path: Path) -> None:
    reference, model, _ = load(name)
    minhub_py.save_pretrained(model, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs) is type(reference)
    for key, tensor in reference.state_dict().items():
        assert torch.equal(theirs.state_dict()[key], tensor), key
    ids = ids_of(1)
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, reference(ids).logits)
    again = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert again.config.windows == model.config.windows
    assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize("name", ["llama-biases", "llama-llama3", "ministral3", "qwen2-windows", "qwen3-biases"])
def test_gradients(name: str) -> None:
    settings = {**settings_of(name), "pad_token_id": None}  # whose embedding gets no gradient in transformers
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).double()
    draw(reference)
    own = entry_of(settings["model_type"])
    model = own.family.Model(own.config(reference_settings(settings))).double()
    names = dict(weights_map.to_native("llama", reference.state_dict()))
    model.load_state_dict({key: names[key] for key in model.state_dict()})
    ids = ids_of(2)
    cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    cross_entropy(reference(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    wanted = weights_map.to_native("llama", {key: value.grad for key, value in reference.named_parameters()})
    for key, parameter in model.named_parameters():
        error = (parameter.grad - wanted[key]).abs().max() / wanted[key].abs().max()
        assert error < 1e-5, (key, error)  # the rotations are float32 in both


def reference_settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "rope_theta"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FEW)
def test_16_bits(load, name: str, dtype: torch.dtype) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    ids = ids_of(2)
    with torch.no_grad():
        wanted = reference(ids).logits
        found = read(model, ids, [30, 1, 7], model.new_cache(2, LENGTH))
    assert found.dtype == dtype
    assert ((found.float() - wanted).square().mean() / wanted.square().mean()).sqrt() < 0.08


@pytest.mark.parametrize("name", FEW)
def test_generate_and_score(load, name: str) -> None:
    """Greedy text as transformers writes it; a row of a batch as it is alone; scores as the logits say."""
    reference, model, _ = load(name)
    reference.generation_config.eos_token_id = None
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17, 30)]
    texts = minhub_py.generate(model, prompts, 25, temperature=0, eos_id=None)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        wanted = reference.generate(ids, max_new_tokens=25, do_sample=False, pad_token_id=0,
                                    attention_mask=torch.ones_like(ids))  # fmt: skip
        assert text == wanted[0, len(prompt) :].tolist()
        assert minhub_py.generate(model, [prompt], 25, temperature=0, eos_id=None) == [text]
    rows = minhub_py.generate(model, prompts, 12, seed=[1, 2, 3], eos_id=None)
    assert rows == [minhub_py.generate(model, [prompt], 12, seed=seed, eos_id=None)[0]
                    for seed, prompt in enumerate(prompts, 1)]  # fmt: skip
    [scores] = minhub_py.score(model, [prompts[2]])
    with torch.no_grad():
        logprobs = reference(torch.tensor([prompts[2]])).logits[0].log_softmax(dim=-1)
    wanted = logprobs[:-1].gather(1, torch.tensor(prompts[2][1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(scores, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("name", ["llama", "qwen2-windows", "qwen3-tied"])
def test_quantized(load, name: str, kind: str) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    ids = ids_of(1)
    with torch.no_grad():
        wanted, found = reference(ids).logits, model(ids)
    error = ((found - wanted).square().mean() / wanted.square().mean()).sqrt()
    assert 0 < error < (0.1 if kind == "int8" else 0.6)
    [text] = minhub_py.generate(model, ids[:, :5].tolist(), 12, temperature=0, eos_id=None)
    assert text == minhub_py.generate(model, ids[:, :5].tolist(), 12, temperature=0, eos_id=None, speculate=4)[0]


@pytest.mark.parametrize("entry", ["llama", "mistral", "ministral", "qwen2", "qwen3"])
def test_entry_points(load, entry: str, tmp_path: Path) -> None:
    name = next(name for name in FEW if name.split("-")[0] == entry)
    _, model, folder = load(name)
    same = getattr(minhub_py, f"{entry}_from_pretrained")(folder, device="cpu")
    assert torch.equal(same(ids_of(1)), model(ids_of(1)))
    fresh = getattr(minhub_py, f"{entry}_from_config")(folder)
    assert fresh.training
    assert fresh.config == model.config
    made = getattr(minhub_py, entry)(**SMALL, head_dim=8)
    assert made.config.model_type == entry
    others = [other for other in ENTRIES if other != entry and ENTRIES[other].family.name == "llama"]
    for other in others:
        with pytest.raises(ValueError, match=rf"holds a {entry} model: call {entry}_from_pretrained\(\)"):
            getattr(minhub_py, f"{other}_from_pretrained")(folder)


def test_the_text_model_of_a_multimodal_file(load, tmp_path: Path) -> None:
    """mistral3: settings below text_config, tensors below language_model; what is for pictures is left alone."""
    _, model, folder = load("ministral3")
    settings = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": settings,
             "vision_config": {"model_type": "pixtral"}, "image_token_index": 10}  # fmt: skip
    for names in ("language_model.model.", "model.language_model."):
        tensors = {key.replace("model.", names, 1) if key.startswith("model.") else
                   key if names.startswith("model.") else f"language_model.{key}": tensor
                   for key, tensor in load_file(folder / "model.safetensors").items()}  # fmt: skip
        prefix = "model." if names.startswith("model.") else ""
        tensors |= {f"{prefix}vision_tower.patch_conv.weight": torch.zeros(2, 3),
                    f"{prefix}multi_modal_projector.linear_1.bias": torch.zeros(2)}  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(outer))
        save_file(tensors, tmp_path / "model.safetensors")
        found = minhub_py.ministral_from_pretrained(tmp_path, device="cpu")
        assert torch.equal(found(ids_of(1)), model(ids_of(1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_theta must be above 1"),
        ({"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}}, "below high_freq_factor"),
        ({"sliding_window": 5}, "a llama model has no sliding_window"),
        ({"model_type": "mistral", "attention_bias": True}, "a mistral model has no attention_bias"),
        ({"model_type": "qwen2", "mlp_bias": True}, "a qwen2 model has no mlp_bias"),
        ({"model_type": "mistral", "layer_types": MIXED}, "a mistral model has no layer_types"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
        ({"head_dim": 7}, "must be even"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not one of silu"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1]}}, "rope_type 'longrope' is not one of"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2}}, "lacks high_freq_factor, low_freq_factor"),
        ({"rope_parameters": {"factor": 2}}, "rope_parameters has 'factor', which rope_type default does not know"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta cannot be 'x'"),
        ({"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 6.0}, "contradict each other"),
        ({"rope_parameters": YARN, "rope_scaling": {"type": "linear", "factor": 2}}, "contradict each other"),
        ({"rope_scaling": [1]}, r"rope_scaling cannot be \[1\]"),
        ({"partial_rotary_factor": 0.5}, "has a setting 'partial_rotary_factor' that this implementation"),
        ({"quantization_config": {"quant_method": "fp8"}}, "sets quantization_config"),
        ({"rms_norm_eps": True}, "rms_norm_eps cannot be True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers cannot be 0"),
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; there are models for"),
    ],
)  # fmt: skip
def test_settings_without_code_are_refused(load, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    _, _, folder = load("llama")
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**settings_of("llama"), **settings}))
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["llama", "llama-biases", "llama-yarn", "ministral-mixed", "ministral3", "qwen3"])
def test_torchscript(load, name: str, tmp_path: Path) -> None:
    """Any batch and length, dropout by mode, gradients; parameters under the model's names."""
    from minhub_py.torchscript import save_torchscript

    _, model, _ = load(name)
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    assert set(dict(script.named_parameters())) == set(dict(model.named_parameters()))
    with torch.no_grad():
        for rows, length in ((1, 1), (2, 9), (3, LENGTH)):
            assert_close(script(ids_of(rows, length)), model(ids_of(rows, length)), 1e-5)
    script(ids_of(2)).sum().backward()
    assert all(parameter.grad is not None for parameter in script.parameters())


@torch.inference_mode()
@pytest.mark.parametrize("kernels", ["plain", "avx2", "avx512"])
@pytest.mark.parametrize("name", CASES)
def test_the_native_decoder(load, name: str, kernels: str) -> None:
    """The logits of `forward`, with each kernel; the same bits at once, in pieces, and with other rows beside."""
    from minhub_py.inference.compiled import CompiledReader, library, reader_of

    if library() is None or library().choose(kernels.encode()) is None:
        pytest.skip(f"no {kernels} kernels here")
    try:
        model = load(name)[1]
        reader = reader_of(model)
        assert type(reader) is CompiledReader
        ids = ids_of(1)[0].tolist()
        found = reader.read({0: ids}, reader.new_cache(1, LENGTH), every=True).clone()
        assert_close(found, model(torch.tensor([ids]))[0])
        cache = reader.new_cache(1, LENGTH)
        pieces = [
            reader.read({0: ids[a:b]}, cache, every=True).clone()
            for a, b in ((0, 13), (13, 14), (14, 15), (15, LENGTH))
        ]
        assert torch.equal(torch.cat(pieces), found)
        cache = reader.new_cache(3, LENGTH)
        first = reader.read({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache).clone()
        assert torch.equal(first, found[[4, 39, 1]])
        assert torch.equal(
            reader.read({0: ids[5:6], 1: ids[40:44], 2: ids[2:4]}, cache, every=True), found[[5, 40, 41, 42, 43, 2, 3]]
        )
    finally:
        library().choose(None)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384),
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
        ("HuggingFaceTB/SmolLM2-360M", 361_821_120),
        ("HuggingFaceTB/SmolLM2-1.7B", 1_711_376_384),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("meta-llama/Llama-3.2-3B", 3_212_749_824),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen3-0.6B-Base", 596_049_920),
        ("Qwen3-4B-Base", 4_022_468_096),
    ],
)
def test_published_sizes(size: str, parameters: int) -> None:
    """The published counts of parameters, on meta and without the network."""
    from minhub_py.inspection import inspect

    assert inspect(size)["parameters"]["total"] == parameters
