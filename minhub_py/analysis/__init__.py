"""What researchers ask of a model: how predictable words are, and texts as numbers."""
