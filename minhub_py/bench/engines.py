"""What a worker is asked to do: a class for each library, alike where they do the same. Libraries load in them alone.

Greedy generation everywhere, and no id ends a text, so that all make the same number of ids.
"""

import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

Ids = list[int]


class Generator(ABC):
    """A library with a model in it. `prompts`: lists of ids; `new`: ids to make for each; times are seconds."""

    @abstractmethod
    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """The new ids of each prompt."""

    def timed(self, prompts: list[Ids], new: int, **options: Any) -> dict[str, Any]:
        """The time of a whole generation, and its ids."""
        start = time.perf_counter()
        ids = self.generate(prompts, new, **options)
        return {"seconds": time.perf_counter() - start, "ids": ids}


class Streamer(Generator):
    """One that tells of each id as soon as it is known."""

    @abstractmethod
    def stream(self, prompt: Ids, new: int, heard: Callable[[], None]) -> None:
        """Generate from one prompt; `heard` is called at each new id."""

    def steps(self, prompt: Ids, new: int) -> list[float]:
        """The time from each new id to the next: of `new - 1` of them, so the prompt's reading is not in it."""
        times: list[float] = []
        self.stream(prompt, new, lambda: times.append(time.perf_counter()))
        return [after - before for before, after in pairwise(times)]


class Minhub(Streamer):
    """The package itself."""

    def __init__(self, folder: str, threads: int, **options: Any) -> None:
        import torch

        from minhub_py import from_pretrained

        torch.set_num_threads(threads)
        self.model = from_pretrained(folder, device="cpu", **options)

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """The new ids of each prompt."""
        from minhub_py import generate

        return generate(self.model, prompts, new, temperature=0, eos_id=None, **options)

    def stream(self, prompt: Ids, new: int, heard: Callable[[], None]) -> None:
        """Generate from one prompt; `heard` is called at each new id."""
        from minhub_py import stream

        for _ in stream(self.model, prompt, new, temperature=0, eos_id=None):
            heard()

    def bytes_per_token(self) -> int:
        """What is read of the weights for an id: all but the embeddings of which a row is enough."""
        from torch import nn

        from minhub_py.inference.quantize import QuantizedEmbedding

        def held(module: Any) -> int:
            return sum(tensor.nbytes for tensor in module.state_dict().values())

        embeddings = [part for part in self.model.children() if isinstance(part, nn.Embedding | QuantizedEmbedding)]
        # The first is that of the ids, and the head too where they are tied.
        rows_only = embeddings[1:] if self.model.config.tie_word_embeddings else embeddings
        return held(self.model) - sum(map(held, rows_only))


class Transformers(Streamer):
    """Hugging Face transformers, as its documentation loads and calls it."""

    def __init__(self, folder: str, threads: int, dtype: str) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model: Any = load(folder, dtype=getattr(torch, dtype)).eval()
        self.model.generation_config.eos_token_id = None

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """The new ids of each prompt; those of a batch are padded on the left."""
        import torch

        if "speculate" in options:
            options["prompt_lookup_num_tokens"] = options.pop("speculate")
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        made = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0, **options
        )
        return made[:, width:].tolist()

    def stream(self, prompt: Ids, new: int, heard: Callable[[], None]) -> None:
        """Generate from one prompt; `heard` is called at each new id."""

        class Streamer:
            began = False

            def put(self, _ids: Any) -> None:
                if self.began:  # the first call brings the prompt
                    heard()
                self.began = True

            def end(self) -> None:
                pass

        self.generate([prompt], new, streamer=Streamer())


class CTranslate2(Generator):
    """CTranslate2, with a model that `Converter` has made."""

    def __init__(self, folder: str, threads: int, dtype: str) -> None:
        import ctranslate2  # type: ignore[import-untyped]

        self.model = ctranslate2.Generator(
            folder, device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """The new ids of each prompt."""
        tokens = [list(map(str, prompt)) for prompt in prompts]  # as `Numbers` names them
        results = self.model.generate_batch(
            tokens, max_length=new, min_length=new, beam_size=1, sampling_topk=1, include_prompt_in_result=False
        )
        return [result.sequences_ids[0] for result in results]


class Numbers:
    """A tokenizer whose tokens are the ids themselves: CTranslate2 wants one, and a model need not have any."""

    bos_token = eos_token = unk_token = "0"

    def __init__(self, size: int, eos_id: int) -> None:
        self.size, self.eos_token = size, str(eos_id)

    def get_vocab(self) -> dict[str, int]:
        return {str(id): id for id in range(self.size)}


class Converter:
    """Writes checkpoints: random ones to measure with, and others' forms of those that there are."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

    def random(self, family: str, config: dict[str, Any], scale: float, folder: str, text: str) -> None:
        """A checkpoint of `family` with random weights and, for GPT-2's vocabulary, a tokenizer in GPT-2's layout.

        scale: how many times as large as a fresh model's the layers' matrices are.
        """
        import torch

        from minhub_py import save_pretrained
        from minhub_py.registry import FAMILIES

        torch.manual_seed(0)
        model = FAMILIES[family].Model(FAMILIES[family].Config(**config)).eval()
        if hasattr(model, "h"):
            with torch.no_grad():
                for parameter in model.h.parameters():
                    if parameter.dim() == 2:
                        parameter.mul_(scale)
        save_pretrained(model, folder)
        if family == "gpt2":
            write_tokenizer(Path(folder), text, model.config.vocab_size)

    def ctranslate2(self, folder: str, out: str) -> None:
        """The model of `folder` in CTranslate2's form, in float32."""
        import torch
        from ctranslate2.converters import TransformersConverter  # type: ignore[import-untyped]
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)

        class Plain(TransformersConverter):
            def load_model(self, model_class: Any, path: str, **options: Any) -> Any:
                return super().load_model(model_class, path, **{**options, "dtype": torch.float32})

            def load_tokenizer(self, *_: Any, **__: Any) -> Numbers:
                eos = config.eos_token_id
                return Numbers(config.vocab_size, eos if isinstance(eos, int) else 0)

        Plain(folder).convert(out, force=True)

    def minhub(self, folder: str, out: str, to: str, dtype: str | None) -> float:
        """Seconds of `minhub convert`."""
        import torch

        from minhub_py.convert import convert
        from minhub_py.files.storage import Checkpoint

        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        convert(Checkpoint(Path(folder)), Path(out), to=to, dtype=dtype and getattr(torch, dtype))  # type: ignore[arg-type]
        return time.perf_counter() - start

    def transformers(self, folder: str, out: str, dtype: str) -> float:
        """Seconds of loading in `dtype` and saving, with transformers."""
        import torch
        import transformers

        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        load = transformers.AutoModelForCausalLM.from_pretrained
        model: Any = load(folder, dtype=getattr(torch, dtype))
        model.save_pretrained(out)
        return time.perf_counter() - start


def write_tokenizer(folder: Path, text: str, size: int) -> None:
    """vocab.json and merges.txt of a byte-level BPE trained on `text`, filled up to `size` tokens with unused ones."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    vocabulary = {**trained["vocab"], **{f"<unused{id}>": id for id in range(len(trained["vocab"]), size - 1)}}
    vocabulary["<|endoftext|>"] = size - 1
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in trained["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}), encoding="utf-8")


class PlainLSTM(Generator):
    """The loop that one writes by hand around nn.Embedding, nn.LSTM and nn.Linear, with a checkpoint's weights."""

    def __init__(self, folder: str, threads: int) -> None:
        import torch
        from torch import nn

        from minhub_py import lstm_from_pretrained

        torch.set_num_threads(threads)
        weights = lstm_from_pretrained(folder, device="cpu", dtype="float32")
        config = weights.config
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(config.embedding_size, config.hidden_size, config.num_layers, batch_first=True)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.embedding.load_state_dict(weights.embedding.state_dict())
        self.lstm.load_state_dict(weights.lstm.state_dict())
        head = weights.embedding if config.tie_word_embeddings else weights.head
        self.head.load_state_dict({"weight": head.weight, "bias": weights.head.bias})

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """The new ids of each prompt."""
        import torch

        results = []
        with torch.inference_mode():
            for prompt in prompts:
                made: Ids = []
                x, state = self.lstm(self.embedding(torch.tensor([prompt])))
                for _ in range(new):
                    made.append(int(self.head(x[:, -1]).argmax()))
                    if len(made) < new:
                        x, state = self.lstm(self.embedding(torch.tensor([[made[-1]]])), state)
                results.append(made)
        return results


class Memory:
    """Readers of a buffer much larger than the caches. The fastest of them stands for what memory gives."""

    def __init__(self, threads: int, size: int) -> None:
        import numpy as np
        import torch

        torch.set_num_threads(threads)
        self.array = np.ones(size // 4, dtype=np.float32)
        self.parts = np.array_split(self.array, threads)
        self.tensor = torch.from_numpy(self.array)
        self.pool = ThreadPoolExecutor(threads)

    def read(self, passes: int) -> dict[str, list[float]]:
        """Seconds of each of `passes` passes over the buffer, for each reader."""
        import numpy as np

        def in_threads(read: Callable[[Any], object]) -> Callable[[], object]:
            return lambda: list(self.pool.map(read, self.parts))

        readers: dict[str, Callable[[], object]] = {
            "torch sum": self.tensor.sum,
            "torch max": self.tensor.amax,
            "numpy dot, a thread each": in_threads(lambda part: np.dot(part, part)),
            "numpy max, a thread each": in_threads(np.max),
        }
        return {name: [clocked(reader) for _ in range(passes)] for name, reader in readers.items()}


def clocked(call: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Quality:
    """A model in several dtypes, against itself in float32."""

    def __init__(self, folder: str, threads: int, text: str) -> None:
        import torch

        from minhub_py import tokenizer_from_pretrained

        torch.set_num_threads(threads)
        self.folder = folder
        self.ids: Ids = tokenizer_from_pretrained(folder).encode(text).ids
        if len(self.ids) < 64:
            raise ValueError(f"the text has {len(self.ids)} tokens of this model: give one of 64 at least")

    def measure(self, options: dict[str, Any], prompts: int, new: int) -> dict[str, Any]:
        """Perplexity of the text, the likeliest id at each of its positions, and what is written from places in it.

        options: of from_pretrained.    prompts: how many places, each with the 32 ids from there on as the prompt.
        """
        import torch

        from minhub_py import from_pretrained, generate, score

        model = from_pretrained(self.folder, device="cpu", **options)
        context = model.config.context_length or 256
        [scores] = score(model, [self.ids])
        likeliest: Ids = []
        with torch.inference_mode():
            for place in range(0, len(self.ids), context):
                piece = torch.tensor([self.ids[place : place + context]])
                likeliest += model(piece)[0].argmax(dim=-1).tolist()
        hop = (len(self.ids) - 32) // prompts
        texts = [self.ids[place : place + 32] for place in range(0, hop * prompts, hop)]
        written = generate(model, texts, new, temperature=0, eos_id=None)
        perplexity = math.exp(-scores.double().mean().item())
        return {"perplexity": perplexity, "likeliest": likeliest, "written": written}


class MinhubTokenizer:
    """The package's own way to a tokenizer, which is one of the library tokenizers."""

    def __init__(self, folder: str, threads: int) -> None:
        self.folder = folder
        self.tokenizer: Any = None

    def load(self) -> float:
        """Seconds from the files to the tokenizer."""
        from minhub_py import tokenizer_from_pretrained

        start = time.perf_counter()
        self.tokenizer = tokenizer_from_pretrained(self.folder)
        return time.perf_counter() - start

    def encode(self, text: str, times: int) -> dict[str, Any]:
        """Seconds from `times` copies of the text, as a batch, to lists of ids; the ids of one."""
        start = time.perf_counter()
        ids = self.batch([text] * times)
        return {"seconds": time.perf_counter() - start, "ids": ids[0]}

    def batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]


class TransformersTokenizer(MinhubTokenizer):
    """Transformers' fast tokenizer."""

    def load(self) -> float:
        """Seconds from the files to the tokenizer."""
        from transformers import AutoTokenizer

        start = time.perf_counter()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return time.perf_counter() - start

    def batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        return self.tokenizer(list(texts), verbose=False)["input_ids"]
