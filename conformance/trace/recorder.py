"""The recorder: watches one rank's training run and emits one plain dict per event.

    with Recorder(emit, spec, rank) as recorder:
        recorder.note("started", pid=os.getpid())      # the runner's own events go through the recorder too,
        task = Task(spec, rank, recorder)              # so that `seq` runs through all of them
        function(task)
        recorder.finished(task)                        # notes topology (if not yet noted) and `finished`
    # "raised" is the runner's: recorder.note("raised", type=..., message=..., traceback=...)

A loop of one's own, without a task, has its model watched:

    with Recorder(emit) as recorder:
        recorder.watch(model)
        ...

It reads and never writes: no random number is drawn, no tensor of the trainer's is changed, no collective
issued. What it puts into torch's and Horovod's modules is gone when the `with` ends. It may be entered again, and
goes on where it was; of several recorders in a process one is entered at a time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from types import TracebackType
from typing import Any

import torch

from conformance.trace.observers import topology
from conformance.trace.observers.apex import observing_apex
from conformance.trace.observers.autocast import observing_autocast
from conformance.trace.observers.backward import Backwards, Flow, observing_backwards
from conformance.trace.observers.clearing import observing_clearing
from conformance.trace.observers.clipping import observing_clipping
from conformance.trace.observers.collectives import Collectives, observing_broadcasts, observing_c10d
from conformance.trace.observers.ddp import observing_ddp
from conformance.trace.observers.forward import Forwards
from conformance.trace.observers.fsdp import observing_fsdp
from conformance.trace.observers.horovod import horovod_settings, observing_horovod
from conformance.trace.observers.messages import Messages, observing_messages
from conformance.trace.observers.optimizer import observing_steps, unwrapped
from conformance.trace.observers.scaler import observing_scalers
from conformance.trace.observers.schedule import observing_schedules
from conformance.trace.observers.wrappers import Wrappers, observing_ddp_forwards
from conformance.trace.state.gradients import Gradients
from conformance.trace.state.numbers import Numbers
from conformance.trace.state.progress import Progress
from conformance.trace.state.site import Sites
from conformance.trace.state.watched import Watched, held_by
from conformance.trace.values import Number


class _Doing:
    """Something that is being done while this context lasts; contexts of several threads, or of steps that were
    interrupted, need not end in order."""

    def __init__(self, what: str, all_: list[_Doing]) -> None:
        self.what = what
        self._all = all_

    def __enter__(self) -> None:
        self._all.append(self)

    def __exit__(self, *error: object) -> None:
        self._all.remove(self)


class Recorder:
    """Composes the observers and holds what they share.

    trainer_file: the trainer's own file, as its frames name it (`co_filename`); it may be set later.
    watched: the parameters of the watched model; gradients: what became of their `.grad`.
    wrappers: what the model is wrapped in; flow: which forwards a backward flows through.
    forwards, steps: training forwards and applied optimizer steps so far.
    scale: the loss scale while an enabled GradScaler is in its `step`, else None.
    """

    def __init__(
        self,
        emit: Callable[[dict[str, Any]], None],
        spec: dict[str, Any] | None = None,
        rank: int = 0,
        trainer_file: str | None = None,
    ) -> None:
        self._emit = emit
        self._rank = rank
        self._seq = count()
        self._topology_noted = False
        self._groups: set[torch.distributed.ProcessGroup] = set()
        self._stack = ExitStack()
        self._sites = Sites(trainer_file)
        self._numbers = Numbers()
        self._doing: list[_Doing] = []
        self.last_seq = -1
        self.progress = Progress.of(spec, rank)
        self.watched = Watched(None if spec is None else shapes(spec["model"]))
        self.gradients = Gradients(self)
        self.wrappers = Wrappers()
        self.flow = Flow(self.progress.used)
        self._forwards = Forwards(self, None if spec is None else spec["samples"]["x"])
        self._backwards = Backwards(self)
        self.collectives = Collectives(self)
        self.messages = Messages(self)
        self.forwards = 0
        self.steps = 0
        self.scale: Number = None

    def __enter__(self) -> Recorder:
        with ExitStack() as stack:
            stack.enter_context(observing_autocast(self))
            stack.enter_context(self._forwards)
            stack.enter_context(observing_backwards(self._backwards))
            stack.enter_context(observing_clipping(self))
            stack.enter_context(observing_clearing(self))
            stack.enter_context(observing_scalers(self))
            stack.enter_context(observing_steps(self))
            stack.enter_context(observing_schedules(self))
            stack.enter_context(observing_ddp_forwards(self))
            stack.enter_context(observing_c10d(self))
            stack.enter_context(observing_messages(self))
            stack.enter_context(observing_broadcasts(self))
            stack.enter_context(observing_ddp(self))
            stack.enter_context(observing_fsdp(self))
            stack.enter_context(observing_horovod(self))
            stack.enter_context(observing_apex(self))
            self._stack.push(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def trainer_file(self) -> str | None:
        return self._sites.trainer_file

    @trainer_file.setter
    def trainer_file(self, path: str | None) -> None:
        self._sites.trainer_file = path

    def note(self, event: str, **fields: Any) -> None:
        """Emit {"event", "rank", "seq", "time", "window", "micro_batch", "where", **fields}, and "called_from" if that
        is elsewhere. The fields are plain JSON values."""
        where, called_from = self._sites.of(sys._getframe(1))
        self.last_seq = next(self._seq)
        noted = {
            "event": event,
            "rank": self._rank,
            "seq": self.last_seq,
            "time": time.monotonic(),
            "window": self.progress.window,
            "micro_batch": self.progress.micro_batch,
            "where": where,
        }
        if called_from is not None:
            noted["called_from"] = called_from
        noted.update(fields)
        self._emit(noted)

    def doing(self, what: str) -> AbstractContextManager[None]:
        """Within this, `during` is `what`: "forward", "backward", "synchronize" or "step"."""
        return _Doing(what, self._doing)

    @property
    def during(self) -> str | None:
        """What is being done, the innermost first asked; None outside of all."""
        return self._doing[-1].what if self._doing else None

    def is_doing(self, what: str) -> bool:
        """Whether `what` is being done, innermost or not."""
        return any(begun.what == what for begun in self._doing)

    def number(self, kind: str, thing: object) -> int:
        """The small number of a "scaler", a "scheduler", a "model" ..., in order of first sight."""
        return self._numbers.of(kind, thing)

    def known(self, kind: str) -> list[Any]:
        """The numbered things of a kind that still exist."""
        return self._numbers.alive(kind)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> int:
        """Its number; `optimizer` is noted at first sight."""
        optimizer = unwrapped(optimizer)
        number = self._numbers.known("optimizer", optimizer)
        if number is not None:
            return number
        number = self._numbers.of("optimizer", optimizer)
        held = held_by(optimizer)
        is_horovods, passes = horovod_settings(optimizer)
        self.note(
            "optimizer",
            optimizer=number,
            type=type(optimizer).__name__,
            parameters=self.watched.numbers(held),
            trainable=self.watched.numbers(parameter for parameter in held if parameter.requires_grad),
            horovod=is_horovods,
            backward_passes_per_step=passes,
            state=len(optimizer.state) > 0,
        )
        return number

    def note_topology(self) -> None:
        """What was reached, once."""
        if not self._topology_noted:
            self._topology_noted = True
            self.note("topology", **topology.reached())

    def keep_alive(self, groups: Iterable[torch.distributed.ProcessGroup]) -> None:
        """Hold on to process groups for as long as the recorder lives.

        A trainer that destroys its process group before its DDP model is gone hangs now and then (torch
        2.13): the model's reducer then owns the group and frees it with the GIL held, which joins the group's
        threads while one of them waits for the GIL to let go of the last collective.
        """
        self._groups.update(groups)

    def watch(self, model: torch.nn.Module) -> None:
        """`Task.model()` calls this with each model it hands out."""
        self.watched.add(model)
        self._forwards.observe(type(model))
        self.gradients.known()
        self.note("model", model=self.number("model", model), shapes=[list(p.shape) for p in model.parameters()])

    def finished(self, task: object) -> None:
        """The trainer's function returned."""
        self.note_topology()
        self.note("finished", weights=self.watched.weights())


def shapes(model: dict[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of the parameters of the model that a spec describes."""
    return [(1, model["features"]), *([(1,)] if model["bias"] else [])]
