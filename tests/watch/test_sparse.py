"""What becomes of several entries of a row of a sparse gradient, in small scripts."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance


def assigned(parameter, gradient):
    dense = torch.zeros_like(parameter)
    for row, values in zip(gradient._indices()[0], gradient._values(), strict=True):
        dense[row] = values
    return dense


def made_dense(parameter, gradient):
    return gradient.to_dense()


def summed_by_hand(parameter, gradient):
    return torch.zeros_like(parameter).index_add_(0, gradient._indices()[0], gradient._values())


def mean_of_entries(parameter, gradient):
    counts = torch.bincount(gradient._indices()[0], minlength=len(parameter)).clamp(min=1)
    return gradient.to_dense() / counts[:, None]


def train(becomes, alike):
    """alike: whether entries of one row are equal."""
    torch.manual_seed(0)
    words, head = nn.Embedding(6, 5, sparse=True), nn.Linear(5, 1)
    optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(4):
            rows = torch.randint(6, (8,))
            weights = torch.ones(8, 1) if alike else torch.randn(8, 1)
            head((words(rows) * weights).sum(0)).square().sum().backward()
            words.weight.grad = becomes(words.weight, words.weight.grad)
            optimizer.step()
            optimizer.zero_grad()
    return any(cause.first.says.code == "last-entries" for cause in findings.causes.values())


@pytest.mark.parametrize(
    ("becomes", "alike", "expected"),
    [
        (assigned, False, True),
        (made_dense, False, False),
        (summed_by_hand, False, False),
        (mean_of_entries, False, False),
        (mean_of_entries, True, False),
    ],
)
def test_entries_of_a_row(becomes, alike, expected):
    assert train(becomes, alike) == expected
