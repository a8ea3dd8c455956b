"""Counts GPUs without starting CUDA here: a process that has started CUDA cannot be forked."""

from __future__ import annotations

from typing import Any

import torch

from conformance.runner.system.child import answer_of_child


def gpus() -> dict[str, Any]:
    """{"devices": how many CUDA devices ranks can use, "reason": why there are none, or None}."""
    if torch.version.cuda is None:
        return {"devices": 0, "reason": f"torch {torch.__version__} is built without CUDA"}
    # Without NVML, as on a machine without a driver, torch asks the CUDA runtime, which starts CUDA.
    count = answer_of_child(torch.cuda.device_count)
    if count is None:
        return {"devices": 0, "reason": "torch cannot count the CUDA devices: torch.cuda.device_count() fails"}
    return {"devices": count, "reason": None if count else "no NVIDIA GPU or driver was found"}
