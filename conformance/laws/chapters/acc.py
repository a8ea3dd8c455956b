"""Laws of gradient accumulation: the forwards, backwards, averages, scales and steps of a window."""

from __future__ import annotations

from itertools import pairwise

from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.scaled_gradients import scale_of
from conformance.laws.subjects import Window, with_gradients
from conformance.laws.wrong_factor import averages
from conformance.trace import events as trace
from conformance.trace.short_texts import number


@law(
    "acc/one-backward-per-loss",
    "Each micro-batch MUST go forward once, and each of its losses backward once, before the optimizer steps.",
    fault="does not send each loss backward exactly once",
    why="""Gradients are sums over backward passes: a loss that goes backward twice adds 2 ∇L, and a loss that never
        goes backward adds nothing. A loss also counts twice if its graph is retained and the next backward is of a sum
        that contains it. Either way, the update is not the mean over the window.""",
    source=f'{GUIDE}: "do a forward and backward pass on each batch"',
    advice="call `loss.backward()` once for each micro-batch",
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
        # The first backward was for something else, such as the norm of one micro-batch's gradient.
        if window.between(trace.ZeroGrad, after=first, before=event):
            seen[root] = event
        else:
            return Broken(
                event,
                expected="one backward per loss",
                observed=f"{event} uses a loss that {first} already used",
                why="each backward adds to the existing gradients",
                shows=(first, event),
                effect=f"This loss counts twice in the gradients of window {window.number}.",
                fault="sends the same loss backward twice",
                edit="remove it" if root == event.root and first.line != event.line else "",
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
            expected="a backward of each micro-batch's loss",
            observed=f"no backward reached {event} of micro-batch {event.micro_batch}",
            why=f"the update of window {window.number} is the mean over its {window.planned} micro-batches",
            shows=(event, *window.backwards[-1:], *window.attempts[-1:]),
            effect=f"Its {len(rows)} samples are missing from the gradients of window {window.number}.",
            fault="never sends a micro-batch's loss backward",
        )
    return None


@law(
    "acc/averaged-once",
    "Gradients MUST be averaged exactly once over the actual micro-batches of the window, and once over the ranks.",
    fault="averages the gradients of a step by a wrong number",
    is_seen_later=True,
    why="""The correct gradient is (1 / (n m)) Σ ∇L over the n micro-batches of a window on m ranks. Not averaging,
        averaging twice, or dividing by another length multiplies it by n, 1/n, m ... This changes the effective
        learning rate, the norm that clipping compares with its threshold, and the balance with weight decay.""",
    source=f'{GUIDE}: "average the summed gradients by dividing them by N (or equivalently, divide the loss by N '
    'before each backward pass)"; DistributedDataParallel averages over ranks by itself, and so does Horovod',
    advice="divide each loss by the number of micro-batches in its window, and average over the ranks once",
    edit="change division; find the divisor at or above backward",
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
    times = f"{number(average.mistakes[0].times)}x"
    reasons = ", or of ".join(" and ".join(mistake.says) for mistake in average.mistakes)
    # These may have averaged the gradients.
    collectives = [one for one in window.between(trace.Contribution, before=event) if one.of == "gradients"][-1:]
    changes = window.between(trace.GradientChange, before=event)[-1:]
    computed = [*window.backwards[-1:], *(one for one in collectives if one.during != "backward")][-1:]
    # Only the next event notices a change by hand, so its line is unknown.
    is_changed = not computed or any(change.seq > computed[0].seq for change in changes)
    return Broken(
        event if is_changed else computed[0],
        expected=f"a gradient of {mean} in {window.plan.model.elements[shown]}, the mean over {over}",
        observed=f"{seen} at {event}",
        why=f"every gradient is {times} the mean, the result of {reasons}",
        shows=(*window.backwards[-1:], *collectives, *changes, event),
        effect=f"The clip gets {times} the correct gradients."
        if isinstance(event, trace.Clip)
        else f"The step of window {window.number} uses {times} the correct gradients.",
    )


@law(
    "acc/step-after-all-backwards",
    "Each optimizer MUST step once in a window, after all backwards of the window.",
    fault="does not step exactly once, after the last backward of a window",
    why="""A step uses the gradients computed so far: before the last backward, (1/n) Σ ∇L over fewer than n
        micro-batches. A second step applies the same gradients again.""",
    source=f'{GUIDE}: "only synchronize/step optimizer every N batches"',
    advice="call `optimizer.step()` once, after the last backward of the window",
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
            expected=f"one step for the {_micro_batches(window)} of window {window.number}",
            observed=f"{event} followed {earlier}",
            why="each step changes the weights, but the window has one mean gradient",
            shows=(earlier, *between[:1], event),
            effect="Each of these steps uses the gradients of a part of the window."
            if between
            else f"Window {window.number} steps with gradients that overflowed."
            if isinstance(earlier, trace.Skip)
            else "At least one of them uses wrong gradients."
            if None not in (earlier.gradients, event.gradients) and earlier.gradients != event.gradients
            else f"The gradients of window {window.number} are applied twice.",
            fault="steps again in the same window",
        )
    return None


def _backward_after(window: Window) -> Broken | None:
    if not window.attempts:
        return None
    last = window.attempts[-1]
    own = {event.forward for event in window.forwards}
    ends = [end for end in window.of(trace.BackwardEnd) if own.intersection(end.forwards)]
    late = [end for end in ends if end.seq > last.seq]
    # Backwards beyond the planned number are of another loss.
    if not late or len(ends) - len(late) >= window.planned:
        return None
    begin = next(event for event in window.backwards if event.backward == late[0].backward)
    # A hook may step a parameter within the backward, as soon as it has its gradient.
    if begin.seq < last.seq:
        return None
    return Broken(
        last,
        expected=f"the step after all backwards of window {window.number}",
        observed=f"{last} came before {begin}",
        why="a step uses only the gradients computed so far",
        shows=(last, begin),
        effect=f"The step of window {window.number} lacks the gradients of this backward.",
        fault="steps before the last backward of a window",
    )


def _no_step(window: Window) -> Broken | None:
    plan = window.plan
    # A parameter server steps for its workers, and trainers may drop a short last window.
    if window.step_is_unseen or window.attempts or not window.backwards or window.planned != plan.accumulation:
        return None
    # A trainer with its own loss scaling may skip steps that overflow, and the trace does not show why.
    if plan.spec["scaler"] is not None and any(other.attempts for other in window.rank.windows):
        return None
    others = window.rank.of(trace.ForeignOptimizer)
    instead = f"; the optimizer that stepped ({others[0].line}) has none of the model's parameters" if others else ""
    last = window.backwards[-1]
    return Broken(
        last,
        expected=f"one step for the {_micro_batches(window)} of window {window.number}",
        observed=f"no step of the model's parameters followed {last}{instead}",
        why="without a step, the gradients of the window are lost",
        shows=(last, *others[:1]),
        effect=f"Window {window.number} changes no weight.",
        fault="takes no step in a window",
    )


def _micro_batches(window: Window) -> str:
    return f"{window.planned} micro-batch{'es' * (window.planned > 1)}"


@law(
    "acc/one-scale-per-window",
    "All losses of a window MUST be scaled by the same factor.",
    fault="scales the losses of one step by different factors",
    is_seen_later=True,
    why="""The gradients of a window are s₁ ∇L₁ + s₂ ∇L₂ + ..., and one unscaling divides them by one s. With different
        scales, the micro-batches have the weights s₁/s, s₂/s ... in the result.""",
    source=f'{GUIDE}: "always call scaler.scale(loss) with the same scale factor for each batch in a grouping of N '
    'batches"; PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation"',
    advice="call `scaler.update()` once, after the step of the window",
    edit="update below step",
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
            f"In window {window.number}, micro-batch {first.micro_batch} has {number(one / other)}x the weight of "
            f"micro-batch {second.micro_batch}."
        )
    return Broken(
        second,
        expected="one scale for all losses of a window",
        observed=f"micro-batch {first.micro_batch} scaled by {number(one or 0)} ({first.line}), "
        f"micro-batch {second.micro_batch} by {number(other or 0)} ({second.line}){after}",
        why="the gradients add up, and their sum is divided by one scale",
        shows=(first, *changes, second),
        effect=effect,
        origin=next(iter(changes), None),
    )


@law(
    "acc/one-forward-per-loss",
    "A micro-batch SHOULD go forward once for each of its losses, unless gradients are disabled.",
    fault="sends a micro-batch forward again, and never backward",
    why="""A forward in training mode without a backward wastes its time and its graph. It can also change results:
        BatchNorm's running statistics count the micro-batch twice, and dropout draws other random numbers from then
        on.""",
    source=f'{GUIDE}: "do a forward and backward pass on each batch"; '
    "PyTorch, torch.no_grad: for forwards that no `backward()` follows",
    advice="reuse `outputs.detach()` instead of a second forward",
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
    # Events before the first training forward of a window belong to the window before.
    nearby = (*window.forwards, *(window.following.forwards if window.following else ()))
    trained = {tuple(event.rows): event for event in nearby if event.forward in used} if idle else {}
    # acc/one-backward-per-loss reports micro-batches without any backward. Forwards before the first backward happen
    # once, such as to inspect the model. After a backward that raised, the trainer goes forward again.
    began = window.rank.of(trace.BackwardBegin)[0].seq
    for event in idle:
        other = trained.get(tuple(event.rows)) if event.rows and None not in event.rows else None
        if other is not None and event.seq > began and not _raised(window, event):
            return Broken(
                event,
                expected="one training forward per loss",
                observed=f"no backward reached {event} of micro-batch {event.micro_batch}, which {other} trained on",
                why="metrics can reuse the outputs, or run their forward under `torch.no_grad()`",
                shows=tuple(sorted((event, other), key=lambda event: event.seq)),
                effect=f"Window {window.number} takes longer; its gradients are correct.",
            )
    return OK


def _raised(window: Window, forward: trace.Forward) -> bool:
    """Whether the next backward never ended."""
    following = window.rank.first(trace.BackwardBegin, after=forward)
    return following is not None and all(
        end.backward != following.backward for end in window.rank.of(trace.BackwardEnd)
    )
