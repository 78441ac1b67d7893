"""Random weights for parity tests."""

import torch
from torch import nn


def draw(model: nn.Module) -> None:
    """Large random weights that preserve the size of activations."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(
                "A_log"
            ):  # from heads with a state of hundreds of positions to heads that forget immediately
                parameter.copy_(3 * noise - 3)
            elif parameter.dim() == 1:  # a norm's weights are near 1, or near 0 if the norm adds 1
                # 0 or 1, except for small numbers from the global generator
                parameter.round_().add_(0.4 * noise)
            else:
                is_embedding = any(
                    part in name for part in ("embed_", "wte", "wpe", "shared", "relative")
                )
                # a large shared part would hide the other experts
                is_embedding = is_embedding and "shared_experts" not in name
                # Δ, b and c of Mamba 1 multiply each other: float16 ends at 65504
                gain = 0.6 if "x_proj" in name else 1.7
                parameter.copy_(
                    noise * (2.0 if is_embedding else gain * parameter.shape[1] ** -0.5)
                )
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.3 * torch.randn(buffer.shape, generator=generator))
            # of the same size as the sigmoids, so that it changes the choice
            elif name.endswith(("expert_bias", "e_score_correction_bias")):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
