"""apex.amp: what has to happen before `scale_loss` exits, for there it unscales and looks for overflows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.laws.horovod import Use, stepped_inside, uses
from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import Window, fact
from conformance.trace.events import BackwardBegin, ScaleLossEnter, ScaleLossExit, Synchronize

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "apex documentation, Advanced Amp Usage"


@law(
    "apex/synchronize-in-scale-loss",
    "With Horovod, `synchronize()` MUST come before the last `scale_loss` of a window exits.",
    why="""`scale_loss` unscales at its exit and looks for overflows there, in gradients that are a rank's own until
        `synchronize()` returns. Where ∞ is in g_r of one rank only, that rank skips its step and the others step.""",
    source=f'{SEED}: "you must call optimizer.synchronize() *before* the `amp.scale_loss()` context manager exits"',
    fix="""
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def synchronize_in_scale_loss(window: Window) -> Outcomes:
    last = _last_pass(window)
    if last is None or not uses(window):
        return
    if any(_synchronized_inside(last, use) for use in uses(window)):
        yield OK
        return
    later = window.of(Synchronize, after=last.exit)[:1]
    yield Broken(
        last.exit,
        must="`synchronize()` must come before `scale_loss` exits",
        because="its exit unscales, and looks for overflows in what this rank holds",
        however=f"{last.exit} came before {later[0]}" if later else f"{last.exit} came without it",
        shows=(last.enter, *last.backwards, last.exit, *later),
        effect="A rank that overflows skips alone.",
    )


@law(
    "apex/delay-unscale",
    "On several ranks every backward of a window but the last MUST run under `scale_loss(..., delay_unscale=True)`.",
    why="""Without it each exit of `scale_loss` divides by the loss scale, and the next enter sets aside what is
        there already. The all-reduce of the last backward then covers that micro-batch alone, and the others are
        added to it as each rank has them: (1/N) Σ g_r of one plus g_r of the others.""",
    source=f"{DOCS}: gradient accumulation across iterations",
    fix="""
        for number, batch in enumerate(window, start=1):
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            with amp.scale_loss(loss, optimizer, delay_unscale=number < len(window)) as scaled_loss:
                scaled_loss.backward()
        """,
)
def delay_unscale(window: Window) -> Outcomes:
    passes = _passes(window)
    # Several losses of one micro-batch each have a `scale_loss`; those of the last one unscale.
    earlier = [one for one in passes if one.exit.micro_batch != passes[-1].exit.micro_batch]
    if not earlier or window.plan.world_size == 1:
        return
    early = next((one for one in earlier if not one.enter.delay_unscale), None)
    if early is None:
        yield OK
        return
    yield Broken(
        early.enter,
        must="`scale_loss` must have `delay_unscale=True` in all passes of a window but the last",
        because="gradients are to add up at one scale until they are averaged",
        however=f"{early.enter} unscaled at its exit, and {passes[-1].enter} came after it",
        shows=(early.enter, early.exit, passes[-1].enter),
        effect=f"What backward added there is averaged over the ranks without its first {len(earlier)} of "
        f"{len(passes)} passes.",
    )


@law(
    "apex/one-optimizer",
    "With Horovod, `scale_loss` MUST be given one optimizer, unless each that it is given is synchronized inside.",
    why="""Its exit unscales the gradients of all optimizers that it was given and looks for overflows in all of
        them. The gradients of one that was not synchronized are still a rank's own, so that ranks skip differently.""",
    source=f'{SEED}: "we do not allow multiple optimizers; we have to know that the our one optimizer is the correct '
    'optimizer to pass to scale_loss()"',
    fix="""
        with amp.scale_loss(loss, [first, second]) as scaled_loss:
            scaled_loss.backward()
            for optimizer in (first, second):
                optimizer.synchronize()
        """,
    unless=("apex/synchronize-in-scale-loss",),
)
def one_optimizer(window: Window) -> Outcomes:
    last = _last_pass(window)
    if last is None or not uses(window):
        return
    given, inside = last.enter.optimizers, sum(_synchronized_inside(last, use) for use in uses(window))
    if inside >= given:
        yield OK
        return
    yield Broken(
        last.enter,
        must="`scale_loss` must be given the one optimizer that is synchronized inside",
        because="its exit unscales the gradients of all that it is given",
        however=f"{last.enter} was given {given} optimizers, of which {inside} "
        f"{'was' if inside == 1 else 'were'} synchronized before {last.exit}",
        shows=(last.enter, *last.backwards, last.exit),
        effect="The others are unscaled, and looked at for overflows, as each rank has them.",
    )


@law(
    "apex/step-in-skip-synchronize",
    "With Horovod and apex, the step after `synchronize()` MUST be inside of `skip_synchronize()`.",
    why="""With apex gradients are synchronized within `scale_loss`, so a plain step all-reduces them a second time,
        after they were unscaled. Under op=Sum N ranks multiply by N twice, N² ḡ in place of N ḡ.""",
    source=f'{SEED}: "If you do call it, wrap the .step() in a `with optimizer.skip_synchronize()` call"',
    fix="""
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def step_in_skip_synchronize(window: Window) -> Outcomes:
    for use in uses(window) if window.of(ScaleLossEnter) else ():
        yield from stepped_inside(use)


@dataclass(frozen=True)
class Pass:
    """What ran under one `scale_loss`, from its enter to its exit."""

    enter: ScaleLossEnter
    exit: ScaleLossExit
    backwards: Sequence[BackwardBegin]


@fact
def _passes(window: Window) -> Sequence[Pass]:
    """Those of a window, as far as they came to their end. A pass enters after its forward and so in its window."""
    found = []
    for exit in window.of(ScaleLossExit):
        for enter in window.of(ScaleLossEnter, before=exit)[-1:]:
            found.append(Pass(enter, exit, window.of(BackwardBegin, after=enter, before=exit)))
    return found


def _last_pass(window: Window) -> Pass | None:
    """The pass that completes a window, if the rank went beyond it."""
    passes = _passes(window)
    return passes[-1] if passes and (window.ended or window.attempts) else None


def _synchronized_inside(last: Pass, use: Use) -> bool:
    return any(last.enter.seq < event.seq < last.exit.seq for event in use.synchronizes)
