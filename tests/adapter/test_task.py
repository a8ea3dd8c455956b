"""Objects of a task: plain torch objects with the values of the spec."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_with_path
from torch.utils.data import DataLoader, DistributedSampler

from conformance.adapter.batches import Batch
from conformance.adapter.declaration import UnsupportedGroups
from conformance.adapter.optimizer_settings import LossScaling
from conformance.adapter.task import Task
from conformance.cases.case import Case
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.registry import STANDARD

from ..trainers.tasks import WEIGHT, X, Y, make_spec, scaler, sgd


class Watcher:
    """A recorder that only remembers models and reports."""

    def __init__(self):
        self.models = []
        self.reports = []
        self.asked = set()

    def watch(self, model):
        self.models.append(model)

    def report(self, step, weights, gradients, *, counted=False):
        self.reports.append((step, weights, gradients))


def indices(batches):
    """The samples of the first eight in each batch, by their targets."""
    return [[Y.index(target) for target in batch.targets.flatten().tolist()] for batch in batches]


def test_what_a_task_says_about_itself():
    spec = make_spec(world_size=2, accumulation=2, size=2, steps=3, precision="fp16", scaler=scaler())
    task = Task(spec, 1)
    assert (task.rank, task.local_rank, task.world_size) == (1, 1, 2)
    assert (task.accumulation, task.micro_batch_size, task.steps) == (2, 2, 3)
    assert (task.precision, task.loss_name, task.collective_backend) == ("fp16", "mean", "gloo")
    assert (task.device, task.clip, task.compression) == (torch.device("cpu"), None, False)
    assert task.loss_scale == task.grad_scaler().get_scale() == 1024.0
    assert Task(make_spec(), 0).loss_scale is None


@pytest.mark.parametrize(
    ("life", "expected"),
    [
        ({}, (None, None, None, ())),
        ({"stop_after": 1, "checkpoint_dir": "/there", "save_after": [1]}, (1, Path("/there"), None, (1,))),
        ({"stop_after": None, "resume_from": "/there"}, (None, None, Path("/there"), ())),
    ],
)
def test_where_a_task_stops_and_goes_on(life, expected):
    """It always gives the whole run."""
    task = Task({**make_spec(steps=3), "life": life}, 0)
    assert (task.stop_after, task.checkpoint_dir, task.resume_from, task.save_after) == expected
    assert len(list(task.windows())) == 3


def test_under_apex_torch_neither_casts_nor_scales():
    """Apex does both, starting from the task's scale."""
    task = Task(make_spec(precision="apex-O1", scaler=scaler()), 0)
    assert task.loss_scale == 1024.0
    assert not task.grad_scaler().is_enabled()
    with task.autocast():
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_everything_has_the_tasks_dtype(precision):
    task = Task(make_spec(precision=precision), 0)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    assert task.dtype is dtype
    assert {parameter.dtype for parameter in task.model().parameters()} == {dtype}
    assert {column.dtype for column in next(iter(task.dataloader()))} == {dtype}
    assert task.compression == (precision == "fp16-compression")


def test_a_model_holds_its_ranks_start_weights():
    spec = make_spec(world_size=2, size=4)
    spec["model"]["weights"] = [[0.5, -0.5, 0.25], [1.5, 2.5, 3.5]]
    watcher = Watcher()
    model = Task(spec, 1, watcher).model()
    assert model.weight.tolist() == [[1.5, 2.5]]
    assert model.bias.tolist() == [3.5]
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in model.parameters())
    assert watcher.models == [model]


def test_each_model_is_fresh():
    task = Task(make_spec(model={"kind": "linear", "features": 2, "bias": False, "weights": [[0.5, -0.5]]}), 0)
    first, second = task.model(), task.model()
    assert first.bias is None
    with torch.no_grad():
        first.weight.zero_()
    assert second.weight.tolist() == task.model().weight.tolist() == [[0.5, -0.5]]


GROUPS = [
    {"lr": 0.125, "weight_decay": 0.0},
    {"lr": 0.25, "weight_decay": 0.0, "momentum": 0.0, "schedule": [0.5, 1.0]},
]
MANY = {"kind": "many-tensors", "features": 18, "weights": [[0.0] * 18]}


def test_frozen_parameters_do_not_require_gradients():
    task = Task(make_spec(model={**MANY, "frozen": True}, unfreeze_at=3), 0)
    frozen = {name for name, parameter in task.model().named_parameters() if not parameter.requires_grad}
    assert frozen == {"temperature", "scale", "convolution.weight"}
    assert task.unfreeze_at == 3
    assert Task(make_spec(), 0).unfreeze_at is None


def test_an_expert_that_no_sample_takes_has_no_gradient():
    task = Task(make_spec(model={**MANY, "experts": True}, unused_parameters=True), 0)
    assert task.unused_parameters
    model = task.model()
    for taken in ([0.0], [1.0], [0.0, 1.0]):
        inputs = torch.ones(len(taken), 18, dtype=task.dtype)
        inputs[:, 6] = torch.tensor(taken)
        model.zero_grad()
        model(inputs).sum().backward()
        gradients = [expert.weight.grad for expert in model.experts]
        assert [number for number, gradient in enumerate(gradients) if gradient is not None] == taken


def settings_of(optimizer, names=("lr", "momentum", "weight_decay")):
    return [tuple(group[name] for name in names) for group in optimizer.param_groups]


def test_groups_have_settings_and_schedules_of_their_own():
    task = Task(make_spec(model=MANY, groups=GROUPS, schedule=[1.0, 0.5]), 0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    schedule = task.scheduler(optimizer)
    assert settings_of(optimizer) == [(0.0625, 0.5, 0.0), (0.125, 0.5, 0.0), (0.125, 0.0, 0.0)]
    assert [{one.ndim for one in group["params"]} for group in optimizer.param_groups] == [{2, 3, 4}, {1}, {0}]
    optimizer.step()
    schedule.step()
    assert settings_of(optimizer, ["lr"]) == [(0.03125,), (0.0625,), (0.25,)]


def test_groups_of_ones_own_are_divided_and_keep_their_settings():
    task = Task(make_spec(groups=GROUPS[:1]), 0)
    model = task.model()
    named = [{"params": [("bias", model.bias)], "lr": 1.0}, {"params": [("weight", model.weight)]}]
    assert settings_of(task.optimizer(named)) == [(1.0, 0.5, 0.0), (0.0625, 0.5, 0.0)]


def test_parameters_of_several_groups_have_the_schedule_of_the_first():
    task = Task(make_spec(model=MANY, groups=GROUPS, schedule=[1.0, 0.5]), 0)
    optimizer = torch.optim.SGD(task.model().parameters(), lr=1.0)
    assert [one(0) for one in task.scheduler(optimizer).lr_lambdas] == [1.0]


@pytest.mark.parametrize(("elements", "world_size"), [(3, 1), (5, 1), (2, 2)])
def test_a_flat_parameter_cannot_have_groups(elements, world_size):
    task = Task(make_spec(groups=GROUPS[:1], world_size=world_size), 0)
    with pytest.raises(UnsupportedGroups, match=f"one tensor of {elements} elements"):
        task.optimizer([torch.zeros(elements, requires_grad=True)])


def test_what_cannot_be_a_parameter_has_the_settings_of_the_first_group():
    task = Task(make_spec(groups=GROUPS[:1]), 0)
    assert settings_of(task.optimizer([torch.zeros(1, 1, requires_grad=True)])) == [(0.0625, 0.5, 0.0)]


def test_settings_for_optimizers_of_ones_own():
    """A framework that builds optimizer and schedule from these trains as with the task's own."""
    task = Task(make_spec(model=MANY, groups=GROUPS, schedule=[1.0, 0.5], steps=2), 0)
    settings = task.optimizer_settings
    assert settings.kind == "sgd"
    assert settings.arguments == settings.groups[0].arguments == {name: sgd()[name] for name in sgd() if name != "kind"}
    given = task.optimizer(task.model().parameters())
    names = ("lr", "momentum", "dampening", "nesterov", "weight_decay")
    assert [tuple(group.arguments[name] for name in names) for group in settings.groups] == settings_of(given, names)
    schedule, rates = task.scheduler(given), []
    for _ in range(task.steps):
        rates.append(settings_of(given, ["lr"]))
        given.step()
        schedule.step()
    by_group = [one.learning_rates for one in settings.groups]
    assert [[(rate,) for rate in row] for row in zip(*by_group, strict=True)] == rates
    assert task.learning_rates == settings.groups[0].learning_rates == (0.0625, 0.03125)


@pytest.mark.parametrize("workload", ["adamw", "nesterov", "adagrad"])
def test_arguments_are_torchs_own(workload):
    task = Task(Case("single", 1, 2, "fp32", workload).spec(), 0)
    settings = task.optimizer_settings
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}[settings.kind]
    own, given = (kind(task.model().parameters(), **settings.arguments), task.optimizer(task.model().parameters()))
    assert own.defaults == given.defaults
    assert len(task.learning_rates) == task.steps


def test_rates_by_epoch_are_as_many_as_there_are_epochs():
    task = Task(make_spec(steps=4, epochs=[0, 0], schedule=[1.0, 0.5, 0.25], schedule_by="epoch"), 0)
    assert task.learning_rates == (0.0625, 0.03125)


def test_loss_scaling_has_the_settings_of_the_scaler():
    task = Task(make_spec(precision="fp16", scaler=scaler(init_scale=8.0, growth_interval=3)), 0)
    assert task.loss_scaling == LossScaling(8.0, 2.0, 0.5, 3)
    made = torch.amp.GradScaler("cpu", **vars(task.loss_scaling))
    assert made.state_dict() == task.grad_scaler().state_dict()
    assert Task(make_spec(precision="bf16", scaler=scaler()), 0).loss_scaling is None


@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_the_loss_of_other_shapes_is_refused(loss):
    task = Task(make_spec(loss=loss), 0)
    model, batch = task.model(), next(iter(task.dataloader()))
    with pytest.raises(ValueError, match=r"outputs of shape \(8, 1\) and targets of shape \(8,\)"):
        task.loss(model(batch.inputs), Batch(batch.inputs, batch.targets[:, 0], *batch[2:]))
    assert task.loss(model(batch.inputs), batch).shape == ()


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loss", ["mean", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("inside", [True, False])
def test_the_loss_inside_and_outside_of_autocast(precision, loss, reduction, inside):
    """Half-precision outputs against float32 targets: computed, and differentiated, in float32 both times."""
    task = Task(make_spec(precision=precision, loss=loss, scaler=scaler()), 0)
    model, batch = task.model(), next(iter(task.dataloader()))
    with task.autocast():
        outputs = model(batch.inputs)
        value = task.loss(outputs, batch, reduction)
    if not inside:
        value = task.loss(outputs, batch, reduction)
    value.backward()
    weights = WEIGHT if loss == "weighted" else [1.0] * 8
    errors = [0.5 * row[0] - 0.5 * row[1] + 0.25 - target for row, target in zip(X, Y, strict=True)]
    total = sum(weight * error**2 for weight, error in zip(weights, errors, strict=True))
    assert value.item() == pytest.approx(total / (sum(weights) if reduction == "mean" else 1.0))
    assert value.dtype is task.dtype
    assert model.weight.grad.dtype is task.dtype
    assert value.shape == ()


@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_a_mean_over_tokens_is_the_loss_of_the_window(loss):
    task = Task(make_spec(accumulation=2, size=4, steps=1, loss=loss), 0)
    [window] = task.windows()
    model, total, count, errors = task.model(), 0.0, 0, 0.0
    for batch in window:
        outputs, labels = model(batch.inputs), task.token_labels(batch)
        is_token = labels != -100
        assert is_token.sum(dim=1, keepdim=True).tolist() == batch.weights.tolist()
        total += task.loss(outputs, batch, reduction="sum")
        errors += ((outputs - labels)[is_token] ** 2).sum()
        count += is_token.sum()
    assert count == sum(batch.weights.sum() for batch in window)
    by_tokens = torch.autograd.grad(errors / count, list(model.parameters()), retain_graph=True)
    by_weights = torch.autograd.grad(total / count, list(model.parameters()))
    assert [one.tolist() for one in by_tokens] == [one.tolist() for one in by_weights]


# The large ones take long, and have the same samples as others of their kind.
WEIGHTED = [name for name in STANDARD if name.startswith("weight") or name.endswith("-weighted")]


@pytest.mark.parametrize("workload", [name for name in WEIGHTED if name != "large-weighted"])
def test_every_weight_is_a_number_of_tokens(workload):
    """And no target is the number for "no target"."""
    samples = Case("ddp", 2, 2, "fp32", workload).spec()["samples"]
    assert all(weight == int(weight) >= 0 for weight in samples["weight"])
    assert -100.0 not in samples["y"]


def test_a_ranks_micro_batches_in_order():
    task = Task(make_spec(world_size=2, size=2, steps=1, loss="weighted"), 1)
    loader = task.dataloader()
    assert type(loader) is DataLoader
    assert len(loader) == 2
    batches = list(loader)
    assert indices(batches) == [[2, 3], [6, 7]]
    assert all(isinstance(batch, Batch) for batch in batches)
    assert batches[0].inputs.tolist() == X[2:4]
    assert batches[0].weights.tolist() == [[3.0], [2.0]]
    assert indices(task.dataloader(rank=0)) == [[0, 1], [4, 5]]


def test_a_batch_is_a_pair_unless_the_loss_is_weighted():
    inputs, targets = batch = next(iter(Task(make_spec(size=2), 0).dataloader()))
    assert (inputs.tolist(), targets.tolist()) == (X[:2], [[3.0], [1.0]])
    assert batch.weights.tolist() == [[1.0], [1.0]]
    _, _, weights = weighted = next(iter(Task(make_spec(size=2, loss="weighted"), 0).dataloader()))
    assert weights.tolist() == weighted.weights.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_batches_go_through_what_takes_named_tuples(loss):
    batch = next(iter(Task(make_spec(size=2, loss=loss), 0).dataloader()))
    others = [
        copy.deepcopy(batch),
        batch._replace(targets=batch.targets.clone()),
        pickle.loads(pickle.dumps(batch)),
        tree_map_with_path(lambda _, part: part.clone(), batch),
        torch.utils.data.default_collate([Batch(*one) for one in zip(*batch, strict=True)]),
        torch.utils.data.default_convert(batch),
        Batch(*tuple(batch)),
        Batch(**batch._asdict()),
    ]
    for other in others:
        assert type(other) is type(batch)
        assert [part.tolist() for part in other] == [part.tolist() for part in batch]


def loaders(task, format):
    """Loaders of one rank: prepared, with the task's sampler, and sharded by a framework's sampler."""
    yield task.dataloader(format=format)
    yield DataLoader(task.dataset(format), task.micro_batch_size, sampler=task.sampler())
    given = task.global_dataloader(format)
    sampler = DistributedSampler(given.dataset, task.world_size, task.rank, shuffle=False)
    yield DataLoader(given.dataset, given.batch_size, sampler=sampler, collate_fn=given.collate_fn)


@pytest.mark.parametrize("loss", ["mean", "weighted"])
def test_loaders_give_what_the_framework_takes(loss):
    names = ("inputs", "targets", "weights")[: 3 if loss == "weighted" else 2]
    task = Task(make_spec(world_size=2, size=2, steps=1, loss=loss), 1)
    plain = [list(loader) for loader in loaders(task, None)]
    assert all(isinstance(batch, Batch) for batches in plain for batch in batches)
    for format, kind, parts in (
        (tuple, (tuple, list), lambda batch: batch),
        (dict, dict, lambda batch: [batch[name] for name in names]),
        (lambda batch: {"labels": batch.targets}, dict, lambda batch: [batch["labels"]]),
    ):
        for loader, batches in zip(loaders(task, format), plain, strict=True):
            for given, batch in zip(loader, batches, strict=True):
                assert not isinstance(given, Batch)
                assert isinstance(given, kind)
                asked = batch if len(parts(given)) > 1 else [batch.targets]
                assert [part.tolist() for part in parts(given)] == [part.tolist() for part in asked]


def test_a_loader_goes_to_worker_processes():
    task = Task(make_spec(size=2, steps=1), 0)
    loader = task.dataloader(format=dict)
    there = pickle.loads(pickle.dumps(loader.collate_fn))
    assert there(loader.dataset.__getitems__([0, 1])).keys() == {"inputs", "targets"}


def test_each_pass_is_the_whole_run():
    """All epochs in order, in each iteration."""
    task = Task(make_spec(size=4, steps=1, epochs=[0] * 3), 0)
    loader = task.dataloader()
    assert len(loader) == 6
    assert indices(loader) == indices(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 3


def test_batches_are_copies():
    """A trainer that writes into its inputs changes no later epoch."""
    task = Task(make_spec(size=8, steps=1, epochs=[0, 0]), 0)
    for batch in task.dataloader():
        assert batch.inputs.tolist() == X
        batch.inputs.zero_()


def test_the_stream_for_frameworks_that_shard():
    task = Task(make_spec(world_size=2, size=3, steps=1, epochs=[0, 0]), 0)
    loader = task.global_dataloader()
    assert len(loader) == 6
    assert indices(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 0], [1, 2, 3], [4, 5, 6], [7]]


def test_samples_can_be_taken_one_by_one():
    """As by a framework that wraps the dataset, which hides its method for whole batches."""
    dataset = Task(make_spec(size=2, steps=1, epochs=[0, 0]), 0).global_dataloader().dataset
    collate_fn = Task(make_spec(), 0).dataloader().collate_fn
    loader = DataLoader([dataset[index] for index in range(6, 10)], batch_size=4, collate_fn=collate_fn)
    assert indices(loader) == [[6, 7, 0, 1]]
    with pytest.raises(IndexError, match="sample 16 of 16"):
        dataset[16]


def test_windows():
    task = Task(make_spec(world_size=2, accumulation=2, size=2, steps=2), 1)
    assert [indices(window) for window in task.windows()] == [[[2, 3], [6, 7]], [[2, 3], [6, 7]]]
    assert [indices(window) for window in task.windows(rank=0)] == [[[0, 1], [4, 5]], [[0, 1], [4, 5]]]


def test_epochs_may_be_read_in_part_and_again():
    task = Task(make_spec(world_size=2, accumulation=2, size=2, steps=1, epochs=[0, 0]), 1)
    first, second = task.epochs()
    next(first.windows())
    assert (first.number, second.number) == (0, 1)
    for epoch in (second, second, first):
        assert [indices(window) for window in epoch.windows()] == [[[2, 3], [6, 7]]]


SHUFFLED = Case("ddp", 2, 2, "fp32", "many-tensors")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("workload", ["many-tensors", "sampler-pads", "sampler-drops"])
def test_the_sampler_gives_each_epoch_as_planned(workload, rank):
    task = Task(replace(SHUFFLED, workload=workload).spec(), rank)
    sampler = task.sampler()
    loader = DataLoader(task.dataset(), task.micro_batch_size, sampler=sampler)
    read = []
    for epoch in task.epochs():
        sampler.set_epoch(epoch.number)
        own = list(loader)
        assert len(loader) == len(own)
        assert list(task.sampler(epoch.number)) == list(sampler)
        assert all(type(batch) is Batch for batch in own)
        read.append(own)
    windows = [window for epoch in task.epochs() for window in epoch.windows()]
    for planned in (list(task.dataloader()), [batch for window in windows for batch in window]):
        for seen, asked in zip([batch for own in read for batch in own], planned, strict=True):
            assert all(torch.equal(one, two) for one, two in zip(seen, asked, strict=True))


@pytest.mark.parametrize("workload", ["many-tensors", "sampler-pads", "uneven-batch"])
def test_the_sampler_of_all_ranks_is_the_stream(workload):
    task = Task(replace(SHUFFLED, workload=workload).spec(), 0)
    sampler = task.global_sampler()
    samples = []
    for epoch in task.epochs():
        sampler.set_epoch(epoch.number)
        assert len(sampler) == len(list(sampler))
        samples += [task.dataset()[number] for number in sampler]
    stream = task.global_dataloader().dataset
    for sample, asked in zip(samples, stream, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(sample, asked, strict=True))


def test_without_set_epoch_all_epochs_have_the_order_of_the_first():
    task = Task(SHUFFLED.spec(), 0)
    sampler, other = task.sampler(), task.sampler()
    assert isinstance(sampler, DistributedSampler)
    assert list(sampler) == list(sampler) != list(task.sampler(1))
    other.seed = 5
    assert list(other) != list(sampler)
    assert sorted([*sampler, *task.sampler(rank=1)]) == list(range(len(task.dataset())))


def test_weights_are_reported_in_the_order_of_the_model():
    watcher = Watcher()
    task = Task(make_spec(), 0, watcher)
    state = torch.get_rng_state()
    task.report(1, {"bias": [3.0], "weight": [[1.0, 2.0]]})
    task.report(0, {"bias": torch.ones(1)})
    told = [(step, [one if one is None else one.tolist() for one in weights]) for step, weights, _ in watcher.reports]
    assert told == [(1, [[[1.0, 2.0]], [3.0]]), (0, [None, [1.0]])]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_of_the_trainers_own_is_reported_with_what_it_uses():
    watcher = Watcher()
    task, weights, used = Task(make_spec(), 0, watcher), {"bias": [1.0]}, [{"bias": [0.5]}, None]
    for _ in range(2):
        with task.step(weights=weights.copy, gradients=lambda: used.pop(0)):
            weights["bias"] = [weights["bias"][0] + 1]
    told = [
        (step, [one and one.tolist() for one in (bias, slope)])
        for step, (_, bias), gradients in watcher.reports
        for slope in [None if gradients is None else gradients[1]]
    ]
    assert told == [(0, [[2.0], [0.5]]), (1, [[3.0], None])]


@pytest.mark.parametrize("kind", [torch.tensor, lambda values: torch.tensor(values).numpy()])
def test_gradients_are_those_from_before_the_step(kind):
    watcher, gradient = Watcher(), kind([0.5])
    with Task(make_spec(), 0, watcher).step(weights=dict, gradients=lambda: {"bias": gradient}):
        gradient *= 2
    [(_, _, (_, reported))] = watcher.reports
    assert reported.tolist() == [0.5]


@pytest.mark.parametrize(("resumed", "numbers"), [(False, [0, 1]), (True, [1, 2])])
def test_each_window_has_one_step(tmp_path, resumed, numbers):
    """A process that lost its position may start again: the verdict reports it, from the samples read."""
    watcher = Watcher()
    life = {"resumed_at": 1, "life": {"resume_from": str(tmp_path)}} if resumed else {}
    task = Task({**make_spec(steps=2), **life}, 0, watcher)
    for _ in numbers:
        with task.step(weights=dict):
            pass
    with pytest.raises(ValueError, match="all 2 windows have had their step"), task.step(weights=dict):
        pass
    assert [step for step, *_ in watcher.reports] == numbers


def test_a_step_that_raises_is_not_reported():
    watcher = Watcher()
    with pytest.raises(OverflowError), Task(make_spec(), 0, watcher).step(weights=dict):
        raise OverflowError
    assert watcher.reports == []


@pytest.mark.parametrize(
    ("step", "named", "says"),
    [
        (2, {}, "no window 2: windows are numbered from 0 to 1"),
        (0, {"module.bias": [3.0]}, r"unknown parameter 'module.bias' \(parameters: weight, bias\)"),
        (0, {"weight": [1.0, 2.0]}, r"weight has shape \[2\], expected \[1, 2\]"),
    ],
)
def test_a_report_of_something_else(step, named, says):
    with pytest.raises(ValueError, match=says):
        Task(make_spec(), 0).report(step, named)
