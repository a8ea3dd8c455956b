"""Laws of gradient accumulation: learning-rate schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.plan import Plan
from conformance.laws.subjects import Rank, Window, fact
from conformance.trace.events import Schedule, Skip, Step
from conformance.trace.short_texts import number


@law(
    "acc/schedule-per-step",
    "Each learning-rate scheduler MUST step once for each optimizer step; for a skipped step it MAY step or wait.",
    fault="skips or repeats a step of the schedule",
    why="""A schedule gives the learning rate of step k. A scheduler that steps for every micro-batch is at k n after k
        steps of n micro-batches. One that also steps for skipped steps is ahead by their number; the report says so,
        and `schedule_on_skip` makes it explicit.""",
    source='PyTorch, torch.optim, "How to adjust learning rate": scheduler.step() after optimizer.step(); with a '
    "GradScaler a step may be skipped, which its documentation leaves to the caller to notice",
    advice="call `scheduler.step()` once, after each optimizer step",
    edit="schedule below step",
    fix="""
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # the step was taken
            scheduler.step()
        """,
)
def schedule_per_step(window: Window) -> Outcomes:
    may_skip = window.plan.spec["scaler"] is not None or bool(window.rank.of(Skip))
    for taken in _taken(window.rank)[window.number] if window.plan.schedule_by == "step" else ():
        # A schedule may advance when the scaler skips a step. Another law reports a step after the skip.
        if any(skip.optimizer == taken.step.optimizer for skip in window.between(Skip, before=taken.step)):
            continue
        # A schedule that counts skipped steps is at the number of the window. Skips before a stop are unknown here.
        earlier = taken.number - _resumed_at(window.rank) if may_skip else taken.number
        counts = {*range(earlier, taken.number + 1), window.number if may_skip else taken.number}
        # A correct learning rate was set in another way, or by another scheduler.
        is_wrong = not any(_has_rate(window.plan, taken.step, one) for one in counts)
        before = None if may_skip or not is_wrong else _off_before(window, taken)
        if before is None and taken.calls_once(may_skip=may_skip):
            yield OK
        elif is_wrong:
            yield _wrongly_scheduled(
                window,
                taken if before is None else before,
                taken,
                taken.number,
                expected="one scheduler step per optimizer step",
                unit="optimizer step",
            )


@law(
    "acc/schedule-per-epoch",
    "A learning-rate scheduler that counts epochs MUST step once for each epoch.",
    fault="does not step the schedule exactly once an epoch",
    why="""Such a schedule gives the learning rate of epoch k. A scheduler that steps for every window is n times too
        far after epochs of n windows, and often reaches its end within the first.""",
    source='PyTorch, torch.optim, "How to adjust learning rate": its loops call scheduler.step() after each epoch',
    advice="call `scheduler.step()` once, at the end of each epoch",
    fix="""
        for epoch in range(epochs):
            for batch in loader:
                ...
                optimizer.step()
            scheduler.step()
        """,
)
def schedule_per_epoch(window: Window) -> Outcomes:
    plan, epoch = window.plan, window.plan.epochs.get(window.number)
    # Windows beyond the plan belong to no epoch.
    if plan.schedule_by != "epoch" or epoch is None:
        return
    for taken in _taken(window.rank)[window.number]:
        before = epoch if taken.previous is None else epoch - plan.epochs[taken.previous.window or 0]
        # A correct learning rate was set in another way, or the scheduler was resumed.
        if len(taken.calls) == before:
            yield OK
        elif not _has_rate(plan, taken.step, epoch):
            yield _wrongly_scheduled(
                window,
                taken,
                taken,
                epoch,
                expected="one scheduler step per epoch",
                unit="epoch",
            )


@dataclass(frozen=True)
class _Taken:
    """A step, the previous one, its number, and the calls of one scheduler between them.

    left_out: the windows since the previous step in which only other optimizers stepped. place: the scheduler's step
    count at this step. earlier: the previous entry of the same optimizer and scheduler.
    """

    step: Step
    previous: Step | None
    number: int
    calls: Sequence[Schedule]
    left_out: int
    place: int
    earlier: _Taken | None

    def calls_once(self, *, may_skip: bool) -> bool:
        """Whether the scheduler was called once for the previous step and, where steps may be skipped, for none or all
        of the skipped windows since. Windows in which only other optimizers step may count or not."""
        due = 0 if self.previous is None else 1
        last = -1 if self.previous is None else self.previous.window
        skipped = 0 if last is None or self.step.window is None else self.step.window - last - 1
        return len(self.calls) in (due, due + skipped * may_skip, due + self.left_out)


@fact
def _taken(rank: Rank) -> Mapping[int, Sequence[_Taken]]:
    """The first step of each optimizer that has a scheduler, for each of its schedulers, by window."""
    calls: dict[tuple[int, int | None], list[Schedule]] = {}
    for event in rank.of(Schedule):
        calls.setdefault((event.scheduler, event.optimizer), [])
        if not event.initial:
            calls[event.scheduler, event.optimizer].append(event)
    found: defaultdict[int, list[_Taken]] = defaultdict(list)
    for (_, optimizer), made in sorted(calls.items(), key=lambda item: item[0][0]):
        previous: Step | None = None
        taken: _Taken | None = None
        used, number, left_out = 0, _resumed_at(rank), 0
        for window in rank.windows:
            step = next((event for event in window.of(Step) if event.optimizer == optimizer), None)
            if step is None:
                left_out += bool(window.of(Step))
                continue
            began = used
            while used < len(made) and made[used].seq < step.seq:
                used += 1
            taken = _Taken(step, previous, number, made[began:used], left_out, _resumed_at(rank) + used, taken)
            found[window.number].append(taken)
            previous, number, left_out = step, number + 1, 0
    return found


def _off_before(window: Window, taken: _Taken) -> _Taken | None:
    """The last earlier step without exactly one call of the scheduler, if it explains the wrong rate of this one."""
    if not taken.calls_once(may_skip=False) or not _has_rate(window.plan, taken.step, taken.place):
        return None
    one = taken.earlier
    while one is not None and one.calls_once(may_skip=False):
        one = one.earlier
    return one


def _resumed_at(rank: Rank) -> int:
    """The number of windows before a resumed run; equal to its number of steps if none was skipped."""
    stop: int = rank.run.plan.spec.get("resumed_at") or 0
    return stop if rank.windows and rank.windows[0].number >= stop else 0


def _rate(step: Step) -> float:
    return step.lr if isinstance(step.lr, int | float) else float("nan")


def _has_rate(plan: Plan, step: Step, place: int) -> bool:
    return any(isclose(_rate(step), rate, rel_tol=1e-6) for rate in _planned_rates(plan, step, place))


def _planned_rates(plan: Plan, step: Step, number: int) -> Sequence[float]:
    """The planned rates of the parameter groups whose parameters have this step's rate, in order."""
    rates = plan.learning_rates[min(number, len(plan.learning_rates) - 1)]
    groups = {plan.model.tensors[one].group(len(rates)) for one in step.lr_of or step.parameters}
    return [rates[group] for group in sorted(groups)] or rates


def _wrongly_scheduled(window: Window, taken: _Taken, shown: _Taken, place: int, *, expected: str, unit: str) -> Broken:
    """`taken`: the step with wrong calls of the scheduler before it; `shown`: the step with the wrong rate."""
    step, previous, made = taken.step, taken.previous, taken.calls
    right = _planned_rates(window.plan, shown.step, place)[0]
    times = {0: "did not step", 1: "stepped once", 2: "stepped twice"}.get(len(made), f"stepped {len(made)} times")
    skipped = window.rank.between(Skip, after=previous, before=step) if previous else ()
    last = f", last at {made[-1].line}" if made else ""
    others = window.rank.between(Schedule, after=previous, before=step) if previous else ()
    fault, advice, anew = "", "", [one for one in others if one.initial and one.optimizer == step.optimizer]
    if anew:
        # The scheduler before it may have stepped correctly.
        made = anew
        observed = f"after {previous}, a new scheduler started from step 0 ({anew[-1].line})"
        fault = "starts a new schedule in the middle of training"
    elif previous is None:
        which = "the first step after the resume" if _resumed_at(window.rank) else "the first step"
        observed = f"the scheduler {times} before {which}, {step}{last}"
        if _resumed_at(window.rank) and not made:
            fault = "resumes with the learning rate of another place in its schedule"
        elif made and not _resumed_at(window.rank):
            fault = "steps the schedule before the optimizer's step"
    else:
        observed = f"the scheduler {times} between {previous} and {step}{last}"
        if made[1:]:
            fault = f"steps the schedule {len(made)} times between two optimizer steps"
        elif not made:
            fault = "does not step the schedule after an optimizer step"
            if any(not one.initial for one in others):
                fault = "steps only some optimizers' schedules after an optimizer step"
                advice = "call `step()` of each optimizer's scheduler once, after the optimizer's step"
    if not anew and len(made) == len(window.backwards) > 1:
        fault = "steps the schedule after each micro-batch"
    if made and skipped:
        observed += f"; in between: {skipped[0]}"
    return Broken(
        made[-1] if made else step,
        expected=expected,
        observed=observed,
        why=f"after {place} {unit}{'s' * (place != 1)}, the learning rate must be {number(right)}",
        shows=(
            *([previous] if previous else []),
            *skipped[:1],
            *made[-2:],
            step,
            *([] if shown is taken else [shown.step]),
        ),
        effect=f"Step {shown.number} uses the learning rate {number(_rate(shown.step))} instead of {number(right)}.",
        fault=fault,
        advice=advice,
    )
