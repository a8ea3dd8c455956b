"""The law of averaging once: traces that keep it, traces that break it, and what may be done near it."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, backward, clear, event, forward, hold, micro_batch, right, step
from .building_ddp import ALL_REDUCE
from .findings import broken_of, checked, found

broken = partial(broken_of, {"acc"})


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
            (2.0, "summing the 2 micro-batches without dividing by 2"),
            (0.5, "dividing by the 2 micro-batches twice"),
        ],
    )
    def test_window(self, factor, cause):
        run = a_run(self.accumulated(right([0, 1], factor=factor), right([2, 3], factor=factor)), **TWO)
        assert broken(run) == {self.ID}
        assert cause in found(run, self.ID).broken.why

    @pytest.mark.parametrize(
        ("factor", "cause"),
        [
            (3.0, "summing the 3 ranks without dividing by 3"),
            (1 / 3, "dividing by the 3 ranks twice"),
            (3 / 2, "dividing by the 2 micro-batches twice and summing the 3 ranks without dividing by 3"),
        ],
    )
    def test_ranks(self, factor, cause):
        gradients = right([0, 1, 2, 0, 1, 2], factor=factor)
        rank = self.accumulated(gradients)
        shares = [[[0], [1]], [[2], [0]], [[1], [2]]]
        model = {"kind": "linear", "features": 1, "bias": True, "weights": [[1.0, 0.5]] * 3}
        run = a_run(rank, rank, rank, backend="ddp", accumulation=2, micro_batch_size=1, orders=[shares], model=model)
        assert broken(run) == {self.ID}
        assert cause in found(run, self.ID).broken.why

    def test_samples(self):
        run = a_run([event("start"), micro_batch(0), step(gradients=right([0, 1], factor=2.0))])
        assert "summing the 2 samples of a micro-batch" in found(run, self.ID).broken.why

    def test_nominal_length(self):
        short = [micro_batch(1), step(gradients=right([2], factor=0.5))]
        run = a_run([self.accumulated(right([0, 1])), short], **{**TWO, "orders": [[[[0], [1], [2]]]]})
        assert broken(run) == {self.ID}
        assert "dividing by 2 although the window has 1 micro-batch" in found(run, self.ID).broken.why
        assert found(run, self.ID).window == 1

    def test_what_full_windows_rule_out_is_no_cause_in_a_short_one(self):
        x = range(1, 7)
        samples = {"x": [[float(n)] for n in x], "y": [2.0 * n for n in x], "weight": [1.0 for _ in x]}
        rank = [self.accumulated(right(range(4))), micro_batch(1), step(gradients=right([4, 5], factor=0.5))]
        shares = [[[0], [1], [4]], [[2], [3], [5]]]
        run = a_run(rank, rank, backend="ddp", samples=samples, **{**TWO, "orders": [shares]})
        told = found(run, self.ID).broken.why
        assert "dividing by 2 although the window has 1 micro-batch" in told
        assert "dividing by the 2 ranks twice" not in told

    @pytest.mark.parametrize(
        ("between", "blamed"),
        [
            ([], "backward_begin"),
            ([ALL_REDUCE], "collective"),
            ([ALL_REDUCE | {"during": "backward"}], "backward_begin"),
            ([event("gradient_change", parameters=[0, 1], factor=2.0)], "clip"),
        ],
    )
    def test_what_the_clip_saw_was_computed_before(self, between, blamed):
        clip = event("clip", gradients=right([0, 1], factor=2.0))
        before = [event("start"), micro_batch(0), micro_batch(gradients="some"), *between]
        run = a_run([*before, clip, step(gradients=[-0.1, -0.1])], **TWO, clip={"kind": "norm", "threshold": 1.0})
        assert broken(run) == {self.ID}
        said = found(run, self.ID).broken
        assert (said.event.event, "clip" in said.observed) == (blamed, True)

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
        uneven = {"accumulation": 2, "micro_batch_size": 2, "orders": [[[[0, 1], [2]]]]}
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
