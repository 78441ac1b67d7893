"""Names of quantization in Python, the shell and R. Does not import PyTorch."""

KINDS = ("int8", "nf4")  # of any model's weights
FILE_KINDS = ("auto", "none")  # of a GGUF file's weights: as they are stored, or in floating point
