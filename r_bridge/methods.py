"""What R may ask for: this fixed list of methods, over plain values.

A method takes the service that holds R's objects, and then what R sends, by name; its annotations say what is taken
(`Service.read`), convert.py what becomes of the rest. PyTorch is imported by the first method that needs it.
"""

import importlib.metadata
import itertools
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from r_bridge.convert import Frame, as_array, character, id_rows, one, setting
from r_bridge.state_dict import StateDict, as_native

if TYPE_CHECKING:
    from r_bridge.service import Service

METHODS: dict[str, Callable[..., Any]] = {}


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function one of those that R may call by name."""
    METHODS[function.__name__] = function
    return function


@dataclass
class Model:
    """A model that R holds; its folder, or the repository of its published size, may hold a tokenizer."""

    module: Any
    folder: Path | None = None
    identifier: str | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer beside the weights. ValueError: there is none."""
        from minhub_py.files.tokenizer import read_tokenizer, tokenizer_from_pretrained

        if self.folder is None and self.identifier is not None:
            return tokenizer_from_pretrained(self.identifier)
        if self.folder is None:
            raise ValueError("this model has no tokenizer: pass ids, or tokenizer = tokenizer_from_pretrained()")
        return read_tokenizer(self.folder)


@dataclass
class Tokenizer:
    """A tokenizer that R holds."""

    tokenizer: Any

    @cached_property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1


# The worker itself


@method
def hello(service: "Service") -> dict[str, Any]:
    """Who is serving."""
    return {
        "minhub_py": importlib.metadata.version("minhub_py"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": importlib.metadata.version("torch"),
    }


@method
def nothing(service: "Service") -> None:
    """An empty call, to measure what a call costs."""


@method
def warm_up(service: "Service") -> str:
    """Import PyTorch now. Returns its version."""
    import torch

    return torch.__version__


@method
def devices(service: "Service") -> Frame:
    """What was probed: columns device, works, detail, picked."""
    from minhub_py.device import devices as probe

    report = probe()
    return Frame({
        "device": character(found.name for found in report.probes),
        "works": np.array([found.works for found in report.probes]),
        "dtypes": character(", ".join(found.dtypes) if found.works else "" for found in report.probes),
        "detail": character(found.detail for found in report.probes),
        "picked": np.array([found.name == report.device for found in report.probes]),
    })  # fmt: skip


@method
def doctor(service: "Service", facts: Any) -> Frame:
    """All findings: columns what, found, fits, advice. `facts` is what R says of itself (probe.FACTS)."""
    from minhub_py.doctor import examine

    findings = examine({name: one(value, str) for name, value in facts.items()})
    return Frame({
        "what": character(f.what for f in findings),
        "found": character(f.found for f in findings),
        "fits": np.array([f.fits for f in findings]),
        "advice": character(f.advice for f in findings),
    })  # fmt: skip


# Models


@method
def from_pretrained(
    service: "Service", identifier: str, revision: str, family: str | None, device: str, dtype: str,
    quantize: str | None, token: str | None, local_files_only: bool,
) -> dict[str, Any]:  # fmt: skip
    """A pretrained model, of the one family if it is given."""
    from minhub_py.files import hub
    from minhub_py.files.storage import Checkpoint
    from minhub_py.pretrained import check_family, describe, load
    from minhub_py.registry import ENTRIES

    def check(folder: Path) -> None:
        check_family(describe(Checkpoint(folder))[1], ENTRIES[family] if family else None, identifier)

    folder = hub.fetch(identifier, revision, token=token, local_files_only=local_files_only, check=check)
    check(folder)
    model = Model(load(Checkpoint(folder), device=device, dtype=dtype, quantize=quantize), folder)
    return about(service, model, service.keep(model)) | {"commit": _commit(identifier, folder)}


@method
def from_config(
    service: "Service",
    identifier: str,
    revision: str,
    family: str,
    token: str | None,
    local_files_only: bool,
    seed: int,
) -> dict[str, Any]:
    """A model with random weights, sized by a config.json."""
    from minhub_py.pretrained import read_config
    from minhub_py.registry import ENTRIES

    kind, config, folder = read_config(
        identifier, revision, entry=ENTRIES[family], token=token, local_files_only=local_files_only
    )
    model = Model(_fresh(kind, config, seed), folder, identifier)
    return about(service, model, service.keep(model)) | {"commit": folder and _commit(identifier, folder)}


@method
def fresh(service: "Service", family: str, config: Any, seed: int) -> dict[str, Any]:
    """A model with random weights, of the given settings."""
    from minhub_py.registry import ENTRIES

    settings = {name: setting(value) for name, value in dict(config or {}).items()}
    model = Model(_fresh(ENTRIES[family].family, ENTRIES[family].config(settings), seed))
    return about(service, model, service.keep(model)) | {"commit": None}


def _fresh(family: Any, config: Any, seed: int) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family.Model(config)


def _commit(identifier: str, folder: Path) -> str | None:
    """The commit that a repository's snapshot is of: with it the very same model can be loaded again."""
    from minhub_py.files import hub

    return folder.name if hub.locate(identifier) is None else None


def about(service: "Service", model: Model, number: int) -> dict[str, Any]:
    """What R shows of a model."""
    from minhub_py.inference.quantize import count, kind_of
    from minhub_py.registry import family_of

    module = model.module
    weight = next(module.parameters())
    config = module.config.to_hub()
    family = family_of(config["model_type"])
    return {
        "number": number,
        "family": family.name,
        "class": family.classes[1],
        "config": {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()},
        "context": module.config.context_length,
        "vocab_size": module.config.vocab_size,
        "parameters": float(count(module)),
        "device": str(weight.device),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "quantized": kind_of(module),
        "training": module.training,
        "folder": None if model.folder is None else str(model.folder),
    }


@method
def train(service: "Service", model: Model, mode: bool) -> None:
    """Dropout on or off."""
    model.module.train(mode)


@method
def to(service: "Service", model: Model, device: str | None, dtype: str | None) -> dict[str, Any]:
    """Move a model."""
    from minhub_py.device import choose_device, choose_dtype

    weight = next(model.module.parameters())
    probe = choose_device(device or str(weight.device))
    model.module.to(probe.name, choose_dtype(dtype or "auto", probe, [weight.dtype]))
    return about(service, model, 0)


@method
def parameters(service: "Service", model: Model) -> dict[str, Any]:
    """Name, shape and dtype of every weight. ValueError: it is quantized."""
    from minhub_py.inference.quantize import refuse_quantized

    refuse_quantized(model.module, "taken apart into its weights")
    named = dict(model.module.named_parameters())
    return {
        "name": character(named),
        "shape": [np.array(tuple(weight.shape), np.int32) for weight in named.values()],
        "dtype": character(str(weight.dtype).removeprefix("torch.") for weight in named.values()),
    }


@method
def parameter(service: "Service", model: Model, name: str) -> Any:
    """One weight as an array."""
    named = dict(model.module.named_parameters())
    if name not in named:
        raise LookupError(f"there is no weight {name!r}; names(model$parameters) has them all")
    return named[name]


@method
def check_state_dict(service: "Service", model: Model, names: Any, shapes: Any) -> None:
    """Whether weights of these names and shapes are all that a model has, before they are sent. ValueError: not so."""
    import torch

    from minhub_py.inference.quantize import refuse_quantized

    refuse_quantized(model.module, "given other weights")
    shapes = [tuple(as_array(shape).tolist()) for shape in shapes]
    as_native(model.module, {
        name: torch.empty(shape, device="meta") for name, shape in zip(names, shapes, strict=True)
    })  # fmt: skip


@method
def new_state_dict(service: "Service") -> int:
    """Room for weights that R is going to send."""
    return service.keep(StateDict({}))


@method
def add_weight(service: "Service", state: StateDict, name: str, value: Any) -> None:
    """One weight: an array, or an R torch tensor as {"shape", "dtype", "data"} in row order. ValueError: it has NaN."""
    import torch

    if isinstance(value, dict):
        value = np.frombuffer(value["data"], one(value["dtype"], str)).reshape(value["shape"])
    tensor = torch.tensor(as_array(value))
    if tensor.isnan().any():
        raise ValueError(f"state_dict has NA or NaN in {name}")
    state.tensors[name] = tensor


@method
def prepare_state_dict(service: "Service", model: Model, state: StateDict) -> None:
    """Make of what was sent the model's own weights, in its dtypes and on its device. ValueError: they do not fit."""
    import torch

    weights = dict(model.module.named_parameters())
    tensors = as_native(model.module, state.tensors)
    # In the same memory layout, which was chosen for its speed.
    state.tensors = {name: torch.empty_like(weights[name]).detach().copy_(tensors[name]) for name in weights}


@method
def load_state_dict(service: "Service", model: Model, state: StateDict) -> None:
    """Give a model the weights that were prepared."""
    for name, weight in model.module.named_parameters():
        weight.data = state.tensors[name]  # not in place: what is there may be the file's own bytes
    state.tensors = {}


@method
def save_pretrained(service: "Service", model: Model, folder: str, tokenizer: Tokenizer | None) -> None:
    """Write a model in Hub layout, with a tokenizer if one is given or lies beside it."""
    from minhub_py.pretrained import save_pretrained as save

    save(model.module, folder, _tokenizer(model, tokenizer, needed=False))


def _own_tokenizer(model: Model) -> Any:
    present = model.folder is not None and any((model.folder / n).exists() for n in ("tokenizer.json", "vocab.json"))
    return model.tokenizer if present else None


@method
def save_torchscript(service: "Service", model: Model, path: str) -> None:
    """Write a model as the TorchScript file that R torch loads."""
    from minhub_py.torchscript import save_torchscript as save

    save(model.module, Path(path))


@method
def forward(service: "Service", model: Model, ids: Any, first: int, as_torch: bool) -> Any:
    """Logits (B, T, V), as an array of R's or as the parts of an R torch tensor."""
    import torch

    rows = id_rows(ids, model.module.config.vocab_size, first)
    lengths = {len(row) for row in rows}
    if not rows or 0 in lengths:
        raise ValueError("there are no ids: pass at least one")
    if len(lengths) > 1:
        raise ValueError(
            f"the rows have {min(lengths)} to {max(lengths)} ids, but an array has rows of one length: "
            "call the model with one row at a time (generate() and score() take rows of any lengths)"
        )
    with torch.inference_mode():
        logits = model.module(torch.tensor(rows, device=next(model.module.parameters()).device))
    service.check()
    return raw_tensor(logits) if as_torch else logits


def raw_tensor(tensor: Any) -> dict[str, Any]:
    """Shape, R torch's name of the dtype, and the elements in row order."""
    import torch

    names = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat16", torch.float64: "double"}
    return {
        "shape": np.array(tuple(tensor.shape), np.int32),
        "dtype": names[tensor.dtype],
        "data": memoryview(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()),
    }


@method
def generate(
    service: "Service", model: Model, prompts: Any, tokenizer: Tokenizer | None, max_new_tokens: int,
    temperature: float, top_k: int | None, top_p: float | None, repetition_penalty: float,
    seeds: Any, eos_id: Any, stop: Any, stream: bool, speculate: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The new text and ids of each prompt; with `stream`, which is for one prompt, pieces of text on the way."""
    from minhub_py.files.tokenizer import decode_stream, until
    from minhub_py.inference.generate import Ends, Sampling, start

    texts = _is_text(prompts)
    stops = tuple(stop or ())
    tok: Any = _tokenizer(model, tokenizer, needed=True) if texts or stops else None
    rows = _prompt_rows(model, tok, prompts)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    ids_that_end = "auto" if eos_id is None else [int(id) for id in as_array(eos_id).reshape(-1)]
    ends = Ends.of(model.module, ids_that_end, stops, tok)
    new: list[list[int]] = [[] for _ in rows]

    def ids() -> Iterator[int]:
        all_seeds = [int(seed) for seed in seeds]
        for row, id in start(model.module, rows, max_new_tokens, sampling, all_seeds, ends, speculate):
            service.check()
            new[row].append(id)
            yield id

    written = None
    if texts and stream:
        pieces = []
        for piece in until(decode_stream(tok, ids(), rows[0]), stops):
            pieces.append(piece)
            service.emit(piece)
        written = ["".join(pieces)]
    else:
        for _ in ids():
            pass
        if texts:
            both = zip(rows, new, strict=True)
            written = ["".join(until(decode_stream(tok, ids, prompt), stops)) for prompt, ids in both]
    return {
        "texts": None if written is None else character(written),
        "ids": [np.array(ids, np.int32) for ids in new],
    }


@method
def next_tokens(service: "Service", model: Model, prompts: Any, tokenizer: Tokenizer | None, n: int) -> Frame:
    """The `n` likeliest next tokens of each prompt, a prompt's rows on end."""
    import torch

    from minhub_py.inference.eval_mode import in_eval_mode
    from minhub_py.inference.generate import check_finite, context_start

    tok = _tokenizer(model, tokenizer, needed=_is_text(prompts))
    device = next(model.module.parameters()).device
    module, without_dropout = in_eval_mode(model.module)
    likely = []
    with torch.inference_mode(), without_dropout():
        for ids in _prompt_rows(model, tok, prompts):
            service.check()
            begin = context_start(len(ids), model.module.config.context_length)
            logits = module(torch.tensor([ids[begin:]], device=device))[0, -1]
            check_finite(logits.amax())
            likely.append(torch.log_softmax(logits.float(), dim=-1).topk(min(n, logits.numel())))
    ids_found = torch.cat([best.indices for best in likely])
    logprobs = torch.cat([best.values for best in likely])
    return Frame({
        "prompt": np.repeat(np.arange(1, len(likely) + 1, dtype=np.int32), len(likely[0].indices)),
        "token": _token_texts(tok, ids_found.tolist()),
        "id": ids_found,
        "prob": logprobs.double().exp(),
        "logprob": logprobs,
    })  # fmt: skip


@method
def score(service: "Service", model: Model, texts: Any, tokenizer: Tokenizer | None) -> Frame:
    """The log-probability of each token after a text's first."""
    tok = _tokenizer(model, tokenizer, needed=_is_text(texts))
    rows = _rows(model, tok, texts)
    scores = _scores(service, model, rows)
    ids = [id for row in rows for id in row[1:]]
    return Frame({
        "text": np.array([number for number, row in enumerate(rows, 1) for _ in row[1:]], np.int32),
        "position": np.array([place for row in rows for place in range(2, len(row) + 1)], np.int32),
        "token": _token_texts(tok, ids),
        "id": np.array(ids, np.int32),
        "logprob": np.concatenate([as_array(values) for values in scores]) if scores else np.empty(0),
    })  # fmt: skip


@method
def perplexity(service: "Service", model: Model, texts: Any, tokenizer: Tokenizer | None) -> Any:
    """Perplexity: exp of the mean surprise (nats) of each text's tokens after the first; NA where there are none."""
    tok = _tokenizer(model, tokenizer, needed=True) if _is_text(texts) else None
    scores = _scores(service, model, _rows(model, tok, texts))
    values = np.array([np.exp(-as_array(each).astype(np.float64).mean()) if len(each) else 0.0 for each in scores])
    return np.ma.MaskedArray(values, [len(each) == 0 for each in scores])


def _scores(service: "Service", model: Model, rows: list[list[int]]) -> list[Any]:
    """As minhub_py.score, with nothing for a text that has no token."""
    import torch

    from minhub_py.inference.generate import score as evaluate

    some = iter(evaluate(model.module, [row for row in rows if row], progress=service.progress))
    return [next(some) if row else torch.empty(0) for row in rows]


def _is_text(value: Any) -> bool:
    return (isinstance(value, list) and all(isinstance(text, str) for text in value)) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "U"
    )


def _tokenizer(model: Model, given: Tokenizer | None, *, needed: bool) -> Any:
    """The tokenizer given, else the model's own; None, where none is needed and there is none."""
    if given is not None:
        return given.tokenizer
    return model.tokenizer if needed else _own_tokenizer(model)


def _rows(model: Model, tokenizer: Any, texts: Any) -> list[list[int]]:
    """Ids of texts or of ids."""
    size = model.module.config.vocab_size
    if not _is_text(texts):
        return id_rows(texts, size)
    from minhub_py.files.tokenizer import working

    with working(tokenizer):
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        _warn_of_unknown(tokenizer, texts, rows)
    if (largest := max((max(row, default=0) for row in rows), default=0)) >= size:
        raise ValueError(f"the tokenizer is another model's: it gives the id {largest}, this model's go to {size - 1}")
    return rows


def _warn_of_unknown(tokenizer: Any, texts: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Warn of characters that have no token: what is computed is that of another text."""
    from minhub_py.files.tokenizer import describe_unknown, unknown_characters

    if lost := unknown_characters(tokenizer, "".join(texts), itertools.chain.from_iterable(rows)):
        warnings.warn(describe_unknown(tokenizer, lost), stacklevel=2)


def _prompt_rows(model: Model, tokenizer: Any, prompts: Any) -> list[list[int]]:
    rows = _rows(model, tokenizer, prompts)
    for number, row in enumerate(rows, 1):
        if not row:
            raise ValueError(f"prompt {number} has no token that the model knows: give it some text")
    return rows


def _token_texts(tokenizer: Any, ids: list[int]) -> Any:
    if tokenizer is None:
        return [None] * len(ids) or character(())
    return character(tokenizer.decode_batch([[id] for id in ids], skip_special_tokens=False))


# Tokenizers


@method
def tokenizer_from_pretrained(
    service: "Service", identifier: str, revision: str, token: str | None, local_files_only: bool
) -> int:
    """The tokenizer of a repository, folder or built-in."""
    from minhub_py.files.tokenizer import tokenizer_from_pretrained as read

    return service.keep(Tokenizer(read(identifier, revision, token=token, local_files_only=local_files_only)))


@method
def tokenizer_from_file(service: "Service", path: str) -> int:
    """A tokenizer.json."""
    from minhub_py.files.tokenizer import parse

    return service.keep(Tokenizer(parse(Path(path))))


@method
def encode_batch(service: "Service", tokenizer: Tokenizer, texts: Any, add_special_tokens: bool) -> dict[str, Any]:
    """The ids of all texts on end, and how many each has."""
    from minhub_py.files.tokenizer import working

    with working(tokenizer.tokenizer):
        found = tokenizer.tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        rows = [encoding.ids for encoding in found]
        _warn_of_unknown(tokenizer.tokenizer, texts, rows)
    lengths = np.array([len(row) for row in rows], np.int32)
    return {"ids": np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum())), "lengths": lengths}


@method
def decode_batch(service: "Service", tokenizer: Tokenizer, ids: Any, skip_special_tokens: bool) -> Any:
    """The text of each row of ids."""
    rows = id_rows(ids, tokenizer.size)
    return character(tokenizer.tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens))


@method
def id_to_token(service: "Service", tokenizer: Tokenizer, ids: Any) -> Any:
    """Each id's token, as the vocabulary has it; NA where there is none."""
    [row] = id_rows(ids, 2**31 - 1)
    return character(tokenizer.tokenizer.id_to_token(id) for id in row)


@method
def token_to_id(service: "Service", tokenizer: Tokenizer, tokens: Any) -> Any:
    """Each token's id; NA where there is none."""
    ids = [tokenizer.tokenizer.token_to_id(token) for token in tokens]
    return np.ma.MaskedArray([id or 0 for id in ids], [id is None for id in ids], np.int32)


@method
def vocab(service: "Service", tokenizer: Tokenizer, with_added_tokens: bool) -> Frame:
    """All tokens with their ids, in the order of the ids."""
    items = sorted(tokenizer.tokenizer.get_vocab(with_added_tokens).items(), key=lambda item: item[1])
    return Frame({
        "token": character(token for token, _ in items),
        "id": np.array([id for _, id in items], np.int32),
    })  # fmt: skip


@method
def vocab_size(service: "Service", tokenizer: Tokenizer, with_added_tokens: bool) -> int:
    """The number of tokens."""
    return tokenizer.tokenizer.get_vocab_size(with_added_tokens)  # type: ignore[no-any-return]


@method
def save_tokenizer(service: "Service", tokenizer: Tokenizer, path: str, pretty: bool) -> None:
    """Write a tokenizer.json."""
    from minhub_py.files.transfer import publish

    text = tokenizer.tokenizer.to_str(pretty=pretty)
    publish(Path(path), lambda draft: draft.write_text(text, encoding="utf-8"))


# Training


@method
def train_model(service: "Service", texts: Any, out: str, settings: Any) -> dict[str, Any]:
    """Train a model on text files in the folder `out`; what has come of it. Cancelled: a checkpoint was made."""
    from minhub_py.train import train
    from r_bridge import training

    with training.in_words_of_r():
        train(texts, out, listener=training.News(service), **training.settings_of(settings))
    service.check()
    return training.about(Path(out))


@method
def resume_training(service: "Service", out: str, settings: Any) -> dict[str, Any]:
    """Go on with a run, with some settings changed; otherwise as `train_model`."""
    from minhub_py.train import resume
    from r_bridge import training

    with training.in_words_of_r():
        resume(out, listener=training.News(service), **training.settings_of(settings))
    service.check()
    return training.about(Path(out))


@method
def read_run(service: "Service", out: str) -> dict[str, Any]:
    """What has come of a run so far."""
    from r_bridge import training

    with training.in_words_of_r():
        return training.about(Path(out))
