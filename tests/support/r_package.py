"""The installed R package, its environment, and results of Python that R tests compare with."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_python
import numpy as np
import pangoling
import pytest
import torch
from filelock import FileLock
from needs import missing, need
from paths import R_PACKAGE
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from minhub_py import (
    from_config,
    from_pretrained,
    generate,
    gpt2,
    gptneo,
    lstm,
    save_pretrained,
    score,
    summarize,
    tokenizer_from_pretrained,
    translate,
)
from minhub_py.checkpoints import local
from r_bridge import convert

BUILT_IN = [f"minhub/{path.name}" for path in sorted(local.BUILTIN.iterdir())]


# Results of Python that R tests compare with


def write_reference(folder: Path) -> None:
    """Write the numbers that test-parity.R reads by the environment variable MINHUBPY_REFERENCE."""
    small: dict[str, Any] = {"vocab_size": 50, "initializer_range": 0.4}
    torch.manual_seed(5)
    models = {
        "random gpt2": gpt2(n_positions=24, n_embd=32, n_layer=3, n_head=4, **small),
        "random gptneo": gptneo(
            max_position_embeddings=24,
            hidden_size=32,
            num_layers=4,
            num_heads=4,
            window_size=5,
            attention_types=[[["global", "local"], 2]],
            eos_token_id=None,
            bos_token_id=None,
            **small,
        ),
        "random lstm": lstm(embedding_size=16, hidden_size=24, num_layers=2, **small),
    }
    for name, model in models.items():
        save_pretrained(model, folder / name)
    identifiers = {name: str(folder / name) for name in models} | {name: name for name in BUILT_IN}
    cases = {name: reference(identifier) for name, identifier in identifiers.items()}
    (folder / "reference.rds").write_bytes(convert.dumps(cases))
    byte_tokenizer().save(str(folder / "bytes.json"))
    (folder / "encoders.rds").write_bytes(convert.dumps(encoder_reference(folder)))
    (folder / "translation.rds").write_bytes(convert.dumps(translation_reference(folder)))


def translation_reference(folder: Path) -> dict[str, Any]:
    """Save a random translation model in `folder`. Returns texts with translations and summaries."""
    from translation_models import save_languages

    save_languages(folder / "translation", ["eng_Latn", "deu_Latn"])
    model, tokenizer = (
        load(folder / "translation") for load in (from_pretrained, tokenizer_from_pretrained)
    )
    texts = ["the dog ran in the house .", "a cat sat on the mat , and the dog sat !"]
    call = (model, tokenizer, texts)
    return {
        "texts": texts,
        "translations": translate(*call, source="English", target="German"),
        "short": translate(*call, source="en", target="de", beams=2, max_new_tokens=4),
        "summaries": summarize(*call, min_new_tokens=5),
    }


# Text encoders: transformers' numbers, by the definitions of pangoling, Salazar et al. and Kauf &
# Ivanova.

WORDS = """[PAD] [UNK] [CLS] [SEP] [MASK] the apple pear does not fall far from tree ##s ##ly . , ' t doesn query :
    table traveler lost so ##uven ##ir""".split()


def encoder_reference(folder: Path) -> dict[str, Any]:
    """Save three random encoders in `folder`. Returns their names with texts and numbers."""
    from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

    tokenizer = word_piece_tokenizer()
    settings: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "initializer_range": 0.4,
    }
    torch.manual_seed(6)
    labels = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
    encoders = {
        "masked": from_config("bert", architectures=["BertForMaskedLM"], **settings),
        "labels": from_config(
            "bert", architectures=["BertForSequenceClassification"], **labels, **settings
        ),
        "states": from_config("bert", architectures=["BertModel"], **settings),
    }
    encoders["pangoling"] = pangoling.masked_model(len(WORDS))
    for name, model in encoders.items():
        save_pretrained(model, folder / name, tokenizer)
    masked = AutoModelForMaskedLM.from_pretrained(folder / "masked").eval()
    classifier = AutoModelForSequenceClassification.from_pretrained(folder / "labels").eval()
    encoder = AutoModel.from_pretrained(folder / "states").eval()

    def run(model: Any, ids: list[int], types: list[int] | None = None) -> Any:
        with torch.inference_mode():
            types_given = None if types is None else torch.tensor([types])
            return model(torch.tensor([ids]), token_type_ids=types_given)[0][0]

    def logprobs(ids: list[int], position: int) -> torch.Tensor:
        return run(masked, ids)[position].log_softmax(-1)

    mask = WORDS.index("[MASK]")
    text = "The apple doesn't fall far from the [MASK]."
    ids = tokenizer.encode(text).ids
    likely = logprobs(ids, ids.index(mask)).topk(5)

    # pangoling: all tokens of a target are masked at once.
    before, after, targets, sums = (
        "The",
        "doesn't fall far from the tree.",
        ["apple", "pears", "so far"],
        [],
    )
    for target in targets:
        expected = tokenizer.encode(target, add_special_tokens=False).ids
        ids = tokenizer.encode(f"{before} {'[MASK]' * len(expected)} {after}").ids
        positions = [i for i, id in enumerate(ids) if id == mask]
        sums.append(
            sum(float(logprobs(ids, i)[id]) for i, id in zip(positions, expected, strict=True))
        )

    # PLL: "original" masks one token; "within_word_l2r" masks the later tokens of its word, too.
    sentence = "The traveler lost the souvenir."
    encoding = tokenizer.encode(sentence)
    inner = range(1, len(encoding.ids) - 1)
    pll: dict[str, list[float]] = {"original": [], "within_word_l2r": []}
    for method, values in pll.items():
        for i in inner:
            word = encoding.word_ids[i]
            later = [
                j for j in inner if j > i and encoding.word_ids[j] == word and method != "original"
            ]
            ids = [mask if j == i or j in later else id for j, id in enumerate(encoding.ids)]
            values.append(float(logprobs(ids, i)[encoding.ids[i]]))

    texts = ["The apple.", "The traveler lost the tree, so the table does not fall."]
    probs = [run(classifier, tokenizer.encode(text).ids).softmax(-1) for text in texts]
    names = ["apples", "tables"]
    entailed = []
    for premise in texts:
        pairs = [tokenizer.encode(premise, f"The {name} fall.") for name in names]
        scores = torch.stack([run(classifier, pair.ids, pair.type_ids)[2] for pair in pairs])
        entailed.append(scores.softmax(-1))
    pair = tokenizer.encode("The apple.", "The pear.")
    return {
        "masked": {
            "text": text,
            "id": likely.indices,
            "logprob": likely.values,
            "before": before,
            "after": after,
            "targets": targets,
            "targets_logprob": np.array(sums),
            "sentence": sentence,
            "pll": {method: np.array(values) for method, values in pll.items()},
        },
        "labels": {
            "texts": texts,
            "names": names,
            "hypothesis": "The {} fall.",
            "prob": torch.stack(probs),
            "entailed": torch.stack(entailed),
        },
        "states": {
            "texts": texts,
            "mean": torch.stack(
                [run(encoder, tokenizer.encode(text).ids).mean(0) for text in texts]
            ),
            "ids": np.array(pair.ids),
            "types": np.array(pair.type_ids),
            "states": run(encoder, pair.ids, pair.type_ids).unsqueeze(0),
        },
        "pangoling": {
            "contexts": pangoling.CONTEXTS,
            "targets": pangoling.TARGETS,
            "after": pangoling.AFTER,
            "targets_logprob": np.array(pangoling.TARGET_LOGPROBS),
            "texts": pangoling.SENTENCES,
            "logprob": np.array(pangoling.MASK_LOGPROBS),
        },
    }


def word_piece_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer as BERT's."""
    vocabulary = {word: id for id, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(WORDS[:5])
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token, so that any text has tokens. Byte 0's ID is 188."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={char: id for id, char in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def reference(identifier: str) -> dict[str, Any]:
    model = from_pretrained(identifier)
    size, context = model.config.vocab_size, model.config.context_length or 40
    random = np.random.default_rng(size + context)
    n = 24
    # The first grows beyond the context, the second is a single token, the third exceeds the
    # context.
    prompts = [
        random.integers(size, size=length).tolist() for length in (context - n // 2, 1, context + 9)
    ]
    several = [1, 2, 2**40]
    greedy = generate(model, prompts, n, temperature=0)
    end = greedy[0][5]
    with torch.inference_mode():
        forward = {}
        for name, shape in {
            "row": (1, 7),
            "batch": (3, 9),
            "full": (1, context),
            "id": (1, 1),
        }.items():
            ids = random.integers(size, size=shape)
            forward[name] = {
                "ids": ids if len(ids) > 1 else ids[0],
                "logits": model(torch.tensor(ids)),
            }
        last = model(
            torch.tensor(
                [prompts[2][start_of_context(len(prompts[2]), model.config.context_length) :]]
            )
        )[0, -1]
        likely = torch.log_softmax(last, -1).topk(5)
    scores = score(model, prompts)
    name, weight = next(
        (name, weight) for name, weight in model.named_parameters() if weight.ndim == 2
    )
    settings = {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.3,
        "eos_id": None,
    }
    return {
        "model": identifier,
        "forward": forward,
        "prompts": rows(prompts),
        "n": n,
        "greedy": rows(greedy),
        "sampled": rows(generate(model, prompts, n, temperature=1.1, seed=7)),
        "settings": rows(generate(model, prompts, n, seed=several, **settings)),
        "end": end,
        "ended": rows(generate(model, prompts, n, temperature=0, eos_id=end)),
        "scores": [scores[0], scores[2]],  # the second has no scores
        "perplexity": np.ma.MaskedArray(
            [float((-row.double().mean()).exp()) if len(row) else 0 for row in scores],
            [not len(s) for s in scores],
        ),
        "likely": {"id": likely.indices, "logprob": likely.values},
        "weight": {"name": name, "value": weight, "shape": np.array(weight.shape)},
        "parameters": float(sum(weight.numel() for weight in model.parameters())),
    } | (text_reference(identifier, model) if identifier in BUILT_IN else {})


def start_of_context(length: int, context: int | None) -> int:
    """The rule of inference/rows.py, implemented differently: a full context drops its first half."""
    start = 0
    while context is not None and length - start > context:
        start += context // 2
    return start


def text_reference(identifier: str, model: Any) -> dict[str, Any]:
    tokenizer = tokenizer_from_pretrained(identifier)
    prompt = "KING HENRY: Once more\nunto the breach, dear friends"
    ids = tokenizer.encode(prompt).ids

    def text(**settings: Any) -> str:
        return tokenizer.decode(generate(model, [ids], 30, **settings)[0])

    return {
        "text": {
            "prompt": prompt,
            "ids": np.array(ids),
            "decoded": tokenizer.decode(ids),
            "greedy": text(temperature=0),
            "sampled": text(seed=3),
            "scores": score(model, [ids])[0],
        }
    }


def rows(ids: list[list[int]]) -> list[Any]:
    return [np.array(row, np.int32) for row in ids]


# R


def shared(
    tmp_path_factory: pytest.TempPathFactory, name: str, write: Callable[[Path], object]
) -> Path:
    """A folder that one process of pytest-xdist writes and all processes read."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not (root / f"{name}.done").exists():
            folder.mkdir()
            write(folder)
            (root / f"{name}.done").touch()
    return folder


@pytest.fixture(scope="session")
def reference_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory, "reference", write_reference)


def install(folder: Path) -> None:
    """Install the package as it is now."""
    need("R")
    command = [
        "R",
        "CMD",
        "INSTALL",
        "--no-docs",
        "--no-test-load",
        f"--library={folder}",
        str(R_PACKAGE),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the package."""
    return shared(tmp_path_factory, "library", install)


def environment(library: Path, **changes: str | None) -> dict[str, str]:
    """The environment of R: this Python, one thread, and no caches or folders of the user.

    The worker is a fork (fast_python.py) unless MINHUBPY_PYTHON is sys.executable.
    """
    variables: dict[str, str | None] = {
        "R_LIBS": str(library),
        "MINHUBPY_PYTHON": fast_python.python(),
        "OMP_NUM_THREADS": "1",
        "MINHUB_NO_DECODER": "1" if missing("decoder") else None,
        "R_PROFILE_USER": "",
        "R_ENVIRON_USER": "",
        "NOT_CRAN": "true",
        "RETICULATE_PYTHON": None,
        "VIRTUAL_ENV": None,
        "CONDA_PREFIX": None,
        **changes,
    }
    both = {**os.environ, **{name: value for name, value in variables.items() if value is not None}}
    return {name: value for name, value in both.items() if variables.get(name, "") is not None}
