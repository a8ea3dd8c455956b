"""apex's automatic mixed precision with DistributedDataParallel, with and without gradient accumulation.

`amp.scale_loss` unscales and looks for overflows when its block ends. By then the last backward of the window has
averaged the gradients, so every rank finds the same overflows.
"""

from __future__ import annotations

from contextlib import nullcontext

import apex.amp as amp
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conformance import Task, trainer


@trainer(
    backends=("ddp",),
    precisions=("apex-O1",),
    layouts=("batched", "accumulated"),
    # Without tied weights: to find a cast again, apex expects its second parent to be the weight, but with a current
    # torch casts have one parent (`cached_cast` in apex/amp/utils.py).
    models=("linear", "with-dropout", "two-layers", "counting"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    requires=("apex",),
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    fit(task)
    # Last, when the model that uses the process group is gone.
    dist.destroy_process_group()


def fit(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    # The scale starts at 2**16 or at the maximum, whichever is lower.
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", max_loss_scale=task.loss_scale)
    # DDP wraps what apex has initialised, and not the other way round. Its construction broadcasts rank 0's weights.
    model = DistributedDataParallel(model)
    # After apex, which replaces the optimizer's step.
    scheduler = task.scheduler(optimizer)

    for window in task.windows():
        # Once per window: gradients accumulate within it.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)
        scale = loss_scale()

        for number, batch in enumerate(window, start=1):
            is_last = number == len(window)
            # Around the forward too: the forward decides whether the backward all-reduces.
            with nullcontext() if is_last else model.no_sync():
                outputs = model(batch.inputs)
                if task.loss_name == "weighted":
                    # DDP divides by the number of ranks, which the total weight already covers.
                    loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                else:
                    # Division by len(window), if all its micro-batches have the same size.
                    loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
                # Gradients that are unscaled early are set aside, and no later all-reduce averages them.
                with amp.scale_loss(loss, optimizer, delay_unscale=not is_last) as scaled_loss:
                    scaled_loss.backward()

        # The clip's threshold does not include the loss scale, which is removed by now.
        task.clip_(amp.master_params(optimizer))
        optimizer.step()  # does nothing, on all ranks, if a gradient overflowed on any
        # An overflow has lowered the scale. The schedule counts only the steps that were taken.
        if loss_scale() >= scale:
            scheduler.step()


def loss_scale() -> float:
    return float(amp.state_dict()["loss_scaler0"]["loss_scale"])
