"""Low-rank adapters in the folder formats of PEFT and mlx-lm.

config       adapter_config.json
targets      the modules of a model that an adapter changes, by their Hub names
files        read and write adapter folders, strictly
attach       a model with an adapter, which shares the weights of its base
merge        a checkpoint with a merged adapter, tensor by tensor
"""
