"""The checkpoint of a folder or a GGUF file."""

from pathlib import Path

from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.quantized import QuantizedCheckpoint, forms_of, quantization_of
from minhub_py.checkpoints.storage import Checkpoint


def checkpoint_at(path: Path) -> Checkpoint:
    """The checkpoint of a folder or a GGUF file. ValueError: the file is corrupt or not supported,
    or a setting of quantization_config is not supported.
    """
    if path.is_file():
        return GGUFCheckpoint(path)
    checkpoint = Checkpoint(path)
    settings = checkpoint.config or {}
    forms = forms_of(quantization_of(settings))
    return QuantizedCheckpoint(path, settings, forms) if forms else checkpoint
