"""FunASR's Trainer, as `funasr.bin.train` calls it. Its autocast is CUDA's alone, so bf16 and fp16 are not declared."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from funasr.train_utils.device_funcs import force_gatherable
from funasr.train_utils.trainer import Trainer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader

from conformance import Batch, Task, Unsupported, trainer


@trainer(
    backends=("single", "ddp"), precisions=("fp64", "fp32"), losses=("mean", "weighted"), clips=("norm",),
    buffers=True, requires=("funasr",),
)  # fmt: skip
def train(task: Task) -> None:
    if task.loss_name == "weighted" and task.accumulation > 1:
        raise Unsupported("each micro-batch is divided by its own weight")

    class Regression(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def forward(self, **parts: torch.Tensor) -> Any:
            batch = Batch(**parts)
            # A mean, and its weight as FunASR's models return it, an integer.
            weight = int(batch.weights.sum())
            loss = task.loss(self.model(batch.inputs), batch, reduction="sum") / max(weight, 1)
            return force_gatherable((loss, {}, weight), loss.device)

    class Batches(BatchSampler):
        def set_epoch(self, epoch: int) -> None:
            sampler.set_epoch(epoch)

    model: torch.nn.Module = Regression()
    if task.world_size > 1:
        dist.init_process_group(task.collective_backend)
        model = DistributedDataParallel(model)
    optimizer, sampler = task.optimizer(model.parameters()), task.sampler()
    scheduler = task.scheduler(optimizer)
    samples: Any = task.dataset(dict)  # type: ignore[arg-type]
    loader = DataLoader(samples, batch_sampler=Batches(sampler, task.micro_batch_size, drop_last=False))
    # By default it clips at 10.
    settings = {"accum_grad": task.accumulation, "grad_clip": task.clip.threshold if task.clip else 0.0}
    with tempfile.TemporaryDirectory() as folder:
        place = {"output_dir": folder, "device": task.device.type}
        loop = Trainer(task.local_rank, use_ddp=task.world_size > 1, **place, **settings)
        for epoch in range(len(list(task.epochs()))):
            loop.train_epoch(model, optimizer, scheduler, None, loader, epoch=epoch)
