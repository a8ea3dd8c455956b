"""Finds a factor by which every gradient, or every update, is wrong. The factor may depend on the layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from conformance.results.result_lines import PASSED, CaseRecord

from .text import listed, number

#: What a factor can depend on, the simplest first.
_DEPENDS: Mapping[str, Callable[[CaseRecord], int | None]] = {
    "": lambda case: 1,
    "world size": lambda case: case.world_size,
    "accumulation": lambda case: case.accumulation,
    "number of micro-batches on all ranks": lambda case: case.world_size * case.accumulation,
    "size of a micro-batch": lambda case: case.micro_batch_size,
}

#: If these are 1, no average can be wrong.
_AVERAGED = ("world size", "accumulation", "number of micro-batches on all ranks")

Table = dict[int | None, list[float]]


@dataclass(frozen=True)
class Factor:
    """The cases that a factor explains. ``text``: a sentence."""

    cases: tuple[CaseRecord, ...]
    is_constant: bool
    text: str


def factors(cases: Sequence[CaseRecord]) -> Iterator[Factor]:
    """The factors of one trainer's updates and gradients, each of them one cause."""
    for what, of in _KINDS.items():
        group = [case for case in cases if case.failed and case.mistake is None and of(case)]
        if group:
            yield from _of_kind(what, of, group, cases)


_KINDS: Mapping[str, Callable[[CaseRecord], tuple[float, ...]]] = {
    "update": lambda case: case.step_factors,
    "gradient": lambda case: case.gradient_factors,
}


def _of_kind(
    what: str, of: Callable[[CaseRecord], tuple[float, ...]], group: list[CaseRecord], cases: Sequence[CaseRecord]
) -> Iterator[Factor]:
    certain = [case for case in group if len(of(case)) == 1]
    alike = {(case.workload, case.precision) for case in group}
    # The same workload in the same precision shows it in any layout.
    right = [case for case in cases if case.verdict in PASSED and (case.workload, case.precision) in alike]
    for on, value in _DEPENDS.items():
        table: Table = defaultdict(list)
        for case in certain:
            table[value(case)] += of(case)
        one = {value(case) for case in right}
        if not table or one & {*table} or not all(_alike(own[0], other) for own in table.values() for other in own):
            continue
        if on in _AVERAGED and 1 in table and len(table) > 1:
            continue
        fitting = [case for case in group if _may_be(of(case), table.get(value(case)))]
        text = _text(what, on, table, one, fitting, cases)
        yield from _if_it_explains(fitting, not on and not one, certain, cases, text)
        return
    if not any(
        (case.workload, case.precision) == (other.workload, other.precision) for case in certain for other in right
    ):
        yield from _by_number(what, of, certain, cases)


def _by_number(
    what: str, of: Callable[[CaseRecord], tuple[float, ...]], certain: Sequence[CaseRecord], cases: Sequence[CaseRecord]
) -> Iterator[Factor]:
    """Two factors are two causes. More are one unknown cause."""
    by_number: dict[float, list[CaseRecord]] = defaultdict(list)
    for case in certain:
        by_number[of(case)[0]].append(case)
    if len(by_number) > 2:
        some = listed([f"{number(one, 3)}x" for one in sorted(by_number)[-3:]])
        text = f"Every {what} is wrong by a factor that differs from case to case, such as {some}."
        yield from _if_it_explains(certain, False, certain, cases, text)
        return
    for one, fitting in by_number.items():
        text = _text(what, "", {1: [one]}, set(), fitting, cases)
        yield from _if_it_explains(fitting, True, certain, cases, text)


def _if_it_explains(
    fitting: Sequence[CaseRecord],
    is_constant: bool,
    certain: Sequence[CaseRecord],
    cases: Sequence[CaseRecord],
    text: str,
) -> Iterator[Factor]:
    """Drops a factor that leaves more wrong numbers unexplained than it explains: a coincidence."""
    explained = {id(case) for case in (*fitting, *certain)}
    left = [case for case in cases if id(case) not in explained and _is_open(case)]
    if len(left) < len(fitting):
        yield Factor(tuple(fitting), is_constant, text)


def _is_open(case: CaseRecord) -> bool:
    """Whether nothing else explains the wrong numbers of this case."""
    if case.mistake is not None or case.first_difference is None or case.explained_by:
        return False
    return not any(finding.level == "MUST" for finding in case.findings) and all(guard.holds for guard in case.guards)


def _alike(one: float, two: float) -> bool:
    """Whether both approximate the same number."""
    return abs(one - two) <= abs(two) / 64


def _may_be(candidates: Sequence[float], found: Sequence[float] | None) -> bool:
    """Whether a case can have this factor: clipping can hide all factors between two candidates."""
    if not found:
        return False
    if any(_alike(one, found[0]) for one in candidates):
        return True
    return min(candidates) <= found[0] <= max(candidates)


def _text(
    what: str, on: str, table: Table, right: set[int | None], fitting: Sequence[CaseRecord], cases: Sequence[CaseRecord]
) -> str:
    subject = f"{_where(fitting, cases)}very {what}"
    if what == "gradient" and all(_unseen(case) for case in fitting):
        subject = f"The weights move as if {subject[0].lower()}{subject[1:]} were"
    else:
        subject += " is"
    numbers = sorted(table.items(), key=lambda entry: entry[0] or 0)
    first, *others = [(_times(found), value) for value, found in numbers]
    if not on:
        return f"{subject} {first[0]} the correct one{_whatever(fitting, cases)}."
    said = [f"{first[0]} the correct one at {on} {first[1]}", *(f"{times} at {value}" for times, value in others)]
    said += [f"correct at {value}" for value in sorted(right, key=lambda value: value or 0)]
    return f"{subject} {listed(said)}."


def _where(fitting: Sequence[CaseRecord], cases: Sequence[CaseRecord]) -> str:
    """The precisions, if others are correct in the same layouts."""
    wrong = {case.precision: None for case in fitting}
    layouts = {(case.workload, case.world_size, case.accumulation) for case in fitting}
    others = any(
        case.verdict in PASSED
        and case.precision not in wrong
        and (case.workload, case.world_size, case.accumulation) in layouts
        for case in cases
    )
    return f"In {listed([*wrong])} e" if others else "E"


def _whatever(fitting: Sequence[CaseRecord], cases: Sequence[CaseRecord]) -> str:
    """What varied without an effect. If only its other values are correct, it can have an effect."""
    wrong = {case.precision for case in fitting}
    right = [case for case in cases if case.verdict in PASSED and case.precision in wrong]
    said = []
    for name in ("accumulation", "world size"):
        values, of_right = ({_DEPENDS[name](case) for case in some} for some in (fitting, right))
        if len(values) > 1 and of_right <= values:
            said.append(name)
    return f", at any {listed(said)}" if said else ""


def _unseen(case: CaseRecord) -> bool:
    return all(value is None for step in case.steps for value in step.gradient_observed or ())


def _times(found: Sequence[float]) -> str:
    first = found[0]
    simple = Fraction(first).limit_denominator(16) if isfinite(first) else None
    is_simple = simple is not None and all(other == float(simple) for other in found)
    return f"{'' if is_simple else 'about '}{number(first, 3)}x"
