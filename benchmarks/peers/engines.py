"""The tasks of workers: one class per library, with the same methods. Libraries are imported only
here.

Generation is always greedy and ignores end-of-text tokens, so that all libraries generate the same
number of tokens.
"""

import math
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

Ids = list[int]


class Generator(ABC):
    """A library with a loaded model. prompts: lists of token IDs.    new: tokens for each. Times
    are in seconds.
    """

    @abstractmethod
    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids."""

    def timed(self, prompts: list[Ids], new: int, **options: Any) -> dict[str, Any]:
        """Generate, and return the time, the CPU time of all threads, and the ids."""
        start, cpu_start = time.perf_counter(), time.process_time()
        ids = self.generate(prompts, new, **options)
        return {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "ids": ids,
        }


class Streamer(Generator):
    """A library that reports each new id as soon as it is known."""

    @abstractmethod
    def stream(self, prompt: Ids, new: int, on_id: Callable[[], None]) -> None:
        """Generate from one prompt, and call `on_id` for each new id."""

    def steps(self, prompt: Ids, new: int) -> list[float]:
        """Times between consecutive new ids: `new - 1` of them, without the time for the prompt."""
        times: list[float] = []
        self.stream(prompt, new, lambda: times.append(time.perf_counter()))
        return [after - before for before, after in pairwise(times)]


class Minhub(Streamer):
    """The package minhub_py."""

    def __init__(self, folder: str, threads: int, **options: Any) -> None:
        import torch

        from minhub_py import from_pretrained

        torch.set_num_threads(threads)
        self.model = from_pretrained(folder, device="cpu", **options)

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids."""
        from minhub_py import generate

        return generate(self.model, prompts, new, temperature=0, eos_id=None, **options)

    def stream(self, prompt: Ids, new: int, on_id: Callable[[], None]) -> None:
        """Generate from one prompt, and call `on_id` for each new id."""
        from minhub_py import stream

        for _ in stream(self.model, prompt, new, temperature=0, eos_id=None):
            on_id()

    def bytes_per_token(self) -> int:
        """Bytes of weights read for one token: all except the embeddings, which contribute one row."""
        from torch import nn

        from minhub_py.inference.quantize import QuantizedEmbedding

        def held(module: nn.Module) -> int:
            return sum(tensor.nbytes for tensor in module.state_dict().values())

        embeddings = [
            part
            for part in self.model.children()
            if isinstance(part, nn.Embedding | QuantizedEmbedding)
        ]
        # The first is the token embedding, which is also the head if they are tied.
        rows_only = embeddings[1:] if self.model.config.tie_word_embeddings else embeddings
        return held(self.model) - sum(map(held, rows_only))


class Transformers(Streamer):
    """Hugging Face transformers, used as in its documentation."""

    def __init__(self, folder: str, threads: int, dtype: str) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model: Any = load(folder, dtype=getattr(torch, dtype)).eval()
        self.model.generation_config.eos_token_id = None

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids; a batch is padded on the left."""
        import torch

        if "speculate" in options:
            options["prompt_lookup_num_tokens"] = options.pop("speculate")
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        generated = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0, **options
        )
        return generated[:, width:].tolist()

    def stream(self, prompt: Ids, new: int, on_id: Callable[[], None]) -> None:
        """Generate from one prompt, and call `on_id` for each new id."""

        class Streamer:
            began = False

            def put(self, _ids: object) -> None:
                if self.began:  # the first call passes the prompt
                    on_id()
                self.began = True

            def end(self) -> None:
                pass

        self.generate([prompt], new, streamer=Streamer())


class CTranslate2(Generator):
    """CTranslate2, with a model converted by `Converter`. dtype: float32 or int8."""

    def __init__(self, folder: str, threads: int, dtype: str) -> None:
        import ctranslate2  # type: ignore[import-untyped]

        self.model = ctranslate2.Generator(
            folder, device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids."""
        tokens = [list(map(str, prompt)) for prompt in prompts]  # the tokens of `Numbers`
        results = self.model.generate_batch(
            tokens,
            max_length=new,
            min_length=new,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]


class LlamaCpp(Generator):
    """llama.cpp with a GGUF file and greedy decoding. Several prompts are sequences of one
    llama_batch.

    cache: "float32" for keys and values in float32, without flash attention, which rounds them to
    float16. Otherwise llama.cpp's defaults apply: both.
    """

    def __init__(self, folder: str, threads: int, cache: str | None = None) -> None:
        import llama_cpp  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import numpy as np

        self.api, self.np = llama_cpp, np
        self.threads, self.cache = threads, cache
        llama_cpp.llama_backend_init()
        self.model: Any = llama_cpp.llama_model_load_from_file(
            folder.encode(), llama_cpp.llama_model_default_params()
        )
        if not self.model:
            raise RuntimeError(f"llama.cpp does not open {folder}")
        self.size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.contexts: dict[tuple[int, int], Any] = {}

    def context(self, rows: int, positions: int) -> Any:
        """A context for `rows` sequences of this length; each is created once, in the warm-up
        round.
        """
        if (rows, positions) not in self.contexts:
            self.contexts[rows, positions] = self._make_context(rows, positions)
        return self.contexts[rows, positions]

    def close(self) -> None:
        """Free the contexts and the model."""
        for context in self.contexts.values():
            self.api.llama_free(context)
        self.api.llama_model_free(self.model)

    def _make_context(self, rows: int, positions: int) -> Any:
        settings = self.api.llama_context_default_params()
        settings.n_seq_max, settings.n_ctx, settings.n_batch = (
            rows,
            rows * positions,
            rows * positions,
        )
        settings.n_threads = settings.n_threads_batch = self.threads
        if self.cache == "float32":
            settings.type_k = settings.type_v = self.api.GGML_TYPE_F32
            settings.flash_attn_type = self.api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = self.api.llama_init_from_model(self.model, settings)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {rows} × {positions} positions")
        return context

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids."""
        longest = max(map(len, prompts)) + new
        # llama.cpp rounds to 256 anyway
        context = self.context(len(prompts), 256 * math.ceil(longest / 256))
        # without zeros, which take time
        self.api.llama_memory_clear(self.api.llama_get_memory(context), False)
        generated: list[Ids] = [[] for _ in prompts]
        for step in range(new):
            rows = [ids[-1:] for ids in generated] if step else prompts
            starts = [len(prompt) + step - 1 if step else 0 for prompt in prompts]
            for ids, logits in zip(generated, self.logits(context, rows, starts), strict=True):
                ids.append(int(logits.argmax()))
        return generated

    def logits(self, context: Any, rows: list[Ids], starts: list[int]) -> list[Any]:
        """Read ids of each row, from its position `starts`. Returns the logits after the last, each
        an array (V,).
        """
        count = sum(map(len, rows))
        batch = self.api.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        positions = iter(range(count))
        lasts = []
        for row, (ids, start) in enumerate(zip(rows, starts, strict=True)):
            for position, id in enumerate(ids, start):
                index = next(positions)
                batch.token[index], batch.pos[index], batch.logits[index] = id, position, False
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            batch.logits[index] = True
            lasts.append(index)
        status = self.api.llama_decode(context, batch)
        self.api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode ended with status {status}")
        results = (self.api.llama_get_logits_ith(context, index) for index in lasts)
        return [self.np.ctypeslib.as_array(logits, shape=(self.size,)) for logits in results]

    def bytes_per_token(self) -> int:
        """Bytes of weights in the file; a token needs all of them if the head is tied."""
        return int(self.api.llama_model_size(self.model))


class OpenVINO(Generator):
    """OpenVINO with a model exported by `Converter`: one stateful request, with cached keys and
    values.

    precision: of products, "f32" or "bf16"; OpenVINO's default if None. "f32" has keys and values
    in float32, too, and does not round the inputs of products in 8 and 4 bits; otherwise they are
    rounded to 16 bits or less.
    """

    def __init__(self, folder: str, threads: int, precision: str | None = None) -> None:
        import numpy as np
        import openvino  # type: ignore[import-not-found,unused-ignore]

        self.np = np
        hints = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        if precision:
            hints["INFERENCE_PRECISION_HINT"] = precision
        if precision == "f32":
            hints |= {"KV_CACHE_PRECISION": precision, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        compiled = openvino.Core().compile_model(Path(folder) / "model.xml", "CPU", hints)
        stored = (Path(folder) / "model.bin").stat().st_size
        self.size = stored // 2 if precision == "bf16" else stored  # rounded when it is loaded
        self.inputs = {name for port in compiled.inputs for name in port.names}
        self.request: Any = compiled.create_infer_request()

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids; a batch is padded on the left."""
        np = self.np
        width = max(map(len, prompts))
        # (B, T), then (B, 1)
        ids = np.array([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        # of all positions
        mask = np.array([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        self.request.reset_state()
        generated = []
        while True:
            inputs = {
                "input_ids": ids,
                "attention_mask": mask,
                "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :],
                "beam_idx": np.arange(len(prompts), dtype=np.int32),  # each row continues itself
            }
            self.request.infer(
                {name: inputs[name] for name in self.inputs}, share_inputs=True, share_outputs=True
            )
            ids = self.request.get_tensor("logits").data[:, -1].argmax(-1)[:, None]
            generated.append(ids)
            if len(generated) == new:
                return np.concatenate(generated, axis=1).tolist()
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=1)

    def bytes_per_token(self) -> int:
        """Bytes of all weights, which are read for one token if the head is tied."""
        return self.size


class Numbers:
    """A tokenizer whose tokens are the ids as text: CTranslate2 requires a tokenizer, but a model
    may have none.
    """

    bos_token = eos_token = unk_token = "0"

    def __init__(self, size: int, eos_id: int) -> None:
        self.size, self.eos_token = size, str(eos_id)

    def get_vocab(self) -> dict[str, int]:
        return {str(id): id for id in range(self.size)}


class Converter:
    """Creates and converts checkpoints."""

    def __init__(self, threads: int) -> None:
        import torch

        self.threads = threads
        torch.set_num_threads(threads)

    def random(
        self, family: str, config: dict[str, int], scale: float, folder: str, text: str
    ) -> None:
        """Write a checkpoint of `family` with random weights and, for GPT-2, a tokenizer.

        scale: factor for the matrices of the layers, relative to initialization.
        """
        import torch

        from minhub_py import save_pretrained
        from minhub_py.models.registry import ARCHITECTURES

        torch.manual_seed(0)
        model = ARCHITECTURES[family].Model(ARCHITECTURES[family].Config(**config)).eval()
        blocks = getattr(model, "h", None) or getattr(model, "layers", None)
        if blocks is not None:
            with torch.no_grad():
                for parameter in blocks.parameters():
                    if parameter.dim() == 2:
                        parameter.mul_(scale)
        save_pretrained(model, folder)
        if family == "gpt2":
            write_tokenizer(Path(folder), text, model.config.vocab_size)

    def ctranslate2(self, folder: str, out: str, weights: str) -> None:
        """Convert the model in `folder` to CTranslate2's format, with these weights."""
        import torch
        from ctranslate2.converters import TransformersConverter  # type: ignore[import-untyped]
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder)

        class Plain(TransformersConverter):
            def load_model(self, model_class: Any, path: str, **options: Any) -> Any:
                return super().load_model(model_class, path, **{**options, "dtype": torch.float32})

            def load_tokenizer(self, *_: object, **__: object) -> Numbers:
                eos = config.eos_token_id
                return Numbers(config.vocab_size, eos if isinstance(eos, int) else 0)

        Plain(folder).convert(out, quantization=weights, force=True)

    def gguf(self, folder: str, out: str, weights: str) -> None:
        """Write the model in `folder` as a GGUF file with these weights: F32, or a type of
        `gguf_writer.FILE_TYPES`.
        """
        from peers import gguf_writer

        if weights == "F32":
            gguf_writer.write(Path(folder), Path(out))
            return
        with tempfile.TemporaryDirectory() as scratch:
            complete = Path(scratch) / "f32.gguf"
            gguf_writer.write(Path(folder), complete)
            gguf_writer.quantize(complete, Path(out), weights, self.threads)

    def openvino(self, folder: str, out: str, weights: str) -> None:
        """Write the model in `folder` for OpenVINO, as optimum-intel exports it, with int8… or
        int4… weights by nncf.

        Other weights: float32 in the file. int4 has about as many bytes as nf4 and Q4_0: 32 numbers
        share a scale, and the embedding, which is also the head, is in int8. The export, which
        takes longest, is cached next to `out`.
        """
        import openvino

        complete = Path(out).with_name(f"{Path(folder).name}.xml")
        if not complete.exists():
            openvino.save_model(export(folder), complete, compress_to_fp16=False)
        model = openvino.Core().read_model(complete)
        if weights.startswith("int"):
            import nncf  # type: ignore[import-not-found,unused-ignore]

            # 8 bits are the default
            four = {"mode": nncf.CompressWeightsMode.INT4_SYM, "group_size": 32, "ratio": 1.0}
            model = nncf.compress_weights(model, **(four if weights.startswith("int4") else {}))
        openvino.save_model(model, Path(out) / "model.xml", compress_to_fp16=False)

    def minhub(self, folder: str, out: str, to: str, dtype: str | None) -> float:
        """Time of `minhub convert`, in seconds."""
        import torch

        from minhub_py.export.convert import convert
        from minhub_py.loading.files import open_files

        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        convert(open_files(Path(folder)), Path(out), to=to, dtype=dtype and getattr(torch, dtype))  # type: ignore[arg-type]
        return time.perf_counter() - start

    def transformers(self, folder: str, out: str, dtype: str) -> float:
        """Time to load in `dtype` and save with transformers, in seconds."""
        import torch
        import transformers

        shutil.rmtree(out, ignore_errors=True)
        start = time.perf_counter()
        load = transformers.AutoModelForCausalLM.from_pretrained
        model: Any = load(folder, dtype=getattr(torch, dtype))
        model.save_pretrained(out)
        return time.perf_counter() - start


def export(folder: str) -> Any:
    """The checkpoint in `folder` as a stateful model of OpenVINO in float32, exported by
    optimum-intel.

    It returns the logits of the last position only, as in OpenVINO GenAI; an exported model returns
    all logits.
    """
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # not needed, and often made for another PyTorch
    from openvino import opset13  # type: ignore[import-not-found,unused-ignore]
    from optimum.intel.openvino.modeling_decoder import (  # type: ignore[import-not-found,unused-ignore]
        OVModelForCausalLM,
    )

    model = OVModelForCausalLM.from_pretrained(
        folder, export=True, compile=False, load_in_8bit=False
    ).model
    head = model.output("logits").get_node().input_value(0).get_node()
    last = opset13.slice(head.input_value(0), [-1], [2**31 - 1], [1], [1])  # (B, T, C) -> (B, 1, C)
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
    return model


def write_tokenizer(folder: Path, text: str, size: int) -> None:
    """Write vocab.json and merges.txt of a byte-level BPE trained on `text`, padded to `size` with
    unused tokens.
    """
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    vocabulary = {
        **trained["vocab"],
        **{f"<unused{id}>": id for id in range(len(trained["vocab"]), size - 1)},
    }
    vocabulary["<|endoftext|>"] = size - 1
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in trained["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer"}), encoding="utf-8"
    )


class PlainLSTM(Generator):
    """A hand-written loop over nn.Embedding, nn.LSTM and nn.Linear, with the weights of a
    checkpoint.
    """

    def __init__(self, folder: str, threads: int) -> None:
        import torch
        from torch import nn

        from minhub_py import lstm_from_pretrained

        torch.set_num_threads(threads)
        weights = lstm_from_pretrained(folder, device="cpu", dtype="float32")
        config = weights.config
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(
            config.embedding_size, config.hidden_size, config.num_layers, batch_first=True
        )
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.embedding.load_state_dict(weights.embedding.state_dict())
        self.lstm.load_state_dict(weights.lstm.state_dict())
        head = weights.embedding if config.tie_word_embeddings else weights.head
        self.head.load_state_dict({"weight": head.weight, "bias": weights.head.bias})

    def generate(self, prompts: list[Ids], new: int, **options: Any) -> list[Ids]:
        """Each prompt's new ids."""
        import torch

        results = []
        with torch.inference_mode():
            for prompt in prompts:
                generated: Ids = []
                x, state = self.lstm(self.embedding(torch.tensor([prompt])))
                for _ in range(new):
                    generated.append(int(self.head(x[:, -1]).argmax()))
                    if len(generated) < new:
                        x, state = self.lstm(self.embedding(torch.tensor([[generated[-1]]])), state)
                results.append(generated)
        return results


class Memory:
    """Several ways to read a buffer much larger than the caches. The fastest one gives the memory
    bandwidth.
    """

    def __init__(self, threads: int, size: int) -> None:
        import numpy as np
        import torch

        torch.set_num_threads(threads)
        self.array = np.ones(size // 4, dtype=np.float32)
        self.parts = np.array_split(self.array, threads)
        self.tensor = torch.from_numpy(self.array)
        self.pool = ThreadPoolExecutor(threads)

    def read(self, passes: int) -> dict[str, list[float]]:
        """Times of `passes` passes over the buffer, for each way, in seconds."""
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
    """Time of a call, in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Quality:
    """A model in several dtypes, for comparison with float32."""

    def __init__(self, folder: str, threads: int, text: str) -> None:
        import torch

        from minhub_py import tokenizer_from_pretrained

        torch.set_num_threads(threads)
        self.folder = folder
        self.ids: Ids = tokenizer_from_pretrained(folder).encode(text).ids
        if len(self.ids) < 64:
            raise ValueError(
                f"the text has {len(self.ids)} tokens of this model: give a text of at least 64"
            )

    def measure(self, options: dict[str, Any], prompts: int, new: int) -> dict[str, Any]:
        """Perplexity of the text, the most likely id at each position, and greedy continuations.

        options: for from_pretrained.    prompts: number of prompts, which are 32 tokens of the text
        each.
        """
        import torch

        from minhub_py import from_pretrained, generate, score

        model = from_pretrained(self.folder, device="cpu", **options)
        context = model.config.context_length or 256
        [scores] = score(model, [self.ids])
        likeliest: Ids = []
        with torch.inference_mode():
            for position in range(0, len(self.ids), context):
                piece = torch.tensor([self.ids[position : position + context]])
                likeliest += model(piece)[0].argmax(dim=-1).tolist()
        hop = (len(self.ids) - 32) // prompts
        texts = [self.ids[position : position + 32] for position in range(0, hop * prompts, hop)]
        written = generate(model, texts, new, temperature=0, eos_id=None)
        perplexity = math.exp(-scores.double().mean().item())
        return {"perplexity": perplexity, "likeliest": likeliest, "written": written}


class MinhubTokenizer:
    """The tokenizer of this package, which is one of the library tokenizers."""

    def __init__(self, folder: str, threads: int) -> None:
        self.folder = folder
        self.tokenizer: Any = None

    def load(self) -> float:
        """Load the tokenizer from its files; returns the time in seconds."""
        from minhub_py import tokenizer_from_pretrained

        start = time.perf_counter()
        self.tokenizer = tokenizer_from_pretrained(self.folder)
        return time.perf_counter() - start

    def encode(self, text: str, times: int) -> dict[str, Any]:
        """Encode `times` copies of the text as a batch; returns the time in seconds, and the ids of
        one.
        """
        start = time.perf_counter()
        ids = self.batch([text] * times)
        return {"seconds": time.perf_counter() - start, "ids": ids[0]}

    def batch(self, texts: Sequence[str]) -> list[Ids]:
        """Each text's ids."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]


class TransformersTokenizer(MinhubTokenizer):
    """The fast tokenizer of transformers."""

    def load(self) -> float:
        """Load the tokenizer from its files; returns the time in seconds."""
        from transformers import AutoTokenizer

        start = time.perf_counter()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        return time.perf_counter() - start

    def batch(self, texts: Sequence[str]) -> list[Ids]:
        """Each text's ids."""
        return self.tokenizer(list(texts), verbose=False)["input_ids"]
