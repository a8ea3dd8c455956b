"""Distributed SGD on Ray actors: `DistributedSGD`, whose driver averages the gradients of all replicas.

Each rank of a case is one replica: its shard is the rank's micro-batches, and each step uses its next accumulation
window. Under fp16 the driver averages gradients of scaled losses. All replicas unscale the same average, so they skip
the same steps and keep the same loss scale. A loss that is weighted over the whole global batch would need the weights
of other shards, which the contract does not provide.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance import Batch, Entry, Job, trainer
from conformance.frameworks.distributed_sgd import DistributedSGD, Gradients, TorchReplica
from conformance.frameworks.ray_cluster import connected, local_cluster


@trainer(
    backends=("ray",),
    precisions=("fp64", "fp32", "bf16", "fp16"),
    layouts=("batched", "accumulated"),
    losses=("mean",),
    requires=("ray",),
    launches_workers=True,
    session=local_cluster,
)
def train(job: Job) -> None:
    fit(job, TaskReplica, DistributedSGD)


def fit(job: Job, replica: type[TaskReplica], algorithm: type[DistributedSGD]) -> None:
    ticket = job.ticket
    # Two replicas share a worker if their number is even.
    devices = 2 if job.world_size % 2 == 0 and job.world_size > 2 else 1

    def model_creator(worker_index: int, device_index: int) -> TaskReplica:
        return replica(ticket, worker_index * devices + device_index)

    with (
        connected(job.session),
        algorithm(model_creator, num_workers=job.world_size // devices, devices_per_worker=devices) as sgd,
    ):
        for _ in range(job.steps):
            print("Current loss", sgd.step())


class TaskReplica(TorchReplica):
    """A replica that is one rank of a case."""

    def __init__(self, ticket: dict[str, Any], rank: int) -> None:
        self._entry = Entry(ticket, rank)
        with self._entry.working() as self.task:
            model = self.task.model()
            optimizer = self.task.optimizer(model.parameters())
            super().__init__(model, optimizer, self._loss, list(self.task.windows()))
            self._scheduler = self.task.scheduler(optimizer)
            self._scaler = self.task.grad_scaler()

    def _loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        with self.task.autocast():
            return self.task.loss(model(batch.inputs), batch)

    def backward(self, window: list[Batch]) -> float:
        """Computes the gradients of a window of micro-batches, the mini-batch of a step; returns its loss."""
        samples = sum(len(batch.inputs) for batch in window)
        total = 0.0
        for batch in window:
            # Division by len(window), if all its micro-batches have the same size.
            loss = self.loss(self.model, batch) / (samples / len(batch.inputs))
            self._scaler.scale(loss).backward()
            total += loss.item()
        return total

    def compute_gradients(self) -> tuple[float, Gradients]:
        with self._entry.working():
            return super().compute_gradients()

    def apply_gradients(self, gradients: Gradients) -> None:
        with self._entry.working():
            self.set_gradients(gradients)
            self._scaler.unscale_(self.optimizer)
            self.task.clip_(self.model.parameters())
            scale = self._scaler.get_scale()
            self._scaler.step(self.optimizer)
            self._scaler.update()
            if self._scaler.get_scale() >= scale:
                self._scheduler.step()

    def close(self) -> None:
        self._entry.finish()
        self._entry.close()
