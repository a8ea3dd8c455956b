"""What is different between the results of two runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from conformance.results import Results
from conformance.results.records import NOT_RUN, PASSED, CaseRecord

from .grouping import Failure, failures
from .text import escaped, one_line

Key: TypeAlias = tuple[str, str, str]
"""Of a cause: the trainer, the kind and what tells it from others."""


@dataclass(frozen=True)
class Section:
    """Differences of one kind. ``tone``: a colour, as `Look.tone`; a line: the name of something, and what of it."""

    title: str
    tone: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs, the worst first. ``broken``: how many cases held, and do not any more; this
    alone is a regression."""

    broken: int
    sections: tuple[Section, ...]

    @property
    def verdict(self) -> tuple[str, str]:
        """In a sentence, and its tone."""
        if self.broken:
            cases = "case that held does not" if self.broken == 1 else "cases that held do not"
            return f"Regression: {self.broken} {cases} any more.", "bad"
        return "No regression: each case that held and ran again still holds.", "good"


def compared(old: Results, new: Results) -> Comparison:
    """Cases are the same if trainer and id are."""
    before = {(case.trainer, case.id): case for case in old.cases}
    after = {(case.trainer, case.id): case for case in new.cases}
    both = [(before[key], case) for key, case in after.items() if key in before]
    held = [(was, now) for was, now in both if was.verdict in PASSED]
    failed = [(was, now) for was, now in both if was.failed]
    broken = [(was, now) for was, now in held if now.failed]
    causes, new_causes = _by_key(failures(old)), _by_key(failures(new))
    found = (
        Section("Held, and do not any more", "bad", _changes(broken)),
        Section("Causes that are new", "bad", _causes(new_causes, causes)),
        Section("Held, and did not run this time", "doubt", _changes(p for p in held if p[1].verdict in NOT_RUN)),
        Section("Fail in another way", "doubt", _changes(p for p in failed if p[1].failed and _differ(*p))),
        Section("Hold now, and did not", "good", _changes(p for p in failed if p[1].verdict in PASSED)),
        Section("Causes that are gone", "good", _causes(causes, new_causes)),
        Section("New cases", "idle", _cases(after, before)),
        Section("Cases that are gone", "idle", _cases(before, after)),
    )
    return Comparison(len(broken), tuple(section for section in found if section.lines))


def _differ(was: CaseRecord, now: CaseRecord) -> bool:
    return was.verdict != now.verdict


def _by_key(found: Iterable[Failure]) -> dict[Key, Failure]:
    return {(failure.example.trainer, failure.cause.kind, failure.cause.key): failure for failure in found}


def _changes(pairs: Iterable[tuple[CaseRecord, CaseRecord]]) -> tuple[tuple[str, str], ...]:
    return tuple((_name(new), f"{old.verdict} → {new.verdict}: {one_line(new.headline)}") for old, new in pairs)


def _causes(some: Mapping[Key, Failure], others: Mapping[Key, Failure]) -> tuple[tuple[str, str], ...]:
    """Those of one run that the other does not have."""
    return tuple(
        (f"{one_line(one.example.trainer)}, {len(one.cases)}×", f"{one.look.verdict}: {one_line(one.text)}")
        for key, one in some.items()
        if key not in others
    )


def _cases(
    some: Mapping[tuple[str, str], CaseRecord], others: Collection[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    return tuple((_name(case), case.verdict) for key, case in some.items() if key not in others)


def _name(case: CaseRecord) -> str:
    return f"{one_line(case.trainer)} {one_line(case.id)}"


def markdown(comparison: Comparison, most: int) -> Iterator[str]:
    """Lines of Markdown, as for a pull request's summary; at most ``most`` of a section."""
    yield f"**{comparison.verdict[0]}**"
    for section in comparison.sections if most else ():
        yield f"\n### {section.title} ({len(section.lines)})\n"
        yield from (f"- `{name}` {escaped(what)}" for name, what in section.lines[:most])
        if len(section.lines) > most:
            yield f"- and {len(section.lines) - most} more"
