"""Evidence that no recorder wrote is the trainer's CRASH, and never an error of the harness."""

from __future__ import annotations

import pytest

from conformance.verdict.judge import judge

CASE = "ddp-w2-acc2-fp32-momentum"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [("step", "weights", ["x"]), ("forward", "rows", [{}]), ("step", "gradients", [[1.0]])],
)
def test_a_field_with_something_else_inside(follow, kind, field, value):
    run = follow(CASE)
    run.of(kind, rank=1)[0][field] = value
    judgement = run.judged()
    assert judgement.verdict == "CRASH"
    assert judgement.headline.startswith("the evidence of rank 1 has event ")
    assert f"in the field {field!r}, which cannot be" in judgement.headline


def test_an_event_that_fits_no_class(follow):
    run = follow(CASE)
    run.of("forward")[0]["wrapper"] = 1
    judgement = judge(run.case, run.outcome().placed(run.case.spec()))
    assert judgement.verdict == "CRASH"
    assert judgement.headline.startswith("the evidence of rank 0 has event ")
    assert "'wrapper'" in judgement.headline
