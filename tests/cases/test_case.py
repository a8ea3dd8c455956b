"""One case: its id, workload and layout, the spec for its ranks, and their hosts."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from fractions import Fraction

import pytest

from conformance.adapter.backends import Topology
from conformance.cases.case import Case
from conformance.trace.lives import as_resumed
from conformance.workloads.layout import EACH_SAMPLE
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.registry import STANDARD

ID = re.compile(
    r"(?P<path>(?P<device>cuda-)?(?P<backend>single|ddp|horovod)(-w(?P<world_size>[2-9]))?"
    r"(-acc(?P<accumulation>[2-9])|-(?P<kind>samples|batched))?)"
    rf"-(?P<precision>{'|'.join(sorted(PRECISIONS, key=len, reverse=True))})"
    rf"-(?P<workload>{'|'.join(STANDARD)})(-resumed-at-(?P<resumed_at>[1-9])(-(?P<resumed>twice|killed|killed-between-files|inside-window|on-[1-4]-ranks?))?)?"
)

EXAMPLES = {
    "single-samples-fp32-momentum": Case("single", 1, EACH_SAMPLE, "fp32", "momentum"),
    "single-batched-fp64-line": Case("single", 1, 1, "fp64", "line"),
    "single-acc3-bf16-decay": Case("single", 1, 3, "bf16", "decay"),
    "ddp-w2-fp32-multivariate": Case("ddp", 2, 1, "fp32", "multivariate"),
    "ddp-w2-acc2-fp16-clip-value": Case("ddp", 2, 2, "fp16", "clip-value"),
    "horovod-w4-acc3-fp16-compression-weighted": Case("horovod", 4, 3, "fp16-compression", "weighted"),
    "cuda-ddp-w2-acc2-fp16-momentum": Case("ddp", 2, 2, "fp16", "momentum", "cuda"),
    "single-acc2-fp16-growing-scale-resumed-at-3": Case("single", 1, 2, "fp16", "growing-scale", resumed_at=3),
    **{
        f"ddp-w2-acc2-fp32-momentum-resumed-at-3-{how}": Case(
            "ddp", 2, 2, "fp32", "momentum", resumed_at=3, resumed=how
        )
        for how in ("killed-between-files", "killed", "on-1-rank")
    },
}
SPECS = ["momentum", "weighted", "clip-norm", "clip-value", "adamw", "overflow", "short-window", "ranks-start-apart"]


@pytest.mark.parametrize("case_id", EXAMPLES)
def test_ids_say_all_that_makes_a_case(case_id):
    case = EXAMPLES[case_id]
    assert case.id == case_id
    parts = ID.fullmatch(case_id)
    assert parts["path"] == case.path
    assert (parts["device"] == "cuda-") == (case.device == "cuda")
    assert (parts["backend"], parts["precision"], parts["workload"]) == (case.backend, case.precision, case.workload)
    assert int(parts["world_size"] or 1) == case.world_size
    one_by_one = parts["kind"] == "samples"
    assert int(parts["accumulation"] or (EACH_SAMPLE if one_by_one else 1)) == case.accumulation
    assert (case.layout == "samples") == one_by_one
    assert int(parts["resumed_at"] or 0) == (case.resumed_at or 0)
    assert (parts["resumed"] or "once") == case.resumed


def test_a_case_builds_its_workload_and_layout_and_keeps_nothing_of_it():
    """A run keeps its cases until its end. They are compared and hashed by value."""
    case, same = (Case("ddp", 3, 2, "bf16", "momentum") for _ in range(2))
    assert {case, same} == {case}
    workload, layout = case.problem.workload, case.problem.layout
    assert (workload.name, workload.batch_size) == ("momentum", 24)
    assert (layout.world_size, layout.accumulation, layout.micro_batch_size) == (3, 2, 4)
    assert case.arithmetic is PRECISIONS["bf16"]
    assert case.problem is case.problem
    assert vars(case).keys() == {field.name for field in fields(case)}


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="no global batch divides over 3 ranks x 1 micro-batches"):
        Case("ddp", 3, 1, "fp32", "line").spec()


def cases():
    for workload in (*SPECS, "line", "multivariate", "uneven-batch"):
        for shape in ((2, 2), (2, 1), (1, 2)):
            if workload == "short-window" and shape[1] == 1:
                continue
            yield Case("single" if shape[0] == 1 else "ddp", *shape, "fp16", workload)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_a_rank_is_told_everything_in_plain_json(case):
    spec = case.spec()
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec
    workload, layout = case.problem.workload, case.problem.layout
    assert spec["case"] == case.id
    assert (spec["backend"], spec["world_size"], spec["precision"]) == (case.backend, case.world_size, "fp16")
    assert (spec["steps"], spec["epochs"], spec["loss"]) == (workload.steps, [0] * workload.epochs, workload.loss)
    assert (spec["accumulation"], spec["micro_batch_size"]) == (layout.accumulation, layout.micro_batch_size)
    stream = [sample for batch in workload.batches for sample in batch]
    told = spec["samples"]
    # Each number is exact as a double: ranks and oracle compute with the same values.
    assert [tuple(map(Fraction, x)) for x in told["x"]] == [sample.x for sample in stream]
    assert list(map(Fraction, told["y"])) == [sample.y for sample in stream]
    assert list(map(Fraction, told["weight"])) == [sample.weight for sample in stream]
    assert [tuple(map(Fraction, w)) for w in spec["model"]["weights"]] == [
        workload.start_of(rank) for rank in range(case.world_size)
    ]
    assert (spec["model"]["features"], spec["model"]["bias"]) == (workload.model.features, workload.model.bias)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
def test_micro_batches_are_those_of_the_layout(case):
    workload, layout = case.problem.workload, case.problem.layout
    [deal] = case.spec()["orders"]
    stream = [sample for batch in workload.batches for sample in batch]
    assert len(deal) == case.world_size
    assert sorted(index for rank in deal for micro_batch in rank for index in micro_batch) == list(range(len(stream)))
    for rank, micro_batches in enumerate(deal):
        turns = iter(micro_batches)
        for step in range(len(workload.batches)):
            window = layout.window(workload, step)
            for expected in window.shares[rank]:
                assert [stream[index] for index in next(turns)] == [window.batch[index] for index in expected]
        assert list(turns) == []


SGD = {"kind": "sgd", "lr": 1.0, "momentum": 0.5}


@pytest.mark.parametrize(
    ("workload", "precision", "what", "told"),
    [
        ("decay", "fp32", "optimizer", {**SGD, "dampening": 0.5, "nesterov": False, "weight_decay": 0.5}),
        ("clip-value", "fp32", "optimizer", {**SGD, "dampening": 0.0, "nesterov": True, "weight_decay": 0.0}),
        ("adamw", "fp32", "optimizer", {"kind": "adamw", "lr": 0.125, "betas": [0.9, 0.999], "eps": 1e-8,
                                        "weight_decay": 0.125}),
        ("momentum", "fp32", "schedule", [1.0, 0.5, 1.0, 0.5, 0.5, 1.0]),
        ("sgd", "fp32", "schedule", None),
        ("clip-value", "fp32", "clip", {"kind": "value", "threshold": 1.0}),
        ("clip-norm", "fp32", "clip", {"kind": "norm", "threshold": 8.0}),
        ("momentum", "fp32", "clip", None),
        ("growing-scale", "fp16", "scaler", {"init_scale": 16.0, "growth_factor": 2.0, "backoff_factor": 0.5,
                                             "growth_interval": 2}),
        *(("growing-scale", name, "scaler", None) for name in ("fp64", "fp32", "bf16", "fp16-compression")),
    ],
)  # fmt: skip
def test_settings_are_told_with_torchs_names(workload, precision, what, told):
    assert Case("ddp", 2, 2, precision, workload).spec()[what] == told


def test_ranks_are_told_different_weights_where_a_broadcast_must_make_them_one():
    for workload, are_equal in (("ranks-start-apart", False), ("momentum", True)):
        one, other = Case("ddp", 2, 2, "fp32", workload).spec()["model"]["weights"]
        assert (one == other) == are_equal


def test_a_case_that_is_resumed_on_other_ranks_shares_the_same_batches_out_to_them():
    case = Case("ddp", 2, 2, "fp32", "many-tensors", resumed_at=4, resumed="on-3-ranks")
    assert case.world_sizes == (2, 3)
    assert [window.world_size for window in case.problem.windows] == [2, 2, 2, 2, 3, 3]
    through = Case("ddp", 3, 2, "fp32", "many-tensors").problem.windows
    assert [window.samples for window in case.problem.windows] == [window.samples for window in through]
    spec = case.spec()
    assert (spec["world_size"], spec["micro_batch_size"], len(spec["model"]["weights"])) == (2, 6, 3)
    resumed = as_resumed(spec)
    assert (resumed["world_size"], resumed["micro_batch_size"], len(resumed["orders"][0])) == (3, 4, 3)
    assert resumed["orders"] == Case("ddp", 3, 2, "fp32", "many-tensors").spec()["orders"]


@pytest.mark.parametrize(
    ("spec", "nodes", "local_ranks", "local_sizes", "across"),
    [
        ({"world_size": 3}, [0, 0, 0], [0, 1, 2], [3, 3, 3], [(0,), (1,), (2,)]),
        ({"world_size": 3, "hosts": ["a", "b", "a"]}, [0, 1, 0], [0, 0, 1], [2, 1, 2], [(0, 1), (0, 1), (2,)]),
    ],
)
def test_without_hosts_there_is_one_and_they_may_be_of_different_sizes(spec, nodes, local_ranks, local_sizes, across):
    found = Topology.of(spec)
    assert found.hosts == tuple(spec.get("hosts", ["localhost"] * 3))
    assert [found.node(rank) for rank in range(3)] == nodes
    assert [found.local_rank(rank) for rank in range(3)] == local_ranks
    assert [found.local_size(rank) for rank in range(3)] == local_sizes
    assert [found.across(rank) for rank in range(3)] == across
