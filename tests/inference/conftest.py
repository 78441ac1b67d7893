"""Fixtures of the tests of inference."""

from decoders import kernel, plain  # noqa: F401  # fixtures
