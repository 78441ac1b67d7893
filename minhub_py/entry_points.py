"""The functions of each architecture, such as `gpt2()`, `gpt2_from_config()` and
`gpt2_from_pretrained()`.

Editors and type checkers read entry_points.pyi, which `make stub` generates from the registry.
"""

from minhub_py.loading.pretrained import entry_points
from minhub_py.models.registry import ENTRIES

for _entry in ENTRIES.values():
    for _name, _function in entry_points(_entry).items():
        _function.__module__ = __name__
        globals()[_name] = _function
