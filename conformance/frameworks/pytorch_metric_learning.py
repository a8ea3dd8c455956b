"""pytorch-metric-learning's `MetricLossOnly`, with its hooks for checkpoints. It has no accumulation."""

import os
from typing import Any

os.environ["TQDM_DISABLE"] = "1"

import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils.logging_presets import HookContainer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DistributedSampler

from conformance import Batch, Task, trainer


# Its loss gets the embeddings and labels of a batch, but no weights.
@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32"), layouts=("batched",), own_order=True,
         schedules=("step", "epoch"), resume=True, unused_parameters=True, sparse=True, buffers=True,
         requires=("pytorch_metric_learning",))  # fmt: skip
def train(task: Task) -> None:
    trunk: torch.nn.Module = task.model()
    if task.world_size > 1:
        torch.distributed.init_process_group(task.collective_backend)
        trunk = DistributedDataParallel(trunk, find_unused_parameters=task.unused_parameters)
    optimizer = task.optimizer(trunk.parameters())
    shuffled: Any = {"num_replicas": task.world_size, "rank": task.rank}
    sampler = DistributedSampler(task.dataset(), **shuffled) if task.own_order else task.sampler()
    hooks, unit = HookContainer(None), "iteration" if task.schedule_by == "step" else "epoch"

    def end_epoch(trainer: MetricLossOnly) -> None:
        sampler.set_epoch(trainer.epoch)
        if task.checkpoint_dir and task.rank == 0:
            hooks.save_models(trainer, str(task.checkpoint_dir), trainer.epoch)

    def data_and_labels(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return batch.inputs, batch.targets[:, None]  # It rounds labels of two dimensions to integers.

    def loss(embeddings: torch.Tensor, labels: torch.Tensor, _: object) -> torch.Tensor:
        return mse_loss(embeddings, labels[:, 0].to(embeddings))

    metric_loss = torch.nn.Module()
    metric_loss.forward = loss
    learner = MetricLossOnly(
        {"trunk": trunk}, {"trunk_optimizer": optimizer}, task.micro_batch_size, {"metric_loss": metric_loss},
        task.dataset(), data_device=task.device, sampler=BatchSampler(sampler, task.micro_batch_size, False),
        lr_schedulers={f"trunk_scheduler_by_{unit}": task.scheduler(optimizer)}, dataloader_num_workers=0,
        gradient_clippers={"trunk_grad_clipper": lambda: task.clip_(trunk.parameters())},
        data_and_label_getter=data_and_labels, end_of_epoch_hook=end_epoch)  # fmt: skip
    begin = hooks.load_latest_saved_models(learner, str(task.resume_from), task.device) if task.resume_from else 1
    sampler.set_epoch(begin - 1)
    learner.train(begin, task.epochs_until_stop())
    if task.world_size > 1:
        torch.distributed.destroy_process_group()
