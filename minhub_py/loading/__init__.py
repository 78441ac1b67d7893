"""From a repository to a model: files, config, weights and adapters, and their inspection."""
