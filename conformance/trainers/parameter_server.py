"""A parameter server: workers send it their gradients; it takes the optimizer step and sends the weights back.

Rank 0 is the server. It also works on its own shard, as servers that share a node with a worker do: N ranks
are N workers and read the N shards of a global batch. The other N - 1 have no optimizer: only the server steps, clips,
and updates schedule and loss scale, so workers cannot disagree about them. All gradients travel to that one node, N - 1
of them over the wire, and as many copies of the weights back: its traffic grows with the number of workers, unlike that
of a ring (Li et al., "Scaling distributed machine learning with
the parameter server", 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from conformance import Batch, Task, trainer

SERVER = 0


@trainer(
    backends=("parameter-server",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    if task.rank == SERVER:
        serve(task)
    else:
        work(task)
    dist.destroy_process_group()


def serve(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()
    workers = [rank for rank in range(task.world_size) if rank != SERVER]

    # All workers start with the server's weights.
    send_weights(task, model, scaler.get_scale(), workers)
    for window in task.windows():
        weight = weight_of(window)
        if task.loss_name == "weighted":
            for worker in workers:
                weight += receive(torch.empty_like(weight), worker)
            for worker in workers:
                dist.send(weight, worker)
        gradient = gradient_of(task, model, window, weight, scaler.scale)

        # The step has to wait for every worker. In the order of ranks: a repeated run is bit-identical.
        for worker in workers:
            gradient += receive(torch.empty_like(gradient), worker)
        gradient /= task.world_size
        set_gradient(model, gradient)

        # The clip's threshold does not include the loss scale, so unscale first, and once.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped if the gradient of any worker overflowed
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

        # Also after a skipped step: the weights stay the same, but the loss scale changes.
        send_weights(task, model, scaler.get_scale(), workers)


def work(task: Task) -> None:
    model = task.model()
    scale = receive_weights(task, model)
    for window in task.windows():
        weight = weight_of(window)
        if task.loss_name == "weighted":
            dist.send(weight, SERVER)
            receive(weight, SERVER)
        dist.send(gradient_of(task, model, window, weight, partial(torch.mul, scale)), SERVER)
        scale = receive_weights(task, model)


def gradient_of(
    task: Task,
    model: torch.nn.Module,
    window: list[Batch],
    weight: torch.Tensor,
    scaled: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """This rank's gradient of a window, of all parameters in one vector; `weight` is that of the global batch."""
    # Once per window: gradients accumulate within it.
    model.zero_grad()
    samples = sum(len(batch.inputs) for batch in window)
    for batch in window:
        # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
        with task.autocast():
            outputs = model(batch.inputs)
            if task.loss_name == "weighted":
                # The server divides by the number of ranks, which the total weight already covers.
                loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
            else:
                # Division by len(window), if all its micro-batches have the same size.
                loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
        scaled(loss).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def set_gradient(model: torch.nn.Module, vector: torch.Tensor) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    parts = vector.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def weight_of(window: list[Batch]) -> torch.Tensor:
    return torch.stack([batch.weights.sum() for batch in window]).sum()


def send_weights(task: Task, model: torch.nn.Module, scale: float, workers: list[int]) -> None:
    """Sends the weights, and the loss scale by which workers multiply their losses."""
    with torch.no_grad():
        weights = parameters_to_vector(model.parameters())
    for worker in workers:
        dist.send(weights, worker)
        if task.loss_scale is not None:
            dist.send(torch.tensor(scale, device=task.device), worker)


def receive_weights(task: Task, model: torch.nn.Module) -> torch.Tensor:
    """Returns the loss scale, which is 1 if losses are not scaled."""
    with torch.no_grad():
        weights = receive(parameters_to_vector(model.parameters()), SERVER)
        vector_to_parameters(weights, model.parameters())
    scale = torch.ones((), device=task.device)
    return scale if task.loss_scale is None else receive(scale, SERVER)


def receive(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    dist.recv(tensor, rank)
    return tensor
