"""FunASR's Trainer, as `funasr.bin.train` calls it. Its autocast needs CUDA, so bf16 and fp16 are not supported."""

from typing import Any

from funasr.train_utils.trainer import Trainer
from torch import distributed, nn
from torch.utils.data import BatchSampler, DataLoader

from conformance import Batch, Task, Unsupported, trainer


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32"), losses=("mean", "weighted"), clips=("norm",),
         resume=True, survives_kill=True, buffers=True, requires=("funasr",))  # fmt: skip
def train(task: Task) -> None:
    if task.loss_name == "weighted" and task.accumulation > 1:
        raise Unsupported("each micro-batch is divided by its own weight")

    class Regression(nn.Module):
        model: nn.Module

        def forward(self, **parts: Any) -> Any:
            batch = Batch(**parts)
            weight = batch.weights.sum().int()  # FunASR's models return it next to a mean.
            return task.loss(self.model(batch.inputs), batch, reduction="sum") / weight.clamp(min=1), {}, weight

    class Batches(list[list[int]]):
        def set_epoch(self, epoch: int) -> None:
            """Does nothing: the batches belong to one epoch."""

    model: Any = Regression()
    model.model = task.model()
    if task.world_size > 1:
        distributed.init_process_group(task.collective_backend)
        model = nn.parallel.DistributedDataParallel(model)
    sampler, optimizer = task.sampler(), task.optimizer(model.parameters())
    samples: Any = task.dataset(dict)  # type: ignore[arg-type]
    parts: Any = {"model": model, "optim": optimizer, "scheduler": task.scheduler(optimizer)}
    loop = Trainer(
        task.local_rank, use_ddp=task.world_size > 1, accum_grad=task.accumulation, device=task.device.type,
        grad_clip=task.clip.threshold if task.clip else 0.0,  # By default, 10.
        save_checkpoint_interval=task.accumulation if task.checkpoint_dir else 5000, resume=bool(task.resume_from),
        output_dir=str(task.checkpoint_dir or task.resume_from or "."))  # fmt: skip
    loop.resume_checkpoint(**parts)
    windows = -(-len(sampler) // task.micro_batch_size) // task.accumulation
    stop = task.stop_after or windows * task.epoch_count
    for epoch in range(loop.start_epoch, -(-stop // windows)):
        sampler.set_epoch(epoch)
        end = stop % windows * task.accumulation if epoch == stop // windows else None
        batches = [*BatchSampler(sampler, task.micro_batch_size, drop_last=False)][loop.start_step : end]
        loader, nothing = (DataLoader(samples, batch_sampler=Batches(one)) for one in (batches, []))
        loop.train_epoch(**parts, dataloader_train=loader, dataloader_val=nothing, epoch=epoch)
        if epoch < stop // windows:
            loop.start_step = loop.step_in_epoch = 0
            parts["scheduler"].step()
            if task.checkpoint_dir:
                loop.save_checkpoint(epoch + 1, **parts)
