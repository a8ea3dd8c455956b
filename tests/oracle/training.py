"""The whole training in plain torch, in one process, in the many ways in which a correct trainer may go about it.

Independent of the oracle: it takes a workload and a layout and knows only what torch does. Ranks are simulated: each
has its own forward and backward passes, and their gradients are averaged before the optimizer sees them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from conformance.workloads.layout import Layout, Window
from conformance.workloads.precision import Precision
from conformance.workloads.workload import SGD, Adagrad, AdamW, Optimizer, Vector, Workload

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: Where the 1/N goes: into the loss of each micro-batch, or later into gradients of one micro-batch, rank or window.
PLACEMENTS = (
    "mean, loss over window, ranks averaged",
    "mean, gradients over window, ranks averaged",
    "mean, loss over window and ranks",
    "mean weighed by its share of the window",
    "sum, loss over total",
    "sum, loss times world over total, ranks averaged",
    "sum, gradients over total",
    "every sample's factor",
)


#: Those of torch's optimizers.
IMPLEMENTATIONS = {"for loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass(frozen=True)
class Style:
    """One correct way of training. ``seed`` fixes the order of samples, micro-batches, and the ranks' sum.

    ``dealt_otherwise``: ranks and micro-batches of the same sizes get other samples of the global batch.
    ``averaged_every_time``: ranks average after every backward pass, and the next one adds to the average.
    """

    placement: str = PLACEMENTS[0]
    seed: int = 0
    by_reciprocal: bool = False
    ranks_divided_first: bool = False
    one_forward: bool = False
    dealt_otherwise: bool = False
    loss_in_autocast: bool = True
    loss_by_hand: bool = False
    implementation: str = "for loop"
    averaged_every_time: bool = False


def styles(placements: Sequence[str] = PLACEMENTS) -> st.SearchStrategy[Style]:
    either = ("by_reciprocal", "ranks_divided_first", "one_forward", "dealt_otherwise")
    return st.builds(
        Style,
        placement=st.sampled_from(placements),
        seed=st.integers(0, 2**20),
        implementation=st.sampled_from(list(IMPLEMENTATIONS)),
        **dict.fromkeys((*either, "loss_in_autocast", "loss_by_hand"), st.booleans()),
    )


def fitting(style: Style, workload: Workload, layout: Layout) -> Style:
    """The style, with a placement that is correct for this loss and these micro-batches."""
    even = all(
        len({len(micro_batch) for share in window.shares for micro_batch in share}) == 1
        for window in layout.windows(workload)
    )
    if (workload.loss == "weighted" or not even) and style.placement.startswith("mean"):
        sums = [placement for placement in PLACEMENTS if not placement.startswith("mean")]
        return replace(style, placement=sums[style.seed % len(sums)])
    return style


@dataclass
class Run:
    """What a training did: gradients as the optimizer saw them and weights after each of its steps, exactly.

    None stands for a vector that is not finite.
    """

    windows: list[int] = field(default_factory=list)
    gradients: list[Vector | None] = field(default_factory=list)
    weights: list[Vector | None] = field(default_factory=list)
    skips: set[int] = field(default_factory=set)
    scales: list[Fraction] = field(default_factory=list)


def train(workload: Workload, layout: Layout, precision: Precision, style: Style) -> Run:
    """Train on every window of the workload."""
    return _Training(workload, layout, precision, style).run()


def exactly(tensors: Sequence[torch.Tensor]) -> Vector | None:
    """The entries of the tensors, one after the other."""
    flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
    return tuple(map(Fraction, flat.tolist())) if bool(flat.isfinite().all()) else None


class _Training:
    def __init__(self, workload: Workload, layout: Layout, precision: Precision, style: Style) -> None:
        self.workload, self.layout, self.precision, self.style = workload, layout, precision, style
        self.dtype = DTYPES[precision.master.name]
        self.random = random.Random(style.seed)
        self.model = _model(workload, self.dtype)
        self.parameters = list(self.model.parameters())
        # A fused optimizer is called even where the scaler found an overflow: its hooks say nothing about steps.
        implementation = "foreach" if precision.scaled and style.implementation == "fused" else style.implementation
        self.optimizer = optimizer_of(workload.optimizer, self.parameters, **IMPLEMENTATIONS[implementation])
        multipliers = workload.schedule
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: 1.0 if multipliers is None else float(multipliers[min(step, len(multipliers) - 1)]),
        )
        scale = workload.scale
        self.scaler = torch.amp.GradScaler(
            "cpu",
            init_scale=float(scale.init_scale),
            growth_factor=float(scale.growth_factor),
            backoff_factor=float(scale.backoff_factor),
            growth_interval=scale.growth_interval,
            enabled=precision.scaled,
        )
        self.result = Run()
        self.optimizer.register_step_pre_hook(self._before)
        self.optimizer.register_step_post_hook(self._after)

    def run(self) -> Run:
        for window in self.layout.windows(self.workload):
            self._window(window)
        if self.precision.scaled:
            self.result.scales.append(Fraction(self.scaler.get_scale()))
        return self.result

    def _before(self, *_: Any) -> None:
        self.result.gradients.append(exactly([parameter.grad for parameter in self.parameters]))

    def _after(self, *_: Any) -> None:
        self.result.weights.append(exactly(self.parameters))

    def _window(self, window: Window) -> None:
        if self.style.dealt_otherwise:
            window = replace(window, batch=tuple(self._shuffled(window.batch)))
        self.result.scales.append(Fraction(self.scaler.get_scale()))
        if self.style.averaged_every_time:
            average = self._running_average(window)
        else:
            average = self._average(window, [self._gradients(window, share) for share in window.shares])
        for parameter, gradient in zip(self.parameters, average, strict=True):
            parameter.grad = gradient
        self.scaler.unscale_(self.optimizer)
        clip = self.workload.clip
        if clip is not None and clip.kind == "norm":
            torch.nn.utils.clip_grad_norm_(self.parameters, float(clip.threshold))
        elif clip is not None:
            torch.nn.utils.clip_grad_value_(self.parameters, float(clip.threshold))
        taken = len(self.result.weights)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if len(self.result.weights) > taken:
            self.result.windows.append(window.index)
            self.scheduler.step()
        else:
            self.result.skips.add(window.index)

    def _gradients(self, window: Window, share: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """One rank's gradients, its micro-batches added up by autograd."""
        self.model.zero_grad()
        passes = [self._shuffled(micro_batch) for micro_batch in self._shuffled(share)]
        if self.style.one_forward:
            passes = [[index for micro_batch in passes for index in micro_batch]]
        for indices in passes:
            self.scaler.scale(self._loss(window, indices, len(passes))).backward()
        return [parameter.grad.clone() for parameter in self.parameters]

    def _average(self, window: Window, gradients: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        return [self._over_ranks(window, list(parts)) for parts in zip(*gradients, strict=True)]

    def _running_average(self, window: Window) -> list[torch.Tensor]:
        average = [torch.zeros_like(parameter) for parameter in self.parameters]
        for turn in range(window.length):
            gradients = []
            for share in window.shares:
                for parameter, so_far in zip(self.parameters, average, strict=True):
                    parameter.grad = so_far.clone()
                self.scaler.scale(self._loss(window, self._shuffled(share[turn]), window.length)).backward()
                gradients.append([parameter.grad for parameter in self.parameters])
            average = self._average(window, gradients)
        return average

    def _loss(self, window: Window, indices: list[int], passes: int) -> torch.Tensor:
        samples = [window.batch[index] for index in indices]
        weighted = self.workload.loss == "weighted"
        inputs = _tensor([sample.x for sample in samples], self.dtype)
        targets = _tensor([[sample.y] for sample in samples], self.dtype)
        weights = _tensor([[sample.weight] for sample in samples], self.dtype) if weighted else None
        with self._autocast():
            outputs = self.model(inputs)
        with self._autocast() if self.style.loss_in_autocast else nullcontext():
            return self._reduced(window, outputs, targets, weights, passes)

    def _reduced(
        self, window: Window, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, passes: int
    ) -> torch.Tensor:
        world, total, placement = window.world_size, self._total(window), self.style.placement
        if placement == "every sample's factor":
            factors = self._over(torch.ones_like(targets) if weights is None else weights, total)
            return ((outputs - targets) ** 2 * factors).sum()
        if placement.startswith("sum"):
            loss = self._squares(outputs, targets, weights).sum()
            if placement == "sum, loss over total":
                return self._over(loss, total)
            if placement == "sum, loss times world over total, ranks averaged":
                return self._over(loss * world, total)
            return loss
        assert weights is None
        mean = self._squares(outputs, targets, None).mean() if self.style.loss_by_hand else self._mse(outputs, targets)
        if placement == "mean, loss over window, ranks averaged":
            return self._over(mean, passes)
        if placement == "mean, loss over window and ranks":
            return self._over(mean, passes * world)
        if placement == "mean weighed by its share of the window":
            return mean * (len(targets) / total)
        return mean

    def _squares(self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        if self.style.loss_by_hand:
            squares = (outputs - targets).square()
        else:
            squares = self._mse(outputs, targets, reduction="none")
        return squares if weights is None else weights * squares

    def _mse(self, outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        return functional.mse_loss(outputs.to(self.dtype), targets, reduction=reduction)

    def _over_ranks(self, window: Window, parts: list[torch.Tensor]) -> torch.Tensor:
        """The ranks' gradients added in some order and association, and divided as the placement says."""
        placement, world = self.style.placement, window.world_size
        divisor: float = 1
        if placement.endswith("ranks averaged"):
            divisor = world
        elif placement == "sum, gradients over total":
            divisor = self._total(window)
        if placement == "mean, gradients over window, ranks averaged":
            passes = 1 if self.style.one_forward else window.length
            parts = [self._over(part, passes) for part in parts]
        if self.precision.compressed:
            parts = [part.to(DTYPES[self.precision.wire.name]) for part in parts]
        if self.style.ranks_divided_first:
            return tree_sum([self._over(part, divisor) for part in parts], self.random).to(self.dtype)
        return self._over(tree_sum(parts, self.random), divisor).to(self.dtype)

    def _total(self, window: Window) -> float:
        if self.workload.loss == "mean":
            return len(window.batch)
        return float(sum(sample.weight for sample in window.batch))

    def _over(self, value: torch.Tensor, divisor: float) -> torch.Tensor:
        return value * (1 / divisor) if self.style.by_reciprocal else value / divisor

    def _autocast(self) -> Any:
        if not self.precision.mixed:
            return nullcontext()
        return torch.autocast("cpu", dtype=DTYPES[self.precision.compute.name])

    def _shuffled(self, items: Sequence[Any]) -> list[Any]:
        return self.random.sample(items, len(items))


def tree_sum(terms: Sequence[torch.Tensor], order: random.Random) -> torch.Tensor:
    """The sum in a random order and association."""
    left = list(terms)
    while len(left) > 1:
        one = left.pop(order.randrange(len(left)))
        other = order.randrange(len(left))
        left[other] = left[other] + one
    return left[0]


def _tensor(values: Sequence[Sequence[Fraction]], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([list(map(float, row)) for row in values], dtype=torch.float64).to(dtype)


def _model(workload: Workload, dtype: torch.dtype) -> torch.nn.Linear:
    model = torch.nn.Linear(workload.model.features, 1, bias=workload.model.bias, dtype=dtype)
    with torch.no_grad():
        vector_to_parameters(_tensor([workload.start], dtype)[0], model.parameters())
    return model


def optimizer_of(spec: Optimizer, parameters: list[torch.Tensor], **flags: bool) -> torch.optim.Optimizer:
    """Torch's, with these settings."""
    kind = {SGD: torch.optim.SGD, AdamW: torch.optim.AdamW, Adagrad: torch.optim.Adagrad}[type(spec)]
    settings = {name: float(value) if isinstance(value, Fraction) else value for name, value in vars(spec).items()}
    if isinstance(spec, AdamW):
        settings["betas"] = settings.pop("beta1"), settings.pop("beta2")
    return kind(parameters, **settings, **flags)
