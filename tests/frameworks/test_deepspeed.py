"""DeepSpeed conforms in all of ZeRO's stages, whatever its settings; and what is done wrong with it is caught."""

from __future__ import annotations

import pytest
from deepspeed.accelerator import get_accelerator

from conformance.oracle.faults import CATALOGUE
from conformance.report.causes import causes, title
from conformance.suite.items import collect
from conformance.suite.running import run as run_case
from conformance.suite.servers import Servers
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


def test_fp16_is_unavailable_where_deepspeed_refuses_it(servers):
    [item] = collect(servers, [f"{ADAPTER}:zero_1"], [], ["deepspeed-w2-acc2-fp16-momentum"])
    supported = get_accelerator().is_fp16_supported()
    assert (item.verdict, item.reason) == ((None, "") if supported else ("UNAVAILABLE", REFUSED))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_where_it_is_not_refused(stage, write, servers):
    """Skipped steps and the loss scale are seen. When the scale grows, DeepSpeed divides by the new one already."""
    target = write(f"""
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        CPU_Accelerator.is_fp16_supported = lambda self: True

        from conformance import Task
        from conformance.frameworks import deepspeed

        @deepspeed.reference
        def train(task: Task) -> None:
            deepspeed.fit(task, {stage})
    """)
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
