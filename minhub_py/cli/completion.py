"""Shell completion of MODEL: local model names and folders. Opens no connection."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from minhub_py.checkpoints import local
from minhub_py.models.registry import ARCHITECTURES


class ModelArgument(click.ParamType):  # type: ignore[type-arg]
    """A model's identifier. local: if False, completes repositories only, no built-in models
    or folders.
    """

    name = "model"

    def __init__(self, *, local: bool = True) -> None:
        self.local = local

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Model names that begin with `incomplete`. Without a match, the shell completes folders."""
        names = sorted(name for name in set(self._names()) if name.startswith(incomplete))
        if self.local and not names:
            return [CompletionItem(incomplete, type="dir")]
        return [CompletionItem(name) for name in names]

    def _names(self) -> Iterator[str]:
        with suppress(OSError):  # an unreadable folder
            yield from (model.repository for model in local.cached_models())
        for family in ARCHITECTURES.values():
            yield from family.published
        if self.local:
            yield from (
                f"minhub/{config.parent.name}" for config in local.BUILTIN.glob("*/config.json")
            )
            with suppress(OSError):
                yield from (config.parent.name for config in Path().glob("*/config.json"))
