"""apex.amp: what has to happen before `scale_loss` exits, for there it unscales and looks for overflows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from conformance.laws.event import Event
from conformance.laws.horovod import Use, stepped_inside, uses
from conformance.laws.labels import placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import Run, Window

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "apex documentation, Advanced Amp Usage"


@law(
    "apex/synchronize-in-scale-loss",
    "With Horovod, `synchronize()` MUST come before the last `scale_loss` of a window exits.",
    why="""`scale_loss` unscales at its exit and looks for overflows there, in gradients that are a rank's own until
        `synchronize()` returns. Where ∞ is in g_r of one rank only, that rank skips its step and the others step.""",
    source=f'{SEED}: "you must call optimizer.synchronize() *before* the `amp.scale_loss()` context manager exits"',
    mend="""
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def synchronize_in_scale_loss(run: Run) -> Iterator[Check]:
    for window, in_window in _by_window(run):
        last = _last_pass(window)
        if last is None:
            continue
        # Of several optimizers apex/one-optimizer tells which ones are left out.
        if any(_synchronized_inside(last, use) for use in in_window):
            yield kept(window)
            continue
        later = next((event for event in window.of("synchronize") if event.seq > last.exit.seq), None)
        yield broken(
            window,
            Broken(
                last.exit,
                must="`synchronize()` must come before `scale_loss` exits",
                because="its exit unscales, and looks for overflows in what this rank holds",
                however=f"{placed(last.exit)} came without it"
                if later is None
                else f"{placed(last.exit)} came before {placed(later)}",
                shows=(last.enter, *last.backwards, last.exit, *([] if later is None else [later])),
                effect="A rank that overflows skips alone.",
            ),
        )


@law(
    "apex/delay-unscale",
    "On several ranks every backward of a window but the last MUST run under `scale_loss(..., delay_unscale=True)`.",
    why="""Without it each exit of `scale_loss` divides by the loss scale, and the next enter sets aside what is
        there already. The all-reduce of the last backward then covers that micro-batch alone, and the others are
        added to it as each rank has them: (1/N) Σ g_r of one plus g_r of the others.""",
    source=f"{DOCS}: gradient accumulation across iterations",
    mend="""
        for number, batch in enumerate(window, start=1):
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            with amp.scale_loss(loss, optimizer, delay_unscale=number < len(window)) as scaled_loss:
                scaled_loss.backward()
        """,
)
def delay_unscale(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    for window in run.windows:
        passes = _passes(window)
        # Several losses of one micro-batch each have a `scale_loss`; those of the last one unscale.
        earlier = [one for one in passes if one.exit.micro_batch != passes[-1].exit.micro_batch]
        if not earlier:
            continue
        early = next((one for one in earlier if not one.enter["delay_unscale"]), None)
        if early is None:
            yield kept(window)
            continue
        yield broken(
            window,
            Broken(
                early.enter,
                must="`scale_loss` must have `delay_unscale=True` in all passes of a window but the last",
                because="gradients are to add up at one scale until they are averaged",
                however=f"{placed(early.enter)} unscaled at its exit, and {placed(passes[-1].enter)} came after it",
                shows=(early.enter, early.exit, passes[-1].enter),
                effect=f"What backward added there is averaged over the ranks without its first {len(earlier)} of "
                f"{len(passes)} passes.",
            ),
        )


@law(
    "apex/one-optimizer",
    "With Horovod, `scale_loss` MUST be given one optimizer, unless each that it is given is synchronized inside.",
    why="""Its exit unscales the gradients of all optimizers that it was given and looks for overflows in all of
        them. The gradients of one that was not synchronized are still a rank's own, so that ranks skip differently.""",
    source=f'{SEED}: "we do not allow multiple optimizers; we have to know that the our one optimizer is the correct '
    'optimizer to pass to scale_loss()"',
    mend="""
        with amp.scale_loss(loss, [first, second]) as scaled_loss:
            scaled_loss.backward()
            for optimizer in (first, second):
                optimizer.synchronize()
        """,
)
def one_optimizer(run: Run) -> Iterator[Check]:
    for window, in_window in _by_window(run):
        last = _last_pass(window)
        if last is None:
            continue
        given, inside = last.enter["optimizers"], sum(_synchronized_inside(last, use) for use in in_window)
        if inside >= given:
            yield kept(window)
        # With none apex/synchronize-in-scale-loss tells why.
        elif inside > 0:
            yield broken(
                window,
                Broken(
                    last.enter,
                    must="`scale_loss` must be given the one optimizer that is synchronized inside",
                    because="its exit unscales the gradients of all that it is given",
                    however=f"{placed(last.enter)} was given {given} optimizers, of which {inside} "
                    f"{'was' if inside == 1 else 'were'} synchronized before {placed(last.exit)}",
                    shows=(last.enter, *last.backwards, last.exit),
                    effect="The others are unscaled, and looked at for overflows, as each rank has them.",
                ),
            )


@law(
    "apex/step-in-skip-synchronize",
    "With Horovod and apex, the step after `synchronize()` MUST be inside of `skip_synchronize()`.",
    why="""With apex gradients are synchronized within `scale_loss`, so a plain step all-reduces them a second time,
        after they were unscaled. Under op=Sum N ranks multiply by N twice, N² ḡ in place of N ḡ.""",
    source=f'{SEED}: "If you do call it, wrap the .step() in a `with optimizer.skip_synchronize()` call"',
    mend="""
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def step_in_skip_synchronize(run: Run) -> Iterator[Check]:
    for use in uses(run):
        if use.window.of("scale_loss_enter"):
            yield from stepped_inside(use)


@dataclass(frozen=True)
class Pass:
    """What ran under one `scale_loss`, from its enter to its exit."""

    enter: Event
    exit: Event
    backwards: tuple[Event, ...]


def _passes(window: Window) -> tuple[Pass, ...]:
    """Those of a window, as far as they came to their end. A pass enters after its forward and so in its window."""
    found = []
    for exit in window.of("scale_loss_exit"):
        enter = next((e for e in reversed(window.between(None, exit)) if e.kind == "scale_loss_enter"), None)
        if enter is not None:
            backwards = tuple(event for event in window.between(enter, exit) if event.kind == "backward_begin")
            found.append(Pass(enter, exit, backwards))
    return tuple(found)


def _by_window(run: Run) -> Iterator[tuple[Window, list[Use]]]:
    """Each window with what it does with all optimizers of Horovod's."""
    for window, in_window in groupby(uses(run), key=attrgetter("window")):
        yield window, list(in_window)


def _last_pass(window: Window) -> Pass | None:
    """The pass that completes a window, if the rank went beyond it."""
    passes = _passes(window)
    return passes[-1] if passes and (window.ended or window.attempts) else None


def _synchronized_inside(last: Pass, use: Use) -> bool:
    return any(last.enter.seq < event.seq < last.exit.seq for event in use.synchronizes)
