"""By what factor the gradients of a window miss the right ones, and which mistakes in averaging make that factor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import product

from conformance.laws.event import Event
from conformance.laws.expected import Expectations, Gradient, finite, held, parameter_of_elements
from conformance.laws.run import Plan, Run, Window


@dataclass(frozen=True)
class Mistake:
    """A way to average too often or too rarely.

    kinds: the single mistakes in it; none if all is right. says: each of them, to follow "comes of".
    factor: what gradients are multiplied by.
    """

    kinds: tuple[str, ...]
    says: tuple[str, ...]
    factor: Fraction

    @cached_property
    def times(self) -> float:
        return float(self.factor)


@dataclass(frozen=True)
class Averaged:
    """What came of averaging in one window.

    event: who saw the gradients, the first one after the backwards: a clip, or the step. seen: what it saw, None for
    elements that it did not. right: what it should have seen. mistakes: what explains the difference, one of these;
    none if there is no difference.
    """

    window: Window
    event: Event
    seen: tuple[float | None, ...]
    right: Gradient
    mistakes: tuple[Mistake, ...]


def averages(run: Run) -> tuple[Averaged, ...]:
    """Of each window in which right and wrong can be told apart.

    Averaging is systematic: a mistake that could show in a window that is right is none in the others. And where some
    window's gradients are not explained by averaging, a coincidence could explain those of the others. Then only the
    windows that are right are told.
    """
    found = tuple(_told_apart(run))
    right = tuple(average for average, fitting in found if _is_right(fitting))
    if len(right) == len(found):
        return right
    all_of_right = (mistake for one in right for mistake in mistakes(run.plan, one.window.number))
    ruled_out = {mistake.kinds for mistake in all_of_right if mistake.factor != 1}
    wrong = [
        (average, [mistake for mistake in fitting if mistake.kinds not in ruled_out])
        for average, fitting in found
        if not _is_right(fitting)
    ]
    if not all(fitting for _, fitting in wrong):
        return right
    common = set.intersection(*({mistake.kinds for mistake in fitting} for _, fitting in wrong))
    return (*right, *(replace(average, mistakes=_likeliest(fitting, common)) for average, fitting in wrong))


def saw_right_gradients(run: Run) -> frozenset[Window]:
    """The windows whose step, or clip, is known to have seen the right gradients, however they were made."""
    return frozenset(one.window for one in averages(run) if not one.mistakes)


def mistakes(plan: Plan, number: int) -> tuple[Mistake, ...]:
    """All combinations of mistakes in averaging window ``number``, that of none first."""
    sizes = tuple(map(len, plan.micro_batches(0, number)))
    return _combinations(sizes, plan.accumulation, plan.world_size, plan.spec["loss"])


@cache
def _combinations(sizes: tuple[int, ...], nominal: int, ranks: int, loss: str) -> tuple[Mistake, ...]:
    length = len(sizes)
    samples = [_ONCE]
    if loss == "mean" and len(set(sizes)) == 1:
        samples += _wrong_times(sizes[0], "samples of a micro-batch")
    micro_batches = [_ONCE, *_wrong_times(length, "micro-batches")]
    if length != nominal:
        text = f"dividing by {nominal} where the window has {length} micro-batch{'es' * (length > 1)}"
        micro_batches += [
            Mistake(("nominal length",), (text,), Fraction(length, nominal)),
            Mistake(("nominal length twice",), (f"{text}, and twice",), Fraction(length, nominal**2)),
        ]
    choices = product(samples, micro_batches, [_ONCE, *_wrong_times(ranks, "ranks")])
    return tuple(sorted((_together(choice) for choice in choices), key=lambda mistake: len(mistake.kinds)))


_ONCE = Mistake((), (), Fraction(1))


def _wrong_times(count: int, what: str) -> list[Mistake]:
    if count == 1:
        return []
    return [
        Mistake((f"{what} added up",), (f"adding up the {count} {what} without dividing by {count}",), Fraction(count)),
        Mistake((f"{what} divided twice",), (f"dividing by the {count} {what} twice",), Fraction(1, count)),
    ]


def _together(choice: Sequence[Mistake]) -> Mistake:
    first, second, third = choice
    return Mistake(
        first.kinds + second.kinds + third.kinds,
        first.says + second.says + third.says,
        first.factor * second.factor * third.factor,
    )


def _is_right(fitting: Sequence[Mistake]) -> bool:
    return any(mistake.factor == 1 for mistake in fitting)


def _likeliest(fitting: Sequence[Mistake], common: set[tuple[str, ...]]) -> tuple[Mistake, ...]:
    throughout = [mistake for mistake in fitting if mistake.kinds in common] or fitting
    fewest = min(len(mistake.kinds) for mistake in throughout)
    return tuple(mistake for mistake in throughout if len(mistake.kinds) == fewest)


def _told_apart(run: Run) -> Iterator[tuple[Averaged, tuple[Mistake, ...]]]:
    """With each window all mistakes that fit it. Windows that right and wrong both fit are left out."""
    expectations = Expectations(run.plan)
    starts = [held(rank) for rank in run.ranks]
    for window in run.windows:
        weights = starts[window.rank].get(window.number)
        # For a model of another shape there are no right gradients.
        if weights is None or len(weights) != run.plan.elements:
            continue
        # Where ranks hold different weights, ddp/equal-start or ddp/identical-weights tells why.
        if any(start.get(window.number, weights) != weights for start in starts):
            continue
        sight = _seen(run, window)
        if sight is None:
            continue
        event, seen = sight
        readings = expectations.gradients(window.number, weights)
        fits = [
            (right, tuple(m for m in mistakes(run.plan, window.number) if right.is_times(m.times, seen)))
            for right in readings
        ]
        if not fits:
            continue
        right, fitting = next((fit for fit in fits if _is_right(fit[1])), max(fits, key=lambda fit: len(fit[1])))
        if _is_right(fitting) and any(mistake.factor != 1 for mistake in fitting):
            continue
        # Gradients may be off by the loss scale, which is a power of two as well: that is for the amp/ laws.
        scales = {end["scaled"] for end in window.of("backward_end")} - {None}
        if any(
            mistake.factor != 1 and scale in (mistake.factor, 1 / mistake.factor)
            for mistake in fitting
            for scale in scales
        ):
            continue
        yield Averaged(window, event, seen, right, ()), fitting


def _seen(run: Run, window: Window) -> tuple[Event, tuple[float | None, ...]] | None:
    """The gradients of a window as they were once all averaging was done, and who saw them first."""
    if not window.attempts or _is_explained(window, window.attempts[0]):
        return None
    first = window.attempts[0]
    attempts = {event["optimizer"]: event for event in reversed(window.attempts)}
    clips = [clip for clip in window.between(None, first) if clip.kind == "clip" and finite([clip["threshold"]])]
    # Whoever clips by hand does not tell what was there before.
    if run.plan.clip is not None and not clips:
        return None
    owners = parameter_of_elements(run.plan)
    seen: list[float | str | None] = [None] * len(owners)
    # A clip of no parameters sees no gradients.
    clips = [clip for clip in clips if clip["parameters"]]
    for event in (*clips, *attempts.values()):
        gradients = event["gradients"]
        if event.kind == "skip" or gradients is None or len(gradients) != len(owners):
            return None
        seen = [old if old is not None else new for old, new in zip(seen, gradients, strict=True)]
    if all(one is None for one in seen) or any(isinstance(one, str) for one in seen):
        return None
    return clips[0] if clips else first, tuple(one for one in seen if not isinstance(one, str))


def _is_explained(window: Window, first: Event) -> bool:
    """Whether another law's violation makes the numbers of a window."""
    backwards = window.backwards
    roots = [event["root"] for event in backwards]
    synchronizations = window.of("synchronize")
    return (
        not backwards
        # acc/step-after-all-backwards
        or backwards[-1].seq > first.seq
        # acc/one-backward-per-loss
        or len(set(roots)) < len(roots)
        # acc/cleared-between-windows
        or backwards[0]["gradients"] == "some"
        # hvd/synchronize-at-most-once
        or len({event["optimizer"] for event in synchronizations}) < len(synchronizations)
    )
