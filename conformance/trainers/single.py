"""Sample by sample on one device: the loop that all other paths must agree with.

A window is one whole batch, taken one sample at a time. The samples' gradients accumulate in `.grad`, and one optimizer
step uses them.
"""

from __future__ import annotations

import torch

from conformance import Task, trainer


@trainer(
    backends=("single",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("samples",),
    losses=("mean", "weighted"),
    schedule_on_skip="wait",
    unused_parameters=True,
    sparse=True,
)
def train(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    for window in task.windows():
        # Once per window: gradients accumulate within it.
        optimizer.zero_grad()
        weight = torch.stack([sample.weights.sum() for sample in window]).sum()

        for sample in window:
            # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
            with task.autocast():
                outputs = model(sample.inputs)
                if task.loss_name == "weighted":
                    loss = task.loss(outputs, sample, reduction="sum") / weight
                else:
                    loss = task.loss(outputs, sample) / len(window)
            scaler.scale(loss).backward()

        # The clip's threshold does not include the loss scale, so unscale first.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped if a gradient overflowed
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()
