"""Determined's PyTorchTrial, trained off its cluster by Determined's own Trainer, as the guides for both show it.

A trial's `train_batch` sees one micro-batch. `context.backward` and `context.step_optimizer` decide from
`aggregation_frequency` whether the ranks exchange gradients and whether the optimizer steps, and they divide by it. So
a loss that is weighted over the whole window has no place here, and is not declared.

Determined takes the first GPUs that `nvidia-smi` lists and has no option against that.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from determined import core, horovod, ipc, pytorch

from conformance import Batch, Task, trainer


class Regression(pytorch.PyTorchTrial):
    """The task's model, loss, optimizer and schedule, each in the place where Determined looks for it."""

    def __init__(self, context: pytorch.PyTorchTrialContext, task: Task) -> None:
        self.context = context
        self.task = task
        self.scaler = context.wrap_scaler(task.grad_scaler())
        self.model = context.wrap_model(task.model())
        self.optimizer = context.wrap_optimizer(
            task.optimizer(self.model.parameters()), fp16_compression=task.compression
        )
        context.wrap_lr_scheduler(
            task.scheduler(self.optimizer),  # type: ignore[arg-type]  # they name the class that was torch 1's
            pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        # What was moved to the device comes back as a plain tuple.
        batch = Batch(*batch)
        with self.task.autocast():
            loss = self.task.loss(self.model(batch.inputs), batch)
        self.context.backward(self.scaler.scale(loss))
        # Does nothing within a window.
        self.context.step_optimizer(self.optimizer, self.clip if self.task.clip else None, scaler=self.scaler)
        # The guide does this in every batch, but GradScaler refuses it where nothing has been stepped.
        if (batch_idx + 1) % self.task.accumulation == 0:
            self.scaler.update()
        return {"loss": loss}

    def clip(self, parameters: Iterator[torch.nn.Parameter]) -> None:
        self.scaler.unscale_(self.optimizer)
        self.task.clip_(parameters)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        # Determined's own class, which distributes the micro-batches over the ranks.
        loader = self.task.global_dataloader()
        return pytorch.DataLoader(loader.dataset, loader.batch_size, collate_fn=loader.collate_fn)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self.build_training_data_loader()

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        """Nothing: a trial without a validation is refused."""
        return {}


@trainer(
    backends=("single", "ddp", "horovod"),
    precisions=("fp64", "fp32", "bf16", "fp16", "fp16-compression"),
    layouts=("batched", "accumulated"),
    losses=("mean",),
    requires=("determined",),
)
def train(task: Task) -> None:
    distributed = connected(task) if task.world_size > 1 else None
    with (
        a_place_for_checkpoints(),
        pytorch.init(
            distributed=distributed,
            aggregation_frequency=task.accumulation,
            enable_tensorboard_logging=False,
        ) as context,
    ):
        if context.device.type != task.device.type:
            raise RuntimeError(f"Determined trains on {context.device}, and this case is for {task.device}")
        fitter = pytorch.Trainer(Regression(context, task), context)
        fitter.fit(max_length=pytorch.Epoch(1), checkpoint_policy="none")


def connected(task: Task) -> core.DistributedContext:
    """What the guide does before `pytorch.init`, by the backend: the variable is for Determined's training loop."""
    folder = tempfile.mkdtemp() if task.rank == 0 else ""
    if task.backend == "horovod":
        os.environ["USE_HOROVOD"] = "true"
        hvd = horovod.hvd
        hvd.require_horovod_type("torch", "the case is for Horovod")
        hvd.init()
        return over_unix_sockets(hvd.broadcast_object(folder)).from_horovod(hvd)
    os.environ["USE_TORCH_DISTRIBUTED"] = "true"
    dist.init_process_group(task.collective_backend)
    folders = [folder]
    dist.broadcast_object_list(folders)
    return over_unix_sockets(folders[0]).from_torch_distributed()


def over_unix_sockets(folder: str) -> type[core.DistributedContext]:
    """Determined's channel for all but gradients, through sockets in `folder`, which rank 0 removes in the end.

    Its own uses the same two TCP ports in all runs on a machine, where cases that run at one time would meet, and
    opens them on all interfaces.
    """

    class Channel(core.DistributedContext):
        def _init_ipc(self, force_tcp: bool) -> None:
            self.tempdir = folder
            urls = f"ipc://{folder}/pub.sock", f"ipc://{folder}/pull.sock"
            end: ipc.ZMQBroadcastServer | ipc.ZMQBroadcastClient
            if self.rank == 0:
                end = self._chief_zmq = self._local_chief_zmq = ipc.ZMQBroadcastServer(self.size - 1, *urls)
            else:
                end = self._worker_zmq = self._local_worker_zmq = ipc.ZMQBroadcastClient(*urls)
            end.safe_start()

    return Channel


@contextlib.contextmanager
def a_place_for_checkpoints() -> Iterator[None]:
    """Off a cluster the Trainer ends with a checkpoint in the user's data folder, and puts into it a copy of the whole
    working directory; neither can be turned off."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory() as empty:
        os.environ["XDG_DATA_HOME"] = data
        os.chdir(empty)
        try:
            yield
        finally:
            os.chdir(before)
