"""Gradient accumulation, on one device: several micro-batches, one optimizer step.

Each micro-batch's loss is divided to make the window's losses sum to the loss of all its samples together. The divisor
is that of this window, not of a nominal one: the last window may be
shorter, and its last micro-batch smaller.

A run that is stopped saves everything that training changes: besides the weights, the states of the optimizer, the
schedule and the loss scaler, and the position in the data. A run that resumes it loads these, and skips those data.
"""

from __future__ import annotations

from itertools import islice

import torch

from conformance import Task, trainer


@trainer(
    backends=("single",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("accumulated",),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    unused_parameters=True,
    sparse=True,
    buffers=True,
    resume=True,
    random_state=True,
)
def train(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    trained = 0
    if task.resume_from is not None:
        saved = torch.load(task.resume_from / "checkpoint.pt", weights_only=True)
        trained = saved["trained"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        scaler.load_state_dict(saved["scaler"])
        torch.set_rng_state(saved["random"])

    for window in islice(task.windows(), trained, task.stop_after):
        # Once per window: gradients accumulate within it.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()

        for batch in window:
            # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
            with task.autocast():
                outputs = model(batch.inputs)
                if task.loss_name == "weighted":
                    # Not a mean of means: each micro-batch counts by its weight in the whole window.
                    loss = task.loss(outputs, batch, reduction="sum") / weight
                else:
                    # Division by len(window), if all its micro-batches have the same size.
                    loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            scaler.scale(loss).backward()

        # All micro-batches of a window share one loss scale. The clip's threshold does not include it, so unscale
        # first, once, after the last backward.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped if a gradient overflowed
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

    if task.checkpoint_dir is not None:
        saved = {
            "trained": task.stop_after,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "scaler": scaler.state_dict(),
            "random": torch.get_rng_state(),
        }
        torch.save(saved, task.checkpoint_dir / "checkpoint.pt")
