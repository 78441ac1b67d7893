"""What all tests share."""

import torch
from hub_server import hub  # noqa: F401  # a fixture

# The models are tiny, and a second thread that waits for a busy core costs more than it brings.
torch.set_num_threads(1)
