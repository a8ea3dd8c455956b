"""DistributedDataParallel, with and without gradient accumulation.

DDP averages gradients over the ranks while the backward runs. With accumulation that should happen once per window, in
the backward of the last micro-batch; `no_sync()` prevents it in the others.

All ranks have the same weights and states: rank 0 writes the checkpoint of a run that is stopped, and every rank of the
run that resumes it loads it. Each rank writes its own state of random numbers.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance import Task, trainer


@trainer(
    backends=("ddp",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    resume=True,
    random_state=True,
    elastic=True,
    unused_parameters=True,
    sparse=True,
    buffers=True,
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    fit(task)
    # Last, when the model that uses the process group is gone.
    dist.destroy_process_group()


def fit(task: Task) -> None:
    # Construction broadcasts rank 0's weights. From here on only the wrapper is called: a forward through the inner
    # module would leave its gradients out of the all-reduce.
    # DDP waits for the gradient of every parameter, unless it searches for those that the outputs depend on.
    model = DistributedDataParallel(task.model(), find_unused_parameters=task.unused_parameters)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    trained = 0
    if task.resume_from is not None:
        # On every rank: DDP would not send rank 0's optimizer state to the others.
        saved = torch.load(task.resume_from / "checkpoint.pt", map_location=task.device, weights_only=True)
        trained = saved["trained"]
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        scaler.load_state_dict(saved["scaler"])
        # A new rank keeps its own random numbers.
        if (drawn := task.resume_from / f"random-{task.rank}.pt").exists():
            torch.set_rng_state(torch.load(drawn, weights_only=True))

    for window in islice(task.windows(), trained, task.stop_after):
        # Once per window: gradients accumulate within it.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)

        for number, batch in enumerate(window, start=1):
            # Around the forward too: the forward decides whether the backward all-reduces.
            with nullcontext() if number == len(window) else model.no_sync():
                # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
                with task.autocast():
                    outputs = model(batch.inputs)
                    if task.loss_name == "weighted":
                        # DDP divides by the number of ranks, which the total weight already covers.
                        loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                    else:
                        # Division by len(window), if all its micro-batches have the same size.
                        loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
                scaler.scale(loss).backward()

        # The gradients are averaged, so every rank finds the same overflows and the same norm. The clip's threshold
        # does not include the loss scale, so unscale first, and once.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

    if task.checkpoint_dir is not None:
        # Each rank may draw its own numbers, for dropout.
        torch.save(torch.get_rng_state(), task.checkpoint_dir / f"random-{task.rank}.pt")
    if task.checkpoint_dir is not None and task.rank == 0:
        saved = {
            "trained": task.stop_after,
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "scaler": scaler.state_dict(),
        }
        torch.save(saved, task.checkpoint_dir / "checkpoint.pt")
