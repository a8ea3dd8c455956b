"""The recorder: watches one rank's training run and emits one plain dict per event.

    with Recorder(emit, spec, rank) as recorder:
        recorder.note("started", pid=os.getpid())      # the runner's own events share one `seq`
        task = Task(spec, rank, recorder)
        function(task)
        recorder.finished()                            # notes topology (if not yet noted) and `finished`
    # or, if it raised: recorder.raised(type=..., message=..., traceback=..., declined=...)

To record a loop without a task, watch its model:

    with Recorder(emit) as recorder:
        recorder.watch(model)
        ...

If an observer raises, it is switched off and `observer_failed` is noted; the trainer is not affected.

The recorder only reads: it draws no random number, changes no tensor of the trainer and issues no collective. At the
end of the `with` it removes its patches of torch and Horovod. It may be entered again, and then continues. Only one
recorder of a process may be entered at a time.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pkgutil import iter_modules
from time import monotonic
from typing import Any, TypeAlias

import torch

from conformance.adapter.declaration import Unsupported
from conformance.trace import observers
from conformance.trace.emit import Recording
from conformance.trace.seams.guarding import failures, harmless
from conformance.trace.seams.ours import Aside, ours
from conformance.trace.seams.patching import Seams
from conformance.trace.tensor_values import Number, values

Observe: TypeAlias = Callable[[Recording], Seams]

OBSERVERS: dict[str, Observe] = {
    module.name: import_module(f"{observers.__name__}.{module.name}").observe
    for module in iter_modules(observers.__path__)
}
"""`observe` of each module in `observers`, by the module's name, in no particular order."""


class Recorder(Recording):
    """A recording to which observers write while it is entered."""

    _stack: ExitStack
    _declined_with: list[Number] | None = None

    def __enter__(self) -> Recorder:
        ours.look()
        with ExitStack() as stack:
            stack.enter_context(failures.reported_to(self._failed))

            def enter(observe: Observe) -> None:
                for seam in observe(self):
                    stack.enter_context(seam)

            for observe in OBSERVERS.values():
                harmless(enter, observe.__module__)(observe)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *trace: object) -> None:
        ours.look(late=error is not None)
        ours.enter()
        try:
            if kind is not None and issubclass(kind, Unsupported):
                self._declined_with = harmless(self.watched.final_weights, __name__)()
            self._stack.close()
        finally:
            ours.leave()

    def _failed(self, observer: str, error: Exception) -> None:
        self.note(
            "observer_failed",
            observer=observer.rpartition(".")[2],
            error=f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
            **({"replaced": [*ours.late]} if ours.late else {}),
        )

    def watch(self, model: torch.nn.Module) -> None:
        """Watch a model. `Task.model()` calls this with each model it hands out."""
        ours.look()
        harmless(self._watch)(model)

    def _watch(self, model: torch.nn.Module) -> None:
        self.watched.add(model)
        self.accounted()
        self.note("model", model=self.numbers.of("model", model), shapes=[list(p.shape) for p in model.parameters()])

    def report(
        self,
        step: int,
        weights: Sequence[torch.Tensor | None],
        gradients: Sequence[torch.Tensor | None] | None,
        *,
        counted: bool = False,
    ) -> None:
        """Note values for all parameters, None where there is none. `Task.report` calls this; so does `Task.step`,
        with `counted` because it counts the steps itself."""
        harmless(self._report)(step, weights, gradients, counted)

    def _report(
        self,
        step: int,
        weights: Sequence[torch.Tensor | None],
        gradients: Sequence[torch.Tensor | None] | None,
        counted: bool,
    ) -> None:
        known: dict[str, Any] = {"counted": True} if counted else {}
        if gradients is not None:
            known["gradients"] = self.watched.weights(tuple(gradients))
        self.note("report", step=step, weights=self.watched.weights(tuple(weights)), **known)

    def report_average(self, step: int, weights: Sequence[torch.Tensor | None]) -> None:
        """Note an average of all parameters, None where there is none. `Task.report_average` calls this."""
        harmless(self._report_average)(step, weights)

    def _report_average(self, step: int, weights: Sequence[torch.Tensor | None]) -> None:
        self.averaged = tuple(one for one in weights if one is not None)
        self.note("average_report", step=step, weights=self.watched.weights(tuple(weights)))

    def _buffers(self) -> None:
        if self.counting is not None:
            number, own = self.counting
            left = values(own, (1, 1))
            self.note("buffers", how="at the end", model=number, training=False, before=left, after=left)

    def raised(self, **what: Any) -> None:
        """Note that the trainer's function raised; `what`: the fields of the event."""
        weights = {} if self._declined_with is None else {"weights": self._declined_with}
        self.note("raised", **what, **weights, at=monotonic())

    def finished(self) -> None:
        """Note that the trainer's function returned."""
        with Aside():
            self._finished()

    def _finished(self) -> None:
        harmless(self.topology, __name__)()
        harmless(self.look, __name__)()
        harmless(self.watched.ends, __name__)()
        harmless(self.shards, __name__)()
        harmless(self._buffers, __name__)()
        own = harmless(self.watched.own_weights, __name__)()
        marks: dict[str, Any] = {} if own is None else {"own": own}
        weights = harmless(self.watched.final_weights, __name__)()
        copies = harmless(self.watched.copies, __name__)()
        if copies is not None and None in (weights or ()):
            marks["copies"] = copies
        if self.state_bytes is not None:
            marks["state_bytes"] = self.state_bytes
        self.note("finished", weights=weights, asked=sorted(self.asked), **marks)
