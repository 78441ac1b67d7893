"""longrope: the size of the cache selects the frequencies, in both runners and in TorchScript."""

from pathlib import Path

import pytest
import torch
from cases.phi3 import LONG, LONGROPE, SHORT, SMALL
from random_weights import draw

import minhub_py
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.native_runner import runner_of

MIDDLE = {
    **SMALL,
    "rope_scaling": {**LONGROPE, "attention_factor": 1.0},
    "original_max_position_embeddings": 20,
}
IDS = torch.arange(30).unsqueeze(0) * 7 % 61


def model_of(**settings):
    model = minhub_py.from_config("phi3", **{**SMALL, **settings}).eval()
    draw(model)
    return model


def test_the_size_of_the_cache_selects_the_frequencies(tmp_path: Path) -> None:
    model, long = model_of(**MIDDLE), model_of(**{**MIDDLE, "original_max_position_embeddings": 2})
    short = model_of(**{**MIDDLE, "original_max_position_embeddings": 80})
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    runner = runner_of(model)
    with torch.no_grad():
        for length, size, expected in (
            (20, 20, short),
            (20, 21, long),
            (30, 30, long),
            (9, 20, short),
            (9, 96, long),
        ):
            ids, reference = IDS[:, :length], expected(IDS[:, :length])
            torch.testing.assert_close(model(ids, model.new_cache(1, size)), reference)
            native = runner.forward({0: ids[0].tolist()}, runner.new_cache(1, size), every=True)
            torch.testing.assert_close(native, reference[0], rtol=1e-4, atol=1e-4)
        for length, expected in ((20, short), (21, long)):
            ids = IDS[:, :length]
            torch.testing.assert_close(model(ids), expected(ids))
            torch.testing.assert_close(script(ids), expected(ids))
        assert not torch.allclose(short(IDS), long(IDS), atol=0.1)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_older_names_of_longrope_are_read(name: str) -> None:
    for case in (SHORT, LONG):
        model = minhub_py.from_config(
            "phi3", **{**SMALL, **case, "rope_scaling": {**LONGROPE, "type": name}}
        )
        assert model.config.rope == minhub_py.from_config("phi3", **{**SMALL, **case}).config.rope
