"""DistributedDataParallel, and what else averages over ranks: that gradients are shared, and when."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.laws.event import Event
from conformance.laws.labels import placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import Run, Window
from conformance.laws.sharing import Sharing, brings_together, in_turn, sharings, vector

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "PyTorch documentation, torch.nn.parallel.DistributedDataParallel"


@law(
    "ddp/all-reduce-every-window",
    "The ranks MUST average their gradients, or their weights, in every window, its last micro-batch included.",
    why="""What a rank adds to its gradients after the all-reduce, or without one, only that rank sees. Rank r then
        steps along its own g_r in place of (1/N) Σ g_r, and the ranks' weights part.""",
    source=f'{SEED}: "PyTorch DDP synchronizes losses during the backwards pass"; {DOCS}',
    mend="""
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                loss = criterion(model(batch.inputs), batch.targets) / len(window)
                loss.backward()  # the last one of the window averages the gradients
        """,
)
def all_reduce_every_window(run: Run) -> Iterator[Check]:
    for sharing in sharings(run):
        if sharing.is_missing is None:
            continue
        if not sharing.is_missing:
            yield kept(sharing.window)
        # Otherwise ddp/forward-through-wrapper or ddp/no-sync-around-forward tells why.
        elif not _came_past_the_wrapper(run, sharing) and _mismatch(run, sharing.window, sharing.backward) is None:
            yield broken(sharing.window, _never_shared(sharing))


@law(
    "ddp/all-reduce-once",
    "Gradients SHOULD be averaged once a window, in the backward of its last micro-batch.",
    why="""The mean of what is equal on all ranks already is the same number, so the weights come out right. Each
        all-reduce but the last is communication for nothing: with K micro-batches, K times the bytes.""",
    source=f'{SEED}: "each N-1 step must be wrapped in a no_sync context manager to avoid inefficiencies"',
    mend="""
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                loss = criterion(model(batch.inputs), batch.targets) / len(window)
                loss.backward()
        """,
)
def all_reduce_once(run: Run) -> Iterator[Check]:
    for sharing in sharings(run):
        window, last = sharing.window, sharing.backward
        final = next(event for event in window.backwards if event.micro_batch == last.micro_batch)
        if not sharing.shared or final == window.backwards[0]:
            continue
        early = [
            event
            for event in window.between(window.backwards[0], final)
            if brings_together(event) and event.get("of") == "gradients"
        ]
        if not early:
            yield kept(window)
        # Otherwise ddp/no-sync-around-forward tells why.
        elif all(_mismatch(run, window, backward) is None for backward in window.backwards):
            total = sum(event["bytes"] for event in early)
            yield broken(
                window,
                Broken(
                    early[0],
                    must="gradients should be averaged in the backward of the last micro-batch alone",
                    because=f"that average covers what all {len(window.forwards)} micro-batches have added up",
                    however=f"{placed(early[0])} came before the last backward ({last.place})",
                    shows=(early[0], last, sharing.shared[0]),
                    effect=f"None on the weights; {total} bytes a window are sent for nothing.",
                ),
            )


@law(
    "ddp/no-sync-around-forward",
    "`no_sync()` MUST enclose the forward of a micro-batch together with its backward.",
    why="""DDP's forward decides whether the backward will all-reduce, so a `no_sync()` around the backward alone
        holds nothing back, and one around the forward alone leaves the gradients of that micro-batch local. Where
        it is the last one of a window, each rank steps along its own g_r in place of (1/N) Σ g_r.""",
    source=f'{DOCS}.no_sync: "The forward pass should be inside the context manager"',
    mend="""
        with model.no_sync():
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            loss.backward()
        """,
)
def no_sync_around_forward(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    missing = {sharing.backward: sharing for sharing in sharings(run) if sharing.is_missing}
    for window in run.windows:
        through = [event for event in window.backwards if _forwards_of(run, window, event)]
        mismatches = [found for event in through if (found := _mismatch(run, window, event)) is not None]
        if mismatches:
            forward, backward = mismatches[-1]
            yield broken(window, _torn_apart(window, forward, backward, missing.get(backward)))
        elif through:
            yield kept(window)


@law(
    "ddp/forward-through-wrapper",
    "The forward MUST go through the DistributedDataParallel wrapper and not through the module inside it.",
    why="""It is the wrapper's forward that prepares the all-reduce, so a backward that began in the inner module's
        output averages nothing. Rank r then steps along its own g_r in place of (1/N) Σ g_r.""",
    source=f"{DOCS}: the forward of the wrapper prepares the backward",
    mend="""
        model = DistributedDataParallel(model)
        loss = criterion(model(batch.inputs), batch.targets)  # not model.module(batch.inputs)
        """,
)
def forward_through_wrapper(run: Run) -> Iterator[Check]:
    for sharing in sharings(run):
        window = sharing.window
        if not _came_past_the_wrapper(run, sharing):
            if any(event["wrapper"] for event in window.forwards):
                yield kept(window)
            continue
        wrap = run.ranks[window.rank].of("wrap")[-1]
        forward = _forwards(run, window, sharing.backward)[-1]
        yield broken(
            window,
            Broken(
                forward,
                must=f"the forward must go through {wrap['wrapper']}",
                because="its own forward is what makes the backward average the gradients",
                however=f"the model was wrapped ({wrap.place}) and {placed(forward)} went past the wrapper, so that "
                f"backward ({sharing.backward.place}) averaged nothing",
                shows=(wrap, forward, sharing.backward, *window.attempts[-1:]),
                effect=_parting(sharing),
            ),
        )


@law(
    "ddp/wrap-after-apex",
    "DistributedDataParallel MUST wrap the model after apex has initialised it.",
    why="""`amp.initialize` casts parameters and replaces the model's forward. A wrapper that is there already has
        made its buckets and hooks for the parameters as they were, and averages those.""",
    source=f'{SEED}: "which must be done after initializing APEX AMP"',
    mend="""
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        model = DistributedDataParallel(model)
        """,
)
def wrap_after_apex(run: Run) -> Iterator[Check]:
    if run.plan.world_size == 1:
        return
    for rank in run.ranks:
        wraps, initialized = rank.of("wrap"), rank.of("apex_initialize")
        if not wraps or not initialized:
            continue
        wrap, first = wraps[0], initialized[0]
        if first.seq < wrap.seq:
            yield Check(None, rank.rank)
            continue
        yield Check(
            None,
            rank.rank,
            Broken(
                wrap,
                must=f"{wrap['wrapper']} must wrap the model after `amp.initialize`",
                because="its buckets are made for the parameters as it finds them",
                however=f"it was wrapped ({wrap.place}) before apex initialised it ({first.place})",
                shows=(wrap, first),
            ),
        )


def _forwards(run: Run, window: Window, backward: Event) -> tuple[Event, ...]:
    """The forwards that a backward flowed through; the last one before it, where it was cut off."""
    end = next((event for event in window.of("backward_end") if event["backward"] == backward["backward"]), None)
    if end is None:
        return tuple(event for event in window.forwards if event.seq < backward.seq)[-1:]
    known = run.ranks[window.rank].forwards
    return tuple(known[number] for number in sorted(end["forwards"]) if number in known)


def _forwards_of(run: Run, window: Window, backward: Event) -> tuple[Event, ...]:
    """The forwards of a backward, if they went through DDP, whose flag was known to both."""
    forwards = _forwards(run, window, backward)
    return () if backward["syncs"] is None or any(event["syncs"] is None for event in forwards) else forwards


def _mismatch(run: Run, window: Window, backward: Event) -> tuple[Event, Event] | None:
    """A forward and its backward, if DDP's flag was another one at all forwards than at the backward."""
    forwards = _forwards_of(run, window, backward)
    if not forwards or any(event["syncs"] == backward["syncs"] for event in forwards):
        return None
    # Whoever prepares DDP's reducer by hand may do without a forward that does.
    if backward["syncs"] and _averaged_in(window, backward):
        return None
    return forwards[-1], backward


def _averaged_in(window: Window, backward: Event) -> tuple[Event, ...]:
    end = next((event for event in window.of("backward_end") if event.seq > backward.seq), None)
    return tuple(event for event in window.between(backward, end) if brings_together(event))


def _torn_apart(window: Window, forward: Event, backward: Event, missing: Sharing | None) -> Broken:
    averaged = _averaged_in(window, backward)
    if forward["syncs"]:
        however = f"{placed(forward)} came outside of `no_sync()` and its backward ({backward.place}) inside"
        effect = f"Gradients were averaged all the same: {placed(averaged[0])}." if averaged else None
    else:
        however = f"{placed(forward)} came inside of `no_sync()` and its backward ({backward.place}) outside"
        effect = "That backward averaged nothing."
        if missing is not None and (parting := _parting(missing)) is not None:
            effect += f" {parting}"
    return Broken(
        backward,
        must="`no_sync()` must enclose forward and backward alike",
        because="the forward decides whether the backward will average",
        however=however,
        shows=(forward, backward, *averaged[:1]),
        effect=effect,
    )


def _came_past_the_wrapper(run: Run, sharing: Sharing) -> bool:
    """Whether a missing average comes of a forward that did not go through the wrapper that there was."""
    window = sharing.window
    wraps = run.ranks[window.rank].of("wrap")
    forwards = _forwards(run, window, sharing.backward)
    return bool(
        sharing.is_missing
        and wraps
        and forwards
        and wraps[0].seq < forwards[0].seq
        and all(event["wrapper"] is None for event in forwards)
    )


def _never_shared(sharing: Sharing) -> Broken:
    window, backward = sharing.window, sharing.backward
    early = [event for event in window.between(None, backward) if brings_together(event) and event["of"] == "gradients"]
    entered = [event for event in window.between(None, backward) if event.kind in ("no_sync_enter", "no_sync_exit")]
    attempt = window.attempts[-1] if window.attempts else None
    if backward["syncs"] is False and entered and entered[-1].kind == "no_sync_enter":
        however = f"backward ({backward.place}) ran inside of `no_sync()`, entered at {entered[-1].place}"
        shows = [entered[-1], backward]
    elif backward["syncs"] is False:
        however = f"backward ({backward.place}) ran while DDP's `require_backward_grad_sync` was off"
        shows = [backward]
    else:
        however = "nothing that the ranks sent each other brought gradients or weights together between backward "
        however += f"({backward.place}) and "
        however += "the end of the window" if attempt is None else f"the end of the window with {placed(attempt)}"
        shows = [backward]
    if early:
        however += f"; the last before was {placed(early[-1])}"
    return Broken(
        backward,
        must="the ranks must average their gradients after the last backward of a window, or in it",
        because=f"what backward adds to the gradients of rank {window.rank} no other rank sees",
        however=however,
        shows=(*early[-1:], *shows, *([attempt] if attempt else [])),
        effect=_parting(sharing),
    )


def _parting(sharing: Sharing) -> str | None:
    """What the ranks do in a window without an average."""
    steps = [window.attempts[-1] for window in sharing.counterparts if window.attempts]
    if len(steps) < 2 or any(step["gradients"] is None for step in steps):
        return None
    told = [f"rank {step.rank} along {vector(step['gradients'])}" for step in steps if step.kind == "step"]
    return f"In window {sharing.window.number} the ranks part: {in_turn(told)}." if len(told) > 1 else None
