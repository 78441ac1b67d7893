"""Published values of real checkpoints. These access the real Hub and are run manually: pytest -m
hub.
"""

import pytest
import torch

from minhub_py import (
    from_pretrained,
    generate,
    gpt2_from_pretrained,
    gptneo_from_pretrained,
    score,
    tokenizer_from_pretrained,
)

pytestmark = [pytest.mark.hub, pytest.mark.timeout(3600)]


def test_gpt2() -> None:
    commit = "e7da7f221d5bf496a48136c0cd264e630fe9fcc8"
    model = gpt2_from_pretrained("gpt2", commit)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808
    ids = tokenizer_from_pretrained("gpt2", commit).encode("Hello world ").ids
    expected = torch.tensor([-53.2292, -55.5639, -58.5087, -57.6649, -59.0031])
    with torch.no_grad():
        assert torch.allclose(model(torch.tensor([ids]))[0, -1, :5], expected, atol=1e-2)


def test_gptneo() -> None:
    model = gptneo_from_pretrained("EleutherAI/gpt-neo-1.3B")
    expected = [
        12,
        3380,
        4866,
        286,
        262,
        1492,
        11,
        543,
        318,
        257,
        4947,
        286,
        27126,
        416,
        262,
        2739,
        1772,
        11,
    ]
    assert generate(model, [[464, 3290]], 18, temperature=0) == [expected]


@pytest.mark.parametrize(
    ("name", "expected"), [("google-t5/t5-small", -19.0845), ("google/t5-v1_1-small", -59.0293)]
)
def test_t5(name: str, expected: float) -> None:
    """The sum of the log-probabilities of "Hi I am" as the answer to "Hello there"."""
    [logprobs] = score(from_pretrained(name), [[8774, 132, 1]], targets=[[2018, 27, 183, 1]])
    assert logprobs.sum().item() == pytest.approx(expected, abs=1e-2)


def test_t5_writes() -> None:
    model, tokenizer = (
        from_pretrained("google-t5/t5-small"),
        tokenizer_from_pretrained("google-t5/t5-small"),
    )
    [ids] = generate(model, [tokenizer.encode("summarize: Hello there").ids], 20, temperature=0)
    assert tokenizer.decode(ids) == "Hello there!"
