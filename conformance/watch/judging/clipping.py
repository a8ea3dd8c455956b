"""Judges gradient clipping: which gradients, when, and over which parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import hypot, inf, isclose, isfinite

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.equations import Case, Shortened, Together
from conformance.watch.judging.findings import Finding, Findings, Said, Shown, said
from conformance.watch.judging.loss_scale import is_literal, is_unscaled_last
from conformance.watch.judging.many_steps import Steady
from conformance.watch.judging.properties import FACTS, Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Contribution, Window, factor_of
from conformance.watch.records import Clipped
from conformance.watch.sizes import WHOLE

_NEAR = 0.05
"""Norms of coarse gradients are equal within this."""

_ROUNDED = 1e-4
"""Relative rounding of a norm that a script divides by its own, with clipping's epsilon."""

_LEAST = 1e-3
"""A smaller limit, without the loss scale, is not intended. Others may be, as 1/64 times 1024 is 16."""

_AT_LIMIT = 1e-2
"""Relative spread of norms that were clipped to one limit, with clipping's epsilon."""


class Clipping(Chapter):
    """Judges the clip calls of all ranks, and factors that may be hand-written clipping.

    waiting: by rank and line, the last call whose gradients no step has used yet, and whether there was a step since.
    shortened: by optimizer and rank, the steps on gradients with a factor below 1."""

    fed = (records.Clipped, records.Stepped, records.Skipped, records.Passed)

    def __init__(self, findings: Findings, steady: Steady) -> None:
        super().__init__(findings)
        self._steady = steady
        self._waiting: dict[int, dict[str, tuple[Clipped, bool]]] = defaultdict(dict)
        self._shortened: dict[tuple[int, int], _Shortened] = defaultdict(_Shortened)

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        # Finds clip calls whose gradients no step uses, while a step has no clip call.
        waiting = self._waiting[rank]
        match record:
            case records.Clipped():
                before, is_aside = waiting.pop(str(record.site), (record, False))
                if is_aside and {*before.parameters} == {*record.parameters}:
                    self._findings.leave_open(said("clipping.aside"), site=record.site)
                if record.parameters and isfinite(record.limit) and (is_aside or factor_of(record) < 1):
                    waiting[str(record.site)] = record, False
            case records.Stepped():
                left = {line: clip for line, (clip, _) in waiting.items() if not _are_of(clip, record.parameters)}
                is_without = len(left) == len(waiting)
                self._waiting[rank] = {line: (clip, is_without or waiting[line][1]) for line, clip in left.items()}
            case records.Skipped() | records.Passed():
                # The parameters of such a step are unknown.
                waiting.clear()

    def see(self, window: Window) -> None:
        if window.step is None:
            return
        idle = [*_before_the_pass(window)]
        found = [_nothing(window, said("clip.used-up"), clip) for _, clip in window.clips if clip.used_up]
        for clip in idle:
            if _is_reached(window, clip):
                says = said("clip.after-step" if clip.norm else "clip.before-passes")
                found.append(_nothing(window, says, clip))
        for finding in found:
            self._findings.add(finding)
            window.broken.append(finding.key)
        for says, clip in _parts(window, () if found else idle):
            self._findings.leave_open(says, 1, window.index, clip.site)
        clips = [at for at, clip in window.clips if clip.given]
        if not found and clips and window.places and max(clips) > max(window.places):
            self._findings.seen[Property.CLIPPING] += 1

    def judge(self, together: Together) -> None:
        for window in together.here:
            if window.step is None or window.step.closure or not window.used:
                continue
            between = [(at, clip, held) for at, clip in window.clips if (held := _held_between(window, at, clip))]
            wrong = [clip for at, clip, held in between if _is_kept(together, window, held, clip)]
            for clip in wrong:
                self._findings.add(_between(window, clip), together.here)
            limits = [clip for _, clip, _ in between if isfinite(clip.limit)]
            if limits and not wrong:
                says = said("clipping.before-last-pass", limit=limits[0].limit)
                self._findings.leave_open(says, 1, window.index, limits[0].site)
            elif not wrong and (changed := _changed(together, window)) is not None:
                self._findings.leave_open(changed[0], 1, window.index, changed[1].site)

    def take(self, together: Together) -> None:
        for window in together.here:
            for one in together.shortened.get(window.rank, ()):
                self._shortened[window.optimizer, window.rank].take(window, one)

    def finish(self, end: End) -> None:
        for at, of in self._shortened.items():
            if of.are_clipped:
                self._steady.excuse(*at, of.suspected)
            self._findings.resolve(at, None if of.are_clipped else of.shows)
            if not of.are_clipped:
                if of.others:
                    self._findings.leave_open(said("ranks.factor", factor=of.factor), of.others)
            elif of.first is None:
                self._findings.seen[Property.CLIPPING] += of.steps
            elif of.wrong == of.steps:
                self._findings.add(of.first, count=of.steps)
            else:
                self._findings.leave_open(of.first.says, of.scaled, of.first.step, of.first.site)


@dataclass
class _Shortened:
    """Steps of an optimizer on a rank whose gradients have a factor below 1. factor: of the first. least, most: the
    range of the norms, with the loss scale where it was divided out afterwards: in `scaled` steps. first: the first of
    these, as a violation. wrong: those where this norm is a literal of the script. suspected: the bugs that the factors
    of some steps suggest. others: the number of the other steps."""

    steps: int = 0
    others: int = 0
    suspected: list[Finding] = field(default_factory=list)
    factor: float = 0.0
    least: float = inf
    most: float = 0.0
    scaled: int = 0
    wrong: int = 0
    first: Finding | None = None

    @property
    def are_clipped(self) -> bool:
        """Whether it is hand-written clipping, which always shortens to one norm. A bug that all factors suggest may
        follow a clip to one norm."""
        return self.steps > 1 and self.others > 0 and self.most <= self.least * (1 + _AT_LIMIT)

    @property
    def shows(self) -> Shown:
        return FACTS["ranks.factor"] if self.others else self.suspected[0].shows

    def take(self, window: Window, one: Shortened) -> None:
        factor, norm, suspected = one
        self.steps += 1
        if suspected is None:
            self.factor, self.others = self.factor or factor, self.others + 1
        else:
            self.suspected.append(suspected)
        is_last, scale = is_unscaled_last(window), max(window.scales, default=1.0)
        if scale != 1.0 and is_last is not False:
            norm *= scale
            self.scaled += 1
            is_tiny = norm / scale < _LEAST
            self.wrong += is_last is True and is_tiny and is_literal(norm, scale, len(window.backwards), _ROUNDED)
            says, effect = said("clipping.scaled-norm", limit=norm, scale=scale), said("clip.left.effect", left=factor)
            site = window.unscales[0][1].site if window.unscales else None
            self.first = self.first or Finding.of(window, "watch/unscale-before-clip", says, effect, site)
        self.least, self.most = min(self.least, norm), max(self.most, norm)


def _are_of(clip: Clipped, parameters: list[int]) -> bool:
    return not {*clip.parameters}.isdisjoint(parameters)


def _parts(window: Window, idle: Sequence[Clipped]) -> Iterator[tuple[Said, Clipped]]:
    """Yields facts about clipping by value and of a part of the gradients. idle: calls without fresh gradients."""
    by_value = [clip for _, clip in window.clips if clip.how == "value" and clip.given]
    nothing = [*idle, *(clip for _, clip in window.clips if not clip.given and not clip.used_up)]
    came = {number: passes[0].at for number, passes in window.new.items()}
    clipped = [
        ({n for n in window.used.keys() & {*clip.parameters} if came.get(n, 0) < at}, clip) for at, clip in window.clips
    ]
    parts = [(held, clip) for held, clip in clipped if held]
    if nothing:
        yield said("clipping.nothing"), nothing[0]
    if by_value:
        yield said("clipping.by-value", limit=by_value[0].limit), by_value[0]
    if parts and all(held != window.used.keys() for held, _ in parts):
        every = {number for held, _ in parts for number in held}
        yield said("clipping.parts", clipped=len(every), all=len(window.used), calls=len(parts)), parts[0][1]


# Calls that clip nothing.


def _before_the_pass(window: Window) -> Iterator[Clipped]:
    """Clip calls whose parameters had no fresh gradient."""
    last = max(window.places, default=None)
    if last is None or (window.step is not None and window.step.closure) or window.captured:
        return
    for clip in window.idle:
        # A script that clips all its models at every step also clips these after their backward pass.
        is_in_time = any(at > last and _are_of(clip, one.parameters) for at, one in window.clips)
        # A gradient that the script assigned by hand is still there when the next one is added.
        is_kept = any(one.is_any for number in clip.parameters for one in window.old.get(number, []))
        if isfinite(clip.limit) and not is_in_time and not is_kept:
            yield clip


def _is_reached(window: Window, clip: Clipped) -> bool:
    """Whether gradients exceed the limit of a misplaced call: those that it clipped, or else those of the step."""
    return factor_of(clip) < 1 if clip.norm else _norm(window) > clip.limit


def _nothing(window: Window, says: Said, clip: Clipped) -> Finding:
    effect = said(f"clip.not-by-{clip.how}", norm=_norm(window), limit=clip.limit)
    return Finding.of(window, "watch/clip-something", says, effect, clip.site)


def _norm(window: Window) -> float:
    """The norm of the used gradients, as far as they were read."""
    return hypot(*(float(sketch[2]) for sketch in window.used.values()))


# Calls between two backward passes of a window. A call alone proves nothing: for differential privacy, a script clips
# each micro-batch, keeps the result, clears `.grad`, and adds everything up in the end.


def _between(window: Window, clip: Clipped) -> Finding:
    held = {*clip.parameters} & window.used.keys()
    last = max(came for came, one in window.clips if held <= {*one.parameters})
    effect = said("clip.clipped-again")
    if later := {one.backward for passes in window.new.values() for one in passes if one.at > last}:
        effect = said("clip.passes-unclipped", passes=len(later), all=len(window.backwards))
    return Finding.of(window, "watch/clip-whole-window", said("clip.between-passes"), effect, clip.site)


def _held_between(window: Window, at: int, clip: Clipped) -> list[int]:
    """The clipped parameters for which the call came between two gradients of one loss."""
    # A penalty that comes last is another loss, which may intentionally stay unclipped.
    if len(window.kinds) != 1 and not _calls(window, at, later=False) & _calls(window, at, later=True):
        return []
    # Other parameters, such as those of a critic, may be clipped separately.
    passes = {number: window.new.get(number, []) for number in clip.parameters}
    held = [number for number in clip.parameters if number in window.used and window.used[number][2]]
    return [number for number in held if passes[number] and passes[number][0].at < at < passes[number][-1].at]


def _calls(window: Window, at: int, *, later: bool) -> set[int]:
    """Call sites of the losses whose gradients came up to this place in the stream, or later."""
    came = {one.backward for passes in window.new.values() for one in passes if (one.at > at) == later}
    return {window.backwards[number].calls for number in came if number in window.backwards}


def _is_kept(together: Together, window: Window, held: list[int], clip: Clipped) -> bool:
    """Whether the step uses what the clips left of each gradient, and no common factor explains it."""
    if clip.how == "norm" and factor_of(clip) == 1:
        return False
    alike = [window.clips_of(number) for number in held]
    case = Case(together, window, [number for number, clips in zip(held, alike, strict=True) if clips == alike[0]], [])
    case = case.undone() or case

    def in_turns(number: int) -> list[Contribution]:
        last = {other.rank: max((one.at for one in other.new.get(number, [])), default=0) for other in together.here}
        return [one for other in together.here for one in other.clipped(number, until=last[other.rank])]

    return case.is_known(in_turns) and case.fits(case.all) is None


def _changed(together: Together, window: Window) -> tuple[Said, Clipped] | None:
    """The last clip, if the norm of its result differs from that of the used gradients."""
    for n, (at, clip) in enumerate(window.clips):
        is_last = not any(_are_of(clip, later.parameters) for _, later in window.clips[n + 1 :])
        left, used = _left(window, clip), _used(together, window, clip)
        if not left or not used or not isfinite(clip.limit) or not is_last or _is_scaled(window, at):
            continue
        if clip.unheld and used < left * (1 - _NEAR):
            return said("clipping.unheld", count=clip.unheld, ratio=used / left), clip
        if not isclose(left, used, rel_tol=_NEAR):
            return said("clipping.before-change", ratio=used / left), clip
    return None


def _left(window: Window, clip: Clipped) -> float:
    """The norm of the clipped gradients; 0 if it is not known."""
    if clip.how == "norm":
        return (clip.norm or 0.0) * factor_of(clip)
    limits = [window.limited(number) for number in {*clip.parameters} & window.used.keys()]
    return hypot(*(float(of[-1].after[2]) for of in limits)) if all(limits) else 0.0


def _used(together: Together, window: Window, clip: Clipped) -> float | None:
    """The norm of the used gradients of the clipped parameters, over all shards; None if it is not known."""
    assert window.step is not None
    numbers = {*clip.parameters} & {*window.step.used}
    if not {*clip.parameters} <= {*window.step.parameters}:
        return None
    if any(window.samples.get(number, WHOLE) != WHOLE for number in numbers):
        return None
    norms = []
    for number in numbers:
        norms += [float(one.used[number][2]) for one in together.parts(number, window)]
    norm = hypot(*norms)
    return norm if isfinite(norm) else None


def _is_scaled(window: Window, at: int) -> bool:
    """Whether gradients have a loss scale that is undone after this place."""
    step = window.step
    is_later = any(came > at for came, _ in window.unscales)
    return is_later or (step is not None and step.grad_scale not in (None, 1.0))
