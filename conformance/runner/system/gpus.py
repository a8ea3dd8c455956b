"""Which GPUs there are, found out without starting CUDA here: a process that has started it cannot be forked from."""

from __future__ import annotations

from typing import Any

import torch

from conformance.runner.system.child import answer_of_child


def gpus() -> dict[str, Any]:
    """{"devices": how many CUDA devices ranks can use, "reason": why there are none, or None}."""
    if torch.version.cuda is None:
        return {"devices": 0, "reason": f"torch {torch.__version__} is built without CUDA"}
    # Without NVML, as on a machine without a driver, torch asks the CUDA runtime, and that starts CUDA.
    count = answer_of_child(torch.cuda.device_count)
    if count is None:
        return {"devices": 0, "reason": "torch fails when it is asked how many CUDA devices there are"}
    return {"devices": count, "reason": None if count else "no NVIDIA GPU or driver was found"}
