"""The task of a script. Subclasses have what differs in some cases; a script merges their methods into one class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, zip_longest
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from conformance.repro.parts.samples import Batch, Epoch, GlobalOrder, Order, Samples, batch_of, collate
from conformance.repro.parts.values import GROUPS, OPTIMIZER, SAMPLES, SCHEDULES, START, USED, WINDOWS, make_model


class Task:
    """The trainer's input: the settings of the case, and the data of a rank."""

    dtype: torch.dtype
    device: torch.device
    world_size: int
    accumulation: int
    micro_batch_size: int
    stop_after: int | None
    loss_scaling: Any
    clip: Any

    def __init__(self, rank: int, **life: Any) -> None:
        self.rank = self.local_rank = rank
        self.models: list[torch.nn.Module] = []
        vars(self).update(life)

    def weights(self) -> list[float]:
        return [float(one) for parameter in self.models[0].parameters() for one in parameter.detach().flatten()]

    def model(self) -> torch.nn.Module:
        model = make_model().to(self.dtype)
        with torch.no_grad():
            for parameter, start in zip(model.parameters(), START[self.rank], strict=True):
                parameter.copy_(torch.tensor(start, dtype=self.dtype))
        self.models.append(model)
        return model

    def optimizer(self, params: Any) -> torch.optim.Optimizer:
        return OPTIMIZER(params, **GROUPS[0])

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        [factors] = SCHEDULES
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[min(step, len(factors) - 1)])

    def grad_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", enabled=False)

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", enabled=False)

    def loss(self, outputs: torch.Tensor, batch: Batch, reduction: str = "mean") -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs, batch.targets, reduction=reduction)

    def token_labels(self, batch: Batch, ignored: float = -100.0) -> torch.Tensor:
        return batch.targets

    def clip_(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """This case does not clip."""

    def report_average(self, step: int, named_weights: Mapping[str, Any]) -> None:
        """This script compares the model's own weights."""

    def windows(self, rank: int | None = None) -> Iterator[list[Batch]]:
        for windows in WINDOWS:
            for window in windows[self.rank if rank is None else rank]:
                yield [batch_of(numbers, self.dtype) for numbers in window]

    def epochs(self, rank: int | None = None) -> Iterator[Epoch]:
        for number, windows in enumerate(WINDOWS):
            own = windows[self.rank if rank is None else rank]
            yield Epoch(number, [[batch_of(numbers, self.dtype) for numbers in window] for window in own])

    def epochs_until_stop(self) -> int:
        ends = list(accumulate(len(windows[self.rank]) for windows in WINDOWS))
        return len(ends) if self.stop_after is None else 1 + ends.index(self.stop_after)

    def dataloader(self, rank: int | None = None, format: Any = None) -> DataLoader[Any]:
        own = (windows[self.rank if rank is None else rank] for windows in WINDOWS)
        batches = [numbers for windows in own for window in windows for numbers in window]
        return DataLoader(self.dataset(), batch_sampler=batches, collate_fn=partial(collate, format=format))

    def global_dataloader(self, format: Any = None) -> DataLoader[Any]:
        streams = [[chain.from_iterable(windows) for windows in epoch] for epoch in WINDOWS]
        turns = chain.from_iterable(zip_longest(*ranks, fillvalue=[]) for ranks in streams)
        numbers = [number for turn in turns for micro_batch in turn for number in micro_batch]
        samples = Subset(self.dataset(), numbers)
        return DataLoader(samples, self.micro_batch_size, collate_fn=partial(collate, format=format))

    def dataset(self, format: Any = None) -> Samples:
        return Samples(self.dtype, format)

    def sampler(self, epoch: int = 0, rank: int | None = None) -> Order:
        return Order(self.dataset(), self.rank if rank is None else rank, epoch)

    def global_sampler(self) -> GlobalOrder:
        return GlobalOrder(self.dataset())

    def leave_torchrun(self) -> None:
        if self.world_size == 1:
            os.environ.pop("LOCAL_RANK", None)


class Reporting(Task):
    """Takes the weights that the trainer reports."""

    reported: Mapping[str, Any]

    def weights(self) -> list[float]:
        values = [torch.as_tensor(self.reported[name]) for name, _ in self.models[0].named_parameters()]
        return [float(one) for value in values for one in value.detach().flatten()]

    @contextmanager
    def step(self, weights: Callable[[], Mapping[str, Any]], gradients: Any = None) -> Iterator[None]:
        yield
        self.reported = weights()

    def report(self, step: int, named_weights: Mapping[str, Any], named_gradients: Any = None) -> None:
        self.reported = named_weights


class Weighted(Task):
    def loss(self, outputs: torch.Tensor, batch: Batch, reduction: str = "mean") -> torch.Tensor:
        total = (batch.weights * (outputs - batch.targets) ** 2).sum()
        return total / batch.weights.sum() if reduction == "mean" else total

    def token_labels(self, batch: Batch, ignored: float = -100.0) -> torch.Tensor:
        *_, weights = SAMPLES
        return torch.where(torch.arange(int(max(weights))) < batch.weights, batch.targets, ignored)


class ClippedByNorm(Task):
    def clip_(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, self.clip.threshold)


class ClippedByValue(Task):
    def clip_(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        torch.nn.utils.clip_grad_value_(parameters, self.clip.threshold)


class InBfloat16(Task):
    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16)


class InFloat16(Task):
    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.float16)

    def grad_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", **vars(self.loss_scaling))


class InGroups(Task):
    """Puts matrices in the first group, vectors in the next, and scalars in the last."""

    def optimizer(self, params: Any) -> torch.optim.Optimizer:
        given = list(params)
        divided = [
            {**GROUPS[number], **group, "params": own}
            for group in (given if isinstance(given[0], dict) else [{"params": given}])
            for number in range(len(GROUPS))
            if (own := [one for one in group["params"] if group_of(one) == number])
        ]
        return OPTIMIZER(divided, **GROUPS[0])

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        def multiplier(factors: list[float], step: int) -> float:
            return factors[min(step, len(factors) - 1)]

        numbers = [{group_of(one) for one in group["params"]} for group in optimizer.param_groups]
        factors = [SCHEDULES[own.pop() if len(own) == 1 else 0] for own in numbers]
        return torch.optim.lr_scheduler.LambdaLR(optimizer, [partial(multiplier, own) for own in factors])


class WithLargeTensors(Task):
    """Few elements of each large tensor differ from the rest; only these are compared."""

    def weights(self) -> list[float]:
        found: list[float] = []
        for name, parameter in self.models[0].named_parameters():
            flat = parameter.detach().flatten()
            if name in USED:
                used = torch.tensor(USED[name])
                rest = torch.ones_like(flat, dtype=torch.bool).index_fill(0, used, False)
                found += [*flat[used].tolist(), float(flat[rest].min()), float(flat[rest].max())]
            else:
                found += flat.tolist()
        return found

    def model(self) -> torch.nn.Module:
        model = make_model().to(self.dtype)
        with torch.no_grad():
            for (name, parameter), start in zip(model.named_parameters(), START[self.rank], strict=True):
                if name in USED:
                    parameter.fill_(start[-1]).view(-1)[USED[name]] = torch.tensor(start[:-2], dtype=self.dtype)
                else:
                    parameter.copy_(torch.tensor(start, dtype=self.dtype))
        self.models.append(model)
        return model


def group_of(parameter: Any) -> int:
    # A parameter may come with its name.
    tensor: torch.Tensor = parameter[-1] if isinstance(parameter, tuple) else parameter
    return min(max(2 - tensor.ndim, 0), len(GROUPS) - 1)


class Unsupported(Exception):
    """A feature that the trainer does not support."""
