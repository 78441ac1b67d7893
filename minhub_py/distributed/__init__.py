"""Several processes that share one model: their environment, their process group, and tensor
parallelism.
"""
