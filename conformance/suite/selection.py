"""Which cases `--case` selects: by id or its beginning, by a pattern of ids, or by values of fields."""

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
    """The cases that a pattern such as ``ddp-w2-fp32-sgd``, ``ddp-w2``, ``ddp-*-clip*`` or ``backend=ddp,world_size=2``
    selects.

    The beginning of an id ends with a whole field, so that ``ring`` leaves ``ring-gather`` out and an id selects its
    own case; if nothing begins so, it may end within a field, as in ``ddp-w2-fp32-clip``.
    """
    if "=" in pattern:
        pairs = [*_pairs(pattern)]
        return [case for case in cases if all(name in FIELDS and _value(case, name) == value for name, value in pairs)]
    if any(sign in pattern for sign in "*?["):
        return [case for case in cases if fnmatchcase(case.id, pattern)]
    whole = [case for case in cases if pattern in _beginnings(case)]
    return whole or [case for case in cases if pattern and case.id.startswith(pattern)]


def selects_nothing(pattern: str, cases: Sequence[Case]) -> str:
    """Why ``pattern`` selects none of these cases, and what may have been meant: one line."""
    if "=" not in pattern:
        known = dict.fromkeys(beginning for case in cases for beginning in _beginnings(case))
        return f"no case {pattern} is planned for these trainers{did_you_mean(pattern, known)}"
    for name, value in _pairs(pattern):
        if name not in FIELDS:
            return f"--case {pattern}: cases have no field {name!r}{did_you_mean(name, FIELDS) or _one_of(FIELDS)}"
        values = dict.fromkeys(_value(case, name) for case in cases)
        if value not in values:
            hint = did_you_mean(value, values) or _one_of(values)
            return f"--case {pattern}: no case of these trainers has {name}={value}{hint}"
    return f"--case {pattern}: these trainers have cases with each of these values, but none with all of them"


def _pairs(pattern: str) -> Iterable[tuple[str, str]]:
    for part in pattern.split(","):
        name, _, value = part.partition("=")
        yield name.strip(), value.strip()


def _value(case: Case, name: str) -> str:
    return str(getattr(case, name))


def _beginnings(case: Case) -> set[str]:
    """The id of a case, and its beginnings without the last fields."""
    return {"-".join(case.parts[:count]) for count in range(1, len(case.parts) + 1)}


def _one_of(names: Iterable[str]) -> str:
    return f"; it is one of {', '.join(names)}"
