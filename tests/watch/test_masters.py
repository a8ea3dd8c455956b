"""Master weights: tensors that an optimizer steps instead of the parameters with gradients."""

import copy

import pytest
import torch
from torch import nn

from conformance.watch.recording import masters, own_rank
from conformance.watch.recording.parameters import Slice

from .scripts import laws
from .trained import loss, network, watched


def flat(parameters, padding=0):
    whole = torch.cat([one.detach().float().reshape(-1) for one in parameters])
    return [nn.functional.pad(whole, (0, padding))]


def each(parameters):
    return [one.detach().float().clone() for one in parameters]


def write(parameter, part):
    parameter.data.copy_(part.reshape(parameter.shape))


def write_on_grid(parameter, part):
    """So coarse that nothing changes yet."""
    with torch.no_grad():
        parameter.copy_(parameter.clone())


def steps(of, change=lambda gradients, step: gradients, clear=nn.Module.zero_grad, every=1, count=4, to=write):
    """of: the tensors to step, of the model's parameters. change: of the gradients, flat. every: the number of steps
    before the new weights are copied to the model. count: how many parameters they are copied to, by `to`."""
    model = network().bfloat16()
    parameters = list(model.parameters())
    copies = of(parameters)
    optimizer = torch.optim.SGD(copies, lr=0.1)
    for step in range(12):
        model(torch.randn(8, 6).bfloat16()).float().square().mean().backward()
        gradients = change(torch.cat([one.grad.float().reshape(-1) for one in parameters]), step)
        gradients = nn.functional.pad(gradients, (0, sum(one.numel() for one in copies) - len(gradients)))
        for one, part in zip(copies, gradients.split([one.numel() for one in copies]), strict=True):
            one.grad = part.reshape(one.shape)
        optimizer.step()
        clear(model)
        values = torch.cat([one.reshape(-1) for one in copies])[: sum(one.numel() for one in parameters)]
        parts = values.split([one.numel() for one in parameters])
        for parameter, part in [*zip(parameters, parts, strict=True)][: count if (step + 1) % every == 0 else 0]:
            to(parameter, part)


@pytest.mark.parametrize("of", [flat, each, lambda parameters: flat(parameters, padding=3)])
def test_gradients_are_followed_into_masters(of):
    findings = watched(steps, of)
    assert (laws(findings), [*findings.open], findings.conserved) == (set(), [], 12)


@pytest.mark.parametrize(
    "of",
    [
        lambda parameters: [one + 1 for one in flat(parameters)],
        lambda parameters: flat([*parameters[1:], torch.ones(3)]),
        lambda parameters: [torch.zeros(3), *each(parameters)],
    ],
)
def test_other_tensors_are_no_masters(of):
    def trains():
        model = network()
        held = of(list(model.parameters()))
        optimizer = torch.optim.SGD(held, lr=0.1)
        for _ in range(4):
            loss(model).backward()
            for one in held:
                one.grad = torch.ones_like(one)
            optimizer.step()
            model.zero_grad()

    assert {"changed.by-hand", "coverage.unheld"} <= watched(trains).open.keys()


@pytest.mark.parametrize(
    ("training", "law"),
    [
        ({"clear": lambda model: None}, "watch/cleared"),
        ({"change": lambda gradients, step: gradients.roll(step)}, None),
    ],
)
def test_gradients_of_masters_are_judged(training, law):
    findings = watched(steps, flat, **training)
    assert laws(findings) == ({law} if law else set())
    assert law or "changed" in findings.open


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ({}, 0),
        ({"every": 10}, 0),
        ({"every": 99}, 4),
        ({"count": 3}, 1),
        ({"count": 0}, 4),
        ({"to": write_on_grid}, 0),
    ],
)
@pytest.mark.parametrize("of", [flat, each])
def test_masters_are_written_back(of, written, left):
    findings = watched(steps, of, **written)
    found = [fact.says.values["count"] for code, fact in findings.open.items() if code == "coverage.copies"]
    assert (findings.causes, found) == ({}, [left] if left else [])


def test_a_rank_steps_its_shard(monkeypatch):
    first, second = torch.arange(1.0, 4), torch.arange(4.0, 8)
    monkeypatch.setattr(own_rank, "of_process", lambda: ("", 1, 2))
    found = masters._of_shards([torch.tensor([5.0, 6, 7, 0])], [first, second])
    assert [(one.start, one.length, one.pieces) for one in found] == [
        (0, 0, ((0, 3), (3, 3))),
        (0, 3, ((0, 1), (1, 4))),
    ]
    assert not masters._of_shards([torch.tensor([5.0, 6, 8, 0])], [first, second])


ONES, ZEROS, VALUES, OTHERS = torch.ones(3), torch.zeros(2), torch.arange(4.0), torch.arange(5.0)


@pytest.mark.parametrize(
    ("groups", "ordered", "found"),
    [
        ([(0, 1, 2, 3, 4)], 5, True),
        ([(4, 3, 2, 1, 0)], 5, False),  # the order of the ones is unknown
        ([(0, 1, 2, 3, 4)], 0, False),
        ([(0, 3, 2), (1, 4)], 5, False),
        ([(1, 4), (0, 2, 3)], 5, True),
        ([(1, 4), (0, 2)], 5, False),  # one of the ones is left
    ],
)
def test_parameters_with_equal_values_must_be_in_order(groups, ordered, found):
    every = [ONES, VALUES, ZEROS, ONES.clone(), OTHERS]
    places = masters._whole([[every[number].clone() for number in group] for group in groups], every, ordered)
    assert bool(places) == found


def test_complex_parameters_have_no_masters():
    """Not even those that another optimizer may step, whose tensors no pass reaches."""

    def trains():
        weight, other = (nn.Parameter(torch.ones(3, dtype=torch.complex64)) for _ in range(2))
        first, second = (torch.optim.SGD([one], lr=0.1) for one in (torch.ones(3), other))
        for _ in range(3):
            ((weight + other) * torch.randn(3)).abs().square().sum().backward()
            second.step()
            second.zero_grad()
        del first

    findings = watched(trains)
    assert (laws(findings), findings.lacks) == (set(), [])


def test_an_optimizer_whose_tensors_are_reached_later_has_no_masters():
    """A copy of the model may go backward first, such as for the importance of weights."""

    def trains():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(copy.deepcopy(model)).backward()
        for _ in range(4):
            optimizer.zero_grad()
            loss(model).backward()
            optimizer.step()

    findings = watched(trains)
    assert (laws(findings), findings.conserved) == (set(), 4)


def test_a_master_without_dimensions_has_one_element():
    master = torch.tensor(2.0, requires_grad=True)
    master.grad = torch.tensor(3.0)
    part = Slice(master, 0, 1)
    assert (part.data.tolist(), part.grad.tolist()) == ([2.0], [3.0])
