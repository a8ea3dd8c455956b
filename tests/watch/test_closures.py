"""L-BFGS whose closure computes no gradient, so that it goes on along the one from before."""

import pytest
import torch
from torch.nn.functional import mse_loss

from conformance.watch.judging.findings import said
from conformance.watch.judging.judge import Judge
from conformance.watch.ledger import Ledger
from conformance.watch.reading import Reader
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded

torch.manual_seed(0)
X = torch.randn(32, 4)
Y = X.sin().sum(1, keepdim=True)


def backward(model):
    loss = mse_loss(model(X), Y)
    loss.backward()
    return loss


def by_hand(model):
    loss = mse_loss(model(X), Y)
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
        parameter.grad = gradient
    return loss


def nothing(model):
    return mse_loss(model(X), Y)


def into_what_is_there(model):
    loss = mse_loss(model(X), Y)
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
        parameter.grad.copy_(gradient)
    return loss


@pytest.mark.parametrize(
    ("evaluate", "kind", "settings", "stale"),
    [
        (nothing, torch.optim.LBFGS, {"max_iter": 4}, 4),
        (nothing, torch.optim.LBFGS, {"max_iter": 4, "line_search_fn": "strong_wolfe"}, None),
        (nothing, torch.optim.LBFGS, {"max_iter": 1}, 0),  # called once, where the gradient is from
        (nothing, torch.optim.SGD, {"lr": 0.1}, 0),
        (backward, torch.optim.LBFGS, {"max_iter": 4}, 0),
        (by_hand, torch.optim.LBFGS, {"max_iter": 4}, 0),
        (into_what_is_there, torch.optim.LBFGS, {"max_iter": 4}, 0),
    ],
)
def test_a_closure_without_gradients(tmp_path, evaluate, kind, settings, stale):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = kind(model.parameters(), **settings)

    def closure():
        if evaluate is backward:
            optimizer.zero_grad()
        return evaluate(model)

    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()):
        for _ in range(4):
            optimizer.zero_grad()
            backward(model)
            optimizer.step(closure)
    judge = Judge()
    Reader(tmp_path, judge).finish()
    found = {law: cause.first for (law, _), cause in judge.finish().causes.items()}
    assert [*found] == ([] if stale == 0 else ["watch/fresh"])
    if stale:
        assert found["watch/fresh"].says == said("passes.stale-closure", calls=stale)
