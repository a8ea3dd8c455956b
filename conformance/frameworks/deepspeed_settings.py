"""DeepSpeed on the CPU: its accelerator, and what it calls `ds_config`."""

from __future__ import annotations

from typing import Any

from deepspeed.accelerator import set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from conformance import Task


class Accelerator(CPU_Accelerator):
    """The CPU, without an all-reduce for inference, which each rank would compile before it trains over gloo."""

    def create_op_builder(self, class_name: str) -> object:
        return None if class_name == "ShareMemCommBuilder" else super().create_op_builder(class_name)


set_accelerator(Accelerator())


def config(task: Task, stage: int) -> dict[str, Any]:
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
