"""With the trainer's own loss scale a workload is the same training in smaller numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.adapter.declaration import Declaration
from conformance.cases.case import Case
from conformance.cases.matrix import plan
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.registry import OWN_SCALE

OWN = Declaration(
    backends=("single",),
    precisions=("fp16",),
    losses=("mean", "weighted"),
    loss_scale="own",
    **dict.fromkeys(("sparse", "unused_parameters", "unfreezes", "buffers"), True),
)
CASES = sorted({(one.case.accumulation, one.case.workload) for one in plan(OWN, "single") if one.undeclared is None})


@pytest.mark.in_turn
@pytest.mark.parametrize(("accumulation", "workload"), CASES)
def test_a_workload_is_as_exact_and_its_weights_are_those_of_before_in_another_unit(accumulation, workload):
    case = Case("single", 1, accumulation, "fp16", workload)
    before, after = (replace(case, own_scale=own).problem for own in (False, True))
    unit = before.workload.scale.init_scale / OWN_SCALE
    one, two = Recurrence(before).run(), Recurrence(after).run()
    assert one.certificate.exact == two.certificate.exact
    assert two.skips == one.skips
    if after.workload.clip is not None and after.workload.clip.kind == "norm":
        # The constant that torch adds to a norm has no unit, so only stages before the clip are the same.
        two, one = replace(two, steps=two.steps[:1]), replace(one, steps=one.steps[:1])
    for old, new in zip(one.steps, two.steps, strict=True):
        assert agree(old.weights, new.weights, unit)
        assert agree(old.gradient, new.gradient, unit)


def agree(old, new, unit):
    """Bit-identical if both are exact; otherwise some value is within both bounds."""
    pairs = zip(old.center, old.radius, new.center, new.radius, strict=True)
    return all(abs(value * unit - other) <= radius * unit + further for value, radius, other, further in pairs)


def test_cases_in_fp16_alone_have_it():
    both = replace(OWN, precisions=("fp32", "fp16"))
    planned = [one.case for one in plan(both, "single") if one.undeclared is None]
    assert {case.precision for case in planned if case.own_scale} == {"fp16"}
    assert {case.precision for case in planned if not case.own_scale} == {"fp32"}
    assert not any(one.case.own_scale for one in plan(replace(both, loss_scale="task"), "single"))


def test_what_is_about_the_growth_of_the_scale_or_is_not_linear_is_not_declared():
    refused = [one for one in plan(replace(OWN, precisions=("fp16",)), "single") if one.undeclared is not None]
    assert "the task's loss scale" in {one.undeclared for one in refused}
    assert not {"growing-scale", "two-layers"} & {workload for _, workload in CASES}


def test_the_scale_is_torch_s_default_and_an_unknown_one_is_refused():
    assert float(OWN_SCALE) == torch.amp.GradScaler("cpu").get_scale()
    assert Case("single", 1, 2, "fp16", "momentum", own_scale=True).spec()["scaler"]["init_scale"] == 65536.0
    with pytest.raises(ValueError, match=r"unknown loss_scale 'mine' \(allowed: task, own\)"):
        Declaration(loss_scale="mine")
