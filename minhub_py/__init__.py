"""Language models from the Hugging Face Hub as single PyTorch files, for Python and R.

    from minhub_py import gpt2_from_pretrained, tokenizer_from_pretrained, generate

    model = gpt2_from_pretrained("minhub/shakespeare-gpt2")
    tokenizer = tokenizer_from_pretrained("minhub/shakespeare-gpt2")
    [ids] = generate(model, [tokenizer.encode("ROMEO:").ids], max_new_tokens=100)
    print(tokenizer.decode(ids))

`from_pretrained` loads a model of any architecture, and `from_config` creates one with random
weights. Eight architectures have functions of their names, such as `gpt2()`, `gpt2_from_config()`
and `gpt2_from_pretrained()`. Names are imported on first use: importing the package does not import
PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minhub_py.system.version import __version__ as __version__

if TYPE_CHECKING:  # for editors and type checkers; __getattr__ imports these at run time
    from minhub_py.analysis.activations import activations as activations
    from minhub_py.analysis.agreement import agreement as agreement
    from minhub_py.analysis.annotate import annotate as annotate
    from minhub_py.analysis.answers import answer_questions as answer_questions
    from minhub_py.analysis.attention import attention_weights as attention_weights
    from minhub_py.analysis.attribution import attribution as attribution
    from minhub_py.analysis.calibrate import Calibration as Calibration
    from minhub_py.analysis.calibrate import calibrate as calibrate
    from minhub_py.analysis.classify import classify as classify
    from minhub_py.analysis.classify import rerank as rerank
    from minhub_py.analysis.decisions import Decisions as Decisions
    from minhub_py.analysis.decisions import decide as decide
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
    from minhub_py.analysis.minimal_pairs import minimal_pairs as minimal_pairs
    from minhub_py.analysis.patching import patching as patching
    from minhub_py.analysis.probes import probe as probe
    from minhub_py.analysis.search import search as search
    from minhub_py.analysis.search import similarity as similarity
    from minhub_py.analysis.summaries import summarize as summarize
    from minhub_py.analysis.surprisal import next_tokens as next_tokens
    from minhub_py.analysis.surprisal import target_logprobs as target_logprobs
    from minhub_py.analysis.surprisal import word_logprobs as word_logprobs
    from minhub_py.analysis.token_labels import classify_tokens as classify_tokens
    from minhub_py.analysis.translation import translate as translate
    from minhub_py.analysis.tuned_lens import tuned_lens as tuned_lens
    from minhub_py.analysis.word_embeddings import word_embeddings as word_embeddings
    from minhub_py.chat.completion import complete as complete
    from minhub_py.chat.conversation import Chat as Chat
    from minhub_py.chat.turns import Reply as Reply
    from minhub_py.chat.turns import ReplySettings as ReplySettings
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream as decode_stream
    from minhub_py.checkpoints.tokenizers.tokenizer import (
        tokenizer_from_pretrained as tokenizer_from_pretrained,
    )
    from minhub_py.inference.beam_search import beam_search as beam_search
    from minhub_py.inference.beams import Hypothesis as Hypothesis
    from minhub_py.inference.generate import generate as generate
    from minhub_py.inference.generate import score as score
    from minhub_py.inference.generate import stream as stream
    from minhub_py.jobs.replay import replay as replay
    from minhub_py.loading.adapters.attach import save_adapter as save_adapter
    from minhub_py.loading.entry_points import from_config as from_config
    from minhub_py.loading.entry_points import gemma3 as gemma3
    from minhub_py.loading.entry_points import gemma3_from_config as gemma3_from_config
    from minhub_py.loading.entry_points import gemma3_from_pretrained as gemma3_from_pretrained
    from minhub_py.loading.entry_points import gpt2 as gpt2
    from minhub_py.loading.entry_points import gpt2_from_config as gpt2_from_config
    from minhub_py.loading.entry_points import gpt2_from_pretrained as gpt2_from_pretrained
    from minhub_py.loading.entry_points import gptbigcode as gptbigcode
    from minhub_py.loading.entry_points import gptbigcode_from_config as gptbigcode_from_config
    from minhub_py.loading.entry_points import (
        gptbigcode_from_pretrained as gptbigcode_from_pretrained,
    )
    from minhub_py.loading.entry_points import gptneo as gptneo
    from minhub_py.loading.entry_points import gptneo_from_config as gptneo_from_config
    from minhub_py.loading.entry_points import gptneo_from_pretrained as gptneo_from_pretrained
    from minhub_py.loading.entry_points import gptneox as gptneox
    from minhub_py.loading.entry_points import gptneox_from_config as gptneox_from_config
    from minhub_py.loading.entry_points import gptneox_from_pretrained as gptneox_from_pretrained
    from minhub_py.loading.entry_points import gptoss as gptoss
    from minhub_py.loading.entry_points import gptoss_from_config as gptoss_from_config
    from minhub_py.loading.entry_points import gptoss_from_pretrained as gptoss_from_pretrained
    from minhub_py.loading.entry_points import llama as llama
    from minhub_py.loading.entry_points import llama_from_config as llama_from_config
    from minhub_py.loading.entry_points import llama_from_pretrained as llama_from_pretrained
    from minhub_py.loading.entry_points import lstm as lstm
    from minhub_py.loading.entry_points import lstm_from_config as lstm_from_config
    from minhub_py.loading.entry_points import lstm_from_pretrained as lstm_from_pretrained
    from minhub_py.loading.pretrained import from_pretrained as from_pretrained
    from minhub_py.loading.pretrained import save_pretrained as save_pretrained
    from minhub_py.system.device import devices as devices
    from minhub_py.training import Run as Run
    from minhub_py.training import Settings as Settings
    from minhub_py.training import resume as resume
    from minhub_py.training import train as train

_HOMES = {
    "from_config": "loading.entry_points",
    "from_pretrained": "loading.pretrained",
    "save_pretrained": "loading.pretrained",
    "save_adapter": "loading.adapters.attach",
    "tokenizer_from_pretrained": "checkpoints.tokenizers.tokenizer",
    "decode_stream": "checkpoints.tokenizers.tokenizer",
    "generate": "inference.generate",
    "stream": "inference.generate",
    "beam_search": "inference.beam_search",
    "Hypothesis": "inference.beams",
    "score": "inference.generate",
    "word_logprobs": "analysis.surprisal",
    "target_logprobs": "analysis.surprisal",
    "next_tokens": "analysis.surprisal",
    "logprob_matrix": "analysis.matrix",
    "embed": "analysis.embeddings",
    "word_embeddings": "analysis.word_embeddings",
    "similarity": "analysis.search",
    "search": "analysis.search",
    "masked_tokens": "analysis.masked",
    "masked_logprobs": "analysis.masked",
    "pseudo_logprobs": "analysis.masked",
    "classify": "analysis.classify",
    "classify_tokens": "analysis.token_labels",
    "answer_questions": "analysis.answers",
    "rerank": "analysis.classify",
    "summarize": "analysis.summaries",
    "translate": "analysis.translation",
    "annotate": "analysis.annotate",
    "decide": "analysis.decisions",
    "Decisions": "analysis.decisions",
    "calibrate": "analysis.calibrate",
    "Calibration": "analysis.calibrate",
    "agreement": "analysis.agreement",
    "choose_for_coding": "analysis.estimate",
    "estimate": "analysis.estimate",
    "minimal_pairs": "analysis.minimal_pairs",
    "attention_weights": "analysis.attention",
    "logit_lens": "analysis.lens",
    "tuned_lens": "analysis.tuned_lens",
    "activations": "analysis.activations",
    "intervene": "analysis.interventions",
    "direction": "analysis.directions",
    "probe": "analysis.probes",
    "patching": "analysis.patching",
    "attribution": "analysis.attribution",
    "head_scores": "analysis.heads",
    "replay": "jobs.replay",
    "Chat": "chat.conversation",
    "complete": "chat.completion",
    "Reply": "chat.turns",
    "ReplySettings": "chat.turns",
    "devices": "system.device",
    "train": "training",
    "resume": "training",
    "Run": "training",
    "Settings": "training",
}
# The architectures with functions of their names: the first three, and the architectures of R's
# minhub.
FAMILIES = ("gpt2", "gptneo", "lstm", "llama", "gptneox", "gptbigcode", "gptoss", "gemma3")
_HOMES |= {
    f"{name}{end}": "loading.entry_points"
    for name in FAMILIES
    for end in ("", "_from_config", "_from_pretrained")
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        if instead := _general_function(name):
            # `from minhub_py import` shows it
            raise ImportError(f"minhub_py has no function {name}: use {instead}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"minhub_py.{_HOMES[name]}"), name)
    return value


def _general_function(name: str) -> str | None:
    """The call for all architectures that replaces a function of one, such as
    mixtral_from_pretrained().
    """
    from minhub_py.models.registry import ENTRIES

    family, _, function = name.partition("_from_")
    if family not in ENTRIES or function not in ("", "config", "pretrained"):
        return None
    return f"from_{function}(identifier)" if function else f'from_config("{family}", …)'


def __dir__() -> list[str]:
    """The public names and the dunder names of the module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
