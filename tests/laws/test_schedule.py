"""The laws of learning-rate schedules: traces that keep them, that break them, and permissions."""

from __future__ import annotations

from functools import partial

import pytest

from .building import a_run, clear, event, hold, micro_batch, step
from .findings import broken_of, checked, found, laws_in, tables

STEP, EPOCH = "acc/schedule-per-step", "acc/schedule-per-epoch"
broken = partial(broken_of, {"acc"})

CALL = event("schedule")
BOTH = [CALL, event("schedule", scheduler=1, optimizer=1)]
ANEW = event("schedule", scheduler=1, initial=True)
SKIPPED = [micro_batch(1), event("skip"), clear()]
FLAT = {"schedule": [1.0, 0.5, 0.5, 0.25]}
RESUMED_FP16 = {"resumed_at": 2, "precision": "fp16", "scaler": {"init_scale": 8.0, "growth_interval": 9}}


def taken(number, rate, *after):
    return [micro_batch(number), step(lr=rate), clear(), *after]


def by_step(*events, **changes):
    """Four windows, for which the schedule has a rate each: 0.5, 0.25, 0.125 and 0.0625."""
    four = {"orders": [[[[0], [1], [2], [3]]]], "micro_batch_size": 1, "schedule": [1.0, 0.5, 0.25, 0.125]}
    return a_run([event("schedule", initial=True), *events], **{**four, **changes})


def by_epoch(*rates, after):
    """Two epochs of two windows, whose scheduler steps after these windows."""
    schedule = {"orders": [[[[0], [1]]]], "epochs": [0, 0], "micro_batch_size": 1, "schedule_by": "epoch"}
    windows = [
        [micro_batch(number), step(lr=rate), clear(), *[CALL] * after.count(number)]
        for number, rate in enumerate(rates)
    ]
    return a_run([event("schedule", initial=True), *windows], **schedule, schedule=[1.0, 0.5, 0.25])


def of_groups(rate, of):
    """The second group has half the first one's rate then: where two meet, one may be ahead to the other's."""
    groups = [{"lr": 0.5, "weight_decay": 0.0, "schedule": [0.5, 0.25, 0.125, 0.125]}]
    late = [micro_batch(1), step(lr=rate, lr_of=of), clear()]
    return by_step(taken(0, 0.5), late, groups=groups)


def of_two_optimizers(number, rate):
    return [micro_batch(number), step(lr=rate), step(optimizer=1, lr=rate), clear(), *BOTH]


#: By law: runs that break only this law.
BREAKING = {
    STEP: {
        "for each micro-batch": lambda: by_step(taken(0, 0.5, CALL, CALL), taken(1, 0.125)),
        # As once more after an epoch: where the next rate is another one, it is seen.
        "twice before a step whose rate is the same": lambda: by_step(
            taken(0, 0.5, CALL, CALL), taken(1, 0.25, CALL), taken(2, 0.125), **FLAT
        ),
        "before the first step": lambda: by_step(micro_batch(0), CALL, step(lr=0.25)),
        "ahead after a resume": lambda: by_step(CALL, taken(2, 0.25), resumed_at=2),
        "twice for a skipped step": lambda: by_step(taken(0, 0.5, CALL), SKIPPED, CALL, CALL, taken(2, 0.0625)),
        "twice for the first step, which is skipped": lambda: by_step(
            micro_batch(0), event("skip"), clear(), CALL, CALL, taken(1, 0.125)
        ),
        "never": lambda: by_step(taken(0, 0.5), taken(1, 0.5)),
        "created again": lambda: by_step(taken(0, 0.5, CALL, ANEW), taken(1, 0.5)),
        "the second group's rate for the first": lambda: of_groups(0.125, [0]),
        "the first group's rate for the second": lambda: of_groups(0.25, [1]),
    },
    EPOCH: {
        "for each step": lambda: by_epoch(0.5, 0.25, 0.125, 0.125, after=[0, 1, 2]),
        "never": lambda: by_epoch(0.5, 0.5, 0.5, 0.5, after=[]),
    },
}

#: What breaks no law of the chapter.
ALLOWED = {
    "the textbook": lambda: by_step(taken(0, 0.5, CALL), taken(1, 0.25, CALL), taken(2, 0.125)),
    "the textbook, by epoch": lambda: by_epoch(0.5, 0.5, 0.25, 0.25, after=[1, 3]),
    "the epoch's rate, set elsewhere": lambda: by_epoch(0.5, 0.5, 0.25, 0.25, after=[]),
    "twice, and the rates are correct": lambda: by_step(
        taken(0, 0.5, CALL, CALL), taken(1, 0.25, CALL), taken(2, 0.0625), **FLAT
    ),
    # It resumes at the current rate, however the scheduler got there.
    "resumed": lambda: by_step(CALL, CALL, taken(2, 0.125, CALL), taken(3, 0.0625), resumed_at=2),
    # The skipped step is unknown after the resume.
    "resumed after a skipped step": lambda: by_step(CALL, taken(2, 0.25, CALL), **RESUMED_FP16),
    "on after a skipped step": lambda: by_step(taken(0, 0.5, CALL), SKIPPED, CALL, taken(2, 0.125)),
    "not on after a skipped step": lambda: by_step(taken(0, 0.5, CALL), SKIPPED, taken(2, 0.25)),
    "not on after the first step, which is skipped": lambda: by_step(
        micro_batch(0), event("skip"), clear(), taken(1, 0.5)
    ),
    "on after the first step, which is skipped": lambda: by_step(
        micro_batch(0), event("skip"), clear(), CALL, taken(1, 0.25)
    ),
    "another scheduler": lambda: by_step(taken(0, 0.5, CALL, event("schedule", scheduler=1)), taken(1, 0.25)),
    "twice, and the rate is correct": lambda: by_step(taken(0, 0.5, CALL, CALL), taken(1, 0.25)),
    "no schedule in the plan": lambda: by_step(taken(0, 0.5, CALL, CALL), taken(1, 0.1), schedule=None),
    "one for each optimizer": lambda: by_step(
        hold(0, 0), hold(1, 1), of_two_optimizers(0, 0.5), of_two_optimizers(1, 0.25)
    ),
    "the first group's rate": lambda: of_groups(0.25, [0]),
    "the second group's rate": lambda: of_groups(0.125, [1]),
    "no knowing which group's rate": lambda: of_groups(0.125, [0, 1]),
}

test_broken, test_allowed = tables(BREAKING, ALLOWED, "acc")


def test_every_law_is_broken_by_a_trace():
    assert set(BREAKING) == laws_in("acc_schedule")


@pytest.mark.parametrize(
    ("law", "run", "count"),
    [(STEP, "the textbook", 3), (STEP, "on after a skipped step", 2), (EPOCH, "the textbook, by epoch", 4)],
)
def test_steps_that_keep_a_law_count(law, run, count):
    assert checked(ALLOWED[run](), law) == count


@pytest.mark.parametrize(
    ("law", "name", "told"),
    [
        (STEP, "for each micro-batch", "stepped twice"),
        (STEP, "twice before a step whose rate is the same", "stepped twice"),
        (STEP, "twice before a step whose rate is the same", "Step 2 uses the learning rate 0.125 instead of "),
        (STEP, "ahead after a resume", "before the first step after the resume"),
        (STEP, "twice for a skipped step", "in between: step skipped by the scaler"),
        (STEP, "created again", "a new scheduler started from step 0"),
        (STEP, "the first group's rate for the second", "the learning rate must be 0.125"),
        (STEP, "never", "after 1 optimizer step, the learning rate must be 0.25"),
        (EPOCH, "for each step", "stepped once"),
    ],
)
def test_what_is_told(law, name, told):
    broken = found(BREAKING[law][name](), law).broken
    assert told in f"{broken.observed} {broken.why} {broken.effect}"


@pytest.mark.parametrize(("name", "kind"), [("never", "step"), ("created again", "schedule")])
def test_the_event_that_breaks_the_law_is_named(name, kind):
    assert found(BREAKING[STEP][name](), STEP).broken.event.event == kind


def test_a_skipped_step_that_is_taken_anyway():
    """The schedule may have advanced when the scaler skipped it."""
    forced = [micro_batch(1), event("skip"), CALL, step(lr=0.125), clear()]
    assert STEP not in broken(by_step(taken(0, 0.5, CALL), forced))


def test_a_window_in_which_only_another_optimizer_steps():
    """Another law reports the missing step."""
    first = [micro_batch(0), step(), step(optimizer=1), clear(), *BOTH]
    alone = [micro_batch(1), step(lr=0.25), clear(), *BOTH]
    last = [micro_batch(2), step(lr=0.125), step(optimizer=1, lr=0.125), clear()]
    second = event("schedule", scheduler=1, optimizer=1, initial=True)
    assert STEP not in broken(by_step(hold(0, 0), hold(1, 1), second, first, alone, last))
