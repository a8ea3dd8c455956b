"""Laws of apex.amp: what must happen before the exit of `scale_loss`, which unscales and looks for overflows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.laws.horovod_calls import Use, stepped_inside, uses
from conformance.laws.law import GUIDE, OK, Broken, Outcome, Outcomes, law
from conformance.laws.subjects import Window, fact
from conformance.trace.events import BackwardBegin, ScaleLossEnter, ScaleLossExit, Synchronize

DOCS = "apex documentation, Advanced Amp Usage"


@law(
    "apex/synchronize-in-scale-loss",
    "With Horovod, `synchronize()` MUST come before the last `scale_loss` of a window exits.",
    fault="leaves the last `scale_loss` before `synchronize()`",
    why="""`scale_loss` unscales and looks for overflows at its exit, and each rank has only its own gradients until
        `synchronize()` returns. If only one rank's g_r contains ∞, that rank skips its step and the others step.""",
    source=f'{GUIDE}: "you must call optimizer.synchronize() *before* the `amp.scale_loss()` context manager exits"',
    advice="call `optimizer.synchronize()` inside the last `scale_loss` of the window",
    fix="""
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
    latent="All ranks step until a gradient overflows. Once one of rank r overflows, rank r skips and the others step.",
    needs=(ScaleLossExit,),
)
def synchronize_in_scale_loss(window: Window) -> Outcome:
    last = _last_pass(window)
    if last is None or not uses(window):
        return None
    if any(_synchronized_inside(last, use) for use in uses(window)):
        return OK
    later = window.between(Synchronize, after=last.exit)[:1]
    return Broken(
        last.exit,
        expected="`synchronize()` before `scale_loss` exits",
        observed=f"{last.exit} came before {later[0]}" if later else f"{last.exit} came without a `synchronize()`",
        why="the exit unscales, and looks for overflows in this rank's gradients only",
        shows=(last.enter, *last.backwards, last.exit, *later),
        effect="Only the rank that overflows skips its step.",
    )


@law(
    "apex/delay-unscale",
    "On several ranks, every backward of a window except the last MUST use `scale_loss(..., delay_unscale=True)`.",
    fault="leaves out `delay_unscale=True` before the last backward of a step",
    why="""Without it, each exit of `scale_loss` divides by the loss scale, and the next enter sets aside the gradients
        accumulated so far. Then the all-reduce of the last backward covers only its own micro-batch, and each rank adds
        its local gradients of the others: (1/N) Σ g_r of one plus g_r of the others.""",
    source=f"{DOCS}: gradient accumulation across iterations",
    advice="pass `delay_unscale=True` to `scale_loss` in all micro-batches except the last",
    fix="""
        for number, batch in enumerate(window, start=1):
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            with amp.scale_loss(loss, optimizer, delay_unscale=number < len(window)) as scaled_loss:
                scaled_loss.backward()
        """,
    needs=(ScaleLossExit,),
)
def delay_unscale(window: Window) -> Outcome:
    passes = _passes(window)
    # Several losses of one micro-batch each have a `scale_loss`; those of the last one unscale.
    earlier = [one for one in passes if one.exit.micro_batch != passes[-1].exit.micro_batch]
    if not earlier or window.plan.world_size == 1:
        return None
    early = next((one for one in earlier if not one.enter.delay_unscale), None)
    if early is None:
        return OK
    return Broken(
        early.enter,
        expected="`scale_loss(..., delay_unscale=True)` in all passes of a window except the last",
        observed=f"{early.enter} unscaled at its exit, before {passes[-1].enter}",
        why="gradients add up at one scale until they are averaged",
        shows=(early.enter, early.exit, passes[-1].enter),
        effect=f"The average over the ranks misses the first {len(earlier)} of {len(passes)} passes.",
    )


@law(
    "apex/one-optimizer",
    "With Horovod, `scale_loss` MUST be given one optimizer, unless each optimizer is synchronized inside it.",
    fault="gives `scale_loss` an optimizer that is not synchronized inside it",
    why="""The exit of `scale_loss` unscales the gradients of all its optimizers and looks for overflows in them. The
        gradients of an optimizer that was not synchronized differ from rank to rank, so some ranks skip and others
        step.""",
    source=f'{GUIDE}: "we do not allow multiple optimizers; we have to know that the our one optimizer is the correct '
    'optimizer to pass to scale_loss()"',
    advice="call `synchronize()` of each optimizer inside `scale_loss`",
    fix="""
        with amp.scale_loss(loss, [first, second]) as scaled_loss:
            scaled_loss.backward()
            for optimizer in (first, second):
                optimizer.synchronize()
        """,
    unless=("apex/synchronize-in-scale-loss",),
    needs=(ScaleLossExit,),
)
def one_optimizer(window: Window) -> Outcome:
    last = _last_pass(window)
    if last is None or not uses(window):
        return None
    given, inside = last.enter.optimizers, sum(_synchronized_inside(last, use) for use in uses(window))
    if inside >= given:
        return OK
    return Broken(
        last.enter,
        expected="`scale_loss` with only those optimizers that are synchronized inside it",
        observed=f"{inside} of {given} optimizers of {last.enter} synchronized before {last.exit}",
        why="the exit of `scale_loss` unscales the gradients of all its optimizers",
        shows=(last.enter, *last.backwards, last.exit),
        effect="The gradients of the others are unscaled and checked for overflows before the ranks average them.",
    )


@law(
    "apex/step-in-skip-synchronize",
    "With Horovod and apex, the step after `synchronize()` MUST be inside `skip_synchronize()`.",
    fault="synchronizes again in the step, outside `skip_synchronize()`",
    why="""With apex, gradients are synchronized inside `scale_loss`, so a plain step all-reduces them again, after they
        were unscaled. With op=Sum, N ranks multiply by N twice: N² ḡ instead of N ḡ.""",
    source=f'{GUIDE}: "If you do call it, wrap the .step() in a `with optimizer.skip_synchronize()` call"',
    advice="step inside `optimizer.skip_synchronize()`",
    fix="""
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
    needs=(ScaleLossEnter,),
)
def step_in_skip_synchronize(window: Window) -> Outcomes:
    yield from stepped_inside(window)


@dataclass(frozen=True)
class Pass:
    """One `scale_loss`, from its enter to its exit, with the backwards inside it."""

    enter: ScaleLossEnter
    exit: ScaleLossExit
    backwards: Sequence[BackwardBegin]


@fact
def _passes(window: Window) -> Sequence[Pass]:
    """The completed passes of a window. A pass enters after its forward, so it belongs to that forward's window."""
    found = []
    for exit in window.of(ScaleLossExit):
        for enter in window.between(ScaleLossEnter, before=exit)[-1:]:
            found.append(Pass(enter, exit, window.between(BackwardBegin, after=enter, before=exit)))
    return found


def _last_pass(window: Window) -> Pass | None:
    """The last pass of a window that has ended or stepped."""
    passes = _passes(window)
    return passes[-1] if passes and (window.ended or window.attempts) else None


def _synchronized_inside(last: Pass, use: Use) -> bool:
    return any(last.enter.seq < event.seq < last.exit.seq for event in use.synchronizes)
