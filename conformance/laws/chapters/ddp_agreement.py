"""Laws of agreement between ranks: their first weights, and their weights after each step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from math import isclose
from typing import NamedTuple

from conformance.laws.correct_gradient import Expectations, Gradient, held
from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.sharing import brings_together, first_parted, held_after, where_apart
from conformance.laws.subjects import GlobalWindow, Run, Window, fact
from conformance.laws.wrong_factor import ratio, seen_gradients
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated, number, vector

DOCS = "PyTorch documentation, torch.nn.parallel.DistributedDataParallel"


@law(
    "ddp/equal-start",
    "All ranks MUST start from the same weights.",
    fault="starts from different weights on the ranks",
    is_seen_later=True,
    why="""Ranks that take equal steps from different weights keep the difference. Their gradients belong to different
        models, (1/N) Σ ∇L(w_r), and no single model is trained.""",
    source=f'{GUIDE}: "DDP broadcasts parameters on model instantiation"',
    advice="broadcast the weights of rank 0 before the first step",
    edit="change beginning; add the broadcast of the weights above forward",
    fix="""
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)  # DistributedDataParallel(model) does this itself
        """,
    unless=("hvd/broadcast-before-first-step",),
)
def equal_start(run: Run) -> Outcome:
    starts = [(start, start.weights) for rank in run.ranks for start in rank.of(trace.Start)[:1]]
    known = [(start, weights) for start, weights in starts if weights is not None and None not in weights]
    if run.plan.world_size == 1 or len(known) < run.plan.world_size:
        return None
    first, weights = known[0]
    apart = next(((start, other) for start, other in known if other != weights), None)
    if apart is None:
        return OK
    other, others = apart
    sent = [one for one in run.ranks[0].setup if isinstance(one, trace.Exchange) and one.of == "parameters"][-1:]
    (mine, theirs), of = where_apart(run.plan, weights, others)
    when = f"after {sent[0]}," if sent else "no collective carried weights before the first forward;"
    return Broken(
        other,
        expected="the same initial weights on all ranks",
        observed=f"{when} rank {first.rank} started from {mine}, rank {other.rank} from {theirs}{of}",
        why="equal steps keep different weights different",
        shows=(*sent, first, other),
        effect="The ranks train different models until the end.",
    )


#: Other laws that explain why ranks have different weights.
_PARTED_BY = (
    "ddp/equal-start",
    "ddp/all-reduce-every-window",
    "ddp/average-over-all-ranks",
    "ddp/wait-before-step",
    "ddp/wait-before-use",
    "ddp/forward-through-wrapper",
    "ddp/no-sync-around-forward",
    "amp/all-ranks-skip",
    "amp/same-scale-on-all-ranks",
    "acc/schedule-per-step",
    "acc/schedule-per-epoch",
    "acc/step-after-all-backwards",
    "hvd/broadcast-before-first-step",
    "hvd/synchronize-before-clip",
    "hvd/synchronize-before-unscale",
    "hvd/not-cleared-before-synchronize",
)


@law(
    "ddp/average-each-parameter",
    "The gradient of every parameter MUST be averaged over the ranks.",
    fault="leaves parameters out of the average over the ranks",
    is_seen_later=True,
    why="""A gradient that the all-reduce leaves out is g_r, the mean over the rank's own samples, instead of
        (1/N) Σ g_r. Such are parameters in no bucket, or frozen when DDP wrapped the model, the rest of a buffer cut
        into equal parts, or all of them if only a copy is averaged. From then on, these weights differ from rank to
        rank.""",
    source=f"{DOCS}: parameters must not be added, nor be unfrozen, after the model was wrapped",
    advice="all-reduce these gradients too, and divide them by the number of ranks",
    edit="add the average of these gradients above unscale|clip|step",
    fix="""
        for parameter in model.parameters():  # DistributedDataParallel averages those that it found trainable
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        """,
    unless=_PARTED_BY,
)
def average_each_parameter(here: GlobalWindow) -> Outcome:
    parted = first_parted(here.run)
    if here.plan.world_size == 1 or here.number > parted:
        return None
    if here.number < parted:
        return OK
    own = _left_own(here)
    return None if own is None else _not_averaged(here, own)


@law(
    "ddp/identical-weights",
    "After each optimizer step, all ranks MUST have bit-identical weights.",
    fault="steps to different weights on the ranks",
    is_seen_later=True,
    why="""Ranks with different weights average gradients of different models, (1/N) Σ ∇L(w_r), and never agree again.
        The model that one rank saves or evaluates is not the model that the others train.""",
    source=f"{DOCS}: parameters are never broadcast between processes after construction",
    advice="make gradients, learning rate, clipping and the decision to step equal on all ranks",
    edit="change gradient",
    fix="""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # the same settings on all ranks
        loss.backward()  # DistributedDataParallel averages the gradients
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # on all ranks, or on none
        optimizer.step()  # on all ranks
        """,
    unless=(*_PARTED_BY, "ddp/average-each-parameter"),
)
def identical_weights(here: GlobalWindow) -> Outcome:
    # After the first difference, all later windows differ too.
    if here.plan.world_size == 1 or here.number > first_parted(here.run):
        return None
    held = held_after(here)
    if held is None:
        return None
    one, weights = held[0]
    apart = next(((other, others) for other, others in held if others != weights), None)
    return OK if apart is None else _parted(here, one, weights, *apart)


class _Used(NamedTuple):
    """What each rank's step used, in rank order. totals: the samples of each rank, or their weights.

    rights: the correct gradients, in all accepted readings. owns: the same from each rank's samples only.
    """

    sights: Sequence[Sequence[float | None]]
    totals: Sequence[float]
    rights: Sequence[Gradient]
    owns: Sequence[Sequence[Gradient]]


@fact
def _used(here: GlobalWindow) -> _Used | None:
    """The gradients that the ranks used; None unless all are known, with data and equal weights on each rank."""
    plan, starts = here.plan, {held(window.rank).get(here.number) for window in here.windows}
    sights = [seen for window in here.windows if (seen := _final_gradients(window)) is not None]
    shares = [plan.micro_batches(window.rank.number, here.number) for window in here.windows]
    start = starts.pop()
    if starts or start is None or len(start) != plan.model.size or len(sights) < plan.world_size or not all(shares):
        return None
    weights = plan.spec["samples"]["weight"] if plan.is_weighted else None
    totals = [sum(1 if weights is None else weights[one] for one in chain.from_iterable(share)) for share in shares]
    expectations = Expectations(plan)
    rights, owns = expectations.gradients(shares, start), [expectations.gradients([share], start) for share in shares]
    return _Used(sights, totals, rights, owns) if all(totals) else None


def _left_own(here: GlobalWindow) -> dict[str, list[float | None]] | None:
    """By element, the gradients that differ between ranks, in rank order, if they come from each rank's own samples."""
    used = _used(here)
    if used is None:
        return None
    columns = list(zip(*used.sights, strict=True))
    apart = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    alike = [None if index in apart else column[0] for index, column in enumerate(columns)]
    right = next((one for one in used.rights if one.is_times(1.0, alike)), None)

    def are_own(times: Sequence[float]) -> bool:
        return all(
            any(one.is_times(factor, _only([index], gradients)) for one in own)
            for own, gradients, factor in zip(used.owns, used.sights, times, strict=True)
            for index in apart
        )

    # If other elements are wrong too, there is another bug. And if only one rank uses a parameter, its own gradient may
    # be the average.
    if not apart or right is None or all(right.is_times(1.0, _only(apart, gradients)) for gradients in used.sights):
        return None
    # Trainers may divide before a sum over the ranks, by a total of all ranks, or multiply before a mean.
    ranks, shares = here.plan.world_size, [total / sum(used.totals) for total in used.totals]
    of_total = ([share * factor for share in shares] for factor in (1, ranks))
    if not any(map(are_own, ([1.0] * ranks, [1 / ranks] * ranks, [float(ranks)] * ranks, *of_total))):
        return None
    return {here.plan.model.elements[index]: list(columns[index]) for index in apart}


def _only(places: Collection[int], gradients: Sequence[float | None]) -> list[float | None]:
    """The gradients at these places, and None elsewhere."""
    return [value if at in places else None for at, value in enumerate(gradients)]


def _final_gradients(window: Window) -> Sequence[float | None] | None:
    """The gradients that a window's clip or step saw; None if ranks exchange numbers after that."""
    sight = seen_gradients(window)
    if sight is None or any(
        map(brings_together, window.between(trace.Exchange, after=sight[0], before=window.attempts[0]))
    ):
        return None
    return sight[1]


def _not_averaged(here: GlobalWindow, own: Mapping[str, Sequence[float | None]]) -> Broken:
    first, other = (window.attempts[0] for window in here.windows[:2])
    values = [vector([column[rank] for column in own.values()]) for rank in (0, 1)]
    exchanged = [one for one in here.windows[1].between(trace.Exchange, before=other) if brings_together(one)]
    how = _left_out_how(here.windows[1], own, exchanged)
    return Broken(
        other,
        expected=f"the gradient of {enumerated([*own])} averaged over the ranks",
        observed=f"{values[0]} on rank 0 and {values[1]} on rank 1 at {first}, each from the rank's own samples"
        + "".join(f", despite {one}" for one in exchanged[-1:]),
        why="the samples of one rank are only a part of the batch",
        shows=(*exchanged[-1:], first, other),
        effect=f"{how.text}The ranks train different models from now on.",
        fault=how.fault,
        advice=how.advice,
        origin=how.origin,
        edit=how.edit,
    )


def _left_out_how(window: Window, own: Collection[str], exchanged: Sequence[trace.Exchange]) -> _Reason:
    if _are_copies(window, own, exchanged):
        fault = "averages copies of the gradients over the ranks, and steps with the gradients themselves"
        advice = "write the averages back into `.grad`, or all-reduce `.grad` itself"
        return _Reason("", fault, advice, edit="add the copy of the averages into `.grad` above unscale|clip|step")
    # DDP and Horovod choose what they average where they wrap the model or the optimizer.
    if not exchanged or exchanged[-1].via != "c10d" or window.rank.of(trace.Wrap):
        return _Reason()
    names = enumerated([*own]) if len(own) < 4 else f"{len(own)} elements"
    text, edit = (
        f"The average at {exchanged[-1].line} lacks {names}. ",
        "find the gradients to average at or above origin",
    )
    return _Reason(text, "", "all-reduce these gradients too", exchanged[-1], edit)


def _are_copies(window: Window, own: Collection[str], exchanged: Sequence[trace.Exchange]) -> bool:
    """Whether as many numbers are averaged as there are gradients, though these stay the rank's own."""
    last = max((end.seq for end in window.of(trace.BackwardEnd)), default=0)
    averaged = sum(one.elements for one in exchanged if one.seq > last)
    gradients = _final_gradients(window) or ()
    # One or two numbers may be of a log, or counts of samples.
    return averaged >= sum(one is not None for one in gradients) and len(own) > 2


def _parted(
    here: GlobalWindow, one: trace.Event, weights: trace.Vector, other: trace.Event, others: trace.Vector
) -> Broken:
    reasons = [*_reasons(here, one, other)]
    (mine, theirs), of = where_apart(here.plan, weights, others)
    # The last reason explains those before it.
    last = reasons[-1] if reasons else _Reason()
    return Broken(
        other,
        expected="the same weights on all ranks after a step",
        observed=f"after {one} of window {here.number}, rank {one.rank} has {mine} and rank {other.rank} has "
        f"{theirs}{of}" + (f"; in that step, {enumerated([why.text for why in reasons])}" if reasons else ""),
        why="from then on, the ranks average gradients of different models",
        shows=(*([last.origin] if last.origin else []), one, other),
        effect="The ranks train different models from now on.",
        fault=last.fault,
        advice=last.advice,
        origin=last.origin,
        edit=last.edit,
    )


class _Reason(NamedTuple):
    """Why two steps differ. text: the difference in words. fault, advice, origin, edit: as in `Broken`."""

    text: str = ""
    fault: str = ""
    advice: str = ""
    origin: trace.Event | None = None
    edit: str = ""


def _reasons(here: GlobalWindow, one: trace.Event, other: trace.Event) -> Iterator[_Reason]:
    # A worker of a parameter server shows its weights at events other than steps.
    if isinstance(one, trace.Step) and isinstance(other, trace.Step) and one.lr != other.lr:
        rates = [number(step.lr or 0) for step in (one, other)]
        yield _Reason(
            f"the learning rate is {rates[0]} on rank {one.rank} and {rates[1]} on rank {other.rank}",
            "steps at different learning rates on the ranks",
            "compute the learning rate from values that are equal on all ranks, not from the rank",
            _rates_parted(here, one, other),
            # A schedule's first step uses the rates that were set before it.
            "find the learning rate at or above origin",
        )
    if isinstance(one, trace.Attempt) and isinstance(other, trace.Attempt):
        if one.gradients != other.gradients:
            seen, of = where_apart(here.plan, one.gradients or (), other.gradients or ())
            times = ratio(one.gradients or (), other.gradients or ())
            in_all = f", {number(times)}x in every element" if times else ""
            pairs = zip(one.gradients or (), other.gradients or (), strict=False)
            is_lacking = all(None in pair for pair in pairs if pair[0] != pair[1])
            yield _Reason(
                f"the gradient{of} is {seen[0]} on rank {one.rank} and {seen[1]} on rank {other.rank}{in_all}",
                "steps a parameter only on ranks that have their own gradient of it"
                if is_lacking
                else "steps with different gradients on the ranks",
                "let ranks without a gradient add zeros to the average, and step with the average on every rank"
                if is_lacking
                else "average the gradients over the ranks, and change them in the same way on each rank",
                edit="change the average over the ranks above clip|step" if is_lacking else "",
            )
            if (divided := _divided_apart(here)) is not None:
                yield divided
        clips = {window.rank.number: window.of(trace.Clip) for window in here.windows}
        for some, none in ((one.rank, other.rank), (other.rank, one.rank)):
            if clips[some] and not clips[none]:
                first = clips[some][0]
                said = f"rank {some} clipped its gradients ({first.line}) and rank {none} did not"
                advice = "clip on every rank, not on some only"
                edit = "change clip_condition; change clip"
                yield _Reason(said, "clips on some ranks only", advice, first, edit)
    if (kept := _not_sent(here)) is not None:
        yield kept


def _divided_apart(here: GlobalWindow) -> _Reason | None:
    """The factors of the correct gradients that the ranks used."""
    used = _used(here)
    found = [] if used is None else [[_factor(one, seen) for seen in used.sights] for one in used.rights]
    factors = next((known for one in found if len(known := [each for each in one if each is not None]) == len(one)), [])
    if used is None or not factors or _are_close(factors):
        return None
    products, total = [factor * own for factor, own in zip(factors, used.totals, strict=True)], sum(used.totals)
    by_own = _are_close(products) and any(_are_close([products[0], one]) for one in (total, total / len(factors)))
    # In a single element, any gradients differ by a factor.
    if not by_own and any(sum(value is not None and value != 0 for value in seen) < 2 for seen in used.sights):
        return None
    of = "weight" if here.plan.is_weighted else "number"
    told = enumerated([f"{number(factor)}x on rank {rank}" for rank, factor in enumerate(factors)])
    return _Reason(
        f"the gradients are the correct ones times {told}",
        f"divides the gradients of all ranks by the {of} of each rank's own samples"
        if by_own
        else "divides or clips averaged gradients by another number on each rank",
        f"all-reduce the total {of} of the samples before you divide by it"
        if by_own
        else "all-reduce the total or the norm before you divide or clip by it",
    )


def _are_close(numbers: Sequence[float]) -> bool:
    """Whether rounding explains all differences."""
    return all(isclose(one, numbers[0], rel_tol=1e-3) for one in numbers)


def _factor(right: Gradient, seen: Sequence[float | None]) -> float | None:
    """The factor by which these gradients differ from the correct ones; None if there is none."""
    pairs = [(one, value) for one, value in zip(seen, right.value, strict=True) if one is not None and value]
    one, value = max(pairs, key=lambda pair: abs(pair[1]), default=(0.0, 1.0))
    return one / value if one and right.is_times(one / value, seen) else None


def _not_sent(here: GlobalWindow) -> _Reason | None:
    """The update of a rank's own parameters that other ranks lack, if each parameter belongs to one rank."""
    after, starts = held_after(here), [held(window.rank).get(here.number) for window in here.windows]
    owned = [{number for step in rank.of(trace.Step) for number in step.parameters} for rank in here.run.ranks]
    is_sharded = sum(map(bool, owned)) > 1 and sum(map(len, owned)) == len(set[int]().union(*owned))
    start = starts[0]
    if after is None or not is_sharded or start is None or any(one != start for one in starts):
        return None
    weights = [values for _, values in after]
    apart = [at for at in range(here.plan.model.size) if any(one[at] != weights[0][at] for one in weights)]
    steps = {at: [step for window in here.windows for step in _steps_of(window, at)] for at in apart}
    kept = {at: [rank for rank, one in enumerate(weights) if one[at] == start[at]] for at in apart}
    if not all(kept[at] and len(steps[at]) == 1 and steps[at][0].rank not in kept[at] for at in apart):
        return None
    step, element = steps[apart[0]][0], here.plan.model.elements[apart[0]]
    return _Reason(
        f"only rank {step.rank} updated {element}, and {enumerated([f'rank {one}' for one in kept[apart[0]]])} kept "
        "the old value",
        "does not send the weights that only one rank updates to the other ranks",
        "after each step, broadcast every parameter from the rank that steps it, also those that a division leaves "
        "over",
        step,
    )


def _steps_of(window: Window, element: int) -> Sequence[trace.Step]:
    """The steps that updated an element."""
    return [step for step in window.of(trace.Step) if step.gradients and step.gradients[element] is not None]


def _rates_parted(here: GlobalWindow, one: trace.Step, other: trace.Step) -> trace.Event | None:
    """The first step of a schedule after which the ranks have different learning rates."""
    ranks = here.run.ranks
    pairs = zip(ranks[one.rank].of(trace.Schedule), ranks[other.rank].of(trace.Schedule), strict=False)
    return next((theirs for mine, theirs in pairs if mine.lr_after != theirs.lr_after), None)
