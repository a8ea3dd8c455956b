"""A trainer's interface: the `@trainer` decorator and its frozen `Declaration`, the `Unsupported` error, and the `Job`
of a trainer that launches its workers.

Nothing here imports torch: the front process reads declarations.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, overload

from conformance.adapter.backends import BACKENDS
from conformance.workloads import model, precision
from conformance.workloads.behaviour import DECLARABLE

BACKEND_NAMES = tuple(BACKENDS)
PRECISIONS = tuple(precision.PRECISIONS)
LAYOUTS = ("samples", "batched", "accumulated")
LOSSES = ("mean", "weighted")
CLIPS = ("norm", "value")
AVERAGES = ("ema", "swa")
OPTIMIZERS = ("sgd", "adamw", "adagrad")
SCHEDULES = ("step", "epoch")
MODELS = tuple(model.MODELS)
LOSS_SCALES = ("task", "own")

ATTRIBUTE = "__conformance__"
SESSION = "__conformance_session__"

Function = TypeVar("Function", bound=Callable[..., None])
Session: TypeAlias = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Declaration:
    """What a trainer supports. Other cases are reported as UNSUPPORTED and not run.

    Raises ValueError for an unknown value: one line that names the allowed ones.
    """

    backends: tuple[str, ...] = ("single",)
    precisions: tuple[str, ...] = ("fp32",)
    layouts: tuple[str, ...] = ("batched", "accumulated")
    losses: tuple[str, ...] = ("mean",)
    clips: tuple[str, ...] = ("norm", "value")
    averages: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = OPTIMIZERS
    schedules: tuple[str, ...] = ("step",)
    world_sizes: tuple[int, ...] = (2, 3, 4)
    accumulations: tuple[int, ...] = (2, 3, 4)
    parameter_groups: tuple[int, ...] = (1, 2, 3)
    models: tuple[str, ...] = MODELS
    requires: tuple[str, ...] = ()
    launches_workers: bool = False
    resume: bool = False
    survives_kill: bool = False
    resumes_inside_windows: bool = False
    random_state: bool = False
    elastic: bool = False
    unfreezes: bool = False
    unused_parameters: bool = False
    sparse: bool = False
    buffers: bool = False
    own_order: bool = False
    loss_scale: str = "task"
    name: str | None = None
    last_window: str | None = None
    last_batch: str | None = None
    schedule_on_skip: str | None = None

    def __post_init__(self) -> None:
        self._set("backends", _names("backends", "backend", self.backends, BACKEND_NAMES))
        self._set("precisions", _names("precisions", "precision", self.precisions, PRECISIONS))
        self._set("layouts", _names("layouts", "layout", self.layouts, LAYOUTS))
        self._set("losses", _names("losses", "loss", self.losses, LOSSES))
        self._set("clips", _names("clips", "clip", self.clips, CLIPS, may_be_empty=True))
        self._set("averages", _names("averages", "average", self.averages, AVERAGES, may_be_empty=True))
        self._set("optimizers", _names("optimizers", "optimizer", self.optimizers, OPTIMIZERS))
        self._set("schedules", _names("schedules", "schedule by", self.schedules, SCHEDULES, may_be_empty=True))
        if self.loss_scale not in LOSS_SCALES:
            raise ValueError(_unknown("loss_scale", str(self.loss_scale), LOSS_SCALES))
        self._set("world_sizes", _counts("world_sizes", self.world_sizes))
        self._set("accumulations", _counts("accumulations", self.accumulations))
        self._set("parameter_groups", _counts("parameter_groups", self.parameter_groups, of=(1, 2, 3)))
        self._set("models", _names("models", "model", self.models, MODELS))
        self._set("requires", _names("requires", "requirement", self.requires, None, may_be_empty=True))
        for switch in (field.name for field in dataclasses.fields(self) if field.type == "bool"):
            if not isinstance(value := getattr(self, switch), bool):
                raise ValueError(f"{switch} is True or False, not {value!r}")
        for further in ("survives_kill", "resumes_inside_windows", "elastic", "random_state"):
            if getattr(self, further) and not self.resume:
                raise ValueError(f"{further} needs a trainer that resumes: add resume=True")
        name: object = self.name
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise ValueError(f"name must be a non-empty string, not {name!r}")
        for choice, ways in DECLARABLE.items():
            if (way := getattr(self, choice)) is not None and way not in ways:
                raise ValueError(_unknown(choice, str(way), ways))

    @property
    def behaviour(self) -> dict[str, str]:
        """Its declared choices, by `conformance.workloads.behaviour`."""
        return {choice: way for choice in DECLARABLE if (way := getattr(self, choice)) is not None}

    def _set(self, field: str, value: tuple[Any, ...]) -> None:
        object.__setattr__(self, field, value)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, one entry per field."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Declaration:
        """The inverse of `to_dict`. Raises ValueError for an unknown field."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(_unknown("argument of @trainer", key, known))
        return cls(**values)


class Unsupported(Exception):
    """Raised by a trainer for a case that its framework does not support: `raise Unsupported("no dampening")`.

    The case is UNSUPPORTED, with that reason, if any rank raises it before the first optimizer step. After a step,
    which may have been wrong, it is a CRASH.
    """


class Misuse(ValueError):
    """A trainer uses its task in a way that trains something else: the case is SETUP, with this reason."""


class UnsupportedModel(Unsupported, AttributeError):
    """A trainer uses an attribute of `torch.nn.Linear` that the task's model lacks."""


class UnsupportedGroups(Unsupported, ValueError):
    """A trainer asks for an optimizer of one flat parameter, which cannot have several groups."""


@dataclass(frozen=True)
class Job:
    """One case, for the process that launches its workers.

    world_size: how many workers to start; each must call `conformance.enter(job.ticket, rank)` once, with its own
    rank from 0 to world_size - 1.
    steps: the number of optimizer steps (accumulation windows), for frameworks whose driver counts them.
    checkpoint_dir, resume_from: those of the workers' `Task`, for frameworks whose driver names them.
    ticket: the input of `enter`, as plain JSON values: send it to the workers in any way.
    session: the value that the trainer's session yielded, or None.
    """

    world_size: int
    steps: int
    ticket: dict[str, Any]
    session: Any = None
    checkpoint_dir: Path | None = None
    resume_from: Path | None = None


@overload
def trainer(function: Function, /) -> Function: ...


@overload
def trainer(
    *,
    backends: Iterable[str] = ...,
    precisions: Iterable[str] = ...,
    layouts: Iterable[str] = ...,
    losses: Iterable[str] = ...,
    clips: Iterable[str] = ...,
    averages: Iterable[str] = ...,
    optimizers: Iterable[str] = ...,
    schedules: Iterable[str] = ...,
    world_sizes: Iterable[int] = ...,
    accumulations: Iterable[int] = ...,
    parameter_groups: Iterable[int] = ...,
    models: Iterable[str] = ...,
    requires: Iterable[str] = ...,
    launches_workers: bool = ...,
    resume: bool = ...,
    survives_kill: bool = ...,
    resumes_inside_windows: bool = ...,
    random_state: bool = ...,
    elastic: bool = ...,
    unfreezes: bool = ...,
    unused_parameters: bool = ...,
    sparse: bool = ...,
    buffers: bool = ...,
    own_order: bool = ...,
    loss_scale: Literal["task", "own"] = ...,
    session: Session | None = ...,
    name: str | None = ...,
    last_window: Literal["step", "drop", "carry", "pad"] | None = ...,
    last_batch: Literal["use", "drop", "pad", "join"] | None = ...,
    schedule_on_skip: Literal["wait", "advance"] | None = ...,
) -> Callable[[Function], Function]: ...


def trainer(
    function: Function | None = None, /, *, session: Session | None = None, **declares: Any
) -> Function | Callable[[Function], Function]:
    """Marks a function as a trainer under test and states what it supports.

    backends: of "single", "ddp", "horovod", "fsdp2", "zero-redundancy", "deepspeed", "parameter-server", "ring",
    "ring-gather", "ray", "ray-train".
    precisions: of "fp64", "fp32", "bf16", "fp16", "fp16-compression" (Horovod's), "apex-O1" (on a GPU only).
    layouts: of "samples" (one sample at a time, a window is the whole batch), "batched", "accumulated".
    losses: of "mean", "weighted".
    clips: of "norm", "value"; empty if it cannot clip.
    averages: of "ema", "swa": averages of the weights that it keeps next to the model and evaluates with
    (`task.average`), and reports with `task.report_average`.
    optimizers: of "sgd", "adamw", "adagrad": those of torch that it can step with all their settings. For an
    unsupported setting, raise `conformance.Unsupported` before the first step.
    schedules: of "step", "epoch": what its learning-rate schedules may count; empty if the rate is constant. "epoch"
    adds cases whose `task.schedule_by` is "epoch": the scheduler must be stepped once per epoch.
    world_sizes, accumulations: supported numbers of ranks, and of micro-batches in a window.
    parameter_groups: of 1, 2, 3: supported numbers of optimizer groups. With 2, `task.optimizer` has a group for
    vectors and scalars, with 3 one for each of the two. Each group has its own settings and schedule, which the trainer
    must keep. Use (1,) if it cannot, because it steps one flat parameter or uses one rate.
    models: of "linear" (`torch.nn.Linear`), "many-tensors" (ten parameters of all shapes, one tied, one an embedding),
    "large-tensors" (the same, with seven million elements), "two-layers" (a product of two matrices), "counting" (a
    Linear with buffers). Leave some out only if the trainer cannot train any module, because it computes by itself.
    requires: modules that must be importable; if one is missing, cases are UNAVAILABLE.
    launches_workers: the function runs once per case, gets a `Job`, and starts the workers itself. Each worker calls
    `conformance.enter` for its task.
    resume: it stops after `task.stop_after` windows, saves in `task.checkpoint_dir`, and if `task.resume_from` is set,
    resumes from there in new processes.
    survives_kill: rank 0 saves after each window of `task.save_after`. If it is killed while it saves, in a file or
    between two, it resumes from the last complete checkpoint. Each must be written before the next window.
    resumes_inside_windows: it also stops after `task.stop_inside` micro-batches of the next window, and resumes there
    with the sum of their gradients, or trains that window from its start.
    random_state: after it resumes, each rank continues the model's sequence of random numbers, as for dropout.
    elastic: it also resumes with another of its `world_sizes`, or with one process. Global batches stay the same, so
    `task.micro_batch_size` changes.
    unfreezes: it also trains the model's frozen parameters from window `task.unfreeze_at` on, clips them, and steps
    them by the schedule's current rate; parameters trained before keep their momentum.
    unused_parameters: it trains models in which some samples use only some parameters, such as a mixture of experts;
    `task.unused_parameters` says whether the model is one.
    sparse: it trains models with sparse gradients, such as those of `Embedding(..., sparse=True)`.
    buffers: it trains models whose forwards update buffers in training mode, such as running statistics, and saves
    these in its checkpoints.
    own_order: if `task.own_order` is true, it shuffles and divides `task.dataset()` itself, as frameworks do that make
    their own loaders. Each sample must be read once per epoch.
    loss_scale: "task" if it scales its loss with `task.grad_scaler()` or starts from `task.loss_scale`; "own" if a
    framework starts from its own scale. fp16 cases then have numbers so small that 65536, torch's default, and the
    powers of two around it fit. Their ids end with "own-scale".
    session: a context manager function for resources that cases share, such as a local cluster; needs
    `launches_workers`. It is entered in a separate process before the first case; `job.session` is the value that it
    yields, plain JSON values.
    name: its name in reports; by default the last part of the module's name, or the function's name if the module has
    several trainers.

    Choices where several behaviours are valid; None, the default, states nothing. A case fails if the trainer does
    something else than stated. If nothing is stated and the behaviour costs the user something, there is a warning:

    last_window: an accumulation window with fewer micro-batches than the others: "step" by its true length, "drop" it
    and clear its gradients, "carry" its gradients into the next epoch, or "pad" it by repeating samples.
    last_batch: a last batch with fewer samples than the others: "use" it as it is, "drop" it (`drop_last=True`), or
    "pad" it by repeating samples, as `DistributedSampler` does. "join": use it, also where only some ranks have samples
    left; the others join, as in torch's `Join` or with Horovod's `join()`, and end with the same weights. Only trainers
    that declare this get a case in which ranks have different numbers of batches.
    schedule_on_skip: the learning-rate schedule when a loss scaler skips a step: "wait", or "advance" anyway.
    schedule_on_skip: the learning-rate schedule when a loss scaler skips a step: "wait", or "advance" anyway.
    The defaults are those of `Declaration`. The decorated function stays a plain callable:
    The defaults are those of `Declaration`. The decorated function stays a plain callable:
    `def train(task: Task) -> None`. Raises ValueError for values not in these lists, and for an async or generator
    function, whose call runs nothing.
    """
    declaration = Declaration.from_dict(declares)
    if session is not None and not declaration.launches_workers:
        raise ValueError("session needs a trainer that launches its workers: add launches_workers=True")

    def declare(function: Function) -> Function:
        if not callable(function):
            raise ValueError(f"@trainer decorates a function, not {function!r}")
        if (kind := _runs_nothing(function)) is not None:
            name = getattr(function, "__name__", "it")
            raise ValueError(
                f"@trainer decorates a function that trains when called, but {name} is {kind}: calling it runs "
                f"nothing of its body; write a plain `def {name}(task)` that runs the training to its end"
            )
        try:
            setattr(function, ATTRIBUTE, declaration)
            setattr(function, SESSION, session)
        except AttributeError as error:
            raise ValueError(
                f"@trainer cannot mark {function!r}: it takes no attributes; write a function that calls it"
            ) from error
        return function

    return declare if function is None else declare(function)


def _runs_nothing(function: Callable[..., None]) -> str | None:
    """Names the kind of a function whose call returns before its body runs; None for any other."""
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called):
            return "an async function"
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            return "a generator function"
    return None


def declared(candidate: object) -> Declaration | None:
    """The declaration that `@trainer` attached to `candidate`, or None."""
    try:
        found = getattr(candidate, ATTRIBUTE, None)
    except Exception:
        # Some objects raise other errors for missing names, such as a dict whose items are attributes.
        return None
    return found if isinstance(found, Declaration) else None


def session_of(function: object) -> Session | None:
    """The session that `@trainer` got for `function`, or None."""
    session: Session | None = getattr(function, SESSION, None)
    return session


def did_you_mean(wrong: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'ddp'?`, or nothing when no allowed name is close."""
    close = difflib.get_close_matches(wrong, list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _unknown(what: str, wrong: str, allowed: Iterable[str]) -> str:
    allowed = list(allowed)
    return f"unknown {what} {wrong!r} (allowed: {', '.join(allowed)}){did_you_mean(wrong, allowed)}"


def _names(
    field: str, what: str, values: Any, allowed: tuple[str, ...] | None, *, may_be_empty: bool = False
) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{field} takes a list of names such as {field}=[{str(values)!r}], not {values!r}")
    names = tuple(values)
    if not names and not may_be_empty:
        raise ValueError(f"{field} is empty; name at least one of {', '.join(allowed or ())}")
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{field} takes names, not {name!r}")
        if allowed is not None and name not in allowed:
            raise ValueError(_unknown(what, name, allowed))
    return tuple(dict.fromkeys(names))


def _counts(field: str, values: Any, of: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Whole numbers of at least 2, or some ``of`` these."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{field} takes a list of whole numbers such as {field}={list(of) or [2, 4]}, not {values!r}")
    counts = tuple(values)
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or (count not in of if of else count < 2):
            allowed = f"of {', '.join(map(str, of))}" if of else "from 2 on"
            raise ValueError(f"{field} takes whole numbers {allowed}, not {count!r}")
    return tuple(dict.fromkeys(counts))
