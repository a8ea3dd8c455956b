"""Does each call come where it belongs in a window of one rank?"""

from __future__ import annotations

from math import hypot, isfinite

import numpy as np

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

    wrong = sum(not np.isfinite(sketch).all() for sketch in window.used.values())
    if wrong and not step.found_inf and step.is_own:
        findings.undecided("an optimizer of the script's own is given gradients that are not finite, and may know them")
    elif wrong and not step.found_inf:
        effect = f"the gradients of {wrong} of {len(step.parameters)} parameters are NaN or infinite"
        found("watch/finite", "a step on gradients that are not finite", window.site, effect)
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
    for clip in window.idle:
        # One that changes nothing of what was there measures the norm, and a script that always clips all its models
        # does so in time, too.
        is_in_time = any(at > last and {*clip.parameters} & {*one.parameters} for at, one in window.clips)
        if isfinite(clip.limit) and (not clip.norm or factor_of(clip) < 1) and not is_in_time:
            found(
                "watch/clip-something",
                "clipping came before the backward pass, so there was nothing to clip",
                clip.site,
                _unclipped(window, clip),
            )
    for at, unscaled in window.unscales:
        later = {one.backward for contributions in window.new.values() for one in contributions if one.at > at}
        # A penalty that no loss scale multiplies is right after it.
        is_scaled = any((window.backwards[one].scale or 1.0) != 1.0 for one in later if one in window.backwards)
        if first < at < last and is_scaled:
            says = "unscale_ came between two backward passes of a window"
            effect = f"the gradients of {len(later)} of {len(window.backwards)} backward passes are not divided by "
            effect += f"{unscaled.scale:g}"
            found("watch/unscale-whole-window", says, unscaled.site, effect)


def _unclipped(window: Window, clip: Clipped) -> str:
    norm = hypot(*(float(sketch[2]) for sketch in window.used.values()))
    limit = f"the limit of {'the norm' if clip.how == 'norm' else 'its elements'} {clip.limit:g}"
    return f"no gradient was clipped: the norm of what the step uses is at least {norm:.3g}, and {limit}"
