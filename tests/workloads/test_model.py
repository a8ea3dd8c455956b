"""Order, names and rows of a model's elements are torch's."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from operator import mul

import pytest
import torch

from conformance.adapter.models import module, module_class, parameters
from conformance.workloads.model import (
    MODELS,
    Counting,
    LargeTensors,
    Linear,
    ManyTensors,
    Tensor,
    TwoLayers,
    WithDropout,
    model_of,
)  # fmt: skip

MANY = [ManyTensors(), ManyTensors(scalars=False), LargeTensors()]
every_model = pytest.mark.parametrize(
    "model", [Linear(3), Linear(3, bias=True), *MANY, TwoLayers(), Counting(3), WithDropout(3)], ids=str
)


def spec_of(model):
    return {"kind": model.name, **asdict(model)}


def used_by(model, block):
    """Indices of the first layer's inputs that this block sets."""
    width = len({at for one in model.layers[0] for _, at in one})
    every = zip(model.block_of[:width], model.is_used[:width], strict=True)
    return [is_used and own in (None, block) for own, is_used in every]


def inputs_of(model, block):
    """Inputs of one block, in double precision."""
    row = [(number + 2) / 4 * one for number, one in enumerate(used_by(model, block))]
    return model.inputs([*row[:-1], 1.0], block)


def holding(model, weights):
    """The module with these weights, in double precision."""
    torchs = module(spec_of(model)).double()
    spec = {**spec_of(model), "weights": [weights]}
    with torch.no_grad():
        for parameter, start in zip(torchs.parameters(), parameters(spec, 0, torch.double), strict=True):
            parameter.copy_(start)
    return torchs


@every_model
def test_parameters_are_those_of_torch(model):
    torchs = module(spec_of(model))
    assert [(one.name, one.shape) for one in model.tensors] == [
        (name, tuple(parameter.shape)) for name, parameter in torchs.named_parameters()
    ]
    assert model.size == len(model.elements) == len(model.tensor_of) == len(model.is_used)
    assert model.numel == sum(one.numel() for one in torchs.parameters())
    assert model.size == model.numel or not all(model.is_used)
    assert type(torchs) is module_class(spec_of(model))
    assert model_of(spec_of(model)) == model


def test_every_model_is_tried_here():
    assert {type(model) for model in every_model.args[1]} == set(MODELS.values())


@every_model
@pytest.mark.parametrize("block", [0, 1])
def test_a_row_times_the_folded_parameters_is_the_prediction(model, block):
    weights = [(7 * number % 19 - 9) / 8 for number in range(model.size)]
    torchs = holding(model, weights)
    x = inputs_of(model, block % model.blocks)
    assert len(x) == model.features
    alone, batched = torch.tensor(x, dtype=torch.double), torch.tensor([x, x], dtype=torch.double)
    expected = pytest.approx(sum(map(mul, model.folded(weights), model.row(x, 1.0))), rel=1e-12)
    assert torchs(alone).tolist() == [expected]
    assert torchs(batched).tolist() == [[expected], [expected]]


@every_model
def test_inputs_have_the_row_that_they_are_made_of(model):
    for block in range(model.blocks):
        x = inputs_of(model, block)
        assert model.inputs(model.row(x, 1.0), block) == x
        assert [value != 0 for value in model.row(x, 1.0)] == used_by(model, block)
        exact = [Fraction(value) for value in x]
        assert model.row(exact, Fraction(1)) == tuple(map(Fraction, model.row(x, 1.0)))


def test_all_other_elements_of_a_large_parameter_begin_alike():
    model = LargeTensors()
    weights = [3.0 if is_used else 5.0 for is_used in model.is_used]
    for tensor, whole in zip(model.tensors, holding(model, weights).parameters(), strict=True):
        used = list(tensor.used or range(tensor.numel))
        assert whole.flatten()[used].tolist() == [3.0] * len(used)
        assert (whole == 5.0).sum() == whole.numel() - len(used)


def test_many_tensors_have_all_ranks_and_one_of_them_is_tied():
    model, torchs = ManyTensors(), module(spec_of(ManyTensors()))
    assert {len(tensor.shape) for tensor in model.tensors} == {0, 1, 2, 3, 4}
    assert torchs.encoder.weight is torchs.decoder.weight
    assert len(torchs.state_dict()) == len(model.tensors) + 1 > 10


def test_elements_have_names():
    assert Linear(2, bias=True).elements == ("weight[0]", "weight[1]", "bias")
    assert Linear(2, bias=True).tensor_of == (0, 0, 1)
    assert Tensor("gain", ()).elements == ("gain",)
    assert Tensor("table", (2, 2)).elements == ("table[0, 0]", "table[0, 1]", "table[1, 0]", "table[1, 1]")
    large = Tensor("cube", (2, 3, 4), used=(0, 23))
    assert large.elements == ("cube[0, 0, 0]", "cube[1, 2, 3]", "cube[least other]", "cube[largest other]")


@every_model
@pytest.mark.parametrize("block", [0, 1])
def test_slopes_are_the_derivatives_by_each_element(model, block):
    weights = [(7 * number % 19 - 9) / 8 for number in range(model.size)]
    torchs = holding(model, weights)
    x = inputs_of(model, block % model.blocks)
    torchs(torch.tensor(x, dtype=torch.double)).backward()
    gradients = [
        parameter.grad.flatten()[at].item()
        for tensor, parameter in zip(model.tensors, torchs.parameters(), strict=True)
        for at in (range(tensor.numel) if tensor.used is None else tensor.used)
    ]
    slopes = model.slopes(model.row(x, 1.0), weights)
    assert gradients == pytest.approx([slope for slope, is_used in zip(slopes, model.is_used, strict=True) if is_used])


def test_a_backward_may_find_other_weights_than_its_forward():
    """With three inputs and two hidden values: the first layer's slopes have the second's new weights as factors."""
    model, old, new = TwoLayers(), (1, 2, 3, 4, 5, 6, 7, 8), (0,) * 6 + (10, 20)
    assert model.slopes((1, 0, 2), old) == [7, 0, 14, 8, 0, 16, 1 + 6, 4 + 12]
    assert model.slopes((1, 0, 2), old, new) == [10, 0, 20, 20, 0, 40, 1 + 6, 4 + 12]
