"""Laws of gradient clipping: when, how often, and which parameters.

amp/unscale-before-clip reports clipping before `unscale_`, and hvd/synchronize-before-clip clipping before Horovod's
`synchronize()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, isclose, nan

from conformance.laws.law import GUIDE, OK, Broken, Outcome, law
from conformance.laws.plan import Plan
from conformance.laws.sharing import trainable
from conformance.laws.subjects import GlobalWindow, Window
from conformance.trace import events as trace
from conformance.trace.short_texts import enumerated, number

DOCS = "PyTorch documentation, torch.nn.utils.clip_grad_norm_"

_FIX = """
    for batch in window:
        (criterion(model(batch.inputs), batch.targets) / len(window)).backward()  # the last one averages over ranks
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    """


def _clips(window: Window, until: trace.Event | None = None) -> Sequence[trace.Clip]:
    """The events that clip; a clip at infinity only reads the norm."""
    return [event for event in window.between(trace.Clip, before=until) if not isinstance(event.threshold, str)]


def _reaches(clip: trace.Clip) -> bool | None:
    """Whether a clip's threshold is exceeded; None if the trace does not show it."""
    if isinstance(clip.threshold, str):
        return False
    if clip.norm is not None:
        return isinstance(clip.norm, str) or clip.norm > clip.threshold
    if clip.gradients is None:
        return None
    seen = [one for one in clip.gradients if one is not None]
    return any(isinstance(one, str) or abs(one) > clip.threshold for one in seen)


@law(
    "clip/after-sync",
    "Gradients MUST be clipped after the ranks have averaged them.",
    fault="clips before the ranks average their gradients",
    why="""The norm of a mean is not the mean of norms: clip((1/m) Σ gᵣ) differs from (1/m) Σ clip(gᵣ) once one rank's
        gradient exceeds the threshold t. Then each rank has its own coefficient min(1, t / ‖gᵣ‖).""",
    source=f'{GUIDE}: "always synchronize before gradient clipping; otherwise each worker clips differently"',
    advice="clip after the gradients are averaged over the ranks",
    edit="it above step",
    fix=_FIX,
    unless=("clip/once-per-window",),
    needs=(trace.Clip,),
)
def after_sync(window: Window) -> Outcome:
    own = _clips(window)
    if not own or window.plan.world_size == 1:
        return None
    together = window.run.together.get(window.number)
    averages = [event for event in window.of(trace.Contribution) if _averages_gradients(window.plan, event)]
    if together is None or not averages:
        return None
    each = [_clips(one) for one in together.windows]
    for index, clip in enumerate(own):
        same = [clips[index] for clips in each if len(clips) > index]
        if clip.seq > averages[-1].seq or not _differ(same):
            continue
        average, others = (
            next(event for event in averages if event.seq > clip.seq),
            [one for one in same if one.rank != clip.rank],
        )
        saw = "other gradients than the other ranks"
        if clip.norm is not None:
            norms = [f"{number(one.norm)} on rank {one.rank}" for one in (clip, *others) if one.norm is not None]
            saw = f"the norm {norms[0]} and {', '.join(norms[1:])}"
        return Broken(
            clip,
            expected=f"gradients averaged over the ranks before `{clip.function}`",
            observed=f"{clip} came before {average} and saw {saw}",
            why=f"the threshold {number(clip.threshold)} is for the mean, but each rank has only its own gradients",
            shows=(clip, average, *others[:1]),
            effect="Each rank clips by its own coefficient; the mean of clipped gradients is not the clipped mean.",
        )
    return OK


def _averages_gradients(plan: Plan, event: trace.Contribution) -> bool:
    """Whether ranks average gradients here, or send them to be averaged: the gradients or a copy of all of them."""
    # Horovod averages at `synchronize()`; hvd/synchronize-before-clip judges its clips.
    if (
        event.via == "horovod"
        or event.phase != "training"
        or (isinstance(event, trace.Collective) and "reduce" not in event.op)
    ):
        return False
    return event.of == "gradients" or (event.of is None and event.elements == plan.model.numel)


def _differ(same: Sequence[trace.Clip]) -> bool:
    """Whether these clips, one per rank, saw different gradients or, if these are unknown, different norms."""
    first = same[0]
    if all(clip.gradients is not None for clip in same):
        return any(clip.gradients != first.gradients for clip in same)
    return all(clip.norm is not None for clip in same) and any(clip.norm != first.norm for clip in same)


@law(
    "clip/before-step",
    "Gradients MUST be clipped before the step that uses them.",
    fault="clips after the step",
    why="""A step uses the gradients as they are. A clip after it comes too late: the step was η g instead of
        η g min(1, t / ‖g‖).""",
    source=f'{DOCS}; torch.amp examples, "Gradient clipping": clip, then step',
    advice="clip between the last backward of the window and `optimizer.step()`",
    edit="it above step",
    fix=_FIX,
    needs=(trace.Clip,),
)
def before_step(window: Window) -> Outcome:
    clips, held = _clips(window), trainable(window.rank)
    for clip in clips if window.ended else ():
        # Steps of optimizers with some of the clipped parameters.
        steps = [one for one in window.attempts if not held.get(one.optimizer, set()).isdisjoint(clip.parameters)][-1:]
        # A clip after another backward is of other gradients.
        if not steps or steps[0].seq > clip.seq or window.between(trace.BackwardBegin, after=steps[0], before=clip):
            continue
        return Broken(
            clip,
            expected=f"`{clip.function}` before the step",
            observed=f"{clip} came after {steps[0]}",
            why="the step uses the gradients as they are",
            shows=(*steps, clip),
            effect=f"Window {window.number} steps with unclipped gradients.",
        )
    return OK if clips and window.attempts else None


@law(
    "clip/once-per-window",
    "Gradients MUST be clipped once in a window, when all of them are complete.",
    fault="clips the same gradients more than once in a step",
    why="""Clipping the gradients accumulated so far gives clip(clip(g₁) + g₂) instead of clip(g₁ + g₂): the earlier
        micro-batches are clipped again and again, and the last counts most.""",
    source='PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation": unscale and clip where '
    "the gradients of the effective batch are complete",
    advice="clip once, after the last backward of the window",
    edit="it above step",
    fix=_FIX,
    needs=(trace.Clip,),
)
def once_per_window(window: Window) -> Outcome:
    # clip/before-step judges clips after a step.
    clips = _clips(window, window.attempts[0] if window.attempts else None)
    # Some clips only read the norm, or find gradients that are already small enough.
    acting = [clip for clip in clips if _reaches(clip) is not False]
    for index, second in enumerate(acting):
        for first in acting[:index]:
            if first.kind != second.kind or set(first.parameters).isdisjoint(second.parameters):
                continue
            between = window.between(trace.BackwardBegin, after=first, before=second)
            effect = "The second clip makes the gradients smaller than the first threshold."
            if between:
                effect = "Gradients of earlier micro-batches are clipped again, so they count less."
            return Broken(
                second,
                expected="one clip per window",
                observed=f"first {first}, then {second}, of the same gradients",
                why=f"the threshold {number(second.threshold)} is for the gradients of the whole window",
                shows=(first, *between[:1], second),
                effect=effect,
            )
    for clip in clips[-1:] if window.attempts else ():
        later = window.between(trace.BackwardBegin, after=clip, before=window.attempts[0])
        for backward in [one for one in later if one.gradients == "some"][-1:]:
            return Broken(
                clip,
                expected="a clip after the last backward of the window",
                observed=f"{backward.label} {backward.backward} came after {clip}",
                why="the gradients that it adds are not clipped",
                shows=(clip, backward),
                effect=f"Window {window.number} steps with gradients that are clipped in part.",
                fault="clips before the last backward of a step",
            )
    return OK if clips and window.attempts else None


@law(
    "clip/all-parameters",
    "Clipping MUST cover all parameters of the optimizer that have gradients.",
    fault="leaves parameters out of the clip",
    why="""Clipping by norm scales all of g by min(1, t / ‖g‖), which keeps its direction; leaving out a part changes
        the direction. Unclipped parameters are not protected from outliers.""",
    source=f'{DOCS}: "The norm is computed over the norms of the individual gradients of all parameters"',
    advice="pass all parameters to each clip call, as a list",
    fix="""
        parameters = list(model.parameters())  # a generator can be used once
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        ...
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        """,
    needs=(trace.Clip,),
)
def all_parameters(window: Window) -> Outcome:
    last = window.attempts[-1] if window.attempts else None
    clips = _clips(window, last)
    if last is None or not clips:
        return None
    # Some trainers clip part of the parameters by hand.
    changes = window.between(
        trace.GradientChange, after=window.backwards[-1] if window.backwards else None, before=last
    )
    covered = {one for parts in (clips, changes) for event in parts for one in event.parameters}
    missing = {parameter for step in window.attempts for parameter in _with_gradients(window, step)} - covered
    if not missing:
        return OK
    which = enumerated([window.plan.model.tensors[number].name for number in sorted(missing)])
    empty = [clip for clip in clips if not clip.parameters]
    observed = f"{', '.join(map(str, clips))} left out {which}"
    if empty:
        observed = f"{empty[0]} got no parameters; a generator such as `model.parameters()` is empty the second time"
    return Broken(
        (empty or clips)[0],
        expected="a clip of all parameters of the optimizer",
        observed=observed,
        why=f"{last} also uses the gradient of {which}",
        shows=(*clips, last),
        effect=f"The gradient of {which} is not clipped in window {window.number}.",
    )


def _with_gradients(window: Window, step: trace.Attempt) -> set[int]:
    """The parameters whose optimizer found gradients at this step; empty if unknown."""
    owners, gradients = window.plan.model.tensor_of, step.gradients
    if gradients is None or len(gradients) != len(owners):
        return set()
    found = {owner for owner, one in zip(owners, gradients, strict=True) if one is not None}
    return found & trainable(window.rank).get(step.optimizer, set())


#: A factor is the quotient of two numbers of at least 16 bits, each rounded.
_ROUNDING = 2**-7


@law(
    "clip/norm-of-all-shards",
    "Ranks with shards of the gradients MUST clip them by the norm of all shards.",
    fault="clips by the norm of one shard instead of all",
    is_seen_later=True,
    why="""The norm is √(Σ ‖g_r‖²) over the shards g_r. If each rank compares the norm of its own shard with the
        threshold t, it multiplies its shard by its own min(1, t / ‖g_r‖), and the update no longer has the direction of
        the gradient.""",
    source="PyTorch documentation, Getting Started with Fully Sharded Data Parallel (FSDP2): clip_grad_norm_ computes "
    "the norm of DTensors over all ranks",
    advice="pass the parameters to `clip_grad_norm_`, not their `to_local()`",
    edit="change clip|gradient",
    fix="""
        # Pass the parameters themselves, not their `to_local()`.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """,
)
def norm_of_all_shards(here: GlobalWindow) -> Outcome:
    clip = here.plan.clip
    if clip is None or clip["kind"] != "norm" or any(window.rank.shard is None for window in here.windows):
        return None
    threshold = clip["threshold"]
    factors = {window: known for window in here.windows if (known := _factor(window)) is not None}
    changed = next((one for one in factors.items() if isinstance(one[1][1], trace.GradientChange)), None)
    if changed is None:
        return OK if any(window.of(trace.Clip) for window in here.windows) else None
    window, (least, event) = min(factors.items(), key=lambda one: one[1][0])
    other, (most, _) = max(factors.items(), key=lambda one: one[1][0])
    expected = "one clipping factor for the shards of all ranks"
    apart = f"{number(least)}, rank {other.rank.number} its shard by {number(most)}"
    effect = "does not have the direction of the gradient"
    if isclose(least, most, rel_tol=_ROUNDING):
        window, (factor, event) = changed
        parts = [_part(one) for one in here.windows if one.attempts]
        # Several ranks may have the same part.
        whole = hypot(*{at: value for part in parts for at, value in part.items()}.values())
        largest = max(hypot(*part.values()) for part in parts)
        # Wrong if only the largest part has the norm of the threshold.
        if not (isclose(largest, threshold, rel_tol=_ROUNDING) and whole > threshold * (1 + _ROUNDING)):
            return OK
        expected = "a clip by the norm of all shards"
        apart = f"{number(factor)}: the norm is {number(largest)} for the largest shard, {number(whole)} for all"
        effect = f"uses gradients of {number(whole / threshold)}x the allowed norm"
    # Different factors may have another reason than a clip.
    elif not all(_is_clipped_alone(one, factor, threshold) for one, (factor, _) in factors.items()):
        return None
    return Broken(
        event,
        expected=expected,
        observed=f"before the step of window {here.number}, rank {window.rank.number} multiplied its shard by {apart}",
        why=f"the threshold {number(threshold)} is for all shards together",
        shows=(event, *window.attempts[-1:]),
        effect=f"The step of window {here.number} {effect}.",
    )


def _factor(window: Window) -> tuple[float, trace.Event] | None:
    """The factor of a rank's part of the gradients, and the event that shows it; None if unknown."""
    if not window.attempts or not window.backwards:
        return None
    step = window.attempts[-1]
    changes = window.between(trace.GradientChange, after=window.backwards[-1], before=step)
    if changes:
        factor = changes[-1].factor
        return (factor, changes[-1]) if len(changes) == 1 and isinstance(factor, float) else None
    # An exchanged norm that equals an entry of the gradients looks like an exchange of gradients.
    backward = [*window.backwards, *window.of(trace.BackwardEnd)][-1]
    if any(event.of == "gradients" for event in window.between(trace.Collective, after=backward, before=step)):
        return None
    # Zeros do not show the factor.
    return (1.0, step) if any(window.rank.own(step.gradients) or ()) else None


def _is_clipped_alone(window: Window, factor: float, threshold: float) -> bool:
    """Whether the rank's own part has the norm that a clip of only this part leaves."""
    norm = hypot(*_part(window).values())
    if factor == 1:
        return norm <= threshold * (1 + _ROUNDING)
    return factor < 1 and isclose(norm, threshold, rel_tol=_ROUNDING)


def _part(window: Window) -> dict[int, float]:
    """The gradients of a rank's own elements at its step, by position; NaN for those that are not finite."""
    own = zip(window.rank.shard or (), window.rank.own(window.attempts[-1].gradients) or (), strict=False)
    return {at: nan if isinstance(one, str) else one for at, one in own if one is not None}
