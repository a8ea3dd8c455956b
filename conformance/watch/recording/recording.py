"""The state that the observers of a process share: waiting records, known parameters, and counts."""

from __future__ import annotations

import os
import sys
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import torch

from conformance.trace.seams.guarding import harmless
from conformance.trace.state.identities import Numbers
from conformance.trace.state.nested import Nested
from conformance.trace.state.optimizer_state import unwrapped
from conformance.trace.state.site import Sites, around
from conformance.watch import records
from conformance.watch.ledger import Ledger
from conformance.watch.record_lines import encoded
from conformance.watch.recording import own_rank
from conformance.watch.recording.output import Lost, Output
from conformance.watch.recording.parameters import Parameters
from conformance.watch.recording.settings import Settings
from conformance.watch.sketch import Sketching


class Given:
    """How many floating-point numbers collectives were given after the last backward pass, outside of it, and since the
    last backward pass or step. lines: the numbers of each call after the last backward pass."""

    def __init__(self) -> None:
        self.lines: Counter[tuple[str | int, ...]] = Counter()
        self._numbers = self._since = 0
        self._last = 0

    def since(self) -> int:
        """The number since the last call."""
        since, self._since = self._since, 0
        return since

    def add(self, tensors: Iterable[torch.Tensor], backwards: int, site: records.Site = None) -> None:
        if backwards != self._last:
            self._numbers, self._last = 0, backwards
            self.lines.clear()
        number = sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())
        self._numbers += number
        self.lines.update({tuple(site): number} if site and number else {})
        self._since += number

    def has(self, parameters: Sequence[torch.Tensor], backwards: int) -> bool:
        """Whether they got as many as these parameters have gradients: a log exchanges fewer, or other numbers."""
        return 0 < self._last == backwards and self._numbers >= sum(parameter.numel() for parameter in parameters)


_REJOINED = 20
"""The count of steps and windows after ranks waited for each other: past those that are read as a whole, and a turn to
compare weights."""


class Recording:
    """Keeps records until the next step, and then writes them if this process has an optimizer.

    numbers: of each "optimizer", "scaler" ..., in order of first sight. parameters: of all optimizers. inside(what):
    context in which `what`, such as "backward", is running. backwards: the number of backward passes. seen: versions of
    the weights in the last one. roots: the outermost modules in training mode. wrappers: those of DDP. steps: by
    optimizer. passes: backward passes by call site. stop: ends the recording. reduced: called with the name and
    the tensors of a collective; given keeps their sizes outside of backward passes.
    """

    def __init__(self, folder: str, settings: Settings, ledger: Ledger | None = None) -> None:
        self.folder, self.settings = folder, settings
        self._output = Output(folder, ledger)
        self.ledger = self._output.ledger
        self.is_over = False
        self._among: tuple[str, int, int] | None = None
        self._waiting: list[records.Record] = []
        self._said: set[str] = set()
        self._lines: set[tuple[str, int]] = set()
        self.numbers = Numbers()
        script = _script()
        # In safe-path mode, the script's folder is not in `sys.path`.
        folders = [] if script is None else [os.path.dirname(script)]
        self.sites = Sites(script, *folders, whole_project=True)
        self.sketching = Sketching()
        doing = Nested[str]()
        self.inside, self.is_inside = doing.inside, doing.__contains__
        self.backwards = 0
        self.seen: records.Versions = {}
        self._occupied: int | None = None
        self.roots: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.wrappers: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.steps: Counter[int] = Counter()
        self._before: Counter[int] = Counter()
        self.passes: Counter[int] = Counter()
        self.parameters = Parameters(self.note, self.roots)
        self.stop: Callable[[], None] = lambda: None
        self.reduced: Callable[[str, Sequence[torch.Tensor]], None] = lambda name, tensors: None
        self.given = Given()
        self.before_writing: list[Callable[[], None]] = []

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Context in which the current thread is in a backward pass or a step."""
        before, self._occupied = self._occupied, threading.get_ident()
        try:
            yield
        finally:
            self._occupied = before

    def gives_up(self) -> bool:
        """Whether recording ended, also now because another thread is in a backward pass or step: then records of the
        threads would mix."""
        # The engine runs parts of a backward pass in its own threads.
        is_inside = torch._C._current_graph_task_id() != -1
        if self._occupied not in (None, threading.get_ident()) and not is_inside and not self.is_over:
            self.fail("recording", "several threads train at the same time")
            self.abandon()
        return self.is_over

    def note(self, record: records.Record, place: int | None = None) -> None:
        """place: after the records up to there; by default the last."""
        if not self.is_over:
            self._waiting.insert(len(self._waiting) if place is None else place, record)
        if not self._output.is_open and isinstance(record, records.Backward):
            # A process that never steps writes at its end, when its process group may be gone.
            self._among = own_rank.of_process()

    def place(self) -> int:
        """The place of the next record."""
        return len(self._waiting)

    def once(self, record: records.Record) -> None:
        """Notes a record unless an equal one was noted."""
        line = encoded(record)
        if line not in self._said:
            self._said.add(line)
            self.note(record)

    def site(self, frame: FrameType | None = None) -> records.Site:
        """The innermost call in the user's files or, if there is none, outside torch. frame: where the stack begins."""
        where, called_from = self.sites.of(frame or sys._getframe(1))
        site = called_from or where
        if site is not None and (line := (str(site[0]), int(site[1]))) not in self._lines:
            self._lines.add(line)
            path = self.sites.path(line[0])
            self.note(records.Source(*line, path, around(path, line[1])))
        return site

    def own_calls(self) -> int:
        """A fingerprint of the stack of calls in the user's files."""
        return zlib.crc32(repr(self.sites.own(sys._getframe(1))).encode())

    @property
    def within(self) -> int | None:
        """The number of the running backward pass; None between passes."""
        return self.backwards if self.is_inside("backward") else None

    @property
    def is_with_others(self) -> bool:
        """Whether there are ranks to compare this one with."""
        return own_rank.world() > 1

    @property
    def is_looking(self) -> bool:
        """Whether the current window of any optimizer is watched."""
        if self.is_over or self.settings.every == 1:
            return not self.is_over
        counts = [self.compared(number) for number in self._stepped()]
        # Other optimizers may soon make their first step, or never make one.
        are_more = len(counts) < len(self.numbers.alive("optimizer"))
        is_first = are_more and max(counts, default=0) < self.settings.every
        return not counts or is_first or any(self.settings.looks_at(count) for count in counts)

    def counts(self) -> list[int]:
        """The steps of each existing optimizer that has stepped."""
        return [self.steps[number] for number in self._stepped()]

    def _stepped(self) -> list[int]:
        numbers = [self.numbers.of("optimizer", one) for one in self.numbers.alive("optimizer")]
        return [number for number in numbers if number in self.steps]

    def compared(self, number: int) -> int:
        """The steps of an optimizer, as all ranks count them."""
        return self.steps[number] - self._before[number]

    def rejoin(self) -> None:
        """Notes `Rejoined`. Ranks without data made fewer steps, so from here on all count from the same number."""
        self.note(records.Rejoined())
        self._before.update({number: self.compared(number) - _REJOINED for number in self.steps})
        for known, _ in self.parameters.all():
            known.windows = _REJOINED

    def optimizer(self, optimizer: torch.optim.Optimizer) -> int:
        """The number of an optimizer, which is noted at first sight."""
        optimizer = unwrapped(optimizer)
        known = self.numbers.known("optimizer", optimizer)
        if known is not None:
            return known
        number = self.numbers.of("optimizer", optimizer)
        # Its line comes first: parameters belong to the optimizer that is noted next.
        site = self._maker(optimizer)
        held = [known.number for known, _ in self.parameters.held(optimizer)]
        self.note(records.Optimizer(number, type(optimizer).__name__, held, site))
        return number

    def _maker(self, optimizer: torch.optim.Optimizer) -> records.Site:
        """The line that makes an optimizer: outside of the constructors of its own classes."""
        made = None
        for frame in frames(sys._getframe(1)):
            code = frame.f_code
            if code.co_name == "__init__" and code.co_argcount and frame.f_locals.get(code.co_varnames[0]) is optimizer:
                made = frame.f_back
        return self.site(made)

    def versions(self) -> records.Versions:
        """The versions of all existing optimizers."""
        return {
            str(self.numbers.of("optimizer", optimizer)): sum(
                self.parameters.version(parameter) for group in optimizer.param_groups for parameter in group["params"]
            )
            for optimizer in self.numbers.alive("optimizer")
        }

    def collect(self) -> None:
        """Makes observers note what they have kept so far."""
        for act in [*self.before_writing]:
            act()

    def flush(self) -> None:
        """Writes all waiting records."""
        self.collect()
        self._write()

    def fail(self, observer: str, reason: str) -> None:
        """Writes immediately that a part of the recorder failed: the process may exit without its end record."""
        self.note(records.Failed(observer, reason))
        # If it cannot be written, the ledger shows it.
        with suppress(Exception):
            self._write()

    def _write(self) -> None:
        # A process without an optimizer writes nothing, unless a part of the recorder failed.
        is_known = self.parameters.any or any(isinstance(one, records.Failed) for one in self._waiting)
        if not (self._waiting and is_known):
            return
        waiting, self._waiting = self._waiting, []
        if not self._output.is_open:
            now = own_rank.of_process()
            launch, rank, world = self._among if self._among is not None and now[2] == 1 else now
            waiting.insert(0, records.Began(os.getpid(), rank, world, launch, own_rank.started()))
        try:
            self._output.write(waiting)
        except (Lost, OSError):
            self.abandon()
        except BaseException:
            # After a gap, later records would look like a bug of the script.
            self.abandon()
            raise

    def end(self) -> None:
        """Writes the rest and ends the stream."""
        self.note(records.Ended())
        harmless(self.flush)()
        # Again, to write the failure if an observer raised.
        self.flush()
        if not self.is_over:
            self._output.end()
            self.abandon()

    def abandon(self) -> None:
        """Drops waiting records and writes no further ones."""
        self._waiting.clear()
        self.is_over = True


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _script() -> str | None:
    return getattr(sys.modules.get("__main__"), "__file__", None)
