"""What every event has, and the types of fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from conformance.trace.words import number

Number: TypeAlias = float | Literal["nan", "inf", "-inf"]
"""A string where the number is not finite, which JSON cannot write."""
Vector: TypeAlias = Sequence[Number | None]
Site: TypeAlias = tuple[str, int, str]
"""File, line and function, in JSON a list."""
Numbers: TypeAlias = Sequence[int]


class Event:
    """What every event has: its fields are the annotations, which hold their descriptions too. `read` makes events.

    A field with a value in the class may be left out.
    """

    #: Its kind, as in the trace.
    event: ClassVar[str] = ""
    #: When it is noted; "" for a base class.
    noted: ClassVar[str] = ""
    #: Its label; the fields in braces are filled in.
    title: ClassVar[str] = ""

    rank: Annotated[int, "its rank"]
    seq: Annotated[int, "its number among the events of its rank: 0, 1, 2, ..."]
    time: Annotated[float, "seconds of `CLOCK_MONOTONIC`, which all processes of a machine share"]
    window: Annotated[
        int | None,
        "the accumulation window that it belongs to; null before training begins. A window begins with its first "
        "training forward: one that gradients flow through to a step, or whose place in the plan nothing else takes. "
        "Its rows show which window that is; where they do not, a window is what a step ends. If no forward of the "
        "model was seen, a window begins with the first sign of its gradients. What a rank does after the last step "
        "for which it has samples is in the first window that only others have samples for",
    ]
    micro_batch: Annotated[
        int | None,
        "that of the last training forward in its window, or of the last backward if no forward was seen; null where "
        "only other ranks have samples",
    ]
    where: Annotated[
        Site | None,
        "the innermost call outside torch, Horovod, apex and this package. The file is relative to the longest folder "
        "that contains it, of those in `sys.path` and the working directory",
    ]
    called_from: Annotated[
        Site | None,
        "the innermost call in the trainer's own file, if that is not `where` because a framework made the call",
    ] = None

    def __init_subclass__(cls, noted: str = "", label: str = "") -> None:
        if noted:
            cls.event = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.noted, cls.title = noted, label or cls.event.replace("_", " ")
            KINDS[cls.event] = cls

    @property
    def label(self) -> str:
        """A short phrase: ``clip norm 1 (saw 3.2)``."""
        return self.title.format_map(_Shown(self))

    @property
    def line(self) -> str:
        """``train.py:41``; for a line in a framework, also the line where the trainer called it."""
        if self.where is None:
            return "from no line of the trainer's"
        line = "{}:{}".format(*self.where)
        return line if self.called_from is None else f"{line}, called from {{}}:{{}}".format(*self.called_from)

    def __str__(self) -> str:
        """The label with the line: ``unscale ÷ 1024 (train.py:43)``."""
        return f"{self.label} ({self.line})"


class _Shown:
    """The fields of an event, by name, as a label shows them."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def __getitem__(self, name: str) -> object:
        value = getattr(self._event, name)
        return number(value) if isinstance(value, float) else value


KINDS: dict[str, type[Event]] = {}
"""The classes of events by their kinds."""
