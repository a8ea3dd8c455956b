"""Whether a gradient is recognised, and no other one is taken for it."""

import gc

import torch

from conformance.trace.state.numbers import Stamp


def test_the_same_tensor_in_the_same_version():
    weight = torch.zeros(3, requires_grad=True)
    weight.sum().backward()
    stamp = Stamp(weight.grad)
    gc.collect()
    assert stamp == Stamp(weight.grad)
    weight.grad.mul_(2)
    assert stamp != Stamp(weight.grad)
    assert stamp != Stamp(torch.zeros(3))


def test_one_that_is_gone_is_no_other_one():
    """Whatever is at its place in memory."""
    stamps = []
    for _ in range(200):
        tensor = torch.zeros(3)
        stamps.append(Stamp(tensor))
        assert stamps[-1] == Stamp(tensor)
        del tensor
    assert all(stamp != stamps[-1] for stamp in stamps)
    assert len({stamp._identity for stamp in stamps}) < len(stamps)


def test_it_keeps_no_tensor():
    tensor = torch.zeros(3)
    reference = torch._C._WeakTensorRef(tensor)
    stamp = Stamp(tensor)
    del tensor
    assert reference.expired()
    assert stamp != 0
