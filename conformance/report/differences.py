"""The differences between the results of two runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conformance.results import Results
from conformance.results.result_lines import NOT_RUN, PASSED, CaseRecord

from .grouping import Failure, failures
from .text import escaped, one_line, plural

Pair: TypeAlias = tuple[CaseRecord, CaseRecord]
"""A case that ran in both runs: before and after."""


@dataclass(frozen=True)
class Section:
    """Differences of one kind: ``lines`` of a name and a text each. ``tone``: a colour, as `Look.tone`.
    ``is_detail``: shown on request only."""

    title: str
    tone: str
    lines: tuple[tuple[str, str], ...]
    is_detail: bool = False


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs. Only cases that ran in both are compared.

    Attributes:
        regressions: cases that passed and now fail. fixed: the reverse. changed: cases that fail with another verdict.
        unchanged: how many other cases ran in both runs.
        new: cases that ran in the second run only. not_compared: in the first one only.
        new_problems, fixed_problems: why cases fail in one run only; a problem without a compared case is not fixed.
    """

    regressions: tuple[Pair, ...]
    fixed: tuple[Pair, ...]
    changed: tuple[Pair, ...]
    unchanged: int
    new: tuple[CaseRecord, ...]
    not_compared: tuple[CaseRecord, ...]
    new_problems: tuple[Failure, ...]
    fixed_problems: tuple[Failure, ...]

    @property
    def compared(self) -> int:
        return len(self.regressions) + len(self.fixed) + len(self.changed) + self.unchanged

    @property
    def verdict(self) -> tuple[str, str]:
        """In a sentence, and its tone."""
        if self.regressions:
            cases = "case that passed now fails" if len(self.regressions) == 1 else "cases that passed now fail"
            return f"Regression: {len(self.regressions)} {cases}.", "bad"
        if not self.compared:
            return "Nothing compared: no case ran in both runs.", "doubt"
        return "No regression: every case that passed before and ran again still passes.", "good"

    @property
    def counts(self) -> str:
        """How many cases each difference has, in a line."""
        kinds = ("regressions", self.regressions), ("fixed", self.fixed), ("failing differently", self.changed)
        found = [f"{len(cases)} {kind}" for kind, cases in kinds if cases] + [f"{self.unchanged} unchanged"]
        text = f"{plural(self.compared, 'case')} compared: {', '.join(found)}."
        if self.not_compared:
            text += f" {len(self.not_compared)} not compared, because they did not run again."
        if self.new:
            failing = sum(case.failed for case in self.new)
            text += f" {len(self.new)} new{f', {failing} of them failing' if failing else ''}."
        return text

    @property
    def sections(self) -> list[Section]:
        """The non-empty sections, the worst first."""
        told = {id(case) for problem in self.new_problems for case in problem.cases}
        failing = [case for case in self.new if case.failed]
        passing = [case for case in self.new if not case.failed]
        found = (
            Section("Regressions", "bad", _changes(self.regressions, told)),
            Section("New problems", "bad", _problems(self.new_problems)),
            Section("New cases that fail", "bad", tuple((_name(one), _says(one, told)) for one in failing)),
            Section("Failing differently", "doubt", _changes(self.changed, told)),
            Section("Fixed", "good", _changes(self.fixed, told)),
            Section("Fixed problems", "good", _problems(self.fixed_problems)),
            Section("New cases that pass", "idle", tuple((_name(one), one.verdict) for one in passing), True),
            Section("Not compared", "idle", tuple((_name(one), one.verdict) for one in self.not_compared), True),
        )
        return [section for section in found if section.lines]


def compared(old: Results, new: Results) -> Comparison:
    """Cases are the same if trainer and id are."""
    before, after = _ran(old), _ran(new)
    both = [(before[key], case) for key, case in after.items() if key in before]
    regressions = tuple(pair for pair in both if pair[0].verdict in PASSED and pair[1].failed)
    fixed = tuple(pair for pair in both if pair[0].failed and pair[1].verdict in PASSED)
    failing = (pair for pair in both if pair[0].failed and pair[1].failed)
    changed = tuple(pair for pair in failing if pair[0].verdict != pair[1].verdict)
    problems, new_problems = failures(old), failures(new)
    known, left = {*map(_key, problems)}, {*map(_key, new_problems)}
    again = {id(was) for was, _ in both}
    return Comparison(
        regressions=regressions,
        fixed=fixed,
        changed=changed,
        unchanged=len(both) - len(regressions) - len(fixed) - len(changed),
        new=tuple(case for key, case in after.items() if key not in before),
        not_compared=tuple(case for key, case in before.items() if key not in after),
        new_problems=tuple(one for one in new_problems if _key(one) not in known),
        fixed_problems=tuple(
            one for one in problems if _key(one) not in left and any(id(case) in again for case in one.cases)
        ),
    )


def _ran(results: Results) -> Mapping[tuple[str, str], CaseRecord]:
    return {(case.trainer, case.id): case for case in results.cases if case.verdict not in NOT_RUN}


def _key(problem: Failure) -> tuple[str, str, str]:
    """The trainer, the kind and what tells it from others."""
    return problem.example.trainer, problem.cause.kind, problem.cause.key


def _changes(pairs: Sequence[Pair], told: Collection[int]) -> tuple[tuple[str, str], ...]:
    return tuple((_name(new), f"{old.verdict} → {_says(new, told)}") for old, new in pairs)


def _says(case: CaseRecord, told: Collection[int]) -> str:
    """The verdict, and why unless a new problem says so. told: the id() of each case of a new problem."""
    return f"{case.verdict}: {one_line(case.headline)}" if case.failed and id(case) not in told else case.verdict


def _problems(problems: Sequence[Failure]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"{one_line(one.example.trainer)}, {plural(len(one.cases), 'case')}",
            f"{one.look.verdict}: {one_line(one.text)}",
        )
        for one in problems
    )


def _name(case: CaseRecord) -> str:
    return f"{one_line(case.trainer)} {one_line(case.id)}"


def markdown(comparison: Comparison, sections: Sequence[Section], most: int) -> Iterator[str]:
    """Lines of Markdown, as for a pull request's summary; at most ``most`` of a section."""
    yield f"**{comparison.verdict[0]}**"
    for section in sections:
        yield f"\n### {section.title} ({len(section.lines)})\n"
        yield from (f"- `{name}` {escaped(what)}" for name, what in section.lines[:most])
        if len(section.lines) > most:
            yield f"- and {len(section.lines) - most} more"
    yield f"\n{comparison.counts}"
