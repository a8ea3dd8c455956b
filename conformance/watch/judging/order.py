"""Does each call come where it belongs in a window of one rank?"""

from __future__ import annotations

from dataclasses import replace
from math import hypot, sqrt

from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Clipped, Site


def judge(window: Window, findings: Findings) -> None:
    step = window.step
    if step is None:
        return

    def found(law: str, says: str, site: Site, effect: str | None) -> None:
        finding = Finding(law, says, window.index, (window.rank,), site, effect, window.optimizer)
        findings.add(finding)
        window.broken.append(finding.key)

    for _, clip in window.clips:
        if not clip.given:
            found("watch/clip-something", "clipping was given no parameters", clip.site, _unclipped(window, clip))
    if step.unreduced:
        says = f"gradients of {len(step.unreduced)} parameters are not reduced yet: {window.named(step.unreduced)}"
        effect = f"{len(step.unreduced)} of {len(step.parameters)} parameters miss gradients of this window"
        found("watch/averaged", says, window.site, effect)
    places = window.places
    if not places or step.closure:
        return
    first, last = min(places), max(places)
    again = [backward for backward in window.backwards.values() if backward.contains]
    if again and len(window.backwards) > 1:
        says = "a backward pass goes through the loss of an earlier one again"
        effect = f"{len(again)} of {len(window.backwards)} backward passes add earlier gradients up once more"
        found("watch/backward-once", says, again[0].site, effect)
    for at, schedule in window.schedules:
        if at > first and schedule.before != schedule.after:
            found(
                "watch/schedule-after-step",
                f"{schedule.name} stepped between the backward pass and the step",
                schedule.site,
                _rates(schedule.before, schedule.after),
            )
    for at, clip in window.clips:
        # One that changes nothing measures the norm.
        if first < at < last and (clip.how == "value" or factor_of(clip) < 1):
            says, effect = "clipping came between two backward passes of a window", f"{_later(window, at)} clipped"
            found("watch/clip-whole-window", says, clip.site, effect)
        elif clip.parameters and window.first is not None and at < window.first:
            found(
                "watch/clip-something",
                "clipping came before the backward pass, so there was nothing to clip",
                clip.site,
                _unclipped(window, clip),
            )
        if (
            max(window.scales, default=1.0) != 1.0
            # A limit of the scale's own order is one that the script has scaled as well.
            and clip.limit < sqrt(max(window.scales))
            and at > last
            and not any(unscaled < at for unscaled, _ in window.unscales)
            # Without one the script has divided by itself, before or after.
            and (step.grad_scale is not None or any(unscaled > at for unscaled, _ in window.unscales))
        ):
            found(
                "watch/unscale-before-clip",
                f"clipping compared the norm of gradients times {max(window.scales):g} with {clip.limit:g}",
                clip.site,
                _too_short(clip, max(window.scales)),
            )
    for at, unscaled in window.unscales:
        if first < at < last:
            says = "unscale_ came between two backward passes of a window"
            effect = f"{_later(window, at)} divided by {unscaled.scale:g}"
            found("watch/unscale-whole-window", says, unscaled.site, effect)


def _later(window: Window, at: int) -> str:
    """The backward passes of a window that come after this place in the stream."""
    later = {one.backward for contributions in window.new.values() for one in contributions if one.at > at}
    return f"the gradients of {len(later)} of {len(window.backwards)} backward passes are not"


def _unclipped(window: Window, clip: Clipped) -> str:
    norm = hypot(*(float(sketch[2]) for sketch in window.used.values()))
    limit = f"the limit of {'the norm' if clip.how == 'norm' else 'its elements'} {clip.limit:g}"
    return f"no gradient was clipped: the norm of what the step uses is at least {norm:.3g}, and {limit}"


def _too_short(clip: Clipped, scale: float) -> str:
    if clip.how != "norm" or not clip.norm:
        return f"what is compared with the limit is {scale:g} times what it should be"
    right = factor_of(replace(clip, norm=clip.norm / scale))
    return f"clipping leaves {factor_of(clip) / right:.3g} of what it should leave of the gradients"


def _rates(before: list[float | None], after: list[float | None]) -> str | None:
    changed = [(old, new) for old, new in zip(before, after, strict=False) if old != new and None not in (old, new)]
    return f"the step's learning rate is {changed[0][1]:.3g} in place of {changed[0][0]:.3g}" if changed else None
