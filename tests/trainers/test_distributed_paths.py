"""The reference trainers of several ranks, in real processes over gloo, against the formulas in float64."""

from __future__ import annotations

import pytest

from conformance.runner.front.client import ForkServer
from conformance.trace.hindsight.shards import joined

from .tasks import WORKLOADS, check, make_spec, of_kind, overflowing, scaler

PRECISIONS = {
    "ddp": ["fp64", "fp32", "bf16", "fp16"],
    "horovod": ["fp64", "fp32", "bf16", "fp16", "fp16-compression"],
    "fsdp2": ["fp64", "fp32", "bf16", "fp16"],
    "zero_redundancy": ["fp64", "fp32", "bf16", "fp16"],
    "horovod_plain": ["fp64", "fp32", "bf16", "fp16-compression"],
    "parameter_server": ["fp64", "fp32", "bf16", "fp16"],
    "ring": ["fp64", "fp32", "bf16", "fp16"],
    "ring_gather": ["fp64", "fp32", "bf16", "fp16"],
}

TRAINERS = list(PRECISIONS)


@pytest.fixture(scope="module")
def servers():
    """One server a trainer, started when it is first asked for."""
    started = {}

    def server(trainer):
        if trainer not in started:
            started[trainer] = ForkServer(trainer, backend=backend_of(trainer)).__enter__()
        return started[trainer]

    yield server
    for one in started.values():
        one.__exit__(None, None, None)


def backend_of(trainer):
    return "horovod" if trainer == "horovod_plain" else trainer.replace("_", "-")


def run(server, spec):
    """Each rank's events, with whole weights; every rank ended well and printed nothing, not even a warning."""
    outcome = server.run(spec, time_limit=60.0)
    assert [rank.exit for rank in outcome.ranks] == ["exited 0"] * spec["world_size"]
    assert [rank.output for rank in outcome.ranks] == [""] * spec["world_size"]
    return joined([rank.events for rank in outcome.ranks])


def check_ranks(spec, ranks, skipped=frozenset()):
    """Each rank took the right steps; or, of a parameter server's workers, holds the weights of the server's."""
    served = spec["backend"] == "parameter-server"
    for events in ranks[:1] if served else ranks:
        check(spec, events, skipped)
    for events in ranks[1:] if served else []:
        assert of_kind(events, "step") == of_kind(events, "optimizer") == []
        held, right = (
            [event["weights"] for event in run if event["event"] in ("forward", "finished")]
            for run in (events, ranks[0])
        )
        assert held == right


@pytest.mark.parametrize(
    ("trainer", "precision"),
    [(trainer, precision) for trainer in TRAINERS for precision in PRECISIONS[trainer]],
)
@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_every_precision(servers, trainer, precision, loss):
    spec = make_spec(world_size=2, accumulation=2, size=2, precision=precision, scaler=scaler(), loss=loss)
    spec["backend"] = backend_of(trainer)
    check_ranks(spec, run(servers(trainer), spec))


@pytest.mark.parametrize(
    ("trainer", "workload"),
    [
        (trainer, workload)
        for trainer in TRAINERS
        for workload in WORKLOADS
        if trainer != "horovod_plain" or not workload.startswith("clip")
    ],
)
def test_every_workload(servers, trainer, workload):
    changes = WORKLOADS[workload]
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=3, precision="fp64", **changes)
    spec["backend"] = backend_of(trainer)
    check_ranks(spec, run(servers(trainer), spec))


@pytest.mark.parametrize(("world_size", "accumulation", "size"), [(2, 1, 4), (4, 1, 2), (4, 2, 1)])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_layout(servers, trainer, world_size, accumulation, size):
    spec = make_spec(world_size=world_size, accumulation=accumulation, size=size, precision="fp64")
    spec["backend"] = backend_of(trainer)
    ranks = run(servers(trainer), spec)
    check_ranks(spec, ranks)
    for rank, events in enumerate(ranks):
        rows = [row for forward in of_kind(events, "forward") for row in forward["rows"]]
        assert rows == [index for micro_batch in spec["orders"][0][rank] for index in micro_batch]
        [topology] = of_kind(events, "topology")
        via = "horovod" if trainer.startswith("horovod") else "torch.distributed"
        assert (topology["world_size"], topology["rank_reached"], topology["via"]) == (world_size, rank, via)


@pytest.mark.parametrize("loss", ["mean", "weighted"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_short_last_window(servers, trainer, loss):
    """Windows of 3 over 4 micro-batches: the second does not reach Horovod's `backward_passes_per_step`."""
    spec = make_spec(world_size=2, accumulation=3, size=2, precision="fp64", loss=loss)
    spec["backend"] = backend_of(trainer)
    ranks = run(servers(trainer), spec)
    assert [step["forwards"] for step in of_kind(ranks[0], "step")] == [3, 4]
    check_ranks(spec, ranks)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_smaller_last_micro_batch(servers, trainer):
    """4 samples a rank in micro-batches of 3 and 1."""
    spec = make_spec(world_size=2, accumulation=2, size=3, steps=1, precision="fp64")
    spec["orders"] = [[[[0, 1, 2], [6]], [[3, 4, 5], [7]]]]
    spec["backend"] = backend_of(trainer)
    check_ranks(spec, run(servers(trainer), spec))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_ranks_that_start_apart_are_made_equal(servers, trainer):
    spec = make_spec(world_size=2, size=4, precision="fp64")
    spec["model"]["weights"] = [[0.5, -0.5, 0.25], [2.0, 3.0, 4.0]]
    spec["backend"] = backend_of(trainer)
    check_ranks(spec, run(servers(trainer), spec))


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("trainer", ["ddp", "horovod", "fsdp2", "zero_redundancy", "ring", "ring_gather"])
def test_an_overflow_on_one_rank_is_skipped_by_all(servers, trainer, accumulation):
    """Sample 3 is read by one rank only; though it is the first step of all, nothing warns."""
    spec = overflowing(world_size=2, accumulation=accumulation, size=4 // accumulation)
    for events in run(servers(trainer), {**spec, "backend": backend_of(trainer)}):
        [skip] = of_kind(events, "skip")
        assert skip["weights"] == [0.5, -0.5, 0.25]
        assert not skip["gradients_finite"]
        updates = [(update["scale_before"], update["scale_after"]) for update in of_kind(events, "update")]
        assert updates == [(1024.0, 512.0), (512.0, 512.0), (512.0, 512.0)]
        assert [step["lr"] for step in of_kind(events, "step")] == [0.0625, 0.03125]
        check(spec, events, skipped=frozenset({0}))


def test_ddp_averages_gradients_once_a_window(servers):
    """`no_sync` holds the other all-reduces back."""
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=3, precision="fp32", backend="ddp")
    for events in run(servers("ddp"), spec):
        kinds = [
            event.get("op", event["event"])
            for event in events
            if event["event"] in ("forward", "step") or event.get("op") == "allreduce_"
        ]
        assert kinds == ["forward", "forward", "allreduce_", "step"] * 3
        sizes = {event["bytes"] for event in of_kind(events, "collective") if event["op"] == "allreduce_"}
        assert sizes == {3 * 4}


def test_the_plain_step_declares_what_it_cannot_do(servers):
    """Nothing can happen between Horovod's average and a plain step: no unscaling, no clipping."""
    declaration = servers("horovod_plain").declaration
    assert declaration.clips == ()
    assert "fp16" not in declaration.precisions


def test_horovod_compresses_what_it_sends(servers):
    spec = make_spec(world_size=2, size=4, precision="fp16-compression", backend="horovod")
    for events in run(servers("horovod"), spec):
        sizes = [event["bytes"] for event in of_kind(events, "collective") if event["op"] == "allreduce"]
        assert sorted(sizes) == [2, 2, 4, 4]
