"""Cases in which a rank did not deliver its evidence: which rank failed first, how, and where in the trainer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from conformance.results.records import Reason
from conformance.runner.outcome import Outcome
from conformance.trace import events as trace
from conformance.verdict.evidence import RankEvidence, named
from conformance.verdict.paths import LIBRARIES, nameless
from conformance.verdict.waiting import waits_for

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
            f"{named([rank.outcome.rank for rank in alike])} did not finish: {how}{where}"
            for (how, where), alike in places
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
    """What the first rank raised that was not cut off by another one, and the text of the trainer's line."""
    raised = [rank for rank in ranks if rank.raised is not None]
    first = next((rank for rank in raised if rank.outcome.after is None), next(iter(raised), None))
    if first is None or first.raised is None:
        return "", ""
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
        return f"rank {rank.outcome.rank} was {how}{_at(_innermost(output))}"
    last_words = _last(line.strip() for line in output.splitlines() if line.strip())
    return f"rank {rank.outcome.rank} {was}{how}" + (f"; it last printed: {last_words}" if last_words else "")


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
