"""Child processes that start fast: they are forked from a server that has already imported PyTorch."""

import multiprocessing

SERVER = multiprocessing.get_context("forkserver")
# Imports everything that children need: a child without privileges cannot read a clone in a private
# folder.
SERVER.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.fsdp",
        "minhub_py.cli.main",
        "minhub_py.models.gpt2",
        "minhub_py.models.gptneo",
        "minhub_py.models.lstm",
        "minhub_py.cli.training",
        "minhub_py.inference.generate",
        "pytest",
    ]
)
