"""Applies all laws to a run, and merges violations on one line into one finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from traceback import format_exc
from typing import Any

from conformance.laws.law import OK, Broken, Law, Subject, laws
from conformance.laws.sharing import first_parted
from conformance.laws.subjects import GlobalWindow, Rank, Run, Window, no_cyclic_collection


@dataclass(frozen=True)
class Violation:
    """A subject that broke a law. window: None if the subject is a rank or the run. rank: None if the subject is a
    window of all ranks, or the run."""

    broken: Broken
    window: int | None
    rank: int | None

    @property
    def shown_in(self) -> int | None:
        """The window in which to show it; None before training."""
        return self.broken.event.window if self.window is None else self.window


@dataclass(frozen=True)
class Finding:
    """One law broken by one line, once or more often.

    count: the number of violations. ranks: the ranks that broke it. window: the first one, None before training.
    """

    law: Law
    broken: Broken
    count: int
    ranks: tuple[int, ...]
    window: int | None


@dataclass(frozen=True)
class Verified:
    """The result of one law. kept: how many subjects kept it. failure: the traceback if the law itself raised; then it
    has no result."""

    law: Law
    kept: int
    violations: tuple[Violation, ...]
    failure: str | None = None

    @property
    def checked(self) -> int:
        """The number of subjects that the law applied to (0: not exercised)."""
        return self.kept + len(self.violations)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        by_line: dict[object, list[Violation]] = {}
        for violation in self.violations:
            event = violation.broken.event
            by_line.setdefault(event.event if event.where is None else tuple(event.where), []).append(violation)
        return tuple(_merged(self.law, same) for same in by_line.values())


@no_cyclic_collection()
def check(run: Run) -> tuple[Verified, ...]:
    """Checks every law on ``run``, in the order of their ids. Leaves out violations that a law in ``unless`` explains
    better."""
    judgements = {law.id: _Judgement(law) for law in laws()}
    own = {
        scope: [one for one in judgements.values() if one.law.scope is scope and _is_needed(one.law, run)]
        for scope in (Window, GlobalWindow, Rank, Run)
    }
    for scope, few in _in_time(run):
        for one in own[scope]:
            one.judge(few)
    everything = {id: one.verified() for id, one in judgements.items()}
    found = [_reported(one, [everything[id] for id in one.law.unless]) for one in everything.values()]
    return tuple(_without_consequences(found, first_parted(run)))


def _without_consequences(found: Sequence[Verified], parted: float) -> Iterator[Verified]:
    """The results without laws that only break after ranks ``parted``, if others break before: from then on, each rank
    trains another model, and its events explain nothing."""

    def is_early(one: Violation) -> bool:
        return (one.shown_in or 0) <= parted

    is_explained = any(one.law.level == "MUST" and any(map(is_early, one.violations)) for one in found)
    for one in found:
        is_late = is_explained and one.law.level == "MUST" and not any(map(is_early, one.violations))
        yield replace(one, violations=()) if is_late else one


def check_all(runs: Sequence[Run]) -> tuple[Verified, ...]:
    """Checks every law on each run of a case: one run, or one for each life of its ranks."""
    return tuple(
        Verified(
            first.law,
            sum(one.kept for one in (first, *others)),
            tuple(chain.from_iterable(one.violations for one in (first, *others))),
            next((one.failure for one in (first, *others) if one.failure), None),
        )
        for first, *others in zip(*map(check, runs), strict=True)
    )


def without_harmless(verified: Iterable[Verified]) -> tuple[Verified, ...]:
    """The results for a run with correct numbers: without violations that correct numbers clear."""
    return tuple(replace(one, violations=()) if one.law.cleared_by_numbers else one for one in verified)


def violations(*runs: Run) -> tuple[tuple[Law, Broken], ...]:
    """Every violation with its law: MUSTs first, then by id."""
    found = [(one.law, violation.broken) for one in check_all(runs) for violation in one.violations]
    return tuple(sorted(found, key=lambda pair: pair[0].level))


def findings(verified: Iterable[Verified]) -> tuple[Finding, ...]:
    """All findings: MUSTs first, then in the order in which they happened."""
    found = [finding for law in verified for finding in law.findings]
    return tuple(sorted(found, key=lambda finding: (finding.law.level, finding.window or 0, finding.broken.event.seq)))


_ANY = "any"


def _reported(verified: Verified, better: Sequence[Verified]) -> Verified:
    """Drops each violation whose subject is, contains or is part of a subject that broke a better law."""
    explained = {
        key
        for other in better
        for violation in other.violations
        for key in product((violation.window, _ANY), (violation.rank, _ANY))
    }
    left = [
        violation
        for violation in verified.violations
        if explained.isdisjoint(
            product(
                (_ANY,) if violation.window is None else (violation.window, None),
                (_ANY,) if violation.rank is None else (violation.rank, None),
            )
        )
    ]
    return replace(verified, violations=tuple(left))


#: Windows of a rank. A window of two micro-batches takes about 30 KB.
_AT_A_TIME = 8


def _in_time(run: Run) -> Iterator[tuple[type[Subject], Sequence[Subject]]]:
    """All subjects, a few windows of all ranks at a time: their events stay in the processor's cache until all laws
    have judged them."""
    for begin in range(0, max((len(rank.windows) for rank in run.ranks), default=0), _AT_A_TIME):
        few = slice(begin, begin + _AT_A_TIME)
        yield Window, [window for rank in run.ranks for window in rank.windows[few]]
        joined = [(window, run.together.get(window.number)) for window in run.ranks[0].windows[few]]
        yield GlobalWindow, [here for window, here in joined if here is not None and here.windows[0] is window]
    yield Rank, run.ranks
    yield Run, (run,)


class _Judgement:
    """What one law has found so far."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._judges, self._needs = law.judges, law.needs
        self._kept = 0
        self._violations: list[Violation] = []
        self._failure: str | None = None

    def judge(self, subjects: Iterable[Any]) -> None:
        if self._failure is not None:
            return
        judges, needs, kept = self._judges, self._needs, 0
        try:
            for subject in [one for one in subjects if one.has(needs)] if needs else subjects:
                found = judges(subject)
                for outcome in found if isinstance(found, Iterator) else (found,):
                    if outcome is OK:
                        kept += 1
                    elif isinstance(outcome, Broken):
                        self._violations.append(_violation(outcome, subject))
            self._kept += kept
        except Exception:
            # A bug in one law must not cost a verdict, least of all those of other cases.
            self._failure = format_exc()

    def verified(self) -> Verified:
        if self._failure is not None:
            return Verified(self.law, 0, (), self._failure)
        return Verified(self.law, self._kept, tuple(self._violations))


def _is_needed(law: Law, run: Run) -> bool:
    return not law.needs or any(rank.has(law.needs) for rank in run.ranks)


def _violation(broken: Broken, subject: Subject) -> Violation:
    if isinstance(subject, Window):
        return Violation(broken, subject.number, subject.rank.number)
    if isinstance(subject, Rank):
        return Violation(broken, None, subject.number)
    return Violation(broken, subject.number if isinstance(subject, GlobalWindow) else None, None)


def _merged(law: Law, same: list[Violation]) -> Finding:
    first = min(same, key=lambda one: (one.shown_in or 0, one.rank or 0))
    ranks = {one.broken.event.rank if one.rank is None else one.rank for one in same}
    return Finding(law, first.broken, len(same), tuple(sorted(ranks)), first.shown_in)
