"""Small tokenizers of translation models in the files of their repositories."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from ten_scripts import SENTENCES, texts

SPECIAL = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
TEXTS = [*texts()]


def pieces(lines: list[str], **settings: Any) -> bytes:
    """A small SentencePiece model."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines if line.strip()]),
        model_writer=file,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 700, "character_coverage": 1.0, "model_type": "unigram", **settings},
    )
    return file.getvalue()


def of(model: bytes) -> list[str]:
    """A model's pieces."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id) for id in range(processor.get_piece_size())]


def numbered(tokens: list[str]) -> str:
    """A vocab.json."""
    return json.dumps({token: id for id, token in enumerate(dict.fromkeys(tokens))})


def write_marian(folder: Path, separate: bool = False, codes: tuple[str, ...] = ()) -> None:
    """Two models of different texts, and a vocabulary in another order."""
    source = pieces([*SENTENCES.values(), *TEXTS[:250]])
    target = pieces([*SENTENCES.values(), *TEXTS[250:]], vocab_size=500)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    normal = [sorted(piece for piece in of(model) if piece[0] != "<") for model in (source, target)]
    start = ["</s>", "<unk>", *codes]
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    if separate:
        (folder / "vocab.json").write_text(numbered([*start, *normal[0], "<pad>"]))
        (folder / "target_vocab.json").write_text(numbered([*start, *normal[1], "<pad>"]))
        settings["target_vocab_file"] = str(folder / "target_vocab.json")
    else:
        (folder / "vocab.json").write_text(numbered([*start, *normal[0], *normal[1], "<pad>"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_m2m100(folder: Path) -> None:
    """A BPE of pieces, and a vocabulary in another order."""
    model = pieces([*SENTENCES.values(), *TEXTS], model_type="bpe", **SPECIAL)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    normal = sorted(piece for piece in of(model) if piece[0] != "<")
    (folder / "vocab.json").write_text(numbered(["<s>", "<pad>", "</s>", "<unk>", *normal]))
    from minhub_py.checkpoints.tokenizers.language_codes import M2M100

    settings = {"tokenizer_class": "M2M100Tokenizer",
                "additional_special_tokens": [f"__{code}__" for code in M2M100]}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_mbart(folder: Path, name: str = "MBartTokenizer") -> None:
    (folder / "sentencepiece.bpe.model").write_bytes(pieces([*SENTENCES.values(), *TEXTS]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


def write_nllb(folder: Path) -> None:
    """A tokenizer.json, as in all published repositories."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, trainers
    from tokenizers.models import BPE

    codes = ["eng_Latn", "deu_Latn", "rus_Cyrl", "zho_Hans"]
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES.values(), *TEXTS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    reference = transformers.NllbTokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        extra_special_tokens=codes,
    )
    reference.save_pretrained(folder)


def write_pegasus(folder: Path) -> None:
    special = {"bos_id": -1, "pad_id": 0, "eos_id": 1, "unk_id": 2}
    (folder / "spiece.model").write_bytes(pieces([*SENTENCES.values(), *TEXTS], **special))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PegasusTokenizer"}')


FORMS: dict[str, Callable[[Path], None]] = {
    "marian": write_marian,
    "marian-codes": lambda folder: write_marian(folder, codes=(">>deu<<", ">>fra<<")),
    "marian-separate": lambda folder: write_marian(folder, separate=True),
    "m2m100": write_m2m100,
    "mbart": write_mbart,
    "mbart50": lambda folder: write_mbart(folder, "MBart50Tokenizer"),
    "nllb": write_nllb,
}


def save_two_vocabularies(folder: Path) -> Any:
    """transformers' Marian with a vocabulary for each language, saved with its tokenizer."""
    from bart_models import SMALL, reference_of

    write_marian(folder, separate=True)
    source, target = (
        json.loads((folder / name).read_text()) for name in ("vocab.json", "target_vocab.json")
    )
    assert len(source) > len(target)
    settings = SMALL | {
        "model_type": "marian",
        "vocab_size": len(source),
        "decoder_vocab_size": len(target),
        "share_encoder_decoder_embeddings": False,
        "scale_embedding": True,
        "pad_token_id": target["<pad>"],
        "decoder_start_token_id": target["<pad>"],
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "bad_words_ids": [[target["<pad>"]]],
    }
    reference = reference_of(settings)
    reference.generation_config.bad_words_ids = settings["bad_words_ids"]
    reference.generation_config.forced_eos_token_id = 0
    config = json.loads((folder / "tokenizer_config.json").read_text())
    reference.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"max_length": 12, "num_beams": 3,
        "bad_words_ids": settings["bad_words_ids"], "forced_eos_token_id": 0}))  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**settings, "is_encoder_decoder": True}))
    return reference
