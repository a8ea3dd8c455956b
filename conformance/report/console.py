"""The terminal: nothing that comes from a trainer or a file reaches it as anything but text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .text import visible


class SafeConsole(Console):
    """Prints control characters of any text as escapes, whoever wrote it; its own colours and cursor moves stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
