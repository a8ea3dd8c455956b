"""Horovod with `synchronize()` and `skip_synchronize()`, with and without gradient accumulation.

Horovod's optimizer starts to average a gradient over the ranks in every `backward_passes_per_step`-th
backward. `synchronize()` waits until that is done: gradients can be unscaled and clipped between it and
the step.
"""

from __future__ import annotations

import horovod.torch as hvd
import torch

from conformance import Task, trainer


@trainer(
    backends=("horovod",),
    precisions=("fp64", "fp32", "bf16", "fp16", "fp16-compression"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    unused_parameters=True,
    sparse=True,
    buffers=True,
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
    scaler = task.grad_scaler()

    for window in task.windows():
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
            scaler.scale(loss).backward()

        # Waits for the averages. In a window shorter than backward_passes_per_step it also starts them.
        optimizer.synchronize()
        # Only now does every rank have the same gradients, so the same overflows and the same norm. The clip's
        # threshold does not include the loss scale, so unscale first.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        # A plain step would average again.
        with optimizer.skip_synchronize():
            scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

    hvd.shutdown()
