"""The rings' own functions in real ranks, on vectors that the spec gives each of them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance import trainer
from conformance.trainers import ring, ring_gather


def check(task, reduce):
    # The ranks of a pool keep their group.
    if not dist.is_initialized():
        dist.init_process_group(task.collective_backend)
    vectors = torch.tensor(task._spec["vectors"], dtype=torch.float64)
    own = vectors[task.rank].clone()
    reduce(own)
    right = vectors.sum(dim=0)
    if not torch.equal(own, right):
        raise AssertionError(f"rank {task.rank} has {own.tolist()}, not {right.tolist()}")


@trainer(backends=["ring"])
def in_segments(task):
    check(task, lambda vector: ring.all_reduce(vector, task._spec["segments"]))


@trainer(backends=["ring"])
def without_all_gather(task):
    check(task, lambda vector: ring.reduce_scatter(vector.tensor_split(task.world_size)))


@trainer(backends=["ring-gather"])
def whole(task):
    check(task, ring_gather.all_reduce)
