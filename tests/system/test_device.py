"""Choice of device and dtype on any machine, with or without a GPU."""

import pytest
import torch

from minhub_py import devices, from_pretrained
from minhub_py.system.device import DeviceProbe, choose_device, choose_dtype
from r_bridge.probe import R, find_r, rpy2_range

CPU = choose_device("cpu")
OLD_GPU = DeviceProbe("cuda:0", True, "before Ampere", dtypes=("float32", "float16"))


def test_devices_reports_all_device_types() -> None:
    report = devices()
    assert {probe.name.partition(":")[0] for probe in report.probes} == {
        "cuda",
        "xpu",
        "mps",
        "cpu",
    }
    assert all(probe.detail for probe in report.probes)
    cuda_works = any(probe.works for probe in report.probes if probe.name.startswith("cuda"))
    assert cuda_works == torch.cuda.is_available()
    if not cuda_works and not torch.xpu.is_available() and not torch.backends.mps.is_available():
        assert report.device == "cpu"
    assert repr(report) == str(report)  # as a Python prompt and a notebook print it
    assert str(report).splitlines()[0].split() == ["DEVICE", "WORKS", "DETAIL"]
    assert str(report).endswith(f'"auto" selects {report.device}: {report.reason}')
    assert choose_device("auto").name == report.device


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            "cuda:99",
            (
                r"device \"cuda:99\" does not work here: .*use device='auto' to select a working"
                r" device"
            ),
        ),
        ("toaster", "is unknown; give"),
        ("meta", "is not one of"),
        (None, "is unknown; give"),
    ],
)
def test_unavailable_devices_raise_value_errors(device: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_device(device)


def test_auto_keeps_the_dtype_of_the_file() -> None:
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    assert choose_dtype("auto", CPU, [f32]) == f32
    assert choose_dtype("auto", CPU, [bf16, bf16]) == bf16
    assert choose_dtype("auto", CPU, [f16, f32, f16]) == f32  # the widest dtype
    assert choose_dtype("auto", CPU, [f16, bf16]) == f32
    assert choose_dtype("float16", CPU, [f32]) == f16
    assert choose_dtype(torch.bfloat16, CPU, [f32]) == bf16
    assert choose_dtype("auto", OLD_GPU, [bf16]) == f32  # where bfloat16 is emulated
    assert choose_dtype("auto", OLD_GPU, [f16]) == f16
    with pytest.raises(ValueError, match="dtype 'int4' is unknown; give auto, float32"):
        choose_dtype("int4", CPU, [f32])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["gpt2", "gptneo", "lstm"])
def test_models_run_in_each_dtype(family: str, dtype: str) -> None:
    model = from_pretrained(f"minhub/shakespeare-{family}", dtype=dtype)
    exact = from_pretrained(f"minhub/shakespeare-{family}")
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        logits, expected = model(ids), exact(ids)
    assert logits.dtype == getattr(torch, dtype)
    # bfloat16 has 8 bits of precision: the probabilities are close, not equal.
    assert (logits.float().softmax(-1) - expected.softmax(-1)).abs().max() < {"float32": 1e-9}.get(
        dtype, 0.06
    )


def test_r_and_compatible_versions_of_rpy2() -> None:
    r = find_r()
    assert r is not None  # part of the development environment
    assert r.version >= (3, 6, 0)
    assert rpy2_range((4, 2, 2)) == ">=3.6.1,<3.6.6"
    assert rpy2_range((4, 5, 0)) == ">=3.6.1"
    for version, rpy2, fits in [
        ((4, 2, 2), "3.6.5", True),
        ((4, 2, 2), "3.6.6", False),
        ((4, 2, 2), None, False),
        ((4, 5, 1), "3.6.7", True),
        ((4, 5, 1), "3.5.1", False),
    ]:
        assert R("R", version, rpy2_range(version), rpy2).rpy2_fits is fits
