"""One case: a workload in a layout, in a precision, on a backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal

from conformance.workloads.layout import LayoutKind
from conformance.workloads.precision import PRECISIONS, Precision
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import AdamW, Workload

Device = Literal["cpu", "cuda"]
#: How training ends before it is resumed: its processes stop as they are asked to, and it is resumed once or, from the
#: same checkpoint, twice; or they are killed while they save the next one, after as many windows again.
Resumed = Literal["once", "twice", "killed"]


@dataclass(frozen=True)
class Case:
    """Only names, so that a case is cheap to create and to send; ``problem`` builds what they name.

    ``resumed_at``: after how many windows training is stopped, and resumed in fresh processes; None if it runs through.
    """

    backend: str
    layout: LayoutKind
    world_size: int
    accumulation: int
    precision: str
    workload: str
    device: Device = "cpu"
    resumed_at: int | None = None
    resumed: Resumed = "once"

    @property
    def path(self) -> str:
        """Backend and layout: ``single-batched``, ``ddp-w2-acc3``; on a GPU ``cuda-ddp-w2-acc3``."""
        return "-".join(self.parts[:-2])

    @property
    def parts(self) -> tuple[str, ...]:
        """The fields of the id in order; a field may contain hyphens."""
        parts: list[str] = [self.device] if self.device != "cpu" else []
        parts.append(self.backend)
        parts += [f"w{self.world_size}"] if self.world_size > 1 else []
        if self.layout == "accumulated":
            parts.append(f"acc{self.accumulation}")
        elif self.layout == "samples" or self.world_size == 1:
            parts.append(self.layout)
        resumed = "" if self.resumed_at is None else f"-resumed-at-{self.resumed_at}"
        resumed += "" if self.resumed == "once" else f"-{self.resumed}"
        return (*parts, self.precision, self.workload + resumed)

    @property
    def id(self) -> str:
        """For instance ``ddp-w2-acc2-fp16-clip-value``."""
        return "-".join(self.parts)

    @property
    def arithmetic(self) -> Precision:
        return PRECISIONS[self.precision]

    @cached_property
    def problem(self) -> Problem:
        """What the trainer must do.

        Raises:
            ValueError: no global batch of this workload divides over the layout.
        """
        workload, layout = standard(self.workload, self.layout, self.world_size, self.accumulation)
        return Problem(workload, layout, self.arithmetic, self.resumed_at)

    def spec(self) -> dict[str, Any]:
        """The case as it is sent to a rank, in plain JSON values: floats, lists and names."""
        workload, layout = self.problem.workload, self.problem.layout
        return {
            "case": self.id,
            "backend": self.backend,
            "world_size": self.world_size,
            "accumulation": layout.accumulation,
            "micro_batch_size": layout.micro_batch_size,
            "steps": workload.steps,
            "epochs": list(range(workload.epochs)) if workload.shuffle else [0] * workload.epochs,
            "orders": [_order(self.problem, epoch) for epoch in range(workload.epochs if workload.shuffle else 1)],
            "precision": self.precision,
            "loss": workload.loss,
            "device": self.device,
            "resumed_at": self.resumed_at,
            "resumed": self.resumed,
            "unfreeze_at": workload.unfreeze_at,
            "model": {
                "kind": workload.model.name,
                **asdict(workload.model),
                "weights": [_floats(workload.start_of(rank)) for rank in range(self.world_size)],
            },
            "samples": _samples(workload),
            "optimizer": _optimizer(workload),
            "groups": [_plain(group) for group in workload.groups],
            "schedule": None if workload.schedule is None else _floats(workload.schedule[: workload.steps]),
            "clip": _plain(workload.clip),
            "scaler": _plain(workload.scale if self.arithmetic.scaled else None),
        }


def _order(problem: Problem, epoch: int) -> list[list[list[int]]]:
    """Per rank, the numbers of the samples in each micro-batch of an epoch."""
    deal: list[list[list[int]]] = [[] for _ in range(problem.layout.world_size)]
    batches = len(problem.workload.batches)
    for window in problem.windows[epoch * batches : (epoch + 1) * batches]:
        for rank, share in enumerate(window.shares):
            deal[rank] += [[window.samples[index] for index in micro_batch] for micro_batch in share]
    return deal


@lru_cache(maxsize=32)
def _samples(workload: Workload) -> dict[str, list[Any]]:
    """The samples of all batches, cached: many cases share them, and each case builds its spec more than once.

    Do not change the result: all these cases share it.
    """
    samples = [sample for batch in workload.batches for sample in batch]
    return {
        "x": [_floats(sample.x) for sample in samples],
        "y": _floats(sample.y for sample in samples),
        "weight": _floats(sample.weight for sample in samples),
    }


def _floats(values: Any) -> list[float]:
    return [float(value) for value in values]


def _plain(record: Any) -> dict[str, Any] | None:
    """The fields of a record of the workload, which has torch's names for them, with floats for fractions."""
    if record is None:
        return None
    return {name: _float(value) for name, value in vars(record).items() if value is not None}


def _float(value: Any) -> Any:
    return _floats(value) if isinstance(value, tuple) else float(value) if isinstance(value, Fraction) else value


def _optimizer(workload: Workload) -> dict[str, Any]:
    settings = _plain(workload.optimizer) or {}
    if isinstance(workload.optimizer, AdamW):
        settings["betas"] = [settings.pop("beta1"), settings.pop("beta2")]
    if workload.kernel is not None:
        settings[workload.kernel] = True
    return {"kind": type(workload.optimizer).__name__.lower(), **settings}
