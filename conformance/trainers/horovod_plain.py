"""Horovod with a plain `step()`, which itself waits until the gradients are averaged over the ranks.

Nothing can come between the average and the step, so this path neither clips nor uses a GradScaler: both
would read gradients that are still being averaged.

The loader is made as for a user's dataset, from `task.dataset()` and `task.sampler()`.
"""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader

from conformance import Task, trainer


@trainer(
    backends=("horovod",),
    precisions=("fp64", "fp32", "bf16", "fp16-compression"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    clips=(),
    schedules=("step", "epoch"),
    requires=("horovod",),
)
def train(task: Task) -> None:
    hvd.init()
    model = task.model()
    optimizer = hvd.DistributedOptimizer(
        task.optimizer(model.parameters()),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if task.compression else hvd.Compression.none,
        backward_passes_per_step=task.accumulation,
    )
    # All ranks start with rank 0's weights. `broadcast_optimizer_state` belongs here only after rank 0 has
    # loaded a checkpoint: a new optimizer has no state to share, and Horovod would create it by taking a
    # step, which decays weights and advances Adam's bias correction.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    scheduler = task.scheduler(optimizer)

    # The trainer's own loader. It yields the same indices in each epoch; their order is the sampler's, which needs the
    # epoch.
    sampler = task.sampler()
    loader = DataLoader(task.dataset(), task.micro_batch_size, sampler=sampler)
    for epoch in task.epochs():
        sampler.set_epoch(epoch.number)
        for window in task.in_windows(loader):
            # Once per window: gradients accumulate within it.
            optimizer.zero_grad()
            samples = sum(len(batch.inputs) for batch in window)
            weight = torch.stack([batch.weights.sum() for batch in window]).sum()
            if task.loss_name == "weighted":
                # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
                weight = hvd.allreduce(weight, op=hvd.Sum)

            for batch in window:
                # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
                with task.autocast():
                    outputs = model(batch.inputs)
                    if task.loss_name == "weighted":
                        # Horovod divides by the number of ranks, which the total weight already covers.
                        loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                    else:
                        # Division by len(window), if all its micro-batches have the same size.
                        loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
                loss.backward()

            # Waits for the averages. In a window shorter than backward_passes_per_step it also starts them.
            optimizer.step()
            if task.schedule_by == "step":
                scheduler.step()
        if task.schedule_by == "epoch":
            scheduler.step()

    hvd.shutdown()
