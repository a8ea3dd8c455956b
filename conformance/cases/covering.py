"""Covering arrays: few cases in which values meet."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from covertable import make

C = TypeVar("C", bound=Hashable)
#: What a case has in each dimension.
Values = Mapping[str, Hashable]


def covering(cases: Mapping[C, Values], strength: int, taken: Container[C], closely: Sequence[str] = ()) -> set[C]:
    """Cases that meet, together with those taken, all combinations of so many values that any case has.

    Args:
        cases: all that there are, in the same dimensions. No two of them have the same values.
        taken: cases that run anyway.
        closely: dimensions of which all values must meet, not only so many.

    Raises:
        ValueError: two cases have the same values.
    """
    if not cases:
        return set()
    case_of = {frozenset(values.items()): case for case, values in cases.items()}
    if len(case_of) < len(cases):
        raise ValueError("two cases have the same values")
    dimensions = list(next(iter(cases.values())))
    parts = {
        frozenset(some)
        for values in cases.values()
        for size in range(len(dimensions) + 1)
        for some in combinations(values.items(), size)
    }

    def can_be(row: Values) -> bool | None:
        """Whether a row is a case; None if it may become one."""
        known = frozenset(row.items())
        return known in parts and (known in case_of or None)

    rows = make(
        {name: list(dict.fromkeys(values[name] for values in cases.values())) for name in dimensions},
        strength=min(strength, len(dimensions)),
        presets=[values for case, values in cases.items() if case in taken],
        sub_models=[{"fields": list(closely), "strength": len(closely)}] if closely else [],
        constraints=[{"operator": "fn", "requires": (), "evaluate": can_be}],
    )
    return {case_of[frozenset(row.items())] for row in rows}
