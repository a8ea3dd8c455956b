"""What shows where training was stopped and resumed, in words: the place in the data, the weights, the optimizer, the
loss scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.cases.case import BETWEEN_FILES, Case
from conformance.trace import events as trace
from conformance.trace.events import KEPT_BY_TORCH, Number, Vector
from conformance.trace.lives import as_resumed
from conformance.verdict.comparison import other_than
from conformance.verdict.evidence import RankEvidence, named
from conformance.workloads.model import Model
from conformance.workloads.plan import planned_windows, rows

#: Exceptions that no checkpoint brings about.
_OF_ITS_CODE = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


def other_stop(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """How training stopped elsewhere than it was asked to; None if it did not.

    Windows that are missing before the stop, and do not come after it, are lost, which is another mistake.
    """
    for rank in ranks:
        before, after = map(_windows, rank.lives) if rank.lives else ([], [])
        stop = case.resumed_at or 0
        if case.resumed_inside:
            last = _micro_batches(rank.lives[0])[-1:] if rank.lives else []
            if last and last != [(stop, case.resumed_inside - 1)]:
                return (
                    f"Your last micro-batch before the stop was number {last[0][1]} of window {last[0][0]}, and should "
                    f"be number {case.resumed_inside - 1} of window {stop}: train `task.stop_after` windows and "
                    "`task.stop_inside` micro-batches of the next one, save in `task.checkpoint_dir`, and return."
                )
        elif before and (before[-1] >= stop or after[:1] == [before[-1] + 1] != [stop]):
            return (
                f"You stopped after {_count(before[-1] + 1)}; this case asks for a stop after {stop}: train "
                "`task.stop_after` windows, skipped ones included, save in `task.checkpoint_dir`, and return."
            )
    return None


def how_resumed(case: Case, altered: Sequence[str]) -> str | None:
    """What came before the resume, where that may be why it failed. ``altered``: as in `Outcome`."""
    if case.resumed == "killed":
        return (
            "before that the processes were killed while they saved the next checkpoint, and the one of "
            f"{_count(case.resumed_at or 0)} was whole: write each beside the last one, and rename it when it is whole"
        )
    if case.resumed == BETWEEN_FILES:
        return (
            "before that the processes were killed between two files of the next checkpoint, and the one of "
            f"{_count(case.resumed_at or 0)} was whole: write the files of each into a new folder, and rename that "
            "last; if it is one file, rename it over the last one, and do not copy it"
        )
    before, after = case.world_sizes
    if before != after:
        return (
            f"it was stopped on {before} ranks, and resumed on {after}: what a rank saves or counts for itself "
            "alone is lost on others, or is another number"
        )
    if altered:
        return (
            f"this was the second run from one checkpoint, and the first has changed or removed {altered[0]} in it: "
            "leave a checkpoint as it is"
        )
    return None


def may_come_of_it(case: Case, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the failure of a rank may come of what `how_resumed` tells: not if its code names what is nowhere, nor,
    but on other ranks, once it has trained, as the checkpoint is read by then."""
    missing = [rank for rank in ranks if not rank.outcome.finished]
    first = next((rank for rank in missing if rank.outcome.after is None), missing[0])
    if first.raised is not None and first.raised.type in _OF_ITS_CODE:
        return False
    before, after = case.world_sizes
    return before != after or not (first.lives and _windows(first.lives[1]))


def lost_place(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """With which other window training went on, or that it did not; None if it went on with the next one, or if that
    cannot be seen."""
    if (
        resumed_unseen(ranks) is None
        and any(rank.lives for rank in ranks)
        and not any(rank.lives and _windows(rank.lives[1]) for rank in ranks)
    ):
        return (
            "no window was trained after the resume: what was saved may say that training, or its last epoch, was over"
        )
    return other_window(case, ranks)


def resumed_unseen(ranks: Sequence[RankEvidence]) -> str | None:
    """Why it cannot be seen what a rank has trained after the resume; None if it can, or if there is nothing to see."""
    for rank in ranks:
        if not rank.lives or _windows(rank.lives[1]):
            continue
        first, second = (life.events for life in rank.lives)
        if not first.of(trace.Model):
            continue
        if not second.of(trace.Model):
            return (
                f"rank {rank.outcome.rank} resumed without calling task.model(), so what it trained cannot be seen; "
                "load the weights of the checkpoint into the module that task.model() returns"
            )
        # Those of the watched model have windows.
        if second.has((trace.BackwardBegin, trace.AutogradGrad, trace.ForeignOptimizer)):
            return (
                f"rank {rank.outcome.rank} resumed, and trained another module than task.model() returned, which "
                "cannot be seen; load the weights of the checkpoint into the one that it returned"
            )
    return None


def other_window(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """With which other window a rank went on; None if all that went on did so with the next one."""
    first = {rank.outcome.rank: windows[0] for rank in ranks if rank.lives and (windows := _windows(rank.lives[1]))}
    for rank, window in first.items():
        if _is_in_first_epoch(case, _windows(ranks[rank].lives[1])):
            return (
                f"rank {rank} was stopped before window {case.resumed_at}, and goes on from there in the order of "
                "epoch 0: save the epoch, too, and tell the sampler with `set_epoch`"
            )
        stepped = {attempt.window for attempt in ranks[rank].lives[0].attempts}
        if case.resumed_inside and case.resumed_at in stepped and window != case.resumed_at:
            return (
                f"rank {rank} was stopped inside window {case.resumed_at}, which it ended with {case.resumed_inside} "
                f"of its {len(case.problem.windows[case.resumed_at].shares[rank])} micro-batches, and resumed with "
                f"window {window}: save the gradients and how many micro-batches of it were trained, or train it again "
                "from its beginning"
            )
        if window != case.resumed_at:
            return (
                f"rank {rank} was stopped before window {case.resumed_at}, and resumed with window {window}: "
                "save how many windows were trained, and skip those, no more and no fewer"
            )
        if case.resumed_inside and window not in {one.window for one in ranks[rank].lives[1].attempts}:
            return (
                f"rank {rank} was stopped inside window {window}, and after the resume no step ends it: windows begin "
                "where training is resumed; save how many micro-batches of the window were trained, too"
            )
    return None


def in_first_epoch(case: Case, ranks: Sequence[RankEvidence]) -> bool:
    """Whether a rank goes on where it was stopped, but in the order of the first epoch."""
    lives = (_windows(rank.lives[1]) for rank in ranks if rank.lives)
    return any(windows and _is_in_first_epoch(case, windows) for windows in lives)


def between_windows(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """With which micro-batch, that begins no window, a rank went on; None if none did, or if its rows are not planned
    so."""
    spec = as_resumed(case.spec())
    for rank in ranks if spec["resumed_at"] is not None and not case.resumed_inside else ():
        first = next((event.rows for event in rank.lives[1].events.forwards), None) if rank.lives else None
        found = _micro_batches_of(spec, rank.outcome.rank, first) if first else []
        if found and all(number for _, number in found):
            window, number = min(found, key=lambda one: abs(one[0] - spec["resumed_at"]))
            return (
                f"rank {rank.outcome.rank} was stopped before window {spec['resumed_at']}, and resumed with "
                f"micro-batch {number} of window {window}: save how many micro-batches of the epoch were read, which "
                "are fewer than windows times `task.accumulation` if a window was short, and skip those"
            )
    return None


def _micro_batches_of(spec: Mapping[str, Any], rank: int, asked: Sequence[int | None]) -> list[tuple[int, int]]:
    """Those of the epoch that goes on which have the rows that are ``asked`` for: their windows, and their numbers in
    these."""
    if rank >= spec["world_size"]:
        return []
    row_of, windows = rows(spec), planned_windows(spec, rank)
    epoch = next((window.epoch for window in windows if window.number == spec["resumed_at"]), None)
    return [
        (window.number, number)
        for window in windows
        for number, micro_batch in enumerate(window.micro_batches)
        if window.epoch == epoch and [row_of[sample] for sample in micro_batch] == list(asked)
    ]


def _is_in_first_epoch(case: Case, windows: Sequence[int]) -> bool:
    """Whether as many windows as were left, and at the same place of an epoch, are those of the first one."""
    workload, stop = case.problem.workload, case.resumed_at or 0
    is_there = windows[0] == stop % workload.windows_of_epoch != stop
    return workload.shuffle and is_there and len(windows) == workload.steps - stop


def other_weights(ranks: Sequence[RankEvidence]) -> str | None:
    """On which ranks training went on with other weights than it was stopped with; None if on none."""
    found = {}
    for rank in ranks:
        before, after = rank.lives or (None, None)
        if before and after and before.final_weights and (begun := _begun(rank)):
            ended = [value or 0.0 for value in before.final_weights]
            if other := other_than([ended], begun):
                found[rank.outcome.rank] = other
    if not found:
        return None
    return _with_other_weights(list(found), _in_place(*next(iter(found.values()))))


def _with_other_weights(ranks: Sequence[int], other: str) -> str:
    return (
        f"{named(ranks)} resumed with other weights than those of the stop: one of them is {other}; save when the last "
        "step is over, in the types that they have, and load on every rank, after all else that sets weights"
    )


def other_gradients(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """On which ranks the first backward of the second life adds to gradients; None if on none."""
    found = [
        rank.outcome.rank
        for rank in ranks
        for first in (rank.lives[1].events.of(trace.BackwardBegin)[:1] if rank.lives else ())
        if first.gradients == "some"
    ]
    if not found or case.resumed_inside:
        return None
    return (
        f"the first backward of {named(found)} after the resume adds to gradients that were there before it: clear "
        "them when the checkpoint is loaded"
    )


def other_state(model: Model, ranks: Sequence[RankEvidence]) -> str | None:
    """What an optimizer held or kept otherwise before its first step in the second life than after its last one in the
    first; None if nothing."""
    for rank in ranks:
        before, after = (_kept(model, ranks, rank, number) for number in (0, 1))
        for parameter in before.keys() & after.keys():
            name = model.tensors[parameter].name
            then, now = before[parameter], after[parameter]
            for what, values in then["state"].items():
                if (other := _other(values, now["state"].get(what))) is not None:
                    return _with_another(what, name, rank, other)
            for what, value in then["settings"].items():
                if now["settings"].get(what, value) != value:
                    return (
                        f"rank {rank.outcome.rank} resumed with other settings of parameter groups: {name} has "
                        f"{what}={now['settings'][what]} in place of {value}"
                    )
            # Weights may change after the last step, as where each is sent by the rank that steps it.
            final = rank.lives[0].final_weights if rank.lives else None
            ended = final and [final[at] for at, owner in enumerate(model.tensor_of) if owner == parameter]
            if (other := _other(then["values"], now["values"])) is not None and now["values"] != ended:
                return (
                    f"the optimizer of rank {rank.outcome.rank} resumed with other values of {name} than those of the "
                    f"stop, {other}: save and load what the optimizer steps, in the type that it has, also where it "
                    "holds copies of the model's parameters"
                )
    return None


def left_behind(model: Model, ranks: Sequence[RankEvidence]) -> str | None:
    """Of an optimizer whose parameters have no gradients: that the model has others in their place since the resume, as
    its forwards use other values; None if they do not."""
    for rank in ranks:
        begun = _begun(rank)
        for parameter, held in (_kept(model, ranks, rank, 1) if begun else {}).items():
            used = [begun[at] for at, owner in enumerate(model.tensor_of) if owner == parameter]
            if len(used) == len(held["values"]) and _other(used, held["values"]) is not None:
                return (
                    f"after the resume the optimizer of rank {rank.outcome.rank} holds parameters that the model has "
                    f"no longer, as {model.tensors[parameter].name} is used with other values: make it after the "
                    "weights are loaded, or load them without `assign=True`"
                )
    return None


def _with_another(what: str, of: str, rank: RankEvidence, other: str) -> str:
    return (
        f"rank {rank.outcome.rank} resumed with another `{what}` of {of} in the optimizer's state, {other}: save and "
        "load all of `optimizer.state_dict()`, and in the types that it has"
    )


def other_bits(model: Model, ranks: Sequence[RankEvidence]) -> str | None:
    """What is not to the bit what training was stopped with, as where a checkpoint is rounded by less than an error
    bound: a state that optimizers of torch's keep, or weights; None if all is.

    Weights that forwards use may be computed from others, and those of an optimizer changed by hand before its step:
    both are others if they were not restored.
    """
    for rank in ranks:
        if not rank.lives:
            continue
        before, after = (_kept(model, ranks, rank, number) for number in (0, 1))
        forwards = _other(rank.lives[0].final_weights or (), _begun(rank))
        for parameter in before.keys() & after.keys():
            name, then, now = model.tensors[parameter].name, before[parameter], after[parameter]
            for what in sorted(KEPT_BY_TORCH & then["state"].keys() & now["state"].keys()):
                if (other := _other(then["state"][what], now["state"][what])) is not None:
                    return _with_another(what, name, rank, other)
            if forwards is not None and _other(then["values"], now["values"]) is not None:
                return _with_other_weights([rank.outcome.rank], forwards)
    return None


def _begun(rank: RankEvidence) -> Vector:
    """The weights with which a rank goes on after a resume; none if no forward shows them."""
    starts = rank.lives[1].events.of(trace.Start) if rank.lives else ()
    return next((event.weights for event in starts), None) or ()


def _kept(model: Model, ranks: Sequence[RankEvidence], rank: RankEvidence, number: int) -> dict[int, dict[str, Any]]:
    """What was last noted of each parameter in a life of a rank. Of one that is split over the ranks, what they hold
    together, as it may be split otherwise in another life."""
    if not rank.lives or rank.lives[number].shard is None:
        return _noted(rank.lives[number]) if rank.lives else {}
    return _put_together(model, [(one.lives[number].shard, _noted(one.lives[number])) for one in ranks if one.lives])


def _noted(life: RankEvidence) -> dict[int, dict[str, Any]]:
    return {one["parameter"]: one for event in life.events.of(trace.OptimizerState) for one in event.kept}


def _put_together(
    model: Model, parts: Sequence[tuple[frozenset[int] | None, dict[int, dict[str, Any]]]]
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for parameter in range(len(model.tensors)):
        own = [
            (sorted(at for at in shard or () if model.tensor_of[at] == parameter), noted[parameter])
            for shard, noted in parts
            if parameter in noted
        ]
        names = {name for _, one in own for name in one["state"]}
        if own:
            found[parameter] = {
                "settings": own[0][1]["settings"],
                "values": _whole([(places, one["values"]) for places, one in own]),
                "state": {
                    name: _whole([(places, one["state"].get(name, ())) for places, one in own]) for name in names
                },
            }
    return found


def _whole(parts: Sequence[tuple[Sequence[int], Sequence[Number]]]) -> Sequence[Number]:
    """The values of all ranks, by their places; what is no value for each place, such as a count of steps, is that of
    the first rank that has it."""
    if any(values and len(values) != len(places) for places, values in parts):
        return next(values for _, values in parts if values)
    together = {place: value for places, values in parts for place, value in zip(places, values, strict=False)}
    return [together[place] for place in sorted(together)]


def _other(then: Vector, now: Vector | None) -> str | None:
    """The first number that has become another one, in words."""
    if now is None:
        return "none at all"
    pairs = zip(then, now, strict=False)
    return next((_in_place(new, old) for old, new in pairs if old is not None and new is not None and new != old), None)


def _in_place(new: Number, old: Number) -> str:
    """Both in words, with as many digits as tell them apart."""
    digits = next((digits for digits in (6, 9) if f"{float(new):.{digits}g}" != f"{float(old):.{digits}g}"), 17)
    return f"{float(new):.{digits}g} in place of {float(old):.{digits}g}"


def _windows(life: RankEvidence) -> list[int]:
    """Those in which a life trained, in order."""
    return list(dict.fromkeys(event.window for event in life.events.events if event.window is not None))


def _micro_batches(life: RankEvidence) -> list[tuple[int, int]]:
    """Those in which a life trained, in order, each with its window before it."""
    return [
        (event.window, event.micro_batch)
        for event in life.events.of(trace.BackwardBegin)
        if event.window is not None and event.micro_batch is not None
    ]


def _count(windows: int) -> str:
    return f"{windows} window{'s' * (windows != 1)}"
