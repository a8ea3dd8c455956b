"""How many of the cases that it could have a trainer declares, and what it does not declare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from conformance.results import Results
from conformance.results.records import CaseRecord


def scopes(results: Results) -> list[str]:
    """A sentence for each trainer that does not declare everything."""
    groups = defaultdict[str, list[CaseRecord]](list)
    for case in results.cases:
        groups[case.trainer].append(case)
    return [_sentence(name, cases) for name, cases in groups.items() if any(_lacks(case) for case in cases)]


def _lacks(case: CaseRecord) -> bool:
    return 0 < case.declared < case.possible


def _sentence(name: str, cases: Sequence[CaseRecord]) -> str:
    counts = {
        case.backend: f"{case.declared} of the {case.possible} cases that a {case.backend} trainer can have"
        for case in cases
    }
    undeclared = "; ".join(_undeclared(cases))
    return f"{name} declares {' and '.join(counts.values())}" + (
        f"; not declared: {undeclared}." if undeclared else "."
    )


def _undeclared(cases: Sequence[CaseRecord]) -> Iterator[str]:
    values = defaultdict[str, dict[str, None]](dict)
    for case in cases:
        if case.undeclared is not None:
            what, _, value = case.undeclared.rpartition(" ")
            values[what][value] = None
    yield from (f"{what} {', '.join(found)}" for what, found in values.items())
