"""GGUF files of BERT, RoBERTa and ModernBERT in llama.cpp's form, compared with the original
checkpoints.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import pytest
import torch
import torch.nn.functional as F
from encoder_tokenizers import texts, train_unigram, write_roberta, write_vocabulary
from gguf import GGUFWriter
from gguf import TokenType as Kind
from gguf_cases import trained
from gguf_files import add_tensor, finish
from random_weights import draw
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from minhub_py import (
    embed,
    from_config,
    from_pretrained,
    save_pretrained,
    tokenizer_from_pretrained,
)
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.sentence_transformers import Dense, EmbeddingSettings
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.sentencepiece import read_sentencepiece
from minhub_py.export.gguf import write_gguf
from minhub_py.inference.encoder_runner import encoder_runner
from minhub_py.loading.files import open_files

SETTINGS: dict[str, Any] = {
    "vocab_size": 2500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 50,
}
ROBERTA = {**SETTINGS, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
CASES = {"bert": SETTINGS, "roberta": ROBERTA, "xlm-roberta": ROBERTA}
pytestmark = pytest.mark.filterwarnings("ignore:.*lacks some settings")


def write(
    path: Path,
    model: Any,
    kind: str = "F32",
    *,
    pooling: int | None = 1,
    tokenizer: Callable[[GGUFWriter], object] = lambda writer: None,
    change: Callable[[GGUFWriter], object] = lambda writer: None,
) -> Path:
    """An encoder's file. A RoBERTa's positions begin with its first token."""
    config = model.config
    offset = 0 if config.model_type == "bert" else config.pad_token_id + 1
    writer = GGUFWriter(path, "bert")
    writer.add_context_length(config.max_position_embeddings - offset)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_token_type_count(config.type_vocab_size)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if "pooler" in name:
            continue
        rows = tensor[offset:] if "position_embeddings" in name else tensor
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        add_tensor(
            writer,
            gguf_name,
            rows.detach(),
            "F32" if "position" in name or "token_type" in name else kind,
        )
    change(writer)
    finish(writer)
    return path


def reference(name: str) -> Any:
    model = AutoModel.from_config(AutoConfig.for_model(name, **CASES[name])).eval()
    draw(model)
    return model


def ids_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 2500, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize("name", CASES)
def test_hidden_states_match_the_checkpoint(name: str, tmp_path: Path) -> None:
    """Bitwise, up to the last position; and transformers' with a tolerance."""
    model = reference(name)
    model.save_pretrained(tmp_path / "hub")
    ours = from_pretrained(write(tmp_path / "model.gguf", model), device="cpu")
    reference_model = from_pretrained(tmp_path / "hub", device="cpu")
    assert (
        ours.config.context_length
        == reference_model.config.context_length
        == (50 if name == "bert" else 48)
    )
    rows = ids_of(48, 7, 1)
    states = encoder_runner(ours).hidden_states(rows)
    assert torch.equal(states, encoder_runner(reference_model).hidden_states(rows))
    with torch.no_grad():
        expected = torch.cat([model(torch.tensor([ids])).last_hidden_state[0] for ids in rows])
    assert (states - expected).abs().max() <= 5e-5 * expected.abs().max()


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_quantized_files_are_close_to_the_checkpoint(kind: str, tmp_path: Path) -> None:
    model = reference("bert")
    exact = from_pretrained(write(tmp_path / "exact.gguf", model), device="cpu")
    ours = from_pretrained(write(tmp_path / "model.gguf", model, kind), device="cpu")
    rows = ids_of(40, 7)
    cosine = torch.cosine_similarity(
        encoder_runner(ours).hidden_states(rows), encoder_runner(exact).hidden_states(rows), dim=1
    )
    assert cosine.mean() > {"F16": 0.99999, "Q8_0": 0.999, "Q4_0": 0.9}[kind]


@pytest.mark.parametrize(
    ("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last"), (0, None), (None, None)]
)
def test_embeddings_follow_the_pooling(number: int | None, pooling: Any, tmp_path: Path) -> None:
    """Normalized, as llama.cpp's; without a pooling, as of other repositories."""
    ours = from_pretrained(
        write(tmp_path / "model.gguf", reference("bert"), pooling=number), device="cpu"
    )
    rows = ids_of(20, 7)
    expected = embed(ours, None, rows, pool=pooling or "mean")
    torch.testing.assert_close(
        embed(ours, None, rows), F.normalize(expected, dim=1) if pooling else expected
    )


@pytest.mark.filterwarnings("default:.*lacks some settings")
def test_missing_settings_are_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", reference("bert"))
    with pytest.warns(
        UserWarning, match=r"model\.gguf lacks some settings; assumed are the activation gelu"
    ) as record:
        from_pretrained(file, device="cpu")
    assert len(record) == 1
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda writer: writer.add_classifier_output_labels(["a", "b"]),
            r"bert\.classifier\.output_labels is .*not sup",
        ),
        (
            lambda writer: writer.add_rope_freq_base(1e6),
            "a setting 'rope_parameters' that this implementation",
        ),
        (
            lambda writer: add_tensor(writer, "cls.weight", torch.zeros(64, 64), "F32"),
            r"unknown: cls\.weight",
        ),
    ],
    ids=["labels", "rope", "head"],
)
def test_heads_are_rejected(change: Any, message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", reference("bert"), change=change)
    with pytest.raises(ValueError, match=message):
        from_pretrained(file, device="cpu")


def test_pooling_of_a_decoder(tmp_path: Path) -> None:
    """As of Qwen3-Embedding."""
    settings = {"model_type": "qwen3", **SETTINGS, "num_key_value_heads": 2, "head_dim": 16}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**settings, tie_word_embeddings=True)
    ).eval()
    draw(model)
    file = gguf_files.write(
        tmp_path / "model.gguf",
        model,
        change=lambda writer: writer.add_pooling_type(gguf.PoolingType.LAST),
    )
    rows = ids_of(20, 7)
    with torch.no_grad():
        last = [model.model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in rows]
    vectors = embed(from_pretrained(file, device="cpu"), None, rows)
    torch.testing.assert_close(vectors, F.normalize(torch.stack(last), dim=1), rtol=0, atol=5e-6)


def test_rank_pooling_is_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", reference("bert"), pooling=4)
    with pytest.raises(ValueError, match=r"bert\.pooling_type is 4, which is not supported"):
        from_pretrained(file, device="cpu")


# --- Tokenizers


def assert_same_ids(ours: Tokenizer, reference: Tokenizer) -> None:
    previous = "and so on"
    for text in texts():
        for pair in ((text,), (text, previous)):
            actual, expected = ours.encode(*pair), reference.encode(*pair)
            assert (actual.ids, actual.type_ids) == (expected.ids, expected.type_ids), pair
            assert ours.decode(actual.ids) == reference.decode(actual.ids)
        previous = text


@pytest.mark.parametrize("lower_case", [True, False])
def test_wordpiece_matches_the_repository(tmp_path: Path, lower_case: bool) -> None:
    write_vocabulary(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower_case}))
    reference_model = tokenizer_from_pretrained(str(tmp_path))
    vocabulary = sorted(reference_model.get_vocab(), key=reference_model.token_to_id)

    def stored(token: str) -> str:
        if reference_model.token_to_id(token) < 5:
            return token
        return token[2:] if token.startswith("##") else f"\u2581{token}"

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("bert")
        writer.add_token_list([stored(token) for token in vocabulary])
        writer.add_token_types([Kind.CONTROL] * 5 + [Kind.NORMAL] * (len(vocabulary) - 5))
        writer.add_pad_token_id(0)
        writer.add_unk_token_id(1)
        writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
        writer.add_sep_token_id(3)
        writer.add_mask_token_id(4)
        if not lower_case:
            writer.add_bool("tokenizer.ggml.normalizer.lowercase", False)

    file = write(tmp_path / "model.gguf", reference("bert"), tokenizer=add)
    ours = tokenizer_from_pretrained(str(file))
    assert_same_ids(ours, reference_model)
    save_pretrained(from_pretrained(file, device="cpu", quantize="none"), tmp_path / "saved", ours)
    assert_same_ids(tokenizer_from_pretrained(str(tmp_path / "saved")), reference_model)


def test_xlm_roberta_matches_the_repository(tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(train_unigram())
    reference_model = tokenizer_from_pretrained(str(tmp_path))
    model = read_sentencepiece(tmp_path / "sentencepiece.bpe.model")
    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *(piece.text for piece in model.pieces[3:]),
        "<mask>",
    ]

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(
            [0.0] * 4 + [piece.score for piece in model.pieces[3:]] + [-10000.0]
        )
        special = [Kind.CONTROL, Kind.CONTROL, Kind.CONTROL, Kind.UNKNOWN]
        writer.add_token_types([*special, *[Kind.NORMAL] * (len(tokens) - 5), Kind.CONTROL])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_precompiled_charsmap(model.charsmap)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(3)
        writer.add_sep_token_id(2)
        writer.add_pad_token_id(1)
        writer.add_mask_token_id(len(tokens) - 1)

    file = write(tmp_path / "model.gguf", reference("xlm-roberta"), tokenizer=add)
    assert_same_ids(tokenizer_from_pretrained(str(file)), reference_model)


def test_roberta_matches_the_repository(tmp_path: Path, bpe_folder: Path) -> None:
    tokens = write_roberta(tmp_path, bpe_folder)
    reference_model = tokenizer_from_pretrained(str(tmp_path))

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("roberta-bpe")
        writer.add_token_list(tokens)
        writer.add_token_types(
            [Kind.CONTROL] * 4 + [Kind.NORMAL] * (len(tokens) - 5) + [Kind.CONTROL]
        )
        merges = (bpe_folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
        writer.add_token_merges([merge for merge in merges if merge])
        for key, id in (
            ("bos", 0),
            ("eos", 2),
            ("unknown", 3),
            ("seperator", 2),
            ("padding", 1),
            ("cls", 0),
        ):
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", id)
        writer.add_mask_token_id(len(tokens) - 1)

    file = write(tmp_path / "model.gguf", reference("roberta"), tokenizer=add)
    assert_same_ids(tokenizer_from_pretrained(str(file)), reference_model)


# --- ModernBERT, in both directions

MODERN = {
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "local_attention": 10,
    "max_position_embeddings": 96,
    "architectures": ["ModernBertModel"],
}


def modern_tokenizer() -> Tokenizer:
    """A byte-level BPE with the special tokens of ModernBERT around a text."""
    tokenizer = trained("olmo")
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == "[MASK]", normalized=False) for token in special]
    )
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


@torch.no_grad()
@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({}, 3),
        (
            {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 3},
            [False, False, True, True, True],
        ),
        (
            {
                "hidden_activation": "silu",
                "rope_parameters": {"sliding_attention": {"rope_theta": 50.0}},
            },
            3,
        ),
    ],
)
def test_modernbert_is_written_and_read(
    settings: dict[str, Any], pattern: Any, tmp_path: Path
) -> None:
    model = from_config("modernbert", vocab_size=61, **MODERN, **settings)
    draw(model)
    save_pretrained(model.eval(), tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    header = read_header(tmp_path / "model.gguf")
    assert header.metadata["modern-bert.attention.sliding_window_pattern"] == pattern
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MODERN_BERT, MODERN["num_hidden_layers"])
    assert {
        known.get_name(name, try_suffixes=(".weight",)) for name in Checkpoint(tmp_path / "hub")
    } == (header.tensors.keys())
    again = from_pretrained(tmp_path / "model.gguf", device="cpu")
    ids = torch.tensor(ids_of(40)) % 61
    assert torch.equal(again(ids), model(ids))


def test_modernbert_keeps_its_tokenizer_and_pooling(tmp_path: Path) -> None:
    theirs = modern_tokenizer()
    ids = {
        f"{name}_token_id": theirs.token_to_id(f"[{token}]")
        for name, token in (("bos", "CLS"), ("eos", "SEP"), ("pad", "PAD"))
    }
    model = from_config("modernbert", vocab_size=theirs.get_vocab_size(), **MODERN, **ids)
    model.embedding_settings = EmbeddingSettings(pooling=("cls",), normalize=True)
    save_pretrained(model, tmp_path / "hub", theirs)
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    metadata = read_header(tmp_path / "model.gguf").metadata
    assert (metadata["tokenizer.ggml.pre"], metadata["modern-bert.pooling_type"]) == (
        "modern-bert",
        2,
    )
    for name in ("cls", "seperator", "mask", "unknown"):
        token = {"cls": "[CLS]", "seperator": "[SEP]", "mask": "[MASK]", "unknown": "[UNK]"}[name]
        assert metadata[f"tokenizer.ggml.{name}_token_id"] == theirs.token_to_id(token)
    assert all(metadata[f"tokenizer.ggml.add_{name}_token"] for name in ("bos", "eos", "sep"))
    file = tmp_path / "model.gguf"
    assert_same_ids(tokenizer_from_pretrained(str(file)), theirs)
    rows = [[1, 2, 3]]
    assert from_pretrained(file, device="cpu").embedding_settings.pooling == ("cls",)
    torch.testing.assert_close(
        embed(from_pretrained(file, device="cpu"), None, rows), embed(model.eval(), None, rows)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            EmbeddingSettings(pooling=("max",)),
            "have pooling max, which a GGUF file of modern-bert cannot express: use",
        ),
        (EmbeddingSettings(pooling=("cls", "mean")), r"have pooling cls \+ mean, which"),
        (
            EmbeddingSettings(dense=(Dense(torch.eye(32), None, "Tanh"),)),
            "have dense layers, which",
        ),
    ],
)
def test_embeddings_beyond_gguf_are_rejected(
    settings: EmbeddingSettings, message: str, tmp_path: Path
) -> None:
    model = from_config("modernbert", vocab_size=61, **MODERN)
    model.embedding_settings = settings
    save_pretrained(model, tmp_path / "hub")
    with pytest.raises(ValueError, match=message):
        write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    assert not (tmp_path / "model.gguf").exists()


def test_prompts_of_embeddings_are_named(tmp_path: Path) -> None:
    model = from_config("modernbert", vocab_size=61, **MODERN)
    model.embedding_settings = EmbeddingSettings(
        lower_case=True, prompts={"query": "query: ", "document": ""}
    )
    save_pretrained(model, tmp_path / "hub")
    with pytest.warns(
        UserWarning, match="lacks the prompts and lower case of the repository's text embeddings"
    ):
        write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")


def test_a_repository_without_pooling_has_none_in_its_file(tmp_path: Path) -> None:
    """Such as a reranker's: a mean would be an embedding that the repository does not define."""
    model = from_config("modernbert", vocab_size=61, **MODERN)
    model.embedding_settings = EmbeddingSettings()
    save_pretrained(model, tmp_path / "hub")
    modules = json.loads((tmp_path / "hub" / "modules.json").read_text())
    (tmp_path / "hub" / "modules.json").write_text(json.dumps(modules[:1]))
    again = from_pretrained(tmp_path / "hub", device="cpu")
    assert again.embedding_settings == EmbeddingSettings(has_pooling=False)
    save_pretrained(again, tmp_path / "again")
    assert len(json.loads((tmp_path / "again" / "modules.json").read_text())) == 1
    for folder in ("hub", "again"):
        write_gguf(open_files(tmp_path / folder), tmp_path / f"{folder}.gguf", "F32")
        assert "modern-bert.pooling_type" not in read_header(tmp_path / f"{folder}.gguf").metadata


def test_modernbert_with_a_head_is_rejected(tmp_path: Path) -> None:
    save_pretrained(
        from_config(
            "modernbert", vocab_size=61, **{**MODERN, "architectures": ["ModernBertForMaskedLM"]}
        ),
        tmp_path / "hub",
    )
    with pytest.raises(ValueError, match="of ModernBERT has no head, so that config.json"):
        write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(["a", "b"], r"has no '\[UNK\]'"), (["[UNK]", "[CLS]"], r"has no \[SEP\]")],
)
def test_corrupt_tokenizers_are_rejected(tokens: list[str], message: str, tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("bert")
        writer.add_token_list(tokens)
        writer.add_token_types([Kind.CONTROL] * len(tokens))

    file = write(tmp_path / "model.gguf", reference("bert"), tokenizer=add)
    with pytest.raises(ValueError, match=message):
        tokenizer_from_pretrained(str(file))
