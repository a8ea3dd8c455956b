"""The order, the names and the rows of a model's elements are torch's."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from conformance.workloads.model import Linear, Tensor, model_of


@pytest.mark.parametrize("bias", [False, True])
def test_parameters_are_those_of_torch(bias):
    model, torchs = Linear(3, bias), torch.nn.Linear(3, 1, bias)
    assert [(one.name, one.shape) for one in model.tensors] == [
        (name, tuple(parameter.shape)) for name, parameter in torchs.named_parameters()
    ]
    assert model.size == len(model.elements) == len(model.tensor_of) == sum(one.numel() for one in torchs.parameters())
    assert model_of({"kind": "linear", "features": 3, "bias": bias}) == model


def test_a_row_times_the_parameters_is_the_prediction():
    model, torchs = Linear(3, bias=True), torch.nn.Linear(3, 1)
    x = (2.0, -1.0, 0.5)
    flat = torch.nn.utils.parameters_to_vector(torchs.parameters())
    assert torch.dot(flat, torch.tensor(model.row(x, 1.0))).item() == pytest.approx(torchs(torch.tensor(x)).item())
    assert model.row((Fraction(1, 2),) * 3, Fraction(1)) == (*[Fraction(1, 2)] * 3, 1)
    assert Linear(3).row(x, 1.0) == x


def test_elements_have_names():
    assert Linear(2, bias=True).elements == ("weight[0]", "weight[1]", "bias")
    assert Linear(2, bias=True).tensor_of == (0, 0, 1)
    assert Tensor("gain", ()).elements == ("gain",)
    assert Tensor("table", (2, 2)).elements == ("table[0, 0]", "table[0, 1]", "table[1, 0]", "table[1, 1]")
