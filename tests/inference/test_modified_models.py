"""Models that only `forward` can compute: hooks, subclasses and other layers."""

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from decoders import ARCHITECTURES, CASES, new, some_ids
from needs import needs
from pairs import in_pairs
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from minhub_py import generate, llama, score
from minhub_py.inference.native import library
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.inference.quantize import quantize
from minhub_py.inference.torch_runner import CHUNK, TorchRunner


def greedy(model, prompt, count):
    """Greedy tokens by `forward` only."""
    text = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


class Mine(nn.Module):
    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner
        # all attributes that the C decoder checks
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x):
        return -self.inner(x)


def hook_on_the_model(model):
    model.register_forward_hook(lambda _, __, logits: -logits)


def hook_on_a_layer(model):
    model.h[1].mlp.c_fc.register_forward_hook(lambda _, __, y: -y)


def pre_hook_on_a_layer(model):
    model.h[0].ln_1.register_forward_pre_hook(lambda _, inputs: (inputs[0].flip(-1),))


def hook_on_all_modules(model):
    model.handle = nn.modules.module.register_module_forward_hook(
        lambda module, _, y: -y if module is model.h[0].mlp.c_fc else None
    )


def own_forward(model):
    model.forward = lambda idx, cache=None: -type(model).forward(model, idx, cache)


def own_logits(model):
    model.logits = lambda x: -type(model).logits(model, x)


def own_layer(model):
    model.h[0].mlp.c_fc = Mine(model.h[0].mlp.c_fc)


def own_activation(model):
    model.h[0].mlp.act = torch.sin


def weight_norm(model):
    parametrizations.weight_norm(model.h[0].mlp.c_fc)
    model.h[0].mlp.c_fc.parametrizations.weight.original0.data *= -1


def parametrization(model):
    class Negated(nn.Module):
        def forward(self, weight):
            return -weight

    parametrize.register_parametrization(model.h[0].attn.c_proj, "weight", Negated())


def subclass(model):
    class Other(type(model)):
        def forward(self, idx, cache=None):
            return -super().forward(idx, cache)

    model.__class__ = Other


def float64(model):
    model.double().h[0].mlp.c_fc.weight.data.neg_()


def no_norm(model):
    model.h[0].ln_1 = nn.Identity()


def other_norm(model):
    model.h[0].ln_1 = nn.RMSNorm(24)


def norm_without_weights(model):
    model.h[0].ln_1 = nn.LayerNorm(24, elementwise_affine=False)


def norm_without_bias(model):
    model.h[0].ln_1 = nn.LayerNorm(24, bias=False)


def linear_without_bias(model):
    model.h[0].mlp.c_fc = nn.Linear(24, 96, bias=False)


def linear_of_another_width(model):
    model.h[0].mlp.c_fc, model.h[0].mlp.c_proj = nn.Linear(24, 301), nn.Linear(301, 24)


def two_layers_for_one(model):
    model.h[0].mlp.c_fc = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 96))


def head_with_a_bias(model):
    model.lm_head = nn.Linear(24, 61)
    nn.init.normal_(model.lm_head.weight, std=2)
    nn.init.normal_(model.lm_head.bias, std=30)


def no_mlp(model):
    model.h[0].mlp = nn.Identity()


def a_layer_less(model):
    del model.h[0]


def something_for_dropout(model):
    model.drop = nn.Softmax(dim=-1)


def embedding_stored_the_other_way(model):
    model.wte.weight = nn.Parameter(model.wte.weight.detach().t().contiguous().t())


def weight_of_one_row(model):
    model.h[0].mlp.c_fc.weight = nn.Parameter(torch.randn(1, 24).expand(96, 24))


def weight_of_one_column(model):
    model.h[0].mlp.c_fc.weight = nn.Parameter(torch.randn(96, 1).expand(96, 24))


class Marked(torch.Tensor):
    """A subclass of Tensor, as in libraries for quantization and sharding."""


def tensor_of_another_kind(model):
    weight = torch.randn(96, 24).as_subclass(Marked)
    model.h[0].mlp.c_fc.weight = nn.Parameter(weight)


CHANGES = [
    hook_on_the_model, hook_on_a_layer, pre_hook_on_a_layer, hook_on_all_modules, own_forward, own_logits, own_layer,
    own_activation, weight_norm, parametrization, subclass, float64, no_norm, other_norm, norm_without_weights,
    norm_without_bias, linear_without_bias, linear_of_another_width, two_layers_for_one, head_with_a_bias, no_mlp,
    a_layer_less, something_for_dropout, embedding_stored_the_other_way, weight_of_one_row, weight_of_one_column,
    tensor_of_another_kind,
]  # fmt: skip
CERTAINLY_PLAIN = CHANGES[:12]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_modified_model_uses_its_own_forward(change) -> None:
    """A layer with another `forward`."""
    model = new("gpt2")
    torch.manual_seed(2)
    before = greedy(model, [1, 2, 3], 20)
    change(model)
    expected = greedy(model, [1, 2, 3], 20)
    if change is not embedding_stored_the_other_way:
        assert expected != before, "the test's change is none"
    try:
        assert generate(model, [[1, 2, 3]], 20, temperature=0) == [expected]
        assert generate(model, [[1, 2, 3]], 20, temperature=0, speculate=8) == [expected]
        if change in CERTAINLY_PLAIN:
            assert type(runner_of(model)) is TorchRunner
    finally:
        if change is hook_on_all_modules:
            model.handle.remove()


def test_an_embedding_with_max_norm_uses_forward() -> None:
    model = new("gpt2")
    model.wte.max_norm = 0.5
    assert type(runner_of(model)) is TorchRunner


@needs("decoder")
def test_only_unmodified_models_on_the_cpu_use_native_code(plain) -> None:
    model = new("gpt2")
    assert isinstance(runner_of(model), NativeRunner)
    assert type(plain(lambda: runner_of(model))) is TorchRunner
    assert type(runner_of(copy.deepcopy(model).to("meta"))) is TorchRunner
    # not compiled before its first call
    assert type(runner_of(torch.compile(model))) is TorchRunner
    assert type(runner_of(nn.Sequential(model))) is TorchRunner
    handle = model.register_forward_hook(lambda *_: None)
    assert type(runner_of(model)) is TorchRunner
    handle.remove()
    assert isinstance(runner_of(model), NativeRunner)
    assert isinstance(runner_of(model.train()), NativeRunner)  # dropout is off in both


def test_hooks_receive_every_id() -> None:
    for name in ARCHITECTURES:
        model, recorded = new(name), []
        model.register_forward_hook(
            lambda _, inputs, __, recorded=recorded: recorded.extend(inputs[0][0].tolist())
        )
        [ids] = generate(model, [[1, 2, 3]], 10, seed=0)
        assert recorded == [1, 2, 3, *ids[:-1]]


@pytest.mark.parametrize(
    ("name", "settings"),
    in_pairs(list(CASES), [{"temperature": 0}, {}, {"top_k": 9, "repetition_penalty": 1.3}]),
)
def test_without_native_code_the_ids_are_the_same(plain, name, settings) -> None:
    model = new(name)
    prompts = [[1, 2], some_ids(model, 100), [5]]

    def work():
        return generate(model, prompts, 60, seed=4, **settings)

    assert work() == plain(work)


def test_scores_of_long_prompts_match_pytorch(plain) -> None:
    for name in ("gpt2", "gptneo", "gptneo-window-2", "lstm"):
        context = {"gpt2": {"n_positions": 600}, "gptneo": {"max_position_embeddings": 600}}
        model = new(name, **context.get(name.split("-")[0], {}))
        prompts = [some_ids(model, length) for length in (1, 2, CHUNK, CHUNK + 1, 1500)]
        for actual, expected in zip(
            score(model, prompts), plain(partial(score, model, prompts)), strict=True
        ):
            assert torch.allclose(actual, expected, atol=2e-3)
        greedy = partial(generate, model, prompts, 8, temperature=0)
        assert greedy() == plain(greedy)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_nan_weights_are_reported_by_name(kernel, dtype, bad) -> None:
    parameters = {
        "gpt2": ("h.1.mlp.c_fc.bias", "ln_f.weight", "h.0.attn.c_attn.weight"),
        "gptneo": ("wte.weight",),
        "lstm": ("head.weight", "lstm.bias_hh_l0"),
    }
    for name, path in ((name, path) for name, names in parameters.items() for path in names):
        model = new(name)
        with torch.no_grad():
            model.get_parameter(path).fill_(bad)
        if path == "lstm.bias_hh_l0" and bad == torch.inf:
            continue  # its gates are then 1 or 0
        if dtype == "int8":
            quantize(model, dtype)
        else:
            model.to(getattr(torch, dtype))
        assert isinstance(runner_of(model), NativeRunner)
        for call in (
            lambda: generate(model, [[1, 2]], 3),  # noqa: B023
            lambda: score(model, [[1, 2]]),  # noqa: B023
        ):
            with pytest.raises(ValueError, match="logits are NaN or infinite"):
                call()


@pytest.mark.parametrize(
    "settings", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.5}]
)
def test_nan_logits_are_reported_for_every_sampling(settings) -> None:
    model = new("gpt2")
    with torch.no_grad():
        model.ln_f.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        generate(model, [[1, 2]], 5, **settings)


@pytest.mark.parametrize("family", ["gpt2", "gptneo", "lstm", "llama"])
def test_defaults_of_pytorch_do_not_change_results(family) -> None:
    """The C decoder's memory is float32 on the CPU, independent of PyTorch's defaults."""
    model = (
        new(family)
        if family != "llama"
        else llama(
            vocab_size=61,
            hidden_size=24,
            num_attention_heads=4,
            intermediate_size=40,
            num_hidden_layers=2,
        ).eval()
    )
    expected = generate(model, [[1, 2, 3]], 20, temperature=0)
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            actual = generate(model, [[1, 2, 3]], 20, temperature=0)
        finally:
            torch.set_default_dtype(torch.float32)
        assert actual == expected


def test_autocast_selects_pytorch() -> None:
    model = new("gpt2")
    with torch.autocast("cpu"):
        assert type(runner_of(model)) is TorchRunner
    model.compile()
    assert type(runner_of(model)) is TorchRunner


def test_operation_without_c_implementation_selects_forward(monkeypatch) -> None:
    @dataclass(frozen=True)
    class Transpose:
        """An operation that the C decoder does not have."""

    model = new("gpt2")
    expected = generate(model, [[1, 2, 3]], 8, temperature=0, eos_id=None)
    steps = type(model).steps
    monkeypatch.setattr(type(model), "steps", lambda self: [Transpose(), *steps(self)])
    assert type(runner_of(model)) is TorchRunner
    assert generate(model, [[1, 2, 3]], 8, temperature=0, eos_id=None) == expected


@needs("decoder")
def test_a_library_of_another_version_is_not_used(monkeypatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    opened = library.opened.__wrapped__()
    assert opened.library is None
    assert "another version" in opened.detail
