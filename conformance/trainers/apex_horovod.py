"""apex's automatic mixed precision with Horovod, with and without gradient accumulation.

`amp.scale_loss` unscales and looks for overflows when its block ends, so Horovod's `synchronize()` is called inside the
window's last block: before it each rank has its own gradients, and ranks would skip different steps.
"""

from __future__ import annotations

import apex.amp as amp
import horovod.torch as hvd
import torch

from conformance import Task, trainer


@trainer(
    backends=("horovod",),
    precisions=("apex-O1",),
    layouts=("batched", "accumulated"),
    # Without tied weights: to find a cast again, apex expects its second parent to be the weight, but with a current
    # torch casts have one parent (`cached_cast` in apex/amp/utils.py).
    models=("linear", "with-dropout", "two-layers", "counting"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    requires=("horovod", "apex"),
)
def train(task: Task) -> None:
    hvd.init()
    model = task.model()
    optimizer = hvd.DistributedOptimizer(
        task.optimizer(model.parameters()),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=task.accumulation,
    )
    # All ranks start with rank 0's weights.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    # The scale starts at 2**16 or at the maximum, whichever is lower.
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", max_loss_scale=task.loss_scale)
    # After apex, which replaces the optimizer's step.
    scheduler = task.scheduler(optimizer)

    for window in task.windows():
        # Once per window: gradients accumulate within it.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            weight = hvd.allreduce(weight, op=hvd.Sum)
        scale = loss_scale()

        for number, batch in enumerate(window, start=1):
            is_last = number == len(window)
            outputs = model(batch.inputs)
            if task.loss_name == "weighted":
                # Horovod divides by the number of ranks, which the total weight already covers.
                loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
            else:
                # Division by len(window), if all its micro-batches have the same size.
                loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            # Gradients that are unscaled early are set aside, and no later all-reduce averages them.
            with amp.scale_loss(loss, optimizer, delay_unscale=not is_last) as scaled_loss:
                scaled_loss.backward()
                if is_last:
                    # In a window shorter than backward_passes_per_step it also starts the averages.
                    optimizer.synchronize()

        # The clip's threshold does not include the loss scale, which is removed by now.
        task.clip_(amp.master_params(optimizer))
        # A plain step would average again.
        with optimizer.skip_synchronize():
            optimizer.step()  # does nothing, on all ranks, if a gradient overflowed on any
        # An overflow has lowered the scale. The schedule counts only the steps that were taken.
        if loss_scale() >= scale:
            scheduler.step()

    hvd.shutdown()


def loss_scale() -> float:
    return float(amp.state_dict()["loss_scaler0"]["loss_scale"])
