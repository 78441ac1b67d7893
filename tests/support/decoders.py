"""Small models with large random weights, their logits from the C decoder, and its kernels."""

import ctypes
import itertools
import mmap
from unittest.mock import patch

import numpy as np
import pytest
import torch
from needs import need

from minhub_py import gpt2, gptneo, lstm
from minhub_py.inference import quantize as quantization
from minhub_py.inference.native import library
from minhub_py.inference.native.library import DecoderOperation
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.quantize import KINDS, quantize
from minhub_py.models.steps import Linear

TOLERANCE = 2e-5  # of the largest logit; float32 sums in another order differ by some 1e-6

ENDS = {"bos_token_id": None, "eos_token_id": None}
GPT2 = {"vocab_size": 61, "n_positions": 150, "n_embd": 24, "n_layer": 2, "n_head": 4, **ENDS}
GPTNEO = {
    "vocab_size": 61,
    "max_position_embeddings": 150,
    "hidden_size": 24,
    "num_layers": 2,
    "num_heads": 4,
    "window_size": 7,
    **ENDS,
}
LSTM = {"vocab_size": 61, "embedding_size": 16, "hidden_size": 24, "num_layers": 2, **ENDS}
LOCAL = [[["local"], 2]]

CASES = {f"gpt2-{name}": {"activation_function": name} for name in library.ACTIVATIONS}
CASES |= {f"gptneo-{name}": {"activation_function": name} for name in library.ACTIVATIONS}
CASES |= {
    "gpt2-heads-of-5": {"n_embd": 35, "n_head": 7, "n_inner": 17},
    "gpt2-heads-of-1": {"n_embd": 3, "n_head": 3, "n_inner": 1, "vocab_size": 13},
    "gpt2-one-head-of-15": {"n_embd": 15, "n_head": 1, "n_inner": 999, "vocab_size": 62},
    "gpt2-heads-of-72": {"n_embd": 144, "n_head": 2, "n_inner": 333, "vocab_size": 301},
    "gpt2-heads-of-64": {"n_embd": 128, "n_head": 2},
    "gpt2-heads-of-130": {"n_embd": 130, "n_head": 1, "n_inner": 129},
    "gpt2-heads-of-48": {"n_embd": 96, "n_head": 2},
    "gpt2-heads-of-256": {"n_embd": 256, "n_head": 1, "n_inner": 40},
    "gpt2-heads-of-260": {"n_embd": 260, "n_head": 1, "n_inner": 40},
    "gpt2-one-channel": {"n_embd": 1, "n_head": 1, "n_inner": 2},
    "gpt2-untied": {"tie_word_embeddings": False},
    "gpt2-inverse-layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
    "gpt2-unscaled": {"scale_attn_weights": False},
    "gpt2-upcast": {"reorder_and_upcast_attn": True},
    "gpt2-epsilon": {"layer_norm_epsilon": 0.5},
    "gptneo-heads-of-5": {"hidden_size": 35, "num_heads": 7, "intermediate_size": 17},
    "gptneo-heads-of-72": {
        "hidden_size": 144,
        "num_heads": 2,
        "intermediate_size": 333,
        "vocab_size": 301,
    },
    "gptneo-untied": {"tie_word_embeddings": False},
    "gptneo-all-global": {"attention_types": [[["global"], 2]]},
    "gptneo-all-local": {"attention_types": LOCAL},
    "gptneo-local-first": {"attention_types": [[["local", "global"], 1]]},
    "gptneo-window-1": {"window_size": 1, "attention_types": LOCAL},
    "gptneo-window-2": {"window_size": 2, "attention_types": LOCAL},
    "gptneo-window-beyond": {"window_size": 1000},
    "gptneo-window-not-quite-context": {"window_size": 100},
    "lstm-two-layers": {},
    "lstm-one-layer": {"num_layers": 1},
    "lstm-three-layers": {"num_layers": 3, "hidden_size": 19, "embedding_size": 33},
    "lstm-tied": {"tie_word_embeddings": True, "embedding_size": 24},
    "lstm-wide": {"embedding_size": 5, "hidden_size": 150, "vocab_size": 301},
    "lstm-one-number": {"embedding_size": 1, "hidden_size": 1},
}
ARCHITECTURES = ("gpt2-heads-of-5", "gptneo-heads-of-5", "lstm-three-layers")


def kernels():
    """The kernels that this processor supports. Without the decoder, one name for the tests to
    skip.
    """
    if library.library() is None:
        return ["none"]
    names = [
        name
        for name in ("amx", "bf16", "avx512", "avx2", "plain")
        if library.library().choose(name.encode())
    ]
    library.library().choose(None)
    return names


KERNELS = kernels()
LAYOUTS = ["float32", "transposed"]
DTYPES = [*LAYOUTS, "bfloat16", "float16", "int8", "nf4", "int8+bfloat16", "nf4+bfloat16"]

ROUNDING = ("amx", "bf16")  # whose bfloat16 products round their inputs, too


@pytest.fixture(params=KERNELS)
def kernel(request):
    need("decoder")
    assert library.library().choose(request.param.encode()) == request.param.encode()
    yield request.param
    library.library().choose(None)


@pytest.fixture
def plain(monkeypatch):
    """plain(work): the result of `work` without the C decoder."""

    def run(work):
        with monkeypatch.context() as patch:
            patch.setattr(library, "library", lambda: None)
            return work()

    return run


def new(name, dtype="float32", **changes):
    """A model in eval mode. dtype: PyTorch's, or "transposed" float32, or a quantization, with "+"
    a dtype after it.
    """
    family, standard = {"gpt2": (gpt2, GPT2), "gptneo": (gptneo, GPTNEO), "lstm": (lstm, LSTM)}[
        name.split("-")[0]
    ]
    model = family(**{**standard, **CASES.get(name, {}), **changes}).eval()
    generator = torch.Generator().manual_seed(0)
    for path, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data = ("ln_" in path and path.endswith("weight")) + 0.4 * noise
        elif path.startswith(("wte", "wpe", "lm_head", "embedding", "head")):
            parameter.data = 1.5 * noise
        else:
            parameter.data = 1.3 * parameter.size(1) ** -0.5 * noise
            if dtype == "transposed":
                parameter.data = parameter.data.t().contiguous().t()
    return model if dtype == "transposed" else in_dtype(model, dtype)


def in_dtype(model, dtype):
    """The same model in PyTorch's dtype, quantized, or both: "int8+bfloat16". nf4 is that of large
    models, which have all kinds of layers in 4 bits.
    """
    for expected in dtype.split("+"):
        if expected in KINDS:
            with patch.object(quantization, "SMALL_WIDTH", 0):
                quantize(model, expected)
        else:
            model.to(getattr(torch, expected))
    return model


def some_ids(model, count, rows=None):
    shape = (count,) if rows is None else (rows, count)
    return torch.randint(
        model.config.vocab_size, shape, generator=torch.Generator().manual_seed(1)
    ).tolist()


def extend(runner, rows, cache):
    """The logits after each further token of each row."""
    return runner.forward(dict(enumerate(rows)), cache, every=True, exact=True)


def new_cache(model, rows=1, length=150):
    return model.new_cache(rows, length, NativeRunner.lookahead)


@torch.no_grad()
def forward(model, ids):
    return model(torch.tensor([ids]))[0].float()


def read(model, ids, sizes, cache=None):
    """The logits after each of `ids`, from the C decoder, in chunks of `sizes`, repeated."""
    runner, cache, parts, position = NativeRunner(model), cache or new_cache(model), [], 0
    for size in itertools.cycle(sizes):
        parts.append(extend(runner, [ids[position : position + size]], cache).clone())
        position += size
        if position >= len(ids):
            return torch.cat(parts)


def assert_close(actual, expected, tolerance=TOLERANCE):
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    error = (actual - expected).abs().amax(dim=-1) / expected.abs().max()
    assert error.max() <= tolerance, f"off by {error.max():.1e} of the largest logit: {error}"


def product(layer, x):
    """A layer's outputs for inputs (tokens, columns), at most 128 tokens."""
    tokens, columns = x.shape
    runner = NativeRunner(new("gpt2"))
    runner.program.width = -(-max(columns, layer.weight.size(0)) // 128) * 128
    buffers = runner._new_buffers(tokens)
    runner.codes = runner._new_codes()
    call = runner._new_call([[torch.zeros(1, 1, 1, 1)] * 2], torch.float32, buffers)
    call.tokens = tokens
    buffers[1, :, :columns] = x
    operations = (DecoderOperation * 1)(*runner.program.operations(Linear([layer])))
    library.library().decode(operations, 1, ctypes.byref(call))
    return buffers[2, :, : layer.weight.size(0)]


def at_the_end_of_memory(tensor):
    """A copy that ends at a page without access, so that reading beyond it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mprotect.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    )
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_size_t]
    transposed = tensor.dim() == 2 and tensor.stride(1) != 1 and tensor.size(1) > 1
    stored = tensor.t() if transposed else tensor
    array = stored.detach().contiguous().view(torch.uint8).numpy() if stored.dim() else None
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    start = libc.mmap(
        None,
        room + page,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        -1,
        0,
    )
    assert start != ctypes.c_void_p(-1).value
    assert not libc.mprotect(start + room, page, 0)
    there = np.ctypeslib.as_array(
        (ctypes.c_uint8 * array.nbytes).from_address(start + room - array.nbytes)
    )
    there[:] = array.reshape(-1)
    copied = torch.from_numpy(there).view(tensor.dtype).view(stored.shape)
    return copied.t() if transposed else copied
