"""Divisors of losses that ranks have reduced together."""

import sys
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from conformance.watch import records

from .recorded import records_in


@pytest.fixture
def two_ranks():
    """The other one has nothing to say, and what is reduced stays what it is."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def summed(count, dtype=torch.float32):
    total = torch.tensor(count, dtype=dtype)
    dist.all_reduce(total)
    return total


def gathered(count):
    parts = [torch.tensor(count) for _ in range(2)]
    dist.all_gather(parts, torch.tensor(count))
    for part in parts:
        # As two ranks would send it.
        part.fill_(count)
    return sum(parts)


def gathered_into_one(count):
    parts = torch.zeros(2)
    # torch has renamed it.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(parts, torch.tensor([count]))
    parts.fill_(count)
    return parts.sum()


def nothing(count):
    """Nor what differs in size."""
    dist.all_reduce(torch.zeros(0))
    dist.all_gather([torch.zeros(0), torch.zeros(0)], torch.zeros(0))
    dist.all_gather([torch.zeros(1), torch.zeros(2)], torch.zeros(1))
    return torch.tensor(count)


def large(count):
    total = torch.full((100,), count)
    dist.all_reduce(total)
    return total[0]


@pytest.mark.parametrize(
    ("divided", "expected"),
    [
        (lambda loss: loss / summed(7.0), [7.0]),
        (lambda loss: loss / summed(7.0).item(), [7.0]),
        (lambda loss: loss / int(summed(7, torch.int64)), [7.0]),
        (lambda loss: loss * 2 / summed(7.0), [7.0]),
        (lambda loss: loss / (summed(7.0) / 2), [3.5]),
        (lambda loss: loss / summed(7.0).mul_(3), [21.0]),
        (lambda loss: loss / summed([3.0, 7.0])[1], [7.0]),
        (lambda loss: loss / gathered(7.0), [14.0]),
        (lambda loss: loss / gathered_into_one(7.0), [14.0]),
        (lambda loss: loss / summed(7.0) / 4, [7.0]),
        (lambda loss: loss / 7.0, []),
        (lambda loss: loss / nothing(7.0), []),
        (lambda loss: loss / (summed(8.0) - 1), []),
        (lambda loss: loss / large(7.0), []),
    ],
)
def test_a_divisor_that_ranks_have_reduced(tmp_path, two_ranks, divided, expected):
    assert found_in(tmp_path, divided, 1) == [expected]


def test_one_that_was_reduced_before_the_last_step_is_not_known(tmp_path, two_ranks):
    totals = []

    def divided(loss):
        totals.append(summed(7.0) if not totals else totals[0])
        return loss / totals[-1]

    assert found_in(tmp_path, divided, 3) == [[7.0], [], []]


@pytest.mark.parametrize(("size", "expected"), [(2, [7.0]), (1, [])])
def test_horovod(tmp_path, monkeypatch, size, expected):
    module = ModuleType("horovod.torch.mpi_ops")
    module.rank, module.size, module.allreduce = lambda: 0, lambda: size, torch.clone
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert found_in(tmp_path, lambda loss: loss / module.allreduce(torch.tensor(7.0)), 1) == [expected]


def found_in(folder, divided, steps):
    model = torch.nn.Linear(3, 1)
    with records_in(folder) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            divided(model(torch.ones(4, 3)).sum()).backward()
            optimizer.step()
    return [[round(one, 4) for one, _ in each.global_divisors] for each in found if isinstance(each, records.Backward)]
