"""Loading of models in one pass: files, facts, config, model, weights, adapters.

files       where the files of a model and its adapters are; the settings are read, the weights are not
facts       what the files contain: the head, tied embeddings, multi-token prediction, quantized weights
"""
