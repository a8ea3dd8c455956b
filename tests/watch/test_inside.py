"""`conformance.watching()` within a test of one's own."""

import pytest
import torch

import conformance


def train(*, clears):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()


def test_a_right_loop_passes_and_leaves_torch_as_it_was():
    before = torch.optim.Optimizer.zero_grad, torch.autograd._engine_run_backward
    with conformance.watching() as findings:
        train(clears=True)
    assert (findings.conserved, findings.steps) == (3, 3)
    assert (torch.optim.Optimizer.zero_grad, torch.autograd._engine_run_backward) == before


def test_a_wrong_one_fails():
    with pytest.raises(AssertionError, match="watch/cleared"), conformance.watching():
        train(clears=False)


def test_an_error_of_the_block_comes_first():
    def wrong():
        with conformance.watching():
            train(clears=False)
            raise KeyError

    with pytest.raises(KeyError):
        wrong()
