"""The R package together with other packages: generics, and models in the cache of the Hub."""

import subprocess
import textwrap
from pathlib import Path

import pytest
from hub_server import HubServer
from needs import RSCRIPT
from r_package import environment


def run_r(code: str, library: Path, **variables: str) -> str:
    """The standard output of R code."""
    result = subprocess.run(
        [str(RSCRIPT), "--no-init-file", "-e", textwrap.dedent(code)],
        env=environment(library, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def generics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with a package `generics` that has the generic functions of CRAN's package, which
    Debian may lack.
    """
    folder = tmp_path_factory.mktemp("generics")
    source = folder / "source" / "generics"
    (source / "R").mkdir(parents=True)
    (source / "DESCRIPTION").write_text(
        "Package: generics\nVersion: 0.1.3\nTitle: T\nDescription: D.\nLicense: MIT\n"
    )
    (source / "NAMESPACE").write_text("export(generate, tidy)\n")
    (source / "R" / "generics.R").write_text(
        'generate <- function(x, ...) UseMethod("generate")\ntidy <- function(x, ...)'
        ' UseMethod("tidy")\n'
    )
    (installed := folder / "library").mkdir()
    command = ["R", "CMD", "INSTALL", "--no-docs", f"--library={installed}", str(source)]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    return installed


@pytest.mark.parametrize("order", ["minhubpy, generics", "generics, minhubpy"])
def test_generate_is_the_same_call_whichever_package_is_attached_last(
    library: Path, generics: Path, order: str
) -> None:
    code = f"""
        for (name in strsplit("{order}", ", ")[[1]]) suppressMessages(library(name, character.only = TRUE))
        model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
        cat(environmentName(environment(generate)), generate(model, "ROMEO:", 8, temperature = 0), sep = "|")
        cat("|", identical(
          generate(model, "ROMEO:", 8, seed = 3), minhubpy::generate(model, "ROMEO:", max_new_tokens = 8, seed = 3)
        ), sep = "")
        theirs <- generics::generate(model, "To be", 8, seed = 3)
        cat("|", identical(theirs, minhubpy::generate(model, "To be", 8, seed = 3)), sep = "")
    """
    attached, text, *same = run_r(code, library, R_LIBS=f"{library}:{generics}").split("|")
    assert attached == order.rsplit(", ", maxsplit=1)[-1]
    assert len(text) == 8
    assert same == ["TRUE", "TRUE"]


def test_models_are_downloaded_listed_and_deleted(library: Path, hub: HubServer) -> None:
    hub.add(
        "owner/tiny", {"config.json": '{"model_type": "gpt2"}', "model.safetensors": b"0" * 50_000}
    )
    code = """
        library(minhubpy)
        folder <- minhub_download("owner/tiny")
        found <- minhub_models()
        found <- found[found$source == "cache", ]
        cat(dir.exists(folder), found$model, found$revision, found$complete, found$folder == folder, sep = "|")
        cat("|", minhub_delete("owner/tiny"), sep = "")
        cat("|", any(minhub_models()$source == "cache"), "|", dir.exists(folder), sep = "")
    """
    shown = run_r(code, library, HF_HUB_CACHE=str(hub.cache), HF_ENDPOINT=hub.url, HF_TOKEN="")
    assert shown.split("|") == [
        "TRUE",
        "owner/tiny",
        "main",
        "TRUE",
        "TRUE",
        "TRUE",
        "FALSE",
        "FALSE",
    ]


def test_a_url_of_the_hub_is_an_identifier(library: Path, hub: HubServer) -> None:
    hub.add("owner/tiny", {"config.json": '{"model_type": "gpt2"}', "sub/a-Q8_0.gguf": b"GGUF" * 9})
    code = """
        library(minhubpy)
        hub <- Sys.getenv("HF_ENDPOINT")
        path <- function(...) tryCatch(basename(minhub_download(...)), error = conditionMessage)
        cat(path(paste0(hub, "/owner/tiny/resolve/main/sub/a-Q8_0.gguf?download=true")),
            path(paste0(hub, "/owner/tiny/blob/main/sub/a-Q8_0.gguf")),
            path(paste0(hub, "/owner/tiny/blob/main/sub/a-Q8_0.gguf"), revision = "v1"),
            path("https://example.org/owner/tiny/resolve/main/a.gguf"), sep = "|")
    """
    shown = run_r(code, library, HF_HUB_CACHE=str(hub.cache), HF_ENDPOINT=hub.url, HF_TOKEN="")
    first, second, revision, elsewhere = shown.split("|")
    assert first == second == "a-Q8_0.gguf"
    assert revision == "the revision of the URL is main, not v1: omit revision"
    assert "is not the URL of a GGUF file or a repository on the Hub" in elsewhere


@pytest.mark.parametrize("attached", ["generics", "stats"])
def test_results_are_tidied_where_generics_is_installed(
    library: Path, generics: Path, attached: str
) -> None:
    code = f"""
        library(minhubpy)
        library({attached})
        model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
        bot <- minhub_chat(model, max_new_tokens = 4, seed = 1, stream = FALSE)
        invisible(bot$say("To be"))
        tidied <- list(generics::tidy(bot), generics::tidy(bot$last), generics::tidy(attention_weights(model, "To be")))
        cat(vapply(tidied, nrow, 0L), vapply(tidied, function(x) class(x)[1], ""))
    """
    rows = [2, 4, 6 * 5 * 5 * 5]
    assert run_r(code, library, R_LIBS=f"{library}:{generics}").split() == [
        *map(str, rows),
        *["tbl_df"] * 3,
    ]
