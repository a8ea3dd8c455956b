"""Fully sharded data parallelism, FSDP2: between steps each rank stores a part of every parameter.

Forward and backward gather the parameters that they need. Instead of an all-reduce, a reduce-scatter gives each rank
the averaged gradients of its own part, which its optimizer steps. With accumulation it should happen once per window;
until then each rank keeps whole gradients.

Each checkpoint has its own folder, into which all ranks write. `.metadata` comes last: a folder without it is partial.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from conformance import Task, trainer


@trainer(
    backends=("fsdp2",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
    buffers=True,
    resume=True,
    survives_kill=True,
    random_state=True,
    elastic=True,
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    fit(task, init_device_mesh(task.device.type, (task.world_size,)))
    dist.destroy_process_group()


def fit(task: Task, mesh: DeviceMesh) -> None:
    """Shards parameters over the last dimension of `mesh`, and copies them over the one before it if there are two."""
    model = task.model()
    # Each rank keeps a part of its own weights, so the ranks must have the same ones first.
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    shards = mesh.size(mesh.ndim - 1)

    def split(parameter: torch.nn.Parameter) -> Shard:
        """By columns if all ranks get equal parts; else by rows, and some ranks may get none."""
        return Shard(1) if parameter.ndim > 1 and parameter.shape[1] % shards == 0 else Shard(0)

    fully_shard(model, mesh=mesh, mp_policy=policy(task), shard_placement_fn=split)
    assert isinstance(model, FSDPModule)
    # Over the shards, so after sharding.
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    def state(trained: int) -> dict[str, Any]:
        """The shards of this rank, of weights and optimizer state."""
        of_model, of_optimizer = get_state_dict(model, optimizer)
        others = {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict(), "trained": trained}
        return {"model": of_model, "optimizer": of_optimizer, **others}

    trained = 0
    if task.resume_from is not None:
        folder = max(whole.parent for whole in task.resume_from.glob("*/.metadata"))
        # Loads this rank's shards from the files of all ranks that saved parts of them.
        saved = state(trained)
        load(saved, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        scaler.load_state_dict(saved["scaler"])
        trained = saved["trained"]
        # A new rank keeps its own.
        if (random := folder / f"random{task.rank}.pt").exists():
            torch.set_rng_state(torch.load(random, weights_only=True))

    for window in islice(task.windows(), trained, task.stop_after):
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            dist.all_reduce(weight)

        for batch in window:
            # The backward reduces and scatters.
            model.set_requires_gradient_sync(batch is window[-1])
            outputs = model(batch.inputs)
            if task.loss_name == "weighted":
                # FSDP divides by the number of ranks, which the total weight already covers.
                loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
            else:
                # Division by len(window), if all its micro-batches have the same size.
                loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            scaler.scale(loss).backward()

        # Torch knows that the gradients are shards: overflows and the norm are those of all shards, on every rank.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

        trained += 1
        if task.checkpoint_dir is not None and trained in task.save_after:
            folder = task.checkpoint_dir / f"{trained:06}"
            folder.mkdir(exist_ok=True)
            torch.save(torch.get_rng_state(), folder / f"random{task.rank}.pt")
            save(state(trained), checkpoint_id=folder)


def policy(task: Task) -> MixedPrecisionPolicy:
    """Replaces autocast: 16 bits in forward and backward, the task's type in sums over ranks and micro-batches."""
    if task.precision not in ("bf16", "fp16"):
        return MixedPrecisionPolicy()
    compute = torch.bfloat16 if task.precision == "bf16" else torch.float16
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=task.dtype, output_dtype=task.dtype)
