"""The version of the package, also the R package's."""

__version__ = "0.2.0"
