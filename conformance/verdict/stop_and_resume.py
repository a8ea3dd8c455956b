"""Judges a stop and resume: the place in the data, the weights, the optimizer, the loss scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.cases.case import BETWEEN_FILES, Case
from conformance.trace import events as trace
from conformance.trace.events import KEPT_BY_TORCH, Number, Vector
from conformance.trace.lives import as_resumed
from conformance.verdict.comparison import other_than
from conformance.verdict.evidence import RankEvidence, named
from conformance.verdict.judgement import Told
from conformance.workloads.model import Model
from conformance.workloads.reading_plan import planned_windows, rows

#: Exceptions that no checkpoint can cause.
_OF_ITS_CODE = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


def other_stop(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """A sentence if training stopped at another place than asked; None if it did not.

    Windows that are missing before the stop, and do not come after it, are lost, which is another bug.
    """
    stop, inside = case.resumed_at or 0, case.resumed_inside
    for first, second in (rank.lives for rank in ranks if rank.lives):
        before, after = _windows(first), _windows(second)
        places = [(event.window, event.micro_batch) for event in first.events.of(trace.BackwardBegin)]
        last = [(window, number) for window, number in places if None not in (window, number)][-1:]
        if inside and last and last != [(stop, inside - 1)]:
            return (
                f"You stopped after micro-batch {last[0][1]} of window {last[0][0]} instead of micro-batch "
                f"{inside - 1} of window {stop}: train `task.stop_after` windows and `task.stop_inside` micro-batches "
                "of the next one, save in `task.checkpoint_dir`, and return."
            )
        if not inside and before and (before[-1] >= stop or after[:1] == [before[-1] + 1] != [stop]):
            return (
                f"You stopped after {_count(before[-1] + 1)} instead of {stop}: train `task.stop_after` windows, "
                "including skipped ones, save in `task.checkpoint_dir`, and return."
            )
    return None


def how_resumed(case: Case, altered: Sequence[str]) -> str | None:
    """A phrase on the events before the resume, if they may be why it failed. ``altered``: as in `Outcome`."""
    before, after = case.world_sizes
    was_whole = f"the next checkpoint (the one of {_count(case.resumed_at or 0)} was complete)"
    if case.resumed == "killed":
        return (
            f"before this, the processes were killed while saving {was_whole}: write a checkpoint next to the last "
            "one, and rename it when it is complete"
        )
    if case.resumed == BETWEEN_FILES:
        return (
            f"before this, the processes were killed between two files of {was_whole}: write the files into a new "
            "folder, and rename the folder last; rename a single file over the last one instead of copying it"
        )
    if before != after:
        return (
            f"training was stopped on {before} ranks, and resumed on {after}: values that a rank saves or counts only "
            "for itself are lost or wrong on other ranks"
        )
    if altered:
        return (
            f"this was the second run from one checkpoint, and the first run changed or removed {altered[0]} in it: "
            "leave checkpoints unchanged"
        )
    return None


def may_come_of_it(case: Case, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the events in `how_resumed` may explain the failure of a rank. They cannot explain an undefined name in
    its code nor, on the same number of ranks, a failure after the first window, when the checkpoint has been read."""
    missing = [rank for rank in ranks if not rank.outcome.finished]
    first = next((rank for rank in missing if rank.outcome.after is None), missing[0])
    if first.raised is not None and first.raised.type in _OF_ITS_CODE:
        return False
    before, after = case.world_sizes
    return before != after or not (first.lives and _windows(first.lives[1]))


def lost_place(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """Whether training resumed with a wrong window, or did not resume; None if it resumed with the next window, or it
    cannot be seen."""
    lives = [rank.lives[1] for rank in ranks if rank.lives]
    if lives and not any(map(_windows, lives)) and resumed_unseen(ranks) is None:
        return Told("no window was trained after the resume: the trainer skipped all that were left, or had ended")
    return other_window(case, ranks)


def resumed_unseen(ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if a rank's training after the resume cannot be seen; None if it can, or there is nothing to see."""
    for rank in ranks:
        if not rank.lives or _windows(rank.lives[1]):
            continue
        first, second = (life.events for life in rank.lives)
        if not first.of(trace.Model):
            continue
        if not second.of(trace.Model):
            return Told(
                f"rank {rank.number} resumed without calling task.model(), so its training is not visible",
                "load the weights of the checkpoint into the module that `task.model()` returns",
            )
        # Those of the watched model have windows.
        if second.has((trace.BackwardBegin, trace.AutogradGrad, trace.ForeignOptimizer)):
            return Told(
                f"rank {rank.number} resumed, and trained another module than task.model() returned, which is not "
                "visible",
                "load the weights of the checkpoint into the module that `task.model()` returned",
            )
    return None


def other_window(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """Whether a rank resumed with a wrong window; None if all that resumed did so with the next one."""
    stop, inside = case.resumed_at or 0, case.resumed_inside
    for rank in ranks:
        before, after = rank.lives or (None, None)
        windows = _windows(after) if after else []
        if not before or not after or not windows:
            continue
        resumed = "after the resume, " + (f"rank {rank.number}" if max(case.world_sizes) > 1 else "the trainer")
        if in_first_epoch(case, [rank]):
            advice = "call `set_epoch` with the saved epoch before the first read after the resume"
            return Told(f"{resumed} reads the data in the order of epoch 0", advice)
        if inside and stop in {attempt.window for attempt in before.attempts} and windows[0] != stop:
            return Told(
                f"rank {rank.number} was stopped inside window {stop}, stepped it after {inside} of "
                f"{len(case.problem.windows[stop].shares[rank.number])} micro-batches, and resumed with window "
                f"{windows[0]}",
                "save the gradients and the number of trained micro-batches, or repeat the whole window",
            )
        if windows[0] != stop:
            advice = "save the number of trained windows, restore it, and skip exactly these windows after the resume"
            first, last = min(stop, windows[0]), max(stop, windows[0]) - 1
            which = f"window {first}" if first == last else f"windows {first} to {last}"
            return Told(f"{resumed} {f'skips {which}' if windows[0] > stop else f'repeats {which}'}", advice)
        if inside and stop not in {one.window for one in after.attempts}:
            return Told(
                f"rank {rank.number} was stopped inside window {stop}, and no step ends it after the resume: a new "
                "window starts at the resume",
                "also save the number of trained micro-batches of the window",
            )
    return None


def counted_wrongly(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """What to change if the micro-batches before a stop inside a window do not count once: their restored gradients
    count, or their new ones. None if they count once, or it cannot be seen."""
    (before, after), inside = case.world_sizes, case.resumed_inside
    for rank in ranks if inside and before == after else ():
        life = rank.lives[1] if rank.lives else None
        passes = [one for one in life.events.of(trace.BackwardBegin) if one.window == case.resumed_at] if life else []
        missing = len(case.problem.windows[case.resumed_at or 0].shares[rank.number]) - len(passes)
        first, they = ("the window's first micro-batch", "it")
        if inside > 1:
            first, they = f"the window's first {inside} micro-batches", "them"
        if passes and passes[0].gradients == "some" and missing == 0:
            return f"after the resume, skip {first}"
        if passes and passes[0].gradients in ("none", "zero") and missing == inside:
            return f"after the resume, restore the gradients of {first}: nothing trains {they} again"
    return None


def in_first_epoch(case: Case, ranks: Sequence[RankEvidence]) -> bool:
    """Whether a rank resumes at the correct place, but in the order of the first epoch: it trains the planned number of
    windows, at the same place in the epoch, but with the rows of the first epoch."""
    workload, stop = case.problem.workload, case.resumed_at or 0
    place = stop % workload.windows_of_epoch
    lives = (_windows(rank.lives[1]) for rank in ranks if rank.lives)
    return any(
        workload.shuffle and windows[:1] == [place] != [stop] and len(windows) == workload.steps - stop
        for windows in lives
    )


def between_windows(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """Whether a rank resumed with a micro-batch in the middle of a window; None if none did, or its rows are not
    planned ones."""
    spec = as_resumed(case.spec())
    stop, row_of = spec["resumed_at"], rows(spec)
    for rank in ranks if stop is not None and not case.resumed_inside else ():
        first = next((event.rows for event in rank.lives[1].events.forwards), None) if rank.lives else None
        windows = planned_windows(spec, rank.number) if first and rank.number < spec["world_size"] else ()
        epoch = next((window.epoch for window in windows if window.number == stop), None)
        # The micro-batches of the resumed epoch with these rows: their windows, and their numbers in these.
        found = [
            (window.number, number)
            for window in windows
            for number, micro_batch in enumerate(window.micro_batches)
            if window.epoch == epoch and [row_of[sample] for sample in micro_batch] == list(first or ())
        ]
        if found and all(number for _, number in found):
            window, number = min(found, key=lambda one: abs(one[0] - stop))
            return Told(
                f"rank {rank.number} was stopped before window {stop}, and resumed with micro-batch {number} of "
                f"window {window}",
                "save the number of micro-batches read in the epoch, and skip these; short windows have fewer than "
                "`task.accumulation`",
            )
    return None


def other_weights(ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if ranks resumed with other weights than at the stop; None if none did."""
    found = {}
    for rank in ranks:
        ended, initial = rank.lives[0].final_weights if rank.lives else None, _resumed_with(rank)
        if ended and initial and (other := other_than([[value or 0.0 for value in ended]], initial)):
            found[rank.number] = _instead(*other)
    if not found:
        return None
    return _with_weights(named(list(found)), next(iter(found.values())))


def _with_weights(who: str, one: str) -> Told:
    return Told(
        f"{who} resumed with other weights than at the stop: one of them is {one}",
        "save after the last step, with the same types, and load on every rank, after all else that sets weights",
    )


def other_gradients(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if the first backward after the resume adds to gradients; None if not."""
    found = [
        rank.number
        for rank in ranks
        for first in (rank.lives[1].events.of(trace.BackwardBegin)[:1] if rank.lives else ())
        if first.gradients == "some"
    ]
    if not found or case.resumed_inside:
        return None
    return Told(
        f"the first backward of {named(found)} after the resume adds to older gradients",
        "clear the gradients when the checkpoint is loaded",
    )


def other_state(model: Model, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if an optimizer's parameters, settings or state differ between the last step before the stop and the
    first step after the resume; else None."""
    for rank in ranks:
        before, after = (_kept(model, ranks, rank, number) for number in (0, 1))
        for parameter in before.keys() & after.keys():
            name = model.tensors[parameter].name
            then, now = before[parameter], after[parameter]
            for what, values in then["state"].items():
                if (other := _other(values, now["state"].get(what))) is not None:
                    kept = {one.number: _kept(model, ranks, one, 1).get(parameter) for one in ranks}
                    having = [number for number, of in kept.items() if of is not None and what in of["state"]]
                    if what not in now["state"] and having:
                        return Told(
                            f"rank {rank.number} resumed without the optimizer's state, which rank {having[0]} has: "
                            f"`{what}` of {name}",
                            "load the optimizer's state on every rank",
                        )
                    return Told(
                        f"rank {rank.number} resumed with another `{what}` of {name} in the optimizer's state, {other}",
                        "save and load all of `optimizer.state_dict()`, with the same types",
                    )
            for what, value in then["settings"].items():
                if now["settings"].get(what, value) != value:
                    return Told(
                        f"rank {rank.number} resumed with other settings of parameter groups: {name} has "
                        f"{what}={now['settings'][what]} instead of {value}"
                    )
            # Weights may change after the last step, such as when the rank that steps them sends them.
            final = rank.lives[0].final_weights if rank.lives else None
            ended = final and [final[at] for at, owner in enumerate(model.tensor_of) if owner == parameter]
            if (other := _other(then["values"], now["values"])) is not None and now["values"] != ended:
                return Told(
                    f"the optimizer of rank {rank.number} resumed with other values of {name} than at the stop, "
                    f"{other}",
                    "save and load the tensors that the optimizer steps, with the same types, even if they are copies "
                    "of the model's parameters",
                )
    return None


def left_behind(model: Model, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if the model's parameters were replaced at the resume, and the optimizer still has the old ones, which
    get no gradients; None if forwards use the optimizer's values."""
    for rank in ranks:
        initial = _resumed_with(rank)
        for parameter, held in (_kept(model, ranks, rank, 1) if initial else {}).items():
            used = [initial[at] for at, owner in enumerate(model.tensor_of) if owner == parameter]
            if len(used) == len(held["values"]) and _other(used, held["values"]) is not None:
                return Told(
                    f"after the resume, the optimizer of rank {rank.number} has old parameters: the model uses other "
                    f"values of {model.tensors[parameter].name}",
                    "create the optimizer after the weights are loaded, or load them without `assign=True`",
                )
    return None


def other_bits(model: Model, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if torch optimizers' state or weights are not bit-identical to those of the stop, such as a checkpoint
    that is rounded by less than an error bound; else None.

    Weights in forwards may be computed from others, and an optimizer's weights may be changed by hand before its step:
    only if both differ, the weights were not restored.
    """
    for rank in ranks:
        if not rank.lives:
            continue
        before, after = (_kept(model, ranks, rank, number) for number in (0, 1))
        forwards = _other(rank.lives[0].final_weights or (), _resumed_with(rank))
        for parameter in before.keys() & after.keys():
            name, then, now = model.tensors[parameter].name, before[parameter], after[parameter]
            for what in sorted(KEPT_BY_TORCH & then["state"].keys() & now["state"].keys()):
                if (other := _other(then["state"][what], now["state"][what])) is not None:
                    return Told(
                        f"rank {rank.number} resumed with another `{what}` of {name} in the optimizer's state, {other}",
                        "save and load all of `optimizer.state_dict()`, with the same types",
                    )
            if forwards is not None and _other(then["values"], now["values"]) is not None:
                return _with_weights(named([rank.number]), forwards)
    return None


def _resumed_with(rank: RankEvidence) -> Vector:
    """The weights that a rank resumes with; empty if no forward shows them."""
    start = rank.lives[1].events.first(trace.Start) if rank.lives else None
    return (start and start.weights) or ()


def _kept(model: Model, ranks: Sequence[RankEvidence], rank: RankEvidence, number: int) -> dict[int, dict[str, Any]]:
    """The last recorded state of each parameter in a life of a rank. Sharded parameters are joined over the ranks,
    because another life may shard them differently."""

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
    """The values of all ranks in order of their positions; for a state without a value per position, such as a step
    count, the first rank's."""
    if any(values and len(values) != len(places) for places, values in parts):
        return next(values for _, values in parts if values)
    together = {place: value for places, values in parts for place, value in zip(places, values, strict=False)}
    return [together[place] for place in sorted(together)]


def _other(then: Vector, now: Vector | None) -> str | None:
    """A phrase on the first number that changed; None if none did."""
    if now is None:
        return "which is missing"
    pairs = zip(then, now, strict=False)
    return next((_instead(new, old) for old, new in pairs if old is not None and new is not None and new != old), None)


def _instead(new: Number, old: Number) -> str:
    """Both numbers, with enough digits to tell them apart."""
    digits = next((digits for digits in (6, 9) if f"{float(new):.{digits}g}" != f"{float(old):.{digits}g}"), 17)
    return f"{float(new):.{digits}g} instead of {float(old):.{digits}g}"


def _windows(life: RankEvidence) -> list[int]:
    """The windows that a life trained, in order."""
    return list(dict.fromkeys(event.window for event in life.events.events if event.window is not None))


def _count(windows: int) -> str:
    return f"{windows} window{'s' * (windows != 1)}"
