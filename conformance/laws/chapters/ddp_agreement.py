"""Laws of agreement between ranks: their first weights, their collectives, and their weights after each step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf, isclose
from typing import Any

from conformance.laws.averaging import seen_gradients
from conformance.laws.gradients import Expectations, held
from conformance.laws.law import GUIDE, OK, Broken, Outcome, Outcomes, law
from conformance.laws.run import GlobalWindow, Rank, Run, Window, fact
from conformance.laws.sharing import brings_together, trained_elements, where_apart
from conformance.trace import events as trace
from conformance.trace.words import enumerated, number, vector

DOCS = "PyTorch documentation, torch.nn.parallel.DistributedDataParallel"


@law(
    "ddp/equal-start",
    "All ranks MUST start from the same weights.",
    why="""Ranks that take equal steps from different weights keep the difference. Their gradients belong to different
        models, (1/N) Σ ∇L(w_r), and no single model is trained.""",
    source=f'{GUIDE}: "DDP broadcasts parameters on model instantiation"',
    advice="broadcast the weights of rank 0 before the first step",
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


@law(
    "ddp/same-collectives",
    "Every rank MUST issue the same collectives in the same order.",
    why="""A collective matches the n-th call of each rank in its group, whatever these calls were meant for. If one
        rank leaves out a call or makes an extra one, the others wait forever, or mix unrelated numbers.""",
    source="PyTorch documentation, torch.distributed: collective functions",
    advice="call each collective on every rank, outside `if rank == 0`",
    fix="""
        dist.all_reduce(loss)  # on every rank
        if rank == 0:
            print(loss.item() / world_size)
        """,
    latent="""Whether ranks that issue different collectives hang, fail or mix numbers depends on sizes, buffers and the
        backend.""",
    unless=("ddp/all-reduce-every-window",),
)
def same_collectives(run: Run) -> Outcomes:
    if run.plan.world_size == 1:
        return
    for group, members in _by_group(run):
        for index, together in enumerate(zip(*members, strict=False)):
            signatures = [_signature(event) for event in together]
            if all(signature == signatures[0] for signature in signatures):
                yield OK
                continue
            usual = max(signatures, key=signatures.count)
            odd = [event for event, signature in zip(together, signatures, strict=True) if signature != usual]
            yield _different(index, together, odd[-1], usual)
            break
        else:
            if (unanswered := _unanswered(run, group, members)) is not None:
                yield unanswered


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
    why="""A gradient that the all-reduce leaves out is g_r, the mean over the rank's own samples, instead of
        (1/N) Σ g_r. Such are parameters in no bucket, or frozen when DDP wrapped the model, the rest of a buffer cut
        into equal parts, or all of them if only a copy is averaged. From then on, these weights differ from rank to
        rank.""",
    source=f"{DOCS}: parameters must not be added, nor be unfrozen, after the model was wrapped",
    advice="all-reduce these gradients too, or wrap the model when all its parameters are trainable",
    fix="""
        for parameter in model.parameters():  # DistributedDataParallel averages those that it found trainable
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        """,
    unless=_PARTED_BY,
)
def average_each_parameter(here: GlobalWindow) -> Outcome:
    parted = _first_parted(here.run)
    if here.plan.world_size == 1 or here.number > parted:
        return None
    if here.number < parted:
        return OK
    own = _left_own(here)
    return None if own is None else _not_averaged(here, own)


@law(
    "ddp/identical-weights",
    "After each optimizer step, all ranks MUST have bit-identical weights.",
    why="""Ranks with different weights average gradients of different models, (1/N) Σ ∇L(w_r), and never agree again.
        The model that one rank saves or evaluates is not the model that the others train.""",
    source=f"{DOCS}: parameters are never broadcast between processes after construction",
    advice="make gradients, learning rate, clipping and the decision to step equal on all ranks",
    fix="""
        # Everything that enters a step must be the same on all ranks: gradients after the all-reduce,
        # learning rate, weight decay, momentum, loss scale, and the decision to step.
        optimizer.step()
        """,
    unless=(*_PARTED_BY, "ddp/average-each-parameter"),
)
def identical_weights(here: GlobalWindow) -> Outcome:
    # After the first difference, all later windows differ too.
    if here.plan.world_size == 1 or here.number > _first_parted(here.run):
        return None
    held = _held_after(here)
    if held is None:
        return None
    one, weights = held[0]
    apart = next(((other, others) for other, others in held if others != weights), None)
    return OK if apart is None else _parted(here, one, weights, *apart)


@fact
def _held_after(here: GlobalWindow) -> Sequence[tuple[trace.Event, trace.Vector]] | None:
    """The weights of each rank after a window, with the event that shows them; None unless all are known."""
    found: list[tuple[trace.Event, trace.Vector]] = []
    for window in here.windows:
        step = window.attempts[-1] if window.attempts and not window.step_is_unseen else None
        shown = step or window.shown_after
        if shown is None:
            return None
        weights: trace.Vector | None = shown.weights
        # Ranks may average or exchange weights after their steps: then the next event shows the result.
        if any(_may_carry_weights(window.rank, event) for event in window.between(trace.Exchange, after=shown)):
            weights = later.weights if (later := window.shown_after) is not None else None
        if weights is None or None in weights:
            return None
        found.append((shown, weights))
    return found


@fact
def _first_parted(run: Run) -> float:
    """The first window after which the ranks have different weights; infinity if there is none."""
    for here in run.together.values():
        held = _held_after(here)
        if held is not None and any(weights != held[0][1] for _, weights in held):
            return here.number
    return inf


def _left_own(here: GlobalWindow) -> dict[str, list[float | None]] | None:
    """By element, the gradients that differ between ranks, in rank order, if they come from each rank's own samples."""
    plan, starts = here.plan, {held(window.rank).get(here.number) for window in here.windows}
    sights = [seen for window in here.windows if (seen := _final_gradients(window)) is not None]
    shares = [plan.micro_batches(window.rank.number, here.number) for window in here.windows]
    start = starts.pop()
    if starts or start is None or len(start) != plan.model.size or len(sights) < plan.world_size or not all(shares):
        return None
    columns = list(zip(*sights, strict=True))
    apart = [index for index, column in enumerate(columns) if len(set(column)) > 1]
    alike = [None if index in apart else column[0] for index, column in enumerate(columns)]
    expectations = Expectations(plan)
    right = next((one for one in expectations.gradients(shares, start) if one.is_times(1.0, alike)), None)
    owns = [expectations.gradients([share], start) for share in shares]

    def are_own(times: float) -> bool:
        return all(
            any(one.is_times(times, _only([index], gradients)) for one in own)
            for own, gradients in zip(owns, sights, strict=True)
            for index in apart
        )

    # If other elements are wrong too, there is another bug. And if only one rank uses a parameter, its own gradient may
    # be the average.
    if not apart or right is None or all(right.is_times(1.0, _only(apart, gradients)) for gradients in sights):
        return None
    # Trainers may divide before a sum over the ranks, or multiply before a mean.
    if not any(map(are_own, (1.0, 1 / plan.world_size, float(plan.world_size)))):
        return None
    return {plan.model.elements[index]: list(columns[index]) for index in apart}


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
    averaged = [one for one in here.windows[1].between(trace.Exchange, before=other) if brings_together(one)][-1:]
    return Broken(
        other,
        expected=f"the gradient of {enumerated([*own])} averaged over the ranks",
        observed=f"{values[0]} on rank 0 and {values[1]} on rank 1 at {first}, each from the rank's own samples"
        + "".join(f", despite {one}" for one in averaged),
        why="the samples of one rank are only a part of the batch",
        shows=(*averaged, first, other),
        effect="The ranks train different models from now on.",
    )


def _by_group(run: Run) -> Iterator[tuple[tuple[int, ...], list[list[trace.Collective]]]]:
    """Yields the ranks of each group, and the collectives that each rank issued in it."""
    calls: dict[tuple[int, ...], list[list[trace.Collective]]] = {}
    for rank in run.ranks:
        for event in rank.of(trace.Collective):
            # Horovod orders the submissions of the ranks itself.
            if event.via == "c10d" and len(event.group) > 1:
                calls.setdefault(tuple(event.group), [[] for _ in run.ranks])[rank.number].append(event)
    for group, by_rank in sorted(calls.items()):
        members = [by_rank[rank] for rank in group]
        names = [{event.process_group for event in events} for events in members]
        # Several groups of the same ranks, which threads may use, have separate orders if all ranks name them alike.
        if all(one == names[0] for one in names):
            for name in sorted(names[0], key=str):
                yield group, [[event for event in events if event.process_group == name] for events in members]
        else:
            yield group, members


#: Collectives to which ranks may contribute different amounts.
_UNEVEN = ("allgather_", "alltoall_", "alltoall_base_", "scatter_")


def _signature(event: trace.Collective) -> tuple[Any, ...]:
    if event.op in _UNEVEN:
        return (event.op,)
    return event.op, event.elements, event.bytes, event.reduce


def _different(
    index: int, together: Sequence[trace.Collective], odd: trace.Collective, usual: tuple[Any, ...]
) -> Broken:
    other = next(event for event in together if _signature(event) == usual)
    details = [f" of {event.elements} elements, {event.reduce or 'no reduction'}" for event in (other, odd)]
    one, two = details if details[0] != details[1] else ("", "")
    return Broken(
        odd,
        expected="the same collectives in the same order on every rank",
        observed=f"call {index + 1} is {other}{one} on rank {other.rank} and {odd}{two} on rank {odd.rank}",
        why=f"call {index + 1} of each rank in the group joins the same collective",
        shows=together,
        effect="The ranks wait for each other, or mix unrelated numbers.",
    )


def _unanswered(run: Run, group: Sequence[int], members: Sequence[Sequence[trace.Collective]]) -> Broken | None:
    """The first collective that some ranks of a group did not enter, unless they failed for another reason."""
    answered = min(map(len, members))
    waiting = [events[answered] for events in members if len(events) > answered]
    absent = [run.ranks[rank] for rank, events in zip(group, members, strict=True) if len(events) == answered]
    # `sys.exit` is no failure.
    if not waiting or any(event.type != "SystemExit" for rank in absent for event in rank.of(trace.Raised)):
        return None
    rank, call = absent[0], waiting[0]
    last = [event for event in rank.events if not isinstance(event, trace.Finished | trace.Raised | trace.Topology)][
        -1:
    ]
    left = "finished without it" if rank.finished else "left" if rank.of(trace.Raised) else "never reached it"
    ranks = enumerated([f"rank {event.rank}" for event in waiting])
    return Broken(
        call,
        expected="the same collectives in the same order on every rank",
        observed=f"rank {call.rank} entered {call}, but rank {rank.number} {left}"
        + "".join(f"; its last action was {event}" for event in last),
        why=f"a collective needs all of its {len(group)} ranks",
        shows=(*last, *waiting),
        effect=f"{ranks.capitalize()} {'waits' if len(waiting) == 1 else 'wait'} forever.",
    )


def _may_carry_weights(rank: Rank, event: trace.Exchange) -> bool:
    # Sending does not change a rank's own weights; in a broadcast, one rank sends and the others receive.
    if isinstance(event, trace.Collective):
        if not (brings_together(event) or (event.op.startswith("broadcast") and event.of == "parameters")):
            return False
    elif not isinstance(event, trace.Receive):
        return False
    return event.of != "gradients" and (event.of == "parameters" or event.elements >= trained_elements(rank))


def _ratio(one: trace.Vector, other: trace.Vector) -> float | None:
    """The common ratio of all elements; None if there is none, or too few elements to show it."""
    pairs = [(first, second) for first, second in zip(one, other, strict=False) if first or second]
    ratios = [
        two / first for first, two in pairs if first and not isinstance(first, str) and isinstance(two, int | float)
    ]
    found = len(ratios) == len(pairs) > 1 and all(isclose(ratio, ratios[0], rel_tol=1e-6) for ratio in ratios)
    return ratios[0] if found else None


def _parted(
    here: GlobalWindow, one: trace.Event, weights: trace.Vector, other: trace.Event, others: trace.Vector
) -> Broken:
    details = []
    # A worker of a parameter server shows its weights at events other than steps.
    if isinstance(one, trace.Step) and isinstance(other, trace.Step) and one.lr != other.lr:
        rates = [number(step.lr or 0) for step in (one, other)]
        details.append(f"the learning rate is {rates[0]} on rank {one.rank} and {rates[1]} on rank {other.rank}")
    if isinstance(one, trace.Attempt) and isinstance(other, trace.Attempt):
        if one.gradients != other.gradients:
            seen, of = where_apart(here.plan, one.gradients or (), other.gradients or ())
            times = _ratio(one.gradients or (), other.gradients or ())
            in_all = f", {number(times)}x in every element" if times else ""
            details.append(
                f"the gradient{of} is {seen[0]} on rank {one.rank} and {seen[1]} on rank {other.rank}{in_all}"
            )
        clips = {window.rank.number: window.of(trace.Clip) for window in here.windows}
        for some, none in ((one.rank, other.rank), (other.rank, one.rank)):
            if clips[some] and not clips[none]:
                details.append(f"rank {some} clipped its gradients ({clips[some][0].line}) and rank {none} did not")
    (mine, theirs), of = where_apart(here.plan, weights, others)
    return Broken(
        other,
        expected="the same weights on all ranks after a step",
        observed=f"after {one} of window {here.number}, rank {one.rank} has {mine} and rank {other.rank} has "
        f"{theirs}{of}" + (f"; in that step, {enumerated(details)}" if details else ""),
        why="from then on, the ranks average gradients of different models",
        shows=(one, other),
        effect="The ranks train different models from now on.",
    )
