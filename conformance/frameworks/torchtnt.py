"""TorchTNT's `AutoUnit`: a loss sees one micro-batch, so losses have no weights. fp16 on a CPU has no scale."""

from itertools import islice
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchtnt import framework
from torchtnt.framework.callbacks import DistributedCheckpointSaver
from torchtnt.utils.prepare_module import DDPStrategy

from conformance import Batch, Task, trainer


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), schedules=("step", "epoch"), own_order=True,
         resume=True, unused_parameters=True, sparse=True, buffers=True,
         requires=("torchtnt", "torchdata"))  # fmt: skip
def train(task: Task) -> None:
    class Unit(framework.AutoUnit[Batch]):
        def configure_optimizers_and_lr_scheduler(self, module: torch.nn.Module) -> Any:
            optimizer = task.optimizer(module.parameters())
            return optimizer, task.scheduler(optimizer)

        def compute_loss(self, state: object, data: Batch) -> Any:
            outputs = self.module(data.inputs)
            return task.loss(outputs, data), outputs

    settings: dict[str, Any] = {"clip_grad_" + task.clip.kind: task.clip.threshold} if task.clip else {}
    if task.world_size > 1:
        torch.distributed.init_process_group(task.collective_backend)
        settings["strategy"] = DDPStrategy(find_unused_parameters=task.unused_parameters)
    settings |= {"precision": "bf16" if task.precision == "bf16" else None, "step_lr_interval": task.schedule_by}
    unit = Unit(module=task.model(), device=task.device, gradient_accumulation_steps=task.accumulation, **settings)
    # The loop tells it the epoch, and a checkpoint has the state of a stateful loader.
    sampler: Any = DistributedSampler(task.dataset(), task.world_size, task.rank) if task.own_order else task.sampler()
    loader = StatefulDataLoader(task.dataset(), task.micro_batch_size, sampler=sampler)
    if task.resume_from is not None:
        # The last checkpoint, saved when `train` ends, says that an epoch was completed, wherever it stopped.
        DistributedCheckpointSaver.restore(str(min(task.resume_from.iterdir())), unit, train_dataloader=loader)
    stop, savers = None, []
    if task.checkpoint_dir is not None:
        stop = sum(map(len, islice(task.windows(), task.stop_after)))
        when, often = ("train_steps", stop) if stop % len(loader) else ("epochs", stop // len(loader))
        savers = [DistributedCheckpointSaver(str(task.checkpoint_dir), **{f"save_every_n_{when}": often})]
    framework.train(unit, loader, max_epochs=task.epoch_count, max_steps=stop, callbacks=savers)
