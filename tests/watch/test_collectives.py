"""The recorder reads collectives, shards, parameters without an optimizer, and samples of parameters."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import conformance
from conformance.trace.state.deepspeed import cuts
from conformance.trace.state.optimizer_state import Part
from conformance.watch import records
from conformance.watch.ledger import Ledger
from conformance.watch.record_lines import decoded
from conformance.watch.recording.parameters import AT_ONCE, WHOLE_AT_FIRST, Known
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.records import Exchanged
from conformance.watch.sizes import UNREAD

from .trained import recording_in, records_in


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
    """As if torch's synchronized batch norm called it."""
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
    """Its parameters get their gradients before the gradients of its inputs go to other ranks. hooks: hooks average
    gradients."""
    model, layer = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *layer.parameters()], lr=0.1)
    for parameter in optimizer.param_groups[0]["params"] if hooks else ():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
    with recording_in(tmp_path, optimizer) as recording:
        numbers = recording.parameters.numbers(optimizer.param_groups[0]["params"])
        layer(through(model(torch.ones(2, 3)))).sum().backward()
        found = [one for one in recording._waiting if isinstance(one, Exchanged)]
        recording.flush()
    assert [[numbers.index(one) for one in record.parameters] for record in found] == expected


def summed(count, dtype=torch.float32):
    total = torch.tensor(count, dtype=dtype)
    dist.all_reduce(total)
    return total


def of_both(count):
    parts = [torch.tensor(count) for _ in range(2)]
    dist.all_gather(parts, torch.tensor(count))
    for part in parts:
        # As if two ranks sent it.
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
    """Empty tensors, and tensors of different sizes."""
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
        (lambda loss: loss / of_both(7.0), [14.0]),
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


def test_a_divisor_that_was_reduced_before_the_last_step_is_unknown(tmp_path, two_ranks):
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
def test_changes_of_gradients_by_the_script_are_seen(mesh, gather):
    with pytest.raises(AssertionError), conformance.watching() as watch:
        train(mesh, gather, lambda gradient: gradient.mul_(0.3))
    assert (watch.findings.conserved, [*watch.findings.open]) == (0, ["changed"])


@pytest.mark.parametrize("waits", [True, False])
def test_gradients_that_fsdp2_has_not_reduced_are_not_cleared(waits, tmp_path):
    model = nn.Linear(3, 1)
    whole = SimpleNamespace(
        unsharded_accumulated_grad=model.weight if waits else None, _unsharded_param=nn.Linear(1, 1).bias
    )
    model.weight._conformance_whole = lambda: whole
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        optimizer.step()
    assert [one.parameters for one in found if isinstance(one, records.Cleared)] == [[1] if waits else [0, 1]]


def sent(make, at):
    """Broadcasts tensors made from a model's parameters at this place of its loop."""

    def exchange(model, place):
        if place == at:
            for one in make([*model.parameters()]):
                dist.broadcast(one, src=0)

    return exchange


def first(of):
    return of[:1]


def flat(of):
    return [torch.cat([one.detach().flatten() for one in of])]


def copies(of):
    return [one.detach().clone() for one in of]


def ring_parts(of):
    """What a rank of two sends: each half in two rounds."""
    halves = [half for one in of for half in one.grad.flatten().chunk(2)]
    return [one.clone() for one in halves]


def objects(of):
    """As pickled by `all_gather_object`."""
    return [torch.zeros(500, dtype=torch.uint8)]


def losses(of):
    return [torch.zeros(2)]


def predictions(of):
    return [torch.zeros(50)]


@pytest.mark.parametrize(
    ("exchange", "is_shared"),
    [
        (sent(copies, "first"), False),  # an ensemble may begin with one model
        (sent(flat, "first"), False),
        (sent(first, "first"), False),
        (sent(predictions, "first"), False),
        (sent(copies, "gradients"), True),
        (sent(flat, "gradients"), True),
        (sent(ring_parts, "gradients"), True),
        (sent(objects, "gradients"), False),
        (sent(losses, "gradients"), False),
        (sent(predictions, "last"), False),
    ],
)
def test_ranks_exchange_gradients(two_ranks, exchange, is_shared, tmp_path):
    """They train two models, one after the other."""
    with records_in(tmp_path) as found:
        for _ in range(2):
            model = nn.Linear(9, 2)
            exchange(model, "first")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(1, 9)).sum().backward()
            exchange(model, "gradients")
            optimizer.step()
            exchange(model, "last")
    shared = [one for one in found if isinstance(one, records.Shared)]
    assert [one.optimizer for one in shared] == [0, 1] * is_shared
    # Later optimizers exchange at the same lines.
    assert [one.site is not None and one.site[0].endswith("test_collectives.py") for one in shared] == [True, False][
        : len(shared)
    ]


class Averaging(torch.optim.Optimizer):
    def __init__(self, parameters, reduces):
        super().__init__(parameters, {"lr": 0.1})
        self.reduces = reduces

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            dist.all_reduce(parameter.grad if self.reduces else parameter.grad.clone())
            parameter.grad.div_(2)


@pytest.mark.parametrize(("reduces", "share"), [(True, 0.5), (False, 1.0)])
def test_a_step_that_averages_gradients_is_read_when_it_ends(two_ranks, reduces, share, tmp_path):
    """The fake group does not sum up."""
    model = nn.Linear(3, 1, bias=False)
    with records_in(tmp_path) as found:
        optimizer = Averaging(model.parameters(), reduces)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    steps = [one for one in found if isinstance(one, records.Stepped)]
    assert [round(float(one.gradients[0][2]) / 3**0.5, 6) for one in steps] == [share] * 2


@pytest.mark.parametrize("is_of_all", [True, False])
def test_a_loss_that_is_a_dtensor_is_one_of_all_ranks(mesh, is_of_all, tmp_path):
    weight = torch.nn.Parameter(distribute_tensor(torch.randn(6), mesh, [Replicate()]))
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        outputs = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)]) @ weight
        (outputs.mean() if is_of_all else outputs.full_tensor().mean()).backward()
        optimizer.step()
    assert [one.is_of_all for one in found if isinstance(one, records.Backward)] == [is_of_all]


def models(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)) for _ in range(count)]


def train_in_turns(turns, steps):
    """turns: the models of each loss, which is the sum of theirs. The first of them has an optimizer."""
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
def test_parameters_without_an_optimizer_are_seen_in_each_loss(tmp_path, turn):
    first, second, left = models(3)
    turns = [[first], [second]]
    turns[turn].append(left)
    with records_in(tmp_path) as found:
        train_in_turns(turns, 3)
    unheld = [one for one in found if isinstance(one, records.Unheld)]
    assert [sorted(one.shapes) for one in unheld[:1]] == [sorted([*one.shape] for one in left.parameters())]
    assert not any(one.unfrozen for one in unheld)


def test_unfrozen_parameters_of_one_loss_stay_known_after_another_loss(tmp_path):
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


def test_buffers_are_read_once_for_each_optimizer(tmp_path):
    first, second = models(2)
    with records_in(tmp_path) as found:
        for model in (first, second):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(5):
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
    buffers = [one for one in found if isinstance(one, records.Buffers)]
    assert [len(one.names) for one in buffers] == [3, 3]


def test_buffers_of_models_with_equal_names(tmp_path):
    first, second = models(2)
    with records_in(tmp_path) as found:
        train_in_turns([[first], [second]], 4)
    buffers = [one for one in found if isinstance(one, records.Buffers)]
    assert [len(one.names) for one in buffers] == [3, 3]
    assert {one.names[0] for one in buffers} == {"Sequential.1.running_mean"}


@pytest.mark.parametrize(("runs", "expected"), [(True, {"Sequential", "Linear"}), (False, {"1"})])
def test_models_in_no_optimizer_are_compared_if_they_run(runs, expected, tmp_path, two_ranks):
    [model], teacher = models(1), nn.Linear(3, 3).requires_grad_(False)
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            with torch.no_grad():
                targets = teacher(torch.ones(4, 3)) if runs else 0.0
            (model(torch.randn(4, 3)) - targets).square().mean().backward()
            optimizer.step()
    names = {name.partition(".")[0] for one in found if isinstance(one, records.Buffers) for name in one.names}
    assert names == expected


@pytest.mark.parametrize("held", [2, 1])
def test_a_model_is_compared_whole_if_a_rank_steps_a_part(held, tmp_path, two_ranks):
    model = nn.Linear(3, 3)
    with records_in(tmp_path) as found:
        optimizer = torch.optim.SGD([*model.parameters()][:held], 0.1)
        for _ in range(4):
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    names = [one.names for one in found if isinstance(one, records.Buffers)]
    assert names == ([["weight", "bias"]] if held == 1 else [])


@pytest.mark.parametrize("broadcasts", [True, False])
def test_buffers_that_ddp_overwrites_are_not_compared(broadcasts, tmp_path, two_ranks):
    """Their differences between ranks say nothing about the script."""
    [model] = models(1)
    with records_in(tmp_path) as found:
        ddp = nn.parallel.DistributedDataParallel(model)
        ddp.broadcast_buffers = broadcasts
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            # The fake group does not average.
            with ddp.no_sync():
                ddp(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    assert [len(one.names) for one in found if isinstance(one, records.Buffers)] == [3] * (not broadcasts)


def test_weights_are_read_before_passes_of_all_lines(tmp_path, two_ranks):
    first, second = models(2)
    with records_in(tmp_path) as found:
        train_in_turns([[first], [second]], 40)
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
def test_a_parameter_with_gradients_in_some_windows_gets_a_turn_in_these(number, period):
    known = Known.of(number, torch.zeros(3))
    known.among, known.windows = 2 * AT_ONCE, WHOLE_AT_FIRST
    read = []
    for _ in range(60):
        known.advance()
        read.append(known.sample != UNREAD)
        known.step(None, is_looked_at=True)
    assert all(any(read[phase::period]) for phase in range(period))
    assert sum(read) == 30


def test_a_gradient_is_cut_like_the_shards_of_the_ranks(tmp_path):
    """Each piece of the computed gradient has the sketch of the same rank's part of the flat gradient."""
    weight = torch.nn.Parameter(torch.ones(3, 3))
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()) as recording:
        torch.optim.SGD([weight], lr=0.1)
        recording.parameters.follow(weight, torch.zeros(7), 2, 5, [(0, 4), (4, 9)], 1)
        (weight * torch.arange(9.0).view(3, 3)).sum().backward()
    [file] = tmp_path.glob("*.jsonl")
    [local] = (one for one in map(decoded, file.read_bytes().splitlines()) if isinstance(one, records.Local))
    take, finish = recording.sketching.take, recording.sketching.finish
    assert local.sketches == pytest.approx(finish([take(torch.arange(4.0)), take(torch.arange(4.0, 9.0))]).numpy())


def test_cuts_of_a_partition_over_three_ranks():
    """Parameters of 7 and 3 elements, padded to three parts of 4."""
    flat = torch.zeros(12)
    wrapper = SimpleNamespace(parallel_partitioned_bit16_groups=[[flat[0:4], flat[4:8], flat[8:12]]])
    assert cuts(wrapper, flat[:7], Part(flat, 0, 4, 0, 7, 0)) == [(0, 4), (4, 7), (7, 7)]
    assert cuts(wrapper, flat[7:10], Part(flat, 0, 0, 0, 3, 0)) == [(0, 0), (0, 1), (1, 3)]
    with pytest.raises(ValueError, match="outside the flat tensor"):
        cuts(wrapper, torch.zeros(7), Part(flat, 0, 4, 0, 7, 0))
