"""The laws of gradient accumulation: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

import pytest

from conformance.laws.checking import check

from .building import a_run, backward, event, forward, step

TWO = {"accumulation": 2, "micro_batch_size": 1, "micro_batches": [[[0], [1], [2], [3]]]}
SCHEDULE = {"schedule": [1.0, 0.5, 0.25, 0.125]}


def micro_batch(window=None, **fields):
    return [forward(window), backward(**fields)]


def clear(**fields):
    return event("zero_grad", **fields)


def hold(optimizer, *parameters, **fields):
    return event("optimizer", optimizer=optimizer, parameters=[*parameters], trainable=[*parameters], **fields)


def broken(run, chapter="acc"):
    return {one.law.id for one in check(run) if one.findings and one.law.chapter == chapter}


def checked(run, id):
    return next(one.checked for one in check(run) if one.law.id == id)


def found(run, id):
    """The first finding: each event of a trace by hand has a line of its own, so there is one for each window."""
    return next(one.findings[0] for one in check(run) if one.law.id == id)


def windows(*bodies):
    """Windows of one micro-batch each, cleared at their end, with something before the step."""
    return [
        [micro_batch(number), body, step(), clear()] if body is not None else [] for number, body in enumerate(bodies)
    ]


class TestOneBackwardPerLoss:
    def test_kept(self):
        run = a_run(windows([], []))
        assert broken(run) == set()
        assert checked(run, "acc/one-backward-per-loss") == 2

    def test_a_loss_backpropagated_twice(self):
        run = a_run([forward(0, rows=[0, 1]), backward(root=7), backward(root=7, forwards=[0]), step()])
        assert broken(run) == {"acc/one-backward-per-loss"}
        assert found(run, "acc/one-backward-per-loss").broken.event.seq == 3

    def test_a_forward_without_a_backward(self):
        run = a_run([forward(0, rows=[0]), forward(rows=[1]), backward(), step()], **TWO)
        assert broken(run) == {"acc/one-backward-per-loss"}
        assert found(run, "acc/one-backward-per-loss").broken.event.kind == "forward"

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param(
                [forward(0), backward(root=9), backward(root=8, forwards=[0])], id="a penalty of its own root"
            ),
            pytest.param([forward(0), backward(root=9), backward(root=8, forwards=[])], id="a loss of weights alone"),
            pytest.param([forward(0), forward(), backward(forwards=[1])], id="a forward that only looks"),
            pytest.param([forward(0), forward(rows=[None]), backward(forwards=[0])], id="rows that are no samples"),
            pytest.param(
                [forward(0), forward(rows=[2, 3]), backward(forwards=[0, 1])], id="two forwards, one backward"
            ),
            pytest.param([forward(0, rows=[0]), forward(rows=[1])], id="torch.autograd.grad"),
        ],
    )
    def test_permitted(self, events):
        assert broken(a_run([events, step()])) == set()

    def test_no_telling_in_a_window_that_was_cut_off(self):
        assert broken(a_run([forward(0, rows=[0]), forward(rows=[1]), backward(), event("raised")], **TWO)) == set()


class TestOneForwardPerLoss:
    ID = "acc/one-forward-per-loss"

    def test_kept(self):
        assert checked(a_run(windows([], [])), self.ID) == 2

    def test_a_forward_once_more(self):
        run = a_run([forward(0), backward(), step(), clear(), forward(1), forward(), backward(), step()])
        assert broken(run) == {self.ID}
        assert found(run, self.ID).broken.event["forward"] == 1

    def test_after_its_backward(self):
        run = a_run([forward(0), backward(), forward(), step()])
        assert broken(run) == {self.ID}

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param([forward(0), forward(), backward(forwards=[1])], id="a look before training"),
            pytest.param([forward(0), backward(), forward(), backward(forwards=[1])], id="two losses"),
            pytest.param([forward(0), forward(), backward(forwards=[0, 1])], id="two forwards, one backward"),
            pytest.param(
                [forward(0), backward(), forward(), event("autograd_grad", forwards=[1])], id="torch.autograd.grad"
            ),
            pytest.param([forward(0), backward(), forward(rows=[None, 0])], id="rows that are no samples"),
            pytest.param([forward(0), backward(), forward(rows=[])], id="rows that cannot be told"),
        ],
    )
    def test_permitted(self, events):
        assert broken(a_run([events, step()])) == set()

    def test_no_telling_in_a_window_that_was_cut_off(self):
        assert broken(a_run([forward(0), backward(), forward(), event("raised")])) == set()


class TestStepAfterAllBackwards:
    ID = "acc/step-after-all-backwards"

    def test_a_step_for_each_micro_batch(self):
        run = a_run([micro_batch(0), step(), clear(), micro_batch(), step(), clear()], **TWO)
        assert broken(run) == {self.ID}

    def test_a_step_before_the_backward(self):
        first = step(gradients=[None, None])
        run = a_run([forward(0), first, clear(), backward(), forward(1), step(), clear(), backward(gradients="none")])
        assert broken(run) == {self.ID}

    def test_the_same_gradients_twice(self):
        assert broken(a_run([micro_batch(0), step(), step(), clear()])) == {self.ID}

    def test_no_step(self):
        run = a_run([micro_batch(0), event("foreign_optimizer", optimizer="SGD", shapes=[[1, 4]]), clear()])
        assert broken(run) == {self.ID}
        assert "holds none of the model's parameters" in found(run, self.ID).broken.contradiction

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param([hold(0, 0), hold(1, 1), micro_batch(0), step(), step(optimizer=1)], id="two optimizers"),
            pytest.param(
                [hold(0, 0), hold(1, 1), micro_batch(0), step(), backward(root=9, forwards=[0]), step(optimizer=1)],
                id="two optimizers, each after its backward",
            ),
            pytest.param([micro_batch(0), step(gradients=[None, None]), step()], id="a step without gradients"),
            pytest.param([micro_batch(0), event("skip")], id="a skipped step"),
            pytest.param([micro_batch(0), step(), backward(root=9, forwards=[])], id="a backward of something else"),
            pytest.param([micro_batch(0), event("raised")], id="cut off"),
        ],
    )
    def test_permitted(self, events):
        assert broken(a_run(events)) == set()

    def test_a_short_window_may_be_dropped(self):
        micro_batches = [[[0], [1], [2]]]
        run = a_run(
            [micro_batch(0), micro_batch(), step(), clear(), micro_batch(1)], **{**TWO, "micro_batches": micro_batches}
        )
        assert broken(run) == set()

    def test_a_scaler_of_the_trainers_own_leaves_out_steps(self):
        scaler = {"init_scale": 1024.0}
        run = a_run([micro_batch(0), clear(), micro_batch(1), step()], precision="fp16", scaler=scaler)
        assert broken(run) == set()


class TestClearing:
    def test_kept(self):
        run = a_run(windows([], []))
        assert checked(run, "acc/cleared-between-windows") == checked(run, "acc/cleared-once") == 1
        assert checked(run, "acc/not-cleared-inside") == 2

    def test_never_cleared(self):
        run = a_run([hold(0, 0, 1), micro_batch(0), step(), micro_batch(1, gradients="some"), step()])
        assert broken(run) == {"acc/cleared-between-windows"}
        assert found(run, "acc/cleared-between-windows").window == 1

    def test_only_a_part_cleared(self):
        part = clear(by="hand", optimizer=None, parameters=[1])
        run = a_run([hold(0, 0, 1), micro_batch(0), step(), part, micro_batch(1, gradients="some"), step()])
        assert broken(run) == {"acc/cleared-between-windows"}
        assert "cleared only others" in found(run, "acc/cleared-between-windows").broken.contradiction

    def test_a_dropped_window_must_be_cleared(self):
        micro_batches, epochs = [[[0], [1], [2]]], 2
        first = [micro_batch(0), micro_batch(gradients="some"), step(), clear(), micro_batch(1)]
        run = a_run(
            [first, micro_batch(2, gradients="some"), step()],
            accumulation=2,
            epochs=epochs,
            micro_batches=micro_batches,
        )
        assert broken(run) == {"acc/cleared-between-windows"}

    @pytest.mark.parametrize(
        "between",
        [
            pytest.param([step(), clear(), forward(1), backward()], id="at the end"),
            pytest.param([step(), forward(1), clear(), backward()], id="after the forward"),
            pytest.param([step(), clear(set_to_none=False), forward(1), backward(gradients="zero")], id="to zero"),
            pytest.param(
                [step(), clear(by="hand", optimizer=None), forward(1), backward(gradients="none")], id="by hand"
            ),
            pytest.param(
                [step(), clear(parameters=[0]), clear(parameters=[1], optimizer=1), forward(1), backward()],
                id="by two optimizers",
            ),
            pytest.param([step(), clear(), forward(1), backward(gradients=None)], id="gradients unknown"),
            pytest.param([step(), clear(), forward(1), backward(), backward(root=9, gradients="some")], id="a penalty"),
        ],
    )
    def test_permitted(self, between):
        assert broken(a_run([hold(0, 0, 1), micro_batch(0), between, step()])) == set()

    def test_what_no_optimizer_holds_may_stay(self):
        cleared = clear(parameters=[0])
        run = a_run([hold(0, 0), micro_batch(0), step(), cleared, micro_batch(1, gradients="some"), step()])
        assert broken(run) == set()

    def test_cleared_twice(self):
        again = clear(by="model", optimizer=None)
        run = a_run([clear(), clear(), micro_batch(0), step(), clear(), again, micro_batch(1), step()])
        assert broken(run) == {"acc/cleared-once"}
        assert found(run, "acc/cleared-once").law.level == "SHOULD"
        assert found(run, "acc/cleared-once").window == 1

    def test_cleared_for_each_micro_batch(self):
        run = a_run([clear(), micro_batch(0), clear(), micro_batch(), step()], **TWO)
        assert broken(run) == {"acc/not-cleared-inside"}

    def test_cleared_before_the_step(self):
        assert broken(a_run([micro_batch(0), clear(), step(gradients=[None, None])])) == {"acc/not-cleared-inside"}

    def test_horovod_has_a_law_of_its_own(self):
        held = hold(0, 0, 1, horovod=True, backward_passes_per_step=1)
        assert broken(a_run([held, micro_batch(0), clear(), step()], backend="horovod")) == set()

    def test_sums_may_be_kept_elsewhere(self):
        gradients = right([0, 1])
        run = a_run([event("start"), micro_batch(0), clear(), micro_batch(), step(gradients=gradients)], **TWO)
        assert broken(run) == set()


class TestOneScalePerWindow:
    ID = "acc/one-scale-per-window"

    @staticmethod
    def scaled(window=None, scale=1024.0, scaler=0, **fields):
        return [forward(window), event("loss_scaled", scale=scale, scaler=scaler), backward(scaled=scale, **fields)]

    def test_kept(self):
        run = a_run([self.scaled(0), self.scaled(), step(scale=1024.0)], **TWO)
        assert broken(run) == set()
        assert checked(run, self.ID) == 1

    def test_scale_changes(self):
        update = event("update", scale_after=512.0)
        run = a_run([self.scaled(0), update, self.scaled(scale=512.0), step(scale=512.0)], **TWO)
        assert broken(run) == {self.ID}
        assert "scale 1024 → 512" in found(run, self.ID).broken.contradiction

    def test_scale_changes_by_hand(self):
        run = a_run([micro_batch(0, scaled=8.0), micro_batch(scaled=4.0), step()], **TWO)
        assert broken(run) == {self.ID}

    def test_each_scaler_has_its_own(self):
        scalings = [event("loss_scaled", scale=2.0**scaler, scaler=scaler) for scaler in (1, 2)]
        assert broken(a_run([forward(0), scalings, backward(), step()])) == set()

    def test_another_window_may_have_another(self):
        second = self.scaled(1, scale=512.0)
        assert broken(a_run([self.scaled(0), step(), clear(), second, step()])) == set()


class TestSchedulePerStep:
    ID = "acc/schedule-per-step"

    @staticmethod
    def schedule(**fields):
        return event("schedule", **fields)

    @staticmethod
    def taken(number, rate, *after):
        return [micro_batch(number), step(lr=rate), clear(), *after]

    def run(self, *events, **changes):
        four = {"micro_batches": [[[0], [1], [2], [3]]], "micro_batch_size": 1}
        return a_run([self.schedule(initial=True), *events], **{**SCHEDULE, **four, **changes})

    def test_kept(self):
        run = self.run(self.taken(0, 0.5, self.schedule()), self.taken(1, 0.25, self.schedule()), self.taken(2, 0.125))
        assert broken(run) == set()
        assert checked(run, self.ID) == 3

    def test_for_each_micro_batch(self):
        run = self.run(self.taken(0, 0.5, self.schedule(), self.schedule()), self.taken(1, 0.125))
        assert broken(run) == {self.ID}
        assert "stepped twice" in found(run, self.ID).broken.contradiction

    def test_before_the_first_step(self):
        assert broken(self.run(micro_batch(0), self.schedule(), step(lr=0.25))) == {self.ID}

    def test_for_a_skipped_step(self):
        skipped = [micro_batch(1), event("skip"), clear(), self.schedule()]
        run = self.run(self.taken(0, 0.5, self.schedule()), skipped, self.taken(2, 0.125))
        assert broken(run) == {self.ID}
        assert "was no step" in found(run, self.ID).broken.contradiction

    def test_never(self):
        run = self.run(self.taken(0, 0.5), self.taken(1, 0.5))
        assert broken(run) == {self.ID}
        assert found(run, self.ID).broken.event.kind == "step"

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


def right(samples, weights=(1.0, 0.5), factor=1.0):
    """The mean gradient of these samples of the default spec, times a factor."""
    slope, bias = weights
    residuals = [(n + 1.0, slope * (n + 1.0) + bias - 2.0 * (n + 1.0)) for n in samples]
    count = len(residuals)
    return [factor * sum(2 * r * x for x, r in residuals) / count, factor * sum(2 * r for _, r in residuals) / count]


class TestAveragedOnce:
    ID = "acc/averaged-once"

    @staticmethod
    def accumulated(*gradients, length=2, **fields):
        """Windows of ``length`` micro-batches whose steps saw these gradients, and left the weights as they were."""
        passes = [micro_batch(gradients="some") for _ in range(length - 1)]
        return [
            event("start"),
            *(
                [micro_batch(number), passes, step(gradients=seen, weights=[1.0, 0.5], **fields), clear()]
                for number, seen in enumerate(gradients)
            ),
        ]

    def test_kept(self):
        run = a_run(self.accumulated(right([0, 1]), right([2, 3])), **TWO)
        assert broken(run) == set()
        assert checked(run, self.ID) == 2

    @pytest.mark.parametrize(
        ("factor", "cause"),
        [
            (2.0, "adding up the 2 micro-batches without dividing by 2"),
            (0.5, "dividing by the 2 micro-batches twice"),
        ],
    )
    def test_window(self, factor, cause):
        run = a_run(self.accumulated(right([0, 1], factor=factor), right([2, 3], factor=factor)), **TWO)
        assert broken(run) == {self.ID}
        assert cause in found(run, self.ID).broken.contradiction

    @pytest.mark.parametrize(
        ("factor", "cause"),
        [
            (3.0, "adding up the 3 ranks without dividing by 3"),
            (1 / 3, "dividing by the 3 ranks twice"),
            (3 / 2, "dividing by the 2 micro-batches twice and adding up the 3 ranks without dividing by 3"),
        ],
    )
    def test_ranks(self, factor, cause):
        gradients = right([0, 1, 2, 0, 1, 2], factor=factor)
        rank = self.accumulated(gradients)
        shares = [[[0], [1]], [[2], [0]], [[1], [2]]]
        model = {"features": 1, "bias": True, "weights": [[1.0, 0.5]] * 3}
        run = a_run(
            rank, rank, rank, backend="ddp", accumulation=2, micro_batch_size=1, micro_batches=shares, model=model
        )
        assert broken(run) == {self.ID}
        assert cause in found(run, self.ID).broken.contradiction

    def test_samples(self):
        run = a_run([event("start"), micro_batch(0), step(gradients=right([0, 1], factor=2.0))])
        assert "adding up the 2 samples of a micro-batch" in found(run, self.ID).broken.contradiction

    def test_nominal_length(self):
        short = [micro_batch(1), step(gradients=right([2], factor=0.5))]
        run = a_run([self.accumulated(right([0, 1])), short], **{**TWO, "micro_batches": [[[0], [1], [2]]]})
        assert broken(run) == {self.ID}
        assert "dividing by 2 where the window has 1 micro-batch" in found(run, self.ID).broken.contradiction
        assert found(run, self.ID).window == 1

    def test_what_full_windows_rule_out_is_no_cause_in_a_short_one(self):
        x = range(1, 7)
        samples = {"x": [[float(n)] for n in x], "y": [2.0 * n for n in x], "weight": [1.0 for _ in x]}
        rank = [self.accumulated(right(range(4))), micro_batch(1), step(gradients=right([4, 5], factor=0.5))]
        shares = [[[0], [1], [4]], [[2], [3], [5]]]
        run = a_run(rank, rank, backend="ddp", samples=samples, **{**TWO, "micro_batches": shares})
        told = found(run, self.ID).broken.contradiction
        assert "dividing by 2 where the window has 1 micro-batch" in told
        assert "dividing by the 2 ranks twice" not in told

    def test_what_the_clip_saw(self):
        clip = event("clip", gradients=right([0, 1], factor=2.0))
        events = [event("start"), micro_batch(0), micro_batch(gradients="some"), clip, step(gradients=[-0.1, -0.1])]
        run = a_run(events, **TWO, clip={"kind": "norm", "threshold": 1.0})
        assert broken(run) == {self.ID}
        assert found(run, self.ID).broken.event.kind == "clip"

    @pytest.mark.parametrize(
        ("gradients", "changes"),
        [
            pytest.param([right([0, 1], factor=2.5)] * 2, {}, id="a factor of nothing"),
            pytest.param([[2 * right([0, 1])[0], right([0, 1])[1]]], {}, id="not in every element"),
            pytest.param([right([0, 1], factor=2.0), right([2], factor=1.0)], {}, id="not in every window"),
            pytest.param([[None, None]], {}, id="no gradients"),
            pytest.param([None], {}, id="a large model"),
            pytest.param([["inf", 1.0]], {}, id="an overflow"),
            pytest.param(
                [right([0, 1], factor=2.0)], {"clip": {"kind": "norm", "threshold": 1.0}}, id="clipped by hand"
            ),
        ],
    )
    def test_no_telling(self, gradients, changes):
        run = a_run(self.accumulated(*gradients), **TWO, **changes)
        assert broken(run) == set()
        assert checked(run, self.ID) == 0

    def test_micro_batches_may_weigh_the_same(self):
        uneven = {"accumulation": 2, "micro_batch_size": 2, "micro_batches": [[[0, 1], [2]]]}
        means = [(a + b) / 2 for a, b in zip(right([0, 1]), right([2]), strict=True)]
        for gradients in (means, right([0, 1, 2])):
            run = a_run(self.accumulated(gradients), **uneven)
            assert broken(run) == set()
            assert checked(run, self.ID) == 1

    def test_loss_scale_is_for_another_law(self):
        scaled = [forward(0), backward(scaled=2.0), forward(), backward(gradients="some", scaled=2.0)]
        run = a_run([event("start"), scaled, step(gradients=right([0, 1], factor=2.0))], **TWO)
        assert broken(run) == set()

    def test_several_optimizers_see_a_part_each(self):
        weight, bias = right([0, 1])
        steps = [step(gradients=[weight, None]), step(optimizer=1, gradients=[None, bias])]
        run = a_run(
            [event("start"), hold(0, 0), hold(1, 1), micro_batch(0), micro_batch(gradients="some"), steps], **TWO
        )
        assert broken(run) == set()
        assert checked(run, self.ID) == 1

    def test_ranks_with_different_weights_are_for_another_law(self):
        ranks = [[event("start", weights=[w, 0.5]), micro_batch(0), step(gradients=right([0, 1]))] for w in (1.0, 2.0)]
        assert checked(a_run(*ranks, backend="ddp"), self.ID) == 0

    def test_weighted(self):
        samples = {"x": [[1.0], [2.0], [3.0], [4.0]], "y": [2.0, 4.0, 6.0, 8.0], "weight": [3.0, 1.0, 1.0, 1.0]}
        one, other = right([0]), right([1])
        mean = [(3 * a + b) / 4 for a, b in zip(one, other, strict=True)]
        for factor in (1.0, 2.0):
            run = a_run(self.accumulated([factor * m for m in mean]), **TWO, samples=samples, loss="weighted")
            assert (broken(run) == {self.ID}) is (factor == 2.0)
