"""The laws of clearing gradients: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, backward, clear, event, forward, hold, micro_batch, right, step, windows
from .findings import broken_of, checked, found

broken = partial(broken_of, {"acc"})


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
        first = [micro_batch(0), micro_batch(gradients="some"), step(), clear(), micro_batch(1)]
        run = a_run(
            [first, micro_batch(2, gradients="some"), step()],
            accumulation=2,
            epochs=[0, 0],
            orders=[[[[0], [1], [2]]]],
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

    def test_gradients_of_autograd_grad_that_add_up_to_zero_are_not_cleared(self):
        """The only backward is that of another model."""
        looks_cleared = clear(by="hand", optimizer=None)
        second = [
            forward(1),
            event("autograd_grad", forwards=[1]),
            looks_cleared,
            step(),
            backward(root=9, forwards=[]),
        ]
        run = a_run([forward(0), event("autograd_grad", forwards=[0]), step(), clear(), second])
        assert broken(run) == set()

    def test_what_is_put_into_place_before_a_backward_is_no_rest(self):
        """The only backward is that of another model, after gradients were computed without one."""
        first, second = ([forward(n), event("autograd_grad", forwards=[n])] for n in range(2))
        others = [event("gradient_change"), backward(root=9, gradients="some", forwards=[])]
        assert broken(a_run([hold(0, 0, 1), first, step(), second, others, step()])) == set()

    def test_what_comes_after_an_early_step_and_its_clearing_is_no_rest(self):
        early = [[micro_batch(n, gradients="some" if n else "none"), step(), clear(), micro_batch()] for n in range(2)]
        assert broken(a_run([hold(0, 0, 1), early], **TWO)) == {"acc/step-after-all-backwards"}

    @pytest.mark.parametrize(("held", "laws"), [("some", {"acc/cleared-between-windows"}), ("none", set())])
    def test_what_an_evaluation_leaves(self, held, laws):
        """Before the first window, and between two; the gradients of the step before have been cleared."""
        aside = [forward(extra=True, forward=9, rows=[2, 3]), backward(forwards=[9])]
        first, second = (micro_batch(n, gradients=held) for n in range(2))
        for run in (
            a_run([hold(0, 0, 1), aside, first, step()]),
            a_run([hold(0, 0, 1), micro_batch(0), step(), clear(), aside, second, step()]),
        ):
            assert broken(run) == laws
            if laws:
                assert "belong to no micro-batch" in found(run, "acc/cleared-between-windows").broken.however

    def test_what_an_evaluation_adds_to_is_the_rest_of_a_window(self):
        aside = [forward(extra=True, forward=9, rows=[2, 3]), backward(forwards=[9], gradients="some")]
        run = a_run([hold(0, 0, 1), micro_batch(0), step(), aside, micro_batch(1, gradients="some"), step()])
        assert "the gradients of window 0, which step" in found(run, "acc/cleared-between-windows").broken.however

    def test_cleared_for_each_micro_batch(self):
        run = a_run([clear(), micro_batch(0), clear(), micro_batch(), step()], **TWO)
        assert broken(run) == {"acc/not-cleared-inside"}

    def test_what_is_cleared_inside_a_window_is_not_added_to_the_next(self):
        """As where `zero_grad` works only in the last micro-batch of each, before its backward."""
        first = [micro_batch(0), clear(), micro_batch(), step()]
        then = [micro_batch(1, gradients="some"), clear(), micro_batch(), step()]
        run = a_run([hold(0, 0, 1), first, then], **TWO)
        assert broken(run) == {"acc/not-cleared-inside"}

    def test_a_part_cleared_inside_a_window_leaves_the_others(self):
        part = clear(by="hand", optimizer=None, parameters=[1])
        first = [micro_batch(0), micro_batch(gradients="some"), step()]
        then = [micro_batch(1, gradients="some"), part, micro_batch(gradients="some"), step()]
        run = a_run([hold(0, 0, 1), first, then], **TWO)
        assert broken(run) >= {"acc/cleared-between-windows"}

    def test_cleared_before_the_step(self):
        assert broken(a_run([micro_batch(0), clear(), step(gradients=[None, None])])) == {"acc/not-cleared-inside"}

    def test_the_same_samples_may_go_backward_again(self):
        def twice(rows):
            first = [forward(0, rows=[0, 1], forward=0), backward(forwards=[0])]
            return a_run([first, clear(), forward(rows=rows, forward=1), backward(forwards=[1]), step()])

        assert broken(twice([0, 1])) == set()
        assert broken(twice([2, 3])) == {"acc/not-cleared-inside"}

    def test_horovod_has_a_law_of_its_own(self):
        held = hold(0, 0, 1, horovod=True, backward_passes_per_step=1)
        assert broken(a_run([held, micro_batch(0), clear(), step()], backend="horovod")) == set()

    def test_what_steps_after_all_were_cleared_was_kept_elsewhere(self):
        """Such as in Megatron's main gradients, which are wrong here for another reason."""
        cleared = clear(by="hand", optimizer=None)
        window = [micro_batch(0), cleared, event("collective"), step(gradients=[3.0, 0.0])]
        assert broken(a_run(window)) == set()
        window[-1] = step(gradients=[0.0, 0.0])
        assert broken(a_run(window)) == {"acc/not-cleared-inside"}
        window[1:] = [clear(by="hand", optimizer=None, parameters=[1]), step(gradients=[3.0, 0.0])]
        assert broken(a_run(window)) == {"acc/not-cleared-inside"}

    def test_sums_may_be_kept_elsewhere(self):
        gradients = right([0, 1])
        run = a_run([event("start"), micro_batch(0), clear(), micro_batch(), step(gradients=gradients)], **TWO)
        assert broken(run) == set()

    @pytest.mark.parametrize(("threshold", "laws"), [(1000.0, set()), (0.01, {"acc/not-cleared-inside"})])
    def test_sums_that_are_right_in_one_window_are_kept_in_all(self, threshold, laws):
        """A clip by hand hides what the gradients were, unless they are below its threshold."""
        first = [event("start"), micro_batch(0), clear(), micro_batch(), step(gradients=right([0, 1]))]
        second = [micro_batch(1), clear(), micro_batch(), step(gradients=[0.5, 0.5])]
        clip = {"kind": "norm", "threshold": threshold}
        run = a_run([first, clear(), second], **TWO, clip=clip)
        assert broken(run) == laws
