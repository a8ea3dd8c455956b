"""Is a step on gradients that are not finite one of the script's, or of a trial that diverged?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window


@dataclass
class _Of:
    """An optimizer of a rank. begin, end: the first backward pass of its steps, and the last of all before them.
    parameters: those that it steps. first: what is found first, and count: how often."""

    begin: int = 0
    end: int = 0
    parameters: set[int] = field(default_factory=set)
    first: Finding | None = None
    count: int = 0


class Trials:
    """Of the processes that train together.

    A search goes through several settings, one after the other, each with a model of its own. That one of them diverges
    is what it wants to know, and the next begins anew. A training that goes on has the same parameters, or steps those
    of several models in turns."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, dict[int, _Of]] = defaultdict(dict)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.first for rank in self._of for of in self._broken(rank))

    def see(self, window: Window, infinite: Finding | None) -> None:
        """infinite: what it says of a step on gradients that are not finite."""
        begin = min(window.backwards, default=window.clock)
        of = self._of[window.rank].setdefault(window.optimizer, _Of(begin=begin))
        of.end = window.clock
        of.parameters |= set() if window.step is None else {*window.step.parameters}
        if infinite is not None:
            window.broken.append(infinite.key)
            of.first, of.count = of.first or infinite, of.count + 1

    def _broken(self, rank: int) -> list[_Of]:
        """Those of which no other one shows that they are trials."""
        every = self._of[rank].values()
        return [of for of in every if of.first and not any(_are_trials(of, other) for other in every)]

    def finish(self) -> None:
        for rank, by_optimizer in self._of.items():
            broken = self._broken(rank)
            for of in by_optimizer.values():
                if of.first is not None and any(of is one for one in broken):
                    self._findings.add(of.first, count=of.count)
                elif of.first is not None:
                    self._findings.undecided(
                        "gradients of a model are not finite, and others come before or after it: a trial may diverge",
                        of.count,
                    )


def _are_trials(of: _Of, other: _Of) -> bool:
    """Whether one comes after the other, with other parameters, and has only finite gradients."""
    is_apart = other.begin > of.end or other.end < of.begin
    return is_apart and other.first is None and other.parameters.isdisjoint(of.parameters)
