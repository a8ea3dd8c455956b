"""Clipping: what is clipped, when, and over which parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import hypot, isclose, isfinite

import numpy as np

from conformance.watch import records
from conformance.watch.judging.case import Case, Together, factor_of
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import FACTS, Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.targets import kinds
from conformance.watch.judging.windows import Contribution, Sketch, Window
from conformance.watch.records import Clipped
from conformance.watch.sizes import WHOLE, WIDTH

_NEAR = 0.05
"""Norms of coarse gradients are equal within this."""

_AT_LIMIT = 1e-2
"""Relative: how far norms that were clipped to one limit are apart, with the small number that divides them."""


class Clipping(Chapter):
    """Judges the clip calls of all ranks, and factors that are clips by hand."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._aside: dict[int, _Aside] = defaultdict(_Aside)
        self._early: list[tuple[Said, int, records.Site]] = []
        self._shortened: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        if (clip := self._aside[rank].feed(record)) is not None:
            file, line = ("", 0) if clip.site is None else clip.site[:2]
            self._findings.leave_open(said("clipping.aside", at=f"{file}:{line}"), site=clip.site)

    def see(self, window: Window) -> None:
        """The window of a rank."""
        if window.step is None:
            return
        found = [*_of_nothing(window), *_before_the_pass(window, window.step)]
        for finding in found:
            self._findings.add(finding)
            window.broken.append(finding.key)
        for says, clip in _parts(window):
            self._findings.leave_open(says, 1, window.index, clip.site)
        clips = [at for at, clip in window.clips if clip.given]
        if not found and clips and window.places and max(clips) > max(window.places):
            self._findings.seen[Property.CLIPPING] += 1

    def judge(self, together: Together) -> None:
        """A step of all ranks, whose factors are known."""
        for window in together.here:
            if window.step is None or window.step.closure or not window.used:
                continue
            between = [*_between(together, window)]
            for finding in between:
                self._findings.add(finding, together.here)
            early = None if between else _not_reached(window) or _changed(together, window)
            if early is not None:
                self._early.append((early[0], window.index, early[1].site))

    def take(self, together: Together) -> None:
        """A step: the factors below 1, and the norms of what was used with them."""
        for rank, shortened in together.shortened.items():
            self._shortened[together.here[0].optimizer, rank] += shortened

    def finish(self, end: End) -> None:
        """Clips by hand shorten gradients, and always to one norm."""
        if not any(cause.first.shows[0] is Property.CLIPPING for cause in self._findings.causes.values()):
            for says, step, site in self._early:
                self._findings.leave_open(says, 1, step, site)
        for at, shortened in self._shortened.items():
            norms = [norm for _, norm in shortened]
            are_clipped = len(norms) > 1 and max(norms) <= min(norms) * (1 + _AT_LIMIT)
            if are_clipped:
                self._findings.seen[Property.CLIPPING] += len(norms)
            else:
                self._findings.leave_open(said("ranks.factor", factor=shortened[0][0]), len(norms))
            self._findings.resolve(at, None if are_clipped else FACTS["ranks.factor"])


class _Aside:
    """Clip calls of one process whose gradients no step uses, while a step goes without clipping."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Clipped, set[int]]] = {}
        self._instead: set[str] = set()

    def feed(self, record: records.Record) -> Clipped | None:
        """The call that the record shows to be one."""
        found: Clipped | None = None
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


def _parts(window: Window) -> Iterator[tuple[Said, Clipped]]:
    """Clipping of less than the whole set."""
    by_value = [clip for _, clip in window.clips if clip.how == "value" and clip.given]
    nothing = [clip for _, clip in window.clips if not clip.given and not clip.used_up]
    clipped = [({*clip.parameters} & window.used.keys(), clip) for _, clip in window.clips]
    parts = [(held, clip) for held, clip in clipped if held]
    if nothing:
        yield said("clipping.nothing"), nothing[0]
    if by_value:
        yield said("clipping.by-value", limit=by_value[0].limit), by_value[0]
    if parts and all(held != window.used.keys() for held, _ in parts):
        every = {number for held, _ in parts for number in held}
        yield said("clipping.parts", clipped=len(every), all=len(window.used), calls=len(parts)), parts[0][1]


# Calls that clip nothing.


def _of_nothing(window: Window) -> Iterator[Finding]:
    for _, clip in window.clips:
        if clip.used_up:
            yield _nothing(window, said("clip.used-up"), clip)


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
            yield _nothing(window, said("clip.after-step" if clip.norm else "clip.before-passes"), clip)


def _nothing(window: Window, says: Said, clip: Clipped) -> Finding:
    effect = said(f"clip.not-by-{clip.how}", norm=_norm(window), limit=clip.limit)
    return Finding("watch/clip-something", says, window.index, (window.rank,), clip.site, effect, window.optimizer)


def _norm(window: Window) -> float:
    """Of what the step uses, as far as it is read."""
    return hypot(*(float(sketch[2]) for sketch in window.used.values()))


# Calls between two backward passes of a window. A call alone proves nothing: a script may keep what it has so far,
# clear `.grad` by hand, and add all up at last, as one that clips each micro-batch for privacy does.


def _between(together: Together, window: Window) -> Iterator[Finding]:
    """A violation for each clip that changed gradients before the last ones came, where the step uses both."""
    for at, clip in window.clips:
        held = _held_between(window, at, clip)
        is_in_step = _keeps_limited if clip.how == "value" else _keeps_clipped
        if held and (clip.how == "value" or factor_of(clip) < 1) and is_in_step(together, window, held, at):
            last = max(came for came, one in window.clips if {*held} <= {*one.parameters})
            effect = said("clip.clipped-again")
            if later := {one.backward for passes in window.new.values() for one in passes if one.at > last}:
                effect = said("clip.passes-unclipped", passes=len(later), all=len(window.backwards))
            rank, law = (window.rank,), "watch/clip-whole-window"
            yield Finding(law, said("clip.between-passes"), window.index, rank, clip.site, effect, window.optimizer)


def _held_between(window: Window, at: int, clip: Clipped) -> list[int]:
    """The parameters that a clip call was given between two of their gradients of one loss."""
    # A penalty that comes last is another loss, which may be left as it is on purpose.
    is_one = len(kinds([window])) == 1
    if not is_one and not _calls(window, at, later=False) & _calls(window, at, later=True):
        return []
    # What is backpropagated to other parameters meanwhile, such as those of a critic, is clipped by itself.
    passes = {number: window.new.get(number, []) for number in clip.parameters}
    held = [number for number in clip.parameters if number in window.used and window.used[number][2]]
    return [number for number in held if passes[number] and passes[number][0].at < at < passes[number][-1].at]


def _calls(window: Window, at: int, *, later: bool) -> set[int]:
    """The calls that made the losses whose gradients came before this place in the stream, or later."""
    came = {one.backward for passes in window.new.values() for one in passes if (one.at > at) == later}
    return {window.backwards[number].calls for number in came if number in window.backwards}


def _keeps_clipped(together: Together, window: Window, held: list[int], at: int) -> bool:
    """Whether the step uses each gradient times all factors of the clips that came after it, and not each alike."""
    alike = [window.clips_of(number) for number in held]
    case = Case(together, window, [number for number, clips in zip(held, alike, strict=True) if clips == alike[0]], [])

    def in_turns(number: int) -> list[Contribution]:
        return [
            replace(one, sketch=one.sketch * _after(other, number, one.at), sums=one.sums + len(other.clips))
            for other in together.here
            for one in other.new.get(number, [])
        ]

    return case.is_known(in_turns) and case.fits(case.all) is None


def _after(window: Window, number: int, at: int) -> float:
    result = 1.0
    for came, clip in window.clips:
        if came > at and clip.how == "norm" and number in clip.parameters:
            result *= factor_of(clip)
    return result


def _keeps_limited(together: Together, window: Window, held: list[int], at: int) -> bool:
    """Whether the result of a clip by value is still in `.grad` at the next one, or at the step: the difference is what
    was backpropagated meanwhile."""
    limits = [(came, one) for came, one in window.limits if {*held} <= {*one.parameters}]
    here = next((one for came, one in reversed(limits) if came <= at), None)
    following = next(((came, one) for came, one in limits if came > at), None)
    if here is None:
        return False
    before, left = _of(here, here.before), _of(here, here.after)
    until = window.at if following is None else following[0]
    is_still = all(np.array_equal(before[number], left[number]) for number in held)
    if is_still or any(clip.how == "norm" and at < came < until for came, clip in window.clips):
        return False
    then = window.used if following is None else _of(following[1], following[1].before)
    held = [number for number in held if any(at < one.at < until for one in window.new.get(number, []))]
    added = {n: np.append((then[n] - left[n])[:2], then[n][2] + left[n][2]) for n in held}
    case = Case(together, replace(window, used={**window.used, **added}), held, [])

    def of_all(number: int) -> list[Contribution]:
        return [one for one in case.all(number) if at < one.at < until]

    def of_rank(number: int) -> list[Contribution]:
        return [one for one in case.own(number) if at < one.at < until]

    return bool(held) and (case.is_known(of_all) or case.is_known(of_rank))


def _of(limit: records.Limited, sketches: records.Sketches) -> dict[int, Sketch]:
    return dict(zip(limit.parameters, np.reshape(sketches, (-1, WIDTH)), strict=True))


# Calls that come early, where that has changed nothing, or nothing that is known to be wrong.


def _not_reached(window: Window) -> tuple[Said, Clipped] | None:
    """A clip between two passes that changed nothing, as its limit was not reached."""
    for at, clip in window.clips:
        is_within = clip.how == "norm" and clip.norm and isfinite(clip.limit) and factor_of(clip) == 1
        if is_within and _held_between(window, at, clip):
            return said("clipping.before-last-pass", norm=clip.norm, limit=clip.limit), clip
    return None


def _changed(together: Together, window: Window) -> tuple[Said, Clipped] | None:
    """The last clip, if what it left has not the norm of what the step uses."""
    for n, (at, clip) in enumerate(window.clips):
        is_last = all({*clip.parameters}.isdisjoint(later.parameters) for _, later in window.clips[n + 1 :])
        left, used = (clip.norm or 0.0) * factor_of(clip), _used(together, window, clip)
        if not left or not used or not isfinite(clip.limit) or not is_last or _is_scaled(window, at):
            continue
        if not isclose(left, used, rel_tol=_NEAR):
            return said("clipping.before-change", ratio=used / left), clip
    return None


def _used(together: Together, window: Window, clip: Clipped) -> float | None:
    """The norm of what the step uses of these parameters, on all ranks that hold a part; None if it is not known."""
    assert window.step is not None
    numbers = {*clip.parameters} & {*window.step.used}
    if clip.how != "norm" or not {*clip.parameters} <= {*window.step.parameters}:
        return None
    if any(window.samples.get(number, WHOLE) != WHOLE for number in numbers):
        return None
    norms = []
    for number in numbers:
        holders = together.here if window.shards.get(number, 1) > 1 else [window]
        norms += [float(one.used[number][2]) for one in holders if number in one.used]
    norm = hypot(*norms)
    return norm if isfinite(norm) else None


def _is_scaled(window: Window, at: int) -> bool:
    """Whether gradients carry a loss scale that is undone after this place."""
    step = window.step
    is_later = any(came > at for came, _ in window.unscales)
    return is_later or (step is not None and step.grad_scale not in (None, 1.0))
