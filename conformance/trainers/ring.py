"""A ring of ranks that sum their gradients in two phases, reduce-scatter and all-gather.

The gradient is cut into as many segments as there are ranks. Every rank talks only to its two neighbours: in each step
it sends one segment to the next rank and receives another from the one before. After N - 1 steps of reduce-scatter each
rank has one segment of the sum, after N - 1 steps of all-gather it has all of them. For a gradient of G bytes each rank
sends 2 (N - 1) / N * G, which hardly grows with the number of ranks (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", 2009). This is what Horovod and gloo do inside an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from conformance import Task, trainer


@trainer(
    backends=("ring",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
)
def train(task: Task) -> None:
    fit(task, all_reduce)


def fit(task: Task, all_reduce: Callable[[torch.Tensor], None]) -> None:
    dist.init_process_group(task.collective_backend)
    model = task.model()
    # All ranks start with rank 0's weights.
    for tensor in model.state_dict().values():
        hand_round(tensor)
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    scaler = task.grad_scaler()

    for window in task.windows():
        # Once per window: gradients accumulate within it.
        optimizer.zero_grad()
        samples = sum(len(batch.inputs) for batch in window)
        weight = torch.stack([batch.weights.sum() for batch in window]).sum()
        if task.loss_name == "weighted":
            # Over the whole global batch, on all ranks: a mean of the ranks' weighted means would be wrong.
            all_reduce(weight.view(1))

        for batch in window:
            # Autocast covers forward and loss; the backward runs in the types that the forward ran in.
            with task.autocast():
                outputs = model(batch.inputs)
                if task.loss_name == "weighted":
                    # The average below divides by the number of ranks, which the total weight already covers.
                    loss = task.loss(outputs, batch, reduction="sum") / (weight / task.world_size)
                else:
                    # Division by len(window), if all its micro-batches have the same size.
                    loss = task.loss(outputs, batch) / (samples / len(batch.inputs))
            scaler.scale(loss).backward()

        # Once per window, after its last backward.
        average_gradients(model, all_reduce)

        # All ranks have bit-identical gradients, so they find the same overflows and the same norm. The clip's
        # threshold does not include the loss scale, so unscale first, and once.
        scaler.unscale_(optimizer)
        task.clip_(model.parameters())

        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped, on all ranks, if a gradient overflowed on any
        scaler.update()
        # A skipped step lowers the scale. The schedule counts only the steps that were taken.
        if scaler.get_scale() >= scale:
            scheduler.step()

    dist.destroy_process_group()


def average_gradients(model: torch.nn.Module, all_reduce: Callable[[torch.Tensor], None]) -> None:
    """Averages all gradients as one vector, cut into segments regardless of the parameters."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    vector = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(vector)
    vector /= dist.get_world_size()
    parts = vector.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def all_reduce(vector: torch.Tensor, segments: int | None = None) -> None:
    """Replaces `vector`, of shape (n,), by its sum over the ranks.

    It is cut into `segments`, by default as many as there are ranks, with sizes that differ by at most one; some may be
    empty. They travel round the ring N at a time, for N ranks.
    """
    ranks = dist.get_world_size()
    pieces = vector.tensor_split(segments or ranks)
    for first in range(0, len(pieces), ranks):
        together = list(pieces[first : first + ranks])
        together += [vector[:0]] * (ranks - len(together))
        reduce_scatter(together)
        all_gather(together)


def reduce_scatter(segments: Sequence[torch.Tensor]) -> None:
    """Phase 1, for as many segments as ranks: afterwards rank r has the sum of segment r over all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks - 1):
        outgoing = segments[(rank - step - 1) % ranks]
        summed = segments[(rank - step - 2) % ranks]
        incoming = torch.empty_like(summed)
        exchange(outgoing, incoming)
        summed += incoming


def all_gather(segments: Sequence[torch.Tensor]) -> None:
    """Phase 2: rank r has segment r; afterwards every rank has the same segments."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks - 1):
        exchange(segments[(rank - step) % ranks], segments[(rank - step - 1) % ranks])


def exchange(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """One step of the ring: sends to the next rank, and receives from the one before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # A plain send waits for its receiver: if all ranks sent first, none would ever receive.
    sending = dist.isend(outgoing, (rank + 1) % ranks)
    dist.recv(incoming, (rank - 1) % ranks)
    if sending is not None:
        sending.wait()


def hand_round(tensor: torch.Tensor) -> None:
    """Sends rank 0's `tensor` to all others, from neighbour to neighbour."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if rank < ranks - 1:
        dist.send(tensor, rank + 1)
