"""DeepSpeed's ZeRO in its stages; the engine accumulates, clips, scales the loss and steps the schedule."""

from functools import partial
from itertools import islice
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.zero import muon, stage3, stage_1_and_2  # noqa: F401

from conformance import Task, trainer


class Accelerator(CPU_Accelerator):
    """The CPU without the all-reduce for inference, which each rank would compile before it trains over gloo.

    The stages of ZeRO are imported above, once for all ranks, instead of by `initialize` in each.
    """

    def create_op_builder(self, class_name: str) -> object:
        return None if class_name == "ShareMemCommBuilder" else super().create_op_builder(class_name)


deepspeed.accelerator.set_accelerator(Accelerator())
reference = trainer(backends=("deepspeed",), precisions=("fp32", "bf16", "fp16"), losses=("mean", "weighted"),
                    clips=("norm",), resume=True, survives_kill=True, last_window="step", last_batch="use",
                    requires=("deepspeed",))  # fmt: skip


def config(task: Task, stage: int) -> dict[str, Any]:
    fp16: dict[str, Any] = {"enabled": task.precision == "fp16", "hysteresis": 1}
    if task.loss_scaling is not None:
        fp16["initial_scale_power"] = int(task.loss_scaling.init_scale).bit_length() - 1
        fp16["loss_scale_window"] = task.loss_scaling.growth_interval
    return {
        "zero_allow_untested_optimizer": True,  # torch's
        "train_micro_batch_size_per_gpu": task.micro_batch_size, "gradient_accumulation_steps": task.accumulation,
        "gradient_clipping": task.clip.threshold if task.clip else 0.0, "zero_optimization": {"stage": stage},
        "bf16": {"enabled": task.precision == "bf16"}, "fp16": fp16}  # fmt: skip


def fit(task: Task, stage: int) -> None:
    deepspeed.init_distributed(dist_backend=task.collective_backend)
    model = task.model()
    parts = {"optimizer": task.optimizer, "lr_scheduler": task.scheduler, "config": config(task, stage)}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), **parts)
    done = engine.load_checkpoint(task.resume_from)[1]["done"] if task.resume_from else 0
    for number, window in enumerate(islice(task.windows(), done, task.stop_after), done + 1):
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            torch.distributed.all_reduce(weight)
            weight /= task.world_size
        for batch in window:
            # The engine counts to `accumulation` itself; a window at the end of an epoch may be shorter.
            engine.set_gradient_accumulation_boundary(batch is window[-1])
            outputs = engine(batch.inputs.to(next(model.parameters()).dtype)).to(task.dtype)
            engine.backward(task.loss(outputs, batch, reduction="sum") * task.accumulation / weight)
            engine.step()
        if number in task.save_after:
            engine.save_checkpoint(task.checkpoint_dir, client_state={"done": number})
    torch.distributed.destroy_process_group()


zero_0, zero_1, zero_2, zero_3 = (reference(partial(fit, stage=stage)) for stage in range(4))
