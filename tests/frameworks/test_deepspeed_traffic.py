"""DeepSpeed's traffic agrees with the formula of each stage; in doubt there is no formula."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer
from conformance.trace.events import Collective, Forward, Zero
from conformance.verdict.bytes_sent import traffic
from conformance.verdict.judge import judge

ADAPTER = "conformance.frameworks.deepspeed"
#: Seconds; DeepSpeed starts slowly on a loaded machine.
TIME_LIMIT = 60.0


def recorded(target, *cases):
    with ForkServer(target, backend="deepspeed") as server:
        for case in cases:
            judgement = judge(case, server.run(case.spec(), time_limit=TIME_LIMIT))
            assert judgement.verdict.startswith("PASS"), judgement.headline
            yield judgement.runs[0]


SIZES = [
    Case("deepspeed", ranks, accumulation, precision, "momentum")
    for ranks in (2, 3)
    for accumulation in (1, 2)
    for precision in ("fp32", "bf16")
]


@pytest.mark.parametrize("stage", range(4))
def test_traffic_by_hand(stage):
    """A row of three weights and a bias. Shards are padded to pairs: of both together, or of each."""
    for case, run in zip(SIZES, recorded(f"{ADAPTER}:zero_{stage}", *SIZES), strict=True):
        share = {2: (0, 2, 2, 2 + 1), 3: (0, 2, 2, 1 + 1)}[case.world_size][stage]
        averaged = case.world_size * share if stage == 3 else 4
        elements = averaged * (case.accumulation if stage >= 2 else 1) + share
        width = 2 if case.precision == "bf16" else 4
        found = traffic(run)
        assert found.gradient == 4 * width
        assert {(rank.reduced, rank.expected_reduced) for rank in found.ranks} == {(elements * width,) * 2}


TRAINER = """
    import torch.distributed as dist
    from conformance import Task
    from conformance.frameworks import deepspeed

    settings = {settings}

    def config(task, stage, plain=deepspeed.config):
        made = plain(task, stage)
        made["zero_optimization"] |= settings
        return made

    deepspeed.config = config

    @deepspeed.reference
    def train(task: Task) -> None:
        deepspeed.fit(task, {stage})
"""
SHARDS = Case("deepspeed", 2, 2, "fp32", "many-shards")


@pytest.mark.parametrize("stage", range(4))
def test_traffic_in_small_pieces(stage, write):
    target = write(TRAINER.format(stage=stage, settings={"reduce_bucket_size": 7}))
    [run] = recorded(target, SHARDS)
    [expected] = {rank.expected_reduced for rank in traffic(run).ranks}
    assert expected == (72, 72 + 40, 2 * 72 + 40, 2 * 88 + 44)[stage]
    assert {rank.reduced for rank in traffic(run).ranks} == {expected}
    if stage:
        assert sum(event.of == "gradients" for event in run.ranks[0].windows[-1].of(Collective)) > 2


@pytest.mark.parametrize(
    ("stage", "settings"),
    [(1, {"reduce_scatter": False}), (3, {"stage3_param_persistence_threshold": 0})],
    ids=["other-setting", "not-kept"],
)
def test_no_formula_where_it_is_in_doubt(stage, settings, write):
    [run] = recorded(write(TRAINER.format(stage=stage, settings=settings)), SHARDS)
    assert run.ranks[0].of(Zero) == ()
    assert {rank.expected_reduced for rank in traffic(run).ranks} == {None}
    assert all(rank.reduced > 0 for rank in traffic(run).ranks)


BY_HAND = """
    def by_hand(engine, plain=deepspeed.deepspeed.DeepSpeedEngine.step):
        if not engine.is_gradient_accumulation_boundary():
            for parameter in engine.module.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        plain(engine)

    deepspeed.deepspeed.DeepSpeedEngine.step = by_hand
"""


def test_gradients_averaged_in_each_micro_batch_by_hand(write):
    target = write(TRAINER.format(stage=0, settings={}) + BY_HAND)
    [run] = recorded(target, Case("deepspeed", 2, 2, "fp32", "momentum"))
    assert {(rank.reduced, rank.expected_reduced) for rank in traffic(run).ranks} == {(2 * 16, 16)}


def test_the_recorder_gathers_nothing():
    """In stage 3, reading a parameter may gather it: only DeepSpeed does so, for the modules of the forward."""
    [run] = recorded(f"{ADAPTER}:zero_3", SHARDS)
    [engine], forwards = run.ranks[0].of(Zero), run.ranks[0].of(Forward)
    gathers = run.ranks[0].between(Collective, after=engine, before=forwards[0])
    assert [event.elements for event in gathers if "allgather" in event.op] == [4]
