"""The recording of one rank to which observers write, its state so far, and events that several observers note."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from threading import get_ident
from time import monotonic
from typing import Any, Protocol

import torch
from torch.distributed.distributed_c10d import _world

from conformance.adapter.backends import BACKENDS
from conformance.trace.state.finding import Rows
from conformance.trace.state.gradient_changes import Gradients
from conformance.trace.state.graphs import Flow, Graphs
from conformance.trace.state.handles import Handles
from conformance.trace.state.identities import Numbers
from conformance.trace.state.nested import Nested, Wrappers
from conformance.trace.state.optimizer_state import algorithm, held_by, kind_of, settings, unwrapped, without_rates
from conformance.trace.state.payloads import Payloads
from conformance.trace.state.site import Called, Sites
from conformance.trace.state.topology import reached, settings_of_horovod
from conformance.trace.state.watched import Watched
from conformance.trace.tensor_values import Number

DURING = ("forward", "backward", "synchronize", "unscale", "step")
"""The activities that events name in `during`; observers track more."""


class Lines(Protocol):
    """Notes which lines write what, in a case that is followed line by line."""

    def creates(self, kind: str, one: Any) -> None:
        """Something is created, by the current line."""

    def divides(self, root: Any) -> None:
        """Note the line that divides the loss of the backward that begins at the node ``root``."""

    def ends(self) -> None:
        """What is written from here on may be written by lines that are not seen."""


_OF_CURRENT = {"clip", "norm", "zero_grad", "gradient_change"}
"""Events of the gradients that `look` watches."""


class Recording:
    """Notes what observers see, and keeps the state they share.

    watched: parameters of the watched model. wrappers: wrappers around the model.
    rows: samples of the task, None without a task.
    numbers: numbers of each "optimizer", "scaler", "scheduler", "model" ..., in order of first sight.
    gradients: known state of the watched model's gradients. flow: the forwards that a backward reaches.
    payloads: what collectives and messages carry. handles: those of them nobody has waited for.
    graphs: graphs where backwards start. forwards, backwards, steps: number of training forwards, backwards and applied
    optimizer steps so far. has_gradients: whether autograd has computed any.
    recomputed: dtypes of the forwards that the last backward recomputed.
    counting: number and buffers of the model with buffers that ran forward last.
    scale: loss scale while an enabled GradScaler is in its `step`, else None.
    skipped: optimizers whose steps were skipped since the last forward.
    asked: what the trainer has taken from its task: "model", "schedule", "loss scaling", "clip", "average".
    goes_by_line: whether the lines that write gradients and weights are noted. averaged: the average of weights that
    the trainer reported last.
    splits_state: whether ranks may keep parts of an optimizer's state. state_bytes: bytes of state that the optimizers
    of the last step keep on this rank; None before the first step.
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
        self._last_seq = -1
        self._is_topology_noted = False
        self._held: list[int] | None = None
        self._groups: set[torch.distributed.ProcessGroup] = set()
        self._settings: dict[int, list[dict[str, Any]]] = {}
        self.asked = set[str]()
        self.life: dict[str, Any] | None = None if spec is None else spec.get("life")
        """Where this process starts and ends in a case that is stopped and resumed; else None."""
        self.averages = spec is not None and (self.life is not None or bool(spec.get("average")))
        """Whether averages of weights matter."""
        self._doing = Nested[object]()
        self.inside = self._doing.inside
        """`inside(what)` is a context in which `what` is active: one of DURING, or any key of an observer."""
        self.is_inside = self._doing.__contains__
        """`is_inside(what)`: whether `what` is active, innermost or not."""
        self._accounting: list[int] = []
        self.numbers = Numbers()
        self.sites = Sites(trainer_file)
        self.rows = None if spec is None else Rows(spec["samples"]["x"])
        self.watched = Watched(None if spec is None else spec["model"])
        self.payloads = Payloads(self.watched)
        self.handles = Handles()
        self.flow = Flow()
        self.wrappers = Wrappers()
        self.graphs = Graphs()
        self.forwards = self.backwards = self.steps = 0
        self.has_gradients = False
        self.recomputed: list[str | None] = []
        self.counting: tuple[int, tuple[torch.Tensor, ...]] | None = None
        self.scale: Number = None
        self.skipped: list[torch.optim.Optimizer] = []
        backend = BACKENDS.get("" if spec is None else spec.get("backend", ""))
        self.splits_state = backend is not None and backend.paths == "sharded"
        self.state_bytes: int | None = None
        self.gradients = Gradients(self.watched, self.payloads)
        self.goes_by_line = spec is not None and bool(spec.get("by_line"))
        self.lines: Lines | None = None
        self.averaged: tuple[torch.Tensor, ...] = ()

    def note(self, event: str, **fields: Any) -> int:
        """Emit {"event", "rank", "seq", "time", "where", **fields}, and "called_from" if it differs from "where". The
        fields are plain JSON values; only hindsight reads `copy`, `of_copy`, `own` and `of_models`.

        Returns the event's ``seq``."""
        return self.note_at(self.sites.of(sys._getframe(1)), event, **fields)

    def note_at(self, site: Called, event: str, **fields: Any) -> int:
        """Like `note`, with the lines to name."""
        where, called_from = site
        seq = self._last_seq = next(self._seq)
        if called_from is not None:
            fields = {"called_from": called_from, **fields}
        noted = {"event": event, "rank": self._rank, "seq": seq, "time": monotonic(), "where": where, **fields}
        if event in _OF_CURRENT and self.watched.is_copys(self.watched.current):
            noted["copy"] = True
        self._emit(noted)
        return seq

    @contextmanager
    def region(self, name: str, **fields: Any) -> Iterator[None]:
        """Note the start and the end of a region of this name."""
        self.note(f"{name}_enter", **fields)
        try:
            yield
        finally:
            self.note(f"{name}_exit", **fields)

    @property
    def during(self) -> str | None:
        """The innermost active activity of DURING; None outside all of them."""
        return next((what for what in self._doing if isinstance(what, str) and what in DURING), None)

    def look(self) -> None:
        """Note `gradient_change`, or `zero_grad` by hand, if gradients have changed since they were last known.

        Does nothing while another thread is in a call that changes them."""
        if self._accounting and any(thread != get_ident() for thread in self._accounting):
            return
        with self.watched.reading:
            change = self.gradients.look(self._last_seq)
        if change is None:
            return
        if change.cleared:
            self.note("zero_grad", by="hand", optimizer=None, parameters=change.cleared, set_to_none=change.set_to_none)
        if change.changed:
            masters = {"of_masters": True} if self.watched.computing is not self.watched.current else {}
            self.note(
                "gradient_change",
                parameters=change.changed,
                factor=change.factor,
                since=change.since,
                before=change.before,
                **masters,
            )
        self.gradients.since = self._last_seq

    def accounted(self, *, zeroed: bool = False) -> None:
        """Mark all changes of gradients until now as explained by noted events; `zeroed`: the gradients are zero."""
        with self.watched.reading:
            self.gradients.known(self._last_seq, are_zero=zeroed)

    def accounting(self, *, zeroing: bool = False) -> AbstractContextManager[None]:
        """A context whose changes of gradients are explained by its own events, unless it raises."""
        return _Accounting(self, zeroing)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> int:
        """The optimizer's number. Notes `optimizer` at first sight."""
        optimizer = unwrapped(optimizer)
        known = self.numbers.known("optimizer", optimizer)
        if known is not None:
            return known
        number = self.numbers.of("optimizer", optimizer)
        held = held_by(optimizer)
        is_horovods, passes = settings_of_horovod(optimizer)
        self.note(
            "optimizer",
            optimizer=number,
            type=kind_of(optimizer).__name__,
            parameters=self.watched.numbers(held),
            trainable=self.watched.numbers(parameter for parameter in held if parameter.requires_grad),
            horovod=is_horovods,
            backward_passes_per_step=passes,
            state=len(getattr(optimizer, "state", ())) > 0,
            groups=self._settings.setdefault(number, settings(optimizer, self.watched.numbers)),
            **({} if (name := algorithm(optimizer)) is None else {"algorithm": name}),
            **({"copy": True} if self.watched.is_copys(self.watched.find(optimizer)) else {}),
        )
        return number

    def changed_settings(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The field `groups` of a step if settings other than the learning rate changed since they were last noted;
        else {}."""
        number, now = self.optimizer(optimizer), settings(unwrapped(optimizer), self.watched.numbers)
        before = self._settings[number]
        if now == before or [*map(without_rates, now)] == [*map(without_rates, before)]:
            return {}
        self._settings[number] = now
        return {"groups": now}

    @contextmanager
    def scaled_by(self, scale: Number) -> Iterator[None]:
        """A context in which an enabled scaler steps at `scale`; None if losses are not scaled."""
        self.scale = scale
        try:
            yield
        finally:
            self.scale = None

    def topology(self) -> None:
        """Note, once, the world size and rank that the process group reports."""
        if not self._is_topology_noted:
            self._is_topology_noted = True
            self.note("topology", **reached())

    def shards(self) -> None:
        """Note the elements that this rank holds, when parameters are split over the ranks or that changes."""
        held = self.watched.held()
        if held != self._held:
            self._held = held
            self.note("shards", held=held)

    def keep_groups(self) -> None:
        """Keep all process groups alive as long as the recorder.

        Otherwise a trainer that destroys its group before its DDP model sometimes hangs (torch 2.13): the reducer then
        owns the group and frees it with the GIL locked. That joins the group's threads, while one of them waits for the
        GIL to release the last collective.
        """
        self._groups.update(_world.pg_map)


class _Accounting:
    __slots__ = ("_recording", "_zeroing")

    def __init__(self, recording: Recording, zeroing: bool) -> None:
        self._recording, self._zeroing = recording, zeroing

    def __enter__(self) -> None:
        self._recording.look()
        self._recording._accounting.append(get_ident())

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._recording._accounting.remove(get_ident())
        if kind is None:
            self._recording.accounted(zeroed=self._zeroing)


def note_collective(
    recording: Recording,
    op: str,
    tensors: Sequence[torch.Tensor],
    via: str,
    group: list[int],
    reduce: str | None,
    name: str | None = None,
) -> bool:
    """Note a collective before it is issued over the ranks `group`; `tensors` are this rank's inputs, `name` is the
    group's name, if any.

    Returns whether the trainer itself reduces gradients with it.
    """
    # Within `unscale_` the gradients may be divided already, when the scaler exchanges overflows.
    if recording.during is None:
        recording.look()
    if len(group) > 1:
        # A rank may leave its process group before it steps or ends.
        recording.topology()
    of, is_the_trainers = recording.payloads.of(tensors, reduces=reduce is not None)
    fields = exchange(recording, tensors, via, group)
    if name is not None:
        fields["process_group"] = name
    zeros = recording.payloads.zeros(tensors, of)
    recording.handles.noted(recording.note("collective", op=op, reduce=reduce, **fields, of=of, **zeros))
    if is_the_trainers:
        # Changes of these gradients are reported only after it has finished.
        recording.gradients.is_stale = True
    return is_the_trainers


def exchange(recording: Recording, tensors: Sequence[torch.Tensor], via: str, group: list[int]) -> dict[str, Any]:
    """The fields that collectives and messages share."""
    have_fractions = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    return {
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "elements": sum(tensor.numel() for tensor in tensors),
        "group": group,
        "via": via,
        "during": recording.during,
        **({"integers": True} if tensors and not have_fractions else {}),
    }


def note_skip(
    recording: Recording, optimizer: torch.optim.Optimizer, scale: Number, *, are_cleared: bool = False
) -> None:
    """Note a step that was skipped because gradients overflowed at `scale`; `are_cleared`: they are gone by now."""
    parameters = recording.watched.find(optimizer)
    if parameters is None:
        return
    gradients = None if are_cleared else recording.watched.gradients(parameters)
    recording.shards()
    recording.note(
        "skip",
        scale=scale,
        gradients_finite=None if gradients is None else not any(isinstance(gradient, str) for gradient in gradients),
        gradients=gradients,
        weights=recording.watched.weights(parameters),
        optimizer=recording.optimizer(optimizer),
        state=recording.watched.state(optimizer),
        **recording.watched.handed_out(held_by(optimizer)),
    )
    recording.skipped.append(optimizer)
    recording.accounted()
