"""Hugging Face Accelerate, as in its guides. On a CPU "fp16" trains in float32, so it is not supported."""

from contextlib import nullcontext
from itertools import islice

from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from torch import Generator
from torch.utils.data import DataLoader

from conformance import Task, trainer


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), losses=("mean", "weighted"), own_order=True,
         resume=True, random_state=True, elastic=True, unused_parameters=True, sparse=True, buffers=True,
         last_window="step", requires=("accelerate",))  # fmt: skip
def train(task: Task) -> None:
    task.leave_torchrun()
    steps, weighted = task.accumulation, task.loss_name == "weighted"
    unused = DistributedDataParallelKwargs(find_unused_parameters=task.unused_parameters)
    # By default a schedule advances by the number of processes, and a resumed, shuffled epoch has another order.
    accelerator = Accelerator(
        cpu=task.device.type == "cpu", mixed_precision="bf16" if task.precision == "bf16" else "no",
        gradient_accumulation_steps=steps, step_scheduler_with_optimizer=False, kwargs_handlers=[unused],
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))  # fmt: skip
    model, order = task.model(), None if task.own_order else task.global_sampler()
    # Without it, a loader draws from the generator whose state was restored for the model.
    data = DataLoader(task.dataset(), task.micro_batch_size, task.own_order, order, generator=Generator())
    optimizer = task.optimizer(model.parameters())
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, data, task.scheduler(optimizer))
    done = windows = 0
    if task.resume_from is not None:
        accelerator.load_state(str(folder := next(task.resume_from.iterdir())))
        done = int(folder.name.removeprefix("step_"))
    for epoch in range(done // len(loader), task.epoch_count):
        loader.set_epoch(epoch)
        batches = iter(accelerator.skip_first_batches(loader, skipped) if (skipped := done % len(loader)) else loader)
        # If samples have weights, the guide reads the batches of a window before it trains on them.
        while windows != task.stop_after and (group := list(islice(batches, steps if weighted else 1))):
            total = accelerator.gather(sum(batch.weights.sum() for batch in group)).sum() if weighted else None
            for batch in group:
                held = nullcontext() if batch is group[-1] else accelerator.no_sync(model)
                with held if weighted else accelerator.accumulate(model):
                    loss = task.loss(model(batch.inputs), batch, reduction="sum" if weighted else "mean")
                    accelerator.backward(loss * steps * accelerator.num_processes / total if weighted else loss)
            if accelerator.sync_gradients:
                if task.clip is not None:
                    getattr(accelerator, f"clip_grad_{task.clip.kind}_")(model.parameters(), task.clip.threshold)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            done, windows = done + len(group), windows + accelerator.sync_gradients
    if task.checkpoint_dir is not None:
        accelerator.save_state(str(task.checkpoint_dir / f"step_{done}"))
    accelerator.end_training()
