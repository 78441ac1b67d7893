"""A random Laya checkpoint, in the layout of its package, and its computation in plain PyTorch.

`scores` follows the package's description: transformers' ModernBERT, an embedding of the question's
type, layers of PyTorch's nn.TransformerEncoderLayer, and a scorer of the marked positions.
"""

import json
from pathlib import Path
from typing import Any

import torch
from paths import TEXT
from random_weights import draw
from safetensors.torch import save_file
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

SIZES = {
    "hidden_size": 128, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 400, "local_attention": 16, "pad_token_id": 2, "cls_token_id": 0,
    "bos_token_id": 0, "sep_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
AGENT = {
    "encoder": "answerdotai/ModernBERT-large",
    "head_layers": 2,
    "act_costs": {"defer": 0.3},
    "max_len": 300,
    "head_max_len": 120,
    "temperature": [1.5, 0.8, 2.0],
    "temperature_by_options": {"choice:3-5": 1.7, "noul:2": 0.1, "choice:11+": 0.2},
    "learning_rate": 1e-5,
}
SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[MASK]")


def reference(agent: dict[str, Any], sizes: dict[str, Any]) -> nn.ModuleDict:
    """The modules of a checkpoint by the names of its tensors."""
    C = sizes["hidden_size"]
    layer = nn.TransformerEncoderLayer(C, max(1, C // 64), 4 * C, batch_first=True, norm_first=True)
    modules = nn.ModuleDict({
        "encoder": AutoModel.from_config(AutoConfig.for_model("modernbert", **sizes)),
        "head": nn.TransformerEncoder(layer, agent["head_layers"], enable_nested_tensor=False),
        "type_emb": nn.Embedding(3, C),
        "scorer": nn.Sequential(nn.LayerNorm(C), nn.Linear(C, C), nn.GELU(), nn.Linear(C, 1)),
        "act_head": nn.Sequential(
            nn.Linear(C + 4, 256), nn.GELU(), nn.Linear(256, len(agent["act_costs"]) + 1)
        ),
    })  # fmt: skip
    modules.register_buffer("temperature", torch.ones(3))
    draw(modules.eval())
    return modules


@torch.no_grad()
def scores(modules: nn.ModuleDict, ids: list[int], marks: list[int], kind: int) -> Tensor:
    """The scores of the options of a question of a type."""
    x = modules["encoder"](torch.tensor([ids])).last_hidden_state
    x = modules["head"](x + modules["type_emb"].weight[kind])
    return modules["scorer"](x[0, marks])[:, 0]


def laya_model(folder: Path, **changes: Any) -> tuple[Path, nn.ModuleDict]:
    """A checkpoint with changed settings of rl_agent_config.json, and its modules."""
    tokenizer = train_byte_level_bpe([TEXT.read_text(encoding="utf-8")], 400)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, lstrip=token == "[MASK]") for token in SPECIAL]
    )
    first = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    ids = {"cls_token_id": "[CLS]", "bos_token_id": "[CLS]", "sep_token_id": "[SEP]",
           "eos_token_id": "[SEP]", "pad_token_id": "[PAD]"}  # fmt: skip
    sizes = SIZES | {name: first[token] for name, token in ids.items()}
    sizes["vocab_size"] = tokenizer.get_vocab_size()
    agent = {**AGENT, **changes}
    torch.manual_seed(5)
    modules = reference(agent, sizes)
    for name in ("encoder", "tokenizer"):
        (folder / name).mkdir(parents=True)
    modules["encoder"].config.save_pretrained(folder / "encoder")
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask")}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
    )
    (folder / "rl_agent_config.json").write_text(json.dumps(agent))
    save_file(modules.state_dict(), folder / "model.safetensors")
    return folder, modules
