"""Does each call come where it belongs in a window of one rank?"""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot, isfinite

import numpy as np

from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.trials import Trials
from conformance.watch.judging.windows import Window
from conformance.watch.records import Clipped, Site, Stepped


class Order:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings, self._trials = findings, Trials(findings)

    @property
    def accuses(self) -> bool:
        return self._trials.accuses

    def judge(self, window: Window) -> None:
        if window.step is not None:
            self._trials.see(window, _infinite(window, window.step, self._findings))
            self._open(window)
            step = window.step
            found = (*_clips(window, step), *_averages(window, step), *_unscales(window), *_searches(window, step))
            for finding in found:
                self._findings.add(finding)
                window.broken.append(finding.key)

    def _open(self, window: Window) -> None:
        """A part of a model may have no parameters, or none that are trained yet."""
        nothing = [clip for _, clip in window.clips if not clip.given and not clip.used_up]
        if any(clip.used_up is None for clip in nothing) or (nothing and len(nothing) == len(window.clips)):
            self._findings.undecided("clipping was given no parameters, of which there may be none, or none any more")
        elif nothing:
            self._findings.note("clipping was given no parameters: a part of the model that has none?")
        clipped = {number for _, clip in window.clips for number in clip.parameters} & window.used.keys()
        if clipped and clipped != window.used.keys():
            self._findings.note(f"{len(clipped)} of {len(window.used)} parameters are clipped, and the others are not")

    def finish(self) -> None:
        self._trials.finish()


def _infinite(window: Window, step: Stepped, findings: Findings) -> Finding | None:
    wrong = sum(not np.isfinite(sketch).all() for sketch in window.used.values())
    if not wrong or step.found_inf:
        return None
    if step.is_own:
        findings.undecided("an optimizer of the script's own is given gradients that are not finite, and may know them")
        return None
    effect = f"the gradients of {wrong} of {len(step.parameters)} parameters are NaN or infinite"
    return _finding(window, "watch/finite", "a step on gradients that are not finite", window.site, effect)


def _averages(window: Window, step: Stepped) -> Iterator[Finding]:
    if step.unreduced:
        says = f"gradients of {len(step.unreduced)} parameters are not reduced yet: {window.named(step.unreduced)}"
        effect = f"{len(step.unreduced)} of {len(step.parameters)} parameters miss gradients of this window"
        yield _finding(window, "watch/averaged", says, window.site, effect)


def _clips(window: Window, step: Stepped) -> Iterator[Finding]:
    law = "watch/clip-something"
    for _, clip in window.clips:
        if clip.used_up:
            yield _finding(window, law, "clipping was given no parameters", clip.site, _unclipped(window, clip))
    last = max(window.places, default=0)
    for clip in window.idle if window.places and not step.closure else ():
        # One that changes nothing of what was there measures the norm, and a script that always clips all its models
        # does so in time, too.
        is_in_time = any(at > last and {*clip.parameters} & {*one.parameters} for at, one in window.clips)
        # A gradient that the script has put there by hand is still there when the next one is added to it. What
        # autograd.grad computes may be.
        is_kept = window.captured or any(
            one.sketch[..., 2].any() for number in clip.parameters for one in window.old.get(number, [])
        )
        if isfinite(clip.limit) and (not clip.norm or factor_of(clip) < 1) and not is_in_time and not is_kept:
            says = "clipping came before the backward pass, "
            says += "of gradients that a step had used" if clip.norm else "so there was nothing to clip"
            yield _finding(window, law, says, clip.site, _unclipped(window, clip))


def _unscales(window: Window) -> Iterator[Finding]:
    places = window.places
    if not places or (window.step is not None and window.step.closure):
        return
    for at, unscaled in window.unscales:
        later = {one.backward for contributions in window.new.values() for one in contributions if one.at > at}
        # A penalty that no loss scale multiplies is right after it.
        is_scaled = any((window.backwards[one].scale or 1.0) != 1.0 for one in later if one in window.backwards)
        if min(places) < at < max(places) and is_scaled:
            says = "unscale_ came between two backward passes of a window"
            effect = f"the gradients of {len(later)} of {len(window.backwards)} backward passes are not divided by "
            effect += f"{unscaled.scale:g}"
            yield _finding(window, "watch/unscale-whole-window", says, unscaled.site, effect)


def _searches(window: Window, step: Stepped) -> Iterator[Finding]:
    if step.stale > 1:
        says = f"the closure was called {step.stale} times at several weights, and computed no gradient"
        effect = f"{step.stale - 1} of {step.stale} gradients are of weights that no longer are"
        yield _finding(window, "watch/fresh", says, window.site, effect)


def _finding(window: Window, law: str, says: str, site: Site, effect: str | None) -> Finding:
    return Finding(law, says, window.index, (window.rank,), site, effect, window.optimizer)


def _unclipped(window: Window, clip: Clipped) -> str:
    norm = hypot(*(float(sketch[2]) for sketch in window.used.values()))
    limit = f"the limit of {'the norm' if clip.how == 'norm' else 'its elements'} {clip.limit:g}"
    return f"no gradient was clipped: the norm of what the step uses is at least {norm:.3g}, and {limit}"
