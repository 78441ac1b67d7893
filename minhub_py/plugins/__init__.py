"""Plugins for other programs, which find them as entry points."""
