"""Batches as a framework takes them: ready by rank, dealt out by it, and from a loader of its own."""

from __future__ import annotations

from pathlib import Path

TRAINER = """
from contextlib import nullcontext
import itertools
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from conformance import Batch, Task, trainer


def of_names(batch):
    return {"x": batch.inputs, "labels": batch.targets, "w": batch.weights}


def loader(task):
    if task.own_order:
        data = task.dataset(of_names)
        sampler = DistributedSampler(data, task.world_size, task.rank, shuffle=True)
        loader = DataLoader(data, task.micro_batch_size, sampler=sampler)
        for epoch in task.epochs():
            sampler.set_epoch(epoch.number)
            yield from (Batch(*batch.values()) for batch in loader)
    elif task.loss_name == "weighted":
        yield from (Batch(**batch) for batch in task.dataloader(format=dict))
    else:
        given = task.global_dataloader(tuple)
        sampler = DistributedSampler(given.dataset, task.world_size, task.rank, shuffle=False)
        loader = DataLoader(given.dataset, given.batch_size, sampler=sampler, collate_fn=given.collate_fn)
        yield from (Batch(inputs, targets) for inputs, targets in loader)


@trainer(backends=["single", "ddp"], precisions=["fp32"], losses=["mean", "weighted"], own_order=True)
def train(task: Task) -> None:
    model = task.model()
    if task.world_size > 1:
        dist.init_process_group(task.collective_backend)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    batches = loader(task)
    while window := list(itertools.islice(batches, task.accumulation)):
        weight = sum(batch.weights.sum() for batch in window)
        if task.world_size > 1:
            dist.all_reduce(weight)
        for batch in window:
            waits = task.world_size > 1 and batch is not window[-1]
            with model.no_sync() if waits else nullcontext():
                (task.loss(model(batch.inputs), batch, reduction="sum") / (weight / task.world_size)).backward()
        task.clip_(model.parameters())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if task.world_size > 1:
        dist.destroy_process_group()
"""

CASES = (
    "ddp-w2-acc2-fp32-weighted",
    "ddp-w2-acc2-fp32-momentum",
    "ddp-w2-acc2-fp32-own-order",
    "single-acc2-fp32-weighted",
)


def test_each_loader_in_each_format(conformance, folder, cases):
    Path("reads.py").write_text(TRAINER)
    ended = conformance("run", "reads.py", *(part for case in CASES for part in ("--case", case)))
    assert ended.code == 0, ended.out
    assert {name: case["verdict"] for (_, name), case in cases().items()} == dict.fromkeys(CASES, "PASS (exact)")
