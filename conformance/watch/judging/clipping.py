"""Judges clipping: what is clipped, when, and over which parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import hypot, isfinite

from conformance.watch import records
from conformance.watch.judging.case import Together, factor_of
from conformance.watch.judging.early import Early
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.windows import Window


class Clipping:
    """Judges the clip calls of all ranks."""

    def __init__(self, findings: Findings) -> None:
        self._findings, self._early = findings, Early(findings)
        self._aside: dict[int, _Aside] = defaultdict(_Aside)

    @property
    def accuses(self) -> bool:
        return self._early.accuses

    def feed(self, rank: int, record: records.Record) -> None:
        if (clip := self._aside[rank].feed(record)) is not None:
            file, line = ("", 0) if clip.site is None else clip.site[:2]
            self._findings.leave_open(said("clipping.aside", at=f"{file}:{line}"), site=clip.site)

    def judge(self, window: Window) -> None:
        """The window of a rank."""
        if window.step is None:
            return
        found = [*_of_nothing(window), *_before_the_pass(window, window.step)]
        for finding in found:
            self._findings.add(finding)
            window.broken.append(finding.key)
        self._state_parts(window)
        clips = [at for at, clip in window.clips if clip.given]
        if not found and clips and window.places and max(clips) > max(window.places):
            self._findings.seen[Property.CLIPPING] += 1

    def judge_step(self, together: Together) -> None:
        """A step of all ranks, whose factors are known."""
        for window in together.here:
            if window.step is not None and not window.step.closure and window.used:
                self._early.judge(together, window)

    def finish(self) -> None:
        self._early.finish()

    def _state_parts(self, window: Window) -> None:
        def state(says: Said, clip: records.Clipped) -> None:
            self._findings.leave_open(says, 1, window.index, clip.site)

        by_value = [clip for _, clip in window.clips if clip.how == "value" and clip.given]
        nothing = [clip for _, clip in window.clips if not clip.given and not clip.used_up]
        clipped = [({*clip.parameters} & window.used.keys(), clip) for _, clip in window.clips]
        parts = [(held, clip) for held, clip in clipped if held]
        if nothing:
            state(said("clipping.nothing"), nothing[0])
        if by_value:
            state(said("clipping.by-value", limit=by_value[0].limit), by_value[0])
        if parts and all(held != window.used.keys() for held, _ in parts):
            every = {number for held, _ in parts for number in held}
            state(said("clipping.parts", clipped=len(every), all=len(window.used), calls=len(parts)), parts[0][1])


class _Aside:
    """Clip calls of one process whose gradients no step uses, while a step goes without clipping."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[records.Clipped, set[int]]] = {}
        self._instead: set[str] = set()

    def feed(self, record: records.Record) -> records.Clipped | None:
        """The call that the record shows to be one."""
        found: records.Clipped | None = None
        match record:
            case records.Clipped():
                line = str(record.site)
                if line in self._instead and {*record.parameters} == self._calls[line][1]:
                    found = record
                self._forget(line)
                if record.parameters and isfinite(record.limit) and (found or factor_of(record) < 1):
                    self._calls[line] = record, {*record.parameters}
            case records.Stepped():
                used = [line for line, (_, left) in self._calls.items() if not left.isdisjoint(record.parameters)]
                self._instead |= self._calls.keys() if not used else set()
                for line in used:
                    self._forget(line)
            case records.Cleared():
                for line, (clip, left) in [*self._calls.items()]:
                    left.difference_update(record.parameters)
                    if not left:
                        found = clip if line in self._instead and not record.moved else found
                        self._forget(line)
            case records.Skipped() | records.Passed():
                # It is not known which parameters such a step concerns.
                self._calls.clear()
                self._instead.clear()
        return found

    def _forget(self, line: str) -> None:
        self._calls.pop(line, None)
        self._instead.discard(line)


def _of_nothing(window: Window) -> Iterator[Finding]:
    for _, clip in window.clips:
        if clip.used_up:
            yield _finding(window, said("clip.used-up"), clip)


def _before_the_pass(window: Window, step: records.Stepped) -> Iterator[Finding]:
    """Calls that came when none of what they were given had a gradient that no step had used."""
    if not window.places or step.closure:
        return
    last, norm = max(window.places), _norm(window)
    for clip in window.idle:
        # A script that always clips all its models does so in time, too.
        is_in_time = any(at > last and {*clip.parameters} & {*one.parameters} for at, one in window.clips)
        # A gradient that the script has put there by hand is still there when the next one is added to it. What
        # autograd.grad computes may be.
        is_kept = window.captured or any(
            one.sketch[..., 2].any() for number in clip.parameters for one in window.old.get(number, [])
        )
        is_reached = factor_of(clip) < 1 if clip.norm else norm > clip.limit
        if isfinite(clip.limit) and is_reached and not is_in_time and not is_kept:
            yield _finding(window, said("clip.after-step" if clip.norm else "clip.before-passes"), clip)


def _finding(window: Window, says: Said, clip: records.Clipped) -> Finding:
    effect = said(f"clip.not-by-{clip.how}", norm=_norm(window), limit=clip.limit)
    law, rank = "watch/clip-something", (window.rank,)
    return Finding(law, says, window.index, rank, clip.site, effect, window.optimizer)


def _norm(window: Window) -> float:
    """Of what the step uses, as far as it is read."""
    return hypot(*(float(sketch[2]) for sketch in window.used.values()))
