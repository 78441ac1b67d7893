"""Adapters that R torch trains: as_torch_module(model, lora = 4) and save_adapter(), with LibTorch
through Python.
"""

from pathlib import Path

import pytest
import torch
from bridge_calls import as_buffer, create_model, run

from minhub_py import from_pretrained, gptneox, llama, save_pretrained
from minhub_py.export.torchscript import save_torchscript
from minhub_py.loading.adapters.attach import attach, new_adapter
from minhub_py.training.adapter_run import adapter_config
from r_bridge.arguments import scalar
from r_bridge.service import Service

IDS = torch.tensor([[1, 2, 3, 4, 5]])


def test_trained_factors_become_an_adapter_in_pefts_format(tmp_path: Path) -> None:
    service = Service()
    base = create_model(service)
    kind, about = run(service, "new_adapter", model=base, lora={"r": 4.0}, seed=1)
    assert kind == "done", about
    adapted = scalar(about["number"], int)
    assert (
        run(service, "save_torchscript", model=adapted, path=str(tmp_path / "model.pt"))[0]
        == "done"
    )
    module = torch.jit.load(tmp_path / "model.pt")
    trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    assert list(trained) == run(service, "adapter_weights", model=adapted)[1]
    torch.testing.assert_close(module(IDS), service.session.objects[base].module(IDS))

    optimizer = torch.optim.Adam(trained.values(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(IDS)[0, :-1], IDS[0, 1:]).backward()
        optimizer.step()
    state = scalar(run(service, "new_state_dict")[1], int)
    for name, weight in trained.items():
        assert (
            run(service, "add_weight", state=state, name=name, value=as_buffer(weight.detach()))[0]
            == "done"
        )
    folder = tmp_path / "adapter"
    kind, message = run(service, "save_adapter", model=adapted, folder=str(folder), weights=state)
    assert kind == "done", message
    save_pretrained(service.session.objects[base].module, tmp_path / "base")
    loaded = from_pretrained(tmp_path / "base", adapter=folder)
    torch.testing.assert_close(loaded(IDS), module(IDS))
    assert not torch.allclose(loaded(IDS), service.session.objects[base].module(IDS), atol=1e-2)


def test_an_activated_adapter_is_not_trained_in_r_torch() -> None:
    service = Service()
    lora = {"r": 4.0, "invocation": "Code:"}
    kind, message = run(service, "new_adapter", model=create_model(service), lora=lora, seed=1)
    assert kind == "failed"
    assert (
        "as_torch_module() does not support invocation: train the adapter with minhub_train()"
        in str(message)
    )


# separate q, k and v; rows in another order than the Hub's
@pytest.mark.parametrize("family", [llama, gptneox])
def test_torchscript_adds_an_adapter(family: type, tmp_path: Path) -> None:
    sizes = {"vocab_size": 10, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2}
    base = family(**sizes, num_attention_heads=4).eval()
    model = attach(base, new_adapter(base, adapter_config({"r": 3, "dropout": 0.1}), seed=0))
    for name, weight in model.named_parameters():
        if ".factors." in name:
            torch.nn.init.normal_(weight, std=0.3)
    save_torchscript(model, tmp_path / "model.pt")
    module = torch.jit.load(tmp_path / "model.pt")
    torch.testing.assert_close(module(IDS), model(IDS))
    assert not torch.allclose(model(IDS), base(IDS), atol=1e-2)
    assert not torch.equal(module.train()(IDS), module(IDS))  # dropout
    assert all(weight.requires_grad for weight in base.parameters())


def test_dora_is_rejected(tmp_path: Path) -> None:
    base = llama(
        vocab_size=10,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = attach(base, new_adapter(base, adapter_config({"r": 2, "dora": True}), seed=0))
    with pytest.raises(ValueError, match="a DoRA adapter cannot be written as TorchScript"):
        save_torchscript(model, tmp_path / "model.pt")
