"""Gradient accumulation: learning-rate schedules."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose

from conformance.laws.event import Event
from conformance.laws.labels import number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import Plan, RankTrace, Run


@law(
    "acc/schedule-per-step",
    "Each learning-rate scheduler MUST step once for each optimizer step that was taken, and not for a skipped one.",
    why="""A schedule gives the learning rate of step k. A scheduler that steps for every micro-batch is at k n after k
        steps of n micro-batches, and one that steps for skipped steps too is ahead by their number.""",
    source='PyTorch, torch.optim, "How to adjust learning rate": scheduler.step() after optimizer.step(); with a '
    "GradScaler a step may be skipped, which its documentation leaves to the caller to notice",
    mend="""
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # the step was taken
            scheduler.step()
        """,
)
def schedule_per_step(run: Run) -> Iterator[Check]:
    if not run.plan.has_schedule:
        return
    for rank in run.ranks:
        events = rank.of("schedule")
        for scheduler, optimizer in sorted({(event["scheduler"], event["optimizer"]) for event in events}):
            calls = [event for event in events if event["scheduler"] == scheduler and not event["initial"]]
            yield from _scheduled(run.plan, rank, optimizer, calls)


def _scheduled(plan: Plan, rank: RankTrace, optimizer: int, calls: list[Event]) -> Iterator[Check]:
    previous: Event | None = None
    step_number = 0
    for window in rank.windows:
        # If there are more, acc/step-after-all-backwards.
        step = next((event for event in window.of("step") if event["optimizer"] == optimizer), None)
        if step is None:
            continue
        made = [call for call in calls if (previous is None or call.seq > previous.seq) and call.seq < step.seq]
        right = _planned_rate(plan, step_number)
        # A learning rate that is right was set in another way, or the scheduler is one of several.
        if len(made) == (0 if previous is None else 1):
            yield kept(window)
        elif not isclose(step["lr"], right, rel_tol=1e-6):
            yield broken(window, _wrongly_scheduled(rank, previous, made, step, step_number, right))
        previous, step_number = step, step_number + 1


def _planned_rate(plan: Plan, step: int) -> float:
    multipliers = plan.spec["schedule"]
    rate: float = plan.spec["optimizer"]["lr"] * multipliers[min(step, len(multipliers) - 1)]
    return rate


def _wrongly_scheduled(
    rank: RankTrace, previous: Event | None, made: list[Event], step: Event, counted: int, right: float
) -> Broken:
    times = {0: "did not step", 1: "stepped once", 2: "stepped twice"}.get(len(made), f"stepped {len(made)} times")
    skipped = [event for event in rank.of("skip") if previous and previous.seq < event.seq < step.seq]
    last = f", last at {made[-1].place}" if made else ""
    if previous is None:
        however = f"the scheduler {times} before the first step, {placed(step)}{last}"
    else:
        however = f"between {placed(previous)} and {placed(step)} the scheduler {times}{last}"
    if made and skipped:
        however += f", though {placed(skipped[0])} was no step"
    return Broken(
        made[-1] if made else step,
        must="a scheduler must step once for each step that was taken",
        because=f"the schedule counts steps: number {counted} is to be taken with the learning rate {number(right)}",
        however=however,
        shows=(*([previous] if previous else []), *skipped[:1], *made[-2:], step),
        effect=f"Step {counted} is taken with the learning rate {number(step['lr'])}.",
    )
