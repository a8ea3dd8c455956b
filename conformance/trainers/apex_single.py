"""apex's automatic mixed precision on one device, with and without gradient accumulation.

`amp.initialize` patches torch, so that linear operations cast what they are given to float16; the weights stay in
float32. `amp.scale_loss` multiplies the loss by a dynamic loss scale, and takes it off the gradients again when its
block ends. With `delay_unscale` it leaves it on, for the micro-batches that are still to come.
"""

from __future__ import annotations

import apex.amp as amp
import torch

from conformance import Task, trainer


@trainer(
    backends=("single",),
    precisions=("apex-O1",),
    layouts=("batched", "accumulated"),
    # None with a tied weight: to find its cast again, apex looks for the second parent of the cast, and with a current
    # torch casts have one (`cached_cast` in apex/amp/utils.py).
    models=("linear", "with-dropout", "two-layers", "counting"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    requires=("apex",),
)
def train(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    # The scale begins at 2**16 or at the highest one that is allowed, whichever is lower.
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", max_loss_scale=task.loss_scale)
    # After apex, which replaces the optimizer's step.
    scheduler = task.scheduler(optimizer)

    for window in task.windows():
        # Once a window: within it gradients add up.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        scale = loss_scale()

        for number, batch in enumerate(window, start=1):
            outputs = model(batch.inputs)
            if task.loss_name == "weighted":
                # Not a mean of means: each micro-batch counts by its weight in the whole window.
                loss = task.loss(outputs, batch, reduction="sum") / weight
            else:
                # By len(window), when its micro-batches are all of one size.
                loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            # Gradients add up at one scale, and are unscaled once, after the last backward.
            with amp.scale_loss(loss, optimizer, delay_unscale=number < len(window)) as scaled_loss:
                scaled_loss.backward()

        # Clipping compares with a threshold that knows nothing of the loss scale; it is off by now.
        task.clip_(amp.master_params(optimizer))
        optimizer.step()  # does nothing if a gradient overflowed
        # An overflow has lowered the scale. The schedule counts only the steps that were taken.
        if loss_scale() >= scale:
            scheduler.step()


def loss_scale() -> float:
    return float(amp.state_dict()["loss_scaler0"]["loss_scale"])
