"""Language models from the Hugging Face Hub as single PyTorch files, for Python and R.

    from minhub_py import gpt2_from_pretrained, tokenizer_from_pretrained, generate

    model = gpt2_from_pretrained("minhub/shakespeare-gpt2")
    tokenizer = tokenizer_from_pretrained("minhub/shakespeare-gpt2")
    [ids] = generate(model, [tokenizer.encode("ROMEO:").ids], max_new_tokens=100)
    print(tokenizer.decode(ids))

Every name in `registry.ENTRIES` has three functions, such as `gpt2()`, `gpt2_from_config()` and
`gpt2_from_pretrained()`. Names are imported on first use: importing the package does not import PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minhub_py.registry import ENTRIES

if TYPE_CHECKING:  # for editors and type checkers; __getattr__ imports these at run time
    import os

    from minhub_py.analysis.activations import activations as activations
    from minhub_py.analysis.agreement import agreement as agreement
    from minhub_py.analysis.annotate import annotate as annotate
    from minhub_py.analysis.attention import attention_weights as attention_weights
    from minhub_py.analysis.attribution import attribution as attribution
    from minhub_py.analysis.classify import classify as classify
    from minhub_py.analysis.classify import rerank as rerank
    from minhub_py.analysis.directions import direction as direction
    from minhub_py.analysis.embeddings import embed as embed
    from minhub_py.analysis.estimate import choose_for_coding as choose_for_coding
    from minhub_py.analysis.estimate import estimate as estimate
    from minhub_py.analysis.heads import head_scores as head_scores
    from minhub_py.analysis.interventions import intervene as intervene
    from minhub_py.analysis.lens import logit_lens as logit_lens
    from minhub_py.analysis.masked import masked_logprobs as masked_logprobs
    from minhub_py.analysis.masked import masked_tokens as masked_tokens
    from minhub_py.analysis.masked import pseudo_logprobs as pseudo_logprobs
    from minhub_py.analysis.matrix import logprob_matrix as logprob_matrix
    from minhub_py.analysis.patching import patching as patching
    from minhub_py.analysis.probes import probe as probe
    from minhub_py.analysis.search import search as search
    from minhub_py.analysis.search import similarity as similarity
    from minhub_py.analysis.surprisal import next_tokens as next_tokens
    from minhub_py.analysis.surprisal import target_logprobs as target_logprobs
    from minhub_py.analysis.surprisal import word_logprobs as word_logprobs
    from minhub_py.analysis.token_labels import classify_tokens as classify_tokens
    from minhub_py.chat.conversation import Chat as Chat
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream as decode_stream
    from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_from_pretrained as tokenizer_from_pretrained
    from minhub_py.inference.generate import generate as generate
    from minhub_py.inference.generate import score as score
    from minhub_py.inference.generate import stream as stream
    from minhub_py.pretrained import from_pretrained as from_pretrained
    from minhub_py.pretrained import save_pretrained as save_pretrained
    from minhub_py.system.device import devices as devices
    from minhub_py.training import resume as resume
    from minhub_py.training import train as train

    def _fresh(**config: Any) -> Any: ...

    def _sized(
        identifier: str | os.PathLike[str],
        revision: str = "main",
        *,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> Any: ...

    gpt2, gpt2_from_config, gpt2_from_pretrained = _fresh, _sized, from_pretrained
    gptneo, gptneo_from_config, gptneo_from_pretrained = _fresh, _sized, from_pretrained
    gptbigcode, gptbigcode_from_config, gptbigcode_from_pretrained = _fresh, _sized, from_pretrained
    gptneox, gptneox_from_config, gptneox_from_pretrained = _fresh, _sized, from_pretrained
    gptoss, gptoss_from_config, gptoss_from_pretrained = _fresh, _sized, from_pretrained
    gptj, gptj_from_config, gptj_from_pretrained = _fresh, _sized, from_pretrained
    opt, opt_from_config, opt_from_pretrained = _fresh, _sized, from_pretrained
    lstm, lstm_from_config, lstm_from_pretrained = _fresh, _sized, from_pretrained
    phi, phi_from_config, phi_from_pretrained = _fresh, _sized, from_pretrained
    sinusoidal, sinusoidal_from_config, sinusoidal_from_pretrained = _fresh, _sized, from_pretrained
    llama, llama_from_config, llama_from_pretrained = _fresh, _sized, from_pretrained
    mistral, mistral_from_config, mistral_from_pretrained = _fresh, _sized, from_pretrained
    ministral, ministral_from_config, ministral_from_pretrained = _fresh, _sized, from_pretrained
    qwen2, qwen2_from_config, qwen2_from_pretrained = _fresh, _sized, from_pretrained
    qwen3, qwen3_from_config, qwen3_from_pretrained = _fresh, _sized, from_pretrained
    gemma, gemma_from_config, gemma_from_pretrained = _fresh, _sized, from_pretrained
    gemma2, gemma2_from_config, gemma2_from_pretrained = _fresh, _sized, from_pretrained
    gemma3, gemma3_from_config, gemma3_from_pretrained = _fresh, _sized, from_pretrained
    olmo2, olmo2_from_config, olmo2_from_pretrained = _fresh, _sized, from_pretrained
    qwen35, qwen35_from_config, qwen35_from_pretrained = _fresh, _sized, from_pretrained
    olmo3, olmo3_from_config, olmo3_from_pretrained = _fresh, _sized, from_pretrained
    exaone4, exaone4_from_config, exaone4_from_pretrained = _fresh, _sized, from_pretrained
    ernie45, ernie45_from_config, ernie45_from_pretrained = _fresh, _sized, from_pretrained
    seedoss, seedoss_from_config, seedoss_from_pretrained = _fresh, _sized, from_pretrained
    internlm3, internlm3_from_config, internlm3_from_pretrained = _fresh, _sized, from_pretrained
    hunyuan, hunyuan_from_config, hunyuan_from_pretrained = _fresh, _sized, from_pretrained
    starcoder2, starcoder2_from_config, starcoder2_from_pretrained = _fresh, _sized, from_pretrained
    glm4, glm4_from_config, glm4_from_pretrained = _fresh, _sized, from_pretrained
    cohere, cohere_from_config, cohere_from_pretrained = _fresh, _sized, from_pretrained
    cohere2, cohere2_from_config, cohere2_from_pretrained = _fresh, _sized, from_pretrained
    stablelm, stablelm_from_config, stablelm_from_pretrained = _fresh, _sized, from_pretrained
    phi3, phi3_from_config, phi3_from_pretrained = _fresh, _sized, from_pretrained
    smollm3, smollm3_from_config, smollm3_from_pretrained = _fresh, _sized, from_pretrained
    granite, granite_from_config, granite_from_pretrained = _fresh, _sized, from_pretrained
    granitehybrid, granitehybrid_from_config, granitehybrid_from_pretrained = _fresh, _sized, from_pretrained
    t5, t5_from_config, t5_from_pretrained = _fresh, _sized, from_pretrained
    bert, bert_from_config, bert_from_pretrained = _fresh, _sized, from_pretrained
    roberta, roberta_from_config, roberta_from_pretrained = _fresh, _sized, from_pretrained
    xlmroberta, xlmroberta_from_config, xlmroberta_from_pretrained = _fresh, _sized, from_pretrained
    camembert, camembert_from_config, camembert_from_pretrained = _fresh, _sized, from_pretrained
    distilbert, distilbert_from_config, distilbert_from_pretrained = _fresh, _sized, from_pretrained
    electra, electra_from_config, electra_from_pretrained = _fresh, _sized, from_pretrained
    mpnet, mpnet_from_config, mpnet_from_pretrained = _fresh, _sized, from_pretrained
    modernbert, modernbert_from_config, modernbert_from_pretrained = _fresh, _sized, from_pretrained

__version__ = "0.1.0"

_HOMES = {
    "from_pretrained": "pretrained",
    "save_pretrained": "pretrained",
    "tokenizer_from_pretrained": "checkpoints.tokenizers.tokenizer",
    "decode_stream": "checkpoints.tokenizers.tokenizer",
    "generate": "inference.generate",
    "stream": "inference.generate",
    "score": "inference.generate",
    "word_logprobs": "analysis.surprisal",
    "target_logprobs": "analysis.surprisal",
    "next_tokens": "analysis.surprisal",
    "logprob_matrix": "analysis.matrix",
    "embed": "analysis.embeddings",
    "similarity": "analysis.search",
    "search": "analysis.search",
    "masked_tokens": "analysis.masked",
    "masked_logprobs": "analysis.masked",
    "pseudo_logprobs": "analysis.masked",
    "classify": "analysis.classify",
    "classify_tokens": "analysis.token_labels",
    "rerank": "analysis.classify",
    "annotate": "analysis.annotate",
    "agreement": "analysis.agreement",
    "choose_for_coding": "analysis.estimate",
    "estimate": "analysis.estimate",
    "attention_weights": "analysis.attention",
    "logit_lens": "analysis.lens",
    "activations": "analysis.activations",
    "intervene": "analysis.interventions",
    "direction": "analysis.directions",
    "probe": "analysis.probes",
    "patching": "analysis.patching",
    "attribution": "analysis.attribution",
    "head_scores": "analysis.heads",
    "Chat": "chat.conversation",
    "devices": "system.device",
    "train": "training",
    "resume": "training",
}
_ENTRY_POINTS = {
    name: entry for entry in ENTRIES.values() for name in (
        entry.name, f"{entry.name}_from_config", f"{entry.name}_from_pretrained"
    )
}  # fmt: skip
__all__ = [*_HOMES, *_ENTRY_POINTS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"minhub_py.{_HOMES[name]}"), name)
    elif name in _ENTRY_POINTS:
        value = import_module("minhub_py.pretrained").entry_points(_ENTRY_POINTS[name])[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names and the dunder names of the module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
