"""Shards that a script gathers by hand, on one rank."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import conformance


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def gathered(shard):
    return shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def whole(shard):
    return shard.full_tensor()


def train(mesh, gather, becomes):
    """Each step uses one weight twice."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(distribute_tensor(torch.randn(5, 6), mesh, [Shard(0)]))
    bias = torch.nn.Parameter(distribute_tensor(torch.randn(5), mesh, [Shard(0)]))
    optimizer = torch.optim.SGD([weight, bias], lr=0.1)
    for _ in range(4):
        inputs = torch.randn(8, 6)
        outputs = torch.nn.functional.linear(inputs, gather(weight), gather(bias))
        loss = outputs.square().mean() + (inputs @ gather(weight).T).mean()
        loss.backward()
        becomes(weight.grad)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("gather", [gathered, whole])
def test_gradients_are_seen_before_they_are_reduced(mesh, gather):
    with conformance.watching():
        train(mesh, gather, lambda gradient: None)


@pytest.mark.parametrize("gather", [gathered, whole])
def test_what_a_script_makes_of_them_is_seen(mesh, gather):
    with pytest.raises(AssertionError), conformance.watching() as findings:
        train(mesh, gather, lambda gradient: gradient.mul_(0.3))
    assert (findings.conserved, [*findings.open]) == (0, ["changed"])
