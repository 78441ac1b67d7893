"""Measures for research: surprisal, embeddings, attention weights, logit lens."""
