"""R embedded in a Python process through rpy2's bindings to libR: `RSession` and `minhub r`."""
