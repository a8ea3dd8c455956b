"""A ring of ranks in which whole gradients are accumulated, rank after rank: the plain form of the idea.

The running sum goes round once, and the result goes round a second time. That takes as many messages as reduce-scatter
and all-gather (`ring`), but each is a whole gradient, and while one rank sends, all others wait.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance import Task, trainer


@trainer(
    backends=("ring-gather",),
    parameter_groups=(1, 2),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
)
def train(task: Task) -> None:
    dist.init_process_group(task.collective_backend)
    model = task.model()
    # All ranks begin with rank 0's weights.
    for tensor in model.state_dict().values():
        hand_round(tensor)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    for window in task.windows():
        # Once a window: within it gradients add up.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Of the whole global batch, over all ranks: a mean of the ranks' weighted means would be wrong.
            all_reduce(weight.view(1))

        for batch in window:
            # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
            with task.autocast():
                outputs = model(batch.inputs)
                if task.loss_name == "weighted":
                    # The average below divides by the number of ranks, which the total weight already covers.
                    loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                else:
                    # By len(window), when its micro-batches are all of one size.
                    loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            scaler.scale(loss).backward()

        # Once a window, after its last backward.
        average_gradients(model)

        # All ranks have the same gradients, to the bit, so they find the same overflows and the same norm. Clipping
        # compares with a threshold that knows nothing of the loss scale, so unscale first, and once.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

    dist.destroy_process_group()


def average_gradients(model: torch.nn.Module) -> None:
    """In one vector, however many parameters there are."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    vector = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(vector)
    vector /= dist.get_world_size()
    parts = vector.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def all_reduce(vector: torch.Tensor) -> None:
    """Replace `vector` by its sum over the ranks, in 2 (N - 1) steps, in each of which one rank sends all of it.

    Rank 1 begins. Everyone adds its own to what it receives and sends that on, until rank 0 has the sum of all; then
    that is handed round.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank != 1:
        incoming = torch.empty_like(vector)
        dist.recv(incoming, (rank - 1) % ranks)
        vector += incoming
    if rank != 0:
        dist.send(vector, (rank + 1) % ranks)
    hand_round(vector)


def hand_round(tensor: torch.Tensor) -> None:
    """Rank 0's `tensor` to all others, from neighbour to neighbour."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if rank < ranks - 1:
        dist.send(tensor, rank + 1)
