"""Gradient accumulation: the forwards, backwards, averages, scales and steps of a window."""

from __future__ import annotations

from itertools import pairwise

from conformance.laws.averaging import averages
from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.loss_scale import scale_of
from conformance.laws.run import Window, with_gradients
from conformance.trace import events as trace
from conformance.trace.words import number


@law(
    "acc/one-backward-per-loss",
    "Each micro-batch MUST go forward, and each of its losses backward, once before the optimizer steps.",
    why="""Gradients are sums over backward passes: a loss that is backpropagated twice adds 2 ∇L, and a micro-batch
        whose loss is not backpropagated adds nothing. A loss counts twice too if its graph is retained and a second
        backward is of a sum that contains it. Either way the step is not along the mean over the window.""",
    source=f'{GUIDE}: "do a forward and backward pass on each batch"',
    fix="""
        for batch in window:
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            loss.backward()
        """,
)
def one_backward_per_loss(window: Window) -> Outcome:
    broken = _backpropagated_twice(window) or (_never_backpropagated(window) if window.ended else None)
    return broken or (OK if window.ended and window.backwards else None)


def _backpropagated_twice(window: Window) -> Broken | None:
    seen: dict[int, trace.BackwardBegin] = {}
    for event in window.backwards:
        root = next((root for root in (event.root, *event.contains) if root in seen), None)
        if root is None:
            seen[event.root] = event
            continue
        first = seen[root]
        # Such as for the norm of a micro-batch's own gradient.
        if window.between(trace.ZeroGrad, after=first, before=event):
            seen[root] = event
        else:
            return Broken(
                event,
                must="a loss must be backpropagated once",
                because="every backward adds to the existing gradients",
                however=f"{event} went through the loss of {first} again",
                shows=(first, event),
                effect=f"That loss counts twice in the gradients of window {window.number}.",
            )
    return None


def _never_backpropagated(window: Window) -> Broken | None:
    # Without any backward, gradients have another source.
    if not window.backwards:
        return None
    through = with_gradients(window.rank)
    for event in window.forwards:
        rows = event.rows
        if event.forward in through or not rows or None in rows:
            continue
        return Broken(
            event,
            must="the loss of each micro-batch must be backpropagated",
            because=f"window {window.number} must step along the mean over its {window.planned} micro-batches",
            however=f"no backward reached {event} of micro-batch {event.micro_batch}",
            shows=(event, *window.backwards[-1:], *window.attempts[-1:]),
            effect=f"Its {len(rows)} samples are missing from the gradients of window {window.number}.",
        )
    return None


@law(
    "acc/averaged-once",
    "Gradients MUST be averaged exactly once: over the micro-batches that the window really has, and over the ranks.",
    why="""The step must go along (1 / (n m)) Σ ∇L over the n micro-batches of a window on m ranks. Not averaging,
        averaging twice, or dividing by another length multiplies the gradients by n, 1/n, m ..., which changes the
        effective learning rate, the norm that clipping compares with its threshold, and the balance with weight
        decay.""",
    source=f'{GUIDE}: "average the summed gradients by dividing them by N (or equivalently, divide the loss by N '
    'before each backward pass)"; DistributedDataParallel averages over ranks by itself, and so does Horovod',
    fix="""
        for batch in window:  # the last window of an epoch may be shorter
            loss = criterion(model(batch.inputs), batch.targets) / len(window)
            loss.backward()  # DDP and Horovod average over the ranks
        """,
)
def averaged_once(window: Window) -> Outcome:
    average = averages(window.run).get(window)
    if average is None or not average.mistakes:
        return None if average is None else OK
    event, length, ranks = average.event, window.planned, window.plan.world_size
    over = f"the {length} micro-batches of window {window.number}" if length > 1 else f"window {window.number}"
    over += f" and the {ranks} ranks" if ranks > 1 else ""
    known = {index: one for index, one in enumerate(average.seen) if one is not None}
    shown = max(known, key=lambda index: abs(average.right.value[index]))
    mean, seen = number(average.right.value[shown]), number(known[shown])
    times = f"{average.mistakes[0].factor} times"
    reasons = ", or by ".join(" and ".join(mistake.says) for mistake in average.mistakes)
    # What may have averaged them.
    collectives = [one for one in window.between(trace.Contribution, before=event) if one.of == "gradients"][-1:]
    changes = window.between(trace.GradientChange, before=event)[-1:]
    return Broken(
        event,
        must=f"gradients must be averaged exactly once, over {over}",
        because=f"a step must go along the mean over all their samples, which is {mean} in element {shown}",
        however=f"{event} saw {seen} there: {times} the mean in every element, as {reasons} would make it",
        shows=(*window.backwards[-1:], *collectives, *changes, event),
        effect=f"Clipping compares {times} the norm with its threshold."
        if isinstance(event, trace.Clip)
        else f"Window {window.number} steps as if its gradients were {times} as large.",
    )


@law(
    "acc/step-after-all-backwards",
    "Each optimizer MUST step once in a window, and only after all its backwards.",
    why="""A step uses the gradients computed so far: before the last backward, (1/n) Σ ∇L over fewer than n
        micro-batches. A second step applies the same gradients again.""",
    source=f'{GUIDE}: "only synchronize/step optimizer every N batches"',
    fix="""
        for window in windows:
            for batch in window:
                (criterion(model(batch.inputs), batch.targets) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
)
def step_after_all_backwards(window: Window) -> Outcome:
    broken = _second_step(window) or (_backward_after(window) or _no_step(window) if window.ended else None)
    return broken or (OK if window.attempts else None)


def _second_step(window: Window) -> Broken | None:
    if len(window.attempts) < 2:
        return None
    first: dict[int, trace.Attempt] = {}
    for event in window.attempts:
        # A step without any gradients changes nothing.
        if isinstance(event, trace.Step) and event.idle:
            continue
        if event.gradients is not None and all(one is None for one in event.gradients):
            continue
        earlier = first.setdefault(event.optimizer, event)
        if earlier is event:
            continue
        inside = window.between(trace.Event, after=earlier, before=event)
        between = [one for one in inside if isinstance(one, trace.BackwardBegin | trace.Receive)]
        return Broken(
            event,
            must="an optimizer must step once in a window",
            because=f"the mean over the {_micro_batches(window)} of window {window.number} makes one step",
            however=f"{event} followed {earlier} in it",
            shows=(earlier, *between[:1], event),
            effect="Each of these steps goes along the gradients of a part of the window."
            if between
            else f"Window {window.number} is stepped all the same, along gradients that overflow."
            if isinstance(earlier, trace.Skip)
            else "At least one of them does not go along the gradients of the window."
            if None not in (earlier.gradients, event.gradients) and earlier.gradients != event.gradients
            else f"The gradients of window {window.number} are applied twice.",
        )
    return None


def _backward_after(window: Window) -> Broken | None:
    if not window.attempts:
        return None
    last = window.attempts[-1]
    own = {event.forward for event in window.forwards}
    ends = [end for end in window.of(trace.BackwardEnd) if own.intersection(end.forwards)]
    late = [end for end in ends if end.seq > last.seq]
    # One more than the window has is another loss's.
    if not late or len(ends) - len(late) >= window.planned:
        return None
    begin = next(event for event in window.backwards if event.backward == late[0].backward)
    # A hook may step a parameter within the backward, as soon as its gradient is there.
    if begin.seq < last.seq:
        return None
    return Broken(
        last,
        must="a step must come after all backwards of its window",
        because="it can use only the gradients computed so far",
        however=f"{last} came before {begin} of the same window",
        shows=(last, begin),
        effect=f"The gradients of this backward are not in the step of window {window.number}.",
    )


def _no_step(window: Window) -> Broken | None:
    plan = window.plan
    # A parameter server steps for its workers, and a short last window may be dropped.
    if window.step_is_unseen or window.attempts or not window.backwards or window.planned != plan.accumulation:
        return None
    # A trainer with its own loss scaling may skip steps that overflow, and the trace does not show why.
    if plan.spec["scaler"] is not None and any(other.attempts for other in window.rank.windows):
        return None
    others = window.rank.of(trace.ForeignOptimizer)
    instead = f"; the optimizer that stepped, {others[0].line}, holds none of the model's parameters" if others else ""
    last = window.backwards[-1]
    return Broken(
        last,
        must="an optimizer must step once in each window",
        because=f"the mean over the {_micro_batches(window)} of window {window.number} makes one step",
        however=f"no step of the model's parameters followed {last}{instead}",
        shows=(last, *others[:1]),
        effect=f"Window {window.number} changes no weight.",
    )


def _micro_batches(window: Window) -> str:
    return f"{window.planned} micro-batch{'es' * (window.planned > 1)}"


@law(
    "acc/one-scale-per-window",
    "All losses of a window MUST be scaled by the same factor.",
    why="""The gradients of a window are s₁ ∇L₁ + s₂ ∇L₂ + ..., and one unscaling divides them by one s. With different
        scales the micro-batches have weights s₁/s, s₂/s ... in what is left.""",
    source=f'{GUIDE}: "always call scaler.scale(loss) with the same scale factor for each batch in a grouping of N '
    'batches"; PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation"',
    fix="""
        for batch in window:
            scaler.scale(criterion(model(batch.inputs), batch.targets) / len(window)).backward()
        scaler.step(optimizer)
        scaler.update()  # once a window, after the loop
        """,
)
def one_scale_per_window(window: Window) -> Outcome:
    # Losses that are scaled after a step do not belong to it.
    until = window.attempts[0] if window.attempts else None
    by_scaler = window.between(trace.LossScaled, before=until)
    scaled: list[list[trace.LossScaled | trace.BackwardEnd]] = [
        [event for event in by_scaler if event.scaler == scaler] for scaler in {event.scaler for event in by_scaler}
    ]
    # Without a scaler, the trainer may have scaled them by hand.
    ends = window.between(trace.BackwardEnd, before=until)
    pairs = [pair for one in scaled or [[end for end in ends if end.scaled is not None]] for pair in pairwise(one)]
    apart = next((pair for pair in pairs if scale_of(pair[0]) != scale_of(pair[1])), None)
    if apart is None:
        return OK if pairs else None
    return _scales_differ(window, *apart)


def _scales_differ(
    window: Window, first: trace.LossScaled | trace.BackwardEnd, second: trace.LossScaled | trace.BackwardEnd
) -> Broken:
    one, other = scale_of(first), scale_of(second)
    changes = window.between(trace.Update, after=first, before=second)[-1:]
    after = f", after {changes[0]}" if changes else ""
    effect = None
    if isinstance(one, int | float) and isinstance(other, int | float) and other:
        effect = (
            f"Micro-batch {first.micro_batch} has {number(one / other)} times the weight of micro-batch "
            f"{second.micro_batch} in window {window.number}."
        )
    return Broken(
        second,
        must="all losses of a window must be scaled by the same factor",
        because="their gradients add up, and the sum is divided by one factor",
        however=f"the loss of micro-batch {first.micro_batch} was scaled by {number(one or 0)} ({first.line}) and that "
        f"of micro-batch {second.micro_batch} by {number(other or 0)} ({second.line}){after}",
        shows=(first, *changes, second),
        effect=effect,
    )


@law(
    "acc/one-forward-per-loss",
    "A micro-batch SHOULD go forward once for each of its losses, unless gradients are disabled.",
    why="""A forward in training mode without a backward builds a graph that is thrown away, and costs the time of
        another forward. It can change results too: BatchNorm's running statistics count the micro-batch twice, and
        dropout draws other random numbers from there on.""",
    source=f'{GUIDE}: "do a forward and backward pass on each batch"; '
    "PyTorch, torch.no_grad: for forwards that no `backward()` follows",
    fix="""
        outputs = model(batch.inputs)
        loss = criterion(outputs, batch.targets) / len(window)
        loss.backward()
        accuracy = metric(outputs.detach(), batch.targets)  # reuses the outputs
        """,
)
def one_forward_per_loss(window: Window) -> Outcome:
    # Without any backward, gradients have another source.
    if not window.ended or not window.backwards:
        return None
    used = with_gradients(window.rank)
    idle = [event for event in window.of(trace.Forward) if event.extra and event.training and event.forward not in used]
    # What goes forward before the first training forward of a window is still in the window before.
    nearby = (*window.forwards, *(window.following.forwards if window.following else ()))
    trained = {tuple(event.rows): event for event in nearby if event.forward in used} if idle else {}
    # If no forward of a micro-batch has a backward, acc/one-backward-per-loss reports it. Forwards before the first
    # backward happen once, as to inspect the model. After a backward that raised, the trainer goes forward again.
    began = window.rank.of(trace.BackwardBegin)[0].seq
    for event in idle:
        other = trained.get(tuple(event.rows)) if event.rows and None not in event.rows else None
        if other is not None and event.seq > began and not _raised(window, event):
            return Broken(
                event,
                must="a micro-batch should go forward once for each of its losses",
                because="metrics can reuse the existing outputs, or run their own forward under `torch.no_grad()`",
                however=f"no backward reached {event} of micro-batch {event.micro_batch}, on which {other} trained",
                shows=tuple(sorted((event, other), key=lambda event: event.seq)),
                effect=f"Window {window.number} takes longer; its gradients are right.",
            )
    return OK


def _raised(window: Window, forward: trace.Forward) -> bool:
    """Whether the backward that came next never ended."""
    following = window.rank.first(trace.BackwardBegin, after=forward)
    return following is not None and all(
        end.backward != following.backward for end in window.rank.of(trace.BackwardEnd)
    )
