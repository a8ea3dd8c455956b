"""Which GPUs there are, found out without starting CUDA: a process that has started it cannot be forked from."""

from __future__ import annotations

import os
from typing import Any

import torch


def gpus() -> dict[str, Any]:
    """{"devices": how many CUDA devices ranks can use, "reason": why there are none, or None}."""
    if torch.version.cuda is None:
        return {"devices": 0, "reason": f"torch {torch.__version__} is built without CUDA"}
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    count = torch.cuda.device_count()
    return {"devices": count, "reason": None if count else "no NVIDIA GPU or driver was found"}
