"""What a script shows of a case that fails: after how many windows, and which values are wrong there."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.cases.case import Resumed
from conformance.repro.kinds import TIMEOUT, Calls, CannotShow, Counts, Ending, Reading, Shows
from conformance.repro.numbers import answers, wrong_numbers
from conformance.trace.events import Raised
from conformance.verdict.judgement import AVERAGES, BUFFERS, DRAWS, RESTORED, WEIGHTS, Judgement
from conformance.workloads.model import Counting
from conformance.workloads.problem import Problem

#: How a script sees that a law is broken that right numbers do not excuse: what watches, and what compares.
WATCHES: dict[str, tuple[tuple[str, str], ...]] = {
    "amp/autocast-around-forward": (("watch_autocast", "compare_calls"),),
    "amp/autocast-only-if-asked": (("watch_autocast", "compare_calls"),),
    "amp/unscale-after-sync": (("watch_unscale", "compare_ranks"),),
    "amp/update-once": (("watch_update", "compare_calls"),),
    "ddp/no-sync-around-forward": (("watch_no_sync", "compare_calls"),),
    "ddp/same-collectives": (("watch_collectives", "compare_ranks"),),
    "ddp/wait-before-step": (("watch_waiting", "compare_calls"), ("watch_functional_waiting", "compare_calls")),
    "ddp/wait-before-use": (("watch_waiting", "compare_calls"),),
    "hvd/synchronize-before-unscale": (("watch_unscale", "compare_ranks"),),
    "save/one-writer": (("watch_saves", "compare_writers"),),
}
#: What is looked at on both sides of a stop: by the name of the guard, what watches, and what is right.
_SEAMS = {
    DRAWS: ("watch_draws", "each rank draws the random numbers that come next when it is resumed"),
    RESTORED: ("watch_states", "training goes on with what it was stopped with, to the bit"),
    AVERAGES: ("watch_averages", "an average of the weights goes on as it was when training was stopped"),
}


def shown(judgement: Judgement, problem: Problem, resumed: Resumed = "once") -> list[Shows]:
    """What shows the failure, the shortest training first. ``resumed``: how the case is.

    Raises CannotShow.
    """
    if judgement.verdict == "INCONCLUSIVE":
        raise CannotShow(f"nothing is proved about it: {judgement.headline}")
    if judgement.verdict in ("CRASH", "HANG"):
        return _endings(judgement, len(problem.windows))
    windows = len(problem.windows)
    if problem.workload.own_order:
        weights = (value for rank in judgement.ranks for value in (rank.final_weights or ()) if value is not None)
        return [Reading(windows, tuple(weights))]
    if judgement.trajectory is None or not judgement.trajectory.steps or not judgement.ranks:
        raise CannotShow(f"no numbers show it: {judgement.headline}")
    found: list[Shows] = [*wrong_numbers(judgement.ranks, answers(judgement, problem))]
    found = found or [*_beside(judgement, problem), *_calls(judgement, windows)]
    if resumed == "twice":
        rule = "training that goes on from a checkpoint leaves it as it is"
        found.append(Calls(windows, rule, "", launch="altered_by_resume"))
    if not found:
        raise CannotShow(
            f"its weights and gradients are those of a right trainer, so a script has nothing to compare: "
            f"{judgement.headline}; "
            "`conformance run --traces` and `conformance trace` show what the trainer calls"
        )
    return found


def _beside(judgement: Judgement, problem: Problem) -> Iterator[Shows]:
    """What a model and its optimizers have beside the weights."""
    for name in (guard.name for guard in judgement.guards if not guard.holds):
        if name == BUFFERS:
            yield Counts(len(problem.windows), tuple(_counted(problem)))
        elif name == WEIGHTS:
            yield Calls(len(problem.windows), "weights change in `optimizer.step()` alone", "watch_changes")
        elif name in _SEAMS:
            watch, rule = _SEAMS[name]
            yield Calls(len(problem.windows), rule, watch, "compare_seam", "in_both_lives")
    if problem.precision.scaled and problem.resumed_at is not None:
        rule = "the loss scaler goes on as it was when training was stopped"
        yield Calls(len(problem.windows), rule, "watch_scale", "compare_seam", "in_both_lives")


def _counted(problem: Problem) -> Iterator[tuple[float, float, float]]:
    """What rank 0 may have counted: its own samples, or those of all ranks, or their mean."""
    own = [window.batch[at] for window in problem.windows for batch in window.shares[0] for at in batch]
    whole = [sample for window in problem.windows for sample in window.batch]
    # Each batch adds once, in float32.
    roundings = sum(len(share) for window in problem.windows for share in window.shares)
    ranks = problem.layout.world_size
    for samples, of_ranks in ((own, 1), (whole, 1), (whole, ranks))[: 3 if ranks > 1 else 1]:
        total = Counting.SCALE * sum(value**2 for sample in samples for value in sample.x) / of_ranks
        yield len(samples) / of_ranks, float(total), float(total * roundings / 2**24)


def _calls(judgement: Judgement, windows: int) -> Iterator[Calls]:
    for finding in judgement.findings:
        first = windows if finding.window is None else finding.window + 1
        for count in dict.fromkeys((first, windows)):
            for watch, compares in WATCHES.get(finding.law.id, ()):
                yield Calls(count, finding.law.says, watch, compares)


def _endings(judgement: Judgement, windows: int) -> list[Shows]:
    raised = [(rank, rank.raised) for rank in judgement.ranks if rank.raised and rank.raised.type != "SystemExit"]
    errors = tuple(_error(error) for _, error in raised)
    raising = [rank for rank, _ in raised]
    exits = [rank.outcome.exit for rank in judgement.ranks if rank not in raising and not rank.outcome.finished]
    if judgement.verdict == "CRASH" and exits:
        # What the others do that wait for one that is gone is a race.
        errors = (*errors, *map(_died, exits), "Connection reset by peer", "Connection closed by peer", TIMEOUT)
    ended = 1 + max((len(rank.attempts) for rank in judgement.ranks), default=windows)
    return [Ending(count, errors) for count in dict.fromkeys([min(ended, windows), windows])]


def _died(exit: str) -> str:
    """What torch says of a process that ended so."""
    ended, _, _ = exit.partition(" before")
    if ended == "exited 0":
        return "a process exited with 0 before the end of training"
    return ended.replace("exited", "terminated with exit code").replace("killed by", "terminated with signal")


def _error(raised: Raised) -> str:
    message = raised.message.splitlines()
    return f"{raised.type}: {message[0]}" if message else raised.type
