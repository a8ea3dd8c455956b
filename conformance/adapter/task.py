"""The task: the inputs of a trainer under test, as plain torch objects."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader

from conformance.adapter.backends import Topology
from conformance.adapter.batches import Batch, Format, GlobalOrder, MicroBatches, Order, Samples, Stream, collate
from conformance.adapter.declaration import Misuse, Unsupported
from conformance.adapter.models import module, parameters
from conformance.adapter.optimizer_settings import (
    AverageSpec,
    ClipSpec,
    LossScaling,
    OptimizerSettings,
    number_of,
    optimizer_settings,
    parameter_groups,
)
from conformance.workloads.model import model_of
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.reading_plan import PlannedWindow, planned_windows

T = TypeVar("T")


class Epoch:
    """One pass over the data: its `number`, from 0, and its accumulation windows."""

    def __init__(self, number: int, samples: Samples, windows: Sequence[PlannedWindow]) -> None:
        self.number = number
        self._samples, self._planned = samples, windows

    def windows(self) -> Iterator[list[Batch]]:
        """The micro-batches of this rank in accumulation windows; the last one may be shorter."""
        for window in self._planned:
            yield [self._samples.batch(numbers) for numbers in window.micro_batches]


class Task:
    """One case, for one rank.

    backend: one that the trainer supports (`conformance.adapter.backends`), such as "single" or "ddp".
    rank, local_rank, world_size: this process among the others; local_rank is the rank on this machine.
    device: where model and batches live; dtype: of both (float64 for fp64, else float32).
    precision: "fp64", "fp32", "bf16", "fp16", "fp16-compression" or "apex-O1"; compression: whether Horovod must
    compress gradients.
    loss_scaling: the `init_scale`, `growth_factor`, `backoff_factor` and `growth_interval` of `grad_scaler()`; None
    without loss scaling. loss_scale: the initial scale, for apex, which has its own rule: pass it to `amp.initialize`.
    optimizer_settings: the settings of `optimizer()`, for frameworks that make their own: its `kind`, "sgd", "adamw" or
    "adagrad", `arguments` by torch's names, and these for each of its `groups` (`OptimizerSettings`).
    learning_rates: of the first group, one for each optimizer step, or for each epoch if `schedule_by` is "epoch".
    loss_name: "mean" or "weighted".
    accumulation: micro-batches per window; micro_batch_size: samples per micro-batch; steps: the number of windows;
    epoch_count: passes over the data.
    collective_backend: the argument of `torch.distributed.init_process_group`.
    clip: the clip of `clip_`, or None.
    average: the average of the weights to keep next to the model and to evaluate with, or None. Update it once after
    each step, and report it with `report_average`. Only for trainers that support it.
    schedule_by: what the learning-rate schedule counts: "step", or "epoch" for trainers that support it.
    unfreeze_at: the window, counted from 0, from which on frozen parameters are trained: let them require gradients
    then. The optimizer may have them from the start, as it skips parameters without a gradient; if they come in a new
    group, the scheduler must get that group too, and continue from its current step. None if no parameter is frozen, or
    if they stay frozen.
    unused_parameters: whether some samples use only some parameters of the model, so others may have no gradient
    on a rank, or on any.
    own_order: whether the trainer may choose the order of `dataset()`: each sample on one rank, once in each of
    `epochs()`. Micro-batches and windows keep their lengths. Only for trainers that support it.
    stop_after: after how many windows to stop, skipped ones included; None to train them all.
    stop_inside: how many micro-batches of the next window to train before saving; 0 except for trainers with
    `resumes_inside_windows=True`.
    checkpoint_dir: an empty folder, the same for all ranks, in which to save the state for `resume_from` after the last
    of these windows; None if nothing is to be saved.
    save_after: after how many windows to save: only `stop_after`, or never; several for trainers with
    `survives_kill=True`, which are killed while they save.
    resume_from: the folder with the checkpoint of processes that have ended; None at the start of training. With
    `elastic=True` their number may have been another.

    `checkpoint_dir`, `save_after` and `resume_from` are unused unless the trainer has `resume=True` and the case stops
    and resumes. The loaders below always give the whole run, as a real one does: a trainer skips the batches that it
    has trained on, which is where positions get lost.
    """

    def __init__(self, spec: dict[str, Any], rank: int, recorder: Any = None) -> None:
        self._spec = spec
        self._recorder = recorder
        self._asked: set[str] = set() if recorder is None else recorder.asked
        self.backend: str = spec["backend"]
        self.rank = rank
        topology = Topology.of(spec)
        self.local_rank = topology.local_rank(rank)
        self.world_size: int = spec["world_size"]
        self.precision: str = spec["precision"]
        self._arithmetic = PRECISIONS[self.precision]
        self.compression = self._arithmetic.compressed
        self.dtype: torch.dtype = getattr(torch, self._arithmetic.master.dtype)
        scaler = spec["scaler"] if self._arithmetic.scaled else None
        self._loss_scaling = LossScaling(**scaler) if scaler else None
        self.loss_scale: float | None = scaler["init_scale"] if scaler else None
        self._settings = optimizer_settings(spec)
        self.loss_name: str = spec["loss"]
        self.schedule_by: Literal["step", "epoch"] = spec.get("schedule_by", "step")
        self.accumulation: int = spec["accumulation"]
        self.micro_batch_size: int = spec["micro_batch_size"]
        self.steps: int = spec["steps"]
        self.epoch_count: int = len(spec["epochs"])
        self.device, self.collective_backend = _place(spec["device"], self.local_rank, topology.local_size(rank))
        self._clip = ClipSpec(**spec["clip"]) if spec["clip"] else None
        self._average = AverageSpec(**spec["average"]) if spec.get("average") else None
        self.unfreeze_at: int | None = spec.get("unfreeze_at")
        self.unused_parameters: bool = spec.get("unused_parameters", False)
        self.own_order: bool = spec.get("own_order", False)
        life: dict[str, Any] = spec.get("life", {})
        self.stop_after: int | None = life.get("stop_after")
        self.stop_inside: int = life.get("stop_inside", 0)
        self.save_after: tuple[int, ...] = tuple(life.get("save_after", ()))
        self.checkpoint_dir = _folder(life.get("checkpoint_dir"))
        self.resume_from = _folder(life.get("resume_from"))
        self._first: int = (spec.get("resumed_at") or 0) if self.resume_from else 0
        self._window = self._first
        self._samples = Samples(spec, self.device, self.dtype)
        self._stream = Stream(self._samples, spec)

    @property
    def loss_scaling(self) -> LossScaling | None:
        self._asked.add("loss scaling")
        return self._loss_scaling

    @property
    def clip(self) -> ClipSpec | None:
        self._asked.add("clip")
        return self._clip

    @property
    def average(self) -> AverageSpec | None:
        self._asked.add("average")
        return self._average

    @property
    def optimizer_settings(self) -> OptimizerSettings:
        self._asked.add("schedule")
        return self._settings

    @property
    def learning_rates(self) -> tuple[float, ...]:
        return self.optimizer_settings.groups[0].learning_rates

    def model(self) -> torch.nn.Module:
        """A fresh model on `device` with this rank's start weights: (m, features) inputs, (m, 1) predictions.

        Usually a `torch.nn.Linear`, in some cases a module with more parameters, some perhaps frozen.
        """
        self._asked.add("model")
        spec = self._spec["model"]
        model = module(spec).to(self.dtype)
        with torch.no_grad():
            for parameter, start in zip(model.parameters(), parameters(spec, self.rank, self.dtype), strict=True):
                parameter.copy_(start)
        model.to(self.device)
        if self._recorder is not None:
            self._recorder.watch(model)
        return model

    def optimizer(self, params: Any) -> torch.optim.Optimizer:
        """The workload's SGD, AdamW or Adagrad over `params` (anything that a torch optimizer accepts).

        In workloads with two or three parameter groups, vectors and scalars have their own settings: then the optimizer
        has groups for them, whatever groups `params` has, unless the trainer has `parameter_groups=(1,)`.

        Raises `UnsupportedGroups` if the workload has several groups and `params` is one flat parameter.
        """
        settings = self._settings
        if len(settings.groups) > 1:
            params = parameter_groups(params, settings.groups, model_of(self._spec["model"]), self.world_size)
        return self._of_kind(params)

    def _of_kind(self, params: Any) -> torch.optim.Optimizer:
        settings = self._settings
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "sgd": torch.optim.SGD,
            "adamw": torch.optim.AdamW,
            "adagrad": torch.optim.Adagrad,
        }
        return kinds[settings.kind](params, **settings.arguments)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """The workload's learning-rate schedule: call `step()` once after each optimizer step, or once after each epoch
        if `schedule_by` is "epoch".

        Without a schedule the learning rate is constant. Parameter groups may have different schedules.
        """
        self._asked.add("schedule")
        groups: list[dict[str, Any]] = [{}, *self._spec["groups"]]
        multipliers: list[list[float]] = [group.get("schedule") or self._spec["schedule"] or [1.0] for group in groups]

        def multiplier(own: list[float], step: int) -> float:
            return own[min(step, len(own) - 1)]

        # A trainer may have regrouped the parameters.
        numbers = [number_of(group["params"], len(groups)) for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, [partial(multiplier, multipliers[number]) for number in numbers]
        )

    def grad_scaler(self) -> torch.amp.GradScaler:
        """The case's GradScaler: enabled for fp16, disabled otherwise."""
        enabled = self._arithmetic.scaled and self._arithmetic.amp == "torch"
        settings = vars(self._loss_scaling) if enabled and self._loss_scaling else {}
        return torch.amp.GradScaler(self.device.type, enabled=enabled, **settings)

    def autocast(self) -> torch.autocast:
        """A context that casts to bfloat16 or float16 as the precision requires, and otherwise does nothing."""
        if self._arithmetic.amp != "torch":
            return torch.autocast(self.device.type, enabled=False)
        return torch.autocast(self.device.type, dtype=getattr(torch, self._arithmetic.compute.dtype))

    def loss(self, outputs: torch.Tensor, batch: Batch, reduction: Literal["mean", "sum"] = "mean") -> torch.Tensor:
        """The squared-error loss of `outputs` (m, 1) against `batch.targets`, a scalar.

        "mean" divides by the number of samples in this batch or, for a weighted loss, by their total weight; "sum" does
        not.

        Raises:
            ValueError: outputs and targets have different shapes, which torch would broadcast.
        """
        if outputs.shape != batch.targets.shape:
            shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(batch.targets.shape)}"
            raise Misuse(f"`task.loss` got {shapes}; both must have shape ({len(batch.inputs)}, 1)")
        if self.loss_name == "mean":
            return torch.nn.functional.mse_loss(outputs, batch.targets, reduction=reduction)
        total = (batch.weights * (outputs - batch.targets) ** 2).sum()
        return total / batch.weights.sum() if reduction == "mean" else total

    def token_labels(self, batch: Batch, ignored: float = -100.0) -> torch.Tensor:
        """The targets of a batch as a language model's labels: (m, n), with w labels for a sample of weight w, and the
        rest `ignored`. n is the largest weight of all samples; without weights, each sample has one label.

        The case's loss is the mean over all labels of a window that are not ignored, on all ranks:
        `((outputs - labels)[labels != ignored] ** 2).sum() / count`, with (m, 1) outputs.
        """
        length = int(max(self._spec["samples"]["weight"])) if self.loss_name == "weighted" else 1
        counts = torch.arange(length, device=self.device)
        return torch.where(counts < batch.weights, batch.targets, ignored)

    def clip_(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Clips the gradients of `parameters` in place, as the workload requires; without a clip does nothing."""
        if clip := self.clip:
            by_norm, by_value = torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_
            (by_norm if clip.kind == "norm" else by_value)(parameters, clip.threshold)

    @contextmanager
    def step(
        self, weights: Callable[[], Mapping[str, Any]], gradients: Callable[[], Mapping[str, Any] | None] = lambda: None
    ) -> Iterator[None]:
        """A context around a step that no torch optimizer takes on the model's parameters, at most one per window.

        `gradients` is called before the step, and its result is copied: the averages that the step will use, by the
        names of `model().named_parameters()`, or None if they are unavailable; then only weights are judged. With a
        clip or a loss scale, too, only weights are judged, as the step may handle these. `weights` is called after the
        step. Both are called on each rank, and their results are reported, as with `report`.

        The window is that of the model's last training forward. If no forward is seen, steps are counted: then take one
        step per window, skipped ones included. A trainer with `survives_kill` must call `report` itself in that case,
        because only the trainer knows from which of two checkpoints it resumes.

        Raises:
            ValueError: as `report`, or there were more steps than windows in this process.
        """
        # A trainer that lost its position may start again: the samples that it trains on are better evidence.
        if self._window == self._first + self.steps:
            raise Misuse(
                f"task.step: all {self.steps} windows have had their step: wrap only the last step of a window, not "
                "one per micro-batch"
            )
        named_gradients = gradients()
        # The step may change the gradients in place.
        used = None if named_gradients is None else self._in_order(named_gradients, copied=True)
        yield
        if self._recorder is not None:
            self._recorder.report(self._window, self._in_order(weights()), used, counted=True)
        self._window += 1

    def report(
        self, step: int, named_weights: Mapping[str, Any], named_gradients: Mapping[str, Any] | None = None
    ) -> None:
        """Reports this rank's weights after window `step`, for parameters that cannot be observed.

        `step` counts windows from 0, including those whose step is skipped. `named_weights`: by the names of
        `model().named_parameters()`, tensors of their shapes, or anything that `torch.as_tensor` accepts; if weights
        are sharded, those that this rank has. `named_gradients`: the gradients that the step used. Call it after each
        window on every rank. Weights that can be observed are compared with the reported ones.

        Raises:
            ValueError: no such window or parameter, or a wrong shape.
        """
        self._check_window(step)
        weights = self._in_order(named_weights)
        gradients = None if named_gradients is None else self._in_order(named_gradients)
        if self._recorder is not None:
            self._recorder.report(step, weights, gradients)

    def report_average(self, step: int, named_weights: Mapping[str, Any]) -> None:
        """Reports the weights with which this rank would evaluate after window `step`: the average of `task.average`.

        Arguments as for `report`. Call it after the last window, and after others where you evaluate, on any rank; if
        you swap the average into the model, while it is there.

        Raises:
            ValueError: as `report`.
        """
        self._check_window(step)
        weights = self._in_order(named_weights)
        if self._recorder is not None:
            self._recorder.report_average(step, weights)

    def _check_window(self, step: int) -> None:
        if step not in range(self.steps):
            raise Misuse(f"task.report: no window {step}: windows are numbered from 0 to {self.steps - 1}")

    def _in_order(self, values: Mapping[str, Any], *, copied: bool = False) -> list[torch.Tensor | None]:
        """Values of parameters in the model's order; None if there is none."""
        with torch.device("meta"):
            model = module(self._spec["model"])
        named = dict(model.named_parameters(remove_duplicate=False))
        found: dict[torch.Tensor, torch.Tensor] = {}
        for name, value in values.items():
            tensor = torch.as_tensor(value)
            if name not in named:
                raise Misuse(f"task.report: unknown parameter {name!r} (parameters: {', '.join(named)})")
            if tensor.shape != named[name].shape:
                raise Misuse(f"task.report: {name} has shape {[*tensor.shape]}, expected {[*named[name].shape]}")
            found[named[name]] = tensor.detach().clone() if copied else tensor
        return [found.get(parameter) for parameter in model.parameters()]

    def dataloader(self, rank: int | None = None, format: Format | None = None) -> DataLoader[Any]:
        """The micro-batches of this rank (or of `rank`) in order: one pass is the whole training run.

        format: of each micro-batch: None, a `Batch`; `tuple`, (inputs, targets); `dict`, {"inputs": ..., "targets":
        ...}, both with weights if the loss is weighted; or a function of a `Batch`. The same for the loaders below.
        """
        sampler = MicroBatches(self._stream, self.rank if rank is None else rank, self.micro_batch_size)
        return DataLoader(self._stream, batch_sampler=sampler, collate_fn=partial(collate, format=format))

    def global_dataloader(self, format: Format | None = None) -> DataLoader[Any]:
        """All samples of all epochs in order, in micro-batches, for frameworks that distribute them to the ranks
        themselves."""
        return DataLoader(self._stream, batch_size=self.micro_batch_size, collate_fn=partial(collate, format=format))

    def windows(self, rank: int | None = None) -> Iterator[list[Batch]]:
        """The micro-batches of `dataloader(rank)` in accumulation windows; the last one of an epoch may be shorter."""
        for epoch in self.epochs(rank):
            yield from epoch.windows()

    def in_windows(self, micro_batches: Iterable[T]) -> Iterator[list[T]]:
        """The micro-batches of your own loader in one epoch, in accumulation windows; the last one may be shorter."""
        left = iter(micro_batches)
        while window := list(itertools.islice(left, self.accumulation)):
            yield window

    def epochs(self, rank: int | None = None) -> Iterator[Epoch]:
        """`windows(rank)`, epoch by epoch."""
        windows = planned_windows(self._spec, self.rank if rank is None else rank)
        for number, planned in itertools.groupby(windows, lambda window: window.epoch):
            yield Epoch(number, self._samples, list(planned))

    def epochs_until_stop(self) -> int:
        """How many epochs to train until `stop_after`, or all, for frameworks that save only at the end of an epoch.

        Raises `Unsupported` for a stop inside an epoch.
        """
        ends = list(itertools.accumulate(len(list(epoch.windows())) for epoch in self.epochs()))
        if self.stop_after is None:
            return len(ends)
        if self.stop_after not in ends:
            raise Unsupported("a stop inside an epoch: checkpoints are saved only at the end of an epoch")
        return 1 + ends.index(self.stop_after)

    def dataset(self, format: Format | None = None) -> Samples:
        """The samples of one epoch, for your own loaders: `DataLoader(task.dataset(), task.micro_batch_size,
        sampler=task.sampler())` makes the `Batch`es of this rank, as `set_epoch` of the sampler orders them.

        format: of each sample, as for `dataloader`. torch's own collate function makes batches of the same format.
        """
        return self._samples if format is None else Samples(self._spec, self.device, self.dtype, format)

    def sampler(self, epoch: int = 0, rank: int | None = None) -> Order:
        """The samples of this rank (or of `rank`) in `epoch`, in order. It is a `DistributedSampler`: all epochs have
        the order of the first unless you call `set_epoch`."""
        return Order(self._samples, self._spec, self.rank if rank is None else rank, epoch)

    def global_sampler(self) -> GlobalOrder:
        """The samples of all ranks in the epoch of the last `set_epoch`, in order, for frameworks that take a sampler
        and distribute its micro-batches to the ranks themselves."""
        return GlobalOrder(self._samples, self._spec)

    def leave_torchrun(self) -> None:
        """With one process, removes LOCAL_RANK, as if `python script.py` had started it: a framework that finds the
        variable, as Accelerate does, would use DDP. Does nothing with several."""
        if self.world_size == 1:
            os.environ.pop("LOCAL_RANK", None)


def _folder(path: str | None) -> Path | None:
    return None if path is None else Path(path)


def _place(device: str, local_rank: int, local_size: int) -> tuple[torch.device, Literal["gloo", "nccl"]]:
    if device != "cuda":
        return torch.device(device), "gloo"
    count = torch.cuda.device_count()
    # NCCL refuses two ranks on one GPU; gloo carries CUDA tensors too.
    return torch.device("cuda", local_rank % max(count, 1)), "nccl" if count >= local_size else "gloo"
