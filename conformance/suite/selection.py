"""Which cases `--case` selects: by id, by the first fields of an id, or by values of fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def selects(pattern: str, case: Case) -> bool:
    """Whether ``pattern`` selects a case: ``ddp-w2-fp32-sgd``, ``ddp-w2``, ``backend=ddp,world_size=2``."""
    if "=" in pattern:
        return all(name in FIELDS and _value(case, name) == value for name, value in _pairs(pattern))
    return pattern in _beginnings(case)


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
