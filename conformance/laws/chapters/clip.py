"""Gradient clipping: when it comes, how often, and what it covers.

Clipping before `unscale_` is for amp/unscale-before-clip, clipping before Horovod's `synchronize()` for
hvd/synchronize-before-clip.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.laws.event import Event, of_kind
from conformance.laws.expected import finite, parameter_of_elements
from conformance.laws.labels import label, number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import Plan, RankTrace, Run, Window

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "PyTorch documentation, torch.nn.utils.clip_grad_norm_"

_MEND = """
    for batch in window:
        (criterion(model(batch.inputs), batch.targets) / len(window)).backward()  # the last one averages over ranks
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    """


def _clips(window: Window, until: Event | None = None) -> tuple[Event, ...]:
    """What clips; a threshold of infinity is a way to read the norm."""
    return tuple(event for event in of_kind(window.between(None, until), "clip") if finite([event["threshold"]]))


@law(
    "clip/after-sync",
    "Gradients MUST be clipped after the ranks have averaged them.",
    why="""The norm of a mean is not the mean of norms: clip((1/m) Σ gᵣ) is not (1/m) Σ clip(gᵣ) as soon as one rank's
        gradient exceeds the threshold t. Each rank then has its own coefficient min(1, t / ‖gᵣ‖).""",
    source=f'{SEED}: "always synchronize before gradient clipping; otherwise each worker clips differently"',
    mend=_MEND,
)
def after_sync(run: Run) -> Iterator[Check]:
    # With Horovod, hvd/synchronize-before-clip.
    if run.plan.world_size == 1 or run.plan.backend == "horovod":
        return
    for windows in run.together():
        clips = [_clips(window) for window in windows]
        for window, own in zip(windows, clips, strict=True):
            averages = [event for event in window.of("collective", "send") if _averages_gradients(run.plan, event)]
            # Several clips of one parameter are for clip/once-per-window.
            if not own or not averages or _repeated(own) is not None:
                continue
            early = next(
                (clip for clip in own if clip.seq < averages[-1].seq and _differs(own.index(clip), clips)), None
            )
            if early is None:
                yield kept(window)
            else:
                late = next(event for event in averages if event.seq > early.seq)
                yield broken(window, _clipped_apart(early, late, own.index(early), clips))


def _averages_gradients(plan: Plan, event: Event) -> bool:
    """Whether ranks average gradients here, or send them to be averaged: theirs, or a copy of all of them."""
    by_reducing = (event.kind == "send" or "reduce" in event["op"]) and event["phase"] == "training"
    return by_reducing and (event["of"] == "gradients" or (event["of"] is None and event["elements"] == plan.elements))


def _differs(index: int, clips: list[tuple[Event, ...]]) -> bool:
    """Whether the ranks' clips with this index saw different gradients, or different norms where those are unknown."""
    same = [own[index] for own in clips if len(own) > index]
    for name in ("gradients", "norm"):
        values = [event[name] for event in same]
        if None not in values:
            return any(value != values[0] for value in values)
    return False


def _clipped_apart(clip: Event, average: Event, index: int, clips: list[tuple[Event, ...]]) -> Broken:
    others = [own[index] for own in clips if len(own) > index and own[index].rank != clip.rank]
    if clip["norm"] is None:
        saw = "other gradients than the other ranks did"
    else:
        saw = f"the norm {number(clip['norm'])} on rank {clip.rank} and " + ", ".join(
            f"{number(other['norm'])} on rank {other.rank}" for other in others
        )
    return Broken(
        clip,
        must=f"the ranks must average their gradients before `{_name(clip)}`",
        because=f"the threshold {number(clip['threshold'])} is for the mean, and each rank has only its own gradients",
        however=f"{placed(clip)} came before {placed(average)}; it saw {saw}",
        shows=(*(clip, average), *others[:1]),
        effect="Each rank clips by a coefficient of its own, and the mean of what is left is not the clipped mean.",
    )


@law(
    "clip/before-step",
    "Gradients MUST be clipped before the step that uses them.",
    why="""A step takes gradients as they are. What is clipped after it has been applied in full, η g and not
        η g min(1, t / ‖g‖).""",
    source=f'{DOCS}; torch.amp examples, "Gradient clipping": clip, then step',
    mend=_MEND,
)
def before_step(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        for window in rank.windows:
            late = next((clip for clip in _clips(window) if _used_before(rank, window, clip)), None)
            if late is not None:
                yield broken(window, _clipped_late(rank, window, late))
            elif _clips(window) and window.attempts:
                yield kept(window)


def _used_before(rank: RankTrace, window: Window, clip: Event) -> bool:
    """Whether the last step of what ``clip`` clips came before it, with no backward in between."""
    if not window.ended or not clip["parameters"]:
        return False
    earlier = _steps_of(rank, window.between(None, clip), clip)
    if not earlier or _steps_of(rank, window.between(clip, None), clip):
        return False
    return not of_kind(window.between(earlier[-1], clip), "backward_begin")


def _steps_of(rank: RankTrace, events: tuple[Event, ...], clip: Event) -> list[Event]:
    """The steps of optimizers that hold some of what is clipped."""
    attempts = of_kind(events, "step", "skip")
    return [event for event in attempts if not _trained(rank, event).isdisjoint(clip["parameters"])]


def _clipped_late(rank: RankTrace, window: Window, clip: Event) -> Broken:
    step = _steps_of(rank, window.between(None, clip), clip)[-1]
    return Broken(
        clip,
        must=f"`{_name(clip)}` must come before the step",
        because="the step takes the gradients as it finds them",
        however=f"{placed(clip)} came after {placed(step)}",
        shows=(step, clip),
        effect=f"Window {window.number} steps along gradients that are not clipped.",
    )


@law(
    "clip/once-per-window",
    "Gradients MUST be clipped once in a window, when all of them are there.",
    why="""Clipping what has accumulated so far, clip(clip(g₁) + g₂), is not clip(g₁ + g₂): the earlier micro-batches
        are cut again and again, and the last one counts most.""",
    source='PyTorch documentation, Automatic Mixed Precision examples, "Gradient accumulation": unscale and clip where '
    "the gradients of the effective batch are complete",
    mend=_MEND,
)
def once_per_window(run: Run) -> Iterator[Check]:
    for window in run.windows:
        # What is clipped after a step is for acc/step-after-all-backwards or clip/before-step.
        clips = _clips(window, window.attempts[0] if window.attempts else None)
        repeated = _repeated(clips)
        if repeated is not None:
            yield broken(window, _clipped_again(window, *repeated))
        elif clips and window.attempts:
            yield kept(window)


def _repeated(clips: tuple[Event, ...]) -> tuple[Event, Event] | None:
    """The first two clips of one kind that have a parameter in common."""
    for index, second in enumerate(clips):
        for first in clips[:index]:
            if first["kind"] == second["kind"] and not set(first["parameters"]).isdisjoint(second["parameters"]):
                return first, second
    return None


def _clipped_again(window: Window, first: Event, second: Event) -> Broken:
    between = of_kind(window.between(first, second), "backward_begin")
    if between:
        effect = f"What came before {label(between[-1])} {between[-1]['backward']} is clipped twice, and counts less."
    else:
        effect = "The second time changes nothing that the first one has clipped to the same threshold."
    return Broken(
        second,
        must="gradients must be clipped once in a window",
        because=f"the threshold {number(second['threshold'])} is for the gradients of the whole window",
        however=f"{placed(first)} and {placed(second)} both clipped them",
        shows=(first, *between[:1], second),
        effect=effect,
    )


@law(
    "clip/all-parameters",
    "Clipping MUST cover all parameters of the optimizer that have gradients.",
    why="""Clipping by norm scales all of g by min(1, t / ‖g‖), which keeps its direction; if a part is left out, g
        turns. What is not clipped at all is not protected from the one batch for which clipping is there.""",
    source=f'{DOCS}: "The norm is computed over the norms of the individual gradients of all parameters"',
    mend="""
        parameters = list(model.parameters())  # a generator can be used once
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        ...
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        """,
)
def all_parameters(run: Run) -> Iterator[Check]:
    for rank in run.ranks:
        for window in rank.windows:
            last = window.attempts[-1] if window.attempts else None
            clips = _clips(window, last)
            if last is None or not clips:
                continue
            # By hand: some trainers clip some parameters so.
            changes = of_kind(
                window.between(window.backwards[-1] if window.backwards else None, last), "gradient_change"
            )
            covered = {parameter for event in (*clips, *changes) for parameter in event["parameters"]}
            missing = {
                parameter for step in window.attempts for parameter in _with_gradients(run.plan, rank, step)
            } - covered
            if missing:
                yield broken(window, _left_out(window, clips, last, sorted(missing)))
            else:
                yield kept(window)


def _with_gradients(plan: Plan, rank: RankTrace, step: Event) -> set[int]:
    """The parameters of an optimizer for which a step of it found gradients; none if they are unknown."""
    owners, gradients = parameter_of_elements(plan), step["gradients"]
    if gradients is None or len(gradients) != len(owners):
        return set()
    found = {owner for owner, one in zip(owners, gradients, strict=True) if one is not None}
    return found & _trained(rank, step)


def _trained(rank: RankTrace, step: Event) -> set[int]:
    """The numbers of the trainable parameters that the optimizer of a step holds."""
    optimizers = rank.of("optimizer")
    return {p for event in optimizers if event["optimizer"] == step["optimizer"] for p in event["trainable"]}


def _left_out(window: Window, clips: tuple[Event, ...], step: Event, missing: list[int]) -> Broken:
    which = "parameter" + "s" * (len(missing) > 1) + " " + ", ".join(map(str, missing))
    empty = [clip for clip in clips if not clip["parameters"]]
    if empty:
        however = f"{placed(empty[0])} was given no parameters at all, as a generator has none the second time"
    else:
        however = f"{', '.join(map(placed, clips))} left out {which} (in the order of model.parameters())"
    return Broken(
        (empty or clips)[0],
        must="clipping must cover all parameters of the optimizer",
        because=f"{placed(step)} uses the gradients of {which} too",
        however=however,
        shows=(*clips, step),
        effect=f"The gradients of {which} are not clipped in window {window.number}.",
    )


def _name(clip: Event) -> str:
    return "clip_grad_norm_" if clip["kind"] == "norm" else "clip_grad_value_"
