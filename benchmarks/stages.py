"""Trainers that do only the first part of a case: differences show the cost of each part."""

from __future__ import annotations

import torch.distributed as dist

from conformance import Task, trainer


@trainer(backends=("single", "ddp"), precisions=("fp16",))
def nothing(task: Task) -> None:
    """Ranks are forked, and with more than one a rendezvous is available; no rank uses it."""


@trainer(backends=("ddp",), precisions=("fp16",))
def process_group(task: Task) -> None:
    """The ranks meet."""
    dist.init_process_group(task.collective_backend)
    dist.destroy_process_group()
