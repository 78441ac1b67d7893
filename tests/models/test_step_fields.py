"""The consumers of `steps` read each field of its dataclasses, so that a new field cannot be
ignored unnoticed.
"""

import dataclasses
import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import pytest
import torch
from cases import ARCHITECTURES
from encoder_cases import ENCODERS
from encoder_cases.deberta import V3
from references import random_model

import minhub_py
from minhub_py.distributed.process_group import ProcessGroup
from minhub_py.distributed.tensor_parallel import ShardingPlan
from minhub_py.export.torchscript_code import CodeWriter
from minhub_py.inference.native.program import Program
from minhub_py.models import steps
from minhub_py.models.config import read
from minhub_py.models.encoder import EncoderDecoder
from minhub_py.models.experts import Routing
from minhub_py.models.layers import ALiBi
from minhub_py.models.registry import architecture_of
from minhub_py.models.rotary import Rope

CLASSES = (*get_args(steps.Step), ALiBi, Rope, Routing)
# Fields that the C decoder does not need: it has no training, computes scores in float32, and its
# caller counts the positions of padded texts.
WITHOUT_EFFECT_IN_C = {"dropout", "upcast", "pad"}
# Sizes that follow from the shapes of the variables.
IMPLIED_IN_TORCHSCRIPT = {
    "AddSinusoids.count",
    "GateLayerInput.size",
    "HiddenStates.size",
    "NormValues.heads",
    "NormValues.kv_heads",
}
# only quantization reads it
QUANTIZATION = {"Project.precise"}


CONVOLUTION = {**V3, "conv_kernel_size": 3, "conv_act": "gelu"}


def read_model(model_type: str, settings: Mapping[str, Any]) -> Any:
    architecture = architecture_of(model_type)
    return architecture.new(read(architecture.Config, {"model_type": model_type, **settings}))


@functools.cache
def models() -> tuple[Any, ...]:
    """Models that together have every kind of step."""
    return tuple(new_models())


def new_models() -> Iterator[Any]:
    for cases in ARCHITECTURES.values():
        yield from map(random_model, cases.few)
    for encoders in ENCODERS.values():
        for model_type, settings in encoders.small.items():
            yield read_model(model_type, settings)
    yield read_model("deberta-v2", CONVOLUTION)
    yield minhub_py.from_config(
        "t5", vocab_size=61, d_model=32, d_kv=8, d_ff=44, num_layers=1, num_heads=4
    )
    yield minhub_py.lstm(vocab_size=61, embedding_size=16, hidden_size=24, num_layers=2)


def steps_of(model: Any) -> list[Any]:
    return [*(model.encoder_steps() if isinstance(model, EncoderDecoder) else ()), *model.steps()]


def unread(monkeypatch: pytest.MonkeyPatch, consume: Callable[[Any], object]) -> set[str]:
    """The fields that `consume` does not read, for all models. Comparing and copying do not count."""
    names: dict[type, set[str]] = defaultdict(set)
    every = models()
    assert {type(step) for model in every for step in steps_of(model)} | {
        ALiBi,
        Rope,
        Routing,
    } == set(CLASSES)

    def recording(self: Any, name: str) -> Any:
        if sys._getframe(1).f_code.co_name not in (
            "__eq__",
            "__hash__",
            "__repr__",
            "replace",
            "_replace",
        ):
            names[type(self)].add(name)
        return object.__getattribute__(self, name)

    for cls in CLASSES:
        monkeypatch.setattr(cls, "__getattribute__", recording)
    for model in every:
        consume(model)
    return {
        f"{cls.__name__}.{field.name}"
        for cls in CLASSES
        for field in dataclasses.fields(cls)
        if field.name not in names[cls]
    }


def test_torchscript_reads_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unread(monkeypatch, CodeWriter) == IMPLIED_IN_TORCHSCRIPT | QUANTIZATION


def test_the_decoder_reads_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    def translate(model: Any) -> None:
        program = Program(positions=40)
        program.translate(steps_of(model))
        if program.angles:
            program.update_angles(3, [])

    missing = unread(monkeypatch, translate) - QUANTIZATION
    assert {name for name in missing if name.partition(".")[2] not in WITHOUT_EFFECT_IN_C} == set()


@torch.no_grad()
def test_tensor_parallelism_keeps_the_fields_of_a_variant() -> None:
    """A variant of ALiBi: only the slopes are divided."""
    model = minhub_py.from_config("bloom", hidden_size=32, n_layer=1, n_head=4, vocab_size=61)
    slopes = model.alibi.slopes
    model.alibi = ALiBi(slopes, rounded=True)
    ShardingPlan(model, ProcessGroup(1, 2, torch.device("cpu")))
    assert model.alibi == ALiBi(slopes[2:], rounded=True)
