"""Hides an installed matplotlib: a plot takes longer than a short training run."""

raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
