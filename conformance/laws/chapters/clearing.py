"""Gradient accumulation: when gradients are cleared."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from conformance.laws.averaging import saw_right_gradients
from conformance.laws.event import Event, of_kind
from conformance.laws.labels import placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import RankTrace, Run, Window

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'

_MEND = """
    for window in windows:
        optimizer.zero_grad()
        for batch in window:
            (criterion(model(batch.inputs), batch.targets) / len(window)).backward()
        optimizer.step()
    """


@law(
    "acc/cleared-between-windows",
    "Gradients MUST be cleared between two windows.",
    why="""A backward adds to the gradients that are there. Without clearing, step k goes along g₀ + g₁ + ... + gₖ,
        which looks like momentum that never decays.""",
    source="PyTorch, torch.optim.Optimizer.zero_grad and torch.Tensor.backward: gradients accumulate in the leaves",
    mend=_MEND,
)
def cleared_between_windows(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        for previous, window in pairwise(rank.windows):
            # acc/step-after-all-backwards, if the window before should have stepped.
            if not (previous.attempts or run.is_served(previous)) and previous.planned == run.plan.accumulation:
                continue
            first = next(iter(window.backwards), None)
            if first is None or first["gradients"] is None:
                continue
            if first["gradients"] != "some":
                yield kept(window)
            elif not _held(rank, previous) <= _cleared(_gap(rank, previous, first)):
                yield broken(window, _not_cleared(rank, previous, window, first))


def _held(rank: RankTrace, window: Window) -> set[int]:
    """The parameters whose gradients a window's steps used; what no optimizer holds may keep its gradients."""
    stepped = {event["optimizer"] for event in window.attempts}
    optimizers = [event for event in rank.of("optimizer") if event["optimizer"] in stepped]
    held = {parameter for event in optimizers for parameter in event["trainable"]}
    # Without a step, or an optimizer that was noted: at least one.
    return held or {0}


def _gap(rank: RankTrace, previous: Window, first: Event) -> tuple[Event, ...]:
    """What happened after the last step or backward of a window and before the first backward of the next."""
    last = previous.of("step", "skip", "backward_end")
    return rank.between(last[-1] if last else None, first)


def _cleared(events: tuple[Event, ...]) -> set[int]:
    return {parameter for event in of_kind(events, "zero_grad") for parameter in event["parameters"]}


def _not_cleared(rank: RankTrace, previous: Window, window: Window, first: Event) -> Broken:
    step = next(iter(previous.attempts[-1:]), None)
    clears = of_kind(_gap(rank, previous, first), "zero_grad")
    before = "which no step used" if step is None else f"which {placed(step)} used"
    partly = f"; {placed(clears[-1])} cleared only others" if clears else ""
    return Broken(
        first,
        must="gradients must be cleared between two windows",
        because="a backward adds its gradients to those that are there",
        however=f"{placed(first)} of window {window.number} added to the gradients of window {previous.number}, "
        f"{before}{partly}",
        shows=(*previous.attempts[-1:], *clears, first),
        effect=f"Window {window.number} steps along the sum of its own gradients and earlier ones.",
    )


@law(
    "acc/cleared-once",
    "Gradients SHOULD be cleared once between two windows.",
    why="""Clearing what is clear changes nothing, and visits every gradient once more. It is often a sign of two places
        that both think they own the loop.""",
    source="PyTorch, Performance Tuning Guide: clearing gradients costs a memory operation for each parameter",
    mend=_MEND,
)
def cleared_once(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        for previous, window in pairwise(rank.windows):
            if not window.backwards:
                continue
            clears = of_kind(_gap(rank, previous, window.backwards[0]), "zero_grad")
            repeated = _repeated(clears)
            if repeated is not None:
                first, second = repeated
                yield broken(
                    window,
                    Broken(
                        second,
                        must="gradients should be cleared once between two windows",
                        because="there is nothing to clear the second time",
                        however=f"{placed(first)} and {placed(second)} both cleared them, with no backward in between",
                        shows=(first, second),
                        effect="No number changes.",
                    ),
                )
            elif clears:
                yield kept(window)


def _repeated(clears: tuple[Event, ...]) -> tuple[Event, Event] | None:
    for number, second in enumerate(clears):
        for first in clears[:number]:
            if not set(first["parameters"]).isdisjoint(second["parameters"]):
                return first, second
    return None


@law(
    "acc/not-cleared-inside",
    "Gradients MUST NOT be cleared inside a window, between its backwards or before the step that is to use them.",
    why="""What is cleared is lost: of Σ ∇L over the micro-batches only those after the clearing are left. The mean is
        then over some micro-batches and divided by the number of all.""",
    source=f'{SEED}: "average the summed gradients by dividing them by N"; PyTorch documentation, Automatic Mixed '
    'Precision examples, "Gradient accumulation"',
    mend=_MEND,
)
def not_cleared_inside(run: Run) -> Iterator[Check]:
    suspects = {window: _cleared_inside(window) for window in run.windows}
    # A trainer may keep what it clears in buffers of its own, and have the right gradients when it steps.
    saw = saw_right_gradients(run) if any(suspects.values()) else frozenset[Window]()
    right = {(window.rank, window.number) for window in saw}
    for window in run.windows:
        stepping = run.server if run.is_served(window) else window.rank
        # With Horovod, hvd/not-cleared-before-synchronize.
        if (
            not window.backwards
            or (stepping == window.rank and not window.attempts)
            or _by_horovod(run.ranks[window.rank], window)
        ):
            continue
        violation = suspects[window]
        if violation is None:
            yield kept(window)
        elif (stepping, window.number) not in right:
            yield broken(window, violation)


def _by_horovod(rank: RankTrace, window: Window) -> bool:
    stepped = {event["optimizer"] for event in window.attempts}
    return any(event["horovod"] for event in rank.of("optimizer") if event["optimizer"] in stepped)


def _cleared_inside(window: Window) -> Broken | None:
    clears = [clear for clear in window.of("zero_grad") if _loses_gradients(window, clear)]
    if not clears:
        return None
    first, lost = clears[0], len(of_kind(window.between(None, clears[-1]), "backward_begin"))
    before = of_kind(window.between(None, first), "backward_begin")[-1]
    after = of_kind(window.between(first, None), "backward_begin", "step", "skip")[0]
    return Broken(
        first,
        must="gradients must not be cleared inside a window",
        because=f"the step of window {window.number} is to use those of all its backwards",
        however=f"{placed(first)} came after {placed(before)} and before {placed(after)}",
        shows=(before, first, after),
        effect=f"Window {window.number} loses the gradients of {lost} of its {len(window.backwards)} backwards.",
    )


def _loses_gradients(window: Window, clear: Event) -> bool:
    """Whether there are gradients that no step has used, and a backward or a step comes later."""
    before = of_kind(window.between(None, clear), "backward_begin")
    after = of_kind(window.between(clear, None), "backward_begin", "step", "skip")
    # What is cleared after a step has been used; backwards that come later are for acc/step-after-all-backwards.
    return bool(before and after) and not of_kind(window.between(before[-1], clear), "step", "skip")
