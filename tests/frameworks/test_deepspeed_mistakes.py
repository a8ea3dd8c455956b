"""Bugs in the use of DeepSpeed, and in DeepSpeed, are caught; unusual correct uses pass."""

from __future__ import annotations

import pytest

from conformance.oracle.faults import KNOWN
from conformance.report.causes import causes, title
from conformance.suite.items import collect
from conformance.suite.one_item import run as run_case
from conformance.suite.servers import Servers
from fixtures.kill import is_caught
from fixtures.kill import judged as judged_specimen
from fixtures.specimens import specimens

#: Seconds; DeepSpeed starts slowly on a loaded machine.
TIME_LIMIT = 60.0
MUTANTS = specimens("mutants/on_deepspeed")
VARIANTS = specimens("variants/on_deepspeed")
BUGS = {fault.name: fault.text for fault in KNOWN}


@pytest.fixture(scope="module")
def servers():
    servers = Servers()
    yield servers
    servers.close()


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
    """Known: the loss is not scaled, and `initialize` creates the optimizer's state by a step."""
    cases = [f"deepspeed-w2-acc2-fp16-{workload}" for workload in ("momentum", "two-groups-clip")]
    target = write(FP16.format(stage=0))
    results = [run_case(item, servers, TIME_LIMIT) for item in collect(servers, [target], [], cases)]
    assert [case.verdict for case in results] == ["FAIL (numerics)"] * 2
    headlines = {case.workload: case.headline for case in results}
    assert headlines["momentum"] == "step 0, rank 0: the gradient of weight[0] is 0.0625, expected 2"
    assert headlines["two-groups-clip"].startswith("a step with zero gradients changed the weights before training")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fp16_where_it_is_not_refused(stage, write, servers):
    """Skipped steps and the loss scale are seen. When the scale grows, DeepSpeed divides by the new one too early."""
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
