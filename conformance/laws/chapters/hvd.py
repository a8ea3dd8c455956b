"""Laws of Horovod: its optimizer averages in the background, and code that uses gradients must wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.horovod_calls import horovod_optimizers, stepped_inside, uses
from conformance.laws.law import GUIDE, OK, Broken, Outcome, Outcomes, law
from conformance.laws.subjects import E, Rank, Run, Window, fact
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated, number, vector

DOCS = "Horovod documentation, horovod.torch.DistributedOptimizer"


@law(
    "hvd/backward-passes-per-step",
    "`backward_passes_per_step` SHOULD be the number of backward passes in a window.",
    fault="gives Horovod a wrong number of backward passes per step",
    why="""Horovod starts to average a gradient in its backward_passes_per_step-th backward. If the number is too small,
        it averages before the window is complete and refuses the next backward. If it is too large, nothing is averaged
        until `synchronize()` or the step, and a window that is too long goes unnoticed.""",
    source=f'{GUIDE}: "set `hvd_optimizer.backward_passes_per_step` to N (aggregation frequency)"; {DOCS}',
    advice="set `backward_passes_per_step` to the number of backward passes in a window",
    fix="""
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            backward_passes_per_step=accumulation,  # times the losses of a micro-batch
        )
        """,
)
def backward_passes_per_step(window: Window) -> Outcome:
    optimizers = horovod_optimizers(window.rank)
    # Each of several optimizers may have its own backwards.
    if window.plan.world_size == 1 or len(optimizers) != 1 or optimizers[0].backward_passes_per_step is None:
        return None
    event: trace.Event
    noted, set_to, passes = optimizers[0], optimizers[0].backward_passes_per_step, _passes(window)
    if len(passes) > set_to:
        event, effect = passes[set_to], "Horovod refuses the next one"
    elif not window.ended or not passes:
        return None
    # A window at the end of an epoch may be shorter, but not all windows.
    elif _most_passes(window.rank) < set_to and window.planned == window.plan.accumulation:
        event = next(event for event in (*window.of(trace.Synchronize), *window.attempts, passes[-1]))
        effect = "no average starts before `synchronize()`"
    else:
        return OK
    return Broken(
        event,
        expected=f"`backward_passes_per_step={len(passes)}`",
        observed=f"{set_to} in Horovod's optimizer",
        why=f"window {window.number} has {len(passes)} backward pass{'es' * (len(passes) > 1)}, the last at "
        f"{passes[-1].line}",
        shows=(noted, *passes, *([] if event in passes else [event])),
        effect=f"The average starts in backward number {set_to}, so {effect}.",
    )


@law(
    "hvd/broadcast-before-first-step",
    "Parameters and the optimizer's state MUST be broadcast before the first step of Horovod's optimizer.",
    fault="trains without broadcasting weights or optimizer state",
    is_seen_later=True,
    why="""Horovod averages gradients, not weights. Ranks that start from different weights, w_0 ≠ w_1, keep this
        difference and average gradients of different models. Momentum on only one rank has the same effect.""",
    source=f"{GUIDE}: horovod's explicit use of broadcast_parameters; Horovod documentation, Horovod with PyTorch",
    advice="call `hvd.broadcast_parameters` and `hvd.broadcast_optimizer_state` before the first step",
    fix="""
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # after loading a checkpoint on rank 0
        """,
)
def broadcast_before_first_step(run: Run) -> Outcomes:
    if run.plan.world_size == 1 or not all(horovod_optimizers(rank) for rank in run.ranks):
        return
    starts = [event for rank in run.ranks for event in rank.of(trace.Start)[:1]]
    if len(starts) == len(run.ranks) and all(event.weights is not None for event in starts):
        first, other = starts[0], next((event for event in starts if event.weights != starts[0].weights), None)
        sent = [one for rank in run.ranks for one in rank.setup if isinstance(one, trace.Collective)]
        # ddp/equal-start reports a broadcast that was not enough.
        if other is None or any(one.via == "horovod" and one.of == "parameters" for one in sent):
            yield OK
        else:
            yield Broken(
                other,
                expected="a broadcast of the parameters before the first step",
                observed=f"no broadcast; rank {first.rank} started from {vector(first.weights or ())}, "
                f"rank {other.rank} from {vector(other.weights or ())}",
                why="Horovod averages only gradients, and equal steps keep different weights different",
                shows=(first, other),
                effect="The ranks train different models until the end.",
            )
    noted = [horovod_optimizers(rank)[0] for rank in run.ranks]
    having, lacking = ([event for event in noted if bool(event.state) is has] for has in (True, False))
    if having and not lacking:
        yield OK
    elif having and not any(_state_was_sent(rank, event) for rank, event in zip(run.ranks, noted, strict=True)):
        one, other_one = having[0], lacking[0]
        yield Broken(
            one,
            expected="a broadcast of the optimizer's state before the first step",
            observed=f"no broadcast; rank {one.rank} has state ({one.line}), rank {other_one.rank} has none",
            why="momentum on only one rank changes the direction of its steps",
            shows=(one, other_one),
            effect="The ranks take different steps from the start.",
        )


@fact
def _passes(window: Window) -> Sequence[trace.BackwardBegin]:
    """The backward passes of the model before the first synchronize or step."""
    ends = {event.backward: event for event in window.of(trace.BackwardEnd)}
    first = next((event for event in window.events if isinstance(event, trace.Synchronize | trace.Attempt)), None)
    return [
        event
        for event in window.between(trace.BackwardBegin, before=first)
        if event.backward not in ends or ends[event.backward].forwards
    ]


@fact
def _most_passes(rank: Rank) -> int:
    return max((len(_passes(window)) for window in rank.windows if window.ended), default=0)


def _state_was_sent(rank: Rank, noted: trace.Optimizer) -> bool:
    return any(
        isinstance(event, trace.Collective) and event.seq > noted.seq and event.op == "broadcast" and event.of is None
        for event in rank.setup
    )


@law(
    "hvd/synchronize-at-most-once",
    "`synchronize()` MUST be called at most once for each step of Horovod's optimizer.",
    fault="calls `synchronize()` several times before one step",
    why="""Each call all-reduces the gradients again. With op=Sum, N ranks then multiply by N twice: N² ḡ instead of
        N ḡ. With an average, the second call only costs communication.""",
    source=f'{GUIDE}: "call .synchronize() zero or one times per optimizer.step()"',
    advice="call `synchronize()` once a window, and remove the other call",
    edit="remove it",
    fix="""
        optimizer.synchronize()  # once, after the last backward of the window
        clip_grad_norm_(model.parameters(), max_norm)
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
    needs=(trace.Synchronize,),
)
def synchronize_at_most_once(window: Window) -> Outcomes:
    for use in uses(window):
        if use.synchronizes:
            yield use.synchronized_again(use.calls) or OK


@law(
    "hvd/step-in-skip-synchronize",
    "After an explicit `synchronize()`, the step of Horovod's optimizer MUST be inside `skip_synchronize()`.",
    fault="synchronizes again in the step, outside `skip_synchronize()`",
    why="""A plain step synchronizes by itself, so the gradients are all-reduced again. With op=Sum, N ranks then
        multiply by N twice: N² ḡ instead of N ḡ. With an average, the second all-reduce only costs time.""",
    source=f'{GUIDE}: "If you do call it, wrap the .step() in a `with optimizer.skip_synchronize()` call"; {DOCS}',
    advice="step inside `optimizer.skip_synchronize()`",
    fix="""
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
    unless=("apex/step-in-skip-synchronize",),
    needs=(trace.Synchronize,),
)
def step_in_skip_synchronize(window: Window) -> Outcomes:
    yield from stepped_inside(window)


@law(
    "hvd/synchronize-before-clip",
    "Gradients of Horovod's optimizer MUST be synchronized before they are clipped.",
    fault="clips before `synchronize()`",
    why="""Until `synchronize()` returns, each rank has only its own gradients, or Horovod is averaging them right now.
        Then each rank clips by its own norm, which gives the mean over r of c_r g_r instead of c ḡ, or writes into
        memory that Horovod is reading.""",
    source=f'{GUIDE}: "always synchronize before gradient clipping; otherwise each worker clips differently"',
    advice="call `optimizer.synchronize()` before you clip",
    edit="add `optimizer.synchronize()` above it",
    fix="""
        optimizer.synchronize()
        clip_grad_norm_(model.parameters(), max_norm)
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
    needs=(trace.Clip,),
)
def synchronize_before_clip(window: Window) -> Outcomes:
    for use in uses(window):
        clips = [event for event in use.after if isinstance(event, trace.Clip) and use.has(event.parameters)]
        if (early := use.early(clips)) is not None:
            norms = [
                f"rank {event.rank} saw the norm {number(event.norm)}"
                for event in _first_after_backward(window.counterparts, trace.Clip)
                if event.norm is not None
            ]
            yield use.came_early(
                early,
                expected="`synchronize()` before clipping",
                why=f"until then, rank {early.rank} has only its own gradients, or partly averaged ones",
                effect=f"{enumerated(norms).capitalize()}: each clips by its own factor." if len(norms) > 1 else None,
            )
        elif clips:
            yield OK


@law(
    "hvd/synchronize-before-unscale",
    "Gradients of Horovod's optimizer MUST be synchronized before `unscale_` and before `scaler.step`.",
    fault="unscales before `synchronize()`",
    why="""GradScaler looks for overflows in the current gradients, and each rank has only its own until `synchronize()`
        returns. If only one rank's g_r contains ∞, that rank skips the step and lowers its scale, and the others step
        with an average that contains ∞.""",
    source=f'{GUIDE}: "always synchronize before scaler.step(optimizer); otherwise each worker steps differently"',
    advice="call `optimizer.synchronize()` before `scaler.unscale_` and `scaler.step`",
    edit="add `optimizer.synchronize()` above it",
    fix="""
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        """,
    latent="All ranks step until a gradient overflows. Once one of rank r overflows, rank r skips and the others step.",
)
def synchronize_before_unscale(window: Window) -> Outcomes:
    for use in uses(window):
        reads = [event for event in use.after if use.is_of(event, (trace.Unscale, trace.ScalerStep))]
        if (early := use.early(reads)) is not None:
            what = "`unscale_`" if isinstance(early, trace.Unscale) else "`scaler.step`"
            yield use.came_early(
                early,
                expected=f"`synchronize()` before {what}",
                why=f"the scaler looks for overflows, but only rank {early.rank}'s own gradients are there yet",
                effect=_overflow_on_some(window.run),
            )
        elif reads:
            yield OK


@law(
    "hvd/not-cleared-before-synchronize",
    "Gradients MUST NOT be cleared between a backward and the `synchronize()` or step that waits for its average.",
    fault="clears gradients before Horovod has averaged them",
    why="""Horovod averages in the background, in the gradients' own memory. A gradient that is cleared too early enters
        the average as 0, or becomes 0 on one rank and ḡ on another, or no longer exists when Horovod writes the
        result.""",
    source="Horovod, horovod/torch/optimizer.py: zero_grad raises if it notices this",
    advice="call `optimizer.zero_grad()` once a window, after its step",
    edit="it below step",
    fix="""
        optimizer.zero_grad()  # before the first backward of the window
        for batch in window:
            criterion(model(batch.inputs), batch.targets).div(len(window)).backward()
        optimizer.step()
        """,
    latent="The clearing and the average race; in another run the other one may come first.",
)
def not_cleared_before_synchronize(window: Window) -> Outcomes:
    for use in uses(window):
        attempt = next((event for event in use.after if use.is_of(event, trace.Attempt)), None)
        # In a window that the trainer drops, nothing waits for the average.
        if use.synchronize is None and (window.ended or attempt is not None):
            continue
        clears = [event for event in use.after if isinstance(event, trace.ZeroGrad) and use.has(event.parameters)]
        if (early := use.early(clears)) is not None:
            yield use.came_early(
                early,
                expected="no clearing before Horovod has averaged the gradients",
                why="Horovod averages in the background, in the gradients' own memory",
                effect="The step uses zeros instead of the average, or there is no step.",
            )
        elif use.synchronize is not None:
            yield OK


def _first_after_backward(windows: Sequence[Window], kind: type[E]) -> Sequence[E]:
    """The first event of this kind after the last backward of each window."""
    return [
        event
        for window in windows
        if window.backwards
        for event in window.between(kind, after=window.backwards[-1])[:1]
    ]


@fact
def _overflow_on_some(run: Run) -> str | None:
    """A sentence about the first window in which only some ranks found an overflow; None if there is none."""
    for window, windows in sorted(run.numbered.items()):
        found = _first_after_backward(windows, trace.Unscale)
        hit = [f"rank {event.rank}" for event in found if event.found_inf]
        clean = [f"rank {event.rank}" for event in found if event.found_inf is False]
        if hit and clean:
            return (
                f"In window {window}, {enumerated(hit)} found an overflow and {enumerated(clean)} did not: their "
                "steps differ."
            )
    return None
