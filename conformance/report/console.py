"""The terminal: nothing that comes from a trainer or a file reaches it as anything but text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .text import visible

#: By tone.
STYLES = {"idle": "dim", "good": "green", "near": "cyan", "doubt": "yellow", "setup": "magenta", "bad": "red"}


class SafeConsole(Console):
    """Prints control characters of any text as escapes, whoever wrote it; its own colours and cursor moves stay.

    `NO_COLOR` switches colours off; otherwise `CLICOLOR_FORCE` switches them on also where output is not a terminal.
    """

    def __init__(self, **more: Any) -> None:
        if os.environ.get("CLICOLOR_FORCE", "0") != "0" and not os.environ.get("NO_COLOR"):
            more.setdefault("color_system", "standard")
        super().__init__(**more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
