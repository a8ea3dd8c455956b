"""Writes a judgement as a record of the results file."""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

from conformance.adapter.loading import place_of
from conformance.cases.case import Case
from conformance.laws import checking
from conformance.laws.fitting import fitted
from conformance.laws.subjects import Run
from conformance.oracle.affine import Enclosure, Gap
from conformance.oracle.faults.some_windows import places
from conformance.oracle.recurrence import Certificate, Step
from conformance.results import result_lines
from conformance.results.result_lines import PASSED, CaseRecord, Finding, Timeline, Vector, Verdict
from conformance.trace import events as trace
from conformance.trace.events import BackwardBegin, Event, Load, ObserverFailed, Save
from conformance.verdict import timeline as drawn
from conformance.verdict.bytes_sent import traffic
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.verdict.judgement import Judgement
from conformance.verdict.names import Source, source
from conformance.verdict.paths import call_of, shortened, text_of
from conformance.workloads.behaviour import split
from conformance.workloads.precision import Format


def findings(judgement: Judgement, target: str) -> tuple[Finding, ...]:
    """The broken laws, MUSTs first. ``target``: the trainer's; its other files may lie next to its file."""
    numbers = _numbers(judgement)
    return tuple(_finding(finding, numbers, judgement.runs, target) for finding in judgement.findings)


def timeline(judgement: Judgement) -> Timeline | None:
    """The events of the ranks in the window to show; None if there is nothing to explain."""
    nothing_to_explain = not judgement.findings and judgement.verdict in (*PASSED, "INCONCLUSIVE")
    if not judgement.runs or nothing_to_explain:
        return None
    window = _window(judgement)
    run = next((run for run in judgement.runs if any(one.number == window for one in run.windows)), judgement.runs[0])
    return drawn.timeline(run, window, judgement.findings)


def _finding(finding: checking.Finding, numbers: str | None, runs: Sequence[Run], target: str) -> Finding:
    law, broken = finding.law, finding.broken
    at = _called(broken.event, broken.shows, runs, target) or result_lines.Lines("")
    shown = sorted({*broken.shows, broken.event}, key=lambda event: (event.time, event.rank, event.seq))
    return Finding(
        law=law.id,
        level=law.level,
        says=law.says,
        expected=broken.expected,
        observed=broken.observed,
        why=broken.why,
        fix=fitted(law.fix, runs[0]),
        count=finding.count,
        ranks=tuple(finding.ranks),
        effect=broken.effect,
        numbers=numbers if law.level == "MUST" else None,
        window=finding.window,
        where=at.where or None,
        source=at.source,
        slice=drawn.moments(shown, [broken.event]),
        fault=broken.fault,
        advice=broken.advice,
        origin=_line(broken.origin, target),
        edit=broken.edit,
    )


def _called(event: Event, shows: Collection[Event], runs: Sequence[Run], target: str) -> result_lines.Lines | None:
    """The lines of an event, with the one that calls its function, if that is a helper of the function that trains:
    no backward, step or other line that the law ``shows`` is in it, and one line calls it."""
    own = _backward_line(event, target) if isinstance(event, BackwardBegin) else _line(event, target)
    # What a forward calls is wrong, not when it runs.
    if own is None or event.where is None or event.called_from is not None or isinstance(event, trace.Forward):
        return own
    path, _, function = event.where
    # A run that is resumed on more ranks has none of these before.
    events = chain.from_iterable(run.ranks[event.rank].events for run in runs if event.rank < len(run.ranks))
    steps = (one for one in events if isinstance(one, (BackwardBegin, trace.Step)))
    together = (one for one in chain(steps, shows) if one.line != event.line)
    training = {one.where[2] for one in together if one.where is not None and one.where[0] == path}
    line = call_of(path, function, _folder(target)) if training and function not in training else None
    if line is None:
        return own
    text = text_of(path, line, _folder(target))
    return result_lines.Lines(
        f"{own.where}, called from {path}:{line}", (*own.source, text) if own.source and text else ()
    )


def _backward_line(event: Event, target: str) -> result_lines.Lines | None:
    """The line of a backward, with the only call of its function if that does nothing else."""
    own = _line(event, target)
    if own is None or event.where is None or event.called_from is not None:
        return own
    path, line, _ = event.where
    file = source(path, _folder(target))
    call = None if file is None else file.caller(line)
    text = None if call is None else text_of(path, call, _folder(target))
    if not own.source or not text:
        return own
    return result_lines.Lines(f"{own.where}, called from {path}:{call}", (*own.source, text))


def _line(event: Event | None, target: str) -> result_lines.Lines | None:
    return None if event is None or event.where is None else result_lines.Lines(event.line, source_of(event, target))


def _own_line(event: Event | None, target: str) -> result_lines.Lines | None:
    """The trainer's line of a file's event: libraries open the file, but the trainer decides what is in it."""
    if event is None or event.called_from is None:
        return _line(event, target)
    path, line, _ = event.called_from
    return result_lines.Lines(f"{path}:{line}", source_of(event, target)[-1:])


def source_of(event: Event, target: str) -> tuple[str, ...]:
    """The source lines of an event; empty unless all of them are found. ``target``: the trainer's."""
    lines = filter(None, (event.where, event.called_from))
    texts = [text_of(path, line, _folder(target)) for path, line, _ in lines]
    return tuple(filter(None, texts)) if all(texts) else ()


def _declared_at(judgement: Judgement, target: str) -> result_lines.Reason | None:
    """The reason, with the line that declares another behaviour than the trainer has."""
    wrong = (one for one in judgement.behaviour if one.declared not in (None, split(one.way)[1]))
    reason, one, folder = judgement.reason, next(wrong, None), _folder(target)
    if reason is None or one is None or folder is None or judgement.verdict != "FAIL (law)":
        return reason
    name = Path(place_of(target)).name
    try:
        tree = ast.parse("".join(linecache.getlines(str(folder / name))))
    except SyntaxError:
        # The file has changed since it was run.
        return reason
    words = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == split(one.way)[0])
    found = [word.value.lineno for word in words]
    return replace(reason, where=f"{name}:{found[0]}") if len(found) == 1 else reason


def _with_source(reason: result_lines.Reason | None, target: str) -> result_lines.Reason | None:
    """The reason with the text of its lines, if all of them are found."""
    if reason is None or reason.where is None or reason.source:
        return reason
    lines = [one.rpartition(":") for one in reason.where.split(", called from ")]
    texts = [text_of(path, int(line), _folder(target)) for path, _, line in lines if line.isdecimal()]
    return replace(reason, source=tuple(filter(None, texts)) if all(texts) else ())


def _folder(target: str) -> Path | None:
    """The folder of the trainer's file."""
    place = place_of(target)
    return Path(place).parent if place.endswith(".py") else None


def _numbers(judgement: Judgement) -> str | None:
    """A sentence on the numbers of the case."""
    difference = judgement.difference
    if judgement.verdict == "FAIL (law)":
        return "The numbers of this case are correct anyway."
    if difference is None or difference.observed is None:
        return None
    what = "gradient" if difference.quantity == "gradient" else "weight"
    return (
        f"In step {difference.step}, a {what} of rank {difference.rank} was {difference.observed:.6g} instead of "
        f"{float(difference.expected):.6g}."
    )


def _window(judgement: Judgement) -> int | None:
    """The window to show: the first with a broken law or a wrong number, else the last one reached."""
    if judgement.findings:
        return judgement.findings[0].window
    if judgement.difference is not None:
        steps = judgement.ranks[judgement.difference.rank].steps
        return steps[judgement.difference.step].window
    if judgement.divergence is not None:
        return judgement.divergence.window
    return max((window.number for run in judgement.runs for window in run.windows), default=None)


#: The calls that a person may have to edit.
_CALLS: tuple[type[Event], ...] = (
    *(trace.Wrap, trace.NoSyncEnter, trace.Forward, trace.BackwardBegin, trace.Unscale, trace.Clip),
    *(trace.GradientChange, trace.Step, trace.Update, trace.Schedule, trace.ZeroGrad, trace.Average),
)


def _calls(judgement: Judgement, target: str) -> dict[str, result_lines.Lines]:
    """The line of each kind of call."""
    if judgement.verdict in PASSED:
        return {}
    window = _window(judgement)
    seen: dict[type[Event], Sequence[Event]] = {
        kind: [one for run in judgement.runs for rank in run.ranks for one in rank.of(kind)] for kind in _CALLS
    }
    by_hand = [one for run in judgement.runs for rank in run.ranks for one in rank.of(trace.Report) if one.counted]
    seen[trace.Step] = seen[trace.Step] or by_hand
    # Ranks are alike; the last call of the first rank that makes it in this window counts.
    best = {
        kind: max(of, key=lambda one: (one.window == window, -one.rank, one.seq)) for kind, of in seen.items() if of
    }
    lines = {kind.event: _line(event, target) for kind, event in best.items()}
    if (backward := best.get(BackwardBegin)) is not None:
        lines[BackwardBegin.event] = _backward_line(backward, target)
    lines = _written(judgement, window, target) | lines
    found = {kind: line for kind, line in lines.items() if line is not None}
    read = _own_line(_of_life(judgement.ranks, 1, Load, 0), target)
    return dict(_followed(found | ({} if read is None else {"load": read}), _folder(target))) | found


#: By the kind of line, how a name in it is followed, and what the found line is then.
_NAMES: Mapping[str, tuple[str, Callable[[Source, int], int | None]]] = {
    "forward": ("called", Source.called),
    "loss": ("divisor", Source.divisor),
    "weights": ("count", Source.counter),
    "average": ("uncounted", Source.uncounted),
    "load": ("restored", Source.restored),
}
#: Calls with conditions that may be wrong.
_CONDITIONAL = ("schedule", "step", "zero_grad", "clip")


def _followed(calls: Mapping[str, result_lines.Lines], folder: Path | None) -> Iterator[tuple[str, result_lines.Lines]]:
    """The lines that assign what those of the calls use, and the conditions of these calls."""
    for kind, of in calls.items():
        path, _, line = of.where.partition(", called from ")[0].rpartition(":")
        file = source(path, folder) if kind in (*_NAMES, *_CONDITIONAL) and line.isdecimal() else None
        if file is None:
            continue
        found = dict[str, int | None]()
        if kind in _NAMES:
            name, follow = _NAMES[kind]
            found[name] = follow(file, int(line))
        elif (condition := file.condition(int(line))) is not None:
            found = {f"{kind}_condition": condition.lineno, f"{kind}_flag": file.flag(condition)}
        for name, at in found.items():
            if at is not None and (text := text_of(path, at, folder)):
                yield name, result_lines.Lines(f"{path}:{at}", (text,))


def _written(judgement: Judgement, window: int | None, target: str) -> dict[str, result_lines.Lines | None]:
    """The line that last wrote each quantity until the end of a window; none if the case was not followed by line.

    gradient: by hand, after the last backward and before the step. between: by hand, between two backwards. leftover:
    what the window's gradients are added to. outside: weights, elsewhere than in a step. state: of an own optimizer.
    buffers: elsewhere than in a forward. beginning: the first weights. restored_weights, restored_optimizer, ...: after
    a resume, before it trains. restores: the last of these.
    """
    each: list[dict[str, trace.Line]] = []
    seen: list[set[tuple[str, str]]] = []
    for rank in (rank for run in reversed(judgement.runs) for rank in reversed(run.ranks)):
        found: dict[str, trace.Line] = {}
        lines = [one for one in rank.of(trace.Line) if window is None or one.window is None or one.window <= window]
        passes = [one for one in rank.of(BackwardBegin) if one.window == window]
        end = next((one.seq for one in rank.of(trace.Step) if one.window == window), math.inf)
        calls = chain.from_iterable(map(rank.of, _WRITING))
        known = {one.line for one in (*passes, *calls) if getattr(one, "by", "") != "hand"}
        steps = {one.line for one in rank.of(trace.Step)}
        forwards = {one.line for one in rank.of(trace.Forward)}
        for one in lines:
            if (one.writes == "buffers" and one.line in forwards) or (one.writes == "state" and one.line in steps):
                continue
            if one.writes == "scaling":
                if one.line not in known and passes and passes[-1].seq < one.seq < end:
                    found["scaling"] = one
                continue
            if one.writes != "gradient" and not one.writes.startswith(_RESTORED):
                found[one.writes] = one
            if one.writes == "weights" and one.window is None:
                found["beginning"] = one
            elif one.writes == "weights" and one.line not in steps:
                found["outside"] = one
            if one.writes == "gradient" and one.line not in known and passes:
                if one.seq < passes[0].seq:
                    found["leftover"] = one
                elif one.seq < passes[-1].seq:
                    found["between"] = one
                elif one.seq < end:
                    found["gradient"] = one
        if "gradient" not in found:
            # What is scaled is something else.
            found.pop("scaling", None)
        if "kept" in found and "outside" in found and found["kept"].window != found["outside"].window:
            # Such as a checkpoint of other windows.
            del found["kept"]
        each.append(found)
        seen.append({(one.writes, one.line) for one in lines})
    common = set[tuple[str, str]]().union(*seen).intersection(*filter(None, seen))
    wrong = None if judgement.difference is None else judgement.difference.rank

    def likely(one: trace.Line) -> bool:
        # If only some ranks are wrong, a line of all of them is not the reason.
        if judgement.divergence is not None:
            return (one.writes, one.line) not in common
        return one.rank == wrong

    # Otherwise ranks are alike, and the first one counts.
    last = {what: one for found in each for what, one in found.items()}
    last |= {what: one for found in each for what, one in found.items() if likely(one)}
    restored = _restored(judgement) if len(judgement.runs) > 1 else {}
    return {what: _line(one, target) for what, one in (restored | last).items()}


def _restored(judgement: Judgement) -> dict[str, Event]:
    """The lines that restore after the last resume, of the first rank that has any."""
    for rank in judgement.runs[-1].ranks:
        end = next((one.seq for one in rank.of(trace.Forward)), math.inf)
        lines = [one for one in rank.of(trace.Line) if one.seq < end]
        found: dict[str, Event] = {one.writes: one for one in lines if one.writes.startswith(_RESTORED)}
        found |= {_RESTORED + one.writes: one for one in lines if one.writes in ("weights", "average")}
        if found:
            last = max(found.values(), key=lambda one: one.seq)
            made = {one.line for one in lines if one.writes == "optimizer"}
            # A new optimizer lost what the earlier one had loaded.
            found = {what: one for what, one in found.items() if what != "restored_optimizer" or one.line not in made}
            return found | {"restores": last}
    return {}


#: How the lines that restore something are named.
_RESTORED = "restored_"
#: Events of the calls that write gradients.
_WRITING: tuple[type[Event], ...] = (trace.ZeroGrad, trace.Clip, trace.Unscale, trace.Step)

#: The steps of a long run that the results file keeps: the first ones, then evenly spaced ones.
_FIRST, _LATER = 20, 40


def without_evidence(
    case: Case, trainer: str, target: str, command: str, verdict: Verdict, headline: str
) -> CaseRecord:
    """The record of a case that did not run."""
    return CaseRecord(
        id=case.id,
        trainer=trainer,
        target=target,
        command=command,
        path=case.path,
        backend=case.backend,
        layout=case.layout,
        world_size=case.world_size,
        accumulation=case.accumulation or case.problem.layout.accumulation,
        precision=case.precision,
        workload=case.workload,
        device=case.device,
        resumed_at=case.resumed_at,
        resumed=case.resumed,
        own_scale=case.own_scale,
        verdict=verdict,
        headline=headline,
    )


def record(case: Case, trainer: str, target: str, command: str, judgement: Judgement, seconds: float) -> CaseRecord:
    """The record of a case that ran: the verdict and its evidence."""
    problem = case.problem
    trajectory = judgement.trajectory
    difference = judgement.difference
    shown = judgement.ranks[0 if difference is None else difference.rank] if judgement.ranks else None
    steps: tuple[result_lines.Step, ...] = ()
    if trajectory is not None and shown is not None:
        wrong = None if difference is None else difference.step
        steps = _steps(trajectory.steps, shown, case.arithmetic.master, wrong)
    return replace(
        without_evidence(case, trainer, target, command, judgement.verdict, judgement.headline),
        reason=_with_source(_declared_at(judgement, target), target),
        micro_batch_size=problem.layout.micro_batch_size,
        seconds=round(seconds, 4),
        notes=tuple(judgement.notes),
        certificate=None if trajectory is None else _certificate(trajectory.certificate),
        power=_power(judgement),
        guards=tuple(
            result_lines.Guard(g.name, g.passed, g.expected, g.observed, g.diagnosis) for g in judgement.guards
        ),
        parameters=problem.workload.model.elements,
        steps=steps,
        skips=() if trajectory is None else tuple(sorted(trajectory.skips)),
        scales=tuple(map(float, trajectory.scales)) if trajectory and case.arithmetic.scaled else (),
        diverged=None
        if judgement.divergence is None
        else result_lines.Diverged(judgement.divergence.step, tuple(judgement.divergence.weights)),
        first_difference=_difference(judgement, problem.workload.model.elements, target),
        read_at=_own_line(_of_life(judgement.ranks, 1, Load, 0), target),
        saved_at=_own_line(_of_life(judgement.ranks, 0, Save, -1), target),
        calls=_calls(judgement, target),
        mistake=None if judgement.mistake is None else judgement.mistake.kind,
        explained_by=judgement.suspects.explained_by,
        ruled_out=judgement.suspects.ruled_out,
        places=() if trajectory is None else tuple(places(problem, trajectory.skips)),
        gradient_factors=tuple(map(_float, judgement.suspects.gradient_factors)),
        step_factors=tuple(map(_float, judgement.suspects.step_factors)),
        behaviour=tuple(judgement.behaviour),
        ranks=tuple(_rank(rank) for rank in judgement.ranks),
        traffic=traffic(judgement.runs[0]) if judgement.runs else None,
        laws={verified.law.id: verified.checked for verified in judgement.laws if verified.checked},
        unchecked={verified.law.id: shortened(verified.failure) for verified in judgement.laws if verified.failure},
        findings=findings(judgement, target),
        timeline=timeline(judgement),
    )


def _of_life(ranks: Sequence[RankEvidence], life: int, kind: type[Event], at: int) -> Event | None:
    """An event of the first rank that has events of this kind in this life."""
    found = (rank.lives[life].events.of(kind) for rank in ranks if rank.lives)
    return next((events[at] for events in found if events), None)


def _certificate(certificate: Certificate) -> result_lines.Certificate:
    stages = tuple(
        result_lines.Stage(
            stage=proof.stage,
            exact=proof.exact,
            bits=proof.bits if proof.exact or proof.bits else None,
            available=proof.available,
            step=proof.window,
        )
        for proof in certificate.tightest()
    )
    return result_lines.Certificate(certificate.exact, stages, certificate.reason)


def _power(judgement: Judgement) -> result_lines.Power | None:
    if judgement.power is None:
        return None
    gap, fault = judgement.power.gap, judgement.power.fault
    return result_lines.Power(_float(gap), fault.name, fault.text)


def _steps(
    expected: Sequence[Step], rank: RankEvidence, fmt: Format, first_wrong: int | None
) -> tuple[result_lines.Step, ...]:
    # Unseen values are null in each vector.
    unseen = (None,) * len(expected[0].gradient.center) if expected else ()
    every = max(1, (len(expected) - _FIRST) // _LATER)
    always = {len(expected) - 1, first_wrong}
    return tuple(
        result_lines.Step(
            step=number,
            window=right.window,
            expected=_floats(right.weights.center),
            observed=attempt.weights,
            error=_errors(right.weights, attempt.weights),
            bound=_floats(right.weights.radius),
            ulp=_errors(right.weights, attempt.weights, fmt),
            gradient_expected=_floats(right.gradient.center),
            gradient_observed=attempt.gradients or unseen,
            gradient_error=_errors(right.gradient, attempt.gradients or unseen),
            gradient_bound=_floats(right.gradient.radius),
        )
        for number, (right, attempt) in enumerate(zip(expected, rank.steps, strict=False))
        if number < _FIRST or number % every == 0 or number in always
    )


def _errors(box: Enclosure, observed: Vector, ulps_of: Format | None = None) -> Vector:
    """The distance of each value from the center, in units in the last place if a format is given."""
    return tuple(
        None
        if value is None
        else 0.0
        if value == center
        else _float(abs(value - center) / (1 if ulps_of is None else ulps_of.ulp(center)))
        for value, center in zip(map(exactly, observed), box.center, strict=False)
    )


def _difference(judgement: Judgement, parameters: Sequence[str], target: str) -> result_lines.FirstDifference | None:
    difference = judgement.difference
    if difference is None:
        return None
    rank = judgement.ranks[difference.rank]
    step = rank.taken(difference.step) or rank.taken_by_hand(difference.step)
    calls = step, _backward(rank, difference.step)
    # A wrong gradient shows in the step, but the backward divides the loss.
    at = next(filter(None, reversed(calls) if difference.quantity == "gradient" else calls), None)
    seen = _backward_line(at, target) if isinstance(at, BackwardBegin) else _line(at, target)
    return result_lines.FirstDifference(
        step=difference.step,
        quantity=difference.quantity,
        parameter=parameters[difference.index],
        expected=_float(difference.expected),
        observed=difference.observed,
        error=None if difference.error is None else _float(difference.error),
        bound=_float(difference.bound),
        where=None if seen is None else seen.where,
        source=() if seen is None else seen.source,
    )


def _backward(rank: RankEvidence, step: int) -> Event | None:
    """The last backward before a step."""
    window = rank.steps[step].seen_in
    return next((event for event in reversed(rank.events.of(BackwardBegin)) if event.window == window), None)


def _rank(rank: RankEvidence) -> result_lines.Rank:
    failed = rank.raised or rank.events.first(ObserverFailed)
    return result_lines.Rank(
        rank=rank.number,
        exit=rank.outcome.exit,
        delivered=rank.outcome.finished and rank.outcome.exit != "exited 0",
        output=shortened(rank.outcome.output),
        stack=rank.outcome.stack and shortened(rank.outcome.stack),
        traceback=shortened(failed.traceback) if failed else None,
        host=rank.outcome.host,
        collectives={
            op: result_lines.Collective(entry["count"], entry["bytes"])
            for op, entry in sorted(rank.collectives.items())
        },
    )


def _floats(values: Sequence[Fraction]) -> Vector:
    return tuple(map(_float, values))


def _float(value: Gap) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
