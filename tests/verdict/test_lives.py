"""What ranks did, read life by life."""

from __future__ import annotations

import copy

import pytest


@pytest.mark.parametrize("name", ["single-acc2-fp32-frozen", "single-acc2-fp32-unused"])
def test_steps_beyond_the_last_window_of_a_model_of_which_some_parameters_have_no_gradient(follow, name):
    run = follow(name)
    *_, last = run.of("step")
    run.after(last, copy.deepcopy(last))
    judgement = run.judged()
    assert judgement.verdict == "FAIL (numerics)"
    assert "7 optimizer steps instead of 6" in " ".join([judgement.headline, *judgement.notes])
