"""Synchronous data-parallel SGD on Ray actors, for your own models and data.

    sgd = DistributedSGD(model_creator, num_workers=2, devices_per_worker=2)
    for _ in range(100):
        print("Current loss", sgd.step())
    model.load_state_dict(sgd.get_weights())
    sgd.close()

Each worker is a Ray actor that has a replica of the model for each of its devices, and for each replica a fixed shard
of the data. A step has three phases: all workers compute the gradients of their replicas in parallel, the driver
averages them, and all workers apply the average in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import ray
import torch

Gradients: TypeAlias = list[torch.Tensor | None]
"""One gradient for each parameter, of its shape; None for a parameter that the loss does not depend on."""
Weights: TypeAlias = dict[str, torch.Tensor]
"""A `state_dict` on the CPU."""


class Replica(Protocol):
    """The result of a model creator: a model on one device, its shard of the data, and its training step."""

    def compute_gradients(self) -> tuple[float, Gradients]:
        """Returns the loss of the shard's next mini-batch, and its gradients."""

    def apply_gradients(self, gradients: Gradients) -> None:
        """Takes one optimizer step with these gradients, which are the same on every replica."""

    def get_weights(self) -> Weights: ...

    def set_weights(self, weights: Weights) -> None: ...

    def close(self) -> None:
        """Called once, after the last step."""


ModelCreator: TypeAlias = Callable[[int, int], Replica]


class TorchReplica:
    """A replica made from a torch model, an optimizer, a loss and a shard.

    loss: of the model and one mini-batch, averaged over its samples. shard: mini-batches, read repeatedly.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[torch.nn.Module, Any], torch.Tensor],
        shard: Iterable[Any],
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self._batches = _over_and_over(shard)

    def compute_gradients(self) -> tuple[float, Gradients]:
        self.optimizer.zero_grad()
        loss = self.backward(next(self._batches))
        return loss, [None if p.grad is None else p.grad.detach().cpu() for p in self.model.parameters()]

    def backward(self, batch: Any) -> float:
        """Computes the gradients of a mini-batch into the model; returns its loss."""
        loss = self.loss(self.model, batch)
        loss.backward()
        return loss.item()

    def apply_gradients(self, gradients: Gradients) -> None:
        self.set_gradients(gradients)
        self.optimizer.step()

    def set_gradients(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            # A copy: values from Ray's object store are shared by all workers of a machine, and read-only.
            parameter.grad = None if gradient is None else gradient.clone().to(parameter.device)

    def get_weights(self) -> Weights:
        return {name: value.detach().cpu() for name, value in self.model.state_dict().items()}

    def set_weights(self, weights: Weights) -> None:
        self.model.load_state_dict(weights)

    def close(self) -> None:
        """Does nothing."""


class DistributedSGD:
    """``num_workers`` actors with ``devices_per_worker`` replicas each, on an already connected Ray cluster.

    ``model_creator(worker_index, device_index)`` is called in the worker for each of its devices. All replicas start
    from the weights of the first. Their mini-batches should have the same size: the driver averages the replicas'
    gradients. ``use_cpus``: reserve a CPU of the cluster for each device, not a GPU. An error in a replica is raised by
    the call that triggered it, as a `ray.exceptions.RayTaskError` that also has the original type.
    """

    def __init__(
        self,
        model_creator: ModelCreator,
        *,
        num_workers: int,
        devices_per_worker: int = 1,
        use_cpus: bool = True,
    ) -> None:
        if num_workers < 1 or devices_per_worker < 1:
            raise ValueError("num_workers and devices_per_worker must be whole numbers of at least 1")
        cpus, gpus = (devices_per_worker, 0) if use_cpus else (1, devices_per_worker)
        worker: Any = ray.remote(num_cpus=cpus, num_gpus=gpus)(_Worker)
        self._workers = [worker.remote(model_creator, index, devices_per_worker) for index in range(num_workers)]
        weights = ray.put(self.get_weights())
        ray.get([worker.set_weights.remote(weights) for worker in self._workers])

    def __enter__(self) -> DistributedSGD:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end()

    def step(self, verbose: bool = True) -> float:
        """One iteration; returns the loss before it, averaged over all replicas. ``verbose`` prints the time of each
        phase, in seconds: "interior" is the time within each worker.
        """
        began = perf_counter()
        computed = ray.get([worker.compute_gradients.remote() for worker in self._workers])
        shards = [shard for shards, _ in computed for shard in shards]
        got = perf_counter()
        gradients = ray.put(self.reduce([gradients for _, gradients in shards]))
        reduced = perf_counter()
        applied = ray.get([worker.apply_gradients.remote(gradients) for worker in self._workers])
        if verbose:
            for _, seconds in computed:
                print("compute grad interior time", seconds)
            print("compute all grads time", got - began)
            print("grad reduce time", reduced - got)
            for seconds in applied:
                print("apply grad interior time", seconds)
            print("apply all grads time", perf_counter() - reduced, flush=True)
        return float(sum(loss for loss, _ in shards) / len(shards))

    def reduce(self, shards: Sequence[Gradients]) -> Gradients:
        """The mean of the replicas' gradients; a missing gradient counts as zero."""
        columns = zip(*shards, strict=True)
        return [_mean([gradient for gradient in column if gradient is not None], len(shards)) for column in columns]

    def get_weights(self) -> Weights:
        """The weights of the first replica; all replicas have the same."""
        weights: Weights = ray.get(self._workers[0].get_weights.remote())
        return weights

    def close(self) -> None:
        """Closes the replicas and ends the workers."""
        ray.get([worker.close.remote() for worker in self._workers])
        self._end()

    def _end(self) -> None:
        for worker in self._workers:
            ray.kill(worker)


class _Worker:
    """The actor: the replicas of one worker."""

    def __init__(self, model_creator: ModelCreator, index: int, devices: int) -> None:
        self._replicas = [model_creator(index, device) for device in range(devices)]

    def compute_gradients(self) -> tuple[list[tuple[float, Gradients]], float]:
        began = perf_counter()
        return [replica.compute_gradients() for replica in self._replicas], perf_counter() - began

    def apply_gradients(self, gradients: Gradients) -> float:
        began = perf_counter()
        for replica in self._replicas:
            replica.apply_gradients(gradients)
        return perf_counter() - began

    def get_weights(self) -> Weights:
        return self._replicas[0].get_weights()

    def set_weights(self, weights: Weights) -> None:
        for replica in self._replicas:
            replica.set_weights(weights)

    def close(self) -> None:
        for replica in self._replicas:
            replica.close()


def _mean(gradients: Sequence[torch.Tensor], count: int) -> torch.Tensor | None:
    return torch.stack([*gradients]).sum(dim=0) / count if gradients else None


def _over_and_over(shard: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in shard:
            empty = False
            yield batch
        if empty:
            raise ValueError("the shard has no mini-batch (or is an iterator that can be read only once)")
