"""DeepSpeed on the CPU: ZeRO in its stages, with accumulation, clipping, loss scale and schedule in the engine.

The engine divides each loss by the micro-batches of a window, and averages gradients over the ranks. With ZeRO, each
rank keeps the optimizer's state of a part of all parameters (stage 1), also their gradients (2), also the parameters
themselves (3). In bf16 and fp16, the model has 16 bits, and the optimizer steps masters in fp32.
"""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

# What `initialize` imports: once for all ranks.
from deepspeed.runtime.zero import stage3, stage_1_and_2  # noqa: F401
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401

from conformance import Task, trainer


class Accelerator(CPU_Accelerator):  # type: ignore[misc]
    """The CPU, without an all-reduce for inference, which each rank would compile before it trains over gloo."""

    def create_op_builder(self, class_name: str) -> object:
        return None if class_name == "ShareMemCommBuilder" else super().create_op_builder(class_name)


set_accelerator(Accelerator())

reference = trainer(
    backends=("deepspeed",),
    precisions=("fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    clips=("norm",),
    requires=("deepspeed",),
    last_window="step",
    last_batch="use",
)


@reference
def zero_0(task: Task) -> None:
    fit(task, stage=0)


@reference
def zero_1(task: Task) -> None:
    fit(task, stage=1)


@reference
def zero_2(task: Task) -> None:
    fit(task, stage=2)


@reference
def zero_3(task: Task) -> None:
    fit(task, stage=3)


def fit(task: Task, stage: int) -> None:
    """Train as documented: `initialize`, then `forward`, `backward` and `step` of the engine for each micro-batch."""
    deepspeed.init_distributed(dist_backend=task.collective_backend)
    model = task.model()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        optimizer=task.optimizer,
        lr_scheduler=task.scheduler,
        config=config(task, stage),
    )
    for window in task.windows():
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Of the whole global batch, over all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)
            weight /= task.world_size
        for batch in window:
            # The engine counts to `accumulation` by itself; a window at the end of an epoch may be shorter.
            engine.set_gradient_accumulation_boundary(batch is window[-1])
            inputs = batch.inputs.to(next(model.parameters()).dtype)
            loss = task.loss(engine(inputs).to(task.dtype), batch, reduction="sum")
            engine.backward(loss * task.accumulation / weight)
            engine.step()
    dist.destroy_process_group()


def config(task: Task, stage: int) -> dict[str, object]:
    """What DeepSpeed calls `ds_config`."""
    scaling = task.loss_scaling
    return {
        "train_micro_batch_size_per_gpu": task.micro_batch_size,
        "gradient_accumulation_steps": task.accumulation,
        "gradient_clipping": task.clip.threshold if task.clip else 0.0,
        "zero_optimization": {"stage": stage},
        # For optimizers of torch's.
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": task.precision == "bf16"},
        "fp16": {
            "enabled": task.precision == "fp16",
            "initial_scale_power": int(scaling.init_scale).bit_length() - 1 if scaling else 0,
            "loss_scale_window": scaling.growth_interval if scaling else 1000,
            "hysteresis": 1,
        },
    }
