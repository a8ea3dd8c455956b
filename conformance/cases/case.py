"""One case: a workload in a layout, in a precision, on a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, repeat
from math import lcm
from typing import Any, Final, Literal

from conformance.workloads.layout import EACH_SAMPLE, Layout, LayoutKind, Orders, Window, windows_of
from conformance.workloads.precision import PRECISIONS, Precision
from conformance.workloads.problem import Problem
from conformance.workloads.registry import at_own_scale, standard
from conformance.workloads.workload import AdamW, Workload

Device = Literal["cpu", "cuda"]
#: How training ends and resumes. "once", "twice": its processes stop when asked, and it resumes once or, from the same
#: checkpoint, twice. "killed": they are killed while they save the next checkpoint, in its first file, after as many
#: windows again; "killed-between-files": after one more window, between its first and second file, so either checkpoint
#: is valid. "inside-window": they stop after the window's first micro-batch. "on-N-ranks": it resumes on N ranks.
Resumed = Literal[
    "once",
    "twice",
    "killed",
    "killed-between-files",
    "inside-window",
    "on-1-rank",
    "on-2-ranks",
    "on-3-ranks",
    "on-4-ranks",
]
BETWEEN_FILES: Final = "killed-between-files"
INSIDE_WINDOW: Final = "inside-window"
_RANKS: dict[str, int] = {"on-1-rank": 1, "on-2-ranks": 2, "on-3-ranks": 3, "on-4-ranks": 4}


@dataclass(frozen=True)
class Case:
    """One case of the matrix. Has only names, so it is cheap to create and to send; ``problem`` builds what they name.

    ``resumed_at``: after how many windows training stops and resumes in new processes; None if it runs through.
    ``orders``: the order in which the ranks have read the samples, if it differs from the workload's.
    ``own_scale``: numbers are so small that the trainer may start from its own loss scale.
    """

    backend: str
    world_size: int
    accumulation: int
    precision: str
    workload: str
    device: Device = "cpu"
    resumed_at: int | None = None
    resumed: Resumed = "once"
    orders: Orders | None = None
    own_scale: bool = False

    @property
    def layout(self) -> LayoutKind:
        if self.accumulation == EACH_SAMPLE:
            return "samples"
        return "accumulated" if self.accumulation > 1 else "batched"

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
        own_scale = "-own-scale" if self.own_scale else ""
        return (*parts, self.precision, self.workload + own_scale + resumed)

    @property
    def id(self) -> str:
        """For instance ``ddp-w2-acc2-fp16-clip-value``. Never parsed: fields contain hyphens, so a case is found by
        comparing ids (`conformance.suite.selection`)."""
        return "-".join(self.parts)

    @property
    def arithmetic(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def problem(self) -> Problem:
        """The problem that the trainer must solve.

        Raises:
            ValueError: no global batch of this workload can be divided over the layout.
        """
        return _problem(self)

    @property
    def world_sizes(self) -> tuple[int, int]:
        """The world sizes before a stop and after it."""
        return self.world_size, _RANKS.get(self.resumed, self.world_size)

    @property
    def resumed_inside(self) -> int:
        """After how many micro-batches of window ``resumed_at`` it stops."""
        return int(self.resumed == INSIDE_WINDOW)

    def spec(self) -> dict[str, Any]:
        """The case as sent to a rank, in plain JSON values: floats, lists and names. ``resumed_with``: the values that
        differ for the ranks that resume it."""
        workload, layout = self.problem.workload, self.problem.layout
        windows = self.problem.windows_of_lives
        shares, *others = map(_shares, self.problem.layouts, repeat(workload), windows, repeat(self.orders))
        return {
            "case": self.id,
            "backend": self.backend,
            **shares,
            "resumed_with": others[0] if others else {},
            "accumulation": layout.accumulation,
            "steps": len(self.problem.windows),
            "epochs": self._epochs(),
            "sampler": workload.sampler,
            "own_order": workload.own_order,
            "precision": self.precision,
            "loss": workload.loss,
            "device": self.device,
            "schedule_by": workload.schedule_by,
            "resumed_at": self.resumed_at,
            "resumed": self.resumed,
            "resumed_inside": self.resumed_inside,
            "unfreeze_at": workload.unfreeze_at,
            "unused_parameters": workload.model.may_go_unused,
            "model": {
                "kind": workload.model.name,
                **asdict(workload.model),
                "weights": [_floats(workload.start_of(rank)) for rank in range(max(self.world_sizes))],
            },
            "samples": _samples(workload),
            "optimizer": _optimizer(workload),
            "groups": [_plain(group) for group in workload.groups],
            "schedule": None if workload.schedule is None else _floats(workload.schedule[: workload.steps]),
            "clip": _plain(workload.clip),
            "average": _plain(workload.average),
            "scaler": _plain(workload.scale if self.arithmetic.scaled else None),
        }

    def _epochs(self) -> list[int]:
        if self.orders is not None:
            return list(range(len(self.orders)))
        workload = self.problem.workload
        return list(range(workload.epochs)) if workload.shuffle else [0] * workload.epochs


# Not in the case: a run keeps all its cases until it ends.
@lru_cache(maxsize=8)
def _problem(case: Case) -> Problem:
    """Raises ValueError, see `Case.problem`."""
    ranks = lcm(*case.world_sizes)
    workload, layout = standard(case.workload, ranks, case.accumulation)
    if case.own_scale:
        workload = at_own_scale(workload)
    if len({*case.world_sizes}) > 1:
        before, after = (Layout.of(workload, size, case.accumulation) for size in case.world_sizes)
        return Problem(workload, before, case.arithmetic, case.resumed_at, resumed_layout=after)
    problem = Problem(workload, layout, case.arithmetic, case.resumed_at, case.resumed_inside)
    if case.orders is None:
        return problem
    return replace(problem, read=windows_of(workload, case.orders, layout.accumulation), in_order=False)


def _shares(layout: Layout, workload: Workload, windows: Sequence[Window], orders: Orders | None) -> dict[str, Any]:
    """How a layout divides the samples; ``orders``: those of the windows, if they are not the layout's."""
    length = workload.windows_of_epoch
    epochs = range(workload.epochs if workload.shuffle else 1)
    return {
        "world_size": layout.world_size,
        "micro_batch_size": layout.micro_batch_size,
        "orders": orders or [_order(windows[epoch * length : (epoch + 1) * length]) for epoch in epochs],
    }


def _order(windows: Sequence[Window]) -> list[list[list[int]]]:
    """Per rank, the numbers of the samples in each micro-batch of an epoch."""
    of_ranks = zip(*(window.numbers for window in windows), strict=True)
    return [[list(micro_batch) for micro_batch in chain(*share)] for share in of_ranks]


@lru_cache(maxsize=32)
def _samples(workload: Workload) -> dict[str, list[Any]]:
    """The samples of all batches, cached because many cases share them and each builds its spec more than once.

    Do not change the result: all these cases share it.
    """
    return {
        "x": [_floats(sample.x) for sample in workload.data],
        "y": _floats(sample.y for sample in workload.data),
        "weight": _floats(sample.weight for sample in workload.data),
    }


def _floats(values: Any) -> list[float]:
    return [float(value) for value in values]


def _plain(record: Any) -> dict[str, Any] | None:
    """The fields of a workload record, which have torch's names, with floats for fractions."""
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
