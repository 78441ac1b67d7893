"""Fine-tuning of encoder-decoders by pairs of texts, compared with the loss of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bart_models import SMALL, pair
from references import assert_close
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from translation_files import write_m2m100

import minhub_py
from minhub_py import generate, save_pretrained, train
from minhub_py.chat.templates import ChatTemplate
from minhub_py.training.examples import Examples
from minhub_py.training.objectives import ExampleTask
from minhub_py.training.pairs import PairEncoder

T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 4,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}  # fmt: skip


def tokenizer_of(end: int) -> Tokenizer:
    """A tokenizer of the words w0 to w60, which appends </s>."""
    vocab = {f"w{number}": number for number in range(61) if number != end} | {"</s>": end}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", end)]
    )
    return tokenizer


@pytest.mark.parametrize("name", ["bart", "mbart", "marian-separate", "m2m100", "t5"])
def test_loss_and_gradients_equal_transformers(tmp_path: Path, name: str) -> None:
    """Pairs of different lengths in one batch, with padding of prompts and of completions."""
    if name == "t5":
        reference: Any = AutoModelForSeq2SeqLM.from_config(
            AutoConfig.for_model("t5", **T5, decoder_start_token_id=0)
        ).eval()
        reference.save_pretrained(tmp_path)
        model: Any = minhub_py.from_pretrained(tmp_path, device="cpu")
    else:
        reference, model = pair(name, tmp_path)
    end = 50 if name == "mbart" else 2  # mBART's texts end with their language
    pairs = [
        ([10, 11, 12, 2], [20, 21, end]),
        ([13, 2], [22, 23, 24, 25, end]),
        ([14, 15, 2], [end]),
    ]
    ids = [id for source, target in pairs for id in source + target]
    weights = [
        weight for source, target in pairs for weight in [0] * len(source) + [1] * len(target)
    ]
    starts = torch.tensor([0, 7, 14, 18])
    examples = Examples(
        torch.tensor(ids), torch.tensor(weights), starts, None, torch.zeros(3, dtype=torch.bool)
    )
    task = ExampleTask(
        "completion", examples, examples, batch=3, micro_batch=3, seed=0, max_tokens=99, pairs=True
    )
    batch = task.collate(examples, [0, 1, 2], [0])
    assert batch.sources == [4, 2, 3]
    loss = task.loss(model, batch)
    expected = torch.zeros(())
    for source, target in pairs:
        labels = torch.tensor([target])
        mean = reference(input_ids=torch.tensor([source]), labels=labels).loss
        expected = expected + len(target) * mean
    assert_close(loss.view(1), expected.view(1))
    loss.backward()
    expected.backward()
    theirs = dict(reference.named_parameters())
    if name == "t5":
        ours = model.decoder.block[0].cross_attention.k.weight.grad
        assert_close(ours, theirs["decoder.block.0.layer.1.EncDecAttention.k.weight"].grad)
    else:
        for key in ("encoder.layers.0.fc1.weight", "decoder.layers.1.encoder_attn.v_proj.weight"):
            assert_close(model.get_parameter(key).grad, theirs[f"model.{key}"].grad)


@pytest.mark.parametrize(
    ("family", "lora"),
    [("t5", {}), ("bart", {}), ("marian", {}), ("m2m100", {}), ("t5", {"lora": 8}),
     ("bart", {"lora": 8})],
    ids=str,
)  # fmt: skip
def test_training_learns_pairs(tmp_path: Path, family: str, lora: dict[str, int]) -> None:
    """The completion is the first word of the prompt, and a word that follows from the last."""
    torch.manual_seed(0)
    settings: dict[str, Any] = dict(T5) if family == "t5" else {**SMALL, "dropout": 0.0}
    model = minhub_py.from_config(family, **settings).eval()
    end = model.config.eos_token_id
    tokenizer = tokenizer_of(end)
    save_pretrained(model, tmp_path / "start", tokenizer)
    rows = [
        {"prompt": f"w{10 + i % 5} w{20 + i % 3} w{30 + i % 2}",
         "completion": f"w{10 + i % 5} w{40 + i % 2}"} for i in range(60)
    ]  # fmt: skip
    table = tmp_path / "pairs.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(table, tmp_path / "run", start=str(tmp_path / "start"), steps=60, batch=16,
          learning_rate=0.02 if lora else 0.005, progress=False, **lora)  # fmt: skip
    trained = minhub_py.from_pretrained(tmp_path / "run", device="cpu")
    prompts = [tokenizer.encode(text).ids for text in ("w10 w20 w30", "w13 w22 w31")]
    targets = [[10, 40, end], [13, 41, end]]
    before, after = (
        torch.cat(minhub_py.score(network, prompts, targets=targets)).mean()
        for network in (model, trained)
    )
    # an adapter of random weights learns little
    assert after > before + (0.1 if lora else 1)
    assert after > (before if lora else -2)
    if not lora:
        replies = generate(trained, prompts, 5, temperature=0)
        assert replies != generate(model, prompts, 5, temperature=0)


def test_other_objectives_need_pairs(tmp_path: Path) -> None:
    model = minhub_py.from_config("bart", **SMALL)
    save_pretrained(model, tmp_path / "start", tokenizer_of(2))
    rows = {"messages.jsonl": {"messages": [{"role": "user", "content": "w10"}]},
            "text.jsonl": {"text": "w10 w11"}}  # fmt: skip
    for name, row in rows.items():
        (tmp_path / name).write_text(json.dumps(row) + "\n")
        with pytest.raises(ValueError, match="does not support bart without pairs of texts"):
            train(tmp_path / name, tmp_path / "run", start=str(tmp_path / "start"), progress=False)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "w10", "completion": "w11"}\n')
    with pytest.raises(ValueError, match="name several kinds of dropout; use config"):
        train(tmp_path / "pairs.jsonl", tmp_path / "run", start=str(tmp_path / "start"),
              dropout=0.1, progress=False)  # fmt: skip
    with pytest.raises(ValueError, match=r"needs start|and start"):
        train(tmp_path / "pairs.jsonl", tmp_path / "run", family="bart", progress=False)


def test_rows_have_the_languages_of_a_translation_model(tmp_path: Path) -> None:
    """source and target of a row, by default those of tokenizer_config.json; long texts are
    truncated.
    """
    write_m2m100(tmp_path)
    tokenizer = minhub_py.tokenizer_from_pretrained(str(tmp_path))
    encoder = PairEncoder(tokenizer, ChatTemplate("plain", tokenizer, {}), 2, 20)
    row = {"prompt": "안녕하세요 세계", "completion": "你好，世界！"}
    [[pair]] = encoder.examples("completion", {**row, "source": "ko", "target": "zh"})
    first = tokenizer.token_to_id
    assert pair.prompt[0] == first("__ko__")
    count = len(pair.prompt)
    assert pair.prompt[-1] == pair.ids[-1] == 2
    assert pair.ids[count] == first("__zh__")
    assert tokenizer.decode(pair.ids[count:]) == "你好,世界!"
    with pytest.raises(ValueError, match="target is missing"):
        encoder.examples("completion", row)
    with pytest.raises(ValueError, match="the model has no language 'xx'"):
        encoder.examples("completion", {**row, "source": "ko", "target": "xx"})
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"src_lang": "ko", "tgt_lang": "zh"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = minhub_py.tokenizer_from_pretrained(str(tmp_path))
    encoder = PairEncoder(tokenizer, ChatTemplate("plain", tokenizer, {}), 2, 20)
    assert encoder.examples("completion", row) == [[pair]]
    [[long]] = encoder.examples("completion", {**row, "completion": "你好 " * 30})
    assert long.truncated
    assert len(long.ids) == count + 20


def test_special_tokens_are_at_both_ends_of_a_text() -> None:
    """Also of completions, as the model writes them, and of texts that are shortened."""
    tokenizer = tokenizer_of(2)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="w0 $A </s>", special_tokens=[("</s>", 2), ("w0", 0)]
    )
    template = ChatTemplate("plain", tokenizer, {})
    rows = {"prompt": "w10 w11 w12 w13 w14", "completion": "w20"}
    [encoded] = PairEncoder(tokenizer, template, 2, 9).encode("completion", rows)
    assert encoded.ids == [0, 10, 11, 12, 13, 14, 2, 0, 20, 2]
    [encoded] = PairEncoder(tokenizer, template, 2, 4).encode("completion", rows)
    assert encoded.ids == [0, 10, 11, 2, 0, 20, 2]
    # more special tokens than the context
    ends = {**rows, "prompt": " ".join(["</s>"] * 9)}
    [encoded] = PairEncoder(tokenizer, template, 2, 4).encode("completion", ends)
    assert encoded.ids == [2, 2, 2, 2, 0, 20, 2]
