"""A model in training mode, read without dropout, and not changed by that.

`model.eval()` and `model.train()` around the reading would reach every other thread that uses the model, and an
interrupt between the two would leave it in eval mode, or a half of it. There are two ways without:

- A twin: the same modules once more, in eval mode. Each has its own flag and children, and shares everything else with
  its original: parameters, buffers, settings. What a module of somebody's own stores in itself as it is called, it
  stores in the twin, and the model stays as it is.
- Hooks, and functions that somebody has given to a module in place of its methods, may hold on to the model's own
  modules, which a twin cannot replace. There the model itself runs, and dropout is taken out of this thread's calls of
  PyTorch. What such a model does in training mode without PyTorch's functions for it, it does then too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode


def in_eval_mode(model: nn.Module) -> tuple[Any, Callable[[], AbstractContextManager[object]]]:
    """What to call instead of the model, and a context to do it in. Nothing of the model is changed.

    ValueError: dropout cannot be kept out of it, as a part of it is compiled by TorchScript.
    """
    modules = list(model.modules())
    if not any(module.training for module in modules):
        return model, nullcontext
    if not any(may_hold_modules(module) for module in modules):
        return twin(model, {}), nullcontext
    if any(isinstance(module, torch.jit.ScriptModule) and module.training for module in modules):
        raise ValueError("a part of this model is compiled by TorchScript, and in training mode: call model.eval()")
    return model, without_dropout


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody listens to a module's calls, or has given it a method of its own."""
    everywhere = nn.modules.module
    hooks = [module._forward_hooks, module._forward_pre_hooks]
    hooks += [everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks]
    kind: type = type(module)
    return any(hooks) or not methods_of(kind).isdisjoint(vars(module))


@lru_cache(maxsize=256)
def methods_of(kind: type) -> frozenset[str]:
    """The names of a class's methods."""
    return frozenset(name for name in dir(kind) if callable(getattr(kind, name, None)))


def is_compiled(module: nn.Module) -> bool:
    """Whether it is what torch.compile() has made of another module, which is its child."""
    return "_orig_mod" in module._modules


def may_hold_modules(module: nn.Module) -> bool:
    """Whether a call of the module may go to others than its children, or is not Python's."""
    if is_compiled(module):
        return False
    values = [*vars(module).values()]
    values += [each for value in values if isinstance(value, list | tuple) for each in value]
    kept = any(isinstance(value, nn.Module) for value in values)
    return kept or has_hooks(module) or isinstance(module, torch.jit.ScriptModule)


def twin(module: Any, made: dict[int, Any]) -> Any:
    """A module in eval mode that shares all but its children with `module`. made: those that there are, by id.

    It is not compiled: what was compiled is bound to the original.
    """
    if is_compiled(module):
        return twin(module._orig_mod, made)
    if id(module) not in made:
        made[id(module)] = new = object.__new__(type(module))
        vars(new).update(vars(module), training=False, _compiled_call_impl=None)
        vars(new)["_modules"] = {
            name: None if child is None else twin(child, made) for name, child in module._modules.items()
        }
    return made[id(module)]


@contextmanager
def without_dropout() -> Iterator[None]:
    """Make this thread's calls of PyTorch's functions those of eval mode."""
    mode = EvalMode()
    try:
        mode.on = True
        mode.__enter__()
        yield
    finally:
        # No `with`: PyTorch takes the mode off its stack during a call, and an interrupt then may leave it off. An
        # interrupt just here leaves it on, where it then does nothing.
        mode.on = False
        if _get_current_function_mode() is mode:
            mode.__exit__(None, None, None)


# Functions of PyTorch by name, and which of their arguments is `training`, or, where they have none, the probability.
PLACES = {
    "dropout": 2, "dropout_": 2, "alpha_dropout": 2, "alpha_dropout_": 2, "feature_dropout": 2,
    "feature_alpha_dropout": 2, "scaled_dot_product_attention": 4, "lstm": 6, "gru": 6, "rnn_tanh": 6, "rnn_relu": 6,
}  # fmt: skip


class EvalMode(TorchFunctionMode):
    """Calls with `training` or a probability of dropout are made as in eval mode, while it is `on`."""

    on = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self.on:
            place = PLACES.get(getattr(func, "__name__", ""), len(args))
            args = [type(value)(0) if i == place else value for i, value in enumerate(args)]
            for name in kwargs.keys() & {"training", "train", "dropout_p"}:
                kwargs[name] = type(kwargs[name])(0)
        return func(*args, **kwargs)
