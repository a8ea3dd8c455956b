"""The law of one forward for each loss: traces that keep it, traces that break it, and what may be done near it."""

from __future__ import annotations

from functools import partial

import pytest

from .building import a_run, backward, clear, event, forward, step, windows
from .findings import broken_of, checked, found

broken = partial(broken_of, {"acc"})


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
