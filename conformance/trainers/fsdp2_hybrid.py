"""Hybrid sharding, HSDP: parameters are sharded within a group of ranks, and copied between groups.

A reduce-scatter within each group and an all-reduce between groups average the gradients. The rest is as in `fsdp2`.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from conformance import Task, trainer
from conformance.trainers.fsdp2 import fit


@trainer(
    backends=("fsdp2",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    world_sizes=(4,),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    fit(task, init_device_mesh(task.device.type, (2, task.world_size // 2), mesh_dim_names=("replicate", "shard")))
    dist.destroy_process_group()
