"""Ray Train: `TorchTrainer` starts the workers and their process group, and wraps model and loader.

Everything else is a plain loop, as Ray Train's guide "Get Started with Distributed Training using PyTorch" has
it; for mixed precision it points to PyTorch's own autocast and GradScaler. On a cluster the same code runs as it is.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import conformance
from conformance import Batch, Job, Task, trainer
from conformance.frameworks.ray_cluster import connected, local_cluster


@trainer(
    backends=("ray-train",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    requires=("ray",),
    launches_workers=True,
    session=local_cluster,
    name="ray-train",
)
def train(job: Job) -> None:
    launch(job, train_loop_per_worker)


def launch(job: Job, loop: Callable[[dict[str, Any]], None]) -> None:
    """Run ``loop`` in every worker, on the session's cluster; its argument is the job's ticket."""
    # An actor that watches for machines that the cluster is about to lose.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    # In the folder of the cluster, which is deleted even where this process is killed.
    with connected(job.session):
        TorchTrainer(
            loop,
            train_loop_config=job.ticket,
            scaling_config=ScalingConfig(num_workers=job.world_size),
            run_config=RunConfig(storage_path=os.path.join(job.session["folder"], "storage")),
        ).fit()


def train_loop_per_worker(ticket: dict[str, Any]) -> None:
    with conformance.enter(ticket, ray.train.get_context().get_world_rank()) as task:
        fit(task)


def fit(task: Task) -> None:
    model: Any = ray.train.torch.prepare_model(task.model())
    # Puts a DistributedSampler in: every rank reads each `world_size`-th sample.
    loader = ray.train.torch.prepare_data_loader(task.global_dataloader())
    # The prepared loader moves batches to the device, and they come out as plain tuples. It is its own iterator and
    # begins anew whenever `iter` is called, as `islice` does: only this one `for` may do that.
    batches = (Batch(*batch) for batch in loader)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    while window := list(itertools.islice(batches, task.accumulation)):
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            dist.all_reduce(weight)

        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                with task.autocast():
                    outputs = model(batch.inputs)
                    if task.loss_name == "weighted":
                        # DDP divides by the number of ranks, which the total weight already covers.
                        loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                    else:
                        loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
                scaler.scale(loss).backward()

        scaler.unscale_(optimizer)
        task.clip_(model.parameters())
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
