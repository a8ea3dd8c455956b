"""apex's automatic mixed precision on one device, with and without gradient accumulation.

`amp.initialize` patches torch: linear operations cast their inputs to float16; the weights stay in float32.
`amp.scale_loss` multiplies the loss by a dynamic loss scale, and removes it from the gradients when its block ends.
With `delay_unscale` the gradients stay scaled, for the micro-batches that follow.
"""

from __future__ import annotations

import apex.amp as amp
import torch

from conformance import Task, trainer


@trainer(
    backends=("single",),
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
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    # The scale starts at 2**16 or at the maximum, whichever is lower.
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", max_loss_scale=task.loss_scale)
    # After apex, which replaces the optimizer's step.
    scheduler = task.scheduler(optimizer)

    for window in task.windows():
        # Once per window: gradients accumulate within it.
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
                # Division by len(window), if all its micro-batches have the same size.
                loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            # Gradients accumulate at one scale, and are unscaled once, after the last backward.
            with amp.scale_loss(loss, optimizer, delay_unscale=number < len(window)) as scaled_loss:
                scaled_loss.backward()

        # The clip's threshold does not include the loss scale, which is removed by now.
        task.clip_(amp.master_params(optimizer))
        optimizer.step()  # does nothing if a gradient overflowed
        # An overflow has lowered the scale. The schedule counts only the steps that were taken.
        if loss_scale() >= scale:
            scheduler.step()


def loss_scale() -> float:
    return float(amp.state_dict()["loss_scaler0"]["loss_scale"])
