"""Loading of models in one pass: files, facts, config, model, weights, adapters.

files       identifier -> the checkpoint with its config, and the folders of adapters
facts       head, tied embeddings, multi-token prediction and quantized weights of the files; the
model without weights
"""
