"""Laws of gradient accumulation: when gradients are cleared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from operator import attrgetter

from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.sharing import trainable
from conformance.laws.subjects import Rank, Window, fact
from conformance.laws.wrong_factor import saw_right_gradients
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
    fault="starts a step without clearing older gradients",
    is_seen_later=True,
    why="""A backward adds to the existing gradients. Without clearing, step k uses g₀ + g₁ + ... + gₖ, which acts like
        momentum that never decays.""",
    source="PyTorch, torch.optim.Optimizer.zero_grad and torch.Tensor.backward: gradients accumulate in the leaves",
    advice="call `optimizer.zero_grad()` once a window: before its first backward, or after its step",
    edit="change leftover; zero_grad below step",
    fix=_FIX,
)
def cleared_between_windows(window: Window) -> Outcome:
    # Gradients that the trainer sets by hand are not left over from the window before.
    if not window.backwards or window.between(trace.GradientChange, before=window.backwards[0]):
        return None
    found = window.backwards[0].gradients
    if found == "some" and (left := _left(window)):
        several = f"{len(left)} unused backwards of no micro-batch, the first {left[0]}"
        one = f"{left[0]}, an unused backward of no micro-batch"
        return _adds_to(window, several if left[1:] else one, "other backwards", left[:1])
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
    partly = f"; {clears[-1]} cleared only other parameters" if clears else ""
    return _adds_to(
        window,
        f"window {previous.number}, {before}{partly}",
        "earlier windows",
        (*previous.attempts[-1:], *clears),
        # A window without a step leaves its gradients to the next one.
        "" if previous.attempts else "change step_condition",
    )


def _adds_to(window: Window, of: str, others: str, shows: Sequence[trace.Event], edit: str = "") -> Broken:
    first = window.backwards[0]
    return Broken(
        first,
        expected="gradients cleared between two windows",
        observed=f"{first} of window {window.number} added to the gradients of {of}",
        why="a backward adds to the existing gradients",
        shows=(*shows, first),
        effect=f"Window {window.number} also uses gradients of {others}.",
        edit=edit,
    )


def _held(window: Window) -> set[int]:
    """The parameters whose gradients a window's steps used; the others need no clearing."""
    held = trainable(window.rank)
    found = {parameter for event in window.attempts for parameter in held.get(event.optimizer, ())}
    # If there is no step, or its optimizer is unknown, require at least the first parameter.
    return found or {0}


def _left(window: Window) -> Sequence[trace.BackwardBegin]:
    """The backwards since the last step whose gradients this window adds to; none if they added to others
    themselves."""
    previous, rank, first = window.previous, window.rank, window.backwards[0]
    ends = () if previous is None else (*previous.backwards[-1:], *previous.attempts[-1:])
    # Too few backwards before the step mean that the step came too early.
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
    """Whether all gradients of a window are cleared between these of its events."""
    return bool(after) and _held(window) <= _parameters(window.between(trace.ZeroGrad, after=after[0], before=before))


def _parameters(clears: Sequence[trace.ZeroGrad]) -> set[int]:
    return {parameter for event in clears for parameter in event.parameters}


@fact
def _clears(window: Window) -> Sequence[trace.ZeroGrad]:
    """The clearings after the last step or backward of the previous window and before the first backward of this."""
    previous = window.previous
    if previous is None or not window.backwards:
        return ()
    last = max((*previous.of(trace.BackwardEnd)[-1:], *previous.attempts[-1:]), key=_seq, default=None)
    # Trainers set gradients of torch.autograd.grad by hand, and a sum of zero looks like a clearing.
    first = min((window.backwards[0], *window.of(trace.AutogradGrad)[:1]), key=_seq)
    return (*previous.between(trace.ZeroGrad, after=last), *window.between(trace.ZeroGrad, before=first))


_seq = attrgetter("seq")


@law(
    "acc/cleared-once",
    "Gradients SHOULD be cleared once between two windows.",
    fault="clears the gradients several times between two steps",
    why="""Clearing gradients again changes nothing, and costs a pass over all of them. Often two pieces of code both
        act as if they own the loop.""",
    source="PyTorch, Performance Tuning Guide: clearing gradients costs a memory operation for each parameter",
    advice="keep one `zero_grad()` per window, and remove the others",
    edit="remove it",
    fix=_FIX,
)
def cleared_once(window: Window) -> Outcome:
    clears = _clears(window)
    for first, second in combinations(clears, 2):
        if not set(first.parameters).isdisjoint(second.parameters):
            return Broken(
                second,
                expected="one clearing between two windows",
                observed=f"{first} and {second} both cleared, with no backward in between",
                why="the second clearing has nothing to clear",
                shows=(first, second),
                effect="No number changes.",
            )
    return OK if clears else None


@law(
    "acc/not-cleared-inside",
    "Gradients MUST NOT be cleared between the backwards of a window, or between them and the step.",
    fault="clears gradients before its step has used them",
    why="""Cleared gradients are lost: only the terms after the clearing remain of Σ ∇L over the micro-batches. The step
        divides this partial sum by the number of all micro-batches.""",
    source=f'{GUIDE}: "average the summed gradients by dividing them by N"; PyTorch documentation, Automatic Mixed '
    'Precision examples, "Gradient accumulation"',
    advice="call `optimizer.zero_grad()` once a window, after its step",
    edit="it below step",
    fix=_FIX,
)
def not_cleared_inside(window: Window) -> Outcome:
    if not window.backwards or not (window.attempts or window.step_is_unseen):
        return None
    # Horovod's optimizers have their own law, hvd/not-cleared-before-synchronize.
    horovods = {event.optimizer for event in window.rank.of(trace.Optimizer) if event.horovod}
    if any(event.optimizer in horovods for event in window.attempts):
        return None
    # The trainer may have used the gradients already, or copied them to its own buffers. It did if it sets other
    # gradients and no exchange explains these.
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
    # A trainer may keep the gradients in its own buffers, and step with the correct ones. If another window is cleared
    # alike and steps correctly, this one has another problem, such as an overflow or a clip by hand.
    if _kept_elsewhere(window, steps) or any(
        saw_right_gradients(one) or _is_right_though_cleared(one.rank) for one in steps
    ):
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
        expected="no clearing between the first backward and the step of a window",
        observed=f"{first} came after {before} and before {after}",
        why=f"the step of window {window.number} needs the gradients of all its backwards",
        shows=(before, first, after),
        effect=f"Window {window.number} loses the gradients of {lost} of its {len(window.backwards)} backwards.",
    )


@fact
def _is_right_though_cleared(rank: Rank) -> bool:
    return any(saw_right_gradients(window) and _loses_weight(window) for window in rank.windows)


def _kept_elsewhere(window: Window, steps: Sequence[Window]) -> bool:
    """Whether the step had gradients of parameters that all ranks cleared after the last backward. ``steps``: the
    windows of the rank that takes it."""
    cleared = [
        _parameters([clear for clear in _early(one) if clear.seq > one.backwards[-1].seq])
        for one in window.counterparts
        if one.backwards
    ]
    lost = set.intersection(*cleared) if cleared else set()
    parameter_of = window.plan.model.tensor_of
    return any(
        parameter_of[index] in lost and value
        for one in steps
        for attempt in one.attempts
        for index, value in enumerate(attempt.gradients or ())
    )


def _early(window: Window) -> Sequence[trace.ZeroGrad]:
    """The clearings before the step, or before the rank sends gradients to the rank that steps."""
    if window.attempts or not window.step_is_unseen:
        return _losing(window)
    size = len(window.plan.model.tensor_of)
    sent = [one.seq for one in window.of(trace.Contribution) if not one.zeros and one.elements >= size]
    return [clear for clear in window.of(trace.ZeroGrad) if sent and clear.seq < sent[-1]]


def _loses_weight(window: Window) -> bool:
    """Whether nonzero gradients are cleared inside the window."""
    clears, weights = _losing(window), window.plan.spec["samples"]["weight"]
    lost = len(window.between(trace.BackwardBegin, before=clears[-1])) if clears else 0
    micro_batches = window.plan.micro_batches(window.rank.number, window.number)
    return any(weights[sample] for samples in micro_batches[:lost] for sample in samples)


def _losing(window: Window) -> list[trace.ZeroGrad]:
    return [clear for clear in window.of(trace.ZeroGrad) if _loses_gradients(window, clear)]


def _loses_gradients(window: Window, clear: trace.ZeroGrad) -> bool:
    """Whether the clearing discards unused gradients before a later backward or step."""
    later = [*window.backwards[-1:], *window.attempts[-1:]]
    if window.backwards[0].seq > clear.seq or all(event.seq < clear.seq for event in later):
        return False
    before = window.between(trace.BackwardBegin, before=clear)
    # The same losses go backward again.
    if {event.root for event in before} <= {event.root for event in window.between(trace.BackwardBegin, after=clear)}:
        return False
    # So do other losses of the same samples, such as after a first forward at nearby weights.
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
    # A step before the clearing has used the gradients.
    return not window.between(trace.Attempt, after=before[-1], before=clear)
