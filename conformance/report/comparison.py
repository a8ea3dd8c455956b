"""What is different between the results of two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conformance.results import Results
from conformance.results.records import NOT_RUN, PASSED, CaseRecord

from .ci import escaped
from .grouping import Failure, failures
from .text import one_line


@dataclass(frozen=True)
class Section:
    """Differences of one kind. ``tone``: a colour, as `Look.tone`; a line: the name of something, and what of it."""

    title: str
    tone: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs; cases are the same if trainer and id are.

    Attributes:
        broken: pairs of cases that held, and do not any more. This alone is a regression.
        repaired: that did not hold, and do.
        otherwise: that did not hold and do not, with another verdict.
        lost: that held, and did not run.
        new, gone: cases of one run alone.
        came, went: causes of failure of one run alone.
    """

    broken: tuple[tuple[CaseRecord, CaseRecord], ...]
    repaired: tuple[tuple[CaseRecord, CaseRecord], ...]
    otherwise: tuple[tuple[CaseRecord, CaseRecord], ...]
    lost: tuple[tuple[CaseRecord, CaseRecord], ...]
    new: tuple[CaseRecord, ...]
    gone: tuple[CaseRecord, ...]
    came: tuple[Failure, ...]
    went: tuple[Failure, ...]

    @property
    def verdict(self) -> tuple[str, str]:
        """In a sentence, and its tone."""
        if self.broken:
            cases = "case that held does not" if len(self.broken) == 1 else "cases that held do not"
            return f"Regression: {len(self.broken)} {cases} any more.", "bad"
        return "No regression: each case that held and ran again still holds.", "good"

    @property
    def sections(self) -> list[Section]:
        """What there is to show, the worst first."""
        found = (
            Section("Held, and do not any more", "bad", _changes(self.broken)),
            Section("Causes that are new", "bad", _causes(self.came)),
            Section("Held, and did not run this time", "doubt", _changes(self.lost)),
            Section("Fail in another way", "doubt", _changes(self.otherwise)),
            Section("Hold now, and did not", "good", _changes(self.repaired)),
            Section("Causes that are gone", "good", _causes(self.went)),
            Section("New cases", "idle", _cases(self.new)),
            Section("Cases that are gone", "idle", _cases(self.gone)),
        )
        return [section for section in found if section.lines]


def compared(old: Results, new: Results) -> Comparison:
    before = {(case.trainer, case.id): case for case in old.cases}
    after = {(case.trainer, case.id): case for case in new.cases}
    both = [(before[key], case) for key, case in after.items() if key in before]
    old_causes, new_causes = _by_key(failures(old)), _by_key(failures(new))
    return Comparison(
        broken=tuple((was, now) for was, now in both if was.verdict in PASSED and now.failed),
        repaired=tuple((was, now) for was, now in both if was.failed and now.verdict in PASSED),
        otherwise=tuple((was, now) for was, now in both if was.failed and now.failed and was.verdict != now.verdict),
        lost=tuple((was, now) for was, now in both if was.verdict in PASSED and now.verdict in NOT_RUN),
        new=tuple(case for key, case in after.items() if key not in before),
        gone=tuple(case for key, case in before.items() if key not in after),
        came=tuple(failure for key, failure in new_causes.items() if key not in old_causes),
        went=tuple(failure for key, failure in old_causes.items() if key not in new_causes),
    )


def _by_key(found: Iterable[Failure]) -> dict[tuple[str, str, str], Failure]:
    return {(failure.example.trainer, failure.cause.kind, failure.cause.key): failure for failure in found}


def _changes(pairs: Iterable[tuple[CaseRecord, CaseRecord]]) -> tuple[tuple[str, str], ...]:
    return tuple((_name(new), f"{old.verdict} → {new.verdict}: {one_line(new.headline)}") for old, new in pairs)


def _cases(cases: Iterable[CaseRecord]) -> tuple[tuple[str, str], ...]:
    return tuple((_name(case), case.verdict) for case in cases)


def _causes(found: Iterable[Failure]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"{one_line(one.example.trainer)}, {len(one.cases)}×", f"{one.look.verdict}: {one_line(one.text)}")
        for one in found
    )


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
