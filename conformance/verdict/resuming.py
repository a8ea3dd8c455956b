"""What shows where training was stopped and resumed, in words: the place in the data, the weights, the optimizer, the
loss scale."""

from __future__ import annotations

from collections.abc import Sequence
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
    stop, inside = case.resumed_at or 0, case.resumed_inside
    for first, second in (rank.lives for rank in ranks if rank.lives):
        before, after = _windows(first), _windows(second)
        places = [(event.window, event.micro_batch) for event in first.events.of(trace.BackwardBegin)]
        last = [(window, number) for window, number in places if None not in (window, number)][-1:]
        if inside and last and last != [(stop, inside - 1)]:
            return (
                f"Your last micro-batch before the stop was number {last[0][1]} of window {last[0][0]}, and should "
                f"be number {inside - 1} of window {stop}: train `task.stop_after` windows and "
                "`task.stop_inside` micro-batches of the next one, save in `task.checkpoint_dir`, and return."
            )
        if not inside and before and (before[-1] >= stop or after[:1] == [before[-1] + 1] != [stop]):
            return (
                f"You stopped after {_count(before[-1] + 1)}; this case asks for a stop after {stop}: train "
                "`task.stop_after` windows, skipped ones included, save in `task.checkpoint_dir`, and return."
            )
    return None


def how_resumed(case: Case, altered: Sequence[str]) -> str | None:
    """What came before the resume, where that may be why it failed. ``altered``: as in `Outcome`."""
    before, after = case.world_sizes
    was_whole = f"the next checkpoint, and the one of {_count(case.resumed_at or 0)} was whole"
    if case.resumed == "killed":
        return (
            f"before that the processes were killed while they saved {was_whole}: write each beside the last one, and "
            "rename it when it is whole"
        )
    if case.resumed == BETWEEN_FILES:
        return (
            f"before that the processes were killed between two files of {was_whole}: write the files of each into a "
            "new folder, and rename that last; if it is one file, rename it over the last one, and do not copy it"
        )
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
    lives = [rank.lives[1] for rank in ranks if rank.lives]
    if lives and not any(map(_windows, lives)) and resumed_unseen(ranks) is None:
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
                f"rank {rank.number} resumed without calling task.model(), so what it trained cannot be seen; "
                "load the weights of the checkpoint into the module that task.model() returns"
            )
        # Those of the watched model have windows.
        if second.has((trace.BackwardBegin, trace.AutogradGrad, trace.ForeignOptimizer)):
            return (
                f"rank {rank.number} resumed, and trained another module than task.model() returned, which "
                "cannot be seen; load the weights of the checkpoint into the one that it returned"
            )
    return None


def other_window(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """With which other window a rank went on; None if all that went on did so with the next one."""
    stop, inside = case.resumed_at, case.resumed_inside
    for rank in ranks:
        before, after = rank.lives or (None, None)
        windows = _windows(after) if after else []
        if not before or not after or not windows:
            continue
        stopped = f"rank {rank.number} was stopped before window {stop}, and"
        if in_first_epoch(case, [rank]):
            return (
                f"{stopped} goes on from there in the order of epoch 0: save the epoch, too, and tell the sampler with "
                "`set_epoch`"
            )
        if inside and stop in {attempt.window for attempt in before.attempts} and windows[0] != stop:
            return (
                f"rank {rank.number} was stopped inside window {stop}, which it ended with {inside} of its "
                f"{len(case.problem.windows[stop].shares[rank.number])} micro-batches, and resumed with window "
                f"{windows[0]}: save the gradients and how many micro-batches of it were trained, or train it again "
                "from its beginning"
            )
        if windows[0] != stop:
            return (
                f"{stopped} resumed with window {windows[0]}: save how many windows were trained, and skip those, no "
                "more and no fewer"
            )
        if inside and stop not in {one.window for one in after.attempts}:
            return (
                f"rank {rank.number} was stopped inside window {stop}, and after the resume no step ends it: "
                "windows begin where training is resumed; save how many micro-batches of the window were trained, too"
            )
    return None


def in_first_epoch(case: Case, ranks: Sequence[RankEvidence]) -> bool:
    """Whether a rank goes on where it was stopped, but in the order of the first epoch: whether as many windows as were
    left, and at the same place of an epoch, are those of the first one."""
    workload, stop = case.problem.workload, case.resumed_at or 0
    place = stop % workload.windows_of_epoch
    lives = (_windows(rank.lives[1]) for rank in ranks if rank.lives)
    return any(
        workload.shuffle and windows[:1] == [place] != [stop] and len(windows) == workload.steps - stop
        for windows in lives
    )


def between_windows(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """With which micro-batch, that begins no window, a rank went on; None if none did, or if its rows are not planned
    so."""
    spec = as_resumed(case.spec())
    stop, row_of = spec["resumed_at"], rows(spec)
    for rank in ranks if stop is not None and not case.resumed_inside else ():
        first = next((event.rows for event in rank.lives[1].events.forwards), None) if rank.lives else None
        windows = planned_windows(spec, rank.number) if first and rank.number < spec["world_size"] else ()
        epoch = next((window.epoch for window in windows if window.number == stop), None)
        # Those of the epoch that goes on which have these rows: their windows, and their numbers in these.
        found = [
            (window.number, number)
            for window in windows
            for number, micro_batch in enumerate(window.micro_batches)
            if window.epoch == epoch and [row_of[sample] for sample in micro_batch] == list(first or ())
        ]
        if found and all(number for _, number in found):
            window, number = min(found, key=lambda one: abs(one[0] - stop))
            return (
                f"rank {rank.number} was stopped before window {stop}, and resumed with micro-batch {number} of "
                f"window {window}: save how many micro-batches of the epoch were read, which are fewer than windows "
                "times `task.accumulation` if a window was short, and skip those"
            )
    return None


def other_weights(ranks: Sequence[RankEvidence]) -> str | None:
    """On which ranks training went on with other weights than it was stopped with; None if on none."""
    found = {}
    for rank in ranks:
        ended, begun = rank.lives[0].final_weights if rank.lives else None, _begun(rank)
        if ended and begun and (other := other_than([[value or 0.0 for value in ended]], begun)):
            found[rank.number] = _in_place(*other)
    return _OTHER_WEIGHTS.format(named(list(found)), next(iter(found.values()))) if found else None


_OTHER_WEIGHTS = (
    "{} resumed with other weights than those of the stop: one of them is {}; save when the last step is over, in the "
    "types that they have, and load on every rank, after all else that sets weights"
)
_OTHER_STATE = (
    "rank {} resumed with another `{}` of {} in the optimizer's state, {}: save and load all of "
    "`optimizer.state_dict()`, and in the types that it has"
)


def other_gradients(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """On which ranks the first backward of the second life adds to gradients; None if on none."""
    found = [
        rank.number
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
                    return _OTHER_STATE.format(rank.number, what, name, other)
            for what, value in then["settings"].items():
                if now["settings"].get(what, value) != value:
                    return (
                        f"rank {rank.number} resumed with other settings of parameter groups: {name} has "
                        f"{what}={now['settings'][what]} in place of {value}"
                    )
            # Weights may change after the last step, as where each is sent by the rank that steps it.
            final = rank.lives[0].final_weights if rank.lives else None
            ended = final and [final[at] for at, owner in enumerate(model.tensor_of) if owner == parameter]
            if (other := _other(then["values"], now["values"])) is not None and now["values"] != ended:
                return (
                    f"the optimizer of rank {rank.number} resumed with other values of {name} than those of the "
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
                    f"after the resume the optimizer of rank {rank.number} holds parameters that the model has "
                    f"no longer, as {model.tensors[parameter].name} is used with other values: make it after the "
                    "weights are loaded, or load them without `assign=True`"
                )
    return None


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
                    return _OTHER_STATE.format(rank.number, what, name, other)
            if forwards is not None and _other(then["values"], now["values"]) is not None:
                return _OTHER_WEIGHTS.format(named([rank.number]), forwards)
    return None


def _begun(rank: RankEvidence) -> Vector:
    """The weights with which a rank goes on after a resume; none if no forward shows them."""
    start = rank.lives[1].events.first(trace.Start) if rank.lives else None
    return (start and start.weights) or ()


def _kept(model: Model, ranks: Sequence[RankEvidence], rank: RankEvidence, number: int) -> dict[int, dict[str, Any]]:
    """What was last noted of each parameter in a life of a rank. Of one that is split over the ranks, what they hold
    together, as it may be split otherwise in another life."""

    def noted(life: RankEvidence) -> dict[int, dict[str, Any]]:
        return {one["parameter"]: one for event in life.events.of(trace.OptimizerState) for one in event.kept}

    if not rank.lives or rank.lives[number].shard is None:
        return noted(rank.lives[number]) if rank.lives else {}
    parts = [(one.lives[number].shard or (), noted(one.lives[number])) for one in ranks if one.lives]
    found: dict[int, dict[str, Any]] = {}
    for parameter in range(len(model.tensors)):
        own = [
            (sorted(at for at in shard if model.tensor_of[at] == parameter), of_rank[parameter])
            for shard, of_rank in parts
            if parameter in of_rank
        ]
        names = {name for _, one in own for name in one["state"]}
        if own:
            found[parameter] = {
                "settings": own[0][1]["settings"],
                "values": _whole([(places, one["values"]) for places, one in own]),
                "state": {name: _whole([(at, one["state"].get(name, ())) for at, one in own]) for name in names},
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


def _count(windows: int) -> str:
    return f"{windows} window{'s' * (windows != 1)}"
