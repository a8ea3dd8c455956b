"""The law of the learning-rate schedule: traces that keep it, traces that break it, and what may be done near it."""

from __future__ import annotations

from functools import partial

from .building import a_run, clear, event, hold, micro_batch, step
from .findings import broken_of, checked, found

SCHEDULE = {"schedule": [1.0, 0.5, 0.25, 0.125]}
broken = partial(broken_of, {"acc"})


class TestSchedulePerStep:
    ID = "acc/schedule-per-step"

    @staticmethod
    def schedule(**fields):
        return event("schedule", **fields)

    @staticmethod
    def taken(number, rate, *after):
        return [micro_batch(number), step(lr=rate), clear(), *after]

    def run(self, *events, **changes):
        four = {"orders": [[[[0], [1], [2], [3]]]], "micro_batch_size": 1}
        return a_run([self.schedule(initial=True), *events], **{**SCHEDULE, **four, **changes})

    def test_kept(self):
        run = self.run(self.taken(0, 0.5, self.schedule()), self.taken(1, 0.25, self.schedule()), self.taken(2, 0.125))
        assert broken(run) == set()
        assert checked(run, self.ID) == 3

    def test_for_each_micro_batch(self):
        run = self.run(self.taken(0, 0.5, self.schedule(), self.schedule()), self.taken(1, 0.125))
        assert broken(run) == {self.ID}
        assert "stepped twice" in found(run, self.ID).broken.contradiction

    def test_twice_before_a_step_whose_rate_is_the_same(self):
        """As once more after an epoch: where the next rate is another one, it is seen."""
        flat = {"schedule": [1.0, 0.5, 0.5, 0.25]}
        first = self.taken(0, 0.5, self.schedule(), self.schedule())
        run = self.run(first, self.taken(1, 0.25, self.schedule()), self.taken(2, 0.125), **flat)
        assert broken(run) == {self.ID}
        assert "stepped twice" in found(run, self.ID).broken.contradiction
        assert found(run, self.ID).broken.effect == "Step 2 uses the learning rate 0.125."
        assert broken(self.run(first, self.taken(1, 0.25, self.schedule()), self.taken(2, 0.0625), **flat)) == set()

    def test_before_the_first_step(self):
        assert broken(self.run(micro_batch(0), self.schedule(), step(lr=0.25))) == {self.ID}

    def test_of_a_run_that_was_resumed(self):
        """It goes on at the rate that it had come to, however the scheduler got there."""
        late = self.taken(2, 0.125, self.schedule()), self.taken(3, 0.0625)
        run = self.run(self.schedule(), self.schedule(), *late, resumed_at=2)
        assert broken(run) == set()
        ahead = self.run(self.schedule(), self.taken(2, 0.25), resumed_at=2)
        assert broken(ahead) == {self.ID}
        assert "before the first step after the resume" in found(ahead, self.ID).broken.contradiction

    def test_of_a_run_that_was_resumed_after_a_skipped_step(self):
        """Of the skipped step nothing is known any more."""
        late = self.schedule(), self.taken(2, 0.25, self.schedule())
        scaler = {"init_scale": 8.0, "growth_interval": 9}
        assert broken(self.run(*late, resumed_at=2, precision="fp16", scaler=scaler)) == set()

    def test_for_a_skipped_step(self):
        """It may wait or advance, which is the trainer's choice; but once."""
        skipped = [micro_batch(1), event("skip"), clear(), self.schedule()]
        run = self.run(self.taken(0, 0.5, self.schedule()), skipped, self.taken(2, 0.125))
        assert broken(run) == set()
        assert checked(run, self.ID) == 2
        again = [*skipped, self.schedule()]
        run = self.run(self.taken(0, 0.5, self.schedule()), again, self.taken(2, 0.0625))
        assert broken(run) == {self.ID}
        assert "was no step" in found(run, self.ID).broken.contradiction

    def test_for_a_skipped_step_that_is_taken_all_the_same(self):
        """The schedule may have advanced when the scaler skipped it."""
        forced = [micro_batch(1), event("skip"), self.schedule(), step(lr=0.125), clear()]
        run = self.run(self.taken(0, 0.5, self.schedule()), forced)
        assert self.ID not in broken(run)

    def test_for_the_first_step_if_it_is_skipped(self):
        skipped = [micro_batch(0), event("skip"), clear()]
        assert broken(self.run(skipped, self.taken(1, 0.5))) == set()
        assert broken(self.run(skipped, self.schedule(), self.taken(1, 0.25))) == set()
        assert broken(self.run(skipped, self.schedule(), self.schedule(), self.taken(1, 0.125))) == {self.ID}

    def test_never(self):
        run = self.run(self.taken(0, 0.5), self.taken(1, 0.5))
        assert broken(run) == {self.ID}
        assert found(run, self.ID).broken.event.event == "step"

    def test_made_anew(self):
        """A run that is resumed has a new scheduler, which must be told how far it was."""
        anew = self.schedule(scheduler=1, initial=True)
        run = self.run(self.taken(0, 0.5, self.schedule(), anew), self.taken(1, 0.5))
        assert broken(run) == {self.ID}
        assert "a new scheduler began at step 0 again" in found(run, self.ID).broken.contradiction
        assert found(run, self.ID).broken.event.event == "schedule"

    def test_for_a_window_in_which_only_another_optimizer_steps(self):
        """The step that is missing is another matter."""
        both = self.schedule(), self.schedule(scheduler=1, optimizer=1)
        first = [micro_batch(0), step(), step(optimizer=1), clear(), *both]
        alone = [micro_batch(1), step(lr=0.25), clear(), *both]
        last = [micro_batch(2), step(lr=0.125), step(optimizer=1, lr=0.125), clear()]
        second = self.schedule(scheduler=1, optimizer=1, initial=True)
        run = self.run(hold(0, 0), hold(1, 1), second, first, alone, last)
        assert self.ID not in broken(run)

    def test_permitted(self):
        skipped = [micro_batch(1), event("skip"), clear()]
        assert broken(self.run(self.taken(0, 0.5, self.schedule()), skipped, self.taken(2, 0.25))) == set()
        other = self.schedule(scheduler=1)
        assert broken(self.run(self.taken(0, 0.5, self.schedule(), other), self.taken(1, 0.25))) == set()
        twice = (self.schedule(), self.schedule())
        assert broken(self.run(self.taken(0, 0.5, *twice), self.taken(1, 0.25))) == set(), "a rate that is right"
        assert broken(self.run(self.taken(0, 0.5, *twice), self.taken(1, 0.1), schedule=None)) == set()

    def test_each_optimizer_has_its_own(self):
        def both(number, rate):
            steps = [step(lr=rate), step(optimizer=1, lr=rate)]
            return [micro_batch(number), steps, clear(), self.schedule(), self.schedule(scheduler=1, optimizer=1)]

        assert broken(self.run(hold(0, 0), hold(1, 1), both(0, 0.5), both(1, 0.25))) == set()

    def test_each_group_has_its_own(self):
        """The rate is compared with those of the group that has it: where two meet, one may be ahead to the other's."""
        groups = [{"lr": 0.5, "weight_decay": 0.0, "schedule": [0.5, 0.25, 0.125, 0.125]}]

        def run(rate, of):
            late = [micro_batch(1), step(lr=rate, lr_of=of), clear()]
            return self.run(self.taken(0, 0.5), late, groups=groups)

        assert broken(run(0.25, [0])) == broken(run(0.125, [1])) == set()
        assert broken(run(0.125, [0])) == broken(run(0.25, [1])) == {self.ID}
        assert broken(run(0.125, [0, 1])) == set(), "which of them it is for is not known"
        assert found(run(0.25, [1]), self.ID).broken.because.endswith("0.125")


class TestSchedulePerEpoch:
    """Two epochs of two windows."""

    ID = "acc/schedule-per-epoch"

    def run(self, *rates, after):
        """A run whose scheduler steps after these windows."""
        schedule = {"orders": [[[[0], [1]]]], "epochs": [0, 0], "micro_batch_size": 1, "schedule_by": "epoch"}
        windows = [
            [micro_batch(number), step(lr=rate), clear(), *[event("schedule")] * after.count(number)]
            for number, rate in enumerate(rates)
        ]
        return a_run([event("schedule", initial=True), *windows], **schedule, schedule=[1.0, 0.5, 0.25])

    def test_kept(self):
        run = self.run(0.5, 0.5, 0.25, 0.25, after=[1, 3])
        assert broken(run) == set()
        assert checked(run, self.ID) == 4

    def test_for_each_step(self):
        run = self.run(0.5, 0.25, 0.125, 0.125, after=[0, 1, 2])
        assert broken(run) == {self.ID}
        assert "stepped once" in found(run, self.ID).broken.contradiction

    def test_never(self):
        assert broken(self.run(0.5, 0.5, 0.5, 0.5, after=[])) == {self.ID}

    def test_in_another_way(self):
        """The rate is that of the epoch, whoever set it."""
        assert broken(self.run(0.5, 0.5, 0.25, 0.25, after=[])) == set()
