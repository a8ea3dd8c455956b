"""Parameters that get gradients and no steps, or are held and get no gradients; optimizers that stop."""

from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad_norm_

import conformance
from conformance.watch import records
from conformance.watch.judging.properties import Property

from .scripts import LINE, Script


def network():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def watched(trains):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains()
    return findings


def facts(findings):
    return {code: fact.says.values for code, fact in findings.open.items()}


def steps(changes=lambda model, step: None, held=lambda model: model.parameters(), factor=lambda step: 1.0, count=20):
    """changes: what the script does to gradients before its step."""
    model = network()
    optimizer = torch.optim.SGD(held(model), lr=0.1)
    for step in range(count):
        model.zero_grad()
        (factor(step) * model(torch.randn(8, 6)).square().mean()).backward()
        changes(model, step)
        optimizer.step()


def takes_away(model, step, since=0, until=99):
    if since <= step < until:
        model[0].weight.grad = None


def with_unused(model):
    return [*model.parameters(), nn.Parameter(torch.ones(2))]


HEAD = partial(steps, held=lambda model: model[2].parameters())


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (steps, {}),
        (HEAD, {"coverage.unheld": {"count": 2}}),
        (partial(steps, held=with_unused), {"coverage.no-gradient": {"count": 1, "all": 5, "names": ["parameter 4"]}}),
        (partial(steps, takes_away), {"coverage.taken-away": {"count": 1, "all": 4, "names": ["0.weight"]}}),
        (partial(steps, partial(takes_away, until=10)), {}),
        (
            partial(steps, partial(takes_away, since=10), count=40),
            {"coverage.no-more-gradient": {"count": 1, "all": 4, "step": 9}},
        ),
        (partial(steps, partial(takes_away, since=36), count=40), {}),
        (partial(steps, factor=lambda step: 0.0), {"coverage.zero": {"steps": 20}}),
        (partial(steps, factor=lambda step: float(step == 5)), {}),
    ],
)
def test_parameters_without_gradients_or_steps(trains, expected):
    findings = watched(trains)
    found = {code: said for code, said in facts(findings).items() if code.startswith("coverage")}
    assert not findings.causes
    assert found.keys() == expected.keys()
    assert all(values.items() <= found[code].items() for code, values in expected.items())


def test_parameters_that_are_covered_are_counted():
    assert watched(steps).seen[Property.COVERAGE] == 4
    assert watched(HEAD).seen[Property.COVERAGE] == 2


def each_layer(left_out, passes=12, detaches=False):
    """left_out: the layers whose optimizer does not step after a pass."""

    def trains():
        body, head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 1)
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (body, head)]
        for step in range(passes):
            for optimizer in optimizers:
                optimizer.zero_grad()
            features = body(torch.randn(8, 6))
            head(features.detach() if detaches else features).square().mean().backward()
            for number, optimizer in enumerate(optimizers):
                if number not in left_out(step):
                    optimizer.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (each_layer(lambda step: (0,)), (0, 12)),
        (each_layer(lambda step: ()), None),
        (each_layer(lambda step: (step % 2,)), None),
        (each_layer(lambda step: (0,) if step < 9 else ()), None),
        (each_layer(lambda step: (0,), detaches=True), None),
        (each_layer(lambda step: (0,) if step > 4 else (), 16), (5, 11)),
        (each_layer(lambda step: (0, 1) if step > 4 else (), 16), (5, 11)),
        (each_layer(lambda step: (0,) if step > 4 else (), 12), None),  # its turn may still come
        (each_layer(lambda step: (0,) if step % 8 else (), 40), None),
    ],
)
def test_an_optimizer_that_stops(trains, expected):
    said = facts(watched(trains)).get("coverage.no-more-steps")
    assert (said and (said["steps"], said["passes"])) == expected


@pytest.mark.parametrize(
    ("shapes", "steps", "expected"),
    [
        ([[6, 5], [6], [4, 6], [4], [9, 3], [9], [6, 5]], 3, [3]),
        ([[6, 5], [6]], 3, []),  # another model
        ([[6, 5], [6], [4, 6], [4], [9, 3], [9]], 0, []),
    ],
)
def test_training_continues_with_a_copy(shapes, steps, expected):
    script = Script(ranks=1)
    for _ in range(3):
        script.step(script.backward())
        script.clear()
    script.each(records.Unheld([f"p{n}" for n in range(len(shapes))], shapes))
    for _ in range(steps):
        script.each(
            records.Stepped(
                0, "SGD", [0.1], script.numbers, [], False, None, False, False, "float32", [], [], [], [], LINE
            )
        )
    causes = script.findings().causes.values()
    assert [one.first.step for one in causes if one.first.law == "watch/held"] == expected


@pytest.mark.parametrize(
    ("later", "finite", "clears", "calls", "expected"),
    [
        (11, True, False, 0, [1]),
        (8, True, False, 0, []),
        (11, False, False, 0, []),  # the scale falls
        (11, True, True, 0, []),
        (11, True, False, 9, []),  # an input's effect on the trained model
    ],
)
def test_gradients_that_overflowed_and_were_never_cleared(later, finite, clears, calls, expected):
    script = Script(ranks=1)
    script.step(script.backward())
    script.clear()
    script.backward(scale=float("inf"))
    for _ in range(later):
        if clears:
            script.clear()
        script.backward(scale=1.0 if finite else float("inf"))
        script.streams[0][-2].calls = calls
    causes = script.findings().causes.values()
    assert [one.first.step for one in causes if one.first.law == "watch/cleared"] == expected


def clips(of_copy=True, too=False, limit=0.1, like=network):
    """of_copy: whether it clips another model. too: whether it clips the one that trains."""
    model, other = network(), like()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        if of_copy:
            clip_grad_norm_(other.parameters(), limit)
        if too:
            clip_grad_norm_(model.parameters(), limit)
        optimizer.step()


def goes_backward(makes, by_hand=False):
    model, temperature = network(), torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 6)).square().mean()
        if by_hand:
            (temperature * loss.item()).backward()
            temperature.data -= 0.1 * temperature.grad
        else:
            makes(loss, step).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (clips, {"watch/clip-something"}),
        (partial(clips, too=True), set()),
        (partial(clips, limit=float("inf")), set()),
        (partial(clips, like=lambda: nn.Linear(6, 1)), set()),
        (partial(clips, like=lambda: network().requires_grad_(False)), set()),  # a teacher
        (
            partial(goes_backward, lambda loss, step: torch.tensor(loss.item(), requires_grad=True)),
            {"watch/from-the-model"},
        ),
        (partial(goes_backward, lambda loss, step: loss.detach().requires_grad_() / 4), {"watch/from-the-model"}),
        (partial(goes_backward, lambda loss, step: loss if step > 2 else loss.detach().requires_grad_()), set()),
        (partial(goes_backward, None, by_hand=True), set()),
    ],
)
def test_calls_on_tensors_that_no_step_uses(trains, expected):
    assert {law for law, _ in watched(trains).causes} == expected


def forgets(model, optimizer, step):
    if step == 3:
        model[0].requires_grad_(True)


def adds(model, optimizer, step, *names):
    forgets(model, optimizer, step)
    if step == 3:
        optimizer.add_param_group({"params": [getattr(model[0], name) for name in names]})


def by_hand(model, optimizer, step):
    forgets(model, optimizer, step)
    for parameter in model[0].parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


def looks_now_and_then(model, optimizer, step):
    model[0].requires_grad_(step in (4, 8, 16))
    for parameter in model[0].parameters():
        parameter.grad = None


def is_never_frozen(model, optimizer, step):
    model[0].requires_grad_(True)


def unfreezes(changes):
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for step in range(20):
        changes(model, optimizer, step)
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (forgets, {"watch/held"}),
        (lambda *args: adds(*args, "weight", "bias"), set()),
        (lambda *args: adds(*args, "bias"), set()),  # a part of them, on purpose
        (by_hand, set()),
        (looks_now_and_then, set()),
        (is_never_frozen, set()),
    ],
)
def test_parameters_that_are_unfrozen(changes, expected):
    assert {law for law, _ in watched(partial(unfreezes, changes)).causes} == expected


def copies(returns, start=1.0, count=28):
    """start: how much the copies are of the parameters."""
    model = network()
    masters = [nn.Parameter(start * parameter.detach()) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    for step in range(count):
        model(torch.randn(8, 6)).square().mean().backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad, parameter.grad = parameter.grad, None
        optimizer.step()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            if returns(step):
                parameter.data.copy_(master)


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (partial(copies, lambda step: False), {"watch/held"}),
        (partial(copies, lambda step: True), set()),
        (partial(copies, lambda step: step == 20), set()),
        (partial(copies, lambda step: False, start=0.0), set()),  # in a model that is linear around its weights
        (partial(copies, lambda step: False, count=12), set()),
    ],
)
def test_copies_that_are_never_given_back(trains, expected):
    findings = watched(trains)
    assert {law for law, _ in findings.causes} == expected
    assert facts(findings)["coverage.unheld"]["count"] == 4


def test_models_without_values_are_only_walked_through():
    model, on_meta, mode = nn.Linear(6, 1), nn.Linear(6, 1, device="meta"), FakeTensorMode()
    with mode:
        fake = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def trains():
        for _ in range(10):
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            on_meta(torch.randn(8, 6, device="meta")).sum().backward()
            with mode:
                fake(torch.randn(8, 6)).sum().backward()

    assert not watched(trains).lacks
