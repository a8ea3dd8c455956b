"""Gradient accumulation: when gradients are cleared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from conformance.laws.averaging import saw_right_gradients
from conformance.laws.law import GUIDE, OK, Broken, Outcomes, law
from conformance.laws.run import Rank, Window, fact
from conformance.laws.sharing import trainable
from conformance.trace.events import (
    Attempt,
    AutogradGrad,
    BackwardBegin,
    BackwardEnd,
    Event,
    Exchange,
    GradientChange,
    Optimizer,
    ZeroGrad,
)

_FIX = """
    for window in windows:
        optimizer.zero_grad()
        for batch in window:
            (criterion(model(batch.inputs), batch.targets) / len(window)).backward()
        optimizer.step()
    """


@law(
    "acc/cleared-between-windows",
    "Gradients MUST be cleared between two windows.",
    why="""A backward adds to the existing gradients. Without clearing, step k goes along g₀ + g₁ + ... + gₖ, which acts
        like momentum that never decays.""",
    source="PyTorch, torch.optim.Optimizer.zero_grad and torch.Tensor.backward: gradients accumulate in the leaves",
    fix=_FIX,
)
def cleared_between_windows(window: Window) -> Outcomes:
    if not window.backwards or window.backwards[0].gradients is None:
        return
    # What is put into place by hand is no rest of the window before.
    if window.between(GradientChange, before=window.backwards[0]):
        return
    if window.backwards[0].gradients == "some" and (left := _left(window)):
        yield _left_by(left, window)
        return
    if (previous := window.previous) is None:
        return
    # Gradients that no step used need not be cleared.
    if not (previous.attempts or previous.step_is_unseen) and previous.planned == window.plan.accumulation:
        return
    if _clears_before_its_end(previous) or _clears_inside(window):
        return
    if window.backwards[0].gradients != "some":
        yield OK
    elif not _held(previous) <= _parameters(_clears(window)):
        yield _not_cleared(previous, window)


def _held(window: Window) -> set[int]:
    """The parameters whose gradients a window's steps used; others may keep their gradients."""
    held = trainable(window.rank)
    found = {parameter for event in window.attempts for parameter in held.get(event.optimizer, ())}
    # If there is no step, or its optimizer is unknown, require at least the first parameter.
    return found or {0}


def _left(window: Window) -> Sequence[BackwardBegin]:
    """The backwards since the step before whose gradients those of this window are added to; none if they too were
    added to some."""
    previous, rank, first = window.previous, window.rank, window.backwards[0]
    ends = () if previous is None else (*previous.backwards[-1:], *previous.attempts[-1:])
    # Fewer before the step are a step that comes too early.
    own = previous.backwards if previous is not None and len(previous.backwards) <= previous.planned else ()
    through = {event.backward for event in rank.of(BackwardEnd) if event.forwards} - {event.backward for event in own}
    left = [
        event
        for event in rank.between(BackwardBegin, after=ends[-1] if ends else None, before=first)
        if event.backward in through
        and not _held(window) <= _parameters(rank.between(ZeroGrad, after=event, before=first))
    ]
    return left if left and left[0].gradients != "some" else ()


def _clears_before_its_end(window: Window) -> bool:
    """Whether gradients were cleared after a window's last step, and before another backward of it."""
    if not window.attempts or not window.backwards:
        return False
    clears = window.between(ZeroGrad, after=window.attempts[-1], before=window.backwards[-1])
    return bool(clears) and _held(window) <= _parameters(clears)


def _clears_inside(window: Window) -> bool:
    """Whether gradients are cleared between a window's first backward and its step, and with them all earlier ones."""
    if not window.attempts:
        return False
    clears = window.between(ZeroGrad, after=window.backwards[0], before=window.attempts[0])
    return bool(clears) and _held(window) <= _parameters(clears)


def _parameters(clears: Sequence[ZeroGrad]) -> set[int]:
    return {parameter for event in clears for parameter in event.parameters}


@fact
def _clears(window: Window) -> Sequence[ZeroGrad]:
    """The clearings between the last step or backward of the previous window and the first backward of this one."""
    previous = window.previous
    if previous is None or not window.backwards:
        return ()
    last = max((*previous.of(BackwardEnd)[-1:], *previous.attempts[-1:]), key=_seq, default=None)
    # Gradients of torch.autograd.grad are put into place by hand, and sums of them that are zero look cleared.
    first = min((window.backwards[0], *window.of(AutogradGrad)[:1]), key=_seq)
    return (*previous.between(ZeroGrad, after=last), *window.between(ZeroGrad, before=first))


def _rows(window: Window, ends: Sequence[BackwardEnd]) -> Counter[int | None]:
    """The rows whose losses went backward."""
    reached = {forward for end in ends for forward in end.forwards}
    return Counter(row for forward in window.forwards if forward.forward in reached for row in forward.rows)


_seq = attrgetter("seq")


def _not_cleared(previous: Window, window: Window) -> Broken:
    first, clears = window.backwards[0], _clears(window)
    before = f"which {previous.attempts[-1]} used" if previous.attempts else "which no step used"
    partly = f"; {clears[-1]} cleared only others" if clears else ""
    return Broken(
        first,
        must="gradients must be cleared between two windows",
        because="a backward adds to the existing gradients",
        however=f"{first} of window {window.number} added to the gradients of window {previous.number}, "
        f"{before}{partly}",
        shows=(*previous.attempts[-1:], *clears, first),
        effect=f"Window {window.number} steps along the sum of its own gradients and earlier ones.",
    )


def _left_by(left: Sequence[BackwardBegin], window: Window) -> Broken:
    first = window.backwards[0]
    several = f"{len(left)} backwards, the first of them {left[0]}" if left[1:] else left[0]
    return Broken(
        first,
        must="gradients must be cleared between two windows",
        because="a backward adds to the existing gradients",
        however=f"{first} of window {window.number} added to the gradients of {several}, which no step has "
        "used, and which belong to no micro-batch",
        shows=(left[0], first),
        effect=f"Window {window.number} steps along the sum of its own gradients and those of other backwards.",
    )


@law(
    "acc/cleared-once",
    "Gradients SHOULD be cleared once between two windows.",
    why="""Clearing gradients again changes nothing, and costs a pass over all of them. It is often a sign of two pieces
        of code that both think they own the loop.""",
    source="PyTorch, Performance Tuning Guide: clearing gradients costs a memory operation for each parameter",
    fix=_FIX,
)
def cleared_once(window: Window) -> Outcomes:
    clears = _clears(window)
    repeated = _repeated(clears)
    if repeated is not None:
        first, second = repeated
        yield Broken(
            second,
            must="gradients should be cleared once between two windows",
            because="the second time there is nothing to clear",
            however=f"{first} and {second} both cleared them, with no backward in between",
            shows=(first, second),
            effect="No number changes.",
        )
    elif clears:
        yield OK


def _repeated(clears: Sequence[ZeroGrad]) -> tuple[ZeroGrad, ZeroGrad] | None:
    for number, second in enumerate(clears):
        for first in clears[:number]:
            if not set(first.parameters).isdisjoint(second.parameters):
                return first, second
    return None


@law(
    "acc/not-cleared-inside",
    "Gradients MUST NOT be cleared inside a window, between its backwards or before the step that is to use them.",
    why="""Cleared gradients are lost: of Σ ∇L over the micro-batches, only the terms after the clearing are left. The
        step divides a sum over some micro-batches by the number of all.""",
    source=f'{GUIDE}: "average the summed gradients by dividing them by N"; PyTorch documentation, Automatic Mixed '
    'Precision examples, "Gradient accumulation"',
    fix=_FIX,
)
def not_cleared_inside(window: Window) -> Outcomes:
    # Horovod's optimizers have their own law, hvd/not-cleared-before-synchronize.
    if not window.backwards or not (window.attempts or window.step_is_unseen) or _by_horovod(window):
        return
    # The trainer may have used them already, or keep them in buffers of its own.
    if window.rank.steps_by_hand or _filled_by_hand(window):
        return
    broken = _cleared_inside(window)
    if broken is None:
        yield OK
    # A trainer may keep the gradients in its own buffers, and have the right ones when it steps.
    elif not _kept_elsewhere(window) and not any(
        one.rank.number == _stepping(window) and _has_right_ones(one) for one in window.counterparts
    ):
        yield broken


def _has_right_ones(window: Window) -> bool:
    """Whether the step saw the right gradients, or does in another window that is cleared alike: what is wrong with
    those of this one, such as an overflow or a clip by hand, has another cause."""
    return saw_right_gradients(window) or _is_right_though_cleared(window.rank)


@fact
def _is_right_though_cleared(rank: Rank) -> bool:
    return any(saw_right_gradients(window) and _loses_weight(window) for window in rank.windows)


def _kept_elsewhere(window: Window) -> bool:
    """Whether the step had gradients of parameters whose own were cleared on all ranks after the last backward."""
    cleared = [
        _parameters([clear for clear in _losing(one) if clear.seq > one.backwards[-1].seq])
        for one in window.counterparts
        if one.backwards
    ]
    lost = set.intersection(*cleared) if cleared else set()
    parameter_of = window.plan.model.tensor_of
    return any(
        parameter_of[index] in lost and value
        for attempt in window.attempts
        for index, value in enumerate(attempt.gradients or ())
    )


def _loses_weight(window: Window) -> bool:
    """Whether gradients that are not zero are cleared inside the window."""
    clears, weights = _losing(window), window.plan.spec["samples"]["weight"]
    lost = len(window.between(BackwardBegin, before=clears[-1])) if clears else 0
    micro_batches = window.plan.micro_batches(window.rank.number, window.number)
    return any(weights[sample] for samples in micro_batches[:lost] for sample in samples)


def _filled_by_hand(window: Window) -> bool:
    """Whether other gradients were put in after the last backward, and no exchange explains it."""
    return any(
        change.factor is None and not any(change.since <= event.seq <= change.seq for event in window.of(Exchange))
        for change in window.between(GradientChange, after=window.backwards[-1])
    )


def _stepping(window: Window) -> int | None:
    """The rank that steps for a window."""
    return window.run.server if window.step_is_unseen else window.rank.number


@fact
def _horovods(rank: Rank) -> frozenset[int]:
    return frozenset(event.optimizer for event in rank.of(Optimizer) if event.horovod)


def _by_horovod(window: Window) -> bool:
    return any(event.optimizer in _horovods(window.rank) for event in window.attempts)


def _cleared_inside(window: Window) -> Broken | None:
    clears = _losing(window)
    if not clears:
        return None
    first, lost = clears[0], len(window.between(BackwardBegin, before=clears[-1]))
    before = window.between(BackwardBegin, before=first)[-1]
    after = next(event for event in window.between(Event, after=first) if isinstance(event, BackwardBegin | Attempt))
    return Broken(
        first,
        must="gradients must not be cleared inside a window",
        because=f"the step of window {window.number} must use the gradients of all its backwards",
        however=f"{first} came after {before} and before {after}",
        shows=(before, first, after),
        effect=f"Window {window.number} loses the gradients of {lost} of its {len(window.backwards)} backwards.",
    )


def _losing(window: Window) -> list[ZeroGrad]:
    return [clear for clear in window.of(ZeroGrad) if _loses_gradients(window, clear)]


def _loses_gradients(window: Window, clear: ZeroGrad) -> bool:
    """Whether the clearing discards gradients that no step has used, with a backward or a step still to come."""
    later = [*window.backwards[-1:], *window.attempts[-1:]]
    if window.backwards[0].seq > clear.seq or all(event.seq < clear.seq for event in later):
        return False
    before = window.between(BackwardBegin, before=clear)
    # The same losses go backward again.
    if {event.root for event in before} <= {event.root for event in window.between(BackwardBegin, after=clear)}:
        return False
    # So do others of the same samples, as where a forward at nearby weights comes first.
    if len(window.forwards) > window.planned:
        lost, kept = (
            _rows(window, window.between(BackwardEnd, **side)) for side in ({"before": clear}, {"after": clear})
        )
        if lost and lost <= kept and None not in lost:
            return False
    # The average over the ranks may be zero.
    if clear.by == "hand" and window.between(Exchange, after=before[-1], before=clear):
        return False
    # If a step came first, it has used the gradients.
    return not window.between(Attempt, after=before[-1], before=clear)
