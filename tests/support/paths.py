"""Folders and files that tests of several packages use."""

from pathlib import Path

SUPPORT = Path(__file__).parent
PROGRAMS = SUPPORT / "programs"
TEXT = SUPPORT / "text.txt"  # English prose: the source of tokenizers and the text of tests
ROOT = SUPPORT.parents[1]
R_PACKAGE = ROOT / "r_bridge" / "minhubpy"
