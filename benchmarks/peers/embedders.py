"""Libraries that embed texts: one class for each, with the same checkpoint, tokenizer, pooling and
normalization.

sentence-transformers and this package read modules.json. The others get token IDs from the same
tokenizer.json, compute hidden states of padded batches, sorted by length, and pool as MiniLM does:
the mean of a text's tokens, divided by its length. Libraries are imported only here.
"""

import os
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Matrix = Any  # of numpy


class Embedder(ABC):
    """A library with a loaded model."""

    @abstractmethod
    def embed(self, texts: list[str]) -> Matrix:
        """Embeddings (N, C), float32."""

    def timed(self, texts: list[str]) -> dict[str, float]:
        """The CPU time of this process's threads and the elapsed time of a call, in seconds."""
        usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        self.embed(texts)
        elapsed, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu": after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime,
            "elapsed": elapsed,
        }

    def sample(self, texts: list[str]) -> list[list[float]]:
        """The embeddings, to compare libraries."""
        return np.asarray(self.embed(texts)).tolist()


class StatesEmbedder(Embedder):
    """A library that computes hidden states, which are pooled here. batch: texts of a padded batch."""

    def __init__(self, folder: str, batch: int) -> None:
        from tokenizers import Tokenizer

        self.batch = batch
        self.tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    @abstractmethod
    def states(self, ids: Matrix, mask: Matrix) -> Matrix:
        """Hidden states (B, T, C) of token IDs and mask (B, T), int64."""

    def embed(self, texts: list[str]) -> Matrix:
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]
        vectors = np.empty((len(texts), 0), np.float32)
        for numbers in self.batches(rows):
            longest = max(len(rows[number]) for number in numbers)
            ids, mask = np.zeros((2, len(numbers), longest), np.int64)
            for i, number in enumerate(numbers):
                ids[i, : len(rows[number])], mask[i, : len(rows[number])] = rows[number], 1
            x = self.states(ids, mask) * mask[:, :, None].astype(np.float32)
            pooled = x.sum(axis=1) / mask.sum(axis=1, keepdims=True).astype(np.float32)
            if not vectors.shape[1]:
                vectors = np.empty((len(texts), pooled.shape[1]), np.float32)
            vectors[numbers] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors

    def batches(self, rows: list[list[int]]) -> Iterator[list[int]]:
        """Numbers of texts of similar length, the longest first."""
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
        for start in range(0, len(order), self.batch):
            yield order[start : start + self.batch]


class Minhub(Embedder):
    """The package minhub_py."""

    def __init__(self, folder: str, threads: int, batch: int = 0, **options: Any) -> None:
        import torch

        from minhub_py import from_pretrained, tokenizer_from_pretrained

        torch.set_num_threads(threads)
        self.model, self.tokenizer = (
            from_pretrained(folder, device="cpu", **options),
            tokenizer_from_pretrained(folder),
        )

    def embed(self, texts: list[str]) -> Matrix:
        from minhub_py import embed

        return embed(self.model, self.tokenizer, texts).numpy()


class SentenceTransformers(Embedder):
    """sentence-transformers on PyTorch, with its default batch of 32 texts."""

    def __init__(self, folder: str, threads: int, batch: int = 32) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self.batch, self.model = batch, SentenceTransformer(folder, device="cpu")

    def embed(self, texts: list[str]) -> Matrix:
        return self.model.encode(texts, batch_size=self.batch, show_progress_bar=False)


class ONNXRuntime(StatesEmbedder):
    """ONNX Runtime. file: a model that `export` wrote."""

    def __init__(self, folder: str, threads: int, file: str, batch: int = 8) -> None:
        import onnxruntime

        super().__init__(folder, batch)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        # spinning is CPU time, too
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )

    def states(self, ids: Matrix, mask: Matrix) -> Matrix:
        return self.session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


class OpenVINO(StatesEmbedder):
    """OpenVINO in float32; its default on processors with bfloat16 is bfloat16."""

    def __init__(self, folder: str, threads: int, file: str, batch: int = 8) -> None:
        import openvino

        super().__init__(folder, batch)
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        self.request = openvino.Core().compile_model(file, "CPU", settings).create_infer_request()

    def states(self, ids: Matrix, mask: Matrix) -> Matrix:
        return self.request.infer({"input_ids": ids, "attention_mask": mask})[0]


class CTranslate2(StatesEmbedder):
    """CTranslate2, which removes the padding of linear layers itself. file: a converted folder."""

    def __init__(
        self, folder: str, threads: int, file: str, compute_type: str, batch: int = 8
    ) -> None:
        import ctranslate2

        super().__init__(folder, batch)
        self.encoder = ctranslate2.Encoder(
            file, device="cpu", compute_type=compute_type, intra_threads=threads
        )

    def states(self, ids: Matrix, mask: Matrix) -> Matrix:
        rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(axis=1), strict=True)]
        return np.array(self.encoder.forward_batch(rows).last_hidden_state)


class Export:
    """Writes the files of the other libraries. It runs in a separate process, because it imports
    most of them.
    """

    def __init__(self, threads: int) -> None:
        pass

    def onnx(self, folder: str, file: str) -> str:
        """A .onnx file of the hidden states; tokens have type 0."""
        import torch
        from transformers import AutoModel

        model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        class States(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                return self.model(
                    input_ids=input_ids, attention_mask=attention_mask
                ).last_hidden_state

        example = torch.tensor([[101, 7592, 2088, 102, 0, 0], [101, 2023, 2003, 1037, 3231, 102]])
        batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=512)
        shapes = {"input_ids": {0: batch, 1: tokens}, "attention_mask": {0: batch, 1: tokens}}
        # With an example without padding, the file computes another function
        # (docs/benchmarks/experiments.md).
        torch.onnx.export(
            States(),
            (example, (example > 0).long()),
            file,
            input_names=list(shapes),
            dynamic_shapes=shapes,
            dynamo=True,
            optimize=False,
        )
        return file

    def onnx_int8(self, file: str, result: str) -> str:
        """Dynamic quantization, as sentence-transformers' documentation recommends."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(file, result, weight_type=QuantType.QInt8)
        return result

    def ctranslate2(self, folder: str, result: str) -> str:
        """A converted folder. Its weights are quantized when it is loaded."""
        from ctranslate2.converters import TransformersConverter

        if not os.path.exists(result):
            TransformersConverter(folder).convert(result)
        return result
