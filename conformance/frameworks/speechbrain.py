"""SpeechBrain's Brain. It rejects fp16 except on CUDA, and always clips, which torch rejects for sparse gradients."""

from typing import Any

import speechbrain as sb

from conformance import Task, trainer


@trainer(backends=("single", "ddp"), precisions=("fp64", "fp32", "bf16"), schedules=("step", "epoch"), clips=("norm",),
         resume=True, survives_kill=True, unused_parameters=True, buffers=True, own_order=True, last_window="drop",
         requires=("speechbrain",))  # fmt: skip
def train(task: Task) -> None:
    class Regression(sb.Brain):
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
    sb.utils.distributed.ddp_init_group(options)
    counter = sb.utils.epoch_loop.EpochCounter(task.epoch_count)
    sampler, modules = task.sampler(), {"model": task.model()}
    samples: Any = sb.dataio.dataloader.SaveableDataLoader(task.dataset(), task.micro_batch_size, sampler=sampler)
    place, parts = task.checkpoint_dir or task.resume_from, {**modules, "counter": counter, "data": samples}
    brain = Regression(modules, task.optimizer, {}, options, place and sb.utils.checkpoints.Checkpointer(place, parts))
    order = {"batch_size": task.micro_batch_size, "shuffle": True}
    brain.fit(counter, task.dataset() if task.own_order else samples, train_loader_kwargs=order)
