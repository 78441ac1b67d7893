"""Activated adapters: the tokens before the invocation are the base's, and the others have the
adapter.
"""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from guarantees import RUNNER
from needs import needs, package
from references import assert_close, random_model, texts_of
from torch import Tensor

from minhub_py import (
    attribution,
    embed,
    from_config,
    from_pretrained,
    generate,
    logprob_matrix,
    save_adapter,
    save_pretrained,
    score,
)
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.batch import Batch
from minhub_py.inference.disk_cache import BLOCK, DiskCache
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.prefixes import PrefixCache
from minhub_py.inference.sampling import Sampling
from minhub_py.inference.torch_runner import TorchRunner
from minhub_py.loading.adapters.attach import attach
from minhub_py.loading.adapters.merge import merge
from minhub_py.models.lora import NEVER, Invocation

INVOCATION = [7, 8]
# With the invocation in the middle, twice, at the end, never, and with its first token only.
TEXTS = [
    [20, 21, 22, 7, 8, 23, 24, 25],
    [20, 7, 8, 21, 22, 7, 8, 23, 24],
    [20, 21, 22, 7, 8],
    [20, 21, 22, 23],
    [20, 21, 7, 22, 8, 23],
]
STARTS = [3, 5, 3, NEVER, NEVER]
GREEDY = Sampling(temperature=0)


def models(folder: Path, name: str, **loading: Any) -> tuple[Any, Any, Any]:
    """A model without adapter, with an adapter that is always active, and with the same adapter
    with an invocation.
    """
    model = random_model(name)
    save_pretrained(model, folder / "base")
    # as in the activated adapter
    random_adapter(model, folder / "always", exclude_modules=("gate", "router"))
    random_adapter(model, folder / "activated", alora_invocation_tokens=tuple(INVOCATION))
    adapters = {name: folder / name for name in ("always", "activated")}
    base = from_pretrained(folder / "base", adapter=adapters, **{"dtype": "float32", **loading})
    return base, base.adapter("always"), base.adapter("activated")


@torch.no_grad()
def by_parts(base: Any, always: Any, ids: list[int], start: int) -> Tensor:
    """The logits (T, V): the base computes the keys and values before the start, the adapted model
    continues.
    """
    cache, parts = base.new_cache(1, len(ids)), []
    for model, part in ((base, ids[:start]), (always, ids[start:])):
        if part:
            parts.append(model(torch.tensor([part]), cache)[0])
    return torch.cat(parts)


@pytest.mark.parametrize(
    "name", ["gpt2", "gpt_neox", "llama", "gemma2", "qwen3_5_text", "mixtral", "gpt_oss"]
)
def test_the_base_computes_the_tokens_before_the_last_invocation(name: str, tmp_path: Path) -> None:
    base, always, activated = models(tmp_path, name)
    for ids, start in zip(TEXTS, STARTS, strict=True):
        expected = by_parts(base, always, ids, start)
        with torch.no_grad():
            assert_close(activated(torch.tensor([ids]))[0], expected)
        runner = runner_of(activated)
        assert type(runner) is RUNNER
        cache = runner.new_cache(1, len(ids))
        cache.adapter_starts = [start]
        assert_close(runner.forward({0: ids}, cache, every=True), expected)


@pytest.mark.filterwarnings("ignore")  # PEFT's warnings about transformers
def test_peft_computes_the_same(tmp_path: Path) -> None:
    """Logits, greedy texts, and the files, in both directions."""
    peft = package("peft")
    import transformers

    models(tmp_path, "llama")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    reference = peft.PeftModel.from_pretrained(plain, tmp_path / "activated").eval()
    activated = from_pretrained(tmp_path / "base", adapter=tmp_path / "activated")
    for ids in TEXTS:
        idx = torch.tensor([ids])
        with torch.no_grad():
            assert_close(activated(idx), reference(input_ids=idx).logits)
        settings = {
            "max_new_tokens": 8,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        expected = reference.generate(
            input_ids=idx, attention_mask=torch.ones_like(idx), **settings
        )
        assert generate(activated, [ids], 8, temperature=0, eos_id=None) == [
            expected[0, len(ids) :].tolist()
        ]
    reference.save_pretrained(tmp_path / "peft")
    again = from_pretrained(tmp_path / "base", adapter=tmp_path / "peft")
    assert again.invocation.tokens == INVOCATION


@pytest.mark.parametrize("kind", [None, "int8", "nf4"])
def test_replies_do_not_depend_on_other_sequences(kind: str | None, tmp_path: Path) -> None:
    """In one batch, with the prefix cache, and with chunks, whose cached prefixes have other
    starts.
    """
    base, _, activated = models(tmp_path, "llama", quantize=kind)
    alone = [generate(activated, [ids], 6, temperature=0, eos_id=None)[0] for ids in TEXTS]
    assert generate(activated, TEXTS, 6, temperature=0, eos_id=None) == alone
    assert alone[3:] == generate(base, TEXTS[3:], 6, temperature=0, eos_id=None)
    for chunk in (None, 2):
        batch = Batch(activated, rows=2, max_length=40, prefix_bytes=10**7, chunk=chunk)
        for repeated in range(2):
            for ids, expected in zip(TEXTS, alone, strict=True):
                row, new = batch.admit(ids, 6, sampling=GREEDY), list[int]()
                while len(batch):
                    new += [event.id for event in batch.step()]
                    if repeated:
                        assert batch.cached_tokens[row] == len(ids) - 1
                assert new == expected


def test_a_cached_prefix_ends_at_the_earlier_start(tmp_path: Path) -> None:
    _, _, activated = models(tmp_path, "gpt2")
    first, second = [20, 21, 22, 7, 8, 23, 24, 25], [20, 21, 22, 7, 8, 23, 24, 7, 8, 26]
    batch = Batch(activated, rows=1, max_length=40, prefix_bytes=10**7)
    for ids, cached in ((first, 0), (second, 3), (first, 7), (second, 9)):
        row = batch.admit(ids, 4, sampling=GREEDY)
        new = [event.id for event in batch.step()]
        assert batch.cached_tokens[row] == cached
        while len(batch):
            new += [event.id for event in batch.step()]
        assert new == generate(activated, [ids], 4, temperature=0, eos_id=None)[0]


def test_a_text_beyond_the_context_length_keeps_its_adapter(tmp_path: Path) -> None:
    """The invocation has left the context window: the adapter changes all of its tokens."""
    _, always, activated = models(tmp_path, "gpt2")
    double = from_pretrained(tmp_path / "base", adapter=tmp_path / "activated", dtype="float64")
    assert isinstance(runner_of(double), TorchRunner)
    whole = INVOCATION + texts_of(activated.config.n_positions - 12)[0]
    adapted = [
        generate(model, [whole], 80, temperature=0, eos_id=None) for model in (always, activated)
    ]
    assert adapted[0] == adapted[1]
    assert_close(
        *(
            torch.as_tensor(embed(model, None, [whole + adapted[0][0]]))
            for model in (activated, always)
        )
    )
    prompt = [*TEXTS[0], *texts_of(activated.config.n_positions - 12)[0]]
    new = generate(activated, [prompt], 40, temperature=0, eos_id=None)
    assert new == generate(double, [prompt], 40, temperature=0, eos_id=None)
    text = prompt + new[0]
    [scores], [exact] = (score(model, [prompt], targets=[new[0]]) for model in (activated, double))
    assert_close(scores, exact.float())
    assert_close(score(activated, [text])[0], score(double, [text])[0].float())


def test_replies_that_contain_the_invocation_do_not_move_the_start(tmp_path: Path) -> None:
    """The log-probabilities of a reply are those of its generation."""
    base, always, activated = models(tmp_path, "llama")
    prompt, reply = TEXTS[0], [30, 7, 8, 31]
    expected = by_parts(base, always, prompt + reply, 3).log_softmax(-1)
    [actual] = score(activated, [prompt], targets=[reply])
    assert_close(
        actual, expected[len(prompt) - 1 : -1].gather(1, torch.tensor(reply)[:, None])[:, 0]
    )
    [whole] = score(activated, [prompt + reply])
    expected = by_parts(base, always, prompt + reply, len(prompt) + 1).log_softmax(-1)
    assert_close(whole, expected[:-1].gather(1, torch.tensor((prompt + reply)[1:])[:, None])[:, 0])


def test_hidden_states_and_caches_of_calls(tmp_path: Path) -> None:
    base, always, activated = models(tmp_path, "llama")
    for ids, start in zip(TEXTS, STARTS, strict=True):
        [vectors] = embed(activated, None, [ids], pool="none")
        cache, parts = base.new_cache(1, len(ids)), []
        with torch.no_grad():
            for model, part in ((base, ids[:start]), (always, ids[start:])):
                if part:
                    parts.append(model.hidden(torch.tensor([part]), cache)[0])
        assert_close(torch.as_tensor(vectors), torch.cat(parts))
        cache = activated.new_cache(1, len(ids))
        with torch.no_grad():
            calls = [activated(torch.tensor([part]), cache) for part in (ids[:6], ids[6:]) if part]
        # a later call does not change the cached positions
        first_call = Invocation(INVOCATION).start(ids[:6])
        assert_close(torch.cat(calls, dim=1)[0], by_parts(base, always, ids, first_call))


def test_texts_with_a_common_prefix_and_different_starts(tmp_path: Path) -> None:
    _, _, activated = models(tmp_path, "llama")
    shared = [20, 21, 22, 23, 24, 25, 7, 8, 26]
    texts = [shared, [*shared, 7, 8, 27, 28], [*shared, 29]]
    together = torch.as_tensor(logprob_matrix(activated, None, texts)[1])
    alone = torch.cat(
        [torch.as_tensor(logprob_matrix(activated, None, [text])[1]) for text in texts]
    )
    assert_close(together.nan_to_num(), alone.nan_to_num())  # a text's first token has none


def test_hidden_states_of_a_text_in_several_calls(tmp_path: Path) -> None:
    """The last invocation is in a later call than the first one."""
    models(tmp_path, "llama")
    config = tmp_path / "base" / "config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2000})
    )
    paths = {name: tmp_path / name for name in ("always", "activated")}
    base = from_pretrained(tmp_path / "base", adapter=paths, dtype="float32")
    always, activated = base.adapter("always"), base.adapter("activated")
    ids = [*texts_of(10)[0], *INVOCATION, *texts_of(600)[0], *INVOCATION, *texts_of(500)[0]]
    [vectors] = embed(activated, None, [ids], pool="none")
    cache, parts = base.new_cache(1, len(ids)), []
    with torch.no_grad():
        for model, part in ((base, ids[:612]), (always, ids[612:])):
            parts.append(model.hidden(torch.tensor([part]), cache)[0])
    assert_close(torch.as_tensor(vectors), torch.cat(parts))


@torch.no_grad()
def test_an_emptied_cache_has_no_start(tmp_path: Path) -> None:
    base, _, activated = models(tmp_path, "llama")
    cache, idx = activated.new_cache(1, 20), torch.tensor([TEXTS[3]])
    activated(torch.tensor([TEXTS[0]]), cache)
    cache.clear(0)
    assert torch.equal(activated(idx, cache), base(idx))


def test_the_first_token_of_a_text_is_not_its_prompt(tmp_path: Path) -> None:
    """A text that starts with an invocation of one token, and contains it again."""
    base, always, _ = models(tmp_path, "llama")
    random_adapter(base, tmp_path / "single", alora_invocation_tokens=(7,))
    single = from_pretrained(tmp_path / "base", adapter=tmp_path / "single", dtype="float32")
    text = [7, 20, 21, 22, 7, 23, 24]
    expected = (
        by_parts(base, always, text, 4)
        .log_softmax(-1)[:-1]
        .gather(1, torch.tensor(text)[1:, None])[:, 0]
    )
    assert_close(score(single, [text])[0], expected)
    matrix = logprob_matrix(single, None, [text])[1]
    assert_close(torch.tensor(matrix)[range(1, 7), text[1:]], expected)
    [vectors] = embed(single, None, [text], pool="none")
    with torch.no_grad():
        assert_close(torch.as_tensor(vectors), single.hidden(torch.tensor([text]))[0])
    alone = by_parts(base, always, text, 0).log_softmax(-1)[0, 20]
    assert_close(score(single, [[7]], targets=[[20]])[0][0], alone)


def test_files_contain_the_invocation(tmp_path: Path) -> None:
    _, _, activated = models(tmp_path, "llama")
    save_adapter(activated, tmp_path / "copy")
    assert (
        json.loads((tmp_path / "copy" / "adapter_config.json").read_text())[
            "alora_invocation_tokens"
        ]
        == INVOCATION
    )
    # PEFT activates adapters of language models only.
    assert (
        json.loads((tmp_path / "copy" / "adapter_config.json").read_text())["task_type"]
        == "CAUSAL_LM"
    )
    always = json.loads((tmp_path / "always" / "adapter_config.json").read_text())
    assert always["alora_invocation_tokens"] is None


def test_the_last_invocation_of_the_prompt_is_found() -> None:
    for ids, start in zip(TEXTS, STARTS, strict=True):
        assert Invocation(INVOCATION).start(ids) == start
    assert Invocation(INVOCATION).start([1, 7, 8], [2, 7, 8]) == 1
    assert Invocation(INVOCATION).start([1, 7], [8, 7, 8]) == 3


def test_what_an_activated_adapter_does_not_support_is_named(tmp_path: Path) -> None:
    base, _, activated = models(tmp_path, "llama")
    with pytest.raises(
        ValueError, match="an activated adapter cannot be merged, .* load the model with adapter="
    ):
        merge(activated)
    with pytest.raises(ValueError, match="an activated adapter cannot be written as TorchScript"):
        save_torchscript(activated, tmp_path / "model.pt")
    with pytest.raises(
        ValueError, match=r"heads=True\) needs one weight for all tokens, .*: use heads=False"
    ):
        attribution(activated, None, TEXTS[0], 5, heads=True)
    settings = json.loads((tmp_path / "activated" / "adapter_config.json").read_text())

    def error(**changes: Any) -> str:
        (tmp_path / "activated" / "adapter_config.json").write_text(json.dumps(settings | changes))
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            from_pretrained(tmp_path / "base", adapter=tmp_path / "activated")
        return str(caught.value)

    assert "must be a non-empty list of integers, not []" in error(alora_invocation_tokens=[])
    assert "alora_invocation_tokens[0] must be an integer, not 'a'" in error(
        alora_invocation_tokens=["a"]
    )
    assert "must be a non-empty list of integers, not 7" in error(alora_invocation_tokens=7)
    assert "contains 1000: token IDs must be below" in error(alora_invocation_tokens=[7, 1000])
    assert "use_dora cannot be combined with alora_invocation_tokens" in error(use_dora=True)
    assert "bias cannot be combined with alora_invocation_tokens" in error(bias="all")
    assert "not for task_type SEQ_CLS" in error(task_type="SEQ_CLS")
    with pytest.raises(ValueError, match=r"the head or the routers of the model, lm_head: remove"):
        random_adapter(
            base, tmp_path / "head", target_modules=("lm_head",), alora_invocation_tokens=(7,)
        )
    with pytest.raises(
        ValueError, match=r"head or the routers of the model, model\.layers\.0\.\w+\.gate.*: remove"
    ):
        random_adapter(
            random_model("mixtral"),
            tmp_path / "a",
            target_modules=("gate",),
            alora_invocation_tokens=(7,),
        )
    encoder = from_config(
        "bert",
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    with pytest.raises(ValueError, match="needs a decoder with a language model head"):
        random_adapter(encoder, tmp_path / "bert", alora_invocation_tokens=(7,))
    with pytest.raises(ValueError, match="has an adapter already"):
        attach(activated, activated.attached)


def test_models_share_the_prefixes_before_the_invocation(tmp_path: Path) -> None:
    """A prompt of the base, and the same text followed by the invocations of two adapters."""
    base, _, activated = models(tmp_path, "llama")
    random_adapter(base, tmp_path / "other", seed=1, alora_invocation_tokens=tuple(INVOCATION))
    other = from_pretrained(tmp_path / "base", adapter=tmp_path / "other", dtype="float32")
    prefixes = PrefixCache(10**7)
    batches = [
        Batch(model, rows=1, max_length=40, prefixes=prefixes) for model in (base, activated, other)
    ]
    text = texts_of(10)[0]
    for batch, model, end, cached in (
        (batches[0], base, [21], 0),
        (batches[1], activated, [7, 8, 21], 10),
        (batches[2], other, [7, 8, 21], 10),
        (batches[1], activated, [7, 8, 21, 22], 13),
        (batches[0], base, [7, 8, 21], 10),
        (batches[0], base, [7, 8, 9], 12),
        (batches[1], activated, [7, 8, 9], 12),
    ):
        row = batch.admit(text + end, 3, sampling=GREEDY)
        new = [event.id for event in batch.step()]
        assert batch.cached_tokens[row] == cached
        while len(batch):
            new += [event.id for event in batch.step()]
        assert new == generate(model, [text + end], 3, temperature=0, eos_id=None)[0]


@needs("decoder")
def test_prefixes_on_disk_are_those_of_the_base(tmp_path: Path) -> None:
    base, _, activated = models(tmp_path, "llama")
    text = texts_of(BLOCK + 6)[0]

    def reply(model: Any, ids: list[int]) -> int:
        """Checks a reply, and returns the number of tokens from the disk."""
        disk = DiskCache(tmp_path / "cache", 10**8)
        batch = Batch(model, rows=1, max_length=200, prefix_bytes=10**7, chunk=50, disk=disk)
        row, new, cached = batch.admit(ids, 3, sampling=GREEDY), list[int](), 0
        while len(batch):
            new += [event.id for event in batch.step()]
            cached = max(cached, batch.cached_tokens.get(row, 0))
        disk.close()
        assert new == generate(model, [ids], 3, temperature=0, eos_id=None)[0]
        return cached

    assert reply(activated, [7, 8, *text]) == 0  # the base computes no token: nothing is stored
    assert reply(base, [7, 8, *text]) == 0
    assert reply(activated, [7, 8, *text]) == 0  # the base's are of no use
    assert reply(activated, [*text, 7, 8]) == 0
    assert reply(base, [*text, 7, 8, 9]) == BLOCK
    assert reply(activated, [*text, 9, 7, 8, 9]) == BLOCK


def test_threads_compute_different_texts(tmp_path: Path) -> None:
    """And a copy is independent of the model."""
    _, _, activated = models(tmp_path, "llama")
    texts = [torch.tensor([texts_of(40)[0] + TEXTS[0]]), torch.tensor([TEXTS[1] + texts_of(40)[0]])]
    with torch.no_grad():
        expected = [activated(idx) for idx in texts]

    @torch.no_grad()
    def compute(number: int) -> bool:
        return all(torch.equal(activated(texts[number]), expected[number]) for _ in range(30))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(compute, [0, 1]))
    for copy in (deepcopy(activated), pickle.loads(pickle.dumps(activated))):
        assert (
            copy.invocation
            is copy.layers[0].self_attn.q_proj.invocation
            is not activated.invocation
        )
        assert copy.base.adapter("activated") is copy
        with torch.no_grad():
            assert torch.equal(copy(texts[0]), expected[0])
