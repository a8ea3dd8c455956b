"""Finds the factor by which a window's gradients are wrong, and the averaging bugs that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, product, zip_longest
from math import hypot, isclose, prod
from operator import attrgetter
from typing import Any, NamedTuple

from conformance.laws.correct_gradient import Expectations, Gradient, held
from conformance.laws.scaled_gradients import all_finite
from conformance.laws.subjects import Run, Window, fact
from conformance.trace.events import Attempt, BackwardEnd, Clip, Skip, Synchronize, Vector


@dataclass(frozen=True)
class Mistake:
    """A combination of averaging bugs.

    kinds: the single bugs; empty if there are none. says: a phrase for each, to follow "the result of".
    factor: the gradients relative to the correct ones.
    """

    kinds: tuple[str, ...]
    says: tuple[str, ...]
    factor: Fraction

    @cached_property
    def times(self) -> float:
        return float(self.factor)


class Averaged(NamedTuple):
    """The averaged gradients of one window.

    event: the first clip or step after the backwards. seen: the gradients that it saw, None for elements that it did
    not see. right: the correct gradients. mistakes: each explains the difference; empty if there is none.
    """

    window: Window
    event: Clip | Attempt
    seen: Sequence[float | None]
    right: Gradient
    mistakes: tuple[Mistake, ...]


@fact
def averages(run: Run) -> Mapping[Window, Averaged]:
    """The averages by window, for windows in which correct and wrong averaging give different numbers.

    A trainer averages all windows in the same way, so a correct window rules out a bug for all windows. If no bug
    explains some wrong window, an explanation of the others may be a coincidence: then only the correct windows are
    included.
    """
    right: dict[Window, Averaged] = {}
    wrong: list[Averaged] = []
    for average, is_right in _told_apart(run):
        if is_right:
            right[average.window] = average
        else:
            wrong.append(average)
    if not wrong:
        return right
    sizes_of_right = {_sizes(window) for window in right}
    ruled_out = {mistake.kinds for sizes in sizes_of_right for mistake in _combinations(*sizes)}
    fitting = [[mistake for mistake in average.mistakes if mistake.kinds not in ruled_out] for average in wrong]
    if not all(fitting):
        return right
    common = set.intersection(*({mistake.kinds for mistake in one} for one in fitting))
    if run.plan.spec["loss"] == "weighted" and not common:
        return right  # Such as dividing by the samples: too much in one window, too little in another.
    explained = {
        average.window: average._replace(mistakes=_likeliest(one, common))
        for average, one in zip(wrong, fitting, strict=True)
    }
    return right | explained


def saw_right_gradients(window: Window) -> bool:
    """Whether the step or clip of a window is known to have seen the correct gradients, however computed."""
    average = averages(window.run).get(window)
    return average is not None and not average.mistakes


def _sizes(window: Window) -> tuple[tuple[int, ...], int, int, str, int]:
    """The inputs of `_combinations`: the sizes of the micro-batches, the nominal accumulation, the world size, the
    loss, and the backwards per loss."""
    plan = window.plan
    sizes = tuple(map(len, plan.micro_batches(0, window.number)))
    return sizes, plan.accumulation, plan.world_size, plan.spec["loss"], _repetitions(window)


def _repetitions(window: Window) -> int:
    """The number of backwards with equal gradients through each forward: of one loss, or of equal parts of it."""
    through: dict[int, list[tuple[object, ...]]] = {event.forward: [] for event in window.forwards}
    for end in window.of(BackwardEnd):
        for forward, gradients in zip_longest(end.forwards, end.output_gradients, fillvalue=()):
            if forward in through:
                through[forward].append(tuple(gradients))
    counts = {len(gradients) if len(set(gradients)) == 1 else 1 for gradients in through.values()}
    return counts.pop() if len(counts) == 1 else 1


@lru_cache(maxsize=256)
def _combinations(sizes: tuple[int, ...], nominal: int, ranks: int, loss: str, repetitions: int) -> tuple[Mistake, ...]:
    """All combinations of averaging bugs that change the gradients, by factor."""
    length = len(sizes)
    samples = [_ONCE]
    if loss == "mean" and len(set(sizes)) == 1:
        samples += _wrong_times(sizes[0], "samples of a micro-batch")
    micro_batches = [_ONCE, *_wrong_times(length, "micro-batches")]
    if length != nominal:
        text = f"dividing by {nominal} although the window has {length} micro-batch{'es' * (length > 1)}"
        micro_batches += [
            Mistake(("nominal length",), (text,), Fraction(length, nominal)),
            Mistake(("nominal length twice",), (f"{text}, twice",), Fraction(length, nominal**2)),
        ]
    repeated = [_ONCE]
    if repetitions > 1:
        text = f"{repetitions} backwards through the loss of each forward"
        repeated.append(Mistake(("repeated backwards",), (text,), Fraction(repetitions)))
    choices = product(samples, micro_batches, [_ONCE, *_wrong_times(ranks, "ranks")], repeated)
    # Bugs that cancel each other do not show.
    shown = [mistake for mistake in map(_together, choices) if mistake.factor != 1]
    return tuple(sorted(shown, key=attrgetter("factor")))


_ONCE = Mistake((), (), Fraction(1))


def _wrong_times(count: int, what: str) -> list[Mistake]:
    added, twice = f"summing the {count} {what} without dividing by {count}", f"dividing by the {count} {what} twice"
    return (
        []
        if count == 1
        else [
            Mistake((f"{what} added up",), (added,), Fraction(count)),
            Mistake((f"{what} divided twice",), (twice,), Fraction(1, count)),
        ]
    )


def _together(choice: Sequence[Mistake]) -> Mistake:
    return Mistake(
        tuple(chain.from_iterable(one.kinds for one in choice)),
        tuple(chain.from_iterable(one.says for one in choice)),
        prod((one.factor for one in choice), start=Fraction(1)),
    )


def _likeliest(fitting: Sequence[Mistake], common: set[tuple[str, ...]]) -> tuple[Mistake, ...]:
    throughout = [mistake for mistake in fitting if mistake.kinds in common] or fitting
    fewest = min(len(mistake.kinds) for mistake in throughout)
    return tuple(mistake for mistake in throughout if len(mistake.kinds) == fewest)


def _told_apart(run: Run) -> Iterator[tuple[Averaged, bool]]:
    """Yields each window with all bugs that fit it, and whether its gradients are correct. Leaves out windows that fit
    both correct and wrong averaging."""
    for number, rights in correct_gradients(run).items():
        for window in run.numbered[number]:
            if number in held(window.rank) and (found := _compared(window, rights)) is not None:
                yield found


@fact
def correct_gradients(run: Run) -> Mapping[int, Sequence[Gradient]]:
    """The correct gradients of each window by its number, in all accepted readings; without unknown ones."""
    expectations = Expectations(run.plan)
    starts = [held(rank) for rank in run.ranks]
    found: dict[int, Sequence[Gradient]] = {}
    for number in run.numbered:
        shares = [run.plan.micro_batches(rank.number, number) for rank in run.ranks]
        # Averages over all ranks and over those with data left are both valid, and may look like bugs.
        if not all(shares):
            continue
        known = {start[number] for start in starts if number in start}
        # Ranks with different weights have no mean gradient.
        if len(known) != 1:
            continue
        [weights] = known
        # The correct gradients are unknown for a model of another shape.
        if len(weights) == run.plan.model.size:
            found[number] = expectations.gradients(shares, weights)
    return found


def _compared(window: Window, rights: Sequence[Gradient]) -> tuple[Averaged, bool] | None:
    """Compares the window with its correct gradients in all accepted readings; see `_told_apart`."""
    sight = seen_gradients(window)
    if sight is None:
        return None
    event, seen = sight
    known = _combinations(*_sizes(window))
    right = next((one for one in rights if one.is_times(1.0, seen)), None)
    # A clip by hand hides the gradients before it, unless it does not change them.
    if window.plan.clip is not None and not _clips(window) and (right is None or not _within(window.plan.clip, seen)):
        return None
    if right is not None:
        return None if _fitting(known, right, seen) else (Averaged(window, event, seen, right, ()), True)
    right, fitting = max(((one, _fitting(known, one, seen)) for one in rights), key=lambda fit: len(fit[1]))
    # The factor may be the loss scale, which is also a power of two.
    scales = {end.scaled for end in window.of(BackwardEnd)} - {None}
    if any(scale in (mistake.factor, 1 / mistake.factor) for mistake in fitting for scale in scales):
        return None
    return Averaged(window, event, seen, right, fitting), False


def _clips(window: Window) -> list[Clip]:
    return [clip for clip in window.between(Clip, before=window.attempts[0]) if not isinstance(clip.threshold, str)]


def _within(clip: Mapping[str, Any], seen: Sequence[float | None]) -> bool:
    """Whether these gradients are below the threshold of the clip."""
    known = [abs(one) for one in seen if one is not None]
    return bool((max(known) if clip["kind"] == "value" else hypot(*known)) < clip["threshold"])


def _fitting(mistakes: Sequence[Mistake], right: Gradient, seen: Sequence[float | None]) -> tuple[Mistake, ...]:
    return tuple(one for one in mistakes if right.is_times(one.times, seen))


def seen_gradients(window: Window) -> tuple[Clip | Attempt, Sequence[float | None]] | None:
    """The first event that saw the gradients of a window after all averaging, and these gradients."""
    if not window.attempts or not _is_plain(window, window.attempts[0]):
        return None
    first = window.attempts[0]
    attempts = {event.optimizer: event for event in reversed(window.attempts)}
    # A clip of no parameters sees no gradients.
    clips = [clip for clip in _clips(window) if clip.parameters]
    layers: list[Vector] = []
    events: list[Clip | Attempt] = [*clips, *attempts.values()]
    for event in events:
        if isinstance(event, Skip) or event.gradients is None or len(event.gradients) != window.plan.model.size:
            return None
        layers.append(event.gradients)
    seen = layers[0]
    if len(layers) > 1:
        seen = [next((one for one in column if one is not None), None) for column in zip(*layers, strict=True)]
    if seen.count(None) == len(seen) or not all_finite(seen):
        return None
    return clips[0] if clips else first, seen


def _is_plain(window: Window, first: Attempt) -> bool:
    """Whether only averaging can explain wrong numbers of a window: its step follows all backwards, each backward has
    its own loss, none adds to older gradients, and no optimizer is synchronized twice."""
    backwards, synchronizes = window.backwards, window.of(Synchronize)
    return (
        bool(backwards)
        and backwards[-1].seq < first.seq
        and len({event.root for event in backwards}) == len(backwards)
        and backwards[0].gradients != "some"
        and len({event.optimizer for event in synchronizes}) == len(synchronizes)
    )


def ratio(one: Vector, other: Vector) -> float | None:
    """The common ratio of all elements; None if there is none, or too few elements to show it."""
    pairs = [(first, second) for first, second in zip(one, other, strict=False) if first or second]
    ratios = [
        two / first for first, two in pairs if first and not isinstance(first, str) and isinstance(two, int | float)
    ]
    found = len(ratios) == len(pairs) > 1 and all(isclose(ratio, ratios[0], rel_tol=1e-6) for ratio in ratios)
    return ratios[0] if found else None
