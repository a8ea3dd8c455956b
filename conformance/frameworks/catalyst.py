"""Catalyst's `SupervisedRunner`, with its callbacks for loss, optimizer, schedule and checkpoints.

Its last release installs with `pip<24.1` only."""

from functools import partial
from typing import Any

from catalyst import dl
from torch.nn import MSELoss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from conformance import Task, trainer


# Its criterion knows no weights. It counts micro-batches over the end of an epoch. DDP needs CUDA.
@trainer(precisions=("fp64", "fp32", "bf16"), schedules=("step", "epoch"), own_order=True, resume=True,
         unused_parameters=True, sparse=True, buffers=True, last_window="carry",
         requires=("catalyst",))  # fmt: skip
def train(task: Task) -> None:
    task.leave_torchrun()
    model, sampler = task.model(), task.sampler()
    optimizer = task.optimizer(model.parameters())

    class Engine(dl.CPUEngine):
        def mean_reduce_ddp_metrics(self, metrics: Any) -> Any:
            return metrics  # Catalyst's own asks for a distributed type that Accelerate 1 no longer has.

    class Runner(dl.SupervisedRunner):
        def on_loader_start(self, runner: Any) -> None:
            super().on_loader_start(runner)
            sampler.set_epoch(self.epoch_step - 1)  # Catalyst counts epochs from 1.

    def by_step(rate: Any, number: int) -> Any:
        return rate(number // task.accumulation)  # In the mode "batch" a schedule advances with each micro-batch.

    rates = task.scheduler(optimizer).lr_lambdas
    schedule = LambdaLR(optimizer, [partial(by_step, rate) if task.schedule_by == "step" else rate for rate in rates])
    clip: Any = {}
    if task.clip is not None:
        parameters = {"max_norm" if task.clip.kind == "norm" else "clip_value": task.clip.threshold}
        clip["grad_clip_fn"] = clip_grad_norm_ if task.clip.kind == "norm" else clip_grad_value_
        clip["grad_clip_params"] = parameters
    callbacks = [
        dl.CriterionCallback("logits", "targets", "loss"),
        dl.BackwardCallback("loss"),
        dl.OptimizerCallback("loss", accumulation_steps=task.accumulation, **clip),
        dl.SchedulerCallback(mode="batch" if task.schedule_by == "step" else "epoch"),
    ]
    if folder := task.checkpoint_dir or task.resume_from:
        last = str(task.resume_from / "runner.last.pth") if task.resume_from else None
        callbacks.append(dl.CheckpointCallback(str(folder), mode="runner", save_last=True, resume_runner=last))
    order: Any = {"shuffle": True} if task.own_order else {"sampler": sampler}
    loader = DataLoader(task.dataset(tuple), task.micro_batch_size, **order)
    Runner().train(
        loaders={"train": loader}, model=model, criterion=MSELoss(), optimizer=optimizer, scheduler=schedule,
        engine=Engine(mixed_precision="bf16" if task.precision == "bf16" else "no"), callbacks=callbacks,
        num_epochs=task.epochs_until_stop())  # fmt: skip
