"""A ring of ranks that accumulates whole gradients, rank after rank: the simple form of the idea.

The running sum goes round once, and the result goes round a second time. That takes as many messages as reduce-scatter
and all-gather (`ring`), but each is a whole gradient, and while one rank sends, all others wait. The rest is as there.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from conformance import Task, trainer
from conformance.trainers.ring import fit, hand_round


@trainer(
    backends=("ring-gather",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean", "weighted"),
    last_window="step",
    last_batch="use",
    schedule_on_skip="wait",
)
def train(task: Task) -> None:
    fit(task, all_reduce)


def all_reduce(vector: torch.Tensor) -> None:
    """Replaces `vector` by its sum over the ranks, in 2 (N - 1) steps; in each, one rank sends the whole vector.

    Rank 1 starts. Every rank adds its own vector to the one it receives and sends the sum on, until rank 0 has the sum
    of all; then that is handed round.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank != 1:
        incoming = torch.empty_like(vector)
        dist.recv(incoming, (rank - 1) % ranks)
        vector += incoming
    if rank != 0:
        dist.send(vector, (rank + 1) % ranks)
    hand_round(vector)
