"""Evidence made by hand: what ranks would report that follow the oracle, or one of its faults, to the letter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest

from conformance.cases.case import Case
from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, ScalerHistory, Trajectory
from conformance.oracle.rounding import nearest
from conformance.runner.outcome import Outcome, RankOutcome
from conformance.verdict.judge import judge
from conformance.verdict.judgement import Judgement
from conformance.workloads.layout import EACH_SAMPLE, Window
from conformance.workloads.precision import PRECISIONS

from ..laws.building import whole

Event = dict[str, Any]


@dataclass
class Run:
    """The events of each rank, to be tampered with."""

    case: Case
    trajectory: Trajectory
    ranks: list[list[Event]]

    def of(self, kind: str, rank: int = 0) -> list[Event]:
        """The events of one kind on one rank."""
        return [event for event in self.ranks[rank] if event["event"] == kind]

    def everywhere(self, kind: str, number: int) -> list[Event]:
        """The ``number``-th event of a kind on every rank."""
        return [self.of(kind, rank)[number] for rank in range(len(self.ranks))]

    def remove(self, *events: Event) -> None:
        for events_of_rank in self.ranks:
            events_of_rank[:] = [event for event in events_of_rank if not any(event is other for other in events)]

    def after(self, event: Event, *more: Event) -> None:
        """Put ``more`` behind ``event``."""
        for events_of_rank in self.ranks:
            for position, other in enumerate(events_of_rank):
                if other is event:
                    events_of_rank[position + 1 : position + 1] = more
                    return

    def before(self, event: Event, *more: Event) -> None:
        """Put ``more`` in front of ``event``."""
        for events_of_rank in self.ranks:
            for position, other in enumerate(events_of_rank):
                if other is event:
                    events_of_rank[position:position] = more
                    return

    def end(self, rank: int, kind: str, **fields: Any) -> None:
        """Have a rank's trace end with one more event."""
        events = self.ranks[rank]
        at = {"rank": rank, "seq": len(events), "time": float(len(events)), "window": None, "micro_batch": None}
        events.append({"event": kind, **at, "where": None, **fields})

    def outcome(self, **ended: Any) -> Outcome:
        """``ended``: fields of every RankOutcome, or of rank 1's if they begin with ``rank1_``; or ``timed_out``."""
        ranks = []
        for rank, events in enumerate(self.ranks):
            fields = {"finished": True, "exit": "exited 0", "output": "", "stack": None, "after": None}
            fields |= {name: value for name, value in ended.items() if name in fields}
            if rank == 1:
                fields |= {name[6:]: value for name, value in ended.items() if name.startswith("rank1_")}
            ranks.append(RankOutcome(rank=rank, events=tuple(map(whole, events)), **fields))
        return Outcome(tuple(ranks), 0.1, ended.get("timed_out", False), ended.get("altered", ()))

    def judged(self, **ended: Any) -> Judgement:
        """Raises AssertionError: a law raised on this trace, and nothing is known of it."""
        found = judge(self.case, self.outcome(**ended))
        assert not {one.law.id: one.failure for one in found.laws if one.failure}
        return found

    def expect(
        self,
        verdict: str,
        says: str = "",
        *,
        has: str = "",
        headline: str | None = None,
        advice: str | None = None,
        broken: list[str] | None = None,
        **ended: Any,
    ) -> Judgement:
        """The judgement, with this verdict. ``says``: the start of its headline; ``has``: a part of it; ``advice``: the
        start of what to change; ``broken``: the failed guards."""
        found = self.judged(**ended)
        assert found.verdict == verdict, (found.headline, found.notes)
        assert found.headline.startswith(says) and has in found.headline, found.headline
        assert headline is None or found.headline == headline
        told = (found.reason and found.reason.advice) or ""
        assert advice is None or (told.startswith(advice) and bool(told) == bool(advice)), told
        assert broken is None or [guard.name for guard in found.guards if not guard.passed] == broken
        return found


@pytest.fixture(scope="session")
def case() -> Callable[[str], Case]:
    """A case by its id, without the device: ``ddp-w2-acc2-fp32-momentum``."""

    def parsed(name: str) -> Case:
        backend, *parts = name.split("-")
        world_size = int(parts.pop(0)[1:]) if parts[0][0] == "w" and parts[0][1:].isdigit() else 1
        accumulation = EACH_SAMPLE if parts[0] == "samples" else 1
        if parts[0].startswith("acc"):
            accumulation = int(parts[0][3:])
        if parts[0] in ("samples", "batched") or accumulation > 1:
            parts.pop(0)
        precision = next(p for p in sorted(PRECISIONS, key=len, reverse=True) if "-".join(parts).startswith(f"{p}-"))
        workload, _, resumed_at = "-".join(parts)[len(precision) + 1 :].partition("-resumed-at-")
        stop, _, resumed = resumed_at.partition("-")
        found = Case(backend, world_size, accumulation, precision, workload)
        if stop:
            found = replace(found, resumed_at=int(stop), resumed=resumed or "once")
        assert found.id == name
        return found

    return parsed


@pytest.fixture
def follow(case: Callable[[str], Case]) -> Callable[..., Run]:
    """The run of a trainer that makes the numbers of ``recurrence``, rounded to the format of the weights.

    ``skips`` and ``scales``: those of its own loss scaler, per window. ``windows``: the number trained.
    """

    def made(
        name: str,
        recurrence: type[Recurrence] = Recurrence,
        skips: set[int] | None = None,
        scales: tuple[Fraction, ...] = (),
        windows: int | None = None,
    ) -> Run:
        chosen = case(name)
        history = None if skips is None else ScalerHistory(frozenset(skips), scales)
        rule = recurrence(chosen.problem, history)
        right = rule.run(windows)
        return Run(
            chosen,
            right,
            [_events(chosen, right, rank, rule.read()[:windows], rule) for rank in range(max(chosen.world_sizes))],
        )

    return made


def _events(case: Case, right: Trajectory, rank: int, windows: Sequence[Window], textbook: Recurrence) -> list[Event]:
    """A whole trace, of a loop that keeps every law and reads these windows."""
    workload = case.problem.workload
    scaled = case.arithmetic.scaled
    steps = iter(right.steps)
    forwards = list(accumulate(len(window.shares[rank]) if rank < window.world_size else 0 for window in windows))
    weights = [float(value) for value in workload.start]
    parameters = list(range(len(workload.model.tensors)))
    rows: dict[Any, int] = {}
    for batch in workload.batches:
        for sample in batch:
            rows.setdefault(sample.x, len(rows))
    wrapper = "DistributedDataParallel" if case.world_size > 1 else None
    events: list[Event] = []

    def note(kind: str, /, window: int | None = None, micro_batch: int | None = None, **fields: Any) -> None:
        told = {"event": kind, "rank": rank, "seq": len(events), "time": float(len(events)), "window": window}
        # Each event has its own lists, so tampering with one leaves the others alone.
        fields = {name: list(value) if isinstance(value, list) else value for name, value in fields.items()}
        events.append({**told, "micro_batch": micro_batch, "where": ["train.py", len(events), "train"], **fields})

    def begin(ranks: int) -> None:
        if events:
            note("finished", weights=weights)
        note("started", pid=1)
        if wrapper:
            note("collective", **_collective("broadcast_", "construction", ranks))
            note("wrap", model=0, wrapper=wrapper, find_unused=False)
        note("start", weights=weights)

    for turn, window in enumerate(windows):
        if rank >= window.world_size:
            # Of another life, before its own or after it.
            weights = weights if events else _rounded(next(steps).weights, case)
            continue
        if turn == 0 or (turn == case.resumed_at and not case.resumed_inside):
            begin(window.world_size)
        for number, micro_batch in enumerate(window.shares[rank]):
            if (turn, number) == (case.resumed_at, case.resumed_inside) and number:
                begin(window.world_size)
            at = {"window": window.index, "micro_batch": number}
            last = number == len(window.shares[rank]) - 1
            forward = forwards[turn] - len(window.shares[rank]) + number
            syncs = last if wrapper else None
            used = [rows[window.batch[index].x] for index in micro_batch]
            computes = {"bf16": "bfloat16", "fp16": "float16"}.get(case.precision, "float32")
            note("forward", **at, forward=forward, rows=used, wrapper=wrapper, syncs=syncs, computes=computes)
            if scaled:
                note("loss_scaled", **at, scaler=0, scale=float(right.scales[window.index]))
            held = "some" if number else "none"
            note("backward_begin", **at, backward=forward, root=forward, syncs=syncs, gradients=held)
            if wrapper and last:
                note("collective", **at, **_collective("allreduce_", "training", window.world_size))
            scale = float(right.scales[window.index]) if scaled else None
            note("backward_end", **at, backward=forward, forwards=[forward], scaled=scale)
        if not window.shares[rank]:
            # A rank that has run out of data answers the others.
            at = {"window": window.index, "micro_batch": None}
            note("collective", **at, **_collective("allreduce_", "training", window.world_size))
        if turn in (0, case.resumed_at):
            note("topology", **at, world_size=window.world_size, rank_reached=rank, via="torch.distributed")
            for number, own in enumerate(getattr(textbook, "optimizers", ()) or [parameters]):
                note(
                    "optimizer", **at, optimizer=number, type="SGD", parameters=[*own], trainable=[*own],
                    horovod=False, backward_passes_per_step=None, state=False,
                )  # fmt: skip
        for own in getattr(textbook, "clips", ()):
            threshold = float(workload.clip.threshold)
            note(
                "clip", **at, kind="norm", threshold=threshold, norm_type=2.0, norm=1.0, parameters=[*own],
                gradients=None,
            )  # fmt: skip
        skipped = window.index in right.skips
        scale = float(right.scales[window.index]) if scaled else None
        step = None if skipped else next(steps)
        gradients = _rounded(step.gradient, case) if step else ["inf"] * len(weights)
        if scaled:
            note("unscale", **at, scaler=0, optimizer=0, scale=scale, implicit=False, found_inf=skipped)
            note("scaler_step", **at, scaler=0, optimizer=0, scale=scale, state=None)
        common = {"optimizer": 0, "forwards": forwards[turn], "scale": scale, "gradients": gradients}
        if skipped:
            note("skip", **at, **common, gradients_finite=False, weights=weights, state=None)
        else:
            weights = _rounded(step.weights, case)
            number = turn - sum(skip < turn for skip in right.skips)
            rate = float(textbook.learning_rate(number))
            note(
                "step", **at, **common, step=number, parameters=parameters, weights=weights, lr=rate,
                synchronizes=None,
            )  # fmt: skip
        if scaled:
            rule = workload.scale
            note(
                "update", **at, scaler=0, scale_before=scale, scale_after=float(right.scales[window.index + 1]),
                growth_factor=float(rule.growth_factor), backoff_factor=float(rule.backoff_factor),
                growth_interval=rule.growth_interval,
            )  # fmt: skip
        if workload.schedule is not None and not skipped:
            note("schedule", **at, scheduler=0, optimizer=0, lr_before=[0.5], lr_after=[0.5], initial=False)
        note("zero_grad", **at, by="optimizer", optimizer=0, parameters=parameters, set_to_none=True)
    note("finished", weights=weights)
    return events


def _collective(op: str, phase: str, ranks: int) -> Event:
    training = phase == "training"
    return {
        "op": op,
        "bytes": 12,
        "elements": 3,
        "reduce": "sum" if training else None,
        "group": list(range(ranks)),
        "via": "c10d",
        "phase": phase,
        "during": "backward" if training else None,
        "of": "gradients" if training else "parameters",
    }


def _rounded(box: Enclosure, case: Case) -> list[float]:
    return [float(nearest(value, case.arithmetic.master)) for value in box.center]


@pytest.fixture
def ulp() -> Callable[[float, Case], float]:
    """The spacing of a case's weights at a value."""

    def spacing(value: float, case: Case) -> float:
        return float(case.arithmetic.master.ulp(Fraction(value)))

    return spacing
