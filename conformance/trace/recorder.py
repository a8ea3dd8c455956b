"""The recorder: watches one rank's training run and emits one plain dict per event.

    with Recorder(emit, spec, rank) as recorder:
        recorder.note("started", pid=os.getpid())      # the runner's own events go through the recorder too,
        task = Task(spec, rank, recorder)              # so that `seq` runs through all of them
        function(task)
        recorder.finished(task)                        # notes topology (if not yet noted) and `finished`
    # "raised" is the runner's: recorder.note("raised", type=..., message=..., traceback=...)

It reads and never writes: no random number is drawn, no tensor of the trainer's is changed, no collective
issued. What it puts into torch's and Horovod's modules is gone when the `with` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from conformance.trace import topology
from conformance.trace.collectives import observing_c10d
from conformance.trace.events import Number
from conformance.trace.forward import observing_forwards
from conformance.trace.horovod import HorovodCollectives
from conformance.trace.optimizer import observing_steps
from conformance.trace.scaler import observing_scalers
from conformance.trace.watched import Watched


class Recorder:
    """Composes the observers and holds what they share.

    watched: the parameters of the task's model.
    forwards, steps: training forwards and applied optimizer steps so far.
    scale: the loss scale while an enabled GradScaler is in its `step`, else None.
    """

    def __init__(self, emit: Callable[[dict[str, Any]], None], spec: dict[str, Any], rank: int) -> None:
        self._emit = emit
        self._rank = rank
        self._x: list[list[float]] = spec["samples"]["x"]
        self._seq = 0
        self._topology_noted = False
        self._groups: set[torch.distributed.ProcessGroup] = set()
        self._stack = ExitStack()
        self._horovod = HorovodCollectives(self, self._stack)
        self.watched = Watched(spec["model"]["features"], spec["model"]["bias"])
        self.forwards = 0
        self.steps = 0
        self.scale: Number = None

    def __enter__(self) -> Recorder:
        with ExitStack() as stack:
            stack.enter_context(observing_steps(self))
            stack.enter_context(observing_scalers(self))
            stack.enter_context(observing_forwards(self, self._x))
            stack.enter_context(observing_c10d(self))
            self._stack.push(stack.pop_all())
        self.look_for_horovod()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def note(self, event: str, **fields: Any) -> None:
        """Emit {"event", "rank", "seq", **fields}. The fields are plain JSON values."""
        self._emit({"event": event, "rank": self._rank, "seq": self._seq, **fields})
        self._seq += 1

    def look_for_horovod(self) -> None:
        """A trainer may import Horovod only in its function: observe it from then on."""
        self._horovod.look()

    def note_collective(self, op: str, size: int, via: str) -> None:
        """A collective that is about to be issued; `size` in bytes."""
        phase = "training" if self.forwards else "construction"
        self.note("collective", op=op, bytes=size, via=via, phase=phase)

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
        self.look_for_horovod()
        self.watched.add(model)

    def finished(self, task: object) -> None:
        """The trainer's function returned."""
        self.note_topology()
        self.note("finished", weights=self.watched.weights())
