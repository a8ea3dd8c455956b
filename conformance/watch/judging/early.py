"""Detects clipping before the gradients are what the step uses: the last ones come later, or they change later."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import hypot, isclose, isfinite

from conformance.watch.judging import clipped_between
from conformance.watch.judging.case import Together, factor_of
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.windows import Window
from conformance.watch.records import Clipped
from conformance.watch.sizes import WHOLE

_NEAR = 0.05
"""Norms of coarse gradients are equal within this."""

_SEVERAL = 2
"""Steps: the order is the same in each window."""

_OUT_OF_REACH = 100.0
"""A limit of so many times the largest norm only measures the norm."""


@dataclass
class _Seen:
    """A clip call that comes early in one window. finding: if reaching its limit would have been a violation."""

    says: Said
    clip: Clipped
    finding: Finding | None


@dataclass
class _Of:
    """An optimizer of a rank. first: of `count` of its `steps`. wrong: how many of these would be a violation.
    norm: the largest one."""

    first: _Seen | None = None
    step: int = 0
    steps: int = 0
    count: int = 0
    wrong: int = 0
    norm: float = 0.0

    @property
    def is_wrong(self) -> bool:
        is_same = self.steps == self.wrong >= _SEVERAL
        return is_same and self.first is not None and self.first.clip.limit < _OUT_OF_REACH * self.norm


class Early:
    """Judges the clip calls of all ranks: by what they changed, or where they changed nothing, by their order."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Of] = defaultdict(_Of)

    @property
    def accuses(self) -> bool:
        return any(of.is_wrong for of in self._of.values())

    def judge(self, together: Together, window: Window) -> None:
        of = self._of[window.optimizer, window.rank]
        of.steps += 1
        reached = [*clipped_between.judged(together, window)]
        for finding in reached:
            self._findings.add(finding, together.here)
        seen = None if reached else _between(together, window) or _changed(together, window)
        if seen is None:
            return
        if seen.finding is not None:
            self._findings.show(seen.finding.key, together.here)
        of.count += 1
        of.wrong += seen.finding is not None
        of.norm = max(of.norm, seen.clip.norm or 0.0)
        of.first, of.step = (seen, window.index) if of.first is None else (of.first, of.step)

    def finish(self) -> None:
        """After all violations of clipping are found, which say more."""
        is_accused = any(cause.first.text.property is Property.CLIPPING for cause in self._findings.causes.values())
        for of in self._of.values():
            if of.first is not None and of.first.finding is not None and of.is_wrong:
                self._findings.add(of.first.finding, count=of.count)
            elif of.first is not None and not is_accused:
                self._findings.leave_open(of.first.says, of.count, of.step, of.first.clip.site)


def _between(together: Together, window: Window) -> _Seen | None:
    """A clip between two passes that changed nothing, as its limit was not reached."""
    for at, clip in window.clips:
        if clip.how != "norm" or not clip.norm or not isfinite(clip.limit) or factor_of(clip) < 1:
            continue
        if clipped_between.parameters_between(window, at, clip):
            says = said("clipping.before-last-pass", norm=clip.norm, limit=clip.limit)
            is_in_full = together.ranks == 1 and {*together.kappas.get(window.rank, ())} == {1.0}
            finding = None
            if is_in_full and _accumulates(window):
                effect = said("clip.limit-not-reached", norm=clip.norm, limit=clip.limit)
                finding = clipped_between.found(window, clip, said("clip.between-passes"), effect)
            return _Seen(says, clip, finding)
    return None


def _accumulates(window: Window) -> bool:
    """Whether a clip was given the sum of several passes, and not the last one alone: a script that keeps each clipped
    micro-batch by itself clears `.grad` in between."""
    for at, clip in window.clips:
        came = {one.backward for n in clip.parameters for one in window.new.get(n, []) if one.at < at}
        if len(came) > 1 and clip.norm and clip.how == "norm":
            last = max(came)
            norm = _norm_of_pass(window, clip, last)
            if norm and not isclose(norm, clip.norm, rel_tol=_NEAR):
                return True
    return False


def _norm_of_pass(window: Window, clip: Clipped, backward: int) -> float:
    """Of the gradients that a rank's own backward pass gave the parameters of a clip call."""
    passes = [one for number in clip.parameters for one in window.new.get(number, []) if one.backward == backward]
    return hypot(*(float(norm) for one in passes for norm in one.sketch[:, 2]))


def _changed(together: Together, window: Window) -> _Seen | None:
    """The last clip, if what it left has not the norm of what the step uses."""
    for n, (at, clip) in enumerate(window.clips):
        given = {*clip.parameters}
        is_last = all(given.isdisjoint(later.parameters) for _, later in window.clips[n + 1 :])
        left, used = (clip.norm or 0.0) * factor_of(clip), _used(together, window, clip)
        if not left or not used or not isfinite(clip.limit) or not is_last or _is_scaled(window, at):
            continue
        if isclose(left, used, rel_tol=_NEAR):
            continue
        finding = None
        if factor_of(clip) == 1.0 and _is_of_one_rank(together, clip):
            says = said("clip.before-averaging")
            effect = said("clip.limit-not-reached", norm=clip.norm, limit=clip.limit)
            rank = (window.rank,)
            finding = Finding("watch/one-factor", says, window.index, rank, window.site, effect, window.optimizer)
        return _Seen(said("clipping.before-change", ratio=used / left), clip, finding)
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


def _is_of_one_rank(together: Together, clip: Clipped) -> bool:
    """Whether each rank compared the norm of its own gradients, of a single backward pass, with this limit, and all
    use the mean."""
    for window in together.here:
        norms = [one.norm for _, one in window.clips if one.limit == clip.limit and one.parameters == clip.parameters]
        own = [_norm_of_pass(window, clip, backward) for backward in window.backwards]
        is_mean = {*together.kappas.get(window.rank, ())} == {1.0}
        is_own = len(norms) == len(own) == 1 and norms[0] is not None and isclose(norms[0], own[0], rel_tol=_NEAR)
        if not is_mean or not is_own:
            return False
    return together.ranks > 1
