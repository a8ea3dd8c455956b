"""DeepSpeed's accelerator on the CPU."""

from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.zero import muon, stage3, stage_1_and_2  # noqa: F401  # by `initialize`: once for all ranks


class Accelerator(CPU_Accelerator):
    """The CPU, without an all-reduce for inference, which each rank would compile before it trains over gloo."""

    def create_op_builder(self, class_name: str) -> object:
        return None if class_name == "ShareMemCommBuilder" else super().create_op_builder(class_name)
