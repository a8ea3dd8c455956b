"""Measures the effect of findings on a small training: the numbers on the pages of reports/findings.

A loop in plain torch follows each rule correctly, and with the bug of the page: a perceptron of 16, 32 and 1 units
learns the outputs of another one on 1024 samples, with noise. It prints the mean squared error on 4096 new samples,
averaged over five seeds.

    python tools/how_large.py
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

SAMPLES, MICRO_BATCH, WINDOW, EPOCHS = 1024, 8, 4, 10
STEPS = EPOCHS * SAMPLES // (MICRO_BATCH * WINDOW)


class Problem:
    def __init__(self, seed: int, *, outliers: bool = False, middle: nn.Module | None = None) -> None:
        torch.manual_seed(seed)
        teacher = perceptron()
        self.inputs, self.fresh = torch.randn(SAMPLES, 16), torch.randn(4096, 16)
        with torch.no_grad():
            self.targets, self.fresh_targets = 3 * teacher(self.inputs), 3 * teacher(self.fresh)
        self.targets += 0.1 * torch.randn_like(self.targets)
        if outliers:
            self.targets[::64] += 30
        self.model = perceptron(middle)

    def order(self, epoch: int) -> Tensor:
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))

    def windows(self, epoch: int, window: int = WINDOW, samples: int = SAMPLES) -> Iterator[list[Tensor]]:
        parts = self.order(epoch)[:samples].split(MICRO_BATCH)
        yield from ([*parts[start : start + window]] for start in range(0, len(parts), window))

    def loss(self, numbers: Tensor, model: nn.Module | None = None) -> Tensor:
        return mse_loss((model or self.model)(self.inputs[numbers]), self.targets[numbers])

    def error(self) -> float:
        self.model.eval()
        with torch.no_grad():
            return mse_loss(self.model(self.fresh), self.fresh_targets).item()


def perceptron(middle: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), *([middle] if middle else []), nn.Tanh(), nn.Linear(32, 1))


def sgd(problem: Problem, rate: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(problem.model.parameters(), rate)


def short_window(seed: int, wrong: bool) -> float:
    """Nine micro-batches an epoch, an accumulation of eight: the last one is divided by eight."""
    problem = Problem(seed)
    optimizer = sgd(problem)
    for epoch in range(2 * EPOCHS):
        for window in problem.windows(epoch, 8, 9 * MICRO_BATCH):
            for numbers in window:
                (problem.loss(numbers) / (8 if wrong else len(window))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def clipped(seed: int, wrong: str) -> float:
    """A limit of 1, and 30 more in each 64th target. `each`: after each backward. `sums`: also, with summed losses."""
    problem = Problem(seed, outliers=True)
    optimizer = sgd(problem)
    for epoch in range(EPOCHS):
        for window in problem.windows(epoch):
            count = MICRO_BATCH * len(window)
            for numbers in window:
                (problem.loss(numbers) * (MICRO_BATCH if wrong == "sums" else 1 / len(window))).backward()
                if wrong:
                    clip_grad_norm_(problem.model.parameters(), 1.0)
            for parameter in problem.model.parameters() if wrong == "sums" else ():
                parameter.grad = None if parameter.grad is None else parameter.grad / count
            if not wrong:
                clip_grad_norm_(problem.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def scaled(seed: int, wrong: float, rate: float = 0.05) -> float:
    """Each gradient is `wrong` times too large."""
    problem = Problem(seed)
    optimizer = sgd(problem, rate)
    for epoch in range(EPOCHS):
        for window in problem.windows(epoch):
            (sum(map(problem.loss, window), torch.zeros(())) * (wrong or 1) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def last_alone(seed: int, wrong: bool) -> float:
    """Only the last micro-batch of four trains, divided by four."""
    problem = Problem(seed)
    optimizer = sgd(problem)
    for epoch in range(EPOCHS):
        for window in problem.windows(epoch):
            for numbers in window[-1:] if wrong else window:
                (problem.loss(numbers) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def scheduled(seed: int, rate_of: Callable[[int], float], skipped: int = 0) -> float:
    """The rate of each step is `rate_of(step)`; the first steps are skipped."""
    problem = Problem(seed)
    optimizer = sgd(problem)
    for step in range(STEPS):
        epoch, number = divmod(step, STEPS // EPOCHS)
        window = [*problem.windows(epoch)][number]
        (sum(map(problem.loss, window), torch.zeros(())) / len(window)).backward()
        optimizer.param_groups[0]["lr"] = rate_of(step)
        if step >= skipped:
            optimizer.step()
        optimizer.zero_grad()
    return problem.error()


def decay(step: float) -> float:
    return 0.2 * max(0.0, 1 - step / STEPS)


def warm_up(step: int) -> float:
    return 0.3 * min(1.0, (step + 1) / 20)


def by_epoch(step: int, ahead: int = 0) -> float:
    epoch = step * EPOCHS // STEPS
    return float(0.2 * 0.5 ** (epoch + (ahead if epoch >= 2 else 0)))


def at_epochs(step: int) -> float:
    """Resumed halfway, the schedule continues from step 5, which is the number of the epoch."""
    return decay(step if step < STEPS // 2 else step - STEPS // 2 + EPOCHS // 2)


def first_again(step: int) -> float:
    """Resumed halfway, one epoch has the first rate."""
    return by_epoch(0 if step * EPOCHS // STEPS == EPOCHS // 2 else step)


def resumed(seed: int, wrong: tuple[int, ...], begins_again: bool = False, start: int = SAMPLES // 2) -> float:
    """From `start`, the middle, each of these epochs has the order of epoch 0, or it restarts."""
    problem = Problem(seed)
    optimizer = sgd(problem)
    for epoch in range(EPOCHS):
        order = problem.order(epoch)
        if epoch in wrong:
            order = torch.cat([order[:start], order if begins_again else problem.order(0)[start:]])
        for numbers in order.split(MICRO_BATCH * WINDOW):
            problem.loss(numbers).backward()
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def longer(seed: int, wrong: bool) -> float:
    """Trains one epoch and one step more."""
    problem = Problem(seed)
    optimizer = sgd(problem)
    steps = STEPS + wrong * (STEPS // EPOCHS + 1)
    for step in range(steps):
        epoch, number = divmod(step, STEPS // EPOCHS)
        problem.loss(torch.cat([*problem.windows(epoch)][number])).backward()
        optimizer.step()
        optimizer.zero_grad()
    return problem.error()


def ranks_apart(seed: int, wrong: bool, ranks: int = 8) -> float:
    """Eight ranks, an accumulation of four: only the first micro-batch of a window is averaged over them."""
    problem = Problem(seed)
    models = [copy.deepcopy(problem.model) for _ in range(ranks)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
    for epoch in range(4 * EPOCHS):
        for window in problem.windows(epoch, ranks * WINDOW):
            for number in range(WINDOW):
                mine = window[number * ranks : (number + 1) * ranks]
                made = []
                for model, numbers in zip(models, mine, strict=True):
                    made.append(torch.autograd.grad(problem.loss(numbers, model) / WINDOW, [*model.parameters()]))
                mean = [torch.stack(parts).mean(0) for parts in zip(*made, strict=True)]
                for model, own in zip(models, made, strict=True):
                    for parameter, gradient in zip(model.parameters(), own if wrong and number else mean, strict=True):
                        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    problem.model = models[0]
    return problem.error()


def experts(seed: int, wrong: bool) -> float:
    """Four experts, one per micro-batch; an expert that the last one of a window does not use is not stepped."""
    problem = Problem(seed)
    kinds = problem.inputs[:, :2].gt(0).long() @ torch.tensor([1, 2])
    models = [copy.deepcopy(problem.model) for _ in range(4)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
    for epoch in range(4 * EPOCHS):
        order = problem.order(epoch)
        parts = [part for kind in range(4) for part in order[kinds[order] == kind].split(MICRO_BATCH)]
        mixed = torch.randperm(len(parts), generator=torch.Generator().manual_seed(epoch)).tolist()
        for start in range(0, len(parts), WINDOW):
            window = [parts[number] for number in mixed[start : start + WINDOW]]
            used = [int(kinds[numbers[0]]) for numbers in window]
            for kind, numbers in zip(used, window, strict=True):
                (problem.loss(numbers, models[kind]) / len(window)).backward()
            for kind, optimizer in enumerate(optimizers):
                if not wrong or kind == used[-1]:
                    optimizer.step()
                optimizer.zero_grad()
    with torch.no_grad():
        fresh = problem.fresh[:, :2].gt(0).long() @ torch.tensor([1, 2])
        outputs = torch.stack([model(problem.fresh) for model in models])[fresh, torch.arange(len(fresh))]
        return mse_loss(outputs, problem.fresh_targets).item()


def statistics_twice(seed: int, wrong: bool) -> float:
    """A batch norm whose running statistics each micro-batch updates twice."""
    problem = Problem(seed, middle=nn.BatchNorm1d(32))
    optimizer = sgd(problem)
    for epoch in range(EPOCHS):
        for window in problem.windows(epoch):
            for numbers in window:
                (problem.loss(numbers) / len(window)).backward()
                if wrong:
                    with torch.no_grad():
                        problem.loss(numbers)
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def adamw(seed: int, wrong: bool) -> float:
    """A step with zero gradients before the first."""
    problem = Problem(seed)
    optimizer = torch.optim.AdamW(problem.model.parameters(), 0.01)
    if wrong:
        for parameter in problem.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    for epoch in range(EPOCHS):
        for window in problem.windows(epoch):
            problem.loss(torch.cat(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return problem.error()


def growing_scale(seed: int, every: int) -> float:
    """One step in `every` has half a gradient: the loss scale has just grown."""
    problem = Problem(seed)
    optimizer = sgd(problem)
    windows = [window for epoch in range(4 * EPOCHS) for window in problem.windows(epoch)]
    for number, window in enumerate(windows, 1):
        (problem.loss(torch.cat(window)) / (2 if every and number % every == 0 else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return problem.error()


def in_half(seed: int, wrong: bool, kind: Callable[..., torch.optim.Optimizer], rate: float) -> float:
    """In float16, with master weights in float32. The loss is scaled by 1024; or not, but unscaled by 65536."""
    problem = Problem(seed)
    half = copy.deepcopy(problem.model).half()
    optimizer = kind(problem.model.parameters(), rate)
    problem.inputs, problem.targets = problem.inputs.half(), problem.targets.half()
    for epoch in range(EPOCHS):
        for window in problem.windows(epoch):
            (problem.loss(torch.cat(window), half) * (1 if wrong else 1024)).backward()
            for parameter, trained in zip(half.parameters(), problem.model.parameters(), strict=True):
                assert parameter.grad is not None
                trained.grad, parameter.grad = parameter.grad.float() / (65536 if wrong else 1024), None
            optimizer.step()
            with torch.no_grad():
                for parameter, trained in zip(half.parameters(), problem.model.parameters(), strict=True):
                    parameter.copy_(trained)
    return problem.error()


def rounded_start(seed: int, wrong: bool) -> float:
    """The trained weights are rounded to bfloat16."""
    problem = Problem(seed)
    optimizer = torch.optim.Adam(problem.model.parameters(), 0.01)
    for epoch in range(4 * EPOCHS):
        for window in problem.windows(epoch):
            problem.loss(torch.cat(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for parameter in problem.model.parameters() if wrong else ():
            parameter.copy_(parameter.bfloat16().float())
    return problem.error()


def double(seed: int, wrong: str) -> float:
    """Linear regression in float64 on targets near 1000, with 3000 steps: the largest error of a weight.

    `outputs`: outputs are rounded to float32; `factor`: the factor 1 / N of N = 100 samples is.
    """
    torch.manual_seed(seed)
    inputs = torch.cat([torch.randn(100, 4), torch.ones(100, 1)], 1).double()
    right = torch.tensor([[1.0, 2.0, 3.0, 4.0, 1000.0]], dtype=torch.float64).T
    weights = torch.zeros_like(right)
    for _ in range(3000):
        outputs = inputs @ weights
        residuals = (outputs.float().double() if wrong == "outputs" else outputs) - inputs @ right
        factor = torch.tensor(1 / 100, dtype=torch.float32 if wrong == "factor" else torch.float64).double()
        weights = weights - 0.2 * factor * 2 * (inputs.T @ residuals)
    return float((weights - right).abs().max())


def mean(run: Callable[..., float], *arguments: Any) -> float:
    return statistics.fmean(run(seed, *arguments) for seed in range(5))


RUNS: dict[str, tuple[Callable[..., float], tuple[Any, ...], tuple[Any, ...]]] = {
    "nominal length": (short_window, (False,), (True,)),
    "clips each micro-batch": (clipped, ("",), ("each",)),
    "clips each micro-batch, of sums (poutyne)": (clipped, ("",), ("sums",)),
    "four times the gradient": (scaled, (0,), (4,)),
    "four times the gradient, at a rate of 0.3": (scaled, (0, 0.3), (4, 0.3)),
    "a third of the rate": (scaled, (0,), (1 / 3,)),
    "1.28 times the gradient": (scaled, (0,), (1.28,)),
    "last micro-batch alone": (last_alone, (False,), (True,)),
    "schedule by micro-batch": (scheduled, (decay,), (lambda step: decay(step * WINDOW + WINDOW - 1),)),
    "schedule on a skip": (scheduled, (lambda step: warm_up(max(step - 5, 0)), 5), (warm_up, 5)),
    "schedule an epoch ahead": (scheduled, (by_epoch,), (lambda step: by_epoch(step, 1),)),
    "schedule by step continues from the number of epochs": (scheduled, (decay,), (at_epochs,)),
    "schedule resumed with its first rate for an epoch": (scheduled, (by_epoch,), (first_again,)),
    "each epoch in the order of the first": (resumed, ((),), (tuple(range(1, EPOCHS)), False, 0)),
    "one epoch resumed in another order": (resumed, ((),), ((4,),)),
    "each epoch resumed in another order": (resumed, ((),), (tuple(range(1, EPOCHS)),)),
    "half of an epoch again": (resumed, ((),), ((4,), True)),
    "an epoch more": (longer, (False,), (True,)),
    "ranks apart": (ranks_apart, (False,), (True,)),
    "experts lost": (experts, (False,), (True,)),
    "statistics updated twice": (statistics_twice, (False,), (True,)),
    "AdamW a step ahead": (adamw, (False,), (True,)),
    "half a gradient, one step in 1000": (growing_scale, (0,), (1000,)),
    "half a gradient, one step in 20": (growing_scale, (0,), (20,)),
    "float16, not scaled, SGD": (in_half, (False, torch.optim.SGD, 0.05), (True, torch.optim.SGD, 0.05)),
    "float16, not scaled, Adam": (in_half, (False, torch.optim.Adam, 0.01), (True, torch.optim.Adam, 0.01)),
    "rounded to bfloat16": (rounded_start, (False,), (True,)),
    "float64, outputs rounded": (double, ("",), ("outputs",)),
    "float64, factor rounded": (double, ("",), ("factor",)),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, (run, right, wrong) in RUNS.items():
        found, expected = mean(run, *wrong), mean(run, *right)
        print(f"{name:45} {expected:.4g} correct, {found:.4g} with the bug", flush=True)
