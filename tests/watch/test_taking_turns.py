"""What is looked at only now and then is seen of everything that takes turns."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from conformance.watch import records
from conformance.watch.recording.parameters import AT_ONCE, WHOLE_AT_FIRST, Known
from conformance.watch.sizes import UNREAD

from .recorded import records_in


@pytest.fixture
def two_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def models(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)) for _ in range(count)]


def trained(turns, steps):
    """turns: which models' losses each loss is the sum of. The first of them has an optimizer."""
    optimizers = [torch.optim.SGD(turn[0].parameters(), 0.1) for turn in turns]
    first, second = turns
    for _ in range(steps):
        optimizers[0].zero_grad()
        sum(model(torch.randn(4, 3)).square().mean() for model in first).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        sum(model(torch.randn(4, 3)).square().mean() for model in second).backward()
        optimizers[1].step()


@pytest.mark.parametrize("turn", [0, 1])
def test_what_no_optimizer_holds_is_seen_in_each_loss(tmp_path, turn):
    first, second, left = models(3)
    turns = [[first], [second]]
    turns[turn].append(left)
    with records_in(tmp_path) as found:
        trained(turns, 3)
    unheld = [one for one in found if isinstance(one, records.Unheld)]
    assert [sorted(one.shapes) for one in unheld[:1]] == [sorted([*one.shape] for one in left.parameters())]
    assert not any(one.unfrozen for one in unheld)


def test_what_one_loss_shows_stays_known_when_another_is_looked_at(tmp_path):
    body, first, second = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
    whole = nn.Sequential(body, first)
    body.requires_grad_(False)
    with records_in(tmp_path) as found:
        optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (first, second)]
        for step in range(20):
            body.requires_grad_(step > 2)
            whole(torch.randn(4, 3)).square().mean().backward()
            optimizers[0].step()
            second(torch.randn(4, 3)).square().mean().backward()
            optimizers[1].step()
    last = [one for one in found if isinstance(one, records.Unheld)][-1]
    assert sorted(last.unfrozen) == ["0.bias", "0.weight"]


def test_each_optimizer_has_its_models_looked_at_once(tmp_path):
    first, second = models(2)
    with records_in(tmp_path) as found:
        for model in (first, second):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(4):
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
    buffers = [one for one in found if isinstance(one, records.Buffers)]
    assert [(one.optimizer, len(one.names)) for one in buffers] == [(0, 3), (1, 3)]


def test_models_with_equal_names_are_told_apart(tmp_path):
    first, second = models(2)
    with records_in(tmp_path) as found:
        trained([[first], [second]], 3)
    [buffers] = [one for one in found if isinstance(one, records.Buffers)]
    assert sorted(buffers.names)[::3] == ["Sequential 0.1.num_batches_tracked", "Sequential 1.1.num_batches_tracked"]


def test_weights_are_read_before_passes_of_all_lines(tmp_path, two_ranks):
    first, second = models(2)
    with records_in(tmp_path) as found:
        trained([[first], [second]], 40)
    before = [0, 0]
    done = 0
    for one in found:
        if isinstance(one, records.Backward):
            done = one.backward
        elif isinstance(one, records.Weighed) and done > 32:
            before[done % 2] += 1
    assert min(before) > 2


@pytest.mark.parametrize("period", [2, 3])
@pytest.mark.parametrize("number", range(4))
def test_a_parameter_with_gradients_now_and_then_has_its_turn_in_their_windows(number, period):
    known = Known(number, torch.zeros(3))
    known.beside, known.windows = 2 * AT_ONCE, WHOLE_AT_FIRST
    read = []
    for _ in range(60):
        known.advance()
        read.append(known.sample != UNREAD)
        known.step(None, is_looked_at=True)
    assert all(any(read[phase::period]) for phase in range(period))
    assert sum(read) == 30
