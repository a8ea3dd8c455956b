"""Finds bugs of the adapter: it ran, but did not train what the case asks for.

Such a run says nothing about the trainer under test, so it has its own verdict. A bug counts only if every rank
that steps makes it. The caller checks only wrong numbers: equal numbers prove that the trainer trained the case.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from conformance.laws.subjects import Rank, Run
from conformance.results.result_lines import PAIR
from conformance.results.result_lines import Mistake as Kind
from conformance.trace import events as trace
from conformance.trace.events import Number as Recorded
from conformance.trace.short_texts import number
from conformance.verdict.comparison import other_than
from conformance.verdict.loss import line_of_other_loss, other_loss
from conformance.workloads.reading_plan import order_of
from conformance.workloads.reading_plan import rows as row_numbers


@dataclass(frozen=True)
class Mistake:
    """A bug of the adapter, with one line: the wrong action, the request of the case, the fix."""

    kind: Kind
    text: str
    where: str | None = None


def basic_mistake(runs: Sequence[Run]) -> Mistake | None:
    """The bug of an adapter that trains another model, or the whole run several times, perhaps until the time limit. No
    guard explains more."""
    run = runs[0]
    own = [rank for rank in run.ranks if rank.of(trace.ForeignOptimizer) and not rank.of(trace.Step)]
    if len(own) == len(run.ranks) and all(_never_took(rank, "model") or _other_start(rank, ()) for rank in own):
        how = "train the module that `task.model()` returns, or report its weights with `task.report`"
        return Mistake("start", f"You trained another model than the task's: {how}.")
    if len(runs) > 1:
        return None
    for rank in run.ranks:
        rows = [row for event in rank.forwards for row in event.rows]
        once = [*chain(*chain(*run.plan.rows(rank.number)))]
        if len(rows) <= len(once) or rows != (once * -(-len(rows) // len(once)))[: len(rows)]:
            return None
    return Mistake(
        "rows",
        f"You trained on the whole run of {len(run.plan.windows[0])} windows, and then again: read "
        "`task.dataloader()` once, which has all epochs.",
    )


def mistake(runs: Sequence[Run], explained_by: Sequence[str]) -> Mistake | None:
    """The first bug of the adapter, the most basic first: the samples, then how they were trained on.

    ``runs``: one for each life of the ranks; the first shows how the adapter trains.
    ``explained_by``: the known faults that give the run's numbers.
    """
    run = runs[0]
    text = _other_inputs(run) or _other_rows(runs)
    if text is not None:
        return Mistake("rows", text)
    stepping = [rank for rank in run.ranks if rank.of(trace.Step)]
    for kind, check in _CHECKS.items():
        texts = [check(rank, explained_by) for rank in stepping]
        if texts and texts[0] is not None and all(texts):
            return Mistake(kind, texts[0], line_of_other_loss(stepping[0]) if kind == "loss" else None)
    return None


# The samples that were read.


def _other_inputs(run: Run) -> str | None:
    """A sentence if no forward of any rank has the task's samples."""
    forwards = [event for rank in run.ranks for event in rank.of(trace.Forward) if not event.extra]
    if not forwards or not all(event.foreign for event in forwards):
        return None
    return "The model's inputs are not the task's samples: pass `batch.inputs` to the model unchanged."


Rows = Sequence[int | None]


def _other_rows(runs: Sequence[Run]) -> str | None:
    """A sentence if the rows are the planned ones, but in other windows or of other sizes.

    Rows that are lost or read twice are bugs of the trainer, and so are windows that end elsewhere.
    """
    run = runs[0]
    if len({one.plan.world_size for one in runs}) > 1:
        return None
    read = [
        [tuple(event.rows) for life in of_rank for event in life.forwards]
        for of_rank in zip(*(one.ranks for one in runs), strict=True)
    ]
    planned = [list(run.plan.rows(rank)) for rank in range(run.plan.world_size)]
    if len(read) != len(planned) or any(None in rows for one in read for rows in one):
        return None
    flat = [[row for rows in one for row in rows] for one in read]
    wanted = [[row for window in one for rows in window for row in rows] for one in planned]
    if [len(one) for one in flat] != [len(one) for one in wanted]:
        return None
    if len(runs) == 1 and (text := _other_epochs(run, flat)) is not None:
        return text
    if flat == wanted:
        return _other_batch_size(run, read, planned)
    if Counter(chain.from_iterable(flat)) != Counter(chain.from_iterable(wanted)):
        return None
    found, asked = _global_windows(flat, planned), _global_windows(wanted, planned)
    length = sum(window.epoch == 0 for window in run.plan.windows[0])
    # Reading in the order of the first epoch is a bug of the trainer, which does not call `set_epoch`.
    if all(rows in (asked[number], asked[number % length]) for number, rows in enumerate(found)):
        return None
    if all(Counter(one) == Counter(two) for one, two in zip(flat, wanted, strict=True)):
        return (
            "You read the samples in another order than the task's, so the windows have other samples: read "
            "`task.dataloader()`, and shuffle or sort only by `task.sampler()`."
        )
    return (
        "The ranks read other shards than the task's: give each rank `task.dataloader()`, or distribute "
        "`task.global_dataloader()` in order, micro-batch by micro-batch."
    )


def _other_epochs(run: Run, flat: Sequence[Rows]) -> str | None:
    """A sentence if an epoch was read in the order of a later one. The order of an earlier one is a bug of the trainer,
    which calls `set_epoch` too late or never."""
    spec, row_of, begins = run.plan.spec, row_numbers(run.plan.spec), [0] * len(flat)
    if len(spec["orders"]) == 1:
        return None
    found = list[int]()
    for epoch, at in enumerate(spec["epochs"]):
        ends = [begin + sum(map(len, share)) for begin, share in zip(begins, spec["orders"][at], strict=True)]
        read = [list(own[begin:end]) for own, begin, end in zip(flat, begins, ends, strict=True)]
        numbers = sorted(range(spec["steps"] + len(spec["epochs"])), key=lambda number: abs(number - epoch))
        alike = (
            number
            for number in numbers
            if all(own == [row_of[one] for one in order_of(spec, rank, number)] for rank, own in enumerate(read))
        )
        if (number := next(alike, None)) is None:
            return None
        found.append(number)
        begins = ends
    return next(
        (
            f"You read epoch {epoch} in the order of epoch {number}: `set_epoch` counts from 0, as `epoch.number` does."
            for epoch, number in enumerate(found)
            if number > epoch
        ),
        None,
    )


def _global_windows(flat: Sequence[Rows], planned: Sequence[Sequence[Sequence[Rows]]]) -> list[Counter[int | None]]:
    """The rows of all ranks in each window, if a rank's rows come in windows as long as planned."""
    found = [Counter[int | None]() for _ in planned[0]]
    for rows, windows in zip(flat, planned, strict=True):
        ends = list(accumulate(sum(map(len, window)) for window in windows))
        for counter, start, end in zip(found, [0, *ends], ends, strict=False):
            counter.update(rows[start:end])
    return found


def _other_batch_size(
    run: Run, read: Sequence[Sequence[Rows]], planned: Sequence[Sequence[Sequence[Rows]]]
) -> str | None:
    """A sentence if the correct rows come in forwards of another size, with the planned number of forwards."""
    for rank, forwards, windows in zip(run.ranks, read, planned, strict=True):
        sizes = [len(rows) for window in windows for rows in window]
        if [len(rows) for rows in forwards] == sizes or not rank.of(trace.Step):
            return None
        # Forwards of a whole window are correct, if each step has the planned rows of its window.
        ends = set(accumulate(sum(map(len, window)) for window in windows))
        if set(_rows_before_steps(rank)) <= ends and len(rank.of(trace.Step)) == len(windows):
            return None
    asked, got = run.plan.micro_batch_size, len(read[0][0])
    if got == asked:
        return None
    return (
        f"You read micro-batches of {got} samples; this case asks for {asked}: use `task.dataloader()`, or the batch "
        "size `task.micro_batch_size`."
    )


def _rows_before_steps(rank: Rank) -> Iterator[int]:
    rows = 0
    for event in rank.events:
        if isinstance(event, trace.Forward) and not event.extra:
            rows += len(event.rows)
        elif isinstance(event, trace.Step):
            yield rows


def _never_took(rank: Rank, what: str) -> bool:
    """Whether the adapter never took this from its task, so no trainer can have got it."""
    ended = rank.first(trace.Finished)
    return ended is not None and ended.asked is not None and what not in ended.asked


# The initial weights.


def _other_start(rank: Rank, _: Sequence[str]) -> str | None:
    """A sentence on initial weights that are not the task's, nor these in 16 bits; else None."""
    start = rank.first(trace.Start)
    if start is None or start.weights is None:
        return None
    # Earlier training may have changed them, and so may a step that creates the optimizer's state, or a sum of all
    # ranks' weights.
    before = [event for event in rank.events if event.seq < start.seq]
    if any(isinstance(event, trace.Forward | trace.BackwardBegin | trace.Step | trace.StateInit) for event in before):
        return None
    if any(isinstance(event, trace.Collective) and event.of == "parameters" and event.reduce for event in before):
        return None
    # Ranks that start apart may combine their weights first.
    other = other_than(rank.run.plan.spec["model"]["weights"], start.weights)
    # No adapter starts from numbers that are not finite.
    if other is None or any(isinstance(weight, str) for weight in start.weights):
        return None
    return (
        f"You started from other weights than the task's: one of them is {number(other[0])} instead of "
        f"{number(other[1])}; train `task.model()` as it is, without initialising it again or loading others."
    )


# Clipping.


def _other_clip(rank: Rank, _: Sequence[str]) -> str | None:
    asked = rank.run.plan.clip
    wanted = "no clipping" if asked is None else f"clipping {_by(asked['kind'], asked['threshold'])}"
    if asked is not None and not rank.of(trace.Clip) and _never_took(rank, "clip"):
        return f"You left out the clip; this case asks for {wanted}: use `task.clip_`."
    clips = [clip for clip in rank.of(trace.Clip) if not isinstance(clip.threshold, str) and not _as_asked(rank, clip)]
    clips = (
        [clip for clip in clips if _has_effect(clip)]
        if asked is None or len(clips) < len(rank.of(trace.Clip))
        else clips
    )
    if not clips:
        return None
    clip = clips[0]
    return (
        f"You clipped gradients {_by(clip.kind, clip.threshold, clip.norm_type)} ({clip.line}); this case asks for "
        f"{wanted}: use `task.clip_`."
    )


def _as_asked(rank: Rank, clip: trace.Clip) -> bool:
    """Whether a clip is the task's. If the gradients carry the loss scale, the threshold may carry it too."""
    asked = rank.run.plan.clip
    if asked is None or clip.kind != asked["kind"] or (clip.kind == "norm" and clip.norm_type not in (None, 2)):
        return False
    return any(_same(clip.threshold, factor * asked["threshold"]) for factor in (1.0, *_carried(rank, clip)))


def _carried(rank: Rank, clip: trace.Clip) -> Iterator[float]:
    """Yields the loss scale, if gradients still carry it when they are clipped."""
    backwards = rank.between(trace.BackwardBegin, before=clip)
    since = backwards[-1] if backwards else None
    if not rank.between(trace.Unscale, after=since, before=clip):
        for later in rank.between(trace.Unscale, after=clip)[:1]:
            if not isinstance(later.scale, str):
                yield later.scale


def _has_effect(clip: trace.Clip) -> bool:
    """Whether a clip may have changed gradients."""
    threshold = clip.threshold
    assert not isinstance(threshold, str)
    if clip.kind == "norm":
        return isinstance(clip.norm, str) or clip.norm is None or clip.norm > threshold
    seen = clip.gradients
    return seen is None or any(isinstance(one, str) or (one is not None and abs(one) > threshold) for one in seen)


def _by(kind: str, threshold: Recorded, norm_type: Recorded | None = 2.0) -> str:
    if kind == "value":
        return f"by value at {number(threshold)}"
    return f"at the norm {number(threshold)}" + ("" if norm_type in (None, 2) else f" (of type {norm_type})")


# The optimizer.


def _other_rate(rank: Rank, _: Sequence[str]) -> str | None:
    """A sentence if most steps, and the first, have a learning rate that is not the case's. A planned rate at the wrong
    step is a bug of the trainer's schedule; so are wrong rates in a few steps, such as short windows, or later."""
    plan = rank.run.plan
    asked, base = list(dict.fromkeys(chain(*zip(*plan.learning_rates, strict=True)))), plan.spec["optimizer"]["lr"]
    steps = rank.of(trace.Step)
    if plan.schedule_by is not None and len({step.lr for step in steps}) == 1 and _never_took(rank, "schedule"):
        return "You left out the learning-rate schedule: use `task.scheduler`, or set `task.learning_rates` yourself."
    others = [
        step.lr
        for step in steps
        if step.lr is not None and not isinstance(step.lr, str) and not any(_same(step.lr, rate) for rate in asked)
    ]
    if 2 * len(others) < max(len(steps), 1) or steps[0].lr not in others:
        return None
    times = " (times the number of ranks)" if plan.world_size > 1 and _same(others[0], base * plan.world_size) else ""
    wanted = number(asked[0]) if len(asked) == 1 else f"one of {', '.join(map(number, asked))}"
    return (
        f"You stepped with the learning rate {number(others[0])}{times}; this case asks for {wanted}: use "
        "`task.optimizer` and `task.scheduler`."
    )


_ALGORITHMS = {"sgd": "SGD", "adamw": "AdamW", "adagrad": "Adagrad"}


def _other_optimizer(rank: Rank, explained_by: Sequence[str]) -> str | None:
    """A sentence on another torch optimizer, or other settings; None for the trainer's own optimizers."""
    asked = rank.run.plan.spec["optimizer"]
    steps = rank.of(trace.Step)
    used = {step.optimizer for step in steps}
    for optimizer in rank.of(trace.Optimizer):
        if optimizer.optimizer not in used or optimizer.algorithm is None:
            continue
        changed = next((step.groups for step in steps if step.optimizer == optimizer.optimizer and step.groups), None)
        wanted, groups = _ALGORITHMS[asked["kind"]], changed or optimizer.groups
        is_adamw = optimizer.algorithm == "Adam" and all(group.get("decoupled_weight_decay") for group in groups)
        if optimizer.algorithm != wanted and not (is_adamw and wanted == "AdamW"):
            return f"You stepped with {optimizer.algorithm}; this case asks for {wanted}: use `task.optimizer`."
        by_hand = [name for name in _FAULTS if _is_left_to_the_trainer(name, groups, explained_by)]
        by_hand += ["dampening", "nesterov"] if "momentum" in by_hand else []
        names = [name for name in (*asked, *_NEVER_ASKED) if name not in (*_NOT_HERE, *by_hand)]
        # The task's groups have their own settings: the numbers show which parameters got them.
        accepted = [{**_NEVER_ASKED, **asked, **group} for group in ({}, *rank.run.plan.spec["groups"])]
        for at, group in enumerate(groups):
            other = next((name for name in names if all(_differs(group, one, name) for one in accepted)), None)
            if other is not None:
                where = f" in `param_groups[{at}]`" if len(groups) > 1 else ""
                wanted = " or ".join(dict.fromkeys(_shown(one[other]) for one in accepted))
                return (
                    f"You stepped with {optimizer.algorithm}({other}={_shown(group[other])}){where}; this case asks "
                    f"for {other}={wanted}: use `task.optimizer`{' as it is' if changed else ''}."
                )
    return None


#: Entries of the plan that are not settings, or that the schedule changes.
_NOT_HERE = ("kind", "lr")
#: Settings that change the numbers, and that no case asks for.
_NEVER_ASKED = {"amsgrad": False}


#: Settings that a trainer may apply by hand instead, and the faults of trainers that do not apply them at all.
_FAULTS = {"momentum": "momentum-lost", "weight_decay": "no-weight-decay"}


def _is_left_to_the_trainer(name: str, groups: Sequence[Mapping[str, Any]], explained_by: Sequence[str]) -> bool:
    """Whether no group of the optimizer has the setting, and the numbers do not show that the trainer ignores it."""
    return not any(group.get(name) for group in groups) and not any(
        _FAULTS[name] in one.split(PAIR) for one in explained_by
    )


def _differs(group: Mapping[str, Any], asked: Mapping[str, Any], name: str) -> bool:
    if name not in group or (name in ("dampening", "nesterov") and not group.get("momentum") and not asked["momentum"]):
        return False
    one, two = (value if isinstance(value, list | tuple) else [value] for value in (group[name], asked[name]))
    return len(one) != len(two) or not all(_same(a, float(b)) for a, b in zip(one, two, strict=True))


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_shown, value))})"
    return str(value) if isinstance(value, bool | str) else number(value)


def _same(one: Recorded, two: float) -> bool:
    """Whether two numbers are the same in fp32, because a learning rate or threshold may be a tensor."""
    return not isinstance(one, str) and _single(one) == _single(two)


def _single(value: float) -> bytes:
    try:
        return struct.pack("f", value)
    except OverflowError:
        return b""


_CHECKS: dict[Kind, Callable[[Rank, Sequence[str]], str | None]] = {
    "start": _other_start,
    "optimizer": _other_optimizer,
    "learning rate": _other_rate,
    "clip": _other_clip,
    "loss": lambda rank, _: other_loss(rank),
}
