"""Detects backward passes whose gradients are not reduced, not unscaled, or stale, and losses that count twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, said
from conformance.watch.judging.targets import near, weight_of
from conformance.watch.judging.windows import Window
from conformance.watch.records import Backward


class Passes(Chapter):
    """Judges the backward passes of all ranks."""

    def see(self, window: Window) -> None:
        if window.step is not None:
            for finding in (*_unreduced(window, window.step), *_unscales(window)):
                self._findings.add(finding)
                window.broken.append(finding.key)

    def judge(self, together: Together) -> None:
        # Only steps that use all gradients in full and divide them by nothing else.
        for window in together.here:
            in_full = {*together.kappas.get(window.rank, ())} in ({1.0}, {float(together.ranks)})
            if window.step is None or window.step.closure or not window.used or not in_full:
                continue
            again = [one for one in window.passes if one.contains and _adds(window, one)]
            repeated = _repeated(window)
            if repeated:
                effect = said("passes.twice", passes=len(repeated), all=len(window.backwards))
                found = Finding.of(window, "watch/backward-once", said("passes.repeat"), effect, repeated[0].site)
                self._findings.add(found, together.here)
            if again:
                effect = said("passes.twice", passes=len(again), all=len(window.backwards))
                found = Finding.of(window, "watch/backward-once", said("passes.contains"), effect, again[0].site)
                self._findings.add(found, together.here)


def _unreduced(window: Window, step: records.Stepped) -> Iterator[Finding]:
    if step.unreduced:
        says = said("passes.unreduced", parameters=len(step.unreduced), names=window.named(step.unreduced))
        effect = said("passes.unreduced-of", parameters=len(step.unreduced), all=len(step.parameters))
        site = [one.site for one in window.passes][-1:] or [window.site]
        yield Finding.of(window, "watch/averaged", says, effect, site[0])


def _unscales(window: Window) -> Iterator[Finding]:
    places = window.places
    if not places or (window.step is not None and window.step.closure):
        return
    for at, unscaled in window.unscales:
        later = {one.backward for contributions in window.new.values() for one in contributions if one.at > at}
        # A penalty without a loss scale may come after the unscale.
        is_scaled = any((window.backwards[one].scale or 1.0) != 1.0 for one in later if one in window.backwards)
        if min(places) < at < max(places) and is_scaled:
            says = said("passes.unscaled-between")
            effect = said("passes.scaled", passes=len(later), all=len(window.backwards), scale=unscaled.scale)
            yield Finding.of(window, "watch/unscale-whole-window", says, effect, unscaled.site)


def _repeated(window: Window) -> list[Backward]:
    """The passes whose loss was computed before from the same outputs, if the update is a mean without them: otherwise
    each of two equal losses may intentionally count half."""
    passes = window.passes
    again = [one for before, one in pairwise(passes) if one.is_alike and one.value and one.value == before.value]
    if not again:
        return []
    numbers = {one.backward for one in again}
    rest = {number: one for number, one in window.backwards.items() if number not in numbers}
    are_whole = near(weight_of(replace(window, backwards=rest)), 1)
    return again if are_whole and all(_adds(window, one) for one in again) else []


def _adds(window: Window, backward: Backward) -> bool:
    """Whether it adds to an earlier gradient of a parameter. Passes with different `inputs` may go through one loss for
    different parameters."""
    passes = [[one.backward for one in of_parameter] for of_parameter in window.new.values()]
    return any(backward.backward in of_parameter and min(of_parameter) < backward.backward for of_parameter in passes)
