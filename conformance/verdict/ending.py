"""Judges cases in which a rank did not finish: which rank failed first, how, where in the trainer, and on what."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from conformance.results.result_lines import Reason
from conformance.runner.outcome import Outcome
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated
from conformance.verdict.evidence import RankEvidence, named
from conformance.verdict.paths import LIBRARIES, nameless
from conformance.workloads.model import Linear, Model
from conformance.workloads.workload import Workload

_CALL = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)', re.MULTILINE)
# Calls that wait: the end of the file name, the function, and the thing waited for.
_WAITS = [
    (re.compile(rf"(^|[/\\]){file}$"), re.compile(rf"{function}$"), what)
    for file, function, what in (
        (r"torch/utils/file_baton\.py", "wait", "the lock file of a build of a torch extension"),
        (r"filelock/.*\.py", "acquire", "a lock file"),
        (r"distributed_c10d\.py", "(init_process_group|new_group|_new_group_with_tag)", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(barrier|monitored_barrier)", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(all_|broadcast|reduce|gather|scatter).*", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(send|recv)", "another rank in {}"),
        (r"torch/autograd/graph\.py", "_engine_run_backward", "its backward, where ranks may wait for each other"),
        (r"horovod/torch/mpi_ops\.py", "synchronize", "the other ranks in hvd.{}"),
        (r"subprocess\.py", "(wait|_wait|communicate|_communicate)", "another process"),
        (r"multiprocessing/.*\.py", "(join|wait|poll|recv.*|get)", "another process"),
        (r"queue\.py", "(get|put)", "a queue"),
        (r"(socket|ssl|selectors|urllib/request|http/client)\.py", ".*", "the network"),
        (r"threading\.py", "(wait|join|_wait_for_tstate_lock|acquire)", "another thread"),
    )
]


def waits_for(stack: str, trainer_frame: str) -> str | None:
    """The thing that the calls below the trainer's line wait for; None if unknown.

    ``stack``: faulthandler's, the most recent call first. ``trainer_frame``: the text of the trainer's innermost frame.
    """
    thread = next((part for part in re.split(r"\n\s*\n", stack) if trainer_frame in part), "")
    below = list(_CALL.finditer(thread.partition(trainer_frame)[0]))
    # The outermost call says more than the calls inside it.
    for frame in reversed(below):
        for file, function, what in _WAITS:
            if file.search(frame["file"]) and function.match(frame["function"]):
                return what.format(frame["function"])
    return None


_OF_SHAPES = re.compile(
    r"shape|size of tensor|dimension|out of (range|bounds)|forward\(\)|scalar type|target size", re.I
)
_OF_BATCHES = re.compile(r"batch|data|loader|next\(", re.I)


def shapes_of(workload: Workload, message: str, line: str) -> str:
    """A phrase on the shapes of this case if the trainer crashed on other ones, to follow the headline. ``line``: the
    text of the line in which it crashed."""
    is_weighted, of_batch = workload.loss == "weighted", _OF_BATCHES.search(line) is not None
    loss, parts = ("weighted", "inputs, targets, weights") if is_weighted else ("not weighted", "inputs, targets")
    unpacked = f"; the loss of this case is {loss}: unpack a batch as `{parts} = batch`"
    other = (
        r"too many values to unpack \(expected 2" if is_weighted else r"not enough values .*\(expected [3-9], got 2\)"
    )
    if re.search(other, message):
        # A line that unpacks a batch is not about parameters.
        return unpacked if of_batch else unpacked + _parameters_of(workload.model, message)
    if "to unpack (expected 1" in message and of_batch:
        return unpacked
    if _OF_SHAPES.search(message):
        return (
            f"; the model of this case takes only inputs of shape (m, {workload.model.features}), and predictions and "
            "targets have shape (m, 1)"
        )
    return _parameters_of(workload.model, message)


def parameters_without_gradients(model: Model) -> Iterator[str]:
    """Yields sentences on parameters that may have no gradient, on which a trainer may have crashed."""
    frozen = [tensor.name for tensor in model.tensors if tensor.frozen]
    unused = [tensor.name for tensor in model.tensors if tensor.block is not None]
    if frozen:
        yield f"{enumerated(frozen)} are frozen in this case: their `.grad` is None"
    if unused:
        yield f"some samples of this case do not use {enumerated(unused)}: their `.grad` may be None"


def _parameters_of(model: Model, message: str) -> str:
    """A phrase on the number of parameters, if the trainer may have crashed because it expected another number."""
    names = [tensor.name for tensor in model.tensors]
    count = len(names)
    otherwise = rf"too many values to unpack (?!\(expected {count}\b)|not enough values to unpack .*got {count}\)"
    if not re.search(otherwise, message):
        return ""
    others = "" if model.name == Linear.name else ", or list the `models` that the trainer supports"
    return (
        f"; the model of this case has {count} parameter{'s' if count > 1 else ''}, {enumerated(names)}: "
        f"take as many as `model.parameters()` has{others}"
    )


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_TOO_LATE = "this came after an optimizer step, which may be wrong: decline a case before its first step"
_NOT_THE_TRAINERS = ("<", *(path + os.sep for path in (str(Path(__file__).parents[1]), *LIBRARIES)))


def ending(
    ranks: Sequence[RankEvidence], outcome: Outcome
) -> tuple[Literal["HANG", "CRASH", "UNSUPPORTED", "SETUP"], str, Reason] | None:
    """The verdict, its headline and the reason; None if every rank delivered."""
    missing = [rank for rank in ranks if not rank.outcome.finished]
    if not missing:
        return None
    # A peer of an exited rank also raises, because it lost the connection, often before the exit is seen.
    first = next((rank for rank in missing if rank.outcome.after is None), missing[0])
    if first.raised is not None:
        if first.raised.misused:
            return "SETUP", _message(first.raised), _reason(first.raised)
        if not first.raised.declined:
            return "CRASH", _what(first.raised), _reason(first.raised)
        if _has_trained(ranks):
            return "CRASH", f"{_what(first.raised)}; {_TOO_LATE}", _reason(first.raised)
        return "UNSUPPORTED", _message(first.raised) or "the trainer declines this case", Reason("declined")
    if outcome.timed_out:
        places = groupby(missing, lambda rank: (rank.outcome.exit, _stopped(rank.outcome.stack or "")))
        said = "; ".join(
            f"{named([rank.number for rank in alike])} did not finish: {how}{where}" for (how, where), alike in places
        )
        stopped = {_stopped(rank.outcome.stack or "") for rank in missing}
        return "HANG", said, Reason(" and ".join(["hung", *sorted(stopped)]))
    return "CRASH", _ended(first), Reason(f"{first.outcome.exit}{_at(_innermost(first.outcome.output))}")


def _has_trained(ranks: Sequence[RankEvidence]) -> bool:
    """Whether a rank took an optimizer step, or started a second window, which implies an unseen step."""
    return any(
        rank.attempts
        or _has_moved(rank)
        or rank.events.has((trace.Report, trace.ForeignOptimizer))
        or any(event.window for event in rank.events.of(trace.Forward))
        for rank in ranks
    )


def _has_moved(rank: RankEvidence) -> bool:
    """Whether its weights changed since training started."""
    before = next((event.weights for event in rank.events.of(trace.Start)), None)
    after = rank.raised and rank.raised.weights
    return None not in (before, after) and before != after


def _message(raised: trace.Raised) -> str:
    """All lines of the message: the reason may be in the first or the last."""
    message = nameless(raised.message)
    return " ".join(line.strip() for line in message.splitlines() if line.strip())


def _what(raised: trace.Raised) -> str:
    message, where = _message(raised), _last(_frames(raised.traceback))
    what = f"{raised.type}: {message}" if message else raised.type
    return f"rank {raised.rank} raised {what}" + (f" ({where})" if where else "")


def _reason(raised: trace.Raised) -> Reason:
    """The type of the exception, and the trainer's line."""
    where, text = _last(_frames(raised.traceback)), _text(raised.traceback)
    return Reason(f"raised {raised.type}", where, (text,) if where and text else ())


def raised_by(ranks: Sequence[RankEvidence]) -> tuple[str, str]:
    """The message of the first rank that raised by itself, and the text of the trainer's line; if none raised, the last
    words of a rank that did not finish."""
    raised = [rank for rank in ranks if rank.raised is not None]
    first = next((rank for rank in raised if rank.outcome.after is None), next(iter(raised), None))
    if first is None or first.raised is None:
        return _last_words(next((rank.outcome.output for rank in ranks if not rank.outcome.finished), "")), ""
    return _message(first.raised), _text(first.raised.traceback)


def _text(traceback: str) -> str:
    """The text of the trainer's line that raised, from the traceback."""
    ends = [frame.end() for frame in _FRAME.finditer(traceback) if _is_trainers(frame)]
    return traceback[ends[-1] :].split("\n", 2)[1].strip() if ends and "\n" in traceback[ends[-1] :] else ""


def _ended(rank: RankEvidence) -> str:
    how, output = rank.outcome.exit, rank.outcome.output
    if not how.startswith(("exited", "killed", "aborted")):
        return how
    was = "was " if how.startswith("killed") else ""
    if how.startswith("killed by"):
        # faulthandler writes the stack when a signal kills the process.
        return f"rank {rank.number} was {how}{_at(_innermost(output))}"
    last_words = _last_words(output)
    return f"rank {rank.number} {was}{how}" + (f"; it last printed: {last_words}" if last_words else "")


def _last_words(output: str) -> str:
    return _last(line.strip() for line in output.splitlines() if line.strip()) or ""


def _stopped(stack: str) -> str:
    """A phrase on where a rank was stopped, and what it waited for, to follow how it ended."""
    where = next((frame for frame in _FRAME.finditer(stack) if _is_trainers(frame)), None)
    if where is None:
        return ""
    what = waits_for(stack, where[0])
    return _at(_place(where)) + (f", waiting for {what}" if what else "")


def _frames(trace: str) -> Iterable[str]:
    """The trainer's own lines of a traceback or stack, as ``my_trainer.py:12``, in its order."""
    for frame in _FRAME.finditer(trace):
        if _is_trainers(frame):
            yield _place(frame)


def _is_trainers(frame: re.Match[str]) -> bool:
    return not frame["file"].startswith(_NOT_THE_TRAINERS)


def _place(frame: re.Match[str]) -> str:
    return f"{Path(frame['file']).name}:{frame['line']}"


def _innermost(stack: str) -> str | None:
    """The trainer's innermost line in faulthandler's stack, which starts with the most recent call."""
    return next(iter(_frames(stack)), None)


def hung_at(outcome: Outcome) -> frozenset[str | None]:
    """The trainer's lines that the ranks were in at the time limit; None for a rank in none."""
    return frozenset(_innermost(rank.stack or "") for rank in outcome.ranks if not rank.finished)


def _last(texts: Iterable[str]) -> str | None:
    return next(reversed([*texts]), None)


def _at(where: str | None) -> str:
    return f", at {where}" if where else ""
