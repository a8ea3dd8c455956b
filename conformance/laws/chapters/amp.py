"""Laws of automatic mixed precision: the scaled loss, its step and its update.

These laws, and those in amp_unscaling and amp_overflow, are about `torch.amp.GradScaler`. A disabled scaler leaves no
events, so they check nothing then.
"""

from __future__ import annotations

from collections.abc import Collection

from conformance.laws.correct_gradient import is_of_mean, terms_of
from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.scaled_gradients import Scaling, all_finite, disagree, is_scale, scaling
from conformance.laws.subjects import Rank, Window, fact
from conformance.laws.wrong_factor import saw_right_gradients
from conformance.trace import events as trace
from conformance.trace.short_texts import number

SEVERAL = (
    'PyTorch, "Automatic Mixed Precision examples", section "Working with Multiple Models, Losses, and Optimizers"'
)


@law(
    "amp/backward-on-scaled-loss",
    "If an enabled GradScaler takes the step of a window, every backward MUST run on the scaled loss.",
    fault="runs a backward on an unscaled loss, and unscales its gradients",
    why="""The scaler divides the gradients by its scale S before the step: Σ ∇(S·Lᵢ) / S is the gradient, and a loss
        that was not multiplied by S contributes ∇Lᵢ / S. The update is then too small by S, often hundreds to tens of
        thousands of times, and in half precision such gradients may underflow to zero first.""",
    source='PyTorch, torch.amp, section "Gradient Scaling": backward passes run on `scaler.scale(loss)`; '
    '"Automatic Mixed Precision examples": each of several losses is scaled',
    advice="call `scaler.scale(loss).backward()` for every micro-batch",
    edit="change it to `scaler.scale({}).backward()`",
    fix="""
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.ScalerStep,),
)
def backward_on_scaled_loss(window: Window) -> Outcome:
    steps = [step for step in window.of(trace.ScalerStep) if is_scale(step.scale)]
    # With a bare step next to the scaler's, the trace does not show which step used the gradients of a backward.
    if not steps or any(step.scale is None for step in window.of(trace.Step)):
        return None
    ends = scaling(window).accumulated(steps[-1])
    changes = window.between(trace.GradientChange, after=ends[0], before=steps[-1]) if ends else ()
    # The trainer may have multiplied the gradients instead of the loss.
    if not ends or any(isinstance(event.factor, int | float) and event.factor > 1 for event in changes):
        return None
    # The scale may have entered in another way, such as `backward(gradient=scale)`.
    bare = next((end for end in ends if end.scaled is None and not _carries_scale(window, end)), None)
    if bare is None:
        return OK
    if saw_right_gradients(window):
        return None
    scale = number(steps[-1].scale)
    return Broken(
        bare,
        "`scaler.scale(loss).backward()`",
        f"the loss of the backward at {bare.line} was not scaled, but the scaler stepped ({steps[-1].line})",
        f"the scaler divides the gradients by {scale} before the step",
        (bare, steps[-1]),
        f"The gradients of this backward are 1/{scale} of the correct ones.",
    )


def _carries_scale(window: Window, end: trace.BackwardEnd) -> bool:
    """Whether the gradients at the model's outputs carry the loss scale; if unknown, whether those of other backwards
    on this line do."""
    return _shows_scale(window, end) if terms_of(window, end) else end.where in _places_with_scale(window.rank)


@fact
def _places_with_scale(rank: Rank) -> Collection[object]:
    """The lines of backwards whose gradients at the model's outputs carry the loss scale."""
    return [end.where for window in rank.windows for end in window.of(trace.BackwardEnd) if _shows_scale(window, end)]


def _shows_scale(window: Window, end: trace.BackwardEnd) -> bool:
    scales = [float(step.scale) for step in window.of(trace.ScalerStep)]
    return bool(scales) and is_of_mean(window, end, scales[-1]) and not is_of_mean(window, end)


@law(
    "amp/step-through-scaler",
    "The step on gradients of a scaled loss MUST be `scaler.step(optimizer)`.",
    fault="steps on scaled gradients without the scaler",
    why="""A bare `optimizer.step()` moves the weights by lr·S·g if the gradients still carry the scale S. If they were
        unscaled, nothing checks that they are finite, and one overflow makes every weight infinite or NaN for the rest
        of the training.""",
    source='PyTorch, torch.amp, `GradScaler.step`: "`optimizer.step()` is skipped to avoid corrupting the params"',
    advice="call `scaler.step(optimizer)` instead of `optimizer.step()`",
    edit="change it to `scaler.step({})`",
    fix="""
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def step_through_scaler(window: Window) -> Outcome:
    if not scaling(window).is_scaled:
        return None
    bare = [step for step in window.of(trace.Step) if step.scale is None]
    found = next((found for step in bare if (found := _stepped_bare(scaling(window), step))), None)
    return found or (OK if len(bare) < len(window.attempts) else None)


def _stepped_bare(scaling: Scaling, step: trace.Step) -> Broken | None:
    ends = scaling.accumulated(step)
    if not ends or not all(is_scale(end.scaled) for end in ends):
        return None
    scale, expected = scaling.carried(step, step.parameters), "`scaler.step(optimizer)`"
    observed = f"`optimizer.step()` ({step.line})"
    if scale is not None:
        why, effect = f"the gradients still carry the loss scale {number(scale)}", f"{number(scale)}x too large"
        return Broken(step, expected, observed, why, (ends[-1], step), f"The step uses gradients that are {effect}.")
    # Trainers may unscale and check gradients by hand. If only some ranks stepped, they did check.
    together = scaling.run.together.get(scaling.window.number)
    if all_finite(step.gradients or ()) or (together is not None and disagree(together)):
        return None
    why = "these gradients overflowed, and the scaler would have skipped the step"
    effect = "Weights become infinite or NaN, and never recover."
    return Broken(step, expected, observed, why, (*scaling.window.of(trace.Unscale)[-1:], step), effect)


@law(
    "amp/scaler-steps",
    "The step between `scaler.unscale_(optimizer)` and `scaler.update()` SHOULD be `scaler.step(optimizer)`.",
    fault="unscales with the scaler, but steps without it",
    why="""`unscale_` looks for overflows, and `scaler.step` skips the step if there are any. A bare step is taken
        anyway, unless the trainer checks for overflows itself, and then `update` lowers the scale.""",
    source='PyTorch, torch.amp, `GradScaler.step`: "`optimizer.step()` is skipped to avoid corrupting the params"',
    advice="call `scaler.step(optimizer)` instead of `optimizer.step()`",
    edit="change it to `scaler.step({})`",
    fix="""
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
    needs=(trace.Unscale,),
)
def scaler_steps(window: Window) -> Outcome:
    # Stepping on an overflow is a worse bug, which other laws report.
    if _steps_on_overflow(window.rank):
        return None
    found: Outcome = None
    for unscale in window.of(trace.Unscale):
        later = window.between(trace.Attempt, after=unscale)
        step = next((event for event in later if event.optimizer == unscale.optimizer), None)
        if step is None:
            continue
        found = OK
        # A scaler without an update is not in use.
        updates = [one for one in window.between(trace.Update, after=step) if one.scaler == unscale.scaler]
        if isinstance(step, trace.Step) and step.scale is None and updates:
            return Broken(
                step,
                "`scaler.step(optimizer)`",
                f"`optimizer.step()` ({step.line}) followed {unscale}",
                "only `scaler.step` skips the step if `unscale_` found an overflow",
                (unscale, step),
                "None until gradients overflow; then weights become infinite or NaN.",
            )
    return found


@fact
def _steps_on_overflow(rank: Rank) -> bool:
    return any(step.scale is None and not all_finite(step.gradients or ()) for step in rank.of(trace.Step))


@law(
    "amp/update-once",
    "`scaler.update()` MUST be called once in a window, after all calls of `scaler.step`.",
    fault="does not call `scaler.update()` once after each step",
    why="""`update` may change the scale from S to S′. Gradients that were scaled by S and unscaled after it become
        g·S/S′. `update` also forgets which optimizers are unscaled and which gradients overflowed.""",
    source=f'{SEVERAL}; {GUIDE}: "only call scaler.update() every N batches"',
    advice="call `scaler.update()` once a window, after the last `scaler.step`",
    edit="update below step",
    fix="""
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        """,
    latent="""The order does not matter while updates leave the scale as it is. In a window in which the scale grows or
        backs off, S ≠ S′.""",
    needs=(trace.ScalerStep, trace.Raised),
)
def update_once(window: Window) -> Outcome:
    return _refused(window) or _updated_early(window) or (OK if window.ended and window.of(trace.ScalerStep) else None)


def _updated_early(window: Window) -> Broken | None:
    """Finds an update between the backward passes, or the step of one optimizer, and a later step."""
    for update in window.of(trace.Update):
        step = next(iter(window.between(trace.ScalerStep, after=update)), None)
        if step is None or step.scaler != update.scaler:
            continue
        ends = scaling(window).accumulated(update)
        # Another backward or a clearing changes these gradients.
        between = window.between(trace.Event, after=update, before=step)
        if not ends or any(isinstance(one, trace.BackwardEnd | trace.ZeroGrad) for one in between):
            continue
        before, after = number(update.scale_before), number(update.scale_after)
        return Broken(
            update,
            "`update()` after all steps of the window",
            f"{update} came before the scaler's step at {step.line}",
            "`update()` forgets which optimizers are unscaled and which overflowed"
            if before == after
            else f"gradients scaled by {before} are then unscaled by {after}",
            (*window.between(trace.Event, after=ends[-1], before=update)[-1:], update, step),
            None if before == after else f"The step uses {before}/{after} of the correct gradients.",
            fault="calls `scaler.update()` before the step",
        )
    return None


def _refused(window: Window) -> Broken | None:
    """Finds an error of GradScaler after a missing update, or an update before any step."""
    for error in window.of(trace.Raised):
        message = error.message
        calls = [
            event for event in window.rank.events if isinstance(event, trace.ScalerStep | trace.Unscale | trace.Update)
        ]
        if message.startswith("step() has already been called"):
            # The last one is the refused call.
            calls.pop()
        last = calls[-1] if calls else None
        if message.startswith("No inf checks were recorded prior to update"):
            return Broken(
                error,
                "`update()` after the step of the window",
                f"`update()` before {'any' if last is None else 'another'} step; GradScaler reported {message!r}",
                "`update()` adjusts the scale by the overflows that the step found",
                (*window.of(trace.BackwardEnd)[-1:], error),
            )
        if last is None or last.window == window.number or not message.startswith(("unscale_() ", "step() has")):
            continue
        # An update in that window came too early, which `_updated_early` reports.
        if not any(isinstance(call, trace.Update) and call.window == last.window for call in calls):
            return Broken(
                last,
                "`update()` at the end of every window",
                f"no `update()` after {last}; in the next window GradScaler reported {message!r}",
                "the scaler counts everything up to `update()` as one step",
                (last, error),
            )
    return None
