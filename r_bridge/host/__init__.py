"""R inside a Python process, by rpy2's bindings to libR: `RSession` and `minhub r`."""
