"""Laws of DistributedDataParallel and other averaging over ranks: whether and when gradients are averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.laws.law import GUIDE, OK, Broken, Outcome, Outcomes, law
from conformance.laws.sharing import (
    brings_together,
    gives_to_one,
    has_empty_shards,
    is_only_short,
    sharing,
    trained_elements,
    where_apart,
)
from conformance.laws.subjects import Rank, Window, fact, forwards_by_number
from conformance.laws.wrong_factor import saw_right_gradients
from conformance.trace import events as trace

DOCS = "PyTorch documentation, torch.nn.parallel.DistributedDataParallel"


@law(
    "ddp/all-reduce-every-window",
    "The ranks MUST average their gradients, or their weights, in every window, including its last micro-batch.",
    fault="steps with gradients that are not averaged over the ranks",
    is_seen_later=True,
    why="""Gradients that a rank adds after the all-reduce, or without one, reach no other rank. Then rank r steps with
        its own g_r instead of (1/N) Σ g_r, and the ranks' weights diverge.""",
    source=f'{GUIDE}: "PyTorch DDP synchronizes losses during the backwards pass"; {DOCS}',
    advice="leave `no_sync()` before the forward of the last micro-batch",
    edit="change no_sync; add the average over the ranks above clip|step",
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
    return _never_shared(window, found.backward) if found.is_missing else OK


@law(
    "ddp/all-reduce-once",
    "Gradients SHOULD be averaged once in a window, in the backward of its last micro-batch.",
    fault="averages gradients before the last micro-batch of a step",
    why="""Averaging numbers that are equal on all ranks does not change them, so the weights are correct. But each
        all-reduce before the last is wasted communication: K times the bytes for K micro-batches.""",
    source=f'{GUIDE}: "each N-1 step must be wrapped in a no_sync context manager to avoid inefficiencies"',
    advice="run all micro-batches except the last under `no_sync()`",
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
    # With sharded parameters, averaging each micro-batch saves the memory of whole gradients.
    if found is None or not found.shared or window.rank.shard is not None:
        return None
    last, first = found.backward, window.backwards[0]
    final = next(event for event in window.backwards if event.micro_batch == last.micro_batch)
    if final is first:
        return None
    early = _of_gradients(window.between(trace.Contribution, after=first, before=final))
    # A single number, such as those that torch's `Join` sums, may happen to equal the gradient of a bias.
    if sum(event.elements for event in early) < trained_elements(window.rank):
        return OK
    wasted = f"{sum(event.bytes for event in early)} bytes per window are sent for nothing"
    return Broken(
        early[0],
        expected="averaging only in the backward of the last micro-batch",
        observed=f"{early[0]} came before the last backward ({last.line})",
        why=f"the last average covers the sum over all {len(window.forwards)} micro-batches",
        shows=(early[0], last, found.shared[0]),
        effect=f"None on the weights; {wasted}."
        if saw_right_gradients(window)
        else f"{wasted}; unless each sum is divided by the number of ranks at once, the earlier micro-batches count "
        "again in each later average.",
    )


@law(
    "ddp/no-sync-around-forward",
    "`no_sync()` MUST enclose the forwards of the micro-batches that stay local, and only these.",
    fault="puts a forward and its backward on different sides of `no_sync()`",
    why="""DDP's forward decides whether the backward will all-reduce. So `no_sync()` around only the backward has no
        effect, and around the forward of a window's last micro-batch it leaves the gradients local: each rank steps
        with its own g_r instead of (1/N) Σ g_r.""",
    source=f'{DOCS}.no_sync: "The forward pass should be inside the context manager"',
    advice="run a forward and its backward inside the same `no_sync()`",
    fix="""
        with model.no_sync():
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            loss.backward()
        """,
    latent="""`no_sync()` around only the backward all-reduces every micro-batch. If several go forward before the first
        goes backward, DDP reduces the gradients of only that one, and the ranks' weights diverge.""",
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
    """Finds a `no_sync()` around only a backward, which has no effect, or only its forwards, which prevents the average
    of a window."""
    end = next(iter(window.between(trace.BackwardEnd, after=backward)), None)
    averaged = [one for one in window.between(trace.Contribution, after=backward, before=end) if brings_together(one)]
    # `no_sync()` takes effect around a forward, whether or not it also encloses the backward.
    shared = sharing(window)
    is_missing = shared is not None and bool(shared.is_missing) and shared.backward is backward
    if not (is_missing if backward.syncs else averaged):
        return None
    outside, is_by_hand = bool(forward.syncs), not window.rank.of(trace.NoSyncEnter)
    places = ("outside", "inside") if outside else ("inside", "outside")
    expected = "the forward " + (
        "also inside `no_sync()`" if outside else "of the last micro-batch outside `no_sync()`"
    )
    observed = f"{forward} ran {places[0]} `no_sync()`, its backward ({backward.line}) {places[1]}"
    if is_by_hand:
        expected = f"`{_FLAG}` set before the forward"
        observed = f"`{_FLAG}` changed between {forward} and its backward ({backward.line})"
    return Broken(
        backward,
        expected=expected,
        observed=observed,
        why="the forward decides whether the backward averages",
        fault=f"changes DDP's `{_FLAG}` between a forward and its backward" if is_by_hand else "",
        advice=f"set `{_FLAG}` before the forward" if is_by_hand else "",
        edit=f"find `{_FLAG}` at or above it" if is_by_hand else "",
        shows=(forward, backward, *averaged[:1]),
        effect=f"Gradients were averaged anyway: {averaged[0]}."
        if outside
        else " ".join(filter(None, ["This backward averaged nothing.", _parting(window)])),
    )


@law(
    "ddp/forward-through-wrapper",
    "The forward MUST go through the DistributedDataParallel wrapper, not through the module inside it.",
    fault="calls the module inside DDP instead of the wrapper",
    why="""The wrapper's forward prepares the all-reduce, so a backward from the inner module's output averages nothing.
        Then rank r steps with its own g_r instead of (1/N) Σ g_r.""",
    source=f"{DOCS}: the forward of the wrapper prepares the backward",
    advice="call the model that DDP returns, not the module inside it (`model.module`)",
    edit="change called; change it",
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
        expected=f"a forward through {wrap.wrapper}",
        observed=f"{forward} bypassed the wrapper ({wrap.line}); backward ({found.backward.line}) averaged nothing",
        why="only the wrapper's forward makes the backward average the gradients",
        shows=(wrap, forward, found.backward, *window.attempts[-1:]),
        effect=_parting(window),
    )


@law(
    "ddp/wrap-after-apex",
    "DistributedDataParallel MUST wrap the model after apex has initialised it.",
    fault="wraps the model in DDP before `amp.initialize`",
    why="""`amp.initialize` casts parameters and replaces the model's forward. An earlier wrapper has its buckets and
        hooks on the old parameters, and averages those.""",
    source=f'{GUIDE}: "which must be done after initializing APEX AMP"',
    advice="call `amp.initialize` before you wrap the model",
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
        expected=f"{wrap.wrapper} wraps the model after `amp.initialize`",
        observed=f"the model was wrapped ({wrap.line}) before `amp.initialize` ({first.line})",
        why="the wrapper makes its buckets for the parameters at the time of wrapping",
        shows=(wrap, first),
    )


def _forwards(window: Window, backward: trace.BackwardBegin) -> Sequence[trace.Forward]:
    """The forwards that a backward reached; without its end, the last forward before it."""
    reached = _reached(window).get(backward.backward)
    return [event for event in window.forwards if event.seq < backward.seq][-1:] if reached is None else reached


@fact
def _reached(window: Window) -> Mapping[int, Sequence[trace.Forward]]:
    """The forwards that each completed backward reached, by the backward's number."""
    known = forwards_by_number(window.rank)
    return {
        end.backward: [known[number] for number in sorted(end.forwards) if number in known]
        for end in window.of(trace.BackwardEnd)
    }


_FLAG = "require_backward_grad_sync"


def _never_shared(window: Window, backward: trace.BackwardBegin) -> Broken:
    early = _of_gradients(window.between(trace.Contribution, before=backward))[-1:]
    entered = _inside(window.rank, backward)
    shows: list[trace.Event] = [backward]
    if backward.syncs is False and entered is not None:
        observed = f"backward ({backward.line}) ran inside `no_sync()`, entered at {entered.line}"
        shows = [entered, backward]
    elif backward.syncs is False:
        observed = f"backward ({backward.line}) ran while DDP's `{_FLAG}` was off"
    else:
        observed = f"the ranks combined no gradients or weights between backward ({backward.line}) and "
        observed += "".join([*map(str, window.attempts[-1:])] or ["the end of the window"])
        if to_one := [one for one in window.between(trace.Contribution, after=backward) if gives_to_one(one)]:
            observed += f"; {to_one[-1]} gave the result to only one rank, which did not pass it on"
            shows.append(to_one[-1])
        elif backward.syncs:
            observed += "; DDP was on, so its communication hook sent nothing"
    how = {}
    if backward.syncs is False and len(shows) == 1:
        how = {"edit": f"find `{_FLAG}` at or above forward"}
        how["advice"] = f"set `{_FLAG} = True` before the forward of the last micro-batch"
    elif has_empty_shards(window):
        how = {"edit": "change sync; find `set_requires_gradient_sync` at or above forward"}
        how["fault"] = "steps without gradients, which no backward of the window has reduced to shards"
        how["advice"] = "call `set_requires_gradient_sync(True)` before the backward of the last micro-batch"
    elif backward.syncs is None:
        how = {"advice": "all-reduce the gradients over all ranks, in the default process group"}
    if is_only_short(window):
        how["fault"] = "does not average the gradients of short windows over the ranks"
        ends = how.get("advice", "leave `no_sync()` before the forward of the last micro-batch")
        how["advice"] = f"{ends}; compare its number with the window's length, not with the nominal one"
    return Broken(
        backward,
        expected="an average over the ranks in the last backward of the window, or after it",
        observed=observed + "".join(f"; the last average was {one}" for one in early),
        why=f"no other rank gets the gradients that this backward adds on rank {window.rank.number}",
        shows=(*early, *shows, *window.attempts[-1:]),
        effect=_parting(window),
        origin=next((event for event in shows if isinstance(event, trace.NoSyncEnter)), None),
        **how,
    )


def _inside(rank: Rank, event: trace.Event) -> trace.NoSyncEnter | None:
    """The `no_sync()` around an event, which may begin before its window."""
    last = rank.between(trace.NoSyncEnter, before=event)[-1:]
    return None if not last or rank.between(trace.NoSyncExit, after=last[0], before=event) else last[0]


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
    return f"In window {window.number}, rank {first} steps with gradient {mine}, rank {other} with {theirs}{of}."


_SOURCE = "PyTorch documentation, torch.distributed: synchronous and asynchronous collective operations"
_FIX = """
    handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    for handle in handles:
        handle.wait()  # every handle: collectives may end in any order
    optimizer.step()
    """


@law(
    "ddp/wait-before-step",
    "An asynchronous collective that writes gradients or weights MUST be waited for before the step that uses them.",
    fault="steps without waiting for an asynchronous collective",
    why="""`async_op=True` and functional collectives return at once, and another thread writes the result later. A step
        that does not wait, by the handle or by `wait_tensor`, uses the rank's own g_r, the average (1/N) Σ g_r, or a
        mixture of both, and ranks may differ.""",
    source=_SOURCE,
    advice="call `wait()` on every handle before the step",
    edit="add `handle.wait()` above unscale|clip|step",
    fix=_FIX,
    latent="""The collective and the step race; a larger model or a slower network can change which comes first.""",
    needs=(trace.Step,),
)
def wait_before_step(window: Window) -> Outcome:
    steps = window.of(trace.Step)
    late = next(((step, seq) for step in steps for seq in step.unfinished), None)
    if late is None:
        return OK if steps and any(event.seq < steps[-1].seq for event in _averaging(window)) else None
    step, seq = late
    return _unwaited(step, window.rank.events[seq], "the collective writes to the memory that the step uses")


def _unwaited(step: trace.Step, event: trace.Event, why: str) -> Broken:
    return Broken(
        event,
        expected="a wait for asynchronous collectives, by the handle or by `wait_tensor`",
        observed=f"no wait for {event} before {step}",
        why=why,
        shows=(event, step),
        effect="The step may use unfinished results, which differ from run to run and from rank to rank.",
    )


@law(
    "ddp/wait-before-use",
    "The result of an asynchronous collective MUST NOT be used before a wait for it.",
    fault="uses the result of an asynchronous collective without waiting for it",
    why="""`async_op=True` returns at once, and another thread writes the result later. An earlier copy back into the
        gradients copies the old contents of the buffer: zeros, or the rank's own g_r.""",
    source=_SOURCE,
    advice="call `wait()` before you use the result",
    edit="add `handle.wait()` above it",
    fix="""
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat, async_op=True).wait()
        """,
    latent="""The collective and the use of its result race; a larger model or a slower network can change which comes
        first.""",
    unless=("ddp/wait-before-step",),
    needs=(trace.Step,),
)
def wait_before_use(window: Window) -> Outcomes:
    for step in window.of(trace.Step):
        exchanged = [event for event in _averaging(window) if event.seq < step.seq]
        # A collective with a wait may have brought the average, and the others may be for a log.
        if exchanged and all(event.seq in step.unfinished_elsewhere for event in exchanged):
            of_gradients = (event for event in exchanged if isinstance(event, trace.Receive) or event.of == "gradients")
            if (event := next(of_gradients, None)) is not None:
                yield _unwaited(step, event, "no other collective brings the average, and this one may not be finished")
            return
        if exchanged:
            yield OK


@fact
def _averaging(window: Window) -> Sequence[trace.Exchange]:
    """The exchanges that may average gradients in a window; a single number is more likely a metric."""
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
