"""DistributedDataParallel and other averaging over ranks: whether and when gradients are shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.laws.averaging import saw_right_gradients
from conformance.laws.law import GUIDE, OK, Broken, Outcome, Outcomes, law
from conformance.laws.run import Rank, Window, fact, forwards_by_number
from conformance.laws.sharing import Sharing, brings_together, gives_to_one, sharing, trained_elements, where_apart
from conformance.trace import events as trace

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
def all_reduce_every_window(window: Window) -> Outcome:
    found = sharing(window)
    if found is None or found.is_missing is None:
        return None
    return _never_shared(found) if found.is_missing else OK


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
def all_reduce_once(window: Window) -> Outcome:
    found = sharing(window)
    # Where parameters are split over the ranks, averaging each micro-batch saves the memory of whole gradients.
    if found is None or not found.shared or window.rank.shard is not None:
        return None
    last, first = found.backward, window.backwards[0]
    final = next(event for event in window.backwards if event.micro_batch == last.micro_batch)
    if final is first:
        return None
    early = _of_gradients(window.between(trace.Contribution, after=first, before=final))
    # A single number, such as the ones that torch's `Join` adds up, may happen to equal the gradient of a bias.
    if sum(event.elements for event in early) < trained_elements(window.rank):
        return OK
    wasted = f"{sum(event.bytes for event in early)} bytes a window are sent for nothing"
    return Broken(
        early[0],
        must="gradients should be averaged in the backward of the last micro-batch alone",
        because=f"that average covers the sum over all {len(window.forwards)} micro-batches",
        however=f"{early[0]} came before the last backward ({last.line})",
        shows=(early[0], last, found.shared[0]),
        effect=f"None on the weights; {wasted}."
        if saw_right_gradients(window)
        else f"{wasted}; and unless each sum is divided by the number of ranks at once, the earlier micro-batches "
        "count again in each later one.",
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
def no_sync_around_forward(window: Window) -> Outcome:
    if window.plan.world_size == 1:
        return None
    found: Outcome = None
    for backward in window.backwards:
        forwards = _forwards(window, backward)
        flags = {forward.syncs for forward in forwards}
        # The trace shows DDP's flag at the backward, and at all its forwards.
        if flags and None not in flags and backward.syncs is not None:
            torn = None if backward.syncs in flags else _torn_apart(window, forwards[-1], backward)
            found = torn or found or OK
    return found


def _torn_apart(window: Window, forward: trace.Forward, backward: trace.BackwardBegin) -> Broken | None:
    """That `no_sync()` around a backward or its forwards alone had no effect, or kept the average from a window."""
    end = next(iter(window.between(trace.BackwardEnd, after=backward)), None)
    averaged = [one for one in window.between(trace.Contribution, after=backward, before=end) if brings_together(one)]
    # Around a forward it has its effect, whatever it is around besides.
    shared = sharing(window)
    is_missing = shared is not None and bool(shared.is_missing) and shared.backward is backward
    if not (is_missing if backward.syncs else averaged):
        return None
    outside = bool(forward.syncs)
    places = ("outside", "inside") if outside else ("inside", "outside")
    return Broken(
        backward,
        must="`no_sync()` must "
        + ("enclose the forward too" if outside else "not enclose the forward of the last micro-batch"),
        because="the forward decides whether the backward will average",
        however=f"{forward} came {places[0]} `no_sync()` and its backward ({backward.line}) {places[1]}",
        shows=(forward, backward, *averaged[:1]),
        effect=f"Gradients were averaged anyway: {averaged[0]}."
        if outside
        else " ".join(filter(None, ["That backward averaged nothing.", _parting(window)])),
    )


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
def forward_through_wrapper(window: Window) -> Outcome:
    found = sharing(window)
    if found is None:
        return None
    wraps, forwards = window.rank.of(trace.Wrap), _forwards(window, found.backward) if found.is_missing else ()
    came_past = wraps and forwards and wraps[0].seq < forwards[0].seq and not any(one.wrapper for one in forwards)
    if not came_past:
        return OK if any(event.wrapper for event in window.forwards) else None
    wrap, forward = wraps[-1], forwards[-1]
    return Broken(
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
def wrap_after_apex(rank: Rank) -> Outcome:
    wraps, initialized = rank.of(trace.Wrap), rank.of(trace.ApexInitialize)
    if not wraps or not initialized or rank.run.plan.world_size == 1:
        return None
    wrap, first = wraps[0], initialized[0]
    if first.seq < wrap.seq:
        return OK
    return Broken(
        wrap,
        must=f"{wrap.wrapper} must wrap the model after `amp.initialize`",
        because="it makes its buckets for the parameters at the time of wrapping",
        however=f"it was wrapped ({wrap.line}) before apex initialised it ({first.line})",
        shows=(wrap, first),
    )


def _forwards(window: Window, backward: trace.BackwardBegin) -> Sequence[trace.Forward]:
    """The forwards that a backward reached; if its end is missing, the last forward before it."""
    reached = _reached(window).get(backward.backward)
    return [event for event in window.forwards if event.seq < backward.seq][-1:] if reached is None else reached


@fact
def _reached(window: Window) -> Mapping[int, Sequence[trace.Forward]]:
    """By the number of each completed backward, the forwards that it reached."""
    known = forwards_by_number(window.rank)
    return {
        end.backward: [known[number] for number in sorted(end.forwards) if number in known]
        for end in window.of(trace.BackwardEnd)
    }


def _never_shared(sharing: Sharing) -> Broken:
    window, backward = sharing.window, sharing.backward
    early = _of_gradients(window.between(trace.Contribution, before=backward))[-1:]
    entered = [
        event
        for event in window.between(trace.Event, before=backward)
        if isinstance(event, trace.NoSyncEnter | trace.NoSyncExit)
    ]
    shows: list[trace.Event] = [backward]
    if backward.syncs is False and entered and isinstance(entered[-1], trace.NoSyncEnter):
        however = f"backward ({backward.line}) ran inside `no_sync()`, entered at {entered[-1].line}"
        shows = [entered[-1], backward]
    elif backward.syncs is False:
        however = f"backward ({backward.line}) ran while DDP's `require_backward_grad_sync` was off"
    else:
        however = (
            f"the ranks did not combine their gradients or weights between backward ({backward.line}) and the end "
        )
        however += "of the window" + "".join(f" with {attempt}" for attempt in window.attempts[-1:])
        to_one = [event for event in window.between(trace.Contribution, after=backward) if gives_to_one(event)]
        if to_one:
            however += f"; {to_one[-1]} gave the result to one rank alone, which did not pass it on"
            shows.append(to_one[-1])
        elif backward.syncs:
            however += "; DDP was to do it, so its communication hook sent nothing"
    return Broken(
        backward,
        must="the ranks must average their gradients in the last backward of a window, or after it",
        because=f"no other rank sees what this backward adds to the gradients of rank {window.rank.number}",
        however=however + "".join(f"; the last before was {one}" for one in early),
        shows=(*early, *shows, *window.attempts[-1:]),
        effect=_parting(window),
    )


def _of_gradients(events: Sequence[trace.Contribution]) -> Sequence[trace.Contribution]:
    return [event for event in events if event.of == "gradients" and brings_together(event)]


def _parting(window: Window) -> str | None:
    """How the ranks' steps differ in a window without an average; None if unknown."""
    steps = [one.attempts[-1] for one in window.counterparts if one.attempts]
    along = [
        (step.rank, step.gradients) for step in steps if isinstance(step, trace.Step) and step.gradients is not None
    ]
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
    needs=(trace.Step,),
)
def wait_before_step(window: Window) -> Outcome:
    steps = window.of(trace.Step)
    late = next(((step, seq) for step in steps for seq in step.unfinished), None)
    if late is None:
        return OK if steps and any(event.seq < steps[-1].seq for event in _averaging(window)) else None
    step, seq = late
    return _unwaited(step, window.rank.events[seq], "that is the memory that the step uses")


def _unwaited(step: trace.Step, event: trace.Event, because: str) -> Broken:
    return Broken(
        event,
        must="what is asynchronous must be waited for, by its handle or by `wait_tensor`",
        because=because,
        however=f"nobody waited for {event} before {step}",
        shows=(event, step),
        effect="The step uses what happens to be there: it may differ from run to run and from rank to rank.",
    )


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
    needs=(trace.Step,),
)
def wait_before_use(window: Window) -> Outcomes:
    for step in window.of(trace.Step):
        exchanged = [event for event in _averaging(window) if event.seq < step.seq]
        # If one was waited for, it may have brought the average, and the others may be for a log.
        if exchanged and all(event.seq in step.unfinished_elsewhere for event in exchanged):
            of_gradients = (event for event in exchanged if isinstance(event, trace.Receive) or event.of == "gradients")
            if (event := next(of_gradients, None)) is not None:
                yield _unwaited(step, event, "nothing else can have brought the average, and it may not be there yet")
            return
        if exchanged:
            yield OK


@fact
def _averaging(window: Window) -> Sequence[trace.Exchange]:
    """What may average gradients in a window; a single number is more often a metric."""
    if window.plan.world_size == 1:
        return ()
    return [
        event
        for event in window.of(trace.Exchange)
        if isinstance(event, trace.Receive)
        or (
            isinstance(event, trace.Collective)
            and brings_together(event)
            and (event.of == "gradients" or event.elements > 1)
        )
    ]
