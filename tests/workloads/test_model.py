"""The order, the names and the rows of a model's elements are torch's."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction

import pytest
import torch

from conformance.adapter.models import module, module_class
from conformance.workloads.model import MODELS, Linear, ManyTensors, Tensor, model_of

every_model = pytest.mark.parametrize("model", [Linear(3), Linear(3, bias=True), ManyTensors()], ids=str)


def spec_of(model):
    return {"kind": model.name, **asdict(model)}


def inputs_of(model, block):
    """Inputs of one block, in double precision."""
    used = [own in (None, block) for own in model.block_of]
    row = [(number + 2) / 4 * one for number, one in enumerate(used)]
    return model.inputs([*row[:-1], 1.0], block)


@every_model
def test_parameters_are_those_of_torch(model):
    torchs = module(spec_of(model))
    assert [(one.name, one.shape) for one in model.tensors] == [
        (name, tuple(parameter.shape)) for name, parameter in torchs.named_parameters()
    ]
    assert model.size == len(model.elements) == len(model.tensor_of) == sum(one.numel() for one in torchs.parameters())
    assert type(torchs) is module_class(spec_of(model))
    assert model_of(spec_of(model)) == model


def test_every_model_is_tried_here():
    assert {type(model) for model in every_model.args[1]} == set(MODELS.values())


@every_model
@pytest.mark.parametrize("block", [0, 1])
def test_a_row_times_the_parameters_is_the_prediction(model, block):
    torchs = module(spec_of(model)).double()
    x = inputs_of(model, block % model.blocks)
    assert len(x) == model.features
    flat = torch.nn.utils.parameters_to_vector(torchs.parameters())
    row = torch.tensor(model.row(x, 1.0), dtype=torch.double)
    alone, batched = torch.tensor(x, dtype=torch.double), torch.tensor([x, x], dtype=torch.double)
    expected = pytest.approx(torch.dot(flat, row).item(), rel=1e-12)
    assert torchs(alone).tolist() == [expected]
    assert torchs(batched).tolist() == [[expected], [expected]]


@every_model
def test_inputs_have_the_row_that_they_are_made_of(model):
    for block in range(model.blocks):
        x = inputs_of(model, block)
        assert model.inputs(model.row(x, 1.0), block) == x
        used = [own in (None, block) for own in model.block_of]
        assert [value != 0 for value in model.row(x, 1.0)] == used
        exact = [Fraction(value) for value in x]
        assert model.row(exact, Fraction(1)) == tuple(map(Fraction, model.row(x, 1.0)))


def test_many_tensors_have_all_ranks_and_one_of_them_is_tied():
    model, torchs = ManyTensors(), module(spec_of(ManyTensors()))
    assert {len(tensor.shape) for tensor in model.tensors} == {0, 1, 2, 3, 4}
    assert len(model.tensors) >= 10
    assert torchs.encoder.weight is torchs.decoder.weight
    assert len(torchs.state_dict()) == len(model.tensors) + 1


def test_elements_have_names():
    assert Linear(2, bias=True).elements == ("weight[0]", "weight[1]", "bias")
    assert Linear(2, bias=True).tensor_of == (0, 0, 1)
    assert Tensor("gain", ()).elements == ("gain",)
    assert Tensor("table", (2, 2)).elements == ("table[0, 0]", "table[0, 1]", "table[1, 0]", "table[1, 1]")
