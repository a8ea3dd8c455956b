"""Does each call come where it belongs in a window of one rank?"""

from __future__ import annotations

from math import sqrt

from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Site


def judge(window: Window, findings: Findings) -> None:
    step = window.step
    if step is None:
        return

    def found(law: str, says: str, site: Site) -> None:
        finding = Finding(law, says, window.index, (window.rank,), site, optimizer=window.optimizer)
        findings.add(finding)
        window.broken.append(finding.key)

    for _, clip in window.clips:
        if not clip.given:
            found("watch/clip-something", "clipping was given no parameters", clip.site)
    if step.unreduced:
        says = f"gradients of {len(step.unreduced)} parameters are not reduced yet: {window.named(step.unreduced)}"
        found("watch/averaged", says, window.site)
    places = window.places
    if not places or step.closure:
        return
    first, last = min(places), max(places)
    again = [backward for backward in window.backwards.values() if backward.contains]
    if again and len(window.backwards) > 1:
        found("watch/backward-once", "a backward pass goes through the loss of an earlier one again", again[0].site)
    for at, schedule in window.schedules:
        if at > first and schedule.before != schedule.after:
            found(
                "watch/schedule-after-step",
                f"{schedule.name} stepped between the backward pass and the step",
                schedule.site,
            )
    for at, clip in window.clips:
        # One that changes nothing measures the norm.
        if first < at < last and (clip.how == "value" or factor_of(clip) < 1):
            found("watch/clip-whole-window", "clipping came between two backward passes of a window", clip.site)
        elif clip.parameters and window.first is not None and at < window.first:
            found(
                "watch/clip-something",
                "clipping came before the backward pass, so there was nothing to clip",
                clip.site,
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
            )
    for at, unscaled in window.unscales:
        if first < at < last:
            found("watch/unscale-whole-window", "unscale_ came between two backward passes of a window", unscaled.site)
