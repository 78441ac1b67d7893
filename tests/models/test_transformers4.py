"""config.json as transformers 4 reads it: it ignores rope_parameters, and uses theta 10,000 without
the older name.

transformers 5 reads the older names, too. transformers 4 is tested if MINHUB_TRANSFORMERS4 names a
folder that contains it: pip install --no-deps --target FOLDER transformers==4.57.6
huggingface_hub==0.36.2 tokenizers==0.22.2
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from needs import needs
from references import CASES, TOLERANCE, assert_close, configured, ids_of, random_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

import minhub_py
from minhub_py.export.convert import convert
from minhub_py.loading.files import open_files
from minhub_py.models.config import with_older_rope

VARIABLE = "MINHUB_TRANSFORMERS4"
PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "read_models.py"
# Model types that transformers 4.57 does not have.
NEWER = (
    "gemma4_text",
    "internlm3",
    "jais2",
    "lfm2_moe",
    "ministral3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
)
ONLY_5 = {  # settings that transformers 4 does not have
    "gemma3_text-nested-scalings": "a scaling in layers with a window",
    "gemma4_text-ropes": "one rope_type per layer type",
    "gpt_oss-gate": "swiglu_alpha and swiglu_limit",
    "olmo3-ropes": "two values of rope_theta",
}
GROUPS = "B and C are tiled, and all groups are normalized together"
OTHER_LOGITS = {  # settings that transformers 4 reads, and computes in another way
    "granitemoehybrid-groups": GROUPS,
    "mamba-relu": "hidden_act applies to the gate, too",
    "mamba2": GROUPS,
    "mamba2-biases": GROUPS,
    "mamba2-sizes": GROUPS,
    "nemotron-linear": "rope_scaling has no effect",
}
ROUNDED = {"apertus": 5e-3}  # the activation's constants are bfloat16 in transformers 4
REJECTED = {  # by classes of transformers 4 that accept two or three fields
    "olmo2-yarn": "must be a dictionary with two fields",
    "phi3-attention-factor": "must be a dictionary with three fields",
    "phi3-part": "must be a dictionary with three fields",
}
OTHER_DEFAULT = {
    "apertus-plain": "transformers 5 reads rope_scaling null as Apertus' llama3",
    "gpt_oss-rope": (
        "transformers 5 reads rope_scaling null, which transformers 4 reads as no scaling, as YaRN"
    ),
    "qwen3_5_text-all": "settings for images",
}


def settings_in(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return settings


def understood(settings: dict[str, Any], folder: Path) -> Any:
    """The rotary settings of transformers 5 for a config.json."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    read = AutoConfig.from_pretrained(folder).to_dict()
    rope = {
        name: value for name, value in read.items() if name.startswith(("rope", "partial_rotary"))
    }
    return json.loads(
        json.dumps(rope), object_hook=lambda item: {k: v for k, v in item.items() if k != "type"}
    )


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in {**ONLY_5, **OTHER_DEFAULT}]
)
def test_the_older_names_state_the_same_rotation(tmp_path: Path, name: str) -> None:
    _, config = configured(name)
    # as save_pretrained() writes them
    settings = json.loads(json.dumps(with_older_rope(config, config.to_hub())))
    older = {key: value for key, value in settings.items() if key != "rope_parameters"}
    assert understood(settings, tmp_path / "both") == understood(older, tmp_path / "older")


@pytest.mark.parametrize(
    "name", ["gemma3_text-nested", "gpt_neox-yarn", "llama-yarn", "olmo3-scaled", "phi3-long"]
)
def test_a_loaded_model_is_saved_with_the_same_settings(tmp_path: Path, name: str) -> None:
    minhub_py.save_pretrained(random_model(name), tmp_path / "first")
    minhub_py.save_pretrained(
        minhub_py.from_pretrained(tmp_path / "first", device="cpu"), tmp_path / "second"
    )
    assert settings_in(tmp_path / "second") == settings_in(tmp_path / "first")


@pytest.mark.parametrize("nested", [False, True])
def test_converted_files_have_the_older_names(tmp_path: Path, nested: bool) -> None:
    """nested: the settings are in text_config, as of a model of texts and images."""
    minhub_py.save_pretrained(
        random_model("gemma3_text-nested" if nested else "llama-llama3"), tmp_path / "old"
    )
    expected = settings_in(tmp_path / "old")
    names = ("rope_theta", "rope_scaling", "rope_local_base_freq")
    newer = {name: value for name, value in expected.items() if name not in names}
    if nested:
        newer = {"model_type": "gemma3", "text_config": newer}
    (tmp_path / "old" / "config.json").write_text(json.dumps(newer))
    convert(open_files(tmp_path / "old"), tmp_path / "new")
    actual = settings_in(tmp_path / "new")
    actual = actual["text_config"] if nested else actual
    assert {name: actual.get(name) for name in names} == {
        name: expected.get(name) for name in names
    }
    assert actual["rope_theta"] not in (None, 1e4)


@pytest.mark.parametrize(
    "changed", [{"factor": 4.0}, {"rope_theta": 30.0}, {"rope_type": "linear"}]
)
def test_contradictions_of_old_and_new_names_are_rejected(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    minhub_py.save_pretrained(random_model("llama-llama3"), tmp_path)
    settings = settings_in(tmp_path)
    settings["rope_scaling"] |= changed
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ValueError, match="rope_parameters and rope_scaling contradict|two values of rope_theta"
    ):
        minhub_py.from_pretrained(tmp_path)


@needs("transformers 4")
def test_transformers_4_computes_the_same_logits(tmp_path: Path) -> None:
    different = {**ONLY_5, **OTHER_LOGITS}
    names = [name for name in CASES if not name.startswith(NEWER) and name not in different]
    ids, expected = ids_of(1, 60), {}
    for name in names:
        model = random_model(name)
        minhub_py.save_pretrained(model, tmp_path / name)
        save_file({"ids": ids}, tmp_path / name / "ids.safetensors")
        expected[name] = model(ids).detach()
    path = os.pathsep.join([os.environ[VARIABLE], os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    result = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    report = json.loads(result.stdout)
    assert report["version"].startswith("4.")
    for name in names:
        error = report["errors"][name]
        if name in REJECTED:
            assert REJECTED[name] in error
            continue
        assert error is None, (name, error)
        assert_close(
            load_file(tmp_path / name / "logits.safetensors")["logits"],
            expected[name],
            ROUNDED.get(name.partition("-")[0], TOLERANCE),
        )
