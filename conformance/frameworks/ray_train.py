"""Ray Train's TorchTrainer, as its guide "Distributed Training using PyTorch" has it, on a cluster of one machine."""

from contextlib import nullcontext
from itertools import islice
from typing import Any

import ray.train.torch
import torch
import torch.distributed as dist

from conformance import Batch, Job, Task, enter, trainer
from conformance.frameworks.ray_checkpoint import restore, save
from conformance.frameworks.ray_cluster import launch, local_cluster


@trainer(
    backends=("ray-train",), precisions=("fp64", "fp32", "bf16", "fp16"), losses=("mean", "weighted"), resume=True,
    requires=("ray",), launches_workers=True, session=local_cluster, name="ray-train",
)  # fmt: skip
def train(job: Job) -> None:
    launch(job, train_loop_per_worker)


def train_loop_per_worker(ticket: dict[str, Any]) -> None:
    with enter(ticket, ray.train.get_context().get_world_rank()) as task:
        fit(task)


def fit(task: Task) -> None:
    model: Any = ray.train.torch.prepare_model(task.model())
    loader = ray.train.torch.prepare_data_loader(task.global_dataloader())
    # Prepared, it moves batches to the device, and they come out as plain tuples.
    batches = (Batch(*batch) for batch in loader)
    optimizer, scaler = task.optimizer(model.parameters()), task.grad_scaler()
    scheduler = task.scheduler(optimizer)
    done = restore(parts := (model, optimizer, scheduler, scaler))
    for _ in range(done * task.accumulation):
        next(batches)
    while done != task.stop_after and (window := list(islice(batches, task.accumulation))):
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            dist.all_reduce(weight)
            # DDP divides by the number of ranks, which the total weight already covers.
            weight /= task.world_size
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                with task.autocast():
                    loss = task.loss(model(batch.inputs), batch, reduction="sum") / weight
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
        optimizer.zero_grad()
        done += 1
    if task.checkpoint_dir is not None:
        save(parts, done)
