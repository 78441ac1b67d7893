"""Runs a model in training mode without dropout and without changing it.

`model.eval()` followed by `model.train()` would affect other threads that use the model, and an
interrupt in between would leave the model partly in eval mode. Two alternatives:

- A shallow copy in eval mode. Each module of the copy has its own flag and children, and shares
  parameters, buffers and settings with the original. Attributes that a custom module sets in
  `forward` are set in the copy only.
- For models with hooks or replaced methods, which can refer to modules of the original, the
  original runs and dropout is disabled in this thread's calls of PyTorch functions. Other code for
  training mode still runs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode


def in_eval_mode(model: nn.Module) -> tuple[Any, Callable[[], AbstractContextManager[object]]]:
    """The model or a copy of it, and a context; calls in this context run in eval mode.

    ValueError: a module is compiled by TorchScript, so that its dropout cannot be disabled.
    """
    modules = list(model.modules())
    if not any(module.training for module in modules):
        return model, nullcontext
    if not any(may_hold_modules(module) for module in modules):
        return eval_copy(model), nullcontext
    if any(isinstance(module, torch.jit.ScriptModule) and module.training for module in modules):
        raise ValueError(
            "a module of this model is compiled by TorchScript and in training mode: call"
            " model.eval()"
        )
    return model, without_dropout


def has_hooks(module: nn.Module) -> bool:
    """Whether calls of a module run hooks, or methods that its class does not define."""
    registry = nn.modules.module
    hooks = [module._forward_hooks, module._forward_pre_hooks]
    hooks += [registry._global_forward_hooks, registry._global_forward_pre_hooks]
    cls: type = type(module)
    return any(hooks) or not methods_of(cls).isdisjoint(vars(module))


@lru_cache(maxsize=256)
def methods_of(cls: type) -> frozenset[str]:
    """The names of a class's methods."""
    return frozenset(name for name in dir(cls) if callable(getattr(cls, name, None)))


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile() returned this module, a wrapper of the original."""
    return "_orig_mod" in module._modules


def may_hold_modules(module: nn.Module) -> bool:
    """Whether a call of the module can reach modules other than its children, or does not run in
    Python.
    """
    if is_compiled(module):
        return False
    # A model with an adapter refers to its base, but does not call it.
    values = [value for name, value in vars(module).items() if name != "_base"]
    values += [element for value in values if isinstance(value, list | tuple) for element in value]
    refers = any(isinstance(value, nn.Module) for value in values)
    return refers or has_hooks(module) or isinstance(module, torch.jit.ScriptModule)


def eval_copy(module: Any, copies: dict[int, object] | None = None) -> Any:
    """A shallow copy in eval mode, except for children, which are copied too. copies: by id of the
    original.

    The copy is not compiled, since compiled code is bound to the original.
    """
    if is_compiled(module):
        return eval_copy(module._orig_mod, copies)
    copies = {} if copies is None else copies
    if id(module) not in copies:
        copies[id(module)] = copy = object.__new__(type(module))
        vars(copy).update(vars(module), training=False, _compiled_call_impl=None)
        children = module._modules.items()
        vars(copy)["_modules"] = {
            name: None if child is None else eval_copy(child, copies) for name, child in children
        }
    return copies[id(module)]


@contextmanager
def without_dropout() -> Iterator[None]:
    """Disable dropout in this thread's calls of PyTorch functions."""
    mode = EvalMode()
    try:
        mode.active = True
        mode.__enter__()
        yield
    finally:
        # A `with` statement is not safe: PyTorch removes the mode from its stack during a call, and
        # an interrupt can prevent that it returns. After an interrupt at this point the mode
        # remains on the stack without effect.
        mode.active = False
        if _get_current_function_mode() is mode:
            mode.__exit__(None, None, None)


# Positional index of the argument `training`, or else of the dropout probability.
ARGUMENTS = {
    "dropout": 2,
    "dropout_": 2,
    "alpha_dropout": 2,
    "alpha_dropout_": 2,
    "feature_dropout": 2,
    "feature_alpha_dropout": 2,
    "scaled_dot_product_attention": 4,
    "lstm": 6,
    "gru": 6,
    "rnn_tanh": 6,
    "rnn_relu": 6,
}


class EvalMode(TorchFunctionMode):
    """While `active`, sets the arguments `training` and `dropout_p` of PyTorch functions to 0."""

    active = False

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self.active:
            index = ARGUMENTS.get(getattr(func, "__name__", ""), len(args))
            args = [type(value)(0) if i == index else value for i, value in enumerate(args)]
            for name in kwargs.keys() & {"training", "train", "dropout_p"}:
                kwargs[name] = type(kwargs[name])(0)
        return func(*args, **kwargs)
