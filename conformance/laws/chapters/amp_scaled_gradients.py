"""Automatic mixed precision: what a trainer must not do with gradients that still carry the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, isclose
from typing import TypeVar

from conformance.laws.law import OK, Broken, Kept, Outcomes, law
from conformance.laws.loss_scale import Scaling, overflowed, scaling
from conformance.laws.run import Window
from conformance.laws.sharing import brings_together
from conformance.trace.events import (
    Clip,
    Collective,
    Event,
    Exchange,
    GradientChange,
    Norm,
    Receive,
    ScalerStep,
    Step,
    Unscale,
)
from conformance.trace.words import number

UNSCALED_GRADIENTS = 'PyTorch, "Automatic Mixed Precision examples", section "Working with Unscaled Gradients"'

T = TypeVar("T", Clip, Norm, GradientChange)


@law(
    "amp/unscale-before-clip",
    "Gradients MUST be unscaled before they are clipped.",
    why="""Gradients of a scaled loss are S·g, so clipping them at t clips g at t/S: by norm,
        g · min(1, t / (S·‖g‖)). Almost every step is clipped then, by an amount that changes with the scale.""",
    source=UNSCALED_GRADIENTS,
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(Clip,),
)
def unscale_before_clip(window: Window) -> Outcomes:
    yield from _each(window, Clip, _clip)


def _clip(scaling: Scaling, clip: Clip, still: _StillScaled) -> Broken | None:
    threshold = clip.threshold
    if isinstance(threshold, str) or not _is_plain(threshold, still.scale, scaling.window):
        return None
    what = "the norm" if clip.kind == "norm" else "each value"
    return Broken(
        clip,
        f"`unscale_` must come before `{clip.function}`",
        f"clipping compares {what} with {number(threshold)} while gradients still carry the factor "
        f"{number(still.scale)}",
        f"{clip} came before {still.unscale}",
        (clip, still.unscale),
        _effect_of_clip(clip, threshold, still.scale),
    )


def _is_plain(threshold: float, scale: float, window: Window) -> bool:
    """Whether the threshold of a clip ignores the scale: it is the one in the plan or, if the plan has none, too small
    to have been multiplied by the scale."""
    asked = window.plan.clip
    return threshold < scale if asked is None else isclose(threshold, asked["threshold"], rel_tol=1e-6)


def _effect_of_clip(clip: Clip, threshold: float, scale: float) -> str | None:
    in_effect = f"The unscaled gradients are in effect clipped at {number(threshold / scale)}"
    if clip.kind != "norm":
        return f"{in_effect}."
    if not isinstance(clip.norm, int | float):
        return None
    if clip.norm <= threshold:
        return "Nothing is clipped in this window: even the scaled norm is within the threshold."
    right = min(clip.norm / scale, threshold)
    return f"{in_effect}; their norm becomes {number(threshold / scale)} instead of {number(right)}."


@law(
    "amp/unscale-before-inspection",
    "The norm of gradients SHOULD be taken after they are unscaled.",
    why="""The norm of S·g is S·‖g‖: it doubles when the scale grows and halves when the scale backs off. A decision or
        a log that uses it depends on the scale as much as on the gradients.""",
    source=UNSCALED_GRADIENTS,
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(Norm,),
)
def unscale_before_inspection(window: Window) -> Outcomes:
    yield from _each(window, Norm, _inspection)


def _inspection(scaling: Scaling, look: Norm, still: _StillScaled) -> Broken:
    return Broken(
        look,
        "`unscale_` should come before the norm is taken",
        f"gradients still carry the factor {number(still.scale)}",
        f"the norm of {number(look.norm)} ({look.line}) was taken before {still.unscale}",
        (look, still.unscale),
        "The weights are right, unless the trainer decides something by this norm.",
    )


@law(
    "amp/unscale-before-change",
    "Gradients MUST be unscaled before they are changed by hand, unless they are only multiplied by a factor.",
    why="""An operation f on the gradients is meant for g, and f(S·g) / S equals f(g) only if f is linear, like division
        by a count. On S·g, a clamp at t becomes a clamp at t/S, and noise or a decay λ·w is divided by S.""",
    source=UNSCALED_GRADIENTS,
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.clamp_(-threshold, threshold)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(GradientChange,),
)
def unscale_before_change(window: Window) -> Outcomes:
    yield from _each(window, GradientChange, _change)


def _change(scaling: Scaling, change: GradientChange, still: _StillScaled) -> Broken | Kept | None:
    step = scaling.next(change, Step, change.parameters)
    # Overflowed gradients are not used for a step, and the factor of a change to them is unknown. So is masters'.
    if step is None or overflowed(scaling.window) or change.of_masters or _is_sync(change, scaling.window):
        return None
    what = _changed_how(change, step, still.scale, scaling.window)
    if what is None:
        return OK
    return Broken(
        change,
        "`unscale_` must come before gradients are changed",
        f"they still carry the factor {number(still.scale)} until then",
        f"they were {what} before {still.unscale}",
        (change, still.unscale),
        "`unscale_` finds no overflow any more, so the step is not skipped."
        if isinstance(change.factor, str)
        else f"The effect of this change is divided by {number(still.scale)}.",
    )


def _is_sync(change: GradientChange, window: Window) -> bool:
    """Whether averaging may explain the change: a collective or a received message came with it, or the trace shows no
    averaging at all although there are several ranks."""
    exchanges = window.of(Exchange)
    is_seen = any(isinstance(event, Receive) or brings_together(event) for event in exchanges)
    return (window.plan.world_size > 1 and not is_seen) or any(
        isinstance(event, Collective | Receive) and change.since <= event.seq <= change.seq for event in exchanges
    )


def _changed_how(change: GradientChange, step: Step, scale: float, window: Window) -> str | None:
    """A phrase for the change, if it certainly should have come after unscaling; otherwise None."""
    seen = [one for one in step.gradients or () if isinstance(one, int | float)]
    if not step.gradients or any(isinstance(one, str) for one in step.gradients):
        return None
    if isinstance(change.factor, str):
        return "made finite"
    clip = window.plan.clip
    threshold = clip["threshold"] if clip else None
    clipped = hypot(*seen) if clip and clip["kind"] == "norm" else max(map(abs, seen), default=0.0)
    if change.factor is None:
        # Clipping at threshold times scale is right.
        return None if threshold and isclose(clipped, threshold, rel_tol=1e-3) else "changed by hand"
    if threshold and isclose(clipped * scale, threshold, rel_tol=1e-3):
        return f"clipped by hand, to {number(threshold)},"
    return None


@dataclass(frozen=True)
class _StillScaled:
    """The scale that gradients carry, and the event that divides them by it later."""

    scale: float
    unscale: Unscale | ScalerStep


def _still_scaled(scaling: Scaling, at: Event, parameters: Sequence[int]) -> _StillScaled | None:
    """None if no unscale, and no step that unscales, follows: then the trace does not show the scale's effect."""
    scale = scaling.carried(at, parameters)
    ends = [scaling.next(at, Unscale, parameters), scaling.next(at, ScalerStep, parameters)]
    unscale = min((end for end in ends if end is not None), key=lambda end: end.seq, default=None)
    return None if scale is None or unscale is None else _StillScaled(scale, unscale)


def _each(
    window: Window, kind: type[T], judged: Callable[[Scaling, T, _StillScaled], Broken | Kept | None]
) -> Outcomes:
    """Judges each event of a kind whose gradients still carry the scale; events on unscaled gradients are OK."""
    if not scaling(window).is_scaled:
        return
    kept = False
    for event in window.of(kind):
        outcome: Broken | Kept | None = None
        if scaling(window).is_unscaled(event, event.parameters):
            outcome = OK
        elif (still := _still_scaled(scaling(window), event, event.parameters)) is not None:
            outcome = judged(scaling(window), event, still)
        if isinstance(outcome, Broken):
            yield outcome
            return
        kept |= outcome is OK
    if kept:
        yield OK
