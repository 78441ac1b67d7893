"""A model is loaded once, from one commit, with its companions; a head that differs from the
embedding is used.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer, Request
from safetensors.torch import save_file
from tokenizers import Tokenizer
from training_runs import TEXT, Notes

import minhub_py
from minhub_py import from_pretrained, save_pretrained, tokenizer_from_pretrained, train
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.tokenizer import characters, read_tokenizer
from minhub_py.cli.loading import open_model
from minhub_py.export.convert import convert
from minhub_py.loading.files import open_files
from minhub_py.loading.inspection import verify

REPO = "owner/model"
IDS = torch.arange(12).unsqueeze(0)
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "gptneo": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 32,
    },
    "lstm": {"vocab_size": 64, "embedding_size": 32, "hidden_size": 32, "num_layers": 2},
    "llama": {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
    },
}
TEMPLATE = "{{ messages }}\n"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def fresh(family: str, seed: int, **settings: Any) -> Any:
    torch.manual_seed(seed)
    return getattr(minhub_py, family)(**SIZES[family], **settings).eval()


# --- Once, and from one commit


class MovingBranch(list[Request]):
    """The requests to a server whose branch changes after each revision request."""

    def __init__(self, hub: HubServer, commits: list[str]) -> None:
        self.hub, self.later = hub, commits[1:]
        hub.repositories[REPO].refs["main"] = commits[0]

    def append(self, request: Request) -> None:
        super().append(request)
        if request.path.startswith("/api/") and self.later:
            self.hub.repositories[REPO].refs["main"] = self.later.pop(0)

    @property
    def questions(self) -> list[str]:
        return [request.path for request in self if request.path.startswith("/api/")]


@pytest.fixture
def moving(hub: HubServer, tmp_path: Path) -> tuple[MovingBranch, list[Path]]:
    """A branch of three commits, whose models and tokenizers differ, and folders with the same
    content.
    """
    folders, commits = [], []
    letters = "".join(sorted(set(TEXT)))
    for seed in range(3):
        folder = tmp_path / f"commit-{seed}"
        save_pretrained(fresh("gpt2", seed), folder, characters(letters[seed:] + letters[:seed]))
        folders.append(folder)
        commits.append(hub.add(REPO, folder))
    hub.requests = MovingBranch(hub, commits)
    return hub.requests, folders


def same_model(model: Any, folder: Path) -> bool:
    return torch.equal(model(IDS), from_pretrained(folder)(IDS))


def opened_by_python(tmp_path: Path) -> tuple[Any, Any]:
    return from_pretrained(REPO, device="cpu"), None


def opened_by_the_command(tmp_path: Path) -> tuple[Any, Any]:
    return open_model(REPO, "main", "cpu", "auto", None)


def converted(tmp_path: Path) -> tuple[Any, Any]:
    out = tmp_path / "converted"
    convert(open_files(REPO), out)
    return from_pretrained(out, device="cpu"), tokenizer_from_pretrained(str(out))


def trained(tmp_path: Path) -> tuple[Any, Any]:
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {"context": 16, "batch": 2, "steps": 1, "learning_rate": 0.0, "evaluate_tokens": 64}
    run = train(tmp_path / "text.txt", tmp_path / "run", start=REPO, listener=Notes(), **settings)
    assert run.settings.revision in run.files.card.read_text()
    return run.model, run.tokenizer


@pytest.mark.parametrize("way", [opened_by_python, opened_by_the_command, converted, trained])
def test_branch_update_during_loading_does_not_mix_commits(
    moving: tuple[MovingBranch, list[Path]], tmp_path: Path, way: Callable[[Path], tuple[Any, Any]]
) -> None:
    requests, folders = moving
    model, tokenizer = way(tmp_path)
    assert requests.questions == [f"/api/models/{REPO}/revision/main"]
    fetched = [request.file for request in requests if request.file]
    assert sorted(fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert same_model(model, folders[0])
    assert tokenizer is None or tokenizer.to_str() == read_tokenizer(folders[0]).to_str()


def test_run_without_a_checkpoint_restarts_from_the_same_commit(
    moving: tuple[MovingBranch, list[Path]], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {"context": 16, "batch": 2, "steps": 1, "learning_rate": 0.0, "evaluate_tokens": 64}
    train(tmp_path / "text.txt", tmp_path / "run", start=REPO, listener=Notes(0), **settings)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for name in ("losses.csv", "model.safetensors", "config.json", "README.md"):
        (tmp_path / "run" / name).unlink()
    assert same_model(minhub_py.resume(tmp_path / "run", listener=Notes()).model, moving[1][0])


def test_checkpoint_files_are_read_once(tmp_path: Path) -> None:
    save_pretrained(fresh("gpt2", 0), tmp_path, characters("abc"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3}')
    checkpoint = open_files(tmp_path)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text("{")
    assert minhub_py.loading.pretrained.load(checkpoint).config.eos_token_id == 3


def test_revision_requires_a_start_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="revision requires start: set both"):
        train(tmp_path / "text.txt", tmp_path / "run", revision="v1")


# --- Companions


def test_chat_template_is_saved_with_the_tokenizer(hub: HubServer, tmp_path: Path) -> None:
    """From the Hub, to each folder that the model or its tokenizer is written to."""
    source = tmp_path / "source"
    tokenizer = characters("".join(sorted(set(TEXT))))
    save_pretrained(fresh("gpt2", 0), source, tokenizer)
    assert set(files_of(source)) == {"config.json", "model.safetensors", "tokenizer.json"}
    companions = {
        "chat_template.jinja": TEMPLATE.encode(),
        "tokenizer_config.json": b"{}",
        "special_tokens_map.json": b"{}",
    }
    for name, content in companions.items():
        (source / name).write_bytes(content)
    hub.add(REPO, {**files_of(source), "tokenizer.model": "not needed", "tekken.json": "{}"})
    fetched = open_files(REPO)
    assert files_of(fetched.path) == files_of(source)

    convert(fetched, tmp_path / "converted")
    read = read_tokenizer(fetched.path)
    save_pretrained(from_pretrained(REPO), tmp_path / "saved", read)
    (tmp_path / "text.txt").write_text(TEXT)
    run = train(
        tmp_path / "text.txt",
        tmp_path / "run",
        start=REPO,
        listener=Notes(),
        context=16,
        batch=2,
        steps=1,
        evaluate_tokens=64,
    )
    [last] = run.files.all_checkpoints()
    for folder in (tmp_path / "converted", tmp_path / "saved", run.folder, last):
        assert files_of(folder).items() >= companions.items(), folder
    save_pretrained(from_pretrained(REPO), tmp_path / "saved", Tokenizer.from_str(read.to_str()))
    # it belonged to the previous tokenizer
    assert "chat_template.jinja" not in files_of(tmp_path / "saved")


def test_other_tokenizer_formats_are_downloaded_only_if_needed(
    hub: HubServer, tmp_path: Path
) -> None:
    save_pretrained(fresh("gpt2", 0), tmp_path)
    hub.add(REPO, {**files_of(tmp_path), "tekken.json": "{}", "tokenizer.model.v3": "no such form"})
    with pytest.raises(ValueError, match=r"tekken\.json is not a tekken tokenizer"):
        tokenizer_from_pretrained(REPO)
    assert sorted(hub.fetched()) == ["config.json", "tekken.json"]


# --- Separate heads


def set_config(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize("family", SIZES)
def test_head_that_differs_from_a_tied_embedding_is_used(family: str, tmp_path: Path) -> None:
    """As in transformers, for models that transformers has."""
    model = fresh(family, 0, tie_word_embeddings=False)
    save_pretrained(model, tmp_path / "untied")
    save_pretrained(model, tmp_path / "tied")
    set_config(tmp_path / "tied", tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)
    actual = from_pretrained(tmp_path / "tied", device="cpu")
    assert not actual.config.tie_word_embeddings
    assert torch.equal(actual(IDS), model(IDS))
    if family != "lstm":
        from transformers import AutoModelForCausalLM

        reference_model = AutoModelForCausalLM.from_pretrained(tmp_path / "tied").eval()
        torch.testing.assert_close(actual(IDS), reference_model(IDS).logits, rtol=0, atol=2e-6)
    for kind in ("int8", "nf4"):
        small, expected = (
            from_pretrained(tmp_path / name, device="cpu", quantize=kind)
            for name in ("tied", "untied")
        )
        assert torch.equal(small(IDS), expected(IDS))

    save_pretrained(actual, tmp_path / "saved")
    convert(open_files(tmp_path / "tied"), tmp_path / "native", to="native")
    convert(open_files(tmp_path / "native"), tmp_path / "hub")
    for name in ("saved", "native", "hub"):
        assert (
            json.loads((tmp_path / name / "config.json").read_text())["tie_word_embeddings"]
            is False
        )
        assert torch.equal(from_pretrained(tmp_path / name, device="cpu")(IDS), model(IDS))
        assert verify(str(tmp_path / name))["problems"] == []
    [problem] = verify(str(tmp_path / "tied"))["problems"]
    assert problem.endswith(
        "to which config.json ties it, and is used: set tie_word_embeddings to false"
    )


@pytest.mark.parametrize("family", SIZES)
def test_head_that_copies_the_embedding_stays_tied(family: str, tmp_path: Path) -> None:
    model = fresh(family, 0, tie_word_embeddings=True)
    head = "head.weight" if family == "lstm" else "lm_head.weight"
    embedding = next(
        tensor for name, tensor in model.state_dict().items() if name.startswith(("wte", "embed"))
    )
    untied = fresh(family, 1, tie_word_embeddings=False)
    untied.load_state_dict({**model.state_dict(), head: embedding})
    save_pretrained(untied, tmp_path)
    set_config(tmp_path, tie_word_embeddings=True)
    result = from_pretrained(tmp_path, device="cpu")
    assert result.config.tie_word_embeddings
    assert result.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(result(IDS), model(IDS))


def test_head_of_another_shape_is_rejected(tmp_path: Path) -> None:
    save_pretrained(fresh("gpt2", 0, tie_word_embeddings=False), tmp_path)
    tensors = {name: tensor.clone() for name, tensor in Checkpoint(tmp_path).items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    set_config(tmp_path, tie_word_embeddings=True)
    with pytest.raises(
        ValueError, match=r"lm_head\.weight is \(63, 32\), the config says \(64, 32\)"
    ):
        from_pretrained(tmp_path)
