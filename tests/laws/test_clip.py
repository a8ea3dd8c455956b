"""The laws of clipping: traces that keep them, traces that break them, and what may be done near them."""

from __future__ import annotations

from functools import partial

import pytest

from .building import TWO, a_run, event, hold, micro_batch, step
from .findings import all_checked, broken_of, checked, found

APART = [[2.0, 0.0], [0.0, 1.0]]
HELD = event("optimizer")


def clip(*parameters, **fields):
    return event("clip", parameters=[*parameters] or [0, 1], **fields)


def average(**fields):
    return event("collective", **{"of": "gradients", **fields})


broken = partial(broken_of, {"clip"})


def ranks(*bodies, **changes):
    """What comes between the last backward and the step, on each rank."""
    return a_run(*([HELD, micro_batch(0), body, step()] for body in bodies), **{"backend": "ddp", **changes})


def test_kept():
    run = a_run([HELD, micro_batch(0), clip(), step(), event("zero_grad"), micro_batch(1), clip(), step()])
    assert broken(run) == set()
    assert [checked(run, f"clip/{name}") for name in ("before-step", "once-per-window", "all-parameters")] == [2] * 3
    assert checked(run, "clip/after-sync") == 0


def test_nothing_to_check_without_a_clip():
    run = a_run([HELD, micro_batch(0), step()])
    assert set(all_checked("clip", run).values()) == {0}


class TestAfterSync:
    ID = "clip/after-sync"

    def test_kept(self):
        run = ranks([average(), clip()], [average(), clip()])
        assert broken(run) == set()
        assert checked(run, self.ID) == 2

    def test_clipped_apart(self):
        run = ranks(*([clip(gradients=own, norm=max(own)), average()] for own in APART))
        assert broken(run) == {self.ID}
        finding = found(run, self.ID)
        assert "the norm 2 on rank 0 and 1 on rank 1" in finding.broken.contradiction
        assert finding.ranks == (0, 1)

    def test_a_copy_of_all_gradients_averaged_after_it(self):
        run = ranks(*([clip(gradients=own), average(of=None, elements=2)] for own in APART))
        assert broken(run) == {self.ID}

    def test_a_large_model_shows_its_norms(self):
        run = ranks(*([clip(gradients=None, norm=norm), average()] for norm in (1.0, 2.0)))
        assert broken(run) == {self.ID}

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param([average(), clip(0), average(), clip(1)], id="averaged and clipped by group"),
            pytest.param([average(), clip(), average(of=None, elements=1, bytes=4)], id="a loss averaged for a log"),
            pytest.param([average(), clip(), average(op="broadcast_", of="parameters")], id="weights broadcast"),
            pytest.param([average(), clip(), average(op="allgather_")], id="gradients gathered for a log"),
        ],
    )
    def test_permitted(self, body):
        assert broken(ranks(body, body)) == set()

    def test_horovod_has_a_law_of_its_own(self):
        run = ranks(*([clip(gradients=own), average(via="horovod")] for own in APART), backend="horovod")
        assert broken(run) == set()

    def test_no_telling_without_the_other_rank(self):
        assert checked(ranks([clip(gradients=APART[0]), average()], [event("raised")]), self.ID) == 0


class TestBeforeStep:
    ID = "clip/before-step"

    def test_after_the_step(self):
        run = a_run([HELD, micro_batch(0), step(), clip(), event("zero_grad")])
        assert broken(run) == {self.ID}

    def test_after_the_step_of_its_optimizer(self):
        events = [hold(0, 0), hold(1, 1), micro_batch(0), step(gradients=[1.0, None]), clip(0)]
        assert broken(a_run([events, step(optimizer=1, gradients=[None, 1.0])])) >= {self.ID}

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param(
                [
                    [hold(0, 0), hold(1, 1), micro_batch(0), clip(0), step(gradients=[1.0, None])],
                    [clip(1), step(optimizer=1, gradients=[None, 1.0])],
                ],
                id="each before the step of its optimizer",
            ),
            pytest.param([HELD, micro_batch(0), clip(), event("skip")], id="before a step that is skipped"),
            pytest.param([HELD, micro_batch(0), clip(), step(), clip(threshold="inf")], id="the norm read afterwards"),
            pytest.param([HELD, micro_batch(0), step(), clip(), event("raised")], id="cut off"),
        ],
    )
    def test_permitted(self, events):
        assert broken(a_run(events)) == set()

    def test_steps_for_each_micro_batch_are_for_another_law(self):
        run = a_run([HELD, micro_batch(0), clip(), step(), micro_batch(), clip(), step()], **TWO)
        assert broken(run) == set()


class TestOncePerWindow:
    ID = "clip/once-per-window"

    def test_for_each_micro_batch(self):
        run = a_run([HELD, micro_batch(0), clip(), micro_batch(gradients="some"), clip(), step()], **TWO)
        assert broken(run) == {self.ID}
        assert "clipped twice" in found(run, self.ID).broken.effect

    def test_twice_in_a_row(self):
        assert broken(a_run([HELD, micro_batch(0), clip(), clip(), step()])) == {self.ID}

    def test_before_the_average_too(self):
        run = ranks(*([clip(gradients=own), average(), clip()] for own in APART))
        assert broken(run) == {self.ID}

    @pytest.mark.parametrize(
        "clips",
        [
            pytest.param([clip(0), clip(1)], id="each parameter by itself"),
            pytest.param([clip(kind="value", norm=None), clip()], id="by value and by norm"),
            pytest.param([clip(threshold="inf"), clip()], id="the norm read first"),
        ],
    )
    def test_permitted(self, clips):
        assert broken(a_run([HELD, micro_batch(0), clips, step()])) == set()


class TestAllParameters:
    ID = "clip/all-parameters"

    def test_a_generator_used_up(self):
        run = a_run([HELD, micro_batch(0), event("clip", parameters=[], norm=0.0, gradients=None), step()])
        assert broken(run) == {self.ID}
        assert "was given no parameters" in found(run, self.ID).broken.contradiction

    def test_a_parameter_left_out(self):
        run = a_run([HELD, micro_batch(0), clip(0), step()])
        assert broken(run) == {self.ID}
        assert "left out bias" in found(run, self.ID).broken.contradiction

    @pytest.mark.parametrize(
        ("first", "events"),
        [
            pytest.param(HELD, [clip(0), step(gradients=[1.0, None])], id="a parameter without a gradient"),
            pytest.param(hold(0, 0), [clip(0), step()], id="a parameter that no optimizer holds"),
            pytest.param(hold(0, 0), [clip(0), step(gradients=None)], id="a large model"),
            pytest.param(
                event("optimizer", parameters=[0, 1], trainable=[0]), [clip(0), step()], id="a frozen parameter"
            ),
            pytest.param(HELD, [clip(0), event("gradient_change", parameters=[1]), step()], id="one by hand"),
            pytest.param(HELD, [clip(0), clip(1), step()], id="in groups"),
        ],
    )
    def test_permitted(self, first, events):
        assert broken(a_run([first, micro_batch(0), events])) == set()
