"""Laws over a whole run: which were broken where, and how often each was checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from conformance.results import Results
from conformance.results.records import CaseRecord, Finding, LawText

from .text import plural


@dataclass(frozen=True)
class Breach:
    """One law, broken by one line of one trainer, in one or more cases."""

    finding: Finding
    cases: tuple[CaseRecord, ...]


@dataclass(frozen=True)
class Checked:
    """A law, in how many windows it was checked, and in how many cases it was broken. A law that was never checked is
    not shown to hold.
    """

    law: LawText
    windows: int
    broken: int

    @property
    def chapter(self) -> str:
        return self.law.law.partition("/")[0]


@dataclass(frozen=True)
class Unchecked:
    """A law that raised an error of its own, and the cases that were not held to it."""

    law: str
    error: str
    cases: tuple[CaseRecord, ...]

    @property
    def says(self) -> str:
        """What happened, and what to do: one sentence."""
        cases = plural(len(self.cases), "case")
        return (
            f"the law {self.law} was not checked in {cases}, because it raised {self.error}; "
            "this is a mistake of ours, please report it with the traceback"
        )


def unchecked(results: Results) -> list[Unchecked]:
    """The laws that raised, each with what it raised first."""
    groups: defaultdict[str, list[CaseRecord]] = defaultdict(list)
    for case in results.cases:
        for law in case.unchecked:
            groups[law].append(case)
    return [
        Unchecked(law, cases[0].unchecked[law].strip().rpartition("\n")[2], tuple(cases))
        for law, cases in groups.items()
    ]


def breaches(results: Results, level: str) -> list[Breach]:
    """The broken laws of this level, the most frequent first."""
    groups: defaultdict[tuple[str, str, str | None], list[tuple[Finding, CaseRecord]]] = defaultdict(list)
    for case in results.cases:
        for finding in case.findings:
            if finding.level == level:
                groups[case.trainer, finding.law, finding.where].append((finding, case))
    found = [Breach(group[0][0], tuple(case for _, case in group)) for group in groups.values()]
    return sorted(found, key=lambda breach: -len(breach.cases))


def checked(results: Results) -> list[Checked]:
    """Every law of the run, over all its cases."""
    windows: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for case in results.cases:
        windows.update(case.laws)
        broken.update({finding.law for finding in case.findings})
    return [Checked(law, windows[law.law], broken[law.law]) for law in results.header.laws]
