"""The head for multi-token prediction of Qwen 3.5 and Qwen 3 Next, and its use as a source of draft
tokens.
"""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from commands import done, failed
from needs import needs
from random_weights import draw
from references import CASES, assert_close, assert_identical, ids_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_layers import MtpLayer

import minhub_py
from minhub_py import generate, stream
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import PredictionRunner, runner_of
from minhub_py.inference.speculative import PredictedSequence, PredictionHead
from minhub_py.loading.pretrained import read_config, save_pretrained
from minhub_py.models.cache import Cache
from minhub_py.models.config import changed, read
from minhub_py.models.registry import architecture_of

# Of each model type, with DeltaNet in most layers, and with a tied embedding.
NAMES = ("qwen3_5_text", "qwen3_5_text-bias-tied", "qwen3_5_moe_text", "qwen3_next")
PROMPTS = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2], [5], [7, 8, 9] * 4]
LONG = ids_of(1, MAX_TOKENS + 50)[0].tolist()  # more than one call of the decoder
GREEDY = {"temperature": 0, "eos_id": None}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 20},
    {"repetition_penalty": 1.3},
]


def new(name: str, **changes: Any) -> Any:
    """A model of a case with a head for multi-token prediction, and large random weights."""
    settings = {**CASES[name].settings(name), **changes}
    architecture = architecture_of(settings["model_type"])
    model = architecture.new(changed(read(architecture.Config, settings), {"mtp_layers": 1}))
    draw(model)
    return model.eval()


@torch.no_grad()
def informed(model: Any, effect: float) -> Any:
    """The model, changed such that its head predicts the model's next token, except for the effect
    of layers.
    """
    for block in [*model.layers, *model.mtp.layers]:
        for path, parameter in block.named_parameters():
            if "o_proj" in path or "out_proj" in path or "down_proj" in path:
                parameter.mul_(effect)
    size = model.mtp.fc.out_features
    model.mtp.fc.weight.copy_(torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1))
    model.mtp.pre_fc_norm_embedding.weight.zero_()
    model.mtp.norm.weight.copy_(model.norm.weight)
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: new(name) for name in NAMES}


# --- the head ---


@pytest.fixture(scope="module")
def folders(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    result = {}
    for name, model in models.items():
        result[name] = tmp_path_factory.mktemp(name)
        save_pretrained(model, result[name], characters([chr(40 + i) for i in range(61)]))
    return result


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight)


def expected_head(
    w: dict[str, torch.Tensor], config: Any, embedded: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """The normed state (T, C) after each position, by the formulas, position by position.

    w: the tensors below "mtp." by their names on the Hub.
    """
    eps, D = config.rms_norm_eps, config.head_dim
    H, G, R = config.num_attention_heads, config.num_key_value_heads, config.rotated
    both = (
        rms_norm(embedded, w["pre_fc_norm_embedding.weight"], eps),
        rms_norm(hidden, w["pre_fc_norm_hidden.weight"], eps),
    )
    x = torch.cat(both, dim=1) @ w["fc.weight"].T
    layer = {
        name.removeprefix("layers.0."): tensor
        for name, tensor in w.items()
        if name.startswith("layers.0.")
    }

    def product(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, layer[f"{name}.weight"], layer.get(f"{name}.bias"))

    h = rms_norm(x, layer["input_layernorm.weight"], eps)
    q, gate = product("self_attn.q_proj", h).view(-1, H, 2, D).unbind(2)
    k, v = (
        product("self_attn.k_proj", h).view(-1, G, D),
        product("self_attn.v_proj", h).view(-1, G, D),
    )
    angles = torch.arange(len(x))[:, None, None] * config.rope["rope_theta"] ** (
        -torch.arange(0, R, 2) / R
    )

    def rotate(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        heads = rms_norm(heads, weight, eps)
        first, second, rest = heads.split([R // 2, R // 2, D - R], dim=2)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=2)

    q, k = rotate(q, layer["self_attn.q_norm.weight"]), rotate(k, layer["self_attn.k_norm.weight"])
    outputs = torch.zeros_like(q)
    for p in range(len(x)):
        for head in range(H):
            group = head // (H // G)
            weights = (k[: p + 1, group] @ q[p, head] / D**0.5).softmax(0)
            outputs[p, head] = weights @ v[: p + 1, group]
    x = x + product("self_attn.o_proj", (outputs * gate.sigmoid()).flatten(1))
    h = rms_norm(x, layer["post_attention_layernorm.weight"], eps)

    def mlp(name: str, h: torch.Tensor) -> torch.Tensor:
        return product(
            f"{name}.down_proj",
            F.silu(product(f"{name}.gate_proj", h)) * product(f"{name}.up_proj", h),
        )

    if config.model_type == "qwen3_5_text":
        x = x + mlp("mlp", h)
    else:
        x = x + product("mlp.shared_expert_gate", h).sigmoid() * mlp("mlp.shared_expert", h)
        for p, scores in enumerate(product("mlp.gate", h).softmax(1)):
            weights, experts = scores.topk(config.num_experts_per_tok)
            for weight, expert in zip(weights / weights.sum(), experts.tolist(), strict=True):
                x[p] += weight * mlp(f"mlp.experts.{expert}", h[p])
    return rms_norm(x, w["norm.weight"], eps)


@needs("decoder")
@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_predictions_follow_the_formulas(
    models: dict[str, Any], folders: dict[str, Path], name: str
) -> None:
    """Of `predict` and of the C decoder, at once and in pieces; further predictions from the head's
    own states.
    """
    model = models[name]
    stored = load_file(folders[name] / "model.safetensors")
    w = {
        key.removeprefix("mtp."): tensor for key, tensor in stored.items() if key.startswith("mtp.")
    }
    ids = ids_of(1, 40)
    hidden = model.hidden(ids)[:, :-1]  # of all positions whose next token is known
    following = ids[:, 1:]
    embedded = stored["model.embed_tokens.weight"][following[0]]
    state = expected_head(w, model.config, embedded, hidden[0])
    head = stored.get("lm_head.weight", stored["model.embed_tokens.weight"])
    expected = state @ head.T
    logits, states = model.predict(following, hidden)
    assert_close(logits[0], expected)
    assert_close(states[0], state)
    cache = Cache(model.mtp_layout(), 1, 60, 0, hidden)
    pieces = [
        model.predict(following[:, a:b], hidden[:, a:b], cache)[0]
        for a, b in ((0, 1), (1, 30), (30, 39))
    ]
    assert_close(torch.cat(pieces, dim=1)[0], expected)
    runner = PredictionRunner(model)
    native = runner.new_cache(1, 60)
    for a, b in ((0, 7), (7, 8), (8, 39)):
        buffer = hidden[0, a:b].clone()
        assert_close(runner.predict(following[0, a:b].tolist(), buffer, native), expected[b - 1])
        assert_close(buffer, state[a:b])
    # The prediction after the next one: the head's state and its own token continue the sequence.
    token = int(expected[-1].argmax())
    more = expected_head(
        w,
        model.config,
        torch.cat((embedded, stored["model.embed_tokens.weight"][[token]])),
        torch.cat((hidden[0], state[-1:])),
    )[-1]
    assert_close(runner.predict([token], buffer[-1:], native), more @ head.T)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_predictions_equal_those_of_transformers_mtp_layer(
    models: dict[str, Any], folders: dict[str, Path], name: str
) -> None:
    settings = json.loads((folders[name] / "config.json").read_text())
    reference = AutoModelForCausalLM.from_pretrained(folders[name]).eval()  # ignores mtp.*
    config = deepcopy(AutoConfig.for_model(**settings))
    config.layer_types = ["full_attention"]
    theirs = MtpLayer(config, type(reference.model.layers[0]), type(reference.model.norm), 0).eval()
    names = {
        "pre_fc_norm_embedding.": "enorm.",
        "pre_fc_norm_hidden.": "hnorm.",
        "fc.": "eh_proj.",
        "layers.0.": "mtp_block.",
        "norm.": "post_norm.",
    }
    weights, experts = {}, {"gate_proj": [], "up_proj": [], "down_proj": []}
    stored = load_file(folders[name] / "model.safetensors")
    for key, tensor in (
        (key[4:], tensor) for key, tensor in stored.items() if key.startswith("mtp.")
    ):
        if ".mlp.experts." in key:
            experts[key.split(".")[-2]].append((int(key.split(".")[4]), tensor))
        else:
            old, new_name = next((old, new) for old, new in names.items() if key.startswith(old))
            weights[new_name + key.removeprefix(old)] = tensor
    if experts["gate_proj"]:
        gate, up, down = (
            torch.stack([tensor for _, tensor in sorted(parts, key=lambda part: part[0])])
            for parts in experts.values()
        )
        weights["mtp_block.mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
        weights["mtp_block.mlp.experts.down_proj"] = down
    theirs.load_state_dict(weights)
    ids = ids_of(1, 40)
    hidden = reference.model(ids).last_hidden_state[:, :-1]
    T = hidden.size(1)
    positions = torch.arange(T)[None]
    mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
    rotation = reference.model.rotary_emb(hidden, positions)
    state = theirs(
        reference.model.embed_tokens(ids[:, 1:]), hidden, rotation, mask, positions, None
    )
    assert_close(models[name].predict(ids[:, 1:], hidden)[0], reference.lm_head(state))


def test_a_checkpoint_is_loaded_with_its_head_on_request_only(
    models: dict[str, Any], folders: dict[str, Path]
) -> None:
    for name, folder in folders.items():
        plain, full = (
            minhub_py.from_pretrained(folder, device="cpu", mtp=mtp) for mtp in (False, True)
        )
        assert plain.mtp is None
        assert not any(key.startswith("mtp.") for key in plain.state_dict())
        assert plain.config.mtp_layers == 0
        assert_identical(full.state_dict(), models[name].state_dict())
        assert read_config(folder)[1].mtp_layers == 0
        assert json.loads((folder / "config.json").read_text())["mtp_num_hidden_layers"] == 1
        with pytest.raises(
            ValueError, match=r"^draft='mtp': the model has no head .* with mtp=True$"
        ):
            generate(plain, PROMPTS, 3, draft="mtp")


def test_missing_heads_are_reported(
    models: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    plain = minhub_py.from_pretrained(folders["qwen3_5_text"], device="cpu")
    save_pretrained(plain, tmp_path / "plain")
    with pytest.raises(
        ValueError,
        match=r"no head for multi-token prediction \(no mtp\.\* tensors\): .* omit draft='mtp'$",
    ):
        minhub_py.from_pretrained(tmp_path / "plain", mtp=True)
    with pytest.raises(ValueError, match="no head for multi-token prediction"):
        minhub_py.from_pretrained("minhub/shakespeare-gpt2", mtp=True)
    with pytest.raises(ValueError, match="no head for multi-token prediction"):
        generate(minhub_py.from_pretrained("minhub/shakespeare-gpt2"), [[1]], 3, draft="mtp")


# --- draft tokens ---


@needs("decoder")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("effect", [None, 0.1, 0.0])
def test_drafts_of_the_head_do_not_change_the_tokens(
    models: dict[str, Any], name: str, effect: float | None
) -> None:
    """With a random head, one that is often right, and one that is always right."""
    model = models[name] if effect is None else informed(deepcopy(models[name]), effect)
    prompts, rates = [*PROMPTS, LONG], []
    for settings in SETTINGS:
        expected = generate(model, prompts, 40, seed=7, eos_id=None, **settings)
        for most in (0, 1, 8):
            drafts = PredictionHead(model)
            options = {"seed": 7, "eos_id": None, "draft": drafts, "speculate": most, **settings}
            assert generate(model, prompts, 40, **options) == expected
            if settings == {"temperature": 0}:
                rates.append(drafts.accepted / drafts.proposed)
        for row in (0, 3):
            assert (
                list(stream(model, prompts[row], 40, seed=7, eos_id=None, draft="mtp", **settings))
                == expected[row]
            )
    if effect == 0:
        assert rates == [1, 1, 1]
    elif effect is None:
        assert max(rates) < 0.3
    elif name == "qwen3_5_text":
        assert 0.3 < min(rates) <= max(rates) < 1


@torch.no_grad()
def drafts_from_scratch(model: Any, tokens: list[int], count: int) -> list[int]:
    """The drafts after `tokens`, by `hidden` and `predict` without a cache."""
    following = torch.tensor([tokens[1:]])
    hidden = model.hidden(torch.tensor([tokens[:-1]]))
    draft: list[int] = []
    while len(draft) < count:
        logits, states = model.predict(following, hidden)
        draft.append(int(logits[0, -1].argmax()))
        hidden = torch.cat((hidden, states[:, -1:]), dim=1)
        following = torch.cat((following, torch.tensor([draft[-1:]])), dim=1)
    return draft


@needs("decoder")
@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_5_moe_text"])
def test_drafts_after_rejections_equal_those_of_a_new_cache(
    models: dict[str, Any], name: str
) -> None:
    """The head's cache contains the accepted tokens with the model's hidden states, in each row of
    a batch.
    """
    model, recorded = informed(deepcopy(models[name]), 0.1), []

    class RecordedSequence(PredictedSequence):
        def __call__(self, tokens: Any, room: int, sequences: int = 1) -> list[int]:
            draft = super().__call__(tokens, room, sequences)
            recorded.append((list(tokens), draft))
            return draft

    class RecordedHead(PredictionHead):
        def sequence(self, most: int, max_length: int) -> RecordedSequence:
            return RecordedSequence(self, self.runner, most, max_length)

    drafts = RecordedHead(model)
    generate(model, PROMPTS, 30, temperature=1.0, seed=1, eos_id=None, draft=drafts, speculate=4)
    assert 0 < drafts.accepted < drafts.proposed
    assert len({len(draft) for _, draft in recorded}) > 2
    for tokens, draft in recorded:
        if draft and len(tokens) > 1:
            assert draft == drafts_from_scratch(model, tokens, len(draft))


@needs("decoder")
def test_pytorch_defaults_do_not_change_drafts(models: dict[str, Any]) -> None:
    """The decoder writes hidden states as float32."""
    model = models["qwen3_5_text"]
    expected = generate(model, PROMPTS, 20, **GREEDY)
    for dtype in (torch.float64, torch.bfloat16):
        drafts = PredictionHead(model)
        torch.set_default_dtype(dtype)
        try:
            assert generate(model, PROMPTS, 20, draft=drafts, **GREEDY) == expected
        finally:
            torch.set_default_dtype(torch.float32)
        assert drafts.proposed > 0


def test_a_head_of_another_model_is_rejected(models: dict[str, Any]) -> None:
    drafts = PredictionHead(models["qwen3_next"])
    with pytest.raises(
        ValueError, match=r"is of another model: create PredictionHead\(model\) or pass draft='mtp'"
    ):
        generate(models["qwen3_5_text"], PROMPTS, 3, draft=drafts)


def test_predictions_without_a_head_are_rejected() -> None:
    model = minhub_py.from_config(
        "qwen3_5_text",
        **{**CASES["qwen3_5_text"].settings("qwen3_5_text"), "model_type": "qwen3_5_text"},
    )
    idx = torch.tensor([[1, 2]])
    for call in (lambda: model.predict(idx, model.hidden(idx)), lambda: list(model.mtp_steps())):
        with pytest.raises(ValueError, match=r"no head .* with from_pretrained\(…, mtp=True\)"):
            call()


@needs("decoder")
def test_accepted_tokens_save_steps(models: dict[str, Any]) -> None:
    model = informed(deepcopy(models["qwen3_5_text"]), 0.0)
    drafts = PredictionHead(model)
    [text] = generate(model, [[1, 2, 3]], 41, temperature=0, eos_id=None, draft=drafts, speculate=1)
    assert len(text) == 41
    # 1 token after the prompt, 20 steps of 1 + 1 tokens
    assert drafts.accepted == drafts.proposed == 20


def test_a_context_restarts_with_drafts(models: dict[str, Any]) -> None:
    for length in (3, 17, 40):
        model = new("qwen3_5_text", max_position_embeddings=length)
        for variant in (model, informed(deepcopy(model), 0.0)):
            expected = generate(variant, [*PROMPTS, LONG], 60, temperature=0, eos_id=None)
            assert (
                generate(variant, [*PROMPTS, LONG], 60, temperature=0, eos_id=None, draft="mtp")
                == expected
            )


@needs("decoder")
@pytest.mark.parametrize(
    "loading",
    [{"dtype": "bfloat16"}, {"quantize": "int8"}, {"quantize": "nf4", "dtype": "bfloat16"}],
)
def test_heads_in_other_formats_do_not_change_the_tokens(
    folders: dict[str, Path], loading: dict[str, str]
) -> None:
    for name in ("qwen3_5_text", "qwen3_5_moe_text"):
        model = minhub_py.from_pretrained(folders[name], device="cpu", mtp=True, **loading)
        expected = generate(model, [*PROMPTS, LONG], 30, temperature=0, eos_id=None)
        drafts = PredictionHead(model)
        assert drafts.runner is not None
        assert (
            generate(model, [*PROMPTS, LONG], 30, temperature=0, eos_id=None, draft=drafts)
            == expected
        )
        assert drafts.proposed > 0


@pytest.mark.usefixtures("kernel")
def test_drafts_do_not_change_the_tokens_with_any_kernel(models: dict[str, Any]) -> None:
    for model in models.values():
        expected = generate(model, PROMPTS, 30, temperature=0, eos_id=None)
        assert generate(model, PROMPTS, 30, temperature=0, eos_id=None, draft="mtp") == expected


def test_nothing_is_drafted_without_the_native_decoder(models: dict[str, Any], plain: Any) -> None:
    model = models["qwen3_5_text"]
    drafts = plain(lambda: PredictionHead(model))
    expected = plain(lambda: generate(model, PROMPTS, 20, temperature=0))
    assert plain(lambda: generate(model, PROMPTS, 20, temperature=0, draft=drafts)) == expected
    assert drafts.proposed == 0


def test_hidden_states_of_a_call_are_those_of_forward(models: dict[str, Any]) -> None:
    for model in models.values():
        runner = runner_of(model)
        texts = {0: LONG, 1: [3], 2: LONG[:9]}
        cache, hidden = (
            runner.new_cache(3, 300),
            torch.empty(len(LONG) + 10, model.config.hidden_size),
        )
        with torch.inference_mode():
            runner.forward(texts, cache, hidden=hidden)
            expected = torch.cat([model.hidden(torch.tensor([ids]))[0] for ids in texts.values()])
        assert_close(hidden, expected)


@needs("decoder")
def test_commands_draft_with_the_head(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["qwen3_5_text"]
    expected = json.loads(done("generate", folder, "ABCDE", "--temperature", 0, "-n", 20, "--json"))
    actual = json.loads(
        done("generate", folder, "ABCDE", "--temperature", 0, "-n", 20, "--json", "--draft", "mtp")
    )
    assert actual["ids"] == expected["ids"]
    assert actual["proposed"] > 0
    table = tmp_path / "in.csv"
    table.write_text("prompt\nABCDE\nFGH\n")
    for name, options in (("plain", []), ("drafted", ["--draft", "mtp"])):
        done(
            "generate",
            folder,
            table,
            "--column",
            "prompt",
            "--out",
            tmp_path / f"{name}.csv",
            "-n",
            9,
            "--seed",
            3,
            *options,
        )
    assert (tmp_path / "plain.csv").read_bytes() == (tmp_path / "drafted.csv").read_bytes()
    message = failed("generate", "minhub/shakespeare-gpt2", "ROMEO:", "--draft", "mtp")
    assert "has no head for multi-token prediction" in message
    assert message.strip().endswith("omit --draft mtp")
