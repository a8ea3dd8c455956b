"""The laws on messages from rank to rank, and on ranks whose parameter server steps."""

from __future__ import annotations

from functools import partial

import pytest

from conformance.laws.law import CHAPTERS

from .building import TWO, a_run, backward, event, forward, micro_batch, right, step
from .building_ddp import stepped
from .findings import broken_of, checked, the_finding

SENT, CAME = event("send", of="gradients"), event("receive", of="gradients")
EXCHANGE = [SENT, CAME]
TOTAL = [event("send", bytes=4, elements=1), event("receive", bytes=4, elements=1)]
WEIGHTS = [1.0, 0.5]
LATER = [[0.5, 0.0], [0.25, 0.25]]
SCALER = {"init_scale": 1024.0}


def ring(build, **changes):
    return a_run(*(build(rank) for rank in range(2)), backend="ring", **changes)


REPLY = event("send", of="parameters")


def served(*work, server=None, reply=REPLY, arrived=LATER, again="none", backend="parameter-server", **changes):
    """A server that works too, and a worker, for two windows.

    work: what the worker does in its first window. server, reply: what the server does in its first, and how it sends
    the weights. arrived: the weights that the worker has after each. again: its gradients before the second.
    """
    serving = server or [forward(0, weights=WEIGHTS), backward(), CAME, step(weights=LATER[0])]
    then = [forward(1, weights=LATER[0]), backward(), CAME, step(weights=LATER[1]), reply]
    working = [*work] or [forward(0, weights=WEIGHTS), backward(), SENT]
    came = event("receive", of="parameters") if reply is REPLY else reply
    working = [working, came, forward(1, weights=arrived[0]), backward(gradients=again), SENT, came]
    return a_run(
        [event("start"), serving, reply, event("zero_grad"), then, event("finished", weights=LATER[1])],
        [event("start"), working, event("finished", weights=arrived[1])],
        **{"backend": backend, **changes},
    )


broken = partial(broken_of, CHAPTERS)


class TestMessages:
    """Sent gradients count as averaged."""

    def test_bring_gradients_together(self):
        run = ring(lambda rank: [micro_batch(0), EXCHANGE, step()])
        assert broken(run) == set()
        assert checked(run, "ddp/all-reduce-every-window") == 2

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param([], id="none"),
            pytest.param(TOTAL, id="of one number"),
            pytest.param([event("send", bytes=90, elements=90), event("receive", bytes=90, elements=90)], id="of text"),
        ],
    )
    def test_that_bring_nothing_together(self, body):
        run = ring(lambda rank: [micro_batch(0), body, stepped(rank)])
        assert broken(run) == {"ddp/all-reduce-every-window"}

    def test_before_the_last_backward(self):
        run = ring(lambda rank: [micro_batch(0), EXCHANGE, micro_batch(gradients="some"), stepped(rank)], **TWO)
        assert "ddp/all-reduce-every-window" in broken(run)
        told = the_finding(run, "ddp/all-reduce-every-window").broken
        assert "the last average was send to rank 1 (gradients, 8 B)" in told.observed

    def test_after_the_clip(self):
        def clip(rank):
            return event("clip", gradients=[1.0 + rank, 0.0], norm=1.0 + rank)

        held = event("optimizer")
        assert broken(ring(lambda rank: [held, micro_batch(0), EXCHANGE, clip(0), step()])) == set()
        assert broken(ring(lambda rank: [held, micro_batch(0), clip(rank), EXCHANGE, step()])) == {"clip/after-sync"}

    def test_after_unscaling(self):
        def window(*body):
            taken = [event("scaler_step"), step(scale=1024.0), event("update")]
            return [forward(0), event("loss_scaled"), backward(scaled=1024.0), *body, *taken]

        assert broken(ring(lambda rank: window(*EXCHANGE, event("unscale")))) == set()
        assert broken(ring(lambda rank: window(event("unscale"), *EXCHANGE))) == {"amp/unscale-after-sync"}

    def test_may_agree_on_an_overflow(self):
        """A flag between `unscale_` and the gradients reports it."""
        taken = [event("scaler_step"), step(scale=1024.0), event("update")]
        scaled = [forward(0), event("loss_scaled"), backward(scaled=1024.0), event("unscale")]
        assert broken(ring(lambda rank: [scaled, TOTAL, EXCHANGE, taken])) == set()

    def test_may_change_scaled_gradients(self):
        taken = [event("unscale"), event("scaler_step"), step(scale=1024.0), event("update")]
        scaled = [event("start"), forward(0), event("loss_scaled"), backward(scaled=1024.0)]
        own, whole = (event("gradient_change", since=4, before=right(rows, 1024.0)) for rows in ([0], [0, 1]))
        assert broken(ring(lambda rank: [scaled, CAME, own, taken])) == set()
        assert "amp/unscale-before-change" not in broken(ring(lambda rank: [scaled, SENT, own, taken]))
        assert "amp/unscale-before-change" in broken(ring(lambda rank: [scaled, SENT, whole, taken]))


class TestServed:
    """The backend parameter-server, where one rank steps for all."""

    def test_keeps_the_laws(self):
        run = served()
        assert broken(run) == set()
        assert checked(run, "ddp/identical-weights") == 2
        assert checked(run, "acc/step-after-all-backwards") == 2
        assert checked(run, "ddp/all-reduce-every-window") == 4

    @pytest.mark.parametrize("backend", ["ring", "ddp"])
    def test_a_rank_of_another_backend_may_get_its_weights_from_another(self, backend):
        assert broken(served(backend=backend)) == set()
        assert broken(served(backend=backend, arrived=[WEIGHTS, LATER[1]])) == {"ddp/identical-weights"}

    def test_weights_that_did_not_arrive(self):
        run = served(arrived=[WEIGHTS, LATER[1]])
        assert "ddp/identical-weights" in broken(run)
        assert the_finding(run, "ddp/identical-weights").window == 0

    def test_weights_that_did_not_arrive_at_the_end(self):
        run = served(arrived=[LATER[0], LATER[0]])
        assert "ddp/identical-weights" in broken(run)
        assert the_finding(run, "ddp/identical-weights").window == 1

    def test_a_step_for_each_worker(self):
        steps = [step(weights=LATER[1]), CAME, step(weights=LATER[0])]
        run = served(server=[forward(0, weights=WEIGHTS), backward(), *steps])
        assert "acc/step-after-all-backwards" in broken(run)

    def test_gradients_left_from_the_window_before(self):
        assert broken(served(again="some")) == {"acc/cleared-between-windows"}

    def test_weights_may_be_broadcast(self):
        run = served(reply=event("collective", op="broadcast_", of="parameters"))
        assert broken(run) == set()
        assert checked(run, "ddp/all-reduce-every-window") == 4

    def test_a_worker_that_sends_nothing(self):
        run = served(forward(0, weights=WEIGHTS), backward())
        assert broken(run) == {"ddp/all-reduce-every-window"}
        assert the_finding(run, "ddp/all-reduce-every-window").ranks == (1,)

    def test_the_scale_is_the_servers(self):
        """A worker multiplies by a number that it received; only the server has a scaler, which takes it off."""
        taken = [event("scaler_step"), step(scale=1024.0, weights=LATER[0]), event("update")]
        scaling = [forward(0, weights=WEIGHTS), event("loss_scaled"), backward(scaled=1024.0), CAME, event("unscale")]

        def working(scale):
            at_outputs = {"outputs": [[1.5, 2.5]], "output_gradients": [[-0.5 * scale, -1.5 * scale]]}
            work = [forward(0, weights=WEIGHTS, computes="float16"), backward(**at_outputs), SENT]
            return served(*work, server=[*scaling, *taken], precision="fp16", scaler=SCALER)

        assert "amp/scaler-with-fp16" not in broken(working(1024.0))
        assert "amp/scaler-with-fp16" in broken(working(1.0))
