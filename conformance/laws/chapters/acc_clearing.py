"""Gradient accumulation: when gradients are cleared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from operator import attrgetter

from conformance.laws.averaging import saw_right_gradients
from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.run import Rank, Window, fact
from conformance.laws.sharing import trainable
from conformance.trace import events as trace

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
def cleared_between_windows(window: Window) -> Outcome:
    # What is put into place by hand is no rest of the window before.
    if not window.backwards or window.between(trace.GradientChange, before=window.backwards[0]):
        return None
    found = window.backwards[0].gradients
    if found == "some" and (left := _left(window)):
        several = f"{len(left)} backwards, the first of them {left[0]}" if left[1:] else left[0]
        return _adds_to(
            window,
            f"{several}, which no step has used, and which belong to no micro-batch",
            "those of other backwards",
            left[:1],
        )
    previous = window.previous
    if found is None or previous is None:
        return None
    # Gradients that no step used need not be cleared.
    if not (previous.attempts or previous.step_is_unseen) and previous.planned == window.plan.accumulation:
        return None
    if previous.backwards and _clears_all(previous, previous.attempts[-1:], previous.backwards[-1]):
        return None
    if window.attempts and _clears_all(window, window.backwards[:1], window.attempts[0]):
        return None
    if found != "some":
        return OK
    clears = _clears(window)
    if _held(previous) <= _parameters(clears):
        return None
    before = f"which {previous.attempts[-1]} used" if previous.attempts else "which no step used"
    partly = f"; {clears[-1]} cleared only others" if clears else ""
    return _adds_to(
        window,
        f"window {previous.number}, {before}{partly}",
        "earlier ones",
        (*previous.attempts[-1:], *clears),
    )


def _adds_to(window: Window, of: str, others: str, shows: Sequence[trace.Event]) -> Broken:
    first = window.backwards[0]
    return Broken(
        first,
        must="gradients must be cleared between two windows",
        because="a backward adds to the existing gradients",
        however=f"{first} of window {window.number} added to the gradients of {of}",
        shows=(*shows, first),
        effect=f"Window {window.number} steps along the sum of its own gradients and {others}.",
    )


def _held(window: Window) -> set[int]:
    """The parameters whose gradients a window's steps used; others may keep their gradients."""
    held = trainable(window.rank)
    found = {parameter for event in window.attempts for parameter in held.get(event.optimizer, ())}
    # If there is no step, or its optimizer is unknown, require at least the first parameter.
    return found or {0}


def _left(window: Window) -> Sequence[trace.BackwardBegin]:
    """The backwards since the step before whose gradients those of this window are added to; none if they too were
    added to some."""
    previous, rank, first = window.previous, window.rank, window.backwards[0]
    ends = () if previous is None else (*previous.backwards[-1:], *previous.attempts[-1:])
    # Fewer before the step are a step that comes too early.
    own = previous.backwards if previous is not None and len(previous.backwards) <= previous.planned else ()
    through = {event.backward for event in rank.of(trace.BackwardEnd) if event.forwards} - {
        event.backward for event in own
    }
    left = [
        event
        for event in rank.between(trace.BackwardBegin, after=ends[-1] if ends else None, before=first)
        if event.backward in through
        and not _held(window) <= _parameters(rank.between(trace.ZeroGrad, after=event, before=first))
    ]
    return left if left and left[0].gradients != "some" else ()


def _clears_all(window: Window, after: Sequence[trace.Event], before: trace.Event) -> bool:
    """Whether all gradients of a window are cleared between these events of it."""
    return bool(after) and _held(window) <= _parameters(window.between(trace.ZeroGrad, after=after[0], before=before))


def _parameters(clears: Sequence[trace.ZeroGrad]) -> set[int]:
    return {parameter for event in clears for parameter in event.parameters}


@fact
def _clears(window: Window) -> Sequence[trace.ZeroGrad]:
    """The clearings between the last step or backward of the previous window and the first backward of this one."""
    previous = window.previous
    if previous is None or not window.backwards:
        return ()
    last = max((*previous.of(trace.BackwardEnd)[-1:], *previous.attempts[-1:]), key=_seq, default=None)
    # Gradients of torch.autograd.grad are put into place by hand, and sums of them that are zero look cleared.
    first = min((window.backwards[0], *window.of(trace.AutogradGrad)[:1]), key=_seq)
    return (*previous.between(trace.ZeroGrad, after=last), *window.between(trace.ZeroGrad, before=first))


_seq = attrgetter("seq")


@law(
    "acc/cleared-once",
    "Gradients SHOULD be cleared once between two windows.",
    why="""Clearing gradients again changes nothing, and costs a pass over all of them. It is often a sign of two pieces
        of code that both think they own the loop.""",
    source="PyTorch, Performance Tuning Guide: clearing gradients costs a memory operation for each parameter",
    fix=_FIX,
)
def cleared_once(window: Window) -> Outcome:
    clears = _clears(window)
    for first, second in combinations(clears, 2):
        if not set(first.parameters).isdisjoint(second.parameters):
            return Broken(
                second,
                must="gradients should be cleared once between two windows",
                because="the second time there is nothing to clear",
                however=f"{first} and {second} both cleared them, with no backward in between",
                shows=(first, second),
                effect="No number changes.",
            )
    return OK if clears else None


@law(
    "acc/not-cleared-inside",
    "Gradients MUST NOT be cleared inside a window, between its backwards or before the step that is to use them.",
    why="""Cleared gradients are lost: of Σ ∇L over the micro-batches, only the terms after the clearing are left. The
        step divides a sum over some micro-batches by the number of all.""",
    source=f'{GUIDE}: "average the summed gradients by dividing them by N"; PyTorch documentation, Automatic Mixed '
    'Precision examples, "Gradient accumulation"',
    fix=_FIX,
)
def not_cleared_inside(window: Window) -> Outcome:
    if not window.backwards or not (window.attempts or window.step_is_unseen):
        return None
    # Horovod's optimizers have their own law, hvd/not-cleared-before-synchronize.
    horovods = {event.optimizer for event in window.rank.of(trace.Optimizer) if event.horovod}
    if any(event.optimizer in horovods for event in window.attempts):
        return None
    # The trainer may have used them already, or keep them in buffers of its own. If it puts in others, and no exchange
    # explains it, it does.
    changes = window.between(trace.GradientChange, after=window.backwards[-1])
    exchanges = [event.seq for event in window.of(trace.Exchange)]
    if window.rank.steps_by_hand or any(
        one.factor is None and not any(one.since <= seq <= one.seq for seq in exchanges) for one in changes
    ):
        return None
    clears = _losing(window)
    if not clears:
        return OK
    stepping = window.run.server if window.step_is_unseen else window.rank.number
    steps = [one for one in window.counterparts if one.rank.number == stepping]
    # A trainer may keep the gradients in its own buffers, and have the right ones when it steps. If it has in another
    # window that is cleared alike, what is wrong here, such as an overflow or a clip by hand, has another cause.
    if _kept_elsewhere(window) or any(saw_right_gradients(one) or _is_right_though_cleared(one.rank) for one in steps):
        return None
    first, lost = clears[0], len(window.between(trace.BackwardBegin, before=clears[-1]))
    before = window.between(trace.BackwardBegin, before=first)[-1]
    after = next(
        event
        for event in window.between(trace.Event, after=first)
        if isinstance(event, trace.BackwardBegin | trace.Attempt)
    )
    return Broken(
        first,
        must="gradients must not be cleared inside a window",
        because=f"the step of window {window.number} must use the gradients of all its backwards",
        however=f"{first} came after {before} and before {after}",
        shows=(before, first, after),
        effect=f"Window {window.number} loses the gradients of {lost} of its {len(window.backwards)} backwards.",
    )


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
    lost = len(window.between(trace.BackwardBegin, before=clears[-1])) if clears else 0
    micro_batches = window.plan.micro_batches(window.rank.number, window.number)
    return any(weights[sample] for samples in micro_batches[:lost] for sample in samples)


def _losing(window: Window) -> list[trace.ZeroGrad]:
    return [clear for clear in window.of(trace.ZeroGrad) if _loses_gradients(window, clear)]


def _loses_gradients(window: Window, clear: trace.ZeroGrad) -> bool:
    """Whether the clearing discards gradients that no step has used, with a backward or a step still to come."""
    later = [*window.backwards[-1:], *window.attempts[-1:]]
    if window.backwards[0].seq > clear.seq or all(event.seq < clear.seq for event in later):
        return False
    before = window.between(trace.BackwardBegin, before=clear)
    # The same losses go backward again.
    if {event.root for event in before} <= {event.root for event in window.between(trace.BackwardBegin, after=clear)}:
        return False
    # So do others of the same samples, as where a forward at nearby weights comes first.
    if len(window.forwards) > window.planned:
        rows = {event.forward: event.rows for event in window.forwards}
        lost, kept = (
            Counter(row for one in {one for end in ends for one in end.forwards} for row in rows.get(one, ()))
            for ends in (
                window.between(trace.BackwardEnd, before=clear),
                window.between(trace.BackwardEnd, after=clear),
            )
        )
        if lost and lost <= kept and None not in lost:
            return False
    # The average over the ranks may be zero.
    if clear.by == "hand" and window.between(trace.Exchange, after=before[-1], before=clear):
        return False
    # If a step came first, it has used the gradients.
    return not window.between(trace.Attempt, after=before[-1], before=clear)
