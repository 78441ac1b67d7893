"""A model -> one TorchScript file, which LibTorch runs without Python: jit_load() in R, torch::jit::load() in C++.

The model files stay the definition. Here stands what of it TorchScript cannot compile, said again without a cache; the
layers themselves, and so the names of the parameters, are the model's own, and parity tests hold the two together.
Compiled, not traced: a trace would keep the dropout, the device, the dtype and the blocks of local attention of the
one call that it saw.

Traps: PyTorch's writer ends the process when the disk is full. In R torch 0.17 a TorchScript module's own $train() and
$eval() fail; model$..ptr..()$train(TRUE), or FALSE, is what works there.

Sources: the TorchScript language reference, and LibTorch 2.8, the oldest that the files are meant for (R torch 0.17).
Notation: that of the model files.
"""

import errno
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.arguments import model_of
from minhub_py.inference.quantize import refuse_quantized
from minhub_py.models.gptneo import local_attention
from minhub_py.models.llama import rotate
from minhub_py.registry import family_of
from minhub_py.skeleton import skeleton


class GPT2Attention(nn.Module):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.n_head, self.dropout = attention.n_head, attention.dropout
        self.scale, self.upcast = attention.scale, attention.upcast
        self.c_attn, self.c_proj = attention.c_attn, attention.c_proj
        self.resid_dropout = attention.resid_dropout

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)  # each (B, T, C)
        q = q.view(B, T, self.n_head, -1).transpose(1, 2)  # (B, H, T, D)
        k = k.view(B, T, self.n_head, -1).transpose(1, 2)
        v = v.view(B, T, self.n_head, -1).transpose(1, 2)
        if self.upcast:
            q, k, v = q.float(), k.float(), v.float()
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=self.scale)
        y = y.to(x.dtype).transpose(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class GPTNeoAttention(nn.Module):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.num_heads, self.dropout = attention.num_heads, attention.dropout
        self.window = attention.window
        self.q_proj, self.k_proj, self.v_proj = attention.q_proj, attention.k_proj, attention.v_proj
        self.out_proj, self.resid_dropout = attention.out_proj, attention.resid_dropout

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2).float()  # (B, H, T, D)
        k = self.k_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2).float()
        v = self.v_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2).float()
        dropout = self.dropout if self.training else 0.0
        if self.window is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=1.0)
        else:
            starts = torch.zeros(B, dtype=torch.long, device=x.device)
            y = local_attention(q, k, v, starts, self.window, dropout)
        y = y.to(x.dtype).transpose(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.out_proj(y))


class MLP(nn.Module):
    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.dropout = mlp.c_fc, mlp.c_proj, mlp.dropout
        self.act = traced(mlp.act)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


@cache  # layers that share it are of one type in the file, and share their code there
def traced(activation: Callable[[Tensor], Tensor]) -> Any:
    """An elementwise function for TorchScript, which compiles no functools.partial; a trace loses nothing here."""

    def function(x: Tensor) -> Tensor:
        return activation(x)

    return torch.jit.trace(function, torch.zeros(1))


class Block(nn.Module):
    def __init__(self, block: Any, attention: type[nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.attn = block.ln_1, attention(block.attn)
        self.ln_2, self.mlp = block.ln_2, MLP(block.mlp)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """GPT-2 and GPT-Neo, which differ in their attention alone."""

    def __init__(self, model: Any, attention: type[nn.Module]) -> None:
        super().__init__()
        self.context_length = model.config.context_length
        self.wte, self.wpe, self.drop = model.wte, model.wpe, model.drop
        self.h = nn.ModuleList(Block(block, attention) for block in model.h)
        self.ln_f, self.lm_head = model.ln_f, model.lm_head

    def forward(self, idx: Tensor) -> Tensor:
        if idx.dim() != 2 or idx.numel() == 0:
            raise ValueError(f"idx must be (B, T) with at least one id, not {idx.shape}")
        if idx.size(1) > self.context_length:
            raise ValueError(f"{idx.size(1)} positions; this model has {self.context_length}")
        positions = torch.arange(idx.size(1), device=idx.device)  # (T,)
        x = self.drop(self.wte(idx) + self.wpe(positions))  # (B, T, C)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)


class LlamaAttention(nn.Module):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.heads, self.groups, self.size = attention.heads, attention.groups, attention.size
        self.window, self.dropout = attention.window, attention.dropout
        self.q_proj, self.k_proj, self.v_proj = attention.q_proj, attention.k_proj, attention.v_proj
        self.o_proj, self.q_norm, self.k_norm = attention.o_proj, attention.q_norm, attention.k_norm

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, growth: Tensor | None) -> Tensor:
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.size)
        k = self.k_proj(x).view(B, T, self.groups, self.size)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)  # (B, G, T, D)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin)
        if growth is not None:
            q = q * growth
        if self.heads != self.groups:
            k = k.repeat_interleave(self.heads // self.groups, dim=1)  # (B, H, T, D)
            v = v.repeat_interleave(self.heads // self.groups, dim=1)
        dropout = self.dropout if self.training else 0.0
        if self.window is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        else:
            places = torch.arange(T, device=x.device)
            back = places.unsqueeze(1) - places  # (T, T)
            mask = (back >= 0) & (back < self.window)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, self.heads * self.size))


class LlamaMLP(nn.Module):
    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act = traced(mlp.act)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = block.input_layernorm, LlamaAttention(block.self_attn)
        self.post_attention_layernorm, self.mlp = block.post_attention_layernorm, LlamaMLP(block.mlp)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, growth: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, growth)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaTransformer(nn.Module):
    """Llama and its kin."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.context_length = model.config.context_length
        self.frequencies, self.amplitude = model.frequencies, model.amplitude
        self.growth = float(model.config.rope.get("llama_4_scaling_beta") or 0)
        self.original = float(model.config.rope.get("original_max_position_embeddings", 1))
        self.embed_tokens, self.norm, self.lm_head = model.embed_tokens, model.norm, model.lm_head
        self.layers = nn.ModuleList(LlamaBlock(block) for block in model.layers)

    def forward(self, idx: Tensor) -> Tensor:
        if idx.dim() != 2 or idx.numel() == 0:
            raise ValueError(f"idx must be (B, T) with at least one id, not {idx.shape}")
        if idx.size(1) > self.context_length:
            raise ValueError(f"{idx.size(1)} positions; this model has {self.context_length}")
        x = self.embed_tokens(idx)  # (B, T, C)
        positions = torch.arange(idx.size(1), device=idx.device).float()
        angles = positions.unsqueeze(1) * torch.tensor(self.frequencies, dtype=torch.float32, device=idx.device)
        cos, sin = (angles.cos() * self.amplitude).to(x.dtype), (angles.sin() * self.amplitude).to(x.dtype)  # (T, D/2)
        growth: Tensor | None = None
        if self.growth > 0:
            growth = (1 + self.growth * torch.log(1 + torch.floor(positions / self.original))).to(x.dtype).unsqueeze(1)
        for block in self.layers:
            x = block(x, cos, sin, growth)
        x = self.norm(x)
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)


class Recurrent(nn.Module):
    """The LSTM."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding, self.drop, self.lstm = model.embedding, model.drop, model.lstm
        self.head = Head(model.head)

    def forward(self, idx: Tensor) -> Tensor:
        if idx.dim() != 2 or idx.numel() == 0:
            raise ValueError(f"idx must be (B, T) with at least one id, not {idx.shape}")
        x, _ = self.lstm(self.drop(self.embedding(idx)))  # (B, T, H)
        return self.head(self.drop(x), self.embedding.weight)


class Head(nn.Module):
    """A Linear that takes the embedding's weight where it has none of its own."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


EXPORTS: dict[str, Callable[[Any], nn.Module]] = {  # by the family's name
    "gpt2": lambda model: Transformer(model, GPT2Attention),
    "gptneo": lambda model: Transformer(model, GPTNeoAttention),
    "lstm": Recurrent,
    "llama": LlamaTransformer,
}


def save_torchscript(model: nn.Module, path: str | Path, extra_files: Mapping[str, bytes] | None = None) -> None:
    """Write the model as one file for torch.jit.load() or R torch's jit_load(), in place of what was there.

    What is loaded maps idx, int64 (B, T), 0-based in R too, to logits (B, T, V) in the model's dtype. It is on the CPU
    and in eval mode, and can be moved, cast and trained: train() turns dropout on, and parameters, named as in the
    model, get gradients. It raises where idx is empty, no matrix, longer than the context, or has an id out of range.

    extra_files: what is to travel in the file beside config.json, such as tokenizer.json. torch.jit.load() gives it by
    its `_extra_files`, and any reader of zip archives as STEM/extra/NAME, where STEM is the file's first name.

    ValueError: not a model of this package, or a quantized one. OSError: the disk is full or may not be written;
    nothing has changed then.
    """
    model = model_of(model, "save_torchscript()")
    refuse_quantized(model, "written as TorchScript")
    config: Any = model.config
    settings = {**config.to_hub(), "dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    extra = {"config.json": json.dumps(settings, indent=2).encode(), **(extra_files or {})}
    with warnings.catch_warnings():
        # PyTorch would have torch.export used, which R cannot load. A FutureWarning since PyTorch 2.15.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)", category)
        write(compiled(model), Path(path), extra)


def compiled(model: Any) -> torch.jit.ScriptModule:
    """The model in TorchScript, in eval mode, on the CPU; it shares the memory of weights that are there already."""
    family = family_of(model.config.to_hub()["model_type"])
    own = skeleton(family, model.config)  # so that neither mode nor device of the caller's model changes
    own.load_state_dict({name: tensor.cpu() for name, tensor in model.state_dict().items()}, assign=True)
    return torch.jit.script(EXPORTS[family.name](own)).eval()


def write(script: torch.jit.ScriptModule, path: Path, extra: Mapping[str, bytes]) -> None:
    """Save under a passing name, and take the own one when all is on the disk. OSError says why that cannot be."""
    size = sum(tensor.nbytes for tensor in script.state_dict().values()) + sum(map(len, extra.values()))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder, since PyTorch names the archive's root after the file.
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".partial", dir=path.parent) as folder:
            partial = Path(folder) / path.name
            # Room for code and headers too. To ask is the only way: see the traps above.
            if shutil.disk_usage(folder).free < size + 2**20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            torch.jit.save(script, partial, _extra_files=extra)
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(f"{path} cannot be written ({reason}): make room, or name another file") from error
