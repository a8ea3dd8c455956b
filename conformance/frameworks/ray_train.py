"""Ray Train's TorchTrainer on one machine, as in its guides to training with PyTorch and to checkpoints."""

from contextlib import nullcontext
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import ray.train.torch
import torch

from conformance import Batch, Job, Task, trainer
from conformance.frameworks.ray_cluster import launch, local_cluster


@trainer(backends=("ray-train",), precisions=("fp64", "fp32", "bf16", "fp16"), losses=("mean", "weighted"), resume=True,
         requires=("ray",), launches_workers=True, session=local_cluster, name="ray-train")  # fmt: skip
def train(job: Job) -> None:
    launch(job, fit)


def fit(task: Task) -> None:
    model: Any = ray.train.torch.prepare_model(task.model())
    loader = ray.train.torch.prepare_data_loader(task.global_dataloader())
    optimizer, scaler, done = task.optimizer(model.parameters()), task.grad_scaler(), 0
    parts = (model, optimizer, scheduler := task.scheduler(optimizer), scaler)
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            done, states = torch.load(f"{folder}/checkpoint.pt")
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
    # The prepared loader moves batches to the device, and returns plain tuples.
    batches = (Batch(*batch) for batch in islice(loader, done * task.accumulation, None))
    for window in islice(task.in_windows(batches), task.stop_after and task.stop_after - done):
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            torch.distributed.all_reduce(weight)
            weight /= task.world_size  # DDP divides by the number of ranks, which the total weight already covers.
        for batch in window:
            with nullcontext() if batch is window[-1] else model.no_sync():
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
    if task.checkpoint_dir is not None:
        with TemporaryDirectory() as folder:
            torch.save((task.stop_after, [part.state_dict() for part in parts]), f"{folder}/checkpoint.pt")
            saved = ray.train.Checkpoint.from_directory(folder) if task.rank == 0 else None
            ray.train.report({}, checkpoint=saved)
