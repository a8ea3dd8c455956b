"""The accumulation window: everything that a rank did since the last step or skip of an optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf, isclose, isfinite, prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from conformance.watch import records
from conformance.watch.records import Record
from conformance.watch.sizes import SMALL, WHOLE, WIDTH

Sketch = npt.NDArray[np.float64]
"""Of shape (WIDTH,), or (shards, WIDTH) for a local gradient."""

_PARTS = 2
"""Least divisor of a loss that may be a number of micro-batches."""
_SEVERAL = 3


@dataclass
class Contribution:
    """The gradient that a backward pass gave a parameter. at: place in the stream. sample: the sampled elements. sums:
    the number of gradients summed in it. is_changed: the script changed it after a step used it. before: the gradient
    before the script's hooks, if there are any."""

    backward: int
    sketch: Sketch
    roundoff: float
    at: int
    sample: int = WHOLE
    sums: int = 1
    is_changed: bool = False
    before: Sketch | None = None
    is_finite: bool = True

    @cached_property
    def is_any(self) -> bool:
        """Whether it is not 0."""
        return bool(self.sketch[..., 2].any())

    @property
    def norm(self) -> float:
        """The norm, or the sum of the norms of its shards."""
        return float(self.sketch[0, 2] if len(self.sketch) == 1 else self.sketch[..., 2].sum())

    @property
    def is_seen(self) -> bool:
        """Whether it was read from `.grad`, as a total. Otherwise it may have been cleared by hand."""
        return self.backward < 0


def factor_of(clip: records.Clipped) -> float:
    """The factor of clipping by norm."""
    if clip.norm is None or not isfinite(clip.norm):
        return 1.0
    return min(1.0, clip.limit / (clip.norm + 1e-6))


class Limit(NamedTuple):
    """A clip by value of a parameter: its place in the stream, and sketches of the gradient before and after."""

    at: int
    before: Sketch
    after: Sketch


@dataclass
class Window:
    """The calls and gradients of one rank until a step, or until a skip, which has no `step`.

    index: the number of earlier steps and skips of this optimizer. begin, at: places in the stream. new: gradients by
    parameter. old: gradients that an earlier step used and nothing cleared, as they were used. is_computed: backward
    passes ever gave its parameters gradients. is_made_last: all came before its optimizer was made. samples: the
    sampled elements of the used gradients; UNREAD for none.
    """

    rank: int
    optimizer: int
    key: Key
    index: int
    step: records.Stepped | None
    site: records.Site
    begin: int
    at: int
    new: dict[int, list[Contribution]]
    old: dict[int, list[Contribution]]
    used: dict[int, Sketch]
    weights: dict[int, tuple[float, ...]]
    backwards: dict[int, records.Backward]
    clips: list[tuple[int, records.Clipped]] = field(default_factory=list)
    idle: list[records.Clipped] = field(default_factory=list)
    """Clip calls whose parameters had no fresh gradient."""
    unscales: list[tuple[int, records.Unscaled]] = field(default_factory=list)
    schedules: list[tuple[int, records.Scheduled]] = field(default_factory=list)
    limits: list[tuple[int, records.Limited]] = field(default_factory=list)
    captured: bool = False
    is_computed: bool = True
    is_made_last: bool = False
    shards: dict[int, int] = field(default_factory=dict)
    shard: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    moments: list[records.Record] = field(default_factory=list)
    """The last calls, for a picture."""
    cut: int = 0
    """The number of calls before these."""
    broken: list[tuple[str, str]] = field(default_factory=list)
    """Violations in this window of one rank, by `Finding.key`."""
    samples: dict[int, int] = field(default_factory=dict)
    clock: int = 0
    """The number of all backward passes of the rank so far."""
    era: int = 0
    """How often ranks that ran out of data have waited for the others so far."""
    fed: set[tuple[int, ...]] = field(default_factory=set)
    """The input rows of its backward passes, as far as they are known."""
    is_of_other: bool = False
    """Whether another optimizer with the same parameters was the last to step some of them."""
    of_others: set[int] = field(default_factory=set)
    """The parameters whose old gradient is entirely from this window and was used by another optimizer."""
    is_late: bool = False
    """Whether the previous step came between a forward pass and its backward pass."""
    is_long: bool = False
    """Whether some of its backward passes were dropped."""
    reached: dict[int, set[str]] = field(default_factory=dict)
    """By backward pass, the optimizers of the parameters that got gradients, with the keys of `versions`."""
    users: dict[int, set[int]] = field(default_factory=dict)
    """By backward pass, the other optimizers that already stepped on it."""
    is_wrapped: bool = False
    """Whether DDP wraps a model of the rank."""
    lost: int = 0
    """The number of backward passes that were cleared between the previous step and its own passes."""
    with_taken: Window | None = None
    """The same window with the gradients that were cleared in it, if there are any: the script may have added them up
    elsewhere."""
    again: dict[int, int] = field(default_factory=dict)
    """By parameter whose gradient is bit-identical to one that an earlier step used, the place of that step."""

    def without(self, place: int) -> Window:
        """The same window without one of its backward passes."""
        left_out = sorted(self.backwards)[place]
        new = {number: [one for one in of if one.backward != left_out] for number, of in self.new.items()}
        backwards = {number: one for number, one in self.backwards.items() if number != left_out}
        return replace(self, new={number: of for number, of in new.items() if of}, backwards=backwards)

    @cached_property
    def passes(self) -> list[records.Backward]:
        """Its backward passes, the first one first."""
        return [self.backwards[number] for number in sorted(self.backwards)]

    @cached_property
    def places(self) -> list[int]:
        """The places of its gradients in the stream."""
        return [one.at for contributions in self.new.values() for one in contributions]

    def clipped(self, number: int, until: float = inf) -> list[Contribution]:
        """This rank's gradient of a parameter after all clips: times the factors by norm, and with the recorded results
        by value. until: ignores clips by value from this place on."""
        came = self.new.get(number, [])
        limit = next((one for one in reversed(self.limited(number)) if one.at < until), None)
        at = 0 if limit is None else limit.at
        before, later = [one for one in came if one.at < at], [one for one in came if one.at > at]
        if limit is not None and before:
            sums = 1 + sum(one.sums for one in before)
            later = [replace(before[-1], at=at, sketch=limit.after[None], sums=sums), *later]
        return [
            replace(one, sketch=one.sketch * self._factor(number, one.at), sums=one.sums + len(self.clips))
            for one in later
        ]

    def limited(self, number: int) -> list[Limit]:
        """The clips by value of a parameter that were sketched like its gradients."""
        found = [(at, one, one.parameters.index(number)) for at, one in self.limits if number in one.parameters]
        return [
            Limit(at, *(np.reshape(sketches, (-1, WIDTH))[place] for sketches in (one.before, one.after)))
            for at, one, place in found
            if one.samples[place] == self.sample(number)
        ]

    def _factor(self, number: int, since: int) -> float:
        """The factor of all clips by norm after this place."""
        return prod(
            factor_of(clip)
            for at, clip in self.clips
            if at > since and clip.how == "norm" and number in clip.parameters
        )

    # Lines to blame: that of a recorded call, else that of the step.

    @property
    def unreduced_at(self) -> records.Site:
        """The line that bypasses the reduction: a backward pass in `no_sync`, or a forward pass without the wrapper."""
        passes = self.passes
        if passes and all(one.waits for one in passes):
            return passes[-1].site
        around = [one.site for one in self.moments if isinstance(one, records.Entered) and not one.wrapped]
        return around[0] if around and self.is_wrapped else self.site

    @property
    def scaled_at(self) -> records.Site:
        """The line that changes the loss scale within the window: an update after the first backward pass, or else the
        last backward pass."""
        seen, found = False, self.site
        for one in self.moments:
            if isinstance(one, records.Updated) and seen:
                return one.site
            if isinstance(one, records.Backward) and one.backward in self.backwards:
                seen, found = True, one.site
        return found

    @property
    def not_scaled_at(self) -> records.Site:
        """The line of the first backward pass without a loss scale."""
        return next((one.site for one in self.passes if (one.scale or 1) == 1), self.site)

    @property
    def unscaled_at(self) -> records.Site:
        """The line that unscales gradients for the second time."""
        return self.unscales[-1][1].site if len(self.unscales) > 1 else self.site

    @property
    def clipped_at(self) -> records.Site:
        """The last call that clips used gradients."""
        held = [one.site for _, one in self.clips if not {*one.parameters}.isdisjoint(self.used)]
        return held[-1] if held else self.site

    def clips_of(self, number: int) -> tuple[int, ...]:
        """The numbers of the calls that clipped a parameter's gradient. Calls before its first gradient clipped others,
        which another optimizer used."""
        came = min((one.at for one in self.new.get(number, [])), default=0)
        return tuple(n for n, (at, _) in enumerate(self.clips) if at > came and number in self._of_clips[n])

    @cached_property
    def _of_clips(self) -> list[set[int]]:
        """The parameters of each clip call."""
        return [{*clip.parameters} for _, clip in self.clips]

    def sample(self, number: int) -> int:
        """The sampled elements of a parameter."""
        return self.samples.get(number, WHOLE)

    def moves(self, number: int) -> bool:
        """Whether a parameter has a gradient other than 0, used or not."""
        used = self.used.get(number)
        return (used is not None and bool(used[2])) or any(one.is_any for one in self.new.get(number, ()))

    def is_whole(self, number: int) -> bool:
        """Whether all elements of a parameter were read."""
        return self.sample(number) == WHOLE or self.sizes.get(number, 1) <= SMALL

    def has_part(self, backward: records.Backward) -> bool:
        """Whether a backward pass belongs to one of its micro-batches: it has a batch of the same loader, or its loss
        is divided. Passes on other data, such as a replay memory, may only serve a comparison."""
        loaders = {one.loader for one in self.passes if one.backward != backward.backward}
        is_of_loader = backward.loader is not None and backward.loader in loaders
        return is_of_loader or any(divisor >= _PARTS for divisor in backward.divisors)

    def named(self, parameters: Iterable[int]) -> list[str]:
        return [self.names.get(number, f"parameter {number}") for number in parameters]

    @property
    def saw_several_weights(self) -> bool:
        """Whether weights changed between two of its backward passes through them, and not because another optimizer
        stepped on the first."""
        return any(
            self.backwards[one].versions.get(number) != self.backwards[other].versions.get(number)
            for one, other in pairwise(sorted(self.backwards))
            for number in self.reached.get(one, set()) & self.reached.get(other, set())
            if int(number) not in self.users.get(one, ())
        )

    def version(self, backward: records.Backward) -> int | None:
        """The version of the optimizer's weights that the backward pass used."""
        return backward.versions.get(str(self.optimizer))

    @cached_property
    def kinds(self) -> set[int]:
        """The call sites of the losses. Counts two as one if only the last micro-batch goes backward elsewhere: a
        library does so below one line of the script, or the script does so because DDP synchronizes in the last
        backward pass."""
        passes = self.passes
        calls = Counter(one.calls for one in passes)
        if len(calls) < 2:
            return {*calls}
        is_of_one_line = len({one.own_calls for one in passes}) == 1
        is_in_turn = len(passes) >= _SEVERAL and [one.waits for one in passes] == [*[True] * (len(passes) - 1), False]
        is_one = (is_of_one_line or is_in_turn) and self.are_alike_but_the_last
        return {calls.most_common(1)[0][0]} if is_one else {*calls}

    @property
    def are_alike_but_the_last(self) -> bool:
        """Whether only the last pass has another call site, each has one batch of the same loader, and all have the
        same kind of loss, the same factor and the same parameters."""
        passes = self.passes
        calls = [one.calls for one in passes]
        reached = ({one.backward for one in of} for of in self.new.values())
        return (
            len({*calls}) == 2
            and len({*calls[:-1]}) == 1
            and all(one.batches == 1 for one in passes)
            and len({(one.loader, one.made_by) for one in passes}) == 1
            and all(isclose(one.factor, passes[0].factor, rel_tol=1e-6) for one in passes)
            and all(of >= self.backwards.keys() for of in reached)
        )

    @cached_property
    def scales(self) -> list[float]:
        return sorted({backward.scale or 1.0 for backward in self.passes})


@dataclass
class Cleared:
    """A backward pass whose gradients were cleared before any step used them. at: place of the clearing in the stream.
    parameters: those cleared. fed: the input rows, if they are known. is_part: other parameters keep its gradients."""

    rank: int
    at: int
    parameters: frozenset[int]
    backward: records.Backward
    site: records.Site
    after_steps: int
    fed: tuple[int, ...] | None = None
    is_part: bool = False


class Key(NamedTuple):
    """The identity of an optimizer on all ranks. shapes: of its initial parameters. number: counts equal ones."""

    type: str
    shapes: tuple[tuple[int, ...], ...]
    number: int


Pass: TypeAlias = tuple[int, int]
"""A rank and the number of one of its backward passes."""


@dataclass(frozen=True)
class Scene:
    """A picture of the window `index` of an optimizer. of: by rank, its calls without gradients. cut: the number of
    earlier calls left out, on the rank with the most. The optimizer's number is that on the first of these ranks."""

    optimizer: int
    index: int
    of: dict[int, list[Record]]
    cut: int

    @classmethod
    def seen(cls, windows: Sequence[Window]) -> Scene:
        first = windows[0]
        of = {window.rank: window.moments for window in windows}
        return cls(first.optimizer, first.index, of, max(window.cut for window in windows))


def are_equal(values: Sequence[Mapping[int, npt.ArrayLike]], number: int) -> bool:
    """Whether the values of a parameter are bit-identical on all ranks."""
    first, *others = [of_rank[number] for of_rank in values]
    return all(np.array_equal(first, other, equal_nan=True) for other in others)


def summed(windows: Sequence[Window | None]) -> Sequence[Window | None]:
    """The windows with the sums of gradients that have a summand on each rank. Their norms are bounds."""
    here = [(window, window.step) for window in windows if window is not None and window.step is not None]
    partial = set.intersection(*({*step.partial} & window.used.keys() for window, step in here)) if here else set()
    if not partial or len(here) < len(windows):
        return windows
    total = {number: np.sum([window.used[number] for window, _ in here], axis=0) for number in partial}
    return [replace(window, used={**window.used, **total}) for window, _ in here]


def are_stages(here: Sequence[Window]) -> bool:
    """Whether the losses of all ranks come from different lines."""
    calls = [{one.calls for one in each.passes} for each in here]
    return len(here) > 1 and all(calls) and not set.intersection(*calls)
