"""The traffic of an optimizer step: a row for each path, or for each of its ranks if they differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from conformance.adapter.backends import exchange_of
from conformance.oracle.traffic import FORMULAS
from conformance.results import Results
from conformance.results.result_lines import CaseRecord, RankTraffic

from .grouping import Path, trainers
from .text import natural

#: The amounts of `RankTraffic` that a formula predicts.
AMOUNTS = ("sent", "received", "reduced")


@dataclass(frozen=True)
class Row:
    """A path, or some of its ranks with the same traffic."""

    case: CaseRecord
    ranks: str
    bytes: RankTraffic

    def amount(self, name: str) -> tuple[float, float | None]:
        """One of `AMOUNTS` as recorded, and by the formula; None without one."""
        return getattr(self.bytes, name), getattr(self.bytes, f"expected_{name}")

    @property
    def is_off(self) -> bool:
        return any(formula not in (None, recorded) for recorded, formula in map(self.amount, AMOUNTS))


@dataclass(frozen=True)
class Sent:
    """The traffic of a trainer on a backend. ``formula``: the expected traffic, None if unknown."""

    trainer: str
    formula: str | None
    rows: tuple[Row, ...]

    @property
    def off(self) -> int:
        """The number of paths that deviate from the formula."""
        return len({row.case.path for row in self.rows if row.is_off})

    def has(self, *names: str) -> bool:
        """Whether any of these amounts is recorded or expected."""
        return any(any(row.amount(name)) for row in self.rows for name in names)

    @property
    def has_state(self) -> bool:
        return any(row.bytes.state is not None for row in self.rows)


def traffic(results: Results) -> list[Sent]:
    """The traffic of each trainer with several ranks, in the order of the matrix."""
    found = []
    for trainer in trainers(results):
        shown = [case for path in trainer.paths if (case := _shown(path)) is not None]
        for backend, cases in groupby(shown, key=lambda case: case.backend):
            rows = tuple(row for case in cases for row in _rows(case))
            found.append(Sent(trainer.name, FORMULAS.get(exchange_of(backend)), rows))
    return found


def _shown(path: Path) -> CaseRecord | None:
    """The most informative case of a path: one that deviates from the formula, else one in fp32."""
    cases = [case for case in path.cases if case.traffic is not None]
    return min(cases, key=_interest, default=None)


def _interest(case: CaseRecord) -> tuple[bool, bool, float, list[tuple[int, int, str]]]:
    rows = list(_rows(case))
    is_off = any(row.is_off for row in rows)
    return not is_off, case.precision != "fp32", sum(row.bytes.other for row in rows), natural(case.id)


def _rows(case: CaseRecord) -> Iterator[Row]:
    if case.traffic is None:
        return
    alike: dict[RankTraffic, list[int]] = {}
    for rank, bytes in enumerate(case.traffic.ranks):
        alike.setdefault(bytes, []).append(rank)
    for bytes, ranks in alike.items():
        names = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        yield Row(case, "every rank" if len(alike) == 1 else names, bytes)
