"""What a backward pass sends to other ranks by itself."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from conformance.watch.ledger import Ledger
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.records import Exchanged


@pytest.fixture
def two_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, goes_back):
        ctx.goes_back = goes_back
        if not goes_back:
            dist.all_reduce(value.detach().clone())
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.goes_back:
            dist.all_reduce(gradient.clone())
        return gradient, None


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        # torch has renamed it.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(torch.zeros(2 * len(gradient), *gradient.shape[1:]), gradient.contiguous())
        return gradient


def of_batch_norm(namespace):
    """As if torch's own synchronized batch norm did so."""
    exec("def reduce(dist, tensor): dist.all_reduce(tensor)", namespace)
    return namespace["reduce"]


class Normed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        of_batch_norm({"__name__": "torch.nn.modules._functions"})(dist, gradient.clone())
        return gradient


@pytest.mark.parametrize(
    ("through", "hooks", "expected"),
    [
        (lambda value: Summed.apply(value, True), False, [[2, 3]]),
        (lambda value: Summed.apply(value, False), False, []),
        (Gathered.apply, False, [[2, 3]]),
        (Normed.apply, False, []),
        (torch.clone, False, []),
        (torch.clone, True, []),
    ],
)
def test_a_layer_that_is_split_over_ranks(tmp_path, two_ranks, through, hooks, expected):
    """Its parameters have their gradients before what it was fed goes to other ranks. hooks: they average gradients."""
    model, layer = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *layer.parameters()], lr=0.1)
    for parameter in optimizer.param_groups[0]["params"] if hooks else ():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()) as recording:
        recording.optimizer(optimizer)
        numbers = recording.parameters.numbers(optimizer.param_groups[0]["params"])
        layer(through(model(torch.ones(2, 3)))).sum().backward()
        found = [one for one in recording._waiting if isinstance(one, Exchanged)]
        recording.flush()
    assert [[numbers.index(one) for one in record.parameters] for record in found] == expected
