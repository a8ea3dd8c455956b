"""Laws of automatic mixed precision: when and how often gradients are unscaled, and what must wait for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import hypot, isclose
from typing import TypeVar

from conformance.laws.law import OK, Broken, Outcome, law
from conformance.laws.scaled_gradients import (
    all_finite,
    averages_gradients,
    divides_by,
    is_scale,
    overflowed,
    scaling,
    unscaled_before_sync,
)
from conformance.laws.subjects import Run, Window, fact
from conformance.laws.wrong_factor import correct_gradients
from conformance.trace import events as trace
from conformance.trace.short_texts import number

UNSCALED_GRADIENTS = 'PyTorch, "Automatic Mixed Precision examples", section "Working with Unscaled Gradients"'

T = TypeVar("T", trace.Clip, trace.Norm, trace.GradientChange)


@law(
    "amp/unscale-before-clip",
    "Gradients MUST be unscaled before they are clipped.",
    fault="clips before it unscales",
    why="""Gradients of a scaled loss are S·g, so clipping them at t clips g at t/S: by norm,
        g · min(1, t / (S·‖g‖)). Then almost every step is clipped, by an amount that changes with the scale.""",
    source=UNSCALED_GRADIENTS,
    advice="call `scaler.unscale_(optimizer)` before you clip",
    edit="unscale above it",
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.Clip,),
)
def unscale_before_clip(window: Window) -> Outcome:
    return _each(window, trace.Clip, _clip)


def _clip(window: Window, clip: trace.Clip, scale: float, unscale: trace.Event) -> Outcome:
    threshold, asked = clip.threshold, window.plan.clip
    if isinstance(threshold, str):
        return None
    # The threshold ignores the scale if it is the plan's or, without one, too small to include the scale.
    if not (threshold < scale if asked is None else isclose(threshold, asked["threshold"], rel_tol=1e-6)):
        return None
    what = "the norm" if clip.kind == "norm" else "each value"
    effect: str | None = f"The effective threshold is {number(threshold / scale)} instead of {number(threshold)}"
    if clip.kind != "norm":
        effect = f"{effect}."
    elif not isinstance(clip.norm, int | float):
        effect = None
    elif clip.norm <= threshold:
        effect = "None in this window: even the scaled norm is within the threshold."
    else:
        right = number(min(clip.norm / scale, threshold))
        effect = f"{effect}; the norm becomes {number(threshold / scale)} instead of {right}."
    return Broken(
        clip,
        f"`unscale_` before `{clip.function}`",
        f"{clip} came before {unscale}",
        f"clipping compares {what} with {number(threshold)}, but gradients still carry the loss scale {number(scale)}",
        (clip, unscale),
        effect,
    )


@law(
    "amp/unscale-before-inspection",
    "The norm of gradients SHOULD be computed after they are unscaled.",
    fault="computes the norm of gradients before it unscales them",
    why="""The norm of S·g is S·‖g‖: it doubles when the scale grows and halves when the scale backs off. A decision or
        a log that uses it depends on the scale as much as on the gradients.""",
    source=UNSCALED_GRADIENTS,
    advice="call `scaler.unscale_(optimizer)` before you compute the norm",
    edit="unscale above it",
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.Norm,),
)
def unscale_before_inspection(window: Window) -> Outcome:
    return _each(window, trace.Norm, _inspection)


def _inspection(window: Window, look: trace.Norm, scale: float, unscale: trace.Event) -> Outcome:
    return Broken(
        look,
        "`unscale_` before the norm",
        f"the norm {number(look.norm)} ({look.line}) was computed before {unscale}",
        f"gradients still carry the loss scale {number(scale)}",
        (look, unscale),
        "The weights are correct, unless the trainer uses this norm for a decision.",
    )


@law(
    "amp/unscale-before-change",
    "Gradients MUST be unscaled before they are changed by hand, except by a constant factor.",
    fault="changes gradients before it unscales them",
    why="""An operation f on the gradients is meant for g, and f(S·g) / S equals f(g) only if f is linear, such as
        division by a count. On S·g, a clamp at t becomes a clamp at t/S, and noise or a decay λ·w is divided by S.""",
    source=UNSCALED_GRADIENTS,
    advice="call `scaler.unscale_(optimizer)` before you change gradients",
    edit="unscale above it",
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            parameter.grad.clamp_(-threshold, threshold)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.GradientChange,),
)
def unscale_before_change(window: Window) -> Outcome:
    return _each(window, trace.GradientChange, _change)


def _change(window: Window, change: trace.GradientChange, scale: float, unscale: trace.Event) -> Outcome:
    step = scaling(window).next(change, trace.Step, change.parameters)
    # No step uses gradients that overflowed, and the factor of a change to them, or to masters, is unknown.
    if step is None or overflowed(window) or change.of_masters:
        return None
    what = _changed_how(change, step, scale, window)
    if what is None:
        return OK
    if not (isinstance(change.factor, str) or _was_complete(change, window, scale)):
        return None
    return Broken(
        change,
        "`unscale_` before gradients are changed",
        f"gradients were {what} ({change.line}) before {unscale}",
        f"they still carried the loss scale {number(scale)}",
        (change, unscale),
        "`unscale_` no longer finds the overflow, so the step is not skipped."
        if isinstance(change.factor, str)
        else f"The effect of this change is divided by {number(scale)}.",
    )


def _was_complete(change: trace.GradientChange, window: Window, scale: float) -> bool:
    """Whether it changed the gradients of the whole window. A change of others may average them or sum them up."""
    seen = change.before
    if seen is None or len(seen) != window.plan.model.size or not all_finite(seen) or not any(seen):
        return False
    return any(right.is_times(scale, seen) for right in correct_gradients(window.run).get(window.number, ()))


def _changed_how(change: trace.GradientChange, step: trace.Step, scale: float, window: Window) -> str | None:
    """A phrase for the change if it certainly came too early; otherwise None."""
    seen = [one for one in step.gradients or () if isinstance(one, int | float)]
    if not step.gradients or any(isinstance(one, str) for one in step.gradients):
        return None
    if isinstance(change.factor, str):
        return "made finite"
    clip = window.plan.clip
    threshold = clip["threshold"] if clip else None
    clipped = hypot(*seen) if clip and clip["kind"] == "norm" else max(map(abs, seen), default=0.0)
    if change.factor is None:
        # Clipping at threshold times scale is correct.
        return None if threshold and isclose(clipped, threshold, rel_tol=1e-3) else "changed by hand"
    if threshold and isclose(clipped * scale, threshold, rel_tol=1e-3):
        return f"clipped by hand to {number(threshold)}"
    return None


def _each(window: Window, kind: type[T], judged: Callable[[Window, T, float, trace.Event], Outcome]) -> Outcome:
    """Judges each event of a kind by the scale that its gradients carry and by their later unscaling; without one, the
    trace does not show the scale's effect. Events on unscaled gradients are OK."""
    found: Outcome = None
    scaled = scaling(window)
    for event in window.of(kind) if scaled.is_scaled else ():
        outcome: Outcome = None
        ends = [
            scaled.next(event, trace.Unscale, event.parameters),
            scaled.next(event, trace.ScalerStep, event.parameters),
        ]
        unscale = min((end for end in ends if end is not None), key=lambda end: end.seq, default=None)
        if scaled.is_unscaled(event, event.parameters):
            outcome = OK
        elif unscale is not None and (scale := scaled.carried(event, event.parameters)) is not None:
            outcome = judged(window, event, scale, unscale)
        if isinstance(outcome, Broken):
            return outcome
        found = outcome or found
    return found


ACCUMULATION = 'PyTorch, "Automatic Mixed Precision examples", section "Gradient accumulation"'


@law(
    "amp/unscale-once",
    "The gradients of an optimizer MUST be unscaled at most once in a window.",
    fault="unscales the same gradients twice",
    why="""Each unscaling divides by S, so a second one turns the gradient g into g / S. GradScaler refuses a second
        `unscale_` before `update()`, but cannot see a division by hand.""",
    source='PyTorch, torch.amp, `GradScaler.unscale_`: "should only be called once per optimizer per step call"',
    advice="keep one `scaler.unscale_(optimizer)`, and remove other divisions by the scale",
    edit="remove it",
    fix="""
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # step() remembers this and does not unscale again
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.Unscale,),
)
def unscale_once(window: Window) -> Outcome:
    if not scaling(window).is_scaled:
        return None
    twice = _refused(window) or _unscaled_again(window) or _unscaled_by_hand_too(window)
    if twice is None:
        return OK
    first, second = twice
    scale, refused = number(window.of(trace.Unscale)[0].scale), isinstance(second, trace.Raised)
    again = f"GradScaler reported {second.message!r}" if isinstance(second, trace.Raised) else str(second)
    return Broken(
        second,
        "one unscaling per window",
        f"unscaled again after {first}: {again}",
        f"the gradients carry the loss scale {scale} only once",
        twice,
        None if refused else f"The step uses gradients that are {scale}x too small.",
        # The scaler's own unscaling belongs to its step.
        edit="remove gradient" if isinstance(first, trace.GradientChange) else "",
    )


def _refused(window: Window) -> tuple[trace.Event, trace.Event] | None:
    """The error of a refused `unscale_`, after the earlier one in the same window."""
    for error in window.of(trace.Raised):
        unscales = [
            event for event in window.of(trace.Unscale) if not window.between(trace.Update, after=event, before=error)
        ]
        if unscales and error.message.startswith("unscale_() "):
            return unscales[-1], error
    return None


def _unscaled_again(window: Window) -> tuple[trace.Event, trace.Event] | None:
    for first, second in pairwise(window.of(trace.Unscale)):
        # After an update, a backward or a clearing, these are other gradients.
        if first.optimizer == second.optimizer and not _between(
            window, first, second, trace.Update, trace.BackwardEnd, trace.ZeroGrad
        ):
            return first, second
    return None


def _unscaled_by_hand_too(window: Window) -> tuple[trace.Event, trace.Event] | None:
    for change in window.of(trace.GradientChange):
        for unscale in window.of(trace.Unscale):
            scale = unscale.scale
            first, second = (change, unscale) if change.seq < unscale.seq else (unscale, change)
            if (
                not isinstance(scale, str)
                and divides_by(change.factor, scale)
                and scale > _samples(window.run)
                and set(change.parameters) <= set(scaling(window).held(unscale.optimizer))
                and not _between(window, first, second, trace.BackwardEnd, trace.ZeroGrad, trace.Step)
            ):
                return first, second
    return None


@fact
def _samples(run: Run) -> float:
    """The largest divisor that averaging may use."""
    spec = run.plan.spec
    sizes = [sum(map(len, run.plan.micro_batches(rank, 0))) for rank in range(run.plan.world_size)]
    return float(sum(sizes) * max([1.0, *spec["samples"]["weight"]]))


@law(
    "amp/unscale-after-last-backward",
    "Gradients MUST be unscaled only after the last backward of the window.",
    fault="unscales before the last backward of a step",
    why="""Unscaled after the k-th of n micro-batches, the gradient becomes g₁ + … + gₖ + S·(gₖ₊₁ + … + gₙ), from which
        no division recovers the sum. If each micro-batch ends with an unscaling, the gradients of the first are divided
        by S again and again.""",
    source=ACCUMULATION,
    advice="move `scaler.unscale_(optimizer)` after the last backward of the window",
    edit="it above clip|step",
    fix="""
        for inputs, targets in window:
            loss = criterion(model(inputs), targets) / len(window)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.Unscale,),
)
def unscale_after_last_backward(window: Window) -> Outcome:
    unscales = window.of(trace.Unscale)
    # With several optimizers, a later backward may belong to another optimizer.
    if not scaling(window).is_scaled or len({event.optimizer for event in unscales}) > 1:
        return None
    for unscale in unscales:
        steps = window.between(trace.Attempt, after=unscale)
        # acc/step-after-all-backwards reports a step that unscales too early itself.
        if unscale.implicit or not steps:
            continue
        ends = scaling(window).accumulated(steps[0])
        late = next((end for end in ends if end.seq > unscale.seq and is_scale(end.scaled)), None)
        if late is None or ends[0].seq > unscale.seq:
            continue
        scale = number(late.scaled or 0)
        return Broken(
            unscale,
            "`unscale_` after the last backward of the window",
            f"{unscale} came before the backward at {late.line}",
            f"this backward adds gradients with the loss scale {scale} to unscaled ones",
            (unscale, late),
            f"The earlier micro-batches have 1/{scale} of the weight of the others.",
        )
    return OK


@law(
    "amp/unscale-after-sync",
    "Gradients MUST be unscaled only after the ranks have averaged them.",
    fault="unscales before the ranks average their gradients",
    why="""`unscale_` also looks for overflows: before the average, a rank finds only its own infinities. It skips while
        the others step with the infinity that it sends them, or it steps while they skip.""",
    source='Determined, PyTorchTrial guide, "The Laws of PyTorchTrial": always synchronize before `scaler.step`, '
    "otherwise each worker steps differently",
    advice="average the gradients before `scaler.unscale_(optimizer)`",
    fix="""
        scaler.scale(loss).backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= torch.distributed.get_world_size()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        """,
    latent="""The order of the two divisions does not matter until a gradient overflows. Once the gradients of one rank
        overflow, some ranks step and others skip.""",
    needs=(trace.Unscale,),
)
def unscale_after_sync(window: Window) -> Outcome:
    if window.plan.world_size == 1 or not scaling(window).is_scaled:
        return None
    if not any(averages_gradients(event) for event in window.of(trace.Contribution)):
        return None
    pair = unscaled_before_sync(window)
    if pair is None:
        return OK
    unscale, collective = pair
    return Broken(
        unscale,
        "`unscale_` after the ranks have averaged their gradients",
        f"{unscale} came before {collective}",
        "before the average, `unscale_` finds only the overflows of its own rank",
        pair,
        "None until a gradient overflows; then some ranks step and others skip.",
    )


def _between(window: Window, first: trace.Event, second: trace.Event, *kinds: type[trace.Event]) -> bool:
    return any(window.between(kind, after=first, before=second) for kind in kinds)
