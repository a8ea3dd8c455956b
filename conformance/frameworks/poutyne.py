"""Poutyne's `ModelBundle`: one process, schedules by epoch, and unweighted losses, as a loss sees one micro-batch."""

from typing import Any

from poutyne import ClipNorm, ClipValue, LambdaCallback, LambdaLR, ModelBundle
from torch.nn import MSELoss
from torch.utils.data import DataLoader

from conformance import Task, trainer


@trainer(precisions=("fp64", "fp32"), schedules=("epoch",), own_order=True, unused_parameters=True, sparse=True,
         buffers=True, resume=True, requires=("poutyne", "pandas"))  # fmt: skip
def train(task: Task) -> None:
    network, sampler = task.model(), task.sampler()
    optimizer = task.optimizer(network.parameters())
    callbacks = [LambdaCallback(on_epoch_begin=lambda epoch_number, logs: sampler.set_epoch(epoch_number - 1))]
    if task.clip is not None:
        clip = ClipNorm if task.clip.kind == "norm" else ClipValue
        callbacks.append(clip(network.parameters(), task.clip.threshold))
    folder = task.checkpoint_dir or task.resume_from
    parts: Any = {"optimizer": optimizer, "loss_function": MSELoss(), "device": task.device}
    # With logging it saves after each epoch, and resumes from the folder's contents.
    bundle = ModelBundle.from_network(str(folder), network, logging=folder is not None, monitoring=False, **parts)
    loader = DataLoader(task.dataset(), task.micro_batch_size, task.own_order, None if task.own_order else sampler)
    settings: Any = {"epochs": task.epochs_until_stop(), "batches_per_step": task.accumulation, "verbose": False}
    schedules = [LambdaLR(task.scheduler(optimizer).lr_lambdas)]
    bundle.train(loader, callbacks=callbacks, lr_schedulers=schedules, disable_tensorboard=True, **settings)
