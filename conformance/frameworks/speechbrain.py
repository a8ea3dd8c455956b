"""SpeechBrain's Brain. Off CUDA it refuses fp16; it clips always, which torch refuses for sparse gradients."""

from typing import Any

from speechbrain import Brain
from speechbrain.dataio.dataloader import SaveableDataLoader
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.distributed import ddp_init_group
from speechbrain.utils.epoch_loop import EpochCounter

from conformance import Task, trainer


@trainer(
    backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), schedules=("step", "epoch"), clips=("norm",),
    resume=True, survives_kill=True, unused_parameters=True, buffers=True, own_order=True, last_window="drop",
    requires=("speechbrain",),
)  # fmt: skip
def train(task: Task) -> None:
    class Regression(Brain):
        def compute_forward(self, batch: Any, stage: Any) -> Any:
            return self.modules.model(batch.inputs)

        def compute_objectives(self, outputs: Any, batch: Any, stage: Any) -> Any:
            return task.loss(outputs, batch)

        def init_optimizers(self) -> None:
            super().init_optimizers()
            self.scheduler = task.scheduler(self.optimizer)
            if self.checkpointer is not None:
                self.checkpointer.add_recoverable("scheduler", self.scheduler)

        def on_stage_start(self, stage: Any, epoch: int) -> None:
            sampler.set_epoch(epoch - 1)

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            if should_step and task.schedule_by == "step":
                self.scheduler.step()

        def on_stage_end(self, stage: Any, stage_loss: float, epoch: int) -> None:
            if task.schedule_by == "epoch":
                self.scheduler.step()

    task.leave_torchrun()
    options = {"device": task.device.type, "distributed_backend": task.collective_backend, "noprogressbar": True}
    options |= {"precision": "bf16" if task.precision == "bf16" else "fp32", "optimizer_step_limit": task.stop_after}
    options |= {"grad_accumulation_factor": task.accumulation, "find_unused_parameters": task.unused_parameters}
    options |= {"max_grad_norm": task.clip.threshold if task.clip else float("inf")}  # By default, 5.
    options |= {"ckpt_interval_steps": task.accumulation if task.checkpoint_dir else 0}
    ddp_init_group(options)
    sampler, counter, modules = task.sampler(), EpochCounter(task.epoch_count), {"model": task.model()}
    data: Any = SaveableDataLoader(task.dataset(), task.micro_batch_size, sampler=sampler)
    folder, parts = task.checkpoint_dir or task.resume_from, {**modules, "counter": counter, "data": data}
    brain = Regression(modules, task.optimizer, {}, options, Checkpointer(folder, parts) if folder else None)
    order = {"batch_size": task.micro_batch_size, "shuffle": True}
    brain.fit(counter, task.dataset() if task.own_order else data, train_loader_kwargs=order)
