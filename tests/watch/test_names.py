"""Names of parameters that no optimizer holds."""

import pytest
import torch
from torch import nn

from conformance.watch import records

from .recorded import records_in


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 1, bias=False)

    def forward(self, rows):
        return nn.functional.linear(self.body(rows), self.head.weight)


def replaced_attribute(model, _):
    model.head.weight = nn.Parameter(torch.ones(1, 2))
    return lambda rows: model(rows).sum()


def replaced_in_what_never_goes_forward(model, _):
    """A method is called in its place."""
    model.head.weight = nn.Parameter(torch.ones(1, 2))
    return lambda rows: model.forward(rows).sum()


def second_of_two(model, other):
    return lambda rows: model(rows).sum() + other(rows).sum()


def of_no_module(model, _):
    alone = nn.Parameter(torch.ones(1))
    return lambda rows: model(rows).sum() * alone


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (replaced_attribute, ["head.weight"]),
        (replaced_in_what_never_goes_forward, ["Model.head.weight"]),
        (second_of_two, ["Sequential.0.weight", "Sequential.1.weight"]),
        (of_no_module, ["a parameter of shape (1,)"]),
    ],
)
def test_what_no_optimizer_holds_has_a_name(tmp_path, change, expected):
    model = Model()
    other = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False))
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loss = change(model, other)
        for _ in range(3):
            optimizer.zero_grad()
            loss(torch.ones(4, 3)).backward()
            optimizer.step()
    assert sorted([one for one in found if isinstance(one, records.Unheld)][-1].names) == expected
