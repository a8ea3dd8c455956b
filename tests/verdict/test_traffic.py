"""What the recorder counts in real runs is what the formulas say, and more where a trainer sends more."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case
from conformance.runner.front.client import ForkServer
from conformance.verdict.bytes_sent import traffic
from conformance.verdict.judge import judge
from conformance.workloads.precision import BF16, FP32, PRECISIONS, Precision
from fixtures.written import file_of

KINDS = ("sent", "received", "reduced")


def recorded(target, case):
    with ForkServer(target, backend=case.backend) as server:
        judgement = judge(case, server.run(case.spec(), time_limit=60.0))
    assert judgement.verdict.startswith("PASS"), judgement.headline
    return traffic(judgement.runs[0])


@pytest.mark.parametrize(
    ("trainer", "case"),
    [
        ("ring", Case("ring", 4, 1, "fp32", "momentum")),
        ("ring", Case("ring", 3, 2, "fp16", "clip-value")),
        ("ring_gather", Case("ring-gather", 4, 2, "fp64", "momentum")),
        ("parameter_server", Case("parameter-server", 3, 2, "bf16", "momentum")),
        ("parameter_server", Case("parameter-server", 4, 1, "fp16", "overflow")),
        ("ddp", Case("ddp", 3, 2, "fp32", "momentum")),
        ("horovod", Case("horovod", 2, 2, "fp16-compression", "momentum")),
        ("zero_redundancy", Case("zero-redundancy", 2, 2, "fp16", "overflow-in-part")),
        ("fsdp2", Case("fsdp2", 3, 2, "fp32", "momentum")),
        ("fsdp2", Case("fsdp2", 2, 2, "fp16", "overflow-in-part")),
        ("fsdp2_hybrid", Case("fsdp2", 4, 2, "fp64", "momentum")),
    ],
    ids=lambda value: getattr(value, "id", None),
)
def test_as_the_formula_says(trainer, case):
    found = recorded(trainer, case)
    assert len(found.ranks) == case.world_size
    assert found.gradient == len(case.problem.workload.start) * {"fp64": 8, "fp16-compression": 2}.get(
        case.precision, 4
    )
    for rank in found.ranks:
        assert [getattr(rank, kind) for kind in KINDS] == [getattr(rank, f"expected_{kind}") for kind in KINDS]
        assert sum(getattr(rank, kind) for kind in KINDS) > 0


@pytest.mark.parametrize(
    ("trainer", "case", "whole", "kept"),
    [
        # A row of three weights and a bias, in fp32: rank 0 has a column and the bias, each other one a column.
        ("fsdp2", Case("fsdp2", 3, 2, "fp32", "momentum"), 16, [8, 4, 4]),
        # Two moments of each in fp64; the weight is one rank's, the bias another's.
        ("zero_redundancy", Case("zero-redundancy", 3, 2, "fp64", "adamw"), 64, [48, 16, 0]),
        ("ddp", Case("ddp", 2, 2, "fp32", "momentum"), None, [None, None]),
    ],
    ids=lambda value: getattr(value, "id", None),
)
def test_what_each_rank_keeps_of_the_optimizers_state(trainer, case, whole, kept):
    found = recorded(trainer, case)
    assert (found.state, [rank.state for rank in found.ranks]) == (whole, kept)


def test_a_server_tells_its_workers_the_loss_scale_besides():
    found = recorded("parameter_server", Case("parameter-server", 3, 1, "fp16", "momentum"))
    assert [rank.other for rank in found.ranks] == [2 * 4, 0, 0]


@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        ("ring_each_micro_batch", Case("ring", 3, 2, "fp32", "momentum")),
        ("all_reduce_per_micro_batch", Case("ddp", 2, 2, "fp32", "momentum")),
    ],
)
def test_what_is_sent_in_every_micro_batch_shows(mutant, case):
    for rank in recorded(str(file_of(mutant)), case).ranks:
        for kind in KINDS:
            assert getattr(rank, kind) == case.accumulation * getattr(rank, f"expected_{kind}")


def test_integers_are_neither_gradients_nor_weights(tmp_path):
    """However many they are."""
    path = tmp_path / "counting.py"
    path.write_text("""
import torch
from torch.nn.parallel import DistributedDataParallel
from conformance.trainers import ddp

class Counting(DistributedDataParallel):
    def forward(self, inputs):
        torch.distributed.broadcast(torch.ones(32, dtype=torch.int64), src=0)
        return super().forward(inputs)

ddp.DistributedDataParallel = Counting
train = ddp.train
""")
    for rank in recorded(f"{path}:train", Case("ddp", 2, 1, "fp32", "momentum")).ranks:
        assert rank.reduced == rank.expected_reduced
        assert rank.other > 0


def test_one_process_sends_nothing():
    case = Case("single", 1, 1, "fp32", "momentum")
    assert recorded("batched", case) is None


def test_a_payload_is_as_wide_as_the_wire(follow, monkeypatch):
    """Also with a precision that was added later."""
    run = follow("ddp-w2-fp32-momentum").judged().runs[0]
    elements = run.plan.model.size
    assert traffic(run).gradient == elements * 4
    monkeypatch.setitem(PRECISIONS, "bf16-compression", Precision("bf16-compression", FP32, FP32, BF16))
    run.plan.spec["precision"] = "bf16-compression"
    assert traffic(run).gradient == elements * 2
