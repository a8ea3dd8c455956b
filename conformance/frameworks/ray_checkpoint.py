"""Checkpoints of a Ray Train worker, as the guide "Saving and Loading Checkpoints" has them."""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import ray.train
import torch


def restore(parts: Sequence[Any]) -> int:
    """Load the states of `parts`; the result is how many windows were trained before."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        done, states = torch.load(f"{folder}/checkpoint.pt")
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    return int(done)


def save(parts: Sequence[Any], done: int) -> None:
    """Called by every worker; the first one's states are kept."""
    with TemporaryDirectory() as folder:
        torch.save((done, [part.state_dict() for part in parts]), f"{folder}/checkpoint.pt")
        is_first = ray.train.get_context().get_world_rank() == 0
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder) if is_first else None)
