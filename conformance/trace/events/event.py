"""The base class of events, and the types of their fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from conformance.trace.short_texts import number

Number: TypeAlias = float | Literal["nan", "inf", "-inf"]
"""A string if the number is not finite, because JSON has no such numbers."""
Vector: TypeAlias = Sequence[Number | None]
Site: TypeAlias = tuple[str, int, str]
"""File, line and function, in JSON a list."""
Numbers: TypeAlias = Sequence[int]


class Event:
    """The base class of events. The annotations are the fields, with their descriptions. `read` makes events.

    A field with a default in the class may be left out.
    """

    #: The kind, as in the trace.
    event: ClassVar[str] = ""
    #: When it is noted; "" for a base class.
    noted: ClassVar[str] = ""
    #: The template of the label, with field names in braces.
    title: ClassVar[str] = ""

    rank: Annotated[int, "its rank"]
    seq: Annotated[int, "its number among the events of its rank: 0, 1, 2, ..."]
    time: Annotated[float, "seconds of `CLOCK_MONOTONIC`, which all processes of a machine share"]
    window: Annotated[
        int | None,
        "its accumulation window; null before training starts. A window starts with its first training forward: one "
        "through which gradients flow to a step, or the only candidate for its place in the plan. The rows of the "
        "forward identify the window; otherwise each step ends one. Without a visible forward, a window starts with "
        "the first sign of its gradients. Events after a rank's last step with samples belong to the first window in "
        "which only other ranks have samples",
    ]
    micro_batch: Annotated[
        int | None,
        "that of the last training forward in its window, or of the last backward if no forward was seen; null in "
        "windows where only other ranks have samples",
    ]
    where: Annotated[
        Site | None,
        "the innermost call outside torch, Horovod, apex and this package. The file is relative to the longest of the "
        "folders in `sys.path` and the working directory that contain it",
    ]
    called_from: Annotated[
        Site | None,
        "the innermost call in the trainer's own file, if `where` is in a framework",
    ] = None

    def __init_subclass__(cls, noted: str = "", label: str = "") -> None:
        if noted:
            cls.event = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.noted, cls.title = noted, label or cls.event.replace("_", " ")
            KINDS[cls.event] = cls

    @property
    def label(self) -> str:
        """A short phrase: ``clip norm 1 (of norm 3.2)``."""
        return self.title.format_map(_Shown(self))

    @property
    def line(self) -> str:
        """``train.py:41``; for a line in a framework, also the trainer's line that called it."""
        if self.where is None:
            return "an unknown line"
        line = "{}:{}".format(*self.where)
        return line if self.called_from is None else f"{line}, called from {{}}:{{}}".format(*self.called_from)

    def __str__(self) -> str:
        """The label with the line: ``unscale ÷ 1024 (train.py:43)``."""
        return f"{self.label} ({self.line})"


class _Shown:
    """The fields of an event by name, formatted for its label."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def __getitem__(self, name: str) -> object:
        value = getattr(self._event, name)
        return number(value) if isinstance(value, float) else value


KINDS: dict[str, type[Event]] = {}
"""The classes of events by kind."""
