"""Selects the cases of `--case`: by an id or its start, by a pattern of ids, or by values of fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from conformance.adapter.declaration import did_you_mean
from conformance.cases.case import Case

FIELDS = (
    "backend",
    "layout",
    "world_size",
    "accumulation",
    "precision",
    "workload",
    "device",
    "resumed_at",
    "resumed",
    "own_scale",
)


def selected(pattern: str, cases: Sequence[Case]) -> list[Case]:
    """The cases that a pattern selects: ``ddp-w2-fp32-sgd``, ``ddp-w2``, ``ddp-*-clip*`` or
    ``backend=ddp,world_size=2``.

    The start of an id must end with a whole field, so ``ring`` excludes ``ring-gather`` and an id selects only its own
    case; if nothing matches, it may end within a field, as in ``ddp-w2-fp32-clip``.
    """
    if "=" in pattern:
        pairs = [*_pairs(pattern)]
        return [case for case in cases if all(name in FIELDS and _value(case, name) == value for name, value in pairs)]
    if any(sign in pattern for sign in "*?["):
        return [case for case in cases if fnmatchcase(case.id, pattern)]
    whole = [case for case in cases if pattern in _beginnings(case)]
    return whole or [case for case in cases if pattern and case.id.startswith(pattern)]


def selects_nothing(pattern: str, cases: Sequence[Case]) -> str:
    """Why ``pattern`` selects none of these cases, and what may be intended: one line."""
    if "=" not in pattern:
        known = dict.fromkeys(beginning for case in cases for beginning in _beginnings(case))
        ends = any(case.id.endswith(pattern) for case in cases)
        inside = ends or any(pattern in case.id for case in cases)
        hint = f"; did you mean '*{pattern}{'' if ends else '*'}'?" if inside else did_you_mean(pattern, known)
        return f"no case matches {pattern} for these trainers{hint}"
    for name, value in _pairs(pattern):
        if name not in FIELDS:
            return f"--case {pattern}: unknown field {name!r}{did_you_mean(name, FIELDS) or _one_of(FIELDS)}"
        values = dict.fromkeys(_value(case, name) for case in cases)
        if value not in values:
            hint = did_you_mean(value, values) or _one_of(values)
            return f"--case {pattern}: no case of these trainers has {name}={value}{hint}"
    return f"--case {pattern}: each of these values has cases, but no case of these trainers has all of them"


def _pairs(pattern: str) -> Iterable[tuple[str, str]]:
    for part in pattern.split(","):
        name, _, value = part.partition("=")
        yield name.strip(), value.strip()


def _value(case: Case, name: str) -> str:
    return str(getattr(case, name))


def _beginnings(case: Case) -> set[str]:
    """The id of a case, and its starts without the last fields."""
    return {"-".join(case.parts[:count]) for count in range(1, len(case.parts) + 1)}


def _one_of(names: Iterable[str]) -> str:
    return f"; use one of {', '.join(names)}"
