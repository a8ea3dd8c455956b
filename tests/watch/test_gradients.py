"""Small trainings with gradients that are recomputed, clipped by value or not finite."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy, mse_loss, nll_loss
from torch.nn.utils import clip_grad_value_

from conformance.watch.verdict import verdict

from .scripts import laws
from .trained import network, watched

DATA = torch.arange(48.0).reshape(16, 3).cos()


class Recomputed(torch.autograd.Function):
    """Runs `run` without a graph in the forward pass, and again with a graph in the backward pass."""

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


def recomputes(passes_on, uses, factor):
    """uses: of the recomputed block in a forward pass. factor: of its gradients after the backward pass."""
    before, block, after = nn.Linear(3, 5), nn.Sequential(nn.Linear(5, 5), nn.Tanh()), nn.Linear(5, 2)
    optimizer = torch.optim.SGD([*before.parameters(), *block.parameters(), *after.parameters()], lr=0.1)
    for _ in range(8):
        x = before(DATA)
        for _ in range(uses):
            x = Recomputed.apply(block, passes_on, x, *block.parameters())
        optimizer.zero_grad()
        after(x).square().mean().backward()
        for weight in block.parameters() if factor != 1 else ():
            weight.grad.mul_(factor)
        optimizer.step()


@pytest.mark.parametrize("passes_on", [True, False])
@pytest.mark.parametrize(
    ("uses", "factor", "expected"),
    [(1, 1, ("CONFORMS", [])), (2, 1, ("CONFORMS", [])), (2, 2, ("UNDECIDED", ["ranks.some-parameters"]))],
)
def test_each_gradient_of_a_node_counts_once(passes_on, uses, factor, expected):
    """A node of a backward pass computes gradients, and passes them on to the leaves or adds them to `.grad`."""
    findings = watched(recomputes, passes_on, uses, factor)
    assert (verdict(findings), [*findings.open]) == expected


@pytest.mark.parametrize("loss_of", [cross_entropy, nll_loss, mse_loss])
def test_tensors_saved_by_hooks_are_read_once(loss_of):
    """An offload to a disk deletes tensors after it has read them."""
    kept, reads = {}, []

    def pack(saved):
        kept[len(reads), len(kept)] = saved
        return [*kept][-1]

    def unpack(key):
        reads.append(key)
        return kept.pop(key)

    def train():
        model = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        target = torch.randn(16, 4) if loss_of is mse_loss else torch.arange(16) % 4
        for _ in range(4):
            optimizer.zero_grad()
            with saved_tensors_hooks(pack, unpack):
                loss = loss_of(model(DATA), target) / torch.tensor(2.0)
            loss.backward()
            optimizer.step()

    assert verdict(watched(train)) == "CONFORMS"
    assert len({*reads}) == len(reads) and not kept


@pytest.mark.parametrize("clips_last", [True, False])
@pytest.mark.parametrize(("limit", "is_reached"), [(1e-3, True), (1e3, False)])
def test_clips_by_value_in_each_micro_batch(limit, is_reached, clips_last):
    """A limit that is not reached changes nothing: the order is a fact."""

    def train():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            for micro_batch in range(2):
                (model(torch.randn(8, 6)).square().sum() / 2).backward()
                if clips_last or micro_batch == 0:
                    clip_grad_value_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()

    findings = watched(train)
    assert laws(findings) == ({"watch/clip-whole-window"} if is_reached else set())
    assert ("clipping.before-last-pass" in findings.open) != is_reached


def test_old_gradients_that_are_almost_parallel_to_new_ones():
    """The sum of both is also a multiple of the new ones."""

    def trains():
        model, data = network(3), torch.randn(8, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        for _ in range(6):
            model(data).square().mean().backward()
            optimizer.step()

    findings = watched(trains)
    [cause] = findings.causes.values()
    assert (cause.first.law, cause.first.step, cause.count, findings.open) == ("watch/cleared", 1, 5, {})


LAW, FACT = "watch/finite", "loss-scale.not-finite"


class Careful(torch.optim.Optimizer):
    """Leaves out gradients that are not finite."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad.isfinite().all():
                parameter.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize(
    ("rates", "is_new", "growth", "kind", "expected"),
    [
        ((0.1, 0.1), False, 1.0, torch.optim.SGD, set()),
        ((1e8, 0.1), True, 1.0, torch.optim.SGD, {FACT}),
        ((0.1, 1e8), True, 1.0, torch.optim.SGD, {FACT}),
        ((1e8, 0.1), False, 1.0, torch.optim.SGD, {LAW}),  # the same model continues
        ((1e8,), True, 1.0, torch.optim.SGD, {LAW}),
        ((1e8, 1e8), True, 1.0, torch.optim.SGD, {LAW}),
        ((1e8, 0.0, 0.1), False, 1.0, torch.optim.SGD, {FACT}),  # and the model is restored
        ((1e-3,), False, 8.0, torch.optim.SGD, {FACT}),  # a range test of rates
        ((1e8,), False, 1.0, Careful, {FACT}),
    ],
)
def test_a_step_on_gradients_that_are_not_finite(rates, is_new, growth, kind, expected):
    """rates: of one optimizer after the other; 0 restores the model. is_new: each trains a new model."""

    def train():
        model = nn.Linear(3, 8)
        for rate in rates:
            model = nn.Linear(3, 8) if is_new else model
            if not rate:
                model.load_state_dict(nn.Linear(3, 8).state_dict())
                continue
            optimizer = kind(model.parameters(), lr=rate)
            for step in range(24):
                optimizer.zero_grad()
                spoilt = float("inf") if kind is Careful and step == 3 else 1.0
                (spoilt * model(DATA[:8]).square().square().mean()).backward()
                optimizer.step()
                optimizer.param_groups[0]["lr"] *= growth

    findings = watched(train)
    assert laws(findings) & {LAW} | findings.open.keys() & {FACT} == expected
