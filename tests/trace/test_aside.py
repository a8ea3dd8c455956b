"""The trainer's modes and transforms do not see the recorder, nor the recorder them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.trace.seams.guarding import failures
from conformance.trace.seams.patching import originals, replaced


class Dispatches(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Doubler:
    def double(self, tensor):
        return torch.mul(tensor, 2)


def around(original, doubler, tensor):
    torch.sin(tensor)
    result = original(doubler, tensor)
    torch.cos(tensor)
    return result


@pytest.fixture(autouse=True)
def observed():
    """Nobody reports failures, so errors of the recorder raise."""
    assert failures._report is None
    with replaced(Doubler, "double", around):
        yield


@pytest.mark.parametrize("mode", [Dispatches, Functions])
def test_a_mode_sees_only_the_trainers_calls(mode):
    with mode() as entered:
        Doubler().double(torch.ones(2))
        torch.neg(torch.ones(2))
    seen = " ".join(entered.seen)
    assert "mul" in seen and "neg" in seen
    assert "sin" not in seen and "cos" not in seen


def test_several_modes_are_restored_in_order():
    with ExitStack() as stack:
        modes = [stack.enter_context(mode()) for mode in (Dispatches, Functions, Dispatches)]
        stack.enter_context(torch.device("meta"))
        for _ in range(2):
            assert Doubler().double(torch.ones(2)).is_meta
    assert all(sum("mul" in name for name in mode.seen) == 2 for mode in modes)
    assert not Doubler().double(torch.ones(2)).is_meta


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_a_trace_has_only_the_trainers_calls():
    graph = torch.jit.trace(Doubler().double, torch.ones(2)).graph
    assert {node.kind() for node in graph.nodes()} == {"prim::Constant", "aten::mul"}


def test_transforms_apply_to_the_trainers_calls():
    batch = torch.ones(3, 2)
    assert torch.equal(torch.func.vmap(Doubler().double)(batch), 2 * batch)
    assert torch.equal(torch.func.jacrev(Doubler().double)(batch[0]), 2 * torch.eye(2))


def test_the_originals_are_put_back_temporarily():
    ours = Doubler.double
    with originals():
        assert Doubler.double is not ours
        Doubler().double(torch.ones(2))
    assert Doubler.double is ours


def test_the_trainers_replacement_stays(monkeypatch):
    monkeypatch.setattr(Doubler, "double", lambda self, tensor: tensor)
    theirs = Doubler.double
    with originals():
        assert Doubler.double is theirs
    assert Doubler.double is theirs
