"""Does each call come where it belongs in a window of one rank?"""

from __future__ import annotations

from dataclasses import replace
from math import hypot, isfinite, sqrt

import numpy as np

from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Backward, Clipped, Site


def judge(window: Window, findings: Findings) -> None:
    step = window.step
    if step is None:
        return

    def found(law: str, says: str, site: Site, effect: str | None) -> None:
        finding = Finding(law, says, window.index, (window.rank,), site, effect, window.optimizer)
        findings.add(finding)
        window.broken.append(finding.key)

    wrong = sum(not np.isfinite(sketch).all() for sketch in window.used.values())
    if wrong and not step.found_inf:
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
    again = [backward for backward in window.backwards.values() if backward.contains and _adds(window, backward)]
    if again:
        says = "a backward pass goes through the loss of an earlier one again"
        effect = f"{len(again)} of {len(window.backwards)} backward passes add earlier gradients up once more"
        found("watch/backward-once", says, again[0].site, effect)
    for clip in window.idle:
        # One that changes nothing of what was there measures the norm.
        if isfinite(clip.limit) and (not clip.norm or factor_of(clip) < 1):
            found(
                "watch/clip-something",
                "clipping came before the backward pass, so there was nothing to clip",
                clip.site,
                _unclipped(window, clip),
            )
    for at, clip in window.clips:
        # What is backpropagated to other parameters meanwhile, such as those of a critic, is clipped by itself.
        own = [one.at for number in clip.parameters for one in window.new.get(number, [])]
        is_between = bool(own) and min(own) < at < max(own)
        if is_between and (clip.how == "value" or factor_of(clip) < 1):
            says, effect = "clipping came between two backward passes of a window", f"{_later(window, at)} clipped"
            found("watch/clip-whole-window", says, clip.site, effect)
        if (
            max(window.scales, default=1.0) != 1.0
            # A limit of the scale's own order is one that the script has scaled as well.
            and clip.limit < sqrt(max(window.scales))
            and at > max(own, default=last)
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


def _adds(window: Window, backward: Backward) -> bool:
    """Whether it adds to what an earlier one gave a parameter. Passes with `inputs` of their own go through one loss
    for different parameters."""
    passes = [[one.backward for one in of_parameter] for of_parameter in window.new.values()]
    return any(backward.backward in of_parameter and min(of_parameter) < backward.backward for of_parameter in passes)


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
