"""Whole batches on one device: one forward, one backward and one optimizer step per batch."""

from __future__ import annotations

from conformance import Task, trainer


@trainer(
    backends=("single",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched",),
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

    for batch in task.dataloader():
        optimizer.zero_grad()
        # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
        with task.autocast():
            loss = task.loss(model(batch.inputs), batch)
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
