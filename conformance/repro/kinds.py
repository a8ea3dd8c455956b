"""What a script can show of a case that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from conformance.results.records import Quantity

#: What a rank of a script prints that hangs.
TIMEOUT = "Timeout (0:00:20)!"


class CannotShow(Exception):
    """Why no script can show a failure, and what to do instead: one line."""


@dataclass(frozen=True)
class Numbers:
    """Wrong values after ``windows`` windows.

    ``step``: the last one that they are of. ``expected``: each with how large its error may be. ``seen``: the first
    that is wrong, as (rank, index, value), or another such if steps may be those of other windows; nothing if the
    values of ranks differ, each of which may be right. ``others``: what is right as well, by how the trainer decides
    what is open.
    """

    windows: int
    step: int
    quantity: Quantity
    expected: tuple[tuple[float, float], ...]
    seen: tuple[tuple[int, int, float], ...]
    others: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()


@dataclass(frozen=True)
class Ending:
    """Training that raises or hangs. ``errors``: the first line of what each rank raised, if any did."""

    windows: int
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calls:
    """What a trainer calls, where its numbers are right, or what it goes on with where it is resumed.

    ``rule``: what it must do. ``watch``: the name in `parts.calls` of what notes it, if anything is; ``compares``: of
    what in `parts.ending` tells whether it is wrong; ``launch``: of what in `parts.ranks` starts the ranks, if not as
    ever.
    """

    windows: int
    rule: str
    watch: str
    compares: str = "compare_calls"
    launch: str | None = None


@dataclass(frozen=True)
class Reading:
    """Samples in an order of the trainer's own, and ``weights``, which are not those of training on them."""

    windows: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Counts:
    """Buffers of the model. ``right``: what they may be on rank 0, each with how much may be rounding."""

    windows: int
    right: tuple[tuple[float, float, float], ...]


#: What a script can show.
Shows: TypeAlias = Numbers | Ending | Calls | Reading | Counts
