"""Gradients that a node of a backward pass asks autograd for, and hands on to the leaves or adds to `.grad` itself."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance
from conformance.watch.verdict import verdict

DATA = torch.arange(48.0).reshape(16, 3).cos()


class Recomputed(torch.autograd.Function):
    """`run` goes forward without a graph, and once more, with one, when the gradient comes."""

    @staticmethod
    def forward(ctx, run, passes_on, inputs, *weights):
        ctx.run, ctx.passes_on, ctx.inputs, ctx.weights = run, passes_on, inputs, weights
        with torch.no_grad():
            return run(inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = ctx.inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            output = ctx.run(inputs)
        of_inputs, *of_weights = torch.autograd.grad(output, [inputs, *ctx.weights], gradient)
        if ctx.passes_on:
            return None, None, of_inputs, *of_weights
        for weight, one in zip(ctx.weights, of_weights, strict=True):
            weight.grad = one if weight.grad is None else weight.grad + one
        return None, None, of_inputs, *[None for _ in of_weights]


def trained(*, passes_on=True, uses=2, doubles=()):
    """What is said of a training with a block that is recomputed so often in a forward. doubles: the steps in which its
    gradients are doubled after the backward pass."""
    torch.manual_seed(0)
    before, block, after = nn.Linear(3, 5), nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 2)
    optimizer = torch.optim.SGD([*before.parameters(), *block.parameters(), *after.parameters()], lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(8):
            x = before(DATA)
            for _ in range(uses):
                x = Recomputed.apply(block, passes_on, x, *block.parameters())
            optimizer.zero_grad()
            after(x).square().mean().backward()
            if step in doubles:
                for weight in block.parameters():
                    weight.grad.mul_(2)
            optimizer.step()
    return verdict(findings), [*findings.open]


@pytest.mark.parametrize("passes_on", [True, False])
@pytest.mark.parametrize("uses", [1, 2])
def test_each_gradient_counts_once(passes_on, uses):
    assert trained(passes_on=passes_on, uses=uses) == ("CONFORMS", [])


@pytest.mark.parametrize("passes_on", [True, False])
def test_another_factor_is_seen(passes_on):
    assert trained(passes_on=passes_on, doubles=range(8)) == ("UNDECIDED", ["ranks.some-parameters"])


@pytest.mark.parametrize("loss_of", [nn.functional.cross_entropy, nn.functional.nll_loss, nn.functional.mse_loss])
def test_what_hooks_keep_is_read_once(loss_of):
    """As an offload to a disk does, which deletes what it has read."""
    kept, reads = {}, []

    def pack(saved):
        kept[len(reads), len(kept)] = saved
        return [*kept][-1]

    def unpack(key):
        reads.append(key)
        return kept.pop(key)

    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.randn(16, 4) if loss_of is nn.functional.mse_loss else torch.arange(16) % 4
    with conformance.watching() as findings:
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                loss = loss_of(model(DATA), target) / torch.tensor(2.0)
            loss.backward()
            optimizer.step()
    assert len({*reads}) == len(reads) and not kept
    assert verdict(findings) == "CONFORMS"
