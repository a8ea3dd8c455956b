"""The memory of a judge does not grow with the number of steps."""

import gc
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from conformance.watch.judging import epochs as orders
from conformance.watch.judging import history, log, stream
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.recording import optimizer_steps

from .trained import judged_by, network, watched

STEPS = 200


def schedule(count):
    """Each step has a different learning rate, clipping limit and size."""
    model = network(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    for step in range(count):
        for micro_batch in range(2):
            rows = 3 + (7 * step + micro_batch) % 11
            (cross_entropy(model(torch.randn(rows, 6)), torch.randint(3, (rows,))) / 2).backward()
        clip_grad_norm_(model.parameters(), 1 + 1e-3 * step)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def scales(count):
    """The loss scale changes in each step, and overflows; some batches are only evaluated."""
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0, growth_factor=1.01, growth_interval=1)
    for step in range(count):
        loss = mse_loss(model(torch.randn(4, 6)), torch.randn(4, 3))
        scaler.scale(loss * (torch.inf if step % 50 == 49 else 1)).backward()
        scaler.unscale_(optimizer)
        clip_grad_value_(model.parameters(), 0.1 + 1e-3 * step)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step % 3 == 0:
            torch.autograd.grad(model(torch.randn(2, 6)).sum(), [*model.parameters()])
        if step % 3 == 1:
            model.eval()
            model(torch.randn(2, 6)).sum().backward()
            model.train()
            optimizer.zero_grad()


def epochs(count):
    """Epochs repeat the data in another order; weights are changed in between."""
    data = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randn(40, 3))
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(count // 5):
        for inputs, targets in torch.utils.data.DataLoader(data, 8, shuffle=True):
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.999)


def by_hand(count):
    """A hand-written loss scale and weight decay."""
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(count):
        scale = 2.0 + 0.5 * step
        (mse_loss(model(torch.randn(4, 6)), torch.randn(4, 3)) * scale).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scale).add_(parameter.detach(), alpha=1e-3)
        optimizer.step()
        optimizer.zero_grad()


def turns(count):
    """Two optimizers; one steps less often."""
    maker, critic = nn.Linear(2, 6), nn.Linear(6, 1)
    of_maker, of_critic = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    for step in range(count):
        of_critic.zero_grad()
        (critic(torch.randn(4, 6)).mean() - critic(maker(torch.randn(4, 2)).detach()).mean()).backward()
        of_critic.step()
        if step % 2 == 0:
            of_maker.zero_grad()
            critic(maker(torch.randn(4, 2))).mean().backward()
            of_maker.step()


def abandoned(count):
    """One of two optimizers stops, and nothing clears its gradients."""
    body, head = nn.Linear(6, 5), nn.Linear(5, 1)
    of_body, of_head = torch.optim.SGD(body.parameters(), lr=1e-3), torch.optim.SGD(head.parameters(), lr=1e-3)
    for step in range(count):
        head(body(torch.randn(4, 6))).square().mean().backward()
        of_head.step()
        of_head.zero_grad()
        if step < count // 2:
            of_body.step()
            of_body.zero_grad()


def kept(root):
    """The bytes of all reachable objects. Small integers, which Python shares, count each time, like larger ones."""
    seen, size, waiting = set(), 0, [root]
    while waiting:
        one = waiting.pop()
        if type(one) is int:
            size += sys.getsizeof(1)
        elif id(one) not in seen and not isinstance(one, (type, types.ModuleType, types.FunctionType)):
            seen.add(id(one))
            size += sys.getsizeof(one)
            waiting += gc.get_referents(one)
    return size


def judged(trains, count, folder):
    judge = Judge()
    judged_by(judge, folder, lambda: trains(count))
    return judge


@pytest.mark.parametrize("trains", [schedule, scales, epochs, by_hand, turns, abandoned])
def test_three_times_the_steps_take_the_same_memory(trains, tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_MOST_POINTS", 1)
    monkeypatch.setattr(stream, "_MOST_PENDING", STEPS // 10)
    monkeypatch.setattr(log, "_MOST", STEPS // 10)
    monkeypatch.setattr(orders, "_MOST", STEPS // 10)
    short, long = (judged(trains, count, tmp_path / str(count)) for count in (STEPS, 3 * STEPS))
    assert long.findings.steps >= 3 * short.findings.steps - 2 > STEPS
    # One more number in each step would need twice as much.
    assert kept(long) - kept(short) < STEPS * sys.getsizeof(1.0)


@pytest.mark.parametrize(("passes", "is_open"), [(3, False), (4, True)])
def test_windows_with_dropped_backward_passes_are_open(passes, is_open, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_MOST_PENDING", 3)

    def accumulates(count):
        model = network(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(count):
            for _ in range(passes):
                (mse_loss(model(torch.randn(4, 6)), torch.randn(4, 3)) / passes).backward()
            optimizer.step()
            optimizer.zero_grad()

    findings = judged_by(Judge(), tmp_path, lambda: accumulates(4))
    assert not findings.causes
    assert ("changed.long" in findings.open) == is_open


def trials(count):
    for _ in range(count):
        model = network(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()


def test_only_a_limited_number_of_optimizers_is_watched(monkeypatch):
    monkeypatch.setattr(optimizer_steps, "MOST_OPTIMIZERS", 5)
    found = watched(trials, 9)
    assert (found.causes, found.steps) == ({}, 5)
    assert "many optimizers" in str(found.lacks)


def test_the_step_limit_counts_optimizers_that_still_exist(tmp_path):
    def trains():
        trials(1)
        turns(9)

    # One optimizer steps five times before the other has stepped three times.
    assert judged_by(Judge(), tmp_path, trains, steps=3).steps == 1 + 5 + 3
