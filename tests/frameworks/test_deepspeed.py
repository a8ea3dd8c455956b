"""DeepSpeed conforms in all of ZeRO's stages, whatever its settings; and what is done wrong with it is caught."""

from __future__ import annotations

import pytest
from deepspeed.accelerator import get_accelerator

from conformance.cases.case import Case
from conformance.oracle.faults import CATALOGUE
from conformance.report.causes import causes, title
from conformance.runner.front.client import ForkServer
from conformance.suite.items import collect
from conformance.suite.running import run as run_case
from conformance.suite.servers import Servers
from conformance.trace.events import Collective, Forward, Zero
from conformance.verdict.judge import judge
from conformance.verdict.traffic import traffic
from fixtures.kill import is_caught
from fixtures.kill import judged as judged_specimen
from fixtures.specimens import specimens

ADAPTER = "conformance.frameworks.deepspeed"
TARGET = " ".join(f"{ADAPTER}:zero_{stage}" for stage in range(4))
REFUSED = "DeepSpeed refuses fp16 here, as this CPU has no instructions for it (AVX512-FP16)"
CASES = (
    "deepspeed-w2-acc2-fp32-momentum",
    "deepspeed-w2-acc2-bf16-momentum",
    "deepspeed-w2-acc2-fp32-weighted",
    "deepspeed-w3-acc2-fp32-clip-norm",
    "deepspeed-w3-acc2-fp32-adamw",
    "deepspeed-w4-acc2-fp32-short-window",
    "deepspeed-w4-fp32-ranks-start-apart",
    "deepspeed-w2-acc2-fp32-many-shards",
    "deepspeed-w3-acc2-fp32-many-shards-groups",
    "deepspeed-w4-fp32-many-shards-clip-norm",
    "deepspeed-w2-acc2-fp32-many-shards-resumed-at-4",
    "deepspeed-w2-acc2-fp32-many-shards-resumed-at-3-killed",
)
#: Seconds; DeepSpeed takes some to begin, on a loaded machine.
TIME_LIMIT = 60.0
MUTANTS = specimens("mutants/on_deepspeed")
VARIANTS = specimens("variants/on_deepspeed")
BUGS = {fault.name: fault.text for fault in CATALOGUE}


@pytest.fixture(scope="module")
def servers():
    servers = Servers()
    yield servers
    servers.close()


def test_every_case_passes(judged):
    assert [(case.trainer, case.id) for case in judged if not case.verdict.startswith("PASS")] == []
    assert len(judged) == 4 * len(CASES)


def test_the_memory_of_the_optimizers_state(judged):
    """Ten parameters of 18 elements, in fp32: all in stage 0, else half, filled up to pairs, or each by itself."""
    traffic = {case.trainer: case.traffic for case in judged if case.id == "deepspeed-w2-acc2-fp32-many-shards"}
    kept = {name: (found.state, {rank.state for rank in found.ranks}) for name, found in traffic.items()}
    assert kept == {"zero_0": (72, {72}), "zero_1": (72, {40}), "zero_2": (72, {40}), "zero_3": (72, {44})}


def test_traffic_is_as_the_formula_says(judged):
    """Also with a short window, or where ranks start apart."""
    off = [
        (case.trainer, case.id, rank.reduced, rank.expected_reduced)
        for case in judged
        for rank in case.traffic.ranks
        if rank.reduced != rank.expected_reduced
    ]
    assert off == []


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
    """A row of three weights and a bias. Parts are filled up: to pairs of both together, or each by itself."""
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
    """In stage 3, looking a parameter up may gather it: only DeepSpeed does so, for the modules that go forward."""
    [run] = recorded(f"{ADAPTER}:zero_3", SHARDS)
    [engine], forwards = run.ranks[0].of(Zero), run.ranks[0].of(Forward)
    gathers = run.ranks[0].of(Collective, after=engine, before=forwards[0])
    assert [event.elements for event in gathers if "allgather" in event.op] == [4]


def test_fp16_is_unavailable_where_deepspeed_refuses_it(servers):
    [item] = collect(servers, [f"{ADAPTER}:zero_1"], [], ["deepspeed-w2-acc2-fp16-momentum"])
    supported = get_accelerator().is_fp16_supported()
    assert (item.verdict, item.reason) == ((None, "") if supported else ("UNAVAILABLE", REFUSED))


FP16 = """
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.is_fp16_supported = lambda self: True

    from conformance import Task
    from conformance.frameworks import deepspeed

    @deepspeed.reference
    def train(task: Task) -> None:
        deepspeed.fit(task, {stage})
"""


def test_fp16_in_stage_0(write, servers):
    """Known: the loss is not scaled, and `initialize` makes the state of the optimizer by a step."""
    cases = [f"deepspeed-w2-acc2-fp16-{workload}" for workload in ("momentum", "two-groups-clip")]
    target = write(FP16.format(stage=0))
    results = [run_case(item, servers, TIME_LIMIT) for item in collect(servers, [target], [], cases)]
    assert [case.verdict for case in results] == ["FAIL (numerics)"] * 2
    headlines = {case.workload: case.headline for case in results}
    assert headlines["momentum"] == "step 0, rank 0: the gradient of weight[0] is 0.0625, expected 2"
    assert headlines["two-groups-clip"].startswith("a step with gradients of zero changed the weights before training")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_where_it_is_not_refused(stage, write, servers):
    """Skipped steps and the loss scale are seen. When the scale grows, DeepSpeed divides by the new one already."""
    target = write(FP16.format(stage=stage))
    cases = [f"deepspeed-w2-acc2-fp16-{workload}" for workload in ("momentum", "overflow-in-part", "growing-scale")]
    results = [run_case(item, servers, TIME_LIMIT) for item in collect(servers, [target], [], cases)]
    assert {case.workload: case.verdict for case in results} == {
        "momentum": "PASS (exact)",
        "overflow-in-part": "PASS (exact)",
        "growing-scale": "FAIL (numerics)",
    }
    assert [case.headline.startswith("the gradients of window 2 are 1/2 times") for case in results] == [
        case.workload == "growing-scale" for case in results
    ]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant, servers):
    results = judged_specimen(mutant, servers, TIME_LIMIT)
    assert is_caught(mutant, results), [(result.id, result.verdict, result.headline) for result in results]
    texts = [title(cause, cases, BUGS) for cause, cases in causes(results)]
    assert mutant.cause is None or [text.startswith(mutant.cause) for text in texts] == [True], texts


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_passes(variant, servers):
    results = judged_specimen(variant, servers, TIME_LIMIT)
    assert is_caught(variant, results), [(result.id, result.verdict, result.headline) for result in results]
