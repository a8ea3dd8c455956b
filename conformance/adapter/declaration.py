"""What a trainer says about itself: the `@trainer` decorator and the frozen `Declaration` that it attaches, what it
raises for a case that it has no place for, and the `Job` of one that launches its workers.

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
    """What a trainer supports. Cases that it does not declare are reported as UNSUPPORTED and not run.

    Raises ValueError, one line that names the allowed values, for anything unknown.
    """

    backends: tuple[str, ...] = ("single",)
    precisions: tuple[str, ...] = ("fp32",)
    layouts: tuple[str, ...] = ("batched", "accumulated")
    losses: tuple[str, ...] = ("mean",)
    clips: tuple[str, ...] = ("norm", "value")
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
                raise ValueError(f"{further} is for a trainer that can be resumed: add resume=True")
        name: object = self.name
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise ValueError(f"name must be a non-empty string, not {name!r}")
        for choice, ways in DECLARABLE.items():
            if (way := getattr(self, choice)) is not None and way not in ways:
                raise ValueError(_unknown(choice, str(way), ways))

    @property
    def behaviour(self) -> dict[str, str]:
        """What it says of the choices in `conformance.workloads.behaviour`."""
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
    """A trainer raises it for a case that its framework has no place for: `raise Unsupported("no dampening")`.

    The case is UNSUPPORTED, with that reason, if any rank raises it before the first optimizer step. After a step,
    which may have been a wrong one, it is a CRASH.
    """


class UnsupportedModel(Unsupported, AttributeError):
    """A trainer asks the task's model for what a `torch.nn.Linear` has and this one has not."""


class UnsupportedGroups(Unsupported, ValueError):
    """A trainer asks for an optimizer of a flat parameter, which cannot have several groups."""


@dataclass(frozen=True)
class Job:
    """One case, as the process that launches its workers sees it.

    world_size: how many workers to start; each must call `conformance.enter(job.ticket, rank)` once, with its own
    rank from 0 to world_size - 1.
    steps: optimizer steps (accumulation windows) in all, for frameworks whose driver counts them.
    checkpoint_dir, resume_from: those of the workers' `Task`, for frameworks whose driver names them.
    ticket: what `enter` needs, as plain JSON values: send it to the workers in any way.
    session: what the trainer's session yielded, or None.
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
    """Mark a function as a trainer under test and declare what it supports.

    backends: of "single", "ddp", "horovod", "fsdp2", "zero-redundancy", "deepspeed", "parameter-server", "ring",
    "ring-gather", "ray", "ray-train".
    precisions: of "fp64", "fp32", "bf16", "fp16", "fp16-compression" (Horovod's), "apex-O1" (on a GPU only).
    layouts: of "samples" (one sample at a time, a window is the whole batch), "batched", "accumulated".
    losses: of "mean", "weighted".
    clips: of "norm", "value"; empty when it cannot clip.
    optimizers: of "sgd", "adamw", "adagrad": of torch's, those that it can step with all their settings. For a setting
    that it has no place for, raise `conformance.Unsupported` before the first step.
    schedules: of "step", "epoch": what its learning-rate schedules may count; empty when the rate stays as it is. With
    "epoch" there are cases whose `task.schedule_by` is "epoch", in which the scheduler must be stepped once an epoch.
    world_sizes, accumulations: the numbers of ranks, and of micro-batches in a window, that it can do.
    parameter_groups: of 1, 2, 3: how many groups the optimizer may have. With 2, `task.optimizer` has a group for
    vectors and scalars, with 3 one for each of the two; groups have settings and a schedule of their own, which the
    trainer must keep. Declare (1,) if it has no place for them, because it steps one flat parameter or by one rate.
    models: of "linear" (`torch.nn.Linear`), "many-tensors" (ten parameters of all ranks, one of them tied, one an
    embedding), "large-tensors" (the same, of seven million elements), "two-layers" (a product of two matrices),
    "counting" (a Linear with buffers). Leave the others out only if the trainer does not take any module, because it
    computes by itself.
    requires: modules that must be importable; a missing one is reported as UNAVAILABLE.
    launches_workers: the function runs once a case, gets a `Job`, and starts the workers itself. Each worker calls
    `conformance.enter` for its task.
    resume: it stops after `task.stop_after` windows, saves in `task.checkpoint_dir`, and goes on from there, in fresh
    processes, if there is a `task.resume_from`.
    survives_kill: it saves whenever it has trained one of `task.save_after` windows, in the process of rank 0, and if
    it is killed meanwhile, in a file or between two, it goes on from the last whole checkpoint. Each must be written
    before the next window.
    resumes_inside_windows: it also stops after `task.stop_inside` micro-batches of the next window, and goes on from
    there with what their gradients add up to, or trains that window from its beginning.
    random_state: when it goes on, the model draws the random numbers that come next, as for dropout, on each rank.
    elastic: it also goes on with other `world_sizes` than it was stopped at, or alone. Global batches stay the same, so
    `task.micro_batch_size` is another one.
    unfreezes: it trains the frozen parameters of the model, too, from the window `task.unfreeze_at` on, clips them, and
    steps them by the rate that the schedule has by then; what it trained before keeps its momentum.
    unused_parameters: it trains models of which some samples do not use some parameters, such as a mixture of experts;
    `task.unused_parameters` says whether it is one.
    sparse: it trains models of which some parameters have sparse gradients, such as `Embedding(..., sparse=True)`.
    buffers: it trains models with buffers that their forwards update in training mode, such as running statistics, and
    keeps them, in its checkpoints, too.
    own_order: where `task.own_order` is true, it shuffles and shares out `task.dataset()` itself, as frameworks do that
    make their own loaders. Each sample must be read once in an epoch.
    loss_scale: "task" if it scales its loss with `task.grad_scaler()` or begins with `task.loss_scale`; "own" if a
    framework begins with a scale of its own. Then the numbers of cases in fp16 are so small that 65536 fits, torch's
    default, and so do the powers of two around it. Their ids end with "own-scale".
    session: for such a trainer, a context manager function for what its cases share, such as a local cluster. It is
    entered in a separate process before the first case; what it yields, plain JSON values, is `job.session`.
    name: its name in reports; by default the last part of the module's name, or the function's name if the module has
    several trainers.

    What it does where several ways are right; the default is to declare nothing. Done otherwise than declared, a case
    fails; not declared and done at the user's expense, there is a warning:

    last_window: an accumulation window with fewer micro-batches than the others: "step" by its true length, "drop" it
    and clear its gradients, "carry" its gradients into the next epoch, or "pad" it by repeating samples.
    last_batch: a last batch with fewer samples than the others: "use" it as it is, "drop" it (`drop_last=True`), or
    "pad" it by repeating samples, as `DistributedSampler` does. "join": use it, also where only some ranks have samples
    left; the others join, as in torch's `Join` or with Horovod's `join()`, and end with the same weights. Only trainers
    that declare this get a case in which ranks have different numbers of batches.
    schedule_on_skip: the learning-rate schedule when a loss scaler skips a step: "wait", or "advance" all the same.

    The defaults are those of `Declaration`. The decorated function stays a plain callable:
    `def train(task: Task) -> None`. Raises ValueError for values that are not in these lists, and for an async or
    generator function, of which a call runs nothing.
    """
    declaration = Declaration.from_dict(declares)
    if session is not None and not declaration.launches_workers:
        raise ValueError("session is for a trainer that launches its workers: add launches_workers=True")

    def declare(function: Function) -> Function:
        if not callable(function):
            raise ValueError(f"@trainer decorates a function, not {function!r}")
        if (kind := _runs_nothing(function)) is not None:
            name = getattr(function, "__name__", "it")
            raise ValueError(
                f"@trainer decorates a function that trains when it is called, but {name} is {kind}: calling it runs "
                f"nothing of its body; write a plain `def {name}(task)` that runs it to its end"
            )
        try:
            setattr(function, ATTRIBUTE, declaration)
            setattr(function, SESSION, session)
        except AttributeError as error:
            raise ValueError(
                f"@trainer cannot mark {function!r}, which takes no attributes; write a function that calls it"
            ) from error
        return function

    return declare if function is None else declare(function)


def _runs_nothing(function: Callable[..., None]) -> str | None:
    """What a function is whose call returns before its body has begun; None for any other."""
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called):
            return "an async function"
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            return "a generator function"
    return None


def declared(candidate: object) -> Declaration | None:
    """The declaration that `@trainer` attached to `candidate`, if any."""
    try:
        found = getattr(candidate, ATTRIBUTE, None)
    except Exception:
        # Some objects raise something else for a name that they lack, such as a dict whose items are attributes.
        return None
    return found if isinstance(found, Declaration) else None


def session_of(function: object) -> Session | None:
    """The session that `@trainer` was given for `function`, if any."""
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
    """Whole numbers from 2 on, or some ``of`` these."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{field} takes a list of whole numbers such as {field}={list(of) or [2, 4]}, not {values!r}")
    counts = tuple(values)
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or (count not in of if of else count < 2):
            allowed = f"of {', '.join(map(str, of))}" if of else "from 2 on"
            raise ValueError(f"{field} takes whole numbers {allowed}, not {count!r}")
    return tuple(dict.fromkeys(counts))
