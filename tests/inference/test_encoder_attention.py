"""Attention without a KV cache, in blocks of queries, and GELU: each kernel against PyTorch."""

import ctypes

import pytest
import torch
from decoders import kernel  # noqa: F401  # a fixture
from random_weights import draw

from minhub_py.inference.encoder_runner import NativeEncoder, TorchEncoder
from minhub_py.inference.native import library
from minhub_py.inference.native.program import Program
from minhub_py.models.bert import Bert, BertConfig
from minhub_py.models.modernbert import ModernBert, ModernBertConfig
from minhub_py.models.mpnet import MPNet, MPNetConfig
from minhub_py.models.steps import Linear

LENGTHS = (1, 15, 16, 17, 95, 96, 97, 130, 193, 260)  # a block has 96 queries
SMALL = {"num_hidden_layers": 2, "vocab_size": 61, "intermediate_size": 40}


def model_of(name: str) -> Bert | ModernBert | MPNet:
    """A small encoder. The number at the end of the name is its head size, or its window."""
    kind, number = name.split("-")
    if kind == "bert":
        size = {
            "hidden_size": 2 * int(number),
            "num_attention_heads": 2,
            "max_position_embeddings": 300,
        }
        return Bert(BertConfig(**SMALL, **size, pad_token_id=None))
    if kind == "mpnet":
        size = {
            "hidden_size": 2 * int(number),
            "num_attention_heads": 2,
            "max_position_embeddings": 300,
        }
        return MPNet(MPNetConfig(**SMALL, **size))
    return ModernBert(
        ModernBertConfig(
            **SMALL,
            hidden_size=48,
            num_attention_heads=2,
            local_attention=int(number),
            pad_token_id=0,
        )
    )


@pytest.mark.parametrize(
    "name",
    [
        "bert-1",
        "bert-5",
        "bert-32",
        "bert-64",
        "bert-72",
        "bert-150",
        "mpnet-20",
        "modernbert-2",
        "modernbert-8",
        "modernbert-100",
        "modernbert-1000",
    ],
)
def test_texts_of_several_blocks_match_forward(kernel, name: str) -> None:  # noqa: F811
    model = model_of(name).eval()
    draw(model)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(5, 61, (length,), generator=generator).tolist() for length in LENGTHS]
    runner = NativeEncoder(model)
    result = runner.hidden_states(texts)
    expected = TorchEncoder(model).hidden_states(texts)
    assert (result - expected).abs().max() <= 2e-5 * expected.abs().max()
    assert torch.equal(torch.cat([runner.hidden_states([ids]) for ids in texts]), result)
    order = sorted(range(len(texts)), key=lambda i: -i % 7)
    parts = result.split(list(LENGTHS))
    assert torch.equal(
        runner.hidden_states([texts[i] for i in order]), torch.cat([parts[i] for i in order])
    )


def test_a_nan_token_does_not_change_other_texts(kernel) -> None:  # noqa: F811
    model = model_of("bert-32").eval()
    draw(model)
    runner = NativeEncoder(model)
    texts = [[5] * 20, [7] * 30, [9] * 110]
    expected = runner.hidden_states(texts).split([20, 30, 110])
    model.token_embedding.weight.data[7] = torch.nan
    result = NativeEncoder(model).hidden_states(texts).split([20, 30, 110])
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[2], expected[2])
    assert result[1].isnan().all()


def test_gelu_is_close_to_the_error_function(kernel) -> None:  # noqa: F811
    """Absolute error relative to the input; the sign of zero, infinity and NaN as in PyTorch."""
    values = torch.cat(
        (
            torch.linspace(-12, 12, 4001),
            torch.linspace(-0.01, 0.01, 101),
            torch.tensor([-3e38, 3e38]),
        )
    )
    ends = torch.tensor([torch.inf, torch.nan, 0.0])
    result = gelu(torch.cat((values, ends)))
    exact = torch.nn.functional.gelu(values.double())
    assert ((result[:-3] - exact).abs() <= 3e-7 * values.abs()).all()
    assert result[-3] == torch.inf
    assert result[-2].isnan()
    assert result[-1] == 0


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU of (N,) in C: a linear layer with one input, whose weight is 1."""
    layer = torch.nn.Linear(1, 64, bias=False)
    layer.weight.data.fill_(1)
    runner = NativeEncoder(model_of("bert-32"))
    program = Program()
    operations = (library.DecoderOperation * 1)(
        *program.operations(Linear([layer], activation="gelu"))
    )
    buffers = runner._new_buffers(len(x))
    buffers[1, :, 0] = x
    call = runner._new_call([], torch.float32, buffers)
    call.tokens = len(x)
    library.library().decode(operations, 1, ctypes.byref(call))
    result = buffers[2, :, :64]
    # each lane is the same
    assert torch.equal(result[:, :1].expand(-1, 64).nan_to_num(), result.nan_to_num())
    return result[:, 0].clone()
