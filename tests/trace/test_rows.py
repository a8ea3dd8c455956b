"""Which samples went into a forward."""

from __future__ import annotations

import torch

from conformance.trace.state.finding import Rows


def test_samples_that_are_equal_in_the_inputs_dtype_cannot_be_told_apart():
    rows = Rows([[1.0], [1.001], [2.0]])
    inputs = torch.tensor([[1.0], [1.001], [2.0]], dtype=torch.float64)
    assert rows.of(inputs) == [0, 1, 2]
    assert rows.of(inputs.bfloat16()) == [None, None, 2]
