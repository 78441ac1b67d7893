"""The version of the package, also the R package's."""

__version__ = "0.1.0"
