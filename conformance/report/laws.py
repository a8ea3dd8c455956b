"""The laws of a whole run: where each was broken, how often it was checked, and its page."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from urllib.parse import quote

from conformance.laws.law import laws
from conformance.laws.subjects import Rank, Window
from conformance.results import Results
from conformance.results.result_lines import CaseRecord, Finding, LawText

from .text import listed, plural

#: The documentation.
DOCS = "https://trainer-conformance.github.io/trainer-conformance/"


def page_of(law: str) -> str:
    """The address of a law's page."""
    return f"{DOCS}laws/{quote(law, errors='replace')}.html"


def fault_of(finding: Finding) -> str:
    """What the trainer does, to follow "the trainer". The file may have a law that is no longer known."""
    fault = next((law.fault for law in laws() if law.id == finding.law), f"breaks a law: {finding.says}")
    return (finding.fault or fault).removesuffix(".")


def some_ranks(finding: Finding, case: CaseRecord) -> str:
    """`on rank 1`, if ranks diverge because only these break the law; "" otherwise. A law of all ranks together names
    one of them only as an example."""
    is_of_each = any(law.id == finding.law and law.scope in (Window, Rank) for law in laws())
    if case.verdict != "DIVERGED" or not is_of_each or not 0 < len(finding.ranks) < case.world_size:
        return ""
    return f"on rank{'s' * bool(finding.ranks[1:])} {listed([str(rank) for rank in finding.ranks])}"


@dataclass(frozen=True)
class Breach:
    """A law that one line of one trainer breaks, with its cases."""

    finding: Finding
    cases: tuple[CaseRecord, ...]


@dataclass(frozen=True)
class Checked:
    """A law, the windows in which it was checked, and the cases in which it was broken."""

    law: LawText
    windows: int
    broken: int

    @property
    def chapter(self) -> str:
        return self.law.law.partition("/")[0]


@dataclass(frozen=True)
class Unchecked:
    """A law that raised an error itself, with the cases that it did not check."""

    law: str
    error: str
    cases: tuple[CaseRecord, ...]

    @property
    def says(self) -> str:
        """What happened and what to do."""
        return (
            f"the law {self.law} raised {self.error} in {plural(len(self.cases), 'case')}, which it did not check; "
            "this is a bug in trainer-conformance: please report it with the traceback"
        )


def unchecked(results: Results) -> list[Unchecked]:
    """The laws that raised, each with its first error."""
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
    """Every law of the run."""
    windows: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for case in results.cases:
        windows.update(case.laws)
        broken.update({finding.law for finding in case.findings})
    return [Checked(law, windows[law.law], broken[law.law]) for law in results.header.laws]
