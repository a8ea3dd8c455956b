"""In words, in which elements two vectors differ."""

from __future__ import annotations

from conformance.laws.plan import Plan
from conformance.trace.events import Vector
from conformance.trace.words import enumerated, vector


def where_apart(plan: Plan, one: Vector, other: Vector) -> tuple[list[str], str]:
    """The numbers in which two vectors differ, and of which elements these are, if not of all."""
    at = [place for place, (first, second) in enumerate(zip(one, other, strict=False)) if first != second]
    if len(at) in (0, len(one)) or len(one) != len(other) or len(one) != plan.model.size:
        return [vector(one), vector(other)], ""
    names = [plan.model.elements[place] for place in at]
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more elements"]
    return [vector([values[place] for place in at]) for values in (one, other)], f" of {enumerated(shown)}"
