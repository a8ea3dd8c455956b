"""Automatic mixed precision: what may not be done with gradients that still carry the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isclose

from conformance.laws.event import Event
from conformance.laws.labels import number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.loss_scale import Scaling, finite, largest, norm, scaled_windows
from conformance.laws.run import Plan, Run
from conformance.laws.sharing import brings_together

UNSCALED_GRADIENTS = 'PyTorch, "Automatic Mixed Precision examples", section "Working with Unscaled Gradients"'


@law(
    "amp/unscale-before-clip",
    "Gradients MUST be unscaled before they are clipped.",
    why="""Gradients of a scaled loss are S·g, so clipping them at t is clipping g at t/S: with norms,
        g · min(1, t / (S·‖g‖)). Almost every step is clipped then, and by an amount that changes with the scale.""",
    source=UNSCALED_GRADIENTS,
    mend="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
)
def unscale_before_clip(run: Run) -> Iterator[Check]:
    return _each(run, "clip", _clip)


def _clip(scaling: Scaling, clip: Event) -> Broken | bool:
    if scaling.is_unscaled(clip, clip["parameters"]):
        return True
    still = _still_scaled(scaling, clip)
    if still is None or not _is_plain(clip, still.scale, scaling.run.plan):
        return False
    return _clipped_scaled(clip, still.unscale, still.scale)


def _is_plain(clip: Event, scale: float, plan: Plan) -> bool:
    """Whether the threshold of a clip makes no allowance for the scale: it is the one that was asked for or, where none
    was, too small to have been multiplied by the scale."""
    asked = plan.clip
    if asked is None:
        return bool(clip["threshold"] < scale)
    return isclose(clip["threshold"], asked["threshold"], rel_tol=1e-6)


def _clipped_scaled(clip: Event, unscale: Event, scale: float) -> Broken:
    name = "clip_grad_norm_" if clip["kind"] == "norm" else "clip_grad_value_"
    what = "the norm" if clip["kind"] == "norm" else "each value"
    threshold, factor = number(clip["threshold"]), number(scale)
    return Broken(
        clip,
        f"`unscale_` must come before `{name}`",
        f"clipping compares {what} with {threshold} while gradients still carry the factor {factor}",
        f"{placed(clip)} came before {placed(unscale)}",
        (clip, unscale),
        _effect_of_clip(clip, scale),
    )


def _effect_of_clip(clip: Event, scale: float) -> str | None:
    threshold = clip["threshold"]
    in_effect = f"The unscaled gradients are in effect clipped at {number(threshold / scale)}"
    if clip["kind"] != "norm":
        return f"{in_effect}."
    if not isinstance(clip["norm"], int | float):
        return None
    if clip["norm"] <= threshold:
        return "Nothing is clipped in this window: even the scaled norm is within the threshold."
    right = min(clip["norm"] / scale, threshold)
    return f"{in_effect}; their norm becomes {number(threshold / scale)} instead of {number(right)}."


@law(
    "amp/unscale-before-inspection",
    "The norm of gradients SHOULD be taken after they are unscaled.",
    why="""The norm of S·g is S·‖g‖, a number that follows the scale: it doubles when the scale grows and halves when it
        backs off. What is decided or logged by it is about the scale as much as about the gradients.""",
    source=UNSCALED_GRADIENTS,
    mend="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        """,
)
def unscale_before_inspection(run: Run) -> Iterator[Check]:
    return _each(run, "norm", _inspection)


def _inspection(scaling: Scaling, look: Event) -> Broken | bool:
    if scaling.is_unscaled(look, look["parameters"]):
        return True
    still = _still_scaled(scaling, look)
    if still is None:
        return False
    return Broken(
        look,
        "`unscale_` should come before the norm is taken",
        f"gradients still carry the factor {number(still.scale)}",
        f"the norm of {number(look['norm'])} ({look.place}) was taken before {placed(still.unscale)}",
        (look, still.unscale),
        "The weights are right, unless the trainer decides something by this norm.",
    )


@law(
    "amp/unscale-before-change",
    "Gradients MUST be unscaled before they are changed by hand in any way that is not a plain scaling.",
    why="""An operation f on the gradients is meant for g, and f(S·g) / S is f(g) only where f is linear, as division
        by a count is. A clamp at t, noise, or a decay λ·w added to S·g comes out as a clamp at t/S, or as noise and
        decay divided by S.""",
    source=UNSCALED_GRADIENTS,
    mend="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.clamp_(-threshold, threshold)
        scaler.step(optimizer)
        scaler.update()
        """,
)
def unscale_before_change(run: Run) -> Iterator[Check]:
    return _each(run, "gradient_change", _change)


def _change(scaling: Scaling, change: Event) -> Broken | bool:
    if scaling.is_unscaled(change, change["parameters"]):
        return True
    still = _still_scaled(scaling, change)
    step = scaling.next(change, ("step",), change["parameters"])
    # What overflowed is not stepped on, and its changes have no factor that could be told.
    if still is None or step is None or scaling.overflowed or _is_sync(change, scaling):
        return False
    what = _changed_how(change, step, still.scale, scaling.run.plan)
    return True if what is None else _changed_scaled(change, still.unscale, still.scale, what)


def _is_sync(change: Event, scaling: Scaling) -> bool:
    """Whether the gradients changed around a collective, or a message that came, which then may have changed them; or
    between ranks that brought theirs together in a way that leaves no trace, if at all."""
    events = scaling.window.events
    is_seen = any(event.kind == "receive" or brings_together(event) for event in events)
    is_unseen = scaling.run.plan.world_size > 1 and not is_seen
    return is_unseen or any(
        event.kind in ("collective", "receive") and change["since"] <= event.seq <= change.seq for event in events
    )


def _changed_how(change: Event, step: Event, scale: float, plan: Plan) -> str | None:
    """What a change was, if it is certain that it should have come after unscaling."""
    seen = step["gradients"]
    if not seen or not finite(seen):
        return None
    threshold = plan.clip["threshold"] if plan.clip else None
    clipped = norm(seen) if plan.clip and plan.clip["kind"] == "norm" else largest(seen)
    if change["factor"] is None:
        # Clipped at a threshold that was multiplied by the scale: as good.
        return None if threshold and isclose(clipped, threshold, rel_tol=1e-3) else "changed by hand"
    if threshold and isclose(clipped * scale, threshold, rel_tol=1e-3):
        return f"clipped by hand, to {number(threshold)},"
    return None


def _changed_scaled(change: Event, unscale: Event, scale: float, what: str) -> Broken:
    return Broken(
        change,
        "`unscale_` must come before gradients are changed",
        f"they still carry the factor {number(scale)} until then",
        f"they were {what} before {placed(unscale)}",
        (change, unscale),
        f"What was done to them comes out divided by {number(scale)}.",
    )


@dataclass(frozen=True)
class _StillScaled:
    scale: float
    unscale: Event


def _still_scaled(scaling: Scaling, at: Event) -> _StillScaled | None:
    """The scale that the gradients that ``at`` is about carry, and what takes it off them later.

    Without an unscale to come, or a step that unscales, it is amp/step-through-scaler.
    """
    scale = scaling.carried(at, at["parameters"])
    unscale = scaling.next(at, ("unscale", "scaler_step"), at["parameters"])
    return None if scale is None or unscale is None else _StillScaled(scale, unscale)


def _each(run: Run, kind: str, judged: Callable[[Scaling, Event], Broken | bool]) -> Iterator[Check]:
    """The law applied to each event of a kind: broken, kept (True), or there is no telling (False)."""
    for scaling in scaled_windows(run):
        outcomes = [judged(scaling, event) for event in scaling.window.of(kind)]
        found = next((outcome for outcome in outcomes if isinstance(outcome, Broken)), None)
        if found is not None:
            yield broken(scaling.window, found)
        elif True in outcomes:
            yield kept(scaling.window)
