"""The laws of accumulation: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, backward, clear, event, forward, hold, micro_batch, step, windows
from .findings import broken_of, checked, found

broken = partial(broken_of, {"acc"})


class TestOneBackwardPerLoss:
    def test_kept(self):
        run = a_run(windows([], []))
        assert broken(run) == set()
        assert checked(run, "acc/one-backward-per-loss") == 2

    def test_a_loss_backpropagated_twice(self):
        run = a_run([forward(0, rows=[0, 1]), backward(root=7), backward(root=7, forwards=[0]), step()])
        assert broken(run) == {"acc/one-backward-per-loss"}
        assert found(run, "acc/one-backward-per-loss").broken.event.seq == 3

    def test_a_loss_backpropagated_again_in_a_sum(self):
        again = [event("backward_begin", root=8, contains=[7]), event("backward_end", forwards=[0])]
        run = a_run([forward(0, rows=[0, 1]), backward(root=7), again, step()])
        assert broken(run) == {"acc/one-backward-per-loss"}

    def test_a_forward_without_a_backward(self):
        run = a_run([forward(0, rows=[0]), forward(rows=[1]), backward(), step()], **TWO)
        assert broken(run) == {"acc/one-backward-per-loss"}
        assert found(run, "acc/one-backward-per-loss").broken.event.event == "forward"

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param(
                [forward(0), backward(root=9), backward(root=8, forwards=[0])], id="a penalty of its own root"
            ),
            pytest.param([forward(0), backward(root=9), backward(root=8, forwards=[])], id="a loss of weights alone"),
            pytest.param(
                [forward(0), backward(root=9), event("zero_grad"), backward(root=9, forwards=[0])],
                id="a backward for its own norm, cleared",
            ),
            pytest.param([forward(0, extra=True), forward(), backward(forwards=[1])], id="a forward that only looks"),
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
        events = [micro_batch(0), micro_batch(), step(), clear(), micro_batch(1)]
        run = a_run(events, **{**TWO, "orders": [[[[0], [1], [2]]]]})
        assert broken(run) == set()

    def test_a_scaler_of_the_trainers_own_leaves_out_steps(self):
        scaler = {"init_scale": 1024.0}
        run = a_run([micro_batch(0), clear(), micro_batch(1), step()], precision="fp16", scaler=scaler)
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


class TestOneForwardPerLoss:
    ID = "acc/one-forward-per-loss"

    def test_kept(self):
        assert checked(a_run(windows([], [])), self.ID) == 2

    def test_a_forward_once_more(self):
        run = a_run([forward(0), backward(), step(), clear(), forward(1, extra=True), forward(1), backward(), step()])
        assert broken(run) == {self.ID}
        assert found(run, self.ID).broken.event.forward == 1

    def test_after_its_backward(self):
        run = a_run([forward(0), backward(), forward(extra=True), step()])
        assert broken(run) == {self.ID}

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param([forward(0, extra=True), forward(), backward(forwards=[1])], id="a look before training"),
            pytest.param([forward(0), backward(), forward(), backward(forwards=[1])], id="two losses"),
            pytest.param([forward(0), forward(), backward(forwards=[0, 1])], id="two forwards, one backward"),
            pytest.param(
                [forward(0), backward(), forward(), event("autograd_grad", forwards=[1])], id="torch.autograd.grad"
            ),
            pytest.param(
                [
                    forward(0),
                    backward(),
                    forward(extra=True),
                    event("backward_begin", backward=1),
                    forward(),
                    backward(),
                ],
                id="a backward that raised",
            ),
            pytest.param([forward(0), backward(), forward(rows=[None, 0], extra=True)], id="rows that are no samples"),
            pytest.param([forward(0), backward(), forward(rows=[], extra=True)], id="rows that cannot be told"),
            pytest.param([forward(0), backward(), forward(extra=True, training=False)], id="an evaluation"),
        ],
    )
    def test_permitted(self, events):
        assert broken(a_run([events, step()])) == set()

    def test_no_telling_in_a_window_that_was_cut_off(self):
        assert broken(a_run([forward(0), backward(), forward(extra=True), event("raised")])) == set()
