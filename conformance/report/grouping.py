"""Groups the cases of a run: the matrix, the causes of failure, the reasons for not running."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from conformance.adapter.declaration import BACKEND_NAMES, PRECISIONS
from conformance.results import Results
from conformance.results.result_lines import NOT_RUN, PASSED, CaseRecord, Finding

from .causes import causes, telling, title
from .signs import Cause
from .text import natural
from .verdicts import LOOKS, SHOWN, Look, worst

K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound="Alike")


@dataclass(frozen=True)
class Group:
    """Cases with something in common."""

    cases: tuple[CaseRecord, ...]

    @cached_property
    def look(self) -> Look:
        """The worst verdict. Those that did not run count only if nothing ran."""
        return worst(case.verdict for case in self.cases)

    @cached_property
    def counts(self) -> list[tuple[Look, int]]:
        """How many cases have each verdict, worst first."""
        return tally(case.verdict for case in self.cases)


@dataclass(frozen=True)
class Cell(Group):
    """The cases of one trainer, path and precision."""

    @property
    def judged(self) -> int:
        """How many of them passed or failed."""
        return sum(case.failed or case.verdict in PASSED for case in self.cases)

    @property
    def detailed(self) -> tuple[CaseRecord, ...]:
        """The cases with all evidence: those that do not conform."""
        return tuple(case for case in self.cases if not _is_brief(case))

    @property
    def brief(self) -> list[Alike]:
        """The others, by headline."""
        brief = grouped(filter(_is_brief, self.cases), lambda case: (case.verdict, case.headline))
        return _worst_first(Alike(cases, headline) for (_, headline), cases in brief.items())


@dataclass(frozen=True)
class Path(Group):
    """A row of the matrix: a path of a trainer, by precision. ``name``: with the device if that is not the CPU."""

    name: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Trainer(Group):
    """All paths of one trainer. ``target``: where its functions are."""

    name: str
    target: str
    paths: tuple[Path, ...]

    @cached_property
    def matrix(self) -> tuple[Path, ...]:
        """The rows of the matrix: paths with a case that ran. The others are listed once, with their reasons.

        If nothing ran: a path that could run on another machine.
        """
        declared = tuple(path for path in self.paths if any(case.verdict == "UNAVAILABLE" for case in path.cases))
        return self.ran or declared[:1] or self.paths[:1]

    @cached_property
    def ran(self) -> tuple[Path, ...]:
        """The paths with a case that ran."""
        return tuple(path for path in self.paths if any(case.verdict not in NOT_RUN for case in path.cases))


@dataclass(frozen=True)
class Alike(Group):
    """Cases of one verdict with the same cause, or the same reason for not running: ``text``."""

    text: str

    @property
    def example(self) -> CaseRecord:
        """The smallest case that shows it."""
        return smallest(self.cases)

    @property
    def where(self) -> str:
        """The trainers, paths and precisions concerned, in one line."""
        trainers = _listed((case.trainer for case in self.cases), "trainers")
        paths = _listed((case.path for case in self.cases), "paths")
        precisions = _listed(sorted({case.precision for case in self.cases}, key=_precision_order), "precisions")
        return " · ".join([trainers, paths, precisions])


@dataclass(frozen=True)
class Failure(Alike):
    """Cases that failed for the cause in ``text``. ``others``: further causes of each case, by its id()."""

    cause: Cause
    others: Mapping[int, Sequence[Cause]]

    @cached_property
    def look(self) -> Look:
        """The worst verdict among cases without another cause."""
        alone = [case for case in self.cases if not self.others.get(id(case))]
        return worst(case.verdict for case in alone or self.cases)

    @property
    def example(self) -> CaseRecord:
        """The smallest of the cases that show most: more than numbers, no other cause, and lines that write."""
        return min(self.cases, key=lambda case: (*self._hides(case), not case.is_followed, *_size(case)))

    def _hides(self, case: CaseRecord) -> tuple[bool, bool]:
        others = self.others.get(id(case), ())
        tells = bool(telling(self.cause, case, others)) or not all(guard.holds for guard in case.guards)
        return not tells, bool(others)

    @property
    def is_explained(self) -> bool:
        """Whether the cause explains the numbers."""
        return self.cause.kind != "unknown" and self.look.verdict != "INCONCLUSIVE"

    @property
    def findings(self) -> list[Finding]:
        """The broken laws of the example that explain the cause."""
        return telling(self.cause, self.example, self.others.get(id(self.example), ()))


def _is_brief(case: CaseRecord) -> bool:
    return not (case.failed or case.unjudged or case.unchecked)


def smallest(cases: Iterable[CaseRecord]) -> CaseRecord:
    """The smallest case."""
    return min(cases, key=_size)


def _size(case: CaseRecord) -> tuple[int, bool, int, bool, list[tuple[int, int, str]]]:
    """Sorts cases by size; one without rounding or low precision is easier to read."""
    is_exact = case.certificate is not None and case.certificate.exact
    is_low = case.precision not in ("fp32", "fp64")
    return case.world_size, *_length(case), not is_exact or is_low, natural(case.id)


def _length(case: CaseRecord) -> tuple[bool, int]:
    """The length of its windows; single samples come before accumulation."""
    return case.layout == "accumulated", case.accumulation


def tally(verdicts: Iterable[str]) -> list[tuple[Look, int]]:
    """How often each verdict occurs, worst first."""
    counts = Counter(verdicts)
    return [(look, counts[verdict]) for verdict, look in reversed(LOOKS.items()) if verdict in counts]


def overall(results: Results) -> list[tuple[Look, int]]:
    """How many cases of the run have each verdict, in the order of `SHOWN`."""
    counts = dict(tally(case.verdict for case in results.cases))
    return [(look, counts[look]) for look in SHOWN if look in counts]


def precisions(results: Results) -> list[str]:
    """The columns of the matrix."""
    return sorted({case.precision for case in results.cases}, key=_precision_order)


def trainers(results: Results) -> list[Trainer]:
    """All cases by trainer, path and precision, independent of the order in which they finished."""
    found = [_trainer(name, cases) for name, cases in grouped(results.cases, lambda case: case.trainer).items()]
    return sorted(
        found, key=lambda trainer: (not trainer.ran, _path_order(trainer.paths[0].cases[0]), natural(trainer.name))
    )


def failures(results: Results) -> list[Failure]:
    """The failures by trainer and cause: explained ones first, then those of the most cases."""
    trainers = grouped(results.cases, lambda case: case.trainer).values()
    found = _worst_first(failure for cases in trainers for failure in failures_of(cases, results.header.bugs))
    return sorted(found, key=lambda failure: (not failure.is_explained, -len(failure.cases)))


def failures_of(cases: Sequence[CaseRecord], bugs: Mapping[str, str]) -> list[Failure]:
    """The failures of one trainer. ``bugs``: the texts of known bugs by name."""
    found = causes(cases)
    every: dict[int, list[Cause]] = defaultdict(list)
    for cause, failed in found:
        for case in failed:
            every[id(case)].append(cause)
    return [_failure(cause, failed, every, bugs) for cause, failed in found]


def _failure(
    cause: Cause, failed: Sequence[CaseRecord], every: Mapping[int, Sequence[Cause]], bugs: Mapping[str, str]
) -> Failure:
    others = {id(case): [one for one in every[id(case)] if one != cause] for case in failed}
    failure = Failure(tuple(failed), "", cause, others)
    first = failure.example
    rest = sorted((case for case in failed if case is not first), key=_size)
    return replace(failure, text=title(cause, [first, *rest], bugs, failure.findings))


def reasons(results: Results) -> list[Alike]:
    """The cases that did not run, by reason."""
    idle = [case for case in results.cases if case.verdict in NOT_RUN]
    groups = grouped(idle, lambda case: (case.verdict, case.headline))
    return _worst_first(Alike(cases, reason) for (_, reason), cases in groups.items())


def _worst_first(groups: Iterable[A]) -> list[A]:
    """Sorts by verdict, the worst first, then by frequency."""
    return sorted(groups, key=lambda alike: (-list(LOOKS).index(alike.look.verdict), -len(alike.cases)))


def _trainer(name: str, cases: tuple[CaseRecord, ...]) -> Trainer:
    ordered = sorted(cases, key=lambda case: (_path_order(case), natural(case.id)))
    rows = grouped(ordered, lambda case: (case.path, case.device))
    paths = tuple(Path(row, _row_name(*of), _cells(row)) for of, row in rows.items())
    target = ", ".join(dict.fromkeys(case.target for case in ordered if case.target))
    return Trainer(tuple(ordered), name, target, paths)


def _row_name(path: str, device: str) -> str:
    return path if device == "cpu" or device in path else f"{path} on {device}"


def _cells(cases: tuple[CaseRecord, ...]) -> dict[str, Cell]:
    """The cells of a path by their precision, in the order of the matrix."""
    groups = grouped(cases, lambda case: case.precision)
    return {precision: Cell(groups[precision]) for precision in sorted(groups, key=_precision_order)}


def _path_order(case: CaseRecord) -> tuple[str, int, int, bool, int, list[tuple[int, int, str]]]:
    backend = BACKEND_NAMES.index(case.backend) if case.backend in BACKEND_NAMES else len(BACKEND_NAMES)
    return case.device, backend, case.world_size, *_length(case), natural(case.path)


def _precision_order(precision: str) -> tuple[int, str]:
    return (PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS), precision)


def grouped(cases: Iterable[CaseRecord], key: Callable[[CaseRecord], K]) -> dict[K, tuple[CaseRecord, ...]]:
    groups: defaultdict[K, list[CaseRecord]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    return {name: tuple(group) for name, group in groups.items()}


def _listed(values: Iterable[str], noun: str) -> str:
    unique = list(dict.fromkeys(values))
    return ", ".join(unique) if len(unique) <= 4 else f"{len(unique)} {noun}"
