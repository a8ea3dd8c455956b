"""PyTorch-Ignite: `create_supervised_trainer` over `idist.auto_*`, with its schedule handler and checkpoints."""

from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, LRScheduler

from conformance import Task, trainer


# That trainer never clips, casts only on CUDA, and divides a loss by the accumulation, regardless of weights.
@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32"), clips=(), schedules=("step", "epoch"), own_order=True,
         resume=True, survives_kill=True, random_state=True, unused_parameters=True, sparse=True, buffers=True,
         requires=("ignite",))  # fmt: skip
def train(task: Task) -> None:
    if task.world_size > 1:
        idist.initialize(task.collective_backend)
    model = idist.auto_model(task.model(), find_unused_parameters=task.unused_parameters)
    optimizer = idist.auto_optim(task.optimizer(model.parameters()))
    scheduler = LRScheduler(task.scheduler(optimizer))
    order = {"shuffle": True} if task.own_order else {"sampler": task.sampler()}
    loader: Any = idist.auto_dataloader(task.dataset(), batch_size=task.micro_batch_size * task.world_size, **order)
    # Only a deterministic engine restores its position in the data; it needs the seed of the first run.
    torch.manual_seed(0)
    settings: Any = {"deterministic": True, "gradient_accumulation_steps": task.accumulation}
    engine = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss, task.device, **settings)
    # The last iteration of a window needs its rate. In a resumed epoch, EPOCH_STARTED would fire again.
    first, every = (1, len(loader)) if task.schedule_by == "epoch" else (0, task.accumulation)
    engine.add_event_handler(Events.ITERATION_STARTED(event_filter=lambda _, n: (n - first) % every == 0), scheduler)
    if task.world_size > 1 or not task.own_order:
        engine.add_event_handler(Events.EPOCH_STARTED, lambda: loader.sampler.set_epoch(engine.state.epoch - 1))
    states = {"engine": engine, "model": model, "optimizer": optimizer, "scheduler": scheduler}
    if task.resume_from is not None:
        newest = max(task.resume_from.glob("*.pt"), key=lambda file: int(file.stem.removeprefix("checkpoint_")))
        # Given the path, it rejects the random numbers that its own engine saved there.
        Checkpoint.load_objects(states, torch.load(newest, weights_only=False))
    if task.checkpoint_dir is not None:
        due = Events.ITERATION_COMPLETED(event_filter=lambda _, number: number / task.accumulation in task.save_after)
        engine.add_event_handler(due, Checkpoint(states, DiskSaver(task.checkpoint_dir), n_saved=None))
    if task.stop_after is not None:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=task.stop_after * task.accumulation), engine.terminate)
    engine.run(loader, max_epochs=task.epoch_count)
    idist.finalize()
