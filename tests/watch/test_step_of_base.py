"""A step that ends in that of its base class is read there."""

import pytest
import torch

from conformance.watch import records

from .recorded import records_in


def halve(optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def classes():
    """Made anew: torch and the recorder change classes."""

    class Base(torch.optim.RAdam):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    class Inner(Base):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    class Twice(torch.optim.RAdam):
        def step(self, closure=None):
            halve(self)
            super().step()
            halve(self)
            return super().step()

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, rate):
            super().__init__(parameters, {"lr": rate})

        def step(self, closure=None):
            halve(self)

    class OfOwn(Own):
        def step(self, closure=None):
            halve(self)
            return super().step(closure)

    return {kind.__name__: kind for kind in (Base, Inner, Twice, Own, OfOwn)}


@pytest.mark.parametrize("is_hooked", [False, True])
@pytest.mark.parametrize(
    ("name", "share", "is_own"),
    [
        ("Base", 0.5, False),
        ("Inner", 0.25, False),
        ("Twice", 0.5, False),
        ("Own", 1.0, True),
        ("OfOwn", 0.5, True),
    ],
)
def test_gradients_are_those_that_the_innermost_step_finds(tmp_path, monkeypatch, name, share, is_own, is_hooked):
    """is_hooked: torch has made an optimizer of the base, and calls hooks in its step, too."""
    step = vars(torch.optim.RAdam)["step"]
    monkeypatch.setattr(torch.optim.RAdam, "step", step.__wrapped__ if hasattr(step, "hooked") else step)
    kind = classes()[name]
    model = torch.nn.Linear(3, 1, bias=False)
    if is_hooked:
        torch.optim.RAdam(model.parameters())
    with records_in(tmp_path) as found:
        optimizer = kind(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    steps = [one for one in found if isinstance(one, records.Stepped)]
    assert [one.is_own for one in steps] == [is_own] * 2
    assert [round(float(one.gradients[0][2]) / 3**0.5, 6) for one in steps] == [share] * 2


@pytest.mark.parametrize("is_made", [False, True])
def test_the_base_is_left_as_torch_has_it(tmp_path, is_made):
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters, rate):
            super().__init__(parameters, {"lr": rate})

        def step(self, closure=None):
            pass

    class Derived(Plain):
        def step(self, closure=None):
            return super().step(closure)

    before = vars(Plain)["step"]
    parameter, called = torch.nn.Parameter(torch.ones(1)), []
    with records_in(tmp_path):
        Derived([parameter], 0.1).step()
        plain = Plain([parameter], 0.1) if is_made else None
    if plain is None:
        assert vars(Plain)["step"] is before
    else:
        plain.register_step_pre_hook(lambda *_: called.append(1))
        plain.step()
        assert called == [1]
