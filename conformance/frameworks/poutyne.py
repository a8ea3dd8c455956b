"""Poutyne: a `ModelBundle`, one process, with Poutyne's callbacks for clipping and schedules, which count epochs.

It sees one micro-batch and counts samples, so a loss that is weighted has no place.
"""

from typing import Any

from poutyne import Callback, ClipNorm, ClipValue, LambdaLR, ModelBundle
from torch.nn import MSELoss
from torch.utils.data import DataLoader

from conformance import Task, trainer
from conformance.frameworks.whole_epochs import epochs_until_stop


class SetEpoch(Callback):
    def __init__(self, sampler: Any) -> None:
        super().__init__()
        self.sampler = sampler

    def on_epoch_begin(self, epoch_number: int, logs: object) -> None:
        self.sampler.set_epoch(epoch_number - 1)


@trainer(
    precisions=("fp64", "fp32"), schedules=("epoch",), own_order=True, unused_parameters=True, sparse=True,
    buffers=True, resume=True, requires=("poutyne", "pandas"),
)  # fmt: skip
def train(task: Task) -> None:
    network, sampler = task.model(), None if task.own_order else task.sampler()
    optimizer = task.optimizer(network.parameters())
    callbacks: list[Callback] = [] if sampler is None else [SetEpoch(sampler)]
    if task.clip is not None:
        clip = ClipNorm if task.clip.kind == "norm" else ClipValue
        callbacks.append(clip(network.parameters(), task.clip.threshold))
    folder = task.checkpoint_dir or task.resume_from
    parts: Any = {"optimizer": optimizer, "loss_function": MSELoss(), "device": task.device}
    # With logging it saves after each epoch, and goes on from what it finds in the folder.
    bundle = ModelBundle.from_network(str(folder), network, logging=folder is not None, monitoring=False, **parts)
    loader = DataLoader(task.dataset(), task.micro_batch_size, shuffle=task.own_order, sampler=sampler)
    settings: Any = {"epochs": epochs_until_stop(task), "batches_per_step": task.accumulation, "verbose": False}
    schedules = [LambdaLR(task.scheduler(optimizer).lr_lambdas)]
    bundle.train(loader, callbacks=callbacks, lr_schedulers=schedules, disable_tensorboard=True, **settings)
