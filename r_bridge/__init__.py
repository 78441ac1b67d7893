"""The same models for R. Here so far: what R there is on this machine, and which rpy2 fits it."""

from r_bridge.probe import find_r

__all__ = ["find_r"]
