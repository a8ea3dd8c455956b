"""Cases in which a rank did not deliver: which one failed first, how, where in the trainer, and on what."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from conformance.results.records import Reason
from conformance.runner.outcome import Outcome
from conformance.trace import events as trace
from conformance.trace.words import enumerated
from conformance.verdict.evidence import RankEvidence, named
from conformance.verdict.paths import LIBRARIES, nameless
from conformance.workloads.model import Linear, Model
from conformance.workloads.workload import Workload

_CALL = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)', re.MULTILINE)
# A call that waits: the end of its file's name, its function, and what it waits for.
_WAITS = [
    (re.compile(rf"(^|[/\\]){file}$"), re.compile(rf"{function}$"), what)
    for file, function, what in (
        (r"torch/utils/file_baton\.py", "wait", "the lock file of a build of a torch extension"),
        (r"filelock/.*\.py", "acquire", "a lock file"),
        (r"distributed_c10d\.py", "(init_process_group|new_group|_new_group_with_tag)", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(barrier|monitored_barrier)", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(all_|broadcast|reduce|gather|scatter).*", "the other ranks in {}"),
        (r"distributed_c10d\.py", "(send|recv)", "another rank in {}"),
        (r"torch/autograd/graph\.py", "_engine_run_backward", "its backward, in which ranks may wait for each other"),
        (r"horovod/torch/mpi_ops\.py", "synchronize", "the other ranks in hvd.{}"),
        (r"subprocess\.py", "(wait|_wait|communicate|_communicate)", "another process"),
        (r"multiprocessing/.*\.py", "(join|wait|poll|recv.*|get)", "another process"),
        (r"queue\.py", "(get|put)", "a queue"),
        (r"(socket|ssl|selectors|urllib/request|http/client)\.py", ".*", "the network"),
        (r"threading\.py", "(wait|join|_wait_for_tstate_lock|acquire)", "another thread"),
    )
]


def waits_for(stack: str, trainer_frame: str) -> str | None:
    """What the calls below the line of the trainer wait for; None if they are not known to wait.

    ``stack``: faulthandler's, the most recent call first. ``trainer_frame``: the text of the trainer's innermost frame.
    """
    thread = next((part for part in re.split(r"\n\s*\n", stack) if trainer_frame in part), "")
    below = list(_CALL.finditer(thread.partition(trainer_frame)[0]))
    # The outermost call says more than what it is made of.
    for frame in reversed(below):
        for file, function, what in _WAITS:
            if file.search(frame["file"]) and function.match(frame["function"]):
                return what.format(frame["function"])
    return None


_OF_SHAPES = re.compile(
    r"shape|size of tensor|dimension|out of (range|bounds)|forward\(\)|scalar type|target size", re.I
)
_OF_BATCHES = re.compile(r"batch|data|loader|next\(", re.I)


def what_there_is(workload: Workload, message: str, line: str) -> str:
    """Of what is not as the trainer expected, in words that follow the headline. ``line``: the text of that in which it
    crashed."""
    is_weighted, of_batch = workload.loss == "weighted", _OF_BATCHES.search(line) is not None
    loss, parts = ("weighted", "inputs, targets, weights") if is_weighted else ("not weighted", "inputs, targets")
    unpacked = f"; in this case the loss is {loss}, and a batch is unpacked as `{parts} = batch`"
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
            f"; in this case the model takes inputs of (m, {workload.model.features}) alone, and predictions and "
            "targets are (m, 1)"
        )
    return _parameters_of(workload.model, message)


def parameters_without_gradients(model: Model) -> Iterator[str]:
    """Which parameters may have no gradient, on which a trainer may have crashed."""
    frozen = [tensor.name for tensor in model.tensors if tensor.frozen]
    unused = [tensor.name for tensor in model.tensors if tensor.block is not None]
    if frozen:
        yield f"in this case {enumerated(frozen)} are frozen: they have no gradient, and `.grad` is None"
    if unused:
        yield f"in this case some samples do not use {enumerated(unused)}, so that `.grad` may be None"


def _parameters_of(model: Model, message: str) -> str:
    """How many parameters there are, if a trainer crashed on what may be another number of them than it expected."""
    names = [tensor.name for tensor in model.tensors]
    count = len(names)
    otherwise = rf"too many values to unpack (?!\(expected {count}\b)|not enough values to unpack .*got {count}\)"
    if not re.search(otherwise, message):
        return ""
    others = "" if model.name == Linear.name else ", or declare the `models` that the trainer can take"
    return (
        f"; in this case the model has {count} parameter{'s' if count > 1 else ''}, {enumerated(names)}: "
        f"take as many as `model.parameters()` has{others}"
    )


_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_TOO_LATE = "this was after an optimizer step, which may have been a wrong one: decline a case before its first"
_NOT_THE_TRAINERS = ("<", *(path + os.sep for path in (str(Path(__file__).parents[1]), *LIBRARIES)))


def ending(
    ranks: Sequence[RankEvidence], outcome: Outcome
) -> tuple[Literal["HANG", "CRASH", "UNSUPPORTED"], str, Reason] | None:
    """The verdict, its headline and the reason; None if every rank delivered."""
    missing = [rank for rank in ranks if not rank.outcome.finished]
    if not missing:
        return None
    # A peer of a rank that has exited raises too, because of a lost connection, often before the exit is seen.
    first = next((rank for rank in missing if rank.outcome.after is None), missing[0])
    if first.raised is not None:
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
    """Whether a rank has made an optimizer step, or has begun a second window, as after a step that is not seen."""
    return any(
        rank.attempts
        or _has_moved(rank)
        or rank.events.has((trace.Report, trace.ForeignOptimizer))
        or any(event.window for event in rank.events.of(trace.Forward))
        for rank in ranks
    )


def _has_moved(rank: RankEvidence) -> bool:
    """Whether its weights are others than when it began to train."""
    before = next((event.weights for event in rank.events.of(trace.Start)), None)
    after = rank.raised and rank.raised.weights
    return None not in (before, after) and before != after


def _message(raised: trace.Raised) -> str:
    """The reason may be in the first line or in the last."""
    message = nameless(raised.message)
    return " | ".join(line.strip() for line in message.splitlines() if line.strip())


def _what(raised: trace.Raised) -> str:
    message, where = _message(raised), _last(_frames(raised.traceback))
    what = f"{raised.type}: {message}" if message else raised.type
    return f"rank {raised.rank} raised {what}" + (f" ({where})" if where else "")


def _reason(raised: trace.Raised) -> Reason:
    """The type of what was raised, and the trainer's line."""
    where, text = _last(_frames(raised.traceback)), _text(raised.traceback)
    return Reason(f"raised {raised.type}", where, (text,) if where and text else ())


def raised_by(ranks: Sequence[RankEvidence]) -> tuple[str, str]:
    """What the first rank raised that was not cut off by another one, and the text of the trainer's line; where none
    raised, the last words of one that did not finish."""
    raised = [rank for rank in ranks if rank.raised is not None]
    first = next((rank for rank in raised if rank.outcome.after is None), next(iter(raised), None))
    if first is None or first.raised is None:
        return _last_words(next((rank.outcome.output for rank in ranks if not rank.outcome.finished), "")), ""
    return _message(first.raised), _text(first.raised.traceback)


def _text(traceback: str) -> str:
    """The text of the trainer's line in which it raised, which Python has put into the traceback."""
    ends = [frame.end() for frame in _FRAME.finditer(traceback) if _is_trainers(frame)]
    return traceback[ends[-1] :].split("\n", 2)[1].strip() if ends and "\n" in traceback[ends[-1] :] else ""


def _ended(rank: RankEvidence) -> str:
    how, output = rank.outcome.exit, rank.outcome.output
    if not how.startswith(("exited", "killed", "aborted")):
        return how
    was = "was " if how.startswith("killed") else ""
    if how.startswith("killed by"):
        # faulthandler wrote the stack when a signal killed the process.
        return f"rank {rank.number} was {how}{_at(_innermost(output))}"
    last_words = _last_words(output)
    return f"rank {rank.number} {was}{how}" + (f"; it last printed: {last_words}" if last_words else "")


def _last_words(output: str) -> str:
    return _last(line.strip() for line in output.splitlines() if line.strip()) or ""


def _stopped(stack: str) -> str:
    """Where a rank was stopped, and what it waited for there, in words that follow how it ended."""
    where = next((frame for frame in _FRAME.finditer(stack) if _is_trainers(frame)), None)
    if where is None:
        return ""
    what = waits_for(stack, where[0])
    return _at(_place(where)) + (f", where it waited for {what}" if what else "")


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
    """The innermost trainer line of faulthandler's stack, which begins with the most recent call."""
    return next(iter(_frames(stack)), None)


def hung_at(outcome: Outcome) -> frozenset[str | None]:
    """The trainer's lines in which the ranks were at the time limit; None for a rank in none."""
    return frozenset(_innermost(rank.stack or "") for rank in outcome.ranks if not rank.finished)


def _last(texts: Iterable[str]) -> str | None:
    return next(reversed([*texts]), None)


def _at(where: str | None) -> str:
    return f", at {where}" if where else ""
