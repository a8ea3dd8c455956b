"""Checks a model's state next to its weights: buffers, random numbers, running averages of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, pairwise, takewhile
from typing import TypeAlias

from conformance.cases.case import INSIDE_WINDOW, Case
from conformance.laws.subjects import Rank, Run
from conformance.results.result_lines import PASSED, Reason
from conformance.trace.events import Average, Buffers, Draw, Forward, Vector
from conformance.verdict.averaged_weights import judged_average
from conformance.verdict.judgement import AVERAGE, AVERAGES, BUFFERS, DRAWS, RESTORED, Judgement, Told, guard
from conformance.verdict.setup import Mistake
from conformance.verdict.stop_and_resume import other_bits
from conformance.workloads.behaviour import Way
from conformance.workloads.model import Counting, WithDropout

#: A number of samples, and a sum over them.
Sums: TypeAlias = tuple[Fraction, Fraction]

#: The kinds of forwards that gradients flow through.
_TRAIN = ("trained", "recomputed")
#: The relative rounding error of float32.
_UNIT = Fraction(1, 2**24)


@dataclass(frozen=True)
class Fate:
    """``wrong``: the problem. ``unknown``: why it cannot be judged. ``owner``: whose buffers all ranks
    have."""

    wrong: Told | None = None
    unknown: Told | None = None
    owner: Way | None = None


def look_beside_weights(case: Case, judgement: Judgement) -> None:
    """Judges a model's state next to its weights, if these are correct."""
    model, runs, fates = case.problem.workload.model, judgement.runs, list[tuple[str, str, Fate]]()
    if judgement.verdict == "PASS (bounded)":
        fates.append((RESTORED, "bit-identical", Fate(wrong=other_bits(model, judgement.ranks))))
    if isinstance(model, Counting):
        fates.append((BUFFERS, "each trained sample counts once", counted_buffers(case, runs)))
    if isinstance(model, WithDropout) and len(runs) > 1:
        fates.append((DRAWS, "the next ones", resumed_draws(runs)))
    if case.problem.workload.average is not None:
        _look_at_average(case, judgement)
    # A killed process may have updated its averages after saving, and on other ranks, averages are sharded differently.
    elif case.resumed in ("once", "twice", INSIDE_WINDOW) and len(runs) > 1:
        at_epoch = any(end.index + 1 == case.resumed_at for end in case.problem.ends)
        fates.append((AVERAGES, "those of the stop", resumed_averages(runs, at_epoch=at_epoch)))
    for name, expected, found in fates:
        if found.owner is not None:
            judgement.ways = (*judgement.ways, found.owner)
        if found.unknown is not None and judgement.verdict in PASSED:
            text, advice = found.unknown
            judgement.overrule("INCONCLUSIVE", text, Reason(name, advice=advice or None))
        if found.wrong is not None:
            judgement.guards += (guard(name, expected, found.wrong),)
            # Buffers that are lost in a resume were not written by a line.
            edit = "change buffers" if name == BUFFERS and case.resumed_at is None else ""
            reason = Reason(advice=found.wrong.advice or None, edit=edit)
            judgement.overrule("FAIL (numerics)", found.wrong.text, reason)


def _look_at_average(case: Case, judgement: Judgement) -> None:
    assert judgement.trajectory is not None
    found = judged_average(case, judgement.runs, judgement.trajectory)
    judgement.ways = (*judgement.ways, *([found.way] if found.way else []))
    if found.missing is not None:
        judgement.mistaken(Mistake("report", found.missing))
    expected = "those of the steps"
    judgement.guards += (guard(AVERAGE, expected, found.wrong, diagnosis=found.diagnosis, where=found.where),)
    if found.wrong is not None:
        judgement.overrule(
            "FAIL (numerics)", found.wrong, Reason(where=found.where, advice=found.advice, edit=found.edit)
        )


# Buffers: a count of a model's samples, and a sum over them. Several owners are valid: DistributedDataParallel sends
# those of rank 0 to all, Horovod leaves each rank its own. Each trained sample must count once.


@dataclass(frozen=True)
class _Counted:
    """One forward. ``why``: its purpose. ``life``: its life in a resumed run."""

    before: Sums
    after: Sums
    why: str
    life: int
    model: int
    training: bool

    @property
    def added(self) -> Sums:
        return self.after[0] - self.before[0], self.after[1] - self.before[1]


_Chain: TypeAlias = Sequence[_Counted]


def counted_buffers(case: Case, runs: Sequence[Run]) -> Fate:
    """Judges the buffers in a run with correct numbers."""
    lives = [[run.ranks[at] for run in runs] for at in range(case.world_size)]
    if any(None in map(_exactly, event.after) for own in lives for rank in own for event in rank.of(Buffers)):
        return Fate(unknown=Told("the values of the model's buffers cannot be read"))
    chains = list(map(_chain, lives))
    for rank, chain in enumerate(chains):
        if not chain:
            return Fate(
                unknown=Told(
                    f"the buffers of rank {rank} cannot be judged: no forward of the model with buffers was seen",
                    "call the module that `task.model()` returns, or a copy of it",
                )
            )
        if _alternates(chain):
            return Fate(
                unknown=Told(
                    f"the buffers of rank {rank} cannot be judged: it trains copies of the model in turn",
                    "train one copy at a time",
                )
            )
    wrong = next(filter(None, map(_miscounted, count(), _shares(case), chains)), None) or _rounded(case, chains)
    return Fate(wrong) if wrong else _between_forwards(chains)


def _shares(case: Case) -> Iterator[int]:
    """The number of samples that each rank trains."""
    for rank in range(case.world_size):
        yield sum(len(batch) for window in case.problem.windows for batch in window.shares[rank])


def _chain(lives: Sequence[Rank]) -> _Chain:
    """The forwards of the models that train, except those with an effect that was undone at once."""
    found = [_counted(event, rank, life) for life, rank in enumerate(lives) for event in rank.of(Buffers)]
    trains = {(one.life, one.model) for one in found if one.why in _TRAIN}
    kept: list[_Counted] = []
    for one in found:
        if (one.life, one.model) not in trains:
            continue
        # Another rank's sum may have replaced this one's since.
        aside = list(takewhile(lambda before: before.why not in ("trained", "at the end"), reversed(kept)))
        back = [number for number, before in enumerate(aside, start=1) if before.before[0] == one.before[0]]
        if back:
            del kept[-back[-1] :]
        kept.append(one)
    return kept


def _counted(event: Buffers, rank: Rank, life: int) -> _Counted:
    why: str = event.how
    if why == "with gradients":
        forwards = rank.between(Forward, before=event)
        why = "trained" if forwards and not forwards[-1].extra else "aside"
    return _Counted(_sums(event.before), _sums(event.after), why, life, event.model, event.training)


def _alternates(chain: _Chain) -> bool:
    """Whether models are called in turn: then one may count samples that the other does not."""
    for life in {one.life for one in chain}:
        models = [one.model for one in chain if one.life == life]
        if sum(one != two for one, two in pairwise(models)) >= len(set(models)):
            return True
    return False


def _miscounted(rank: int, due: int, chain: _Chain) -> Told | None:
    """A sentence on samples that count twice, never, or in a forward without training; None if there are none."""
    samples = sum(one.added[0] for one in chain)
    counted = f"rank {rank} trains {due} samples, but its model's buffers count {samples}"
    if samples < due:
        if any(one.why in _TRAIN and not one.training for one in chain):
            return Told(f"{counted}: the model is in evaluation mode", "call `model.train()` before training")
        return Told(f"{counted}: the others were not counted, or removed again")
    if samples > due:
        if any(one.why == "recomputed" and one.added[0] for one in chain):
            return Told(f"{counted}: forwards that a backward recomputes also update them", "restore them after it")
        return Told(f"{counted}: forwards without training also update them", "call `model.eval()` before them")
    return None


def _rounded(case: Case, chains: Sequence[_Chain]) -> Told | None:
    """A sentence on sums with too few digits; None if there are none. Ranks may train each other's samples."""
    due = Counting.SCALE * sum(value**2 for window in case.problem.windows for one in window.batch for value in one.x)
    total = sum(one.added[1] for chain in chains for one in chain)
    # Additions may round off digits of means over the ranks.
    room = sum(len(chain) * _UNIT * max(abs(one.after[1]) for one in chain) for chain in chains)
    if abs(total - due) <= room:
        return None
    return Told(
        f"the model's buffers sum the trained samples to {float(total)} instead of {float(due)}",
        "keep buffers in 32 bits",
    )


def _between_forwards(chains: Sequence[_Chain]) -> Fate:
    """Judges the owner of the buffers by their changes between forwards."""
    jumps = [_jumps(chain) for chain in chains]
    # The values that forwards left; those at the end or start may come from elsewhere on all ranks.
    held = [{one.after for one in chain if one.why != "at the end"} for chain in chains]
    owner: Way = "buffers=own"
    known = chains[0][0].before
    for index in sorted({index for own in jumps for index in own}):
        had = [chain[min(index, len(chain)) - 1].after for chain in chains]
        has = [own.get(index, values) for own, values in zip(jumps, had, strict=True)]
        for rank in (rank for rank, own in enumerate(jumps) if index in own):
            is_resume = chains[rank][index].life != chains[rank][index - 1].life
            others = [at for at in range(len(chains)) if at != rank]
            if has[rank][0] >= had[rank][0] and any(has[rank] in {*held[at], had[at]} for at in others):
                owner = owner if is_resume or owner == "buffers=reduced" else "buffers=one rank"
            elif others and _is_reduced(has[rank], had, known):
                owner = "buffers=reduced"
            else:
                counted = sum(one.added[0] for chain in chains for one in chain[:index])
                return Fate(_changed(rank, had[rank], has[rank], int(counted), is_resume))
        if len(set(has)) == 1:
            known = has[0]
    return Fate(owner=owner if len(chains) > 1 else None)


def _jumps(chain: _Chain) -> dict[int, Sums]:
    """The initial values of forwards that differ from the final values of the previous ones, by number."""
    return {at: two.before for at, (one, two) in enumerate(pairwise(chain), start=1) if one.after != two.before}


def _is_reduced(has: Sums, had: Sequence[Sums], known: Sums) -> bool:
    """Whether these are the mean of all ranks' values, or the values ``known`` to all plus each rank's additions."""
    for at, (now, old, values) in enumerate(zip(has, known, zip(*had, strict=True), strict=True)):
        # A mean of counts is rounded to an integer, and a mean of sums to 24 bits in each addition.
        room = Fraction(1) if at == 0 else len(values) * _UNIT * sum(map(abs, values))
        if now != old + sum(value - old for value in values) and abs(now - sum(values) / len(values)) > room:
            return False
    return True


def _changed(rank: int, before: Sums, after: Sums, counted: int, is_resume: bool) -> Told:
    """A sentence on a wrong change between forwards. ``counted``: by the forwards of all ranks before it."""
    had, has = (f"{samples} samples with sum {float(total):g}" for samples, total in (before, after))
    if is_resume:
        return Told(
            f"the model's buffers were not restored: rank {rank} resumes with {has}, but stopped at {had}",
            "save the buffers in the checkpoint, as `model.state_dict()` does",
        )
    if after[0] > counted:
        return Told(
            f"samples count twice in the model's buffers: rank {rank} has {has}, but all ranks together counted only "
            f"{counted}",
            "add only new samples to the buffers",
        )
    if after[0] < before[0]:
        return Told(
            f"the model's buffers were lost: rank {rank} had {had}, and then {has}",
            "keep the buffers when the model is copied, recreated or given other weights",
        )
    return Told(
        f"the model's buffers changed between two forwards: rank {rank} had {had}, and then {has}, which is neither "
        "another rank's value nor a sum or mean over the ranks"
    )


def _sums(values: Vector) -> Sums:
    samples, total = (_exactly(value) or Fraction(0) for value in values)
    return samples, total


def _exactly(value: float | str | None) -> Fraction | None:
    return Fraction(value) if isinstance(value, float | int) else None


def resumed_draws(runs: Sequence[Run]) -> Fate:
    """Judges the random numbers after a resume; ``runs``: one for each life. The first draw must start from the state
    that the last one left. From an earlier state, it repeats numbers; from an unknown state, it may still be correct,
    because the trainer may have drawn in between."""
    first, second = runs
    drawn = [_once(rank.of(Draw)) for rank in first.ranks]
    left = [draws[-1].after if draws else None for draws in drawn]
    for rank, resumed in enumerate(second.ranks):
        earlier, later = drawn[rank], resumed.of(Draw)
        if not earlier or not later:
            return Fate(
                unknown=Told(
                    f"no forward of rank {rank} that draws random numbers was seen before and after the stop",
                    "call the module that `task.model()` returns, in training mode",
                )
            )
        begins = later[0].before
        if begins == left[rank]:
            continue
        again = next((number for number, draw in enumerate(earlier, start=1) if draw.before == begins), None)
        if again is not None:
            return Fate(
                Told(
                    f"rank {rank} repeats the random numbers of its forward {again} after the resume",
                    "save `torch.get_rng_state()` on each rank, and restore it last when the checkpoint is loaded",
                )
            )
        if begins in left:
            return Fate(
                Told(
                    f"rank {rank} draws the random numbers of rank {left.index(begins)} after the resume",
                    "save the state of each rank's generator, and load it on the same rank",
                )
            )
        return Fate(
            unknown=Told(
                f"rank {rank} draws other random numbers after the resume than the next ones, which is correct if it "
                "draws some in between",
                "restore the state of the generator last, before the first forward",
            )
        )
    return Fate()


def _once(draws: Sequence[Draw]) -> Sequence[Draw]:
    """The draws without repeated ones, such as those of activation checkpointing in a backward."""
    first: dict[str, Draw] = {}
    for draw in draws:
        first.setdefault(draw.before, draw)
    return list(first.values())


def resumed_averages(runs: Sequence[Run], *, at_epoch: bool) -> Fate:
    """Judges each average of each rank; ``runs``: one for each life. The first update after the resume must find what
    the last one before the stop left. A trainer may keep other averages after the resume, or none, or restart them
    regularly, such as in each epoch; ``at_epoch``: the resume is at the start of an epoch."""
    first, second = runs
    for number, (one, other) in enumerate(zip(first.ranks, second.ranks, strict=True)):
        before, after = _of(one), _of(other)
        if before.keys() != after.keys():
            continue
        for average, updates in before.items():
            last, next_ = updates[-1], after[average][0]
            if next_.updates == 0:
                if at_epoch or len(before) > 1 or any(update.updates == 0 for update in updates[1:]):
                    continue
                return Fate(
                    Told(
                        f"rank {number} restarts its average of the weights after the resume, although it had "
                        f"{last.updates + 1} updates before the stop",
                        "save and load the `state_dict()` of the `AveragedModel`",
                    )
                )
            if (next_.updates, next_.before) != (last.updates + 1, last.after):
                return Fate(
                    Told(
                        f"rank {number} resumes with another average of the weights than at the stop",
                        "save and load the `state_dict()` of the `AveragedModel`, which includes its number of updates",
                    )
                )
    return Fate()


def _of(rank: Rank) -> dict[int, list[Average]]:
    """The updates of each average, in order."""
    found: dict[int, list[Average]] = {}
    for update in rank.of(Average):
        found.setdefault(update.average, []).append(update)
    return found
