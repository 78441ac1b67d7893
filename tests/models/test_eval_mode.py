"""Models in training mode are run without dropout, and without a visible change of the model."""

import random
import signal
import threading
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.overrides import _get_current_function_mode_stack

from minhub_py import generate, gpt2, gptneo, lstm, score, stream
from minhub_py.inference.eval_mode import in_eval_mode
from minhub_py.inference.native_runner import NativeRunner, runner_of

ENDS = {"bos_token_id": None, "eos_token_id": None}
PROMPTS = [[1, 2, 3], [5] * 20]


def new(family):
    """A model in training mode with dropout of 0.5."""
    torch.manual_seed(0)
    if family == "gpt2":
        model = gpt2(
            vocab_size=61,
            n_positions=32,
            n_embd=24,
            n_layer=2,
            n_head=4,
            embd_pdrop=0.5,
            resid_pdrop=0.5,
            attn_pdrop=0.5,
            **ENDS,
        )
    elif family == "gptneo":
        model = gptneo(
            vocab_size=61,
            max_position_embeddings=32,
            hidden_size=24,
            num_layers=2,
            num_heads=4,
            window_size=5,
            embed_dropout=0.5,
            resid_dropout=0.5,
            attention_dropout=0.5,
            **ENDS,
        )
    else:
        model = lstm(vocab_size=61, embedding_size=16, hidden_size=24, num_layers=2, dropout=0.5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


class Noisy(nn.Module):
    """A layer with its own behavior in training mode."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + self.training


def double(model):
    model.double()


def own_layer(model):
    model.drop = Noisy(model.drop)


def one_layer_twice(model):
    model.again = model.drop
    model.double()


def parametrized(model):
    parametrizations.spectral_norm(model.h[0].mlp.c_fc if hasattr(model, "h") else model.head)


def hook(model):
    model.drop.register_forward_hook(lambda module, _, y: y * 1.1 if module is model.drop else None)


def hook_on_all_modules(model):
    def call(module, _, y):
        return y * 1.1 if module is model.drop else None

    model.handles = [nn.modules.module.register_module_forward_hook(call)]


def bound_forward(model):
    model.forward = types.MethodType(
        lambda self, idx, cache=None: -type(self).forward(self, idx, cache), model
    )


def forward_that_holds_the_model(model):
    forward = model.forward
    model.forward = lambda idx, cache=None: forward(idx, cache) * 0.5


def forward_of_a_layer(model):
    forward = model.drop.forward
    model.drop.forward = lambda x: forward(x) * 1.2


def kept_beside_the_children(model):
    drop = model.drop

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = [drop]  # not a child: a common way not to register a module

        def forward(self, x):
            return self.kept[0](x)

    model.again, model.drop = drop, Other()


CHANGES = [
    double,
    own_layer,
    one_layer_twice,
    parametrized,
    hook,
    hook_on_all_modules,
    bound_forward,
    forward_that_holds_the_model,
    forward_of_a_layer,
    kept_beside_the_children,
]


def state_of(model):
    """The state that a run could change."""
    flags = [
        (name, id(module), module.training, list(vars(module)))
        for name, module in model.named_modules()
    ]
    return flags, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_unchanged(model, before) -> None:
    flags, tensors = state_of(model)
    assert flags == before[0]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in before[1].items())
    assert not any(mode.active for mode in _get_current_function_mode_stack())


@pytest.mark.parametrize(
    "change", [None, *CHANGES], ids=lambda change: getattr(change, "__name__", "none")
)
@pytest.mark.parametrize("family", ["gpt2", "gptneo", "lstm"])
def test_training_mode_makes_no_difference(family, change) -> None:
    model = new(family)
    if change is not None:
        change(model)
        assert not isinstance(runner_of(model), NativeRunner)
    try:
        model.eval()
        ids, scores = generate(model, PROMPTS, 12, seed=1), score(model, PROMPTS)
        model.train()
        model.drop.eval()  # as a user may have set it
        before = state_of(model)
        assert generate(model, PROMPTS, 12, seed=1) == ids
        assert all(
            torch.equal(actual, expected)
            for actual, expected in zip(score(model, PROMPTS), scores, strict=True)
        )
        model.drop.train()
        assert generate(model, PROMPTS, 12, seed=1) == ids
        model.drop.eval()
        assert_unchanged(model, before)
        assert (
            not torch.equal(model(torch.tensor([[1] * 9])), model(torch.tensor([[1] * 9])))
            or change is parametrized
        )
    finally:
        for handle in getattr(model, "handles", []):
            handle.remove()


def test_a_part_in_training_mode_is_read_in_eval_mode() -> None:
    model = new("gpt2").double().eval()
    expected = generate(model, PROMPTS, 12, seed=1)
    model.h[1].train()
    assert generate(model, PROMPTS, 12, seed=1) == expected
    assert model.h[1].mlp.training
    assert not model.training


@pytest.mark.parametrize("change", [double, hook])
def test_a_model_that_is_switched_while_its_text_comes(change) -> None:
    model = new("gpt2")
    change(model)
    expected = generate(model, PROMPTS[:1], 12, seed=1)[0]
    for mode in (True, False):
        model.train(mode)
        ids = stream(model, PROMPTS[0], 12, seed=1)
        begun = [next(ids), next(ids)]
        model.train(not mode)
        assert begun + list(ids) == expected
        assert model.training is not mode


def test_nobody_sees_eval_mode_while_a_text_is_read() -> None:
    """The state that another thread would see, or that an interrupt would leave."""
    for family, change in (("gpt2", double), ("gpt2", hook), ("gptneo", forward_of_a_layer)):
        model, recorded = new(family), []
        change(model)

        def act(x, model=model, recorded=recorded):
            recorded.append(all(module.training for module in model.modules()))
            return F.gelu(x)

        model.h[0].mlp.act = act
        generate(model, PROMPTS, 5, seed=1)
        score(model, PROMPTS)
        assert len(recorded) > 5
        assert all(recorded)


@pytest.mark.parametrize("change", [double, hook])
def test_threads_that_read_and_train_at_once(change) -> None:
    model = new("gpt2")
    change(model)
    expected = generate(model, PROMPTS, 10, seed=1)
    actual, dropped = [], []

    def read():
        actual.extend(generate(model, PROMPTS, 10, seed=1) for _ in range(8))

    def train():
        idx = torch.ones(1, 9, dtype=torch.long)
        dropped.extend(not torch.equal(model(idx), model(idx)) for _ in range(30))

    threads = [threading.Thread(target=work) for work in (read, read, train)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == [expected] * 16
    assert dropped == [True] * 30
    assert model.training


@pytest.mark.parametrize("change", [double, hook])
def test_an_interrupt_leaves_the_model_as_it_was(change) -> None:
    model = new("gpt2")
    change(model)
    before = state_of(model)
    chance = random.Random(0)

    def interrupt(*_):
        raise KeyboardInterrupt

    def work():
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 1e-2))
        generate(model, PROMPTS, 10**6, seed=1)

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(40):
            with pytest.raises(KeyboardInterrupt):
                work()
            assert_unchanged(model, before)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_compiled_models() -> None:
    model = new("gpt2").eval()
    expected = generate(model, PROMPTS, 5, seed=1)
    model.train()
    model.h[0] = torch.compile(model.h[0], backend="eager")
    assert generate(model, PROMPTS, 5, seed=1) == expected
    assert generate(torch.compile(model, backend="eager"), PROMPTS, 5, seed=1) == expected
    model.compile(backend="eager")
    assert generate(model, PROMPTS, 5, seed=1) == expected
    assert all(module.training for module in model.modules())


def test_torchscript_in_training_mode_is_refused() -> None:
    model = new("gpt2")
    model.h[0].mlp.c_fc = torch.jit.trace(model.h[0].mlp.c_fc, torch.zeros(1, 3, 24))
    with pytest.raises(
        ValueError, match=r"compiled by TorchScript and in training mode: call model\.eval\(\)"
    ):
        in_eval_mode(model)
    model.eval()
    assert in_eval_mode(model)[0] is model
