"""Repeated calls of `embed` with one model: the native runner is used again, and never with old
weights.
"""

import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from memory import MB, growths
from needs import needs
from random_weights import draw

import minhub_py
from minhub_py import embed
from minhub_py.inference import encoder_runner
from minhub_py.inference.quantize import quantize
from minhub_py.models.bert import Bert, BertConfig
from minhub_py.models.mpnet import MPNet, MPNetConfig

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 61,
}
TEXTS = [[2, 7, 9, 3], [2, 11, 3], list(range(2, 40))]


def bert() -> Bert:
    model = Bert(BertConfig(**SMALL, max_position_embeddings=64, pad_token_id=None)).eval()
    draw(model)
    return model


@needs("decoder")
def test_the_native_runner_is_used_again() -> None:
    model = bert()
    first = embed(model, None, TEXTS)
    runner = encoder_runner._idle[model]
    assert torch.equal(embed(model, None, TEXTS), first)
    assert encoder_runner._idle[model] is runner


CHANGES = {
    "in place": lambda model: model.layers[0].fc1.weight.data.mul_(-1),
    "through .data of a norm": lambda model: model.norm.weight.data.mul_(3),
    "another tensor": lambda model: setattr(
        model.layers[1].fc1, "bias", torch.nn.Parameter(torch.ones(40))
    ),
    "another module": lambda model: setattr(model.layers[1], "fc1", torch.nn.Linear(32, 40)),
    "load_state_dict": lambda model: model.load_state_dict(
        {name: 2 * t for name, t in model.state_dict().items()}
    ),
    "quantized": lambda model: quantize(model, "int8"),
    "another dtype": lambda model: model.bfloat16(),
    "a hook": lambda model: model.layers[0].register_forward_hook(lambda *args: args[2] * 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_gives_its_own_vectors(change: str) -> None:
    model = bert()
    before = embed(model, None, TEXTS)
    CHANGES[change](model)
    encoder_runner._idle, idle = type(encoder_runner._idle)(), encoder_runner._idle
    expected = embed(model, None, TEXTS)
    encoder_runner._idle = idle
    assert torch.equal(embed(model, None, TEXTS), expected)
    assert not torch.equal(before, expected)


def test_changed_weights_that_the_runner_copies_give_their_own_vectors() -> None:
    """MPNet's table of biases by distance is computed from its weight, and 16-bit norms are copied
    in float32.
    """
    mpnet = MPNet(MPNetConfig(**SMALL, max_position_embeddings=64)).eval()
    for model, weight in ((mpnet, "relative"), (bert().bfloat16(), "norm.weight")):
        draw(model)
        before = embed(model, None, TEXTS)
        next(p for name, p in model.named_parameters() if weight in name).data.mul_(-3)
        assert not torch.equal(embed(model, None, TEXTS), before)


def test_a_runner_does_not_keep_its_model() -> None:
    model = bert()
    embed(model, None, TEXTS)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_calls_in_threads_have_the_vectors_of_single_calls() -> None:
    model = bert()
    texts = [[[2 + (i * j) % 50 for j in range(1, 3 + i)]] * 20 for i in range(24)]
    expected = [embed(model, None, part) for part in texts]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda part: embed(model, None, part), texts * 3))
    assert all(torch.equal(result, expected[i % 24]) for i, result in enumerate(results))


MANY_TEXTS = """
from tokenizers import Tokenizer, models, pre_tokenizers
import minhub_py
model, count = from_pretrained(sys.argv[1]), int(sys.argv[2])
tokenizer = minhub_py.tokenizer_from_pretrained(sys.argv[1])
words = [f"w{i}" for i in range(40)]
texts = [" ".join(words[(i * j) % 40] for j in range(1, 4 + i % 20)) for i in range(count)]
minhub_py.embed(model, tokenizer, texts[:2000])
memory_file = Path("/proc/self/clear_refs")
memory_file.write_text("5")
before = memory()
vectors = minhub_py.embed(model, tokenizer, texts)
assert vectors.shape == (count, 384)
report()
"""


@pytest.fixture(scope="module")
def wide_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with vectors of MiniLM's size and little work per token."""
    folder = tmp_path_factory.mktemp("encoder")
    sizes = {
        "hidden_size": 384,
        "num_hidden_layers": 1,
        "num_attention_heads": 12,
        "intermediate_size": 32,
    }
    minhub_py.save_pretrained(
        Bert(BertConfig(**sizes, vocab_size=64, max_position_embeddings=64)), folder
    )
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


@pytest.mark.soak
@needs("Linux")
def test_100_000_texts_need_little_more_memory_than_their_vectors(wide_encoder: Path) -> None:
    count = 100_000
    [grown] = growths(MANY_TEXTS, wide_encoder, count)
    assert grown["VmHWM"] < 4 * 384 * count + 60 * MB, grown


FILE_OF_TEXTS = """
from minhub_py.cli.main import main
folder, file = Path(sys.argv[1]), Path(sys.argv[2])
for count in (1_000, 100_000):
    with (file / f"{count}.csv").open("w") as texts:
        texts.write("text\\n" + "\\n".join(f"w{i % 40} w{i % 7} w{i % 11}" for i in range(count)) + "\\n")
for kind in ("npy", "parquet"):
    for count in (1_000, 100_000):
        out = file / f"{count}.{kind}"
        main(["embed", str(folder), str(file / f"{count}.csv"), "--out", str(out)], standalone_mode=False)
        report()
        assert out.stat().st_size > 4 * 384 * count * 0.8
        out.unlink()
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
@needs("Linux")
def test_memory_is_constant_for_embeddings_of_100_000_rows(
    wide_encoder: Path, tmp_path: Path
) -> None:
    """The vectors of 100,000 rows take 154 MB. A row group of a .parquet file waits in memory."""
    npy, more_npy, parquet, more_parquet = growths(FILE_OF_TEXTS, wide_encoder, tmp_path)
    print(npy, more_npy, parquet, more_parquet)
    assert more_npy["VmHWM"] < 40 * MB
    assert more_parquet["VmHWM"] < 60 * MB
