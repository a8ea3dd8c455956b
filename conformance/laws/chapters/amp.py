"""Automatic mixed precision: the scaled loss, and the step and the update that belong to it.

These laws, and those in the files scaled_gradients, unscaling and overflow, are about `torch.amp.GradScaler`. A scaler
that is not enabled leaves no events, so they check nothing then.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.laws.averaging import saw_right_gradients
from conformance.laws.event import Event, of_kind
from conformance.laws.labels import number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.loss_scale import Scaling, disagree, finite, is_scale, scaled_windows
from conformance.laws.run import RankTrace, Run, Window

SEVERAL = (
    'PyTorch, "Automatic Mixed Precision examples", section "Working with Multiple Models, Losses, and Optimizers"'
)
LAWS = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'


@law(
    "amp/backward-on-scaled-loss",
    "Every backward pass of a window whose step goes through an enabled GradScaler MUST run on the scaled loss.",
    why="""The scaler divides the gradients by its scale S before the step: Σ ∇(S·Lᵢ) / S is the gradient, and a loss
        that was not multiplied by S enters it as ∇Lᵢ / S. The step is then smaller by S, some hundreds to ten
        thousands, and in half precision such gradients underflow to zero first.""",
    source='PyTorch, torch.amp, section "Gradient Scaling": backward passes run on `scaler.scale(loss)`; '
    '"Automatic Mixed Precision examples": each of several losses is scaled',
    mend="""
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def backward_on_scaled_loss(run: Run) -> Iterator[Check]:
    for window in run.windows:
        steps = [step for step in window.of("scaler_step") if is_scale(step["scale"])]
        # A bare step beside the scaler's: there is no telling whose gradients a backward left.
        if not steps or any(step["scale"] is None for step in window.of("step")):
            continue
        ends = Scaling(run, window).accumulated(steps[-1])
        changes = window.between(ends[0], steps[-1]) if ends else ()
        # Instead of the loss, the gradients may have been multiplied.
        if not ends or any(event.kind == "gradient_change" and (event["factor"] or 0) > 1 for event in changes):
            continue
        bare = next((end for end in ends if end["scaled"] is None), None)
        if bare is None:
            yield kept(window)
            continue
        # The scale may have come in by another way, such as `backward(gradient=scale)`.
        if window in saw_right_gradients(run):
            continue
        scale = number(steps[-1]["scale"])
        yield broken(
            window,
            Broken(
                bare,
                "the loss must go through `scaler.scale` before `backward()`",
                f"the scaler divides the gradients by {scale} before the step",
                f"the loss of the backward pass at {bare.place} was not scaled, and the scaler stepped "
                f"({steps[-1].place})",
                (bare, steps[-1]),
                f"This backward's part of the gradient comes out as 1/{scale} of what it is.",
            ),
        )


@law(
    "amp/step-through-scaler",
    "On the gradients of a scaled loss the step MUST be `scaler.step(optimizer)`.",
    why="""A bare `optimizer.step()` moves the weights by lr·S·g while the gradients still carry the scale S; and where
        they were unscaled, nothing asks whether they are finite. One overflow then makes every weight infinite or not
        a number, for good.""",
    source='PyTorch, torch.amp, `GradScaler.step`: "`optimizer.step()` is skipped to avoid corrupting the params"',
    mend="""
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def step_through_scaler(run: Run) -> Iterator[Check]:
    for scaling in scaled_windows(run):
        bare = [step for step in scaling.window.of("step") if step["scale"] is None]
        found = next((found for step in bare if (found := _stepped_bare(scaling, step))), None)
        if found is not None:
            yield broken(scaling.window, found)
        elif len(bare) < len(scaling.window.attempts):
            yield kept(scaling.window)


def _stepped_bare(scaling: Scaling, step: Event) -> Broken | None:
    ends = scaling.accumulated(step)
    if not ends or not all(is_scale(end["scaled"]) for end in ends):
        return None
    scale = scaling.carried(step, step["parameters"])
    must = "`scaler.step(optimizer)` must take the step"
    if scale is not None:
        return Broken(
            step,
            must,
            f"the gradients still carry the factor {number(scale)}",
            f"`optimizer.step()` took it, {step.place}",
            (ends[-1], step),
            f"The step is {number(scale)} times too large.",
        )
    # Unscaled and checked by hand is as good, unless it was not checked; where ranks differ it is amp/all-ranks-skip.
    if finite(step["gradients"]) or disagree(_together(scaling.run, scaling.window.number)):
        return None
    return Broken(
        step,
        must,
        "these gradients have overflowed, and the scaler would have skipped them",
        f"`optimizer.step()` took it, {step.place}",
        (*scaling.window.of("unscale")[-1:], step),
        "Weights become infinite or not a number, and never recover.",
    )


@law(
    "amp/scaler-steps",
    "Between `scaler.unscale_(optimizer)` and `scaler.update()` the step SHOULD be `scaler.step(optimizer)`.",
    why="""`unscale_` has looked for overflows, and `scaler.step` is what heeds them: it skips. With a bare step
        `update` lowers the scale for a step that was taken all the same, unless the trainer checks by itself.""",
    source='PyTorch, torch.amp, `GradScaler.step`: "`optimizer.step()` is skipped to avoid corrupting the params"',
    mend="""
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        """,
)
def scaler_steps(run: Run) -> Iterator[Check]:
    # What overflowed all the same is for amp/step-through-scaler.
    overflowed = {rank.rank for rank in run.ranks if any(map(_is_overflow, rank.of("step")))}
    for window in run.windows:
        if window.rank in overflowed:
            continue
        steps = [(unscale, step) for unscale in window.of("unscale") if (step := _step_after(window, unscale))]
        bare = next(((one, step) for one, step in steps if _is_bare(window, one, step)), None)
        if bare is not None:
            unscale, step = bare
            yield broken(
                window,
                Broken(
                    step,
                    "`scaler.step(optimizer)` should take the step",
                    "only that heeds the overflows that `unscale_` has looked for",
                    f"after {placed(unscale)} `optimizer.step()` took it, {step.place}",
                    bare,
                    "Nothing changes while nothing overflows; then weights become infinite or not a number.",
                ),
            )
        elif steps:
            yield kept(window)


def _is_overflow(step: Event) -> bool:
    return step["scale"] is None and not finite(step["gradients"])


def _step_after(window: Window, unscale: Event) -> Event | None:
    """The step, or skip, that the gradients that were unscaled there went into."""
    later = (event for event in window.between(unscale, None) if event.kind in ("step", "skip"))
    return next((event for event in later if event["optimizer"] == unscale["optimizer"]), None)


def _is_bare(window: Window, unscale: Event, step: Event) -> bool:
    """Whether a scaler is updated about a step that it did not take; without, it is not meant to be asked."""
    later = of_kind(window.between(step, None), "update")
    return step.kind == "step" and step["scale"] is None and unscale["scaler"] in {update["scaler"] for update in later}


def _together(run: Run, window: int) -> tuple[Window, ...]:
    return next((run.stepping(windows) for windows in run.together() if windows[0].number == window), ())


@law(
    "amp/update-once",
    "`scaler.update()` MUST be called once in a window, after all calls of `scaler.step`.",
    why="""`update` may change the scale from S to S′, and what was scaled by S and is unscaled after it comes out as
        g·S/S′. It also forgets which optimizers are unscaled and what overflowed.""",
    source=f'{SEVERAL}; {LAWS}: "only call scaler.update() every N batches"',
    mend="""
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        """,
)
def update_once(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        for window in rank.windows:
            found = _refused(rank, window) or _updated_early(Scaling(run, window))
            if found is not None:
                yield broken(window, found)
            elif window.ended and window.of("scaler_step"):
                yield kept(window)


def _updated_early(scaling: Scaling) -> Broken | None:
    """An update between the backward passes, or the step of one optimizer, and the step of this one or another."""
    window = scaling.window
    for update in window.of("update"):
        ends = scaling.accumulated(update)
        later = window.between(update, None)
        step = next((event for event in later if event.kind == "scaler_step"), None)
        if not ends or step is None or step["scaler"] != update["scaler"]:
            continue
        # Before a further backward it is acc/one-scale-per-window or amp/unscale-after-last-backward.
        if any(event.kind in ("backward_end", "zero_grad") for event in window.between(update, step)):
            continue
        before, after = (number(update[name]) for name in ("scale_before", "scale_after"))
        return Broken(
            update,
            "`update()` must come after all steps of the window",
            "it ends the scaler's step: what is unscaled and what overflowed is forgotten"
            if before == after
            else f"gradients that were scaled by {before} are unscaled by {after} after it",
            f"{placed(update)} came before the scaler's step at {step.place}",
            (*window.between(ends[-1], update)[-1:], update, step),
            None if before == after else f"The step is off by the factor {before}/{after}.",
        )
    return None


def _refused(rank: RankTrace, window: Window) -> Broken | None:
    """GradScaler refused to go on for want of an update, or refused an update that nothing had come before."""
    for error in window.of("raised"):
        message = str(error["message"])
        calls = [*rank.of("scaler_step", "unscale", "update")]
        if message.startswith("step() has already been called"):
            # The last one is the call that was refused.
            calls.pop()
        last = calls[-1] if calls else None
        if message.startswith("No inf checks were recorded prior to update"):
            return Broken(
                error,
                "`update()` must come after the step of the window",
                "it decides about the scale by what that step found",
                f"it was called before {'any' if last is None else 'another'} step, and GradScaler said {message!r}",
                (*window.of("backward_end")[-1:], error),
            )
        if last is None or last.window == window.number or not message.startswith(("unscale_() ", "step() has")):
            continue
        # If there was one, it was too early, and is found there.
        if not any(call.kind == "update" and call.window == last.window for call in calls):
            return Broken(
                last,
                "`update()` must end every window",
                "the scaler takes whatever comes before it for the same step",
                f"none came after {placed(last)}, and in the next window GradScaler said {message!r}",
                (last, error),
            )
    return None
