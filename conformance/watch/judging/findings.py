"""The findings of a watch: violations by law and line, and facts that the script's author can confirm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any, TypeAlias

from conformance.laws.chapters.watch_scripts import LAWS
from conformance.laws.law import Law
from conformance.watch.judging.properties import FACTS, Property
from conformance.watch.judging.windows import Pass, Scene, Window
from conformance.watch.records import Site


@dataclass(frozen=True)
class Said:
    """A message as data: `report/sentences.py` has the sentence of each code."""

    code: str
    values: Mapping[str, Any]


def said(code: str, **values: Any) -> Said:
    """A message. values: plain numbers, names and lists of these."""
    return Said(code, values)


Shown: TypeAlias = tuple[Property, str | None] | tuple[int, int]
"""A property and the value that a step shows, None if it shows no value. Or an optimizer and a rank whose value is only
known at the end, see `Findings.resolve`."""


@dataclass
class Finding:
    """A violation of a law.

    says: what happened. effect: on the update. step: of the optimizer, from 0; None for the whole run. ranks: where it
    shows. passes: the backward passes that it is about. waits: it counts only if the ranks' weights drift apart. alone:
    a rank steps on its own gradients only. is_of_all_steps: it counts only if all steps of the optimizer show it, with
    the same pattern. is_bare: it has no reason, which another finding may give. parameters: those that differ between
    ranks, or are not averaged. backward: the line of a backward pass that it concerns. steps: the number that one
    solution explains, from `step` on.
    """

    law: str
    says: Said
    step: int | None
    ranks: tuple[int, ...]
    site: Site = None
    effect: Said | None = None
    optimizer: int | None = None
    passes: frozenset[Pass] = frozenset()
    waits: bool = False
    alone: bool = False
    is_of_all_steps: bool = False
    pattern: str = ""
    is_bare: bool = False
    parameters: frozenset[int] = frozenset()
    backward: Site = None
    steps: int = 1

    @classmethod
    def of(cls, window: Window, law: str, says: Said, effect: Said | None = None, site: Site = None) -> Finding:
        """What a window of one rank shows. site: by default, the line of its step."""
        return cls(law, says, window.index, (window.rank,), site or window.site, effect, window.optimizer)

    @property
    def text(self) -> Law:
        return LAWS[self.law]

    @property
    def shows(self) -> Shown:
        property, value = FACTS.get(self.says.code) or self.text.shows or ("", None)
        return Property(property), value

    @property
    def key(self) -> tuple[str, str]:
        """The law and the line, which all findings of one cause share."""
        return self.law, str(self.site)


@dataclass
class Cause:
    """All findings of one law at one line: the first, their number, and that of the steps that they are known to be in.
    last: such a step. varies: their effects differ."""

    first: Finding
    ranks: set[int]
    count: int = 1
    steps: int = 0
    last: int | None = None
    varies: bool = False


@dataclass
class Open:
    """A fact that is not judged. says: the first message. count: of steps of a rank, or of other cases. step: the first
    one; None for the whole run."""

    says: Said
    count: int
    step: int | None = None
    site: Site = None

    @property
    def shows(self) -> Shown:
        return FACTS[self.says.code]


@dataclass
class Findings:
    """All findings of a watch. causes: violations. open: facts that are not judged, by code. lacks: what the watch did
    not see.

    outcomes: the number of judged steps of a rank, by what they show beyond the usual: empty for a correct step.
    idle: by code, the number of steps of a rank with nothing to judge. seen: by property, the number of
    correct cases.
    unsolved: equations of steps that decide nothing alone. factors: for each set of parameters that were clipped
    together, the rank, the finding that its factor suggests, and whether it is correct. histories: of each optimizer,
    see `history.py`. scenes: by `Finding.key`, the first window that shows it. sources: by file and line of a site, the
    path of the file and the text of the line. ranks: of the largest launch. stepped: by optimizer, the number of judged
    steps of all ranks. made: by optimizer, the line that made it. types: its class. steps_at: that of its last step.
    shared_at: that of the collective on its gradients. wrapped: the optimizers of a model in DDP.
    has_parts: ranks have parts of some parameters.
    """

    causes: dict[tuple[str, str], Cause] = field(default_factory=dict)
    open: dict[str, Open] = field(default_factory=dict)
    lacks: list[Said] = field(default_factory=list)
    outcomes: Counter[frozenset[Shown]] = field(default_factory=Counter)
    idle: Counter[str] = field(default_factory=Counter)
    seen: Counter[Property] = field(default_factory=Counter)
    unsolved: list[Any] = field(default_factory=list)
    factors: list[tuple[int, Finding | None, bool]] = field(default_factory=list)
    histories: list[Any] = field(default_factory=list)
    scenes: dict[tuple[str, str], Scene] = field(default_factory=dict)
    sources: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    ranks: int = 1
    stepped: Counter[int] = field(default_factory=Counter)
    made: dict[int, Site] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)
    steps_at: dict[int, Site] = field(default_factory=dict)
    shared_at: dict[int, Site] = field(default_factory=dict)
    wrapped: set[int] = field(default_factory=set)
    has_parts: bool = False

    @property
    def steps(self) -> int:
        return self.outcomes.total()

    @property
    def conserved(self) -> int:
        """The number of steps that used the computed gradients and nothing else."""
        return self.outcomes[frozenset()]

    def add(self, finding: Finding, windows: Sequence[Window] = (), count: int = 1) -> None:
        """Takes a finding. windows: those of all ranks that show it. count: in how many steps of a rank it occurred."""
        if windows:
            self.show(finding.key, windows)
        cause = self.causes.get(finding.key)
        if cause is None:
            cause = self.causes[finding.key] = Cause(finding, set(finding.ranks), 0)
        cause.ranks |= set(finding.ranks)
        is_new = not cause.count
        cause.count += max(count, finding.steps)
        if count > 1:
            cause.steps = max(cause.steps, count)
        elif finding.step not in (None, cause.last) and finding.optimizer == cause.first.optimizer:
            cause.steps, cause.last = cause.steps + finding.steps, finding.step
        if is_new:
            return
        cause.varies |= not _are_alike(cause.first.effect, finding.effect)
        if cause.first.is_bare != finding.is_bare and finding.optimizer == cause.first.optimizer:
            # Keep the earlier step, and the finding that has a reason.
            first, why = (cause.first, finding) if cause.first.is_bare else (finding, cause.first)
            cause.first = replace(why, step=first.step) if _is_before(first.step, why.step) else why
            return
        if (finding.step, finding.optimizer) == (cause.first.step, cause.first.optimizer):
            # From another rank. A certain finding replaces one that waits.
            passes = cause.first.passes | finding.passes
            of_all = cause.first.parameters and finding.parameters and cause.first.parameters | finding.parameters
            if cause.first.waits and not finding.waits:
                cause.first = finding
            cause.first.passes, cause.first.parameters = passes, of_all
        elif finding.optimizer == cause.first.optimizer and _is_before(finding.step, cause.first.step):
            # Findings that wait until the end arrive late.
            cause.first = finding

    def show(self, key: tuple[str, str], windows: Sequence[Window]) -> None:
        if key not in self.scenes:
            self.scenes[key] = Scene.seen(windows)

    def leave_open(self, says: Said, count: int = 1, step: int | None = None, site: Site = None) -> None:
        """Takes a fact that may be intended: keeps the first of each code, and counts all."""
        known = self.open.get(says.code)
        if known is None:
            self.open[says.code] = Open(says, count, step, site)
        else:
            known.count += count

    def drop_consequences(self) -> None:
        """Drops causes that another bug of the same optimizer explains (`unless` of their law), also one that takes
        several steps to show. A violation before the first step is never a consequence: it has a separate cause."""

        # Findings that explain why gradients differ between ranks.
        laws = LAWS["watch/same-weights"].unless
        whys = [one.first for one in self.causes.values() if one.first.law in laws and not one.first.is_bare]
        explained = {one.optimizer for one in whys}

        def follows(cause: Cause) -> bool:
            own = cause.first
            if own.is_bare:
                return own.optimizer in explained
            every = (other.first for other in self.causes.values() if other.first.law in own.text.unless)
            return bool(own.step) and any(other.optimizer in (own.optimizer, None) for other in every)

        dropped = {key: cause for key, cause in self.causes.items() if follows(cause)}
        self.causes = {key: cause for key, cause in self.causes.items() if key not in dropped}
        # Earlier correct cases of a violated property prove nothing.
        gone = {cause.first.shows[0] for cause in dropped.values()}
        self.seen = Counter({of: count for of, count in self.seen.items() if of not in gone})

    def lack(self, says: Said) -> None:
        """Takes something that the watch did not see, so the script cannot conform."""
        if says not in self.lacks:
            self.lacks.append(says)

    def judged(self, *shows: Shown, count: int = 1) -> None:
        """Counts a judged step of a rank. shows: beyond the usual."""
        self.outcomes[frozenset(shows)] += count

    def resolve(self, waiting: tuple[int, int], shows: Shown | None) -> None:
        """Settles steps of an optimizer on a rank that waited for the end. shows: None if they are correct."""
        for outcome in [outcome for outcome in self.outcomes if waiting in outcome]:
            known = (outcome - {waiting}) | ({shows} if shows is not None else set())
            self.outcomes[known] += self.outcomes.pop(outcome)

    def take(self, other: Findings) -> None:
        """Adds the facts and counts of other findings, without their causes."""
        for one in other.open.values():
            self.leave_open(one.says, one.count, one.step, one.site)
        for lack in other.lacks:
            self.lack(lack)
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] += count
        for code, count in other.idle.items():
            self.idle[code] += count
        for of, count in other.seen.items():
            self.seen[of] += count


def _is_before(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def laws_of(causes: Iterable[Cause]) -> set[str]:
    return {cause.first.law for cause in causes}


def _are_alike(one: Said | None, other: Said | None) -> bool:
    """Whether two effects are of the same size."""
    if one is None or other is None or one.code != other.code:
        return True
    pairs = ((value, other.values.get(name)) for name, value in one.values.items())
    return all(isclose(a, b, rel_tol=_ALIKE) for a, b in pairs if isinstance(a, float) and isinstance(b, float))


_ALIKE = 0.01
"""Numbers that a sentence rounds alike."""
