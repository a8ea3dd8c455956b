"""Averages of weights next to the model: an exponential moving average (EMA), or a plain mean (SWA).

The average is updated once after each step, with the weights after it, never once per micro-batch. A skipped step
changes no weights, so it is no reason to count them again. An evaluation runs with the average; the model keeps its own
weights for training. A run that is stopped saves the average with its number of updates.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from conformance import Task, trainer


@trainer(
    backends=("single", "ddp"),
    precisions=("fp32", "bf16", "fp16"),
    clips=(),
    averages=("ema", "swa"),
    optimizers=("sgd",),
    parameter_groups=(1,),
    models=("linear",),
    schedule_on_skip="wait",
    resume=True,
)
def train(task: Task) -> None:
    if task.backend == "ddp":
        dist.init_process_group(task.collective_backend)
    fit(task)
    if task.backend == "ddp":
        dist.destroy_process_group()


def averaged(model: torch.nn.Module, task: Task) -> AveragedModel:
    if task.average is None or task.average.decay is None:
        return AveragedModel(model)  # a plain mean
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(task.average.decay))


def fit(task: Task) -> None:
    inner = task.model()
    wrapped = DistributedDataParallel(inner) if task.backend == "ddp" else None
    model = wrapped or inner
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()
    # After the wrapper, whose construction broadcasts rank 0's weights.
    average = averaged(inner, task)

    trained = 0
    if task.resume_from is not None:
        saved = torch.load(task.resume_from / "checkpoint.pt", map_location=task.device, weights_only=True)
        trained = saved["trained"]
        inner.load_state_dict(saved["model"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        scaler.load_state_dict(saved["scaler"])

    for at, window in islice(enumerate(task.windows()), trained, task.stop_after):
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        for number, batch in enumerate(window, start=1):
            with nullcontext() if wrapped is None or number == len(window) else wrapped.no_sync():
                with task.autocast():
                    loss = task.loss(model(batch.inputs), batch) / (samples / len(batch.inputs))
                scaler.scale(loss).backward()

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped if a gradient overflowed
        scaler.update()
        # A skipped step lowers the scale.
        if scaler.get_scale() >= scale:
            scheduler.step()
            average.update_parameters(inner)
        if task.average is not None:
            # An evaluation would run `average`.
            task.report_average(at, dict(average.module.named_parameters()))

    if task.checkpoint_dir is not None and task.rank == 0:
        saved = {
            "trained": task.stop_after,
            "model": inner.state_dict(),
            "average": average.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "scaler": scaler.state_dict(),
        }
        torch.save(saved, task.checkpoint_dir / "checkpoint.pt")
