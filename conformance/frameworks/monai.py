"""MONAI's `SupervisedTrainer`, with its handlers for schedule and checkpoints. Its mixed precision needs CUDA."""

from typing import Any

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.handlers import CheckpointLoader, CheckpointSaver, LrScheduleHandler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from conformance import Batch, Task, trainer


# It takes the mean of a loss, and divides it by the accumulation, regardless of weights.
@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32"), schedules=("step", "epoch"), own_order=True,
         resume=True, unused_parameters=True, sparse=True, buffers=True, requires=("monai", "ignite"))  # fmt: skip
def train(task: Task) -> None:
    network: torch.nn.Module = task.model()
    if task.world_size > 1:
        torch.distributed.init_process_group(task.collective_backend)
        network = DistributedDataParallel(network, find_unused_parameters=task.unused_parameters)
    optimizer = task.optimizer(network.parameters())
    scheduler = task.scheduler(optimizer)
    ranks: Any = {"num_replicas": task.world_size, "rank": task.rank}
    sampler = DistributedSampler(task.dataset(), **ranks) if task.own_order else task.sampler()
    loader = DataLoader(task.dataset(), task.micro_batch_size, sampler=sampler)

    def ends_window(engine: SupervisedTrainer, number: int) -> bool:
        in_epoch = (number - 1) % len(loader) + 1
        return in_epoch % task.accumulation == 0 or in_epoch == len(loader)

    def clip(engine: SupervisedTrainer) -> None:
        if ends_window(engine, engine.state.iteration):
            task.clip_(network.parameters())

    def prepared(batch: Batch, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        return batch.inputs, batch.targets

    engine = SupervisedTrainer(
        task.device, task.epochs_until_stop(), loader, network, optimizer, torch.nn.MSELoss(), prepare_batch=prepared,
        accumulation_steps=task.accumulation, optim_set_to_none=True, decollate=False)  # fmt: skip
    # MONAI counts epochs from 1.
    engine.add_event_handler(Events.EPOCH_STARTED, lambda: sampler.set_epoch(engine.state.epoch - 1))
    engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, clip)
    # Attached, it would advance the schedule by the epoch or the micro-batch.
    due = Events.EPOCH_COMPLETED if task.schedule_by == "epoch" else Events.ITERATION_COMPLETED(ends_window)
    engine.add_event_handler(due, LrScheduleHandler(scheduler, print_lr=False))
    parts = {"trainer": engine, "net": network, "opt": optimizer, "lr": scheduler}
    if task.checkpoint_dir is not None:
        CheckpointSaver(str(task.checkpoint_dir), parts, save_final=True).attach(engine)
    if task.resume_from is not None:
        CheckpointLoader(str(next(task.resume_from.iterdir())), parts).attach(engine)
    engine.run()
    if task.world_size > 1:
        torch.distributed.destroy_process_group()
