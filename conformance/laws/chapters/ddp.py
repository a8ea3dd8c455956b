"""DistributedDataParallel and other averaging over ranks: whether and when gradients are shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.laws.averaging import saw_right_gradients
from conformance.laws.law import GUIDE, OK, Broken, Outcomes, law
from conformance.laws.run import Rank, Window, fact
from conformance.laws.sharing import Sharing, brings_together, gives_to_one, sharing, trained_elements, where_apart
from conformance.trace.events import (
    ApexInitialize,
    BackwardBegin,
    BackwardEnd,
    Collective,
    Contribution,
    Event,
    Exchange,
    Forward,
    NoSyncEnter,
    NoSyncExit,
    Receive,
    Step,
    Wrap,
)

DOCS = "PyTorch documentation, torch.nn.parallel.DistributedDataParallel"


@law(
    "ddp/all-reduce-every-window",
    "The ranks MUST average their gradients, or their weights, in every window, its last micro-batch included.",
    why="""Gradients that a rank adds after the all-reduce, or without one, reach no other rank. Rank r then steps along
        its own g_r instead of (1/N) Σ g_r, and the ranks' weights diverge.""",
    source=f'{GUIDE}: "PyTorch DDP synchronizes losses during the backwards pass"; {DOCS}',
    fix="""
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                loss = criterion(model(batch.inputs), batch.targets) / len(window)
                loss.backward()  # the last one of the window averages the gradients
        """,
    unless=(
        "ddp/forward-through-wrapper",
        "ddp/wait-before-step",
        "ddp/wait-before-use",
        "ddp/no-sync-around-forward",
    ),
)
def all_reduce_every_window(window: Window) -> Outcomes:
    found = sharing(window)
    if found is not None and found.is_missing is not None:
        yield _never_shared(found) if found.is_missing else OK


@law(
    "ddp/all-reduce-once",
    "Gradients SHOULD be averaged once in a window, in the backward of its last micro-batch.",
    why="""Averaging numbers that are equal on all ranks does not change them, so the weights come out right. But each
        all-reduce before the last is wasted communication: with K micro-batches, K times the bytes.""",
    source=f'{GUIDE}: "each N-1 step must be wrapped in a no_sync context manager to avoid inefficiencies"',
    fix="""
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                loss = criterion(model(batch.inputs), batch.targets) / len(window)
                loss.backward()
        """,
    unless=("ddp/no-sync-around-forward",),
)
def all_reduce_once(window: Window) -> Outcomes:
    found = sharing(window)
    # Where parameters are split over the ranks, averaging each micro-batch saves the memory of whole gradients.
    if found is None or not found.shared or window.rank.shard is not None:
        return
    last, first = found.backward, window.backwards[0]
    final = next(event for event in window.backwards if event.micro_batch == last.micro_batch)
    if final is first:
        return
    early = [
        event
        for event in window.between(Contribution, after=first, before=final)
        if event.of == "gradients" and brings_together(event)
    ]
    # A single number, such as the ones that torch's `Join` adds up, may happen to equal the gradient of a bias.
    if sum(event.elements for event in early) < trained_elements(window.rank):
        yield OK
        return
    total = sum(event.bytes for event in early)
    yield Broken(
        early[0],
        must="gradients should be averaged in the backward of the last micro-batch alone",
        because=f"that average covers the sum over all {len(window.forwards)} micro-batches",
        however=f"{early[0]} came before the last backward ({last.line})",
        shows=(early[0], last, found.shared[0]),
        effect=f"None on the weights; {total} bytes a window are sent for nothing."
        if saw_right_gradients(window)
        else f"{total} bytes a window are sent for nothing; and unless each sum is divided by the number of ranks at "
        "once, the earlier micro-batches count again in each later one.",
    )


@law(
    "ddp/no-sync-around-forward",
    "`no_sync()` MUST enclose the forward of each micro-batch that is to stay local, and of no other.",
    why="""DDP's forward decides whether the backward will all-reduce. So `no_sync()` around the backward alone has no
        effect, and around the forward of a window's last micro-batch it leaves the gradients local: each rank steps
        along its own g_r instead of (1/N) Σ g_r.""",
    source=f'{DOCS}.no_sync: "The forward pass should be inside the context manager"',
    fix="""
        with model.no_sync():
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            loss.backward()
        """,
    latent="""Around backwards alone it all-reduces every micro-batch. Where several go forward before the first goes
        backward, DDP reduces the gradients of that one only, and the ranks step apart.""",
)
def no_sync_around_forward(window: Window) -> Outcomes:
    if window.plan.world_size == 1:
        return
    torn: Broken | None = None
    is_shown = False
    for backward in window.backwards:
        forwards = _forwards(window, backward)
        flags = {forward.syncs for forward in forwards}
        # The trace shows DDP's flag at the backward, and at all its forwards.
        if flags and None not in flags and backward.syncs is not None:
            is_shown = True
            if backward.syncs not in flags and _is_torn(window, backward):
                torn = _torn_apart(window, forwards[-1], backward)
    if torn is not None:
        yield torn
    elif is_shown:
        yield OK


@law(
    "ddp/forward-through-wrapper",
    "The forward MUST go through the DistributedDataParallel wrapper and not through the module inside it.",
    why="""The wrapper's forward prepares the all-reduce, so a backward from the inner module's output averages nothing.
        Rank r then steps along its own g_r instead of (1/N) Σ g_r.""",
    source=f"{DOCS}: the forward of the wrapper prepares the backward",
    fix="""
        model = DistributedDataParallel(model)
        loss = criterion(model(batch.inputs), batch.targets)  # not model.module(batch.inputs)
        """,
)
def forward_through_wrapper(window: Window) -> Outcomes:
    found = sharing(window)
    if found is None:
        return
    if not _came_past_the_wrapper(found):
        if any(event.wrapper for event in window.forwards):
            yield OK
        return
    wrap = window.rank.of(Wrap)[-1]
    forward = _forwards(window, found.backward)[-1]
    yield Broken(
        forward,
        must=f"the forward must go through {wrap.wrapper}",
        because="only its forward makes the backward average the gradients",
        however=f"the model was wrapped ({wrap.line}) and {forward} bypassed the wrapper, so "
        f"backward ({found.backward.line}) averaged nothing",
        shows=(wrap, forward, found.backward, *window.attempts[-1:]),
        effect=_parting(window),
    )


@law(
    "ddp/wrap-after-apex",
    "DistributedDataParallel MUST wrap the model after apex has initialised it.",
    why="""`amp.initialize` casts parameters and replaces the model's forward. A wrapper that exists before this has
        made its buckets and hooks for the old parameters, and averages those.""",
    source=f'{GUIDE}: "which must be done after initializing APEX AMP"',
    fix="""
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        model = DistributedDataParallel(model)
        """,
)
def wrap_after_apex(rank: Rank) -> Outcomes:
    wraps, initialized = rank.of(Wrap), rank.of(ApexInitialize)
    if not wraps or not initialized or rank.run.plan.world_size == 1:
        return
    wrap, first = wraps[0], initialized[0]
    if first.seq < wrap.seq:
        yield OK
        return
    yield Broken(
        wrap,
        must=f"{wrap.wrapper} must wrap the model after `amp.initialize`",
        because="it makes its buckets for the parameters at the time of wrapping",
        however=f"it was wrapped ({wrap.line}) before apex initialised it ({first.line})",
        shows=(wrap, first),
    )


@fact
def _numbered(rank: Rank) -> Mapping[int, Forward]:
    """The forwards of a rank, by number."""
    return {event.forward: event for event in rank.of(Forward)}


def _forwards(window: Window, backward: BackwardBegin) -> Sequence[Forward]:
    """The forwards that a backward reached; if its end is missing, the last forward before it."""
    reached = _reached(window).get(backward.backward)
    return [event for event in window.forwards if event.seq < backward.seq][-1:] if reached is None else reached


@fact
def _reached(window: Window) -> Mapping[int, Sequence[Forward]]:
    """By the number of each completed backward, the forwards that it reached."""
    known = _numbered(window.rank)
    return {
        end.backward: [known[number] for number in sorted(end.forwards) if number in known]
        for end in window.of(BackwardEnd)
    }


def _is_torn(window: Window, backward: BackwardBegin) -> bool:
    """Whether `no_sync()` around a backward or its forwards alone had no effect, or kept the average from a window."""
    if not backward.syncs:
        return bool(_averaged_in(window, backward))
    # Around a forward it has its effect, whatever it is around besides.
    found = sharing(window)
    return found is not None and bool(found.is_missing) and found.backward is backward


def _averaged_in(window: Window, backward: BackwardBegin) -> Sequence[Event]:
    end = next(iter(window.between(BackwardEnd, after=backward)), None)
    return [event for event in window.between(Contribution, after=backward, before=end) if brings_together(event)]


def _torn_apart(window: Window, forward: Forward, backward: BackwardBegin) -> Broken:
    averaged = _averaged_in(window, backward)
    if forward.syncs:
        must = "`no_sync()` must enclose the forward too"
        however = f"{forward} came outside `no_sync()` and its backward ({backward.line}) inside"
        effect: str | None = f"Gradients were averaged anyway: {averaged[0]}."
    else:
        must = "`no_sync()` must not enclose the forward of the last micro-batch"
        however = f"{forward} came inside `no_sync()` and its backward ({backward.line}) outside"
        effect = " ".join(filter(None, ["That backward averaged nothing.", _parting(window)]))
    return Broken(
        backward,
        must=must,
        because="the forward decides whether the backward will average",
        however=however,
        shows=(forward, backward, *averaged[:1]),
        effect=effect,
    )


def _came_past_the_wrapper(sharing: Sharing) -> bool:
    """Whether an average is missing because the forward bypassed the wrapper."""
    wraps = sharing.window.rank.of(Wrap)
    if not sharing.is_missing or not wraps:
        return False
    forwards = _forwards(sharing.window, sharing.backward)
    return bool(forwards) and wraps[0].seq < forwards[0].seq and all(event.wrapper is None for event in forwards)


def _never_shared(sharing: Sharing) -> Broken:
    window, backward = sharing.window, sharing.backward
    before = window.between(Contribution, before=backward)
    early = [event for event in before if event.of == "gradients" and brings_together(event)]
    entered = [event for event in window.between(Event, before=backward) if isinstance(event, NoSyncEnter | NoSyncExit)]
    attempt = window.attempts[-1] if window.attempts else None
    shows: list[Event] = [backward]
    if backward.syncs is False and entered and isinstance(entered[-1], NoSyncEnter):
        however = f"backward ({backward.line}) ran inside `no_sync()`, entered at {entered[-1].line}"
        shows = [entered[-1], backward]
    elif backward.syncs is False:
        however = f"backward ({backward.line}) ran while DDP's `require_backward_grad_sync` was off"
    else:
        however = "the ranks did not combine their gradients or weights between backward "
        however += f"({backward.line}) and "
        however += "the end of the window" if attempt is None else f"the end of the window with {attempt}"
        to_one = [event for event in window.between(Contribution, after=backward) if gives_to_one(event)]
        if to_one:
            however += f"; {to_one[-1]} gave the result to one rank alone, which did not pass it on"
            shows.append(to_one[-1])
        elif backward.syncs:
            however += "; DDP was to do it, so its communication hook sent nothing"
    if early:
        however += f"; the last before was {early[-1]}"
    return Broken(
        backward,
        must="the ranks must average their gradients in the last backward of a window, or after it",
        because=f"no other rank sees what this backward adds to the gradients of rank {window.rank.number}",
        however=however,
        shows=(*early[-1:], *shows, *([attempt] if attempt else [])),
        effect=_parting(window),
    )


def _parting(window: Window) -> str | None:
    """How the ranks' steps differ in a window without an average; None if unknown."""
    steps = [one.attempts[-1] for one in window.counterparts if one.attempts]
    along = [(step.rank, step.gradients) for step in steps if isinstance(step, Step) and step.gradients is not None]
    if len(along) < len(steps) or any(None in gradients for _, gradients in along):
        return None
    first, own = along[0]
    other, others = next((one for one in along if one[1] != own), along[0])
    if other == first:
        return None
    (mine, theirs), of = where_apart(window.plan, own, others)
    apart = f"rank {first} along {mine} and rank {other} along {theirs}{of}"
    return f"In window {window.number} the ranks step apart: {apart}."


_SOURCE = "PyTorch documentation, torch.distributed: synchronous and asynchronous collective operations"
_FIX = """
    handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    for handle in handles:
        handle.wait()  # each of them: they may end in any order
    optimizer.step()
    """


@law(
    "ddp/wait-before-step",
    "What writes to gradients or weights asynchronously MUST be waited for before the step that uses them.",
    why="""`async_op=True` and functional collectives return at once, and another thread writes the result later. A step
        that does not wait, by the handle or by `wait_tensor`, uses the rank's own g_r, the average (1/N) Σ g_r, or a
        mixture of both, and each rank may get another one.""",
    source=_SOURCE,
    fix=_FIX,
    latent="""Whether the collective or the step comes first is a race, which a larger model or a slower network
        decides otherwise.""",
    needs=(Step,),
)
def wait_before_step(window: Window) -> Outcomes:
    steps = window.of(Step)
    late = next(((step, seq) for step in steps for seq in step.unfinished), None)
    if late is not None:
        step, seq = late
        yield _unwaited(step, window.rank.events[seq], "that is the memory that the step uses")
    elif steps and _averages(window, steps[-1]):
        yield OK


@law(
    "ddp/wait-before-use",
    "The result of an asynchronous collective MUST NOT be used before it has been waited for.",
    why="""`async_op=True` returns at once, and another thread writes the result later. Whoever copies it back into the
        gradients before that copies what was in the buffer before: zeros, or the rank's own g_r.""",
    source=_SOURCE,
    fix="""
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat, async_op=True).wait()
        """,
    latent="""Whether the collective ends before its result is read is a race, which a larger model or a slower network
        decides otherwise.""",
    unless=("ddp/wait-before-step",),
    needs=(Step,),
)
def wait_before_use(window: Window) -> Outcomes:
    for step in window.of(Step):
        exchanged = _averages(window, step)
        # If one was waited for, it may have brought the average, and the others may be for a log.
        if exchanged and all(event.seq in step.unfinished_elsewhere for event in exchanged):
            of_gradients = (event for event in exchanged if isinstance(event, Receive) or event.of == "gradients")
            if (event := next(of_gradients, None)) is not None:
                yield _unwaited(step, event, "nothing else can have brought the average, and it may not be there yet")
            return
        if exchanged:
            yield OK


def _averages(window: Window, step: Step) -> Sequence[Exchange]:
    return [event for event in _averaging(window) if event.seq < step.seq]


@fact
def _averaging(window: Window) -> Sequence[Exchange]:
    """What may average gradients in a window; a single number is more often a metric."""
    if window.plan.world_size == 1:
        return ()
    return [
        event
        for event in window.of(Exchange)
        if isinstance(event, Receive)
        or (
            isinstance(event, Collective) and brings_together(event) and (event.of == "gradients" or event.elements > 1)
        )
    ]


def _unwaited(step: Step, event: Event, because: str) -> Broken:
    return Broken(
        event,
        must="what is asynchronous must be waited for, by its handle or by `wait_tensor`",
        because=because,
        however=f"nobody waited for {event} before {step}",
        shows=(event, step),
        effect="The step uses what happens to be there: it may differ from run to run and from rank to rank.",
    )
