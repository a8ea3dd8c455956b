"""A window: all that one rank did since the last step or skip of an optimizer; and what is kept of it for a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from conformance.watch import records
from conformance.watch.records import Record
from conformance.watch.sizes import WHOLE, WIDTH

Sketch = npt.NDArray[np.float64]
"""(WIDTH,), or (shards, WIDTH) of a local gradient."""

_PARTS = 2
"""Micro-batches that a loss is divided by, at least."""


@dataclass
class Contribution:
    """What one backward gave one parameter. at: its place in the stream. sample: what of the parameter it is of. sums:
    how many gradients are summed in it. is_changed: whether it is what the script made of what a step has used. before:
    what it gave before hooks of the script's own, if there are any."""

    backward: int
    sketch: Sketch
    roundoff: float
    at: int
    sample: int = WHOLE
    sums: int = 1
    is_changed: bool = False
    before: Sketch | None = None
    is_finite: bool = True

    @property
    def is_seen(self) -> bool:
        """Whether it was in `.grad`, with all that was added to it by then; else it may have been cleared by hand."""
        return self.backward < 0


def factor_of(clip: records.Clipped) -> float:
    """What clipping by norm multiplies gradients with."""
    if clip.norm is None or not isfinite(clip.norm):
        return 1.0
    return min(1.0, clip.limit / (clip.norm + 1e-6))


@dataclass
class Window:
    """What one rank did until a step, or until a skip, which has no `step`.

    index: the number of steps and skips of this optimizer before. begin, at: places in the stream. new: what was
    backpropagated to each parameter since; old: what a step has used before and nobody cleared, as it was used.
    is_computed: whether backward passes ever gave its parameters gradients. samples: what of each parameter that has a
    gradient `used` is of; UNREAD if nothing.
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
    """Those of them that came when none of what they were given had a gradient that no step had used."""
    unscales: list[tuple[int, records.Unscaled]] = field(default_factory=list)
    schedules: list[tuple[int, records.Scheduled]] = field(default_factory=list)
    limits: list[tuple[int, records.Limited]] = field(default_factory=list)
    captured: bool = False
    is_computed: bool = True
    shards: dict[int, int] = field(default_factory=dict)
    shard: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    moments: list[records.Record] = field(default_factory=list)
    """The last of its calls, for a picture."""
    cut: int = 0
    """How many there were before them."""
    broken: list[tuple[str, str]] = field(default_factory=list)
    """What is found when it is cut, by `Finding.key`."""
    samples: dict[int, int] = field(default_factory=dict)
    clock: int = 0
    """The number of all backward passes of the rank before."""
    fed: set[tuple[int, ...]] = field(default_factory=set)
    """The rows that a model was fed for its backward passes, where they are known."""
    is_of_other: bool = False
    """Whether another optimizer, which holds the same parameters, was the last to step some of them."""
    of_others: set[int] = field(default_factory=set)
    """The parameters that another optimizer has stepped along a gradient all of which came in this window."""
    is_late: bool = False
    """Whether the step before came between a forward and the backward pass through it."""
    is_long: bool = False
    """Whether some of its backward passes are forgotten by now."""
    reached: dict[int, set[str]] = field(default_factory=dict)
    """By backward pass, the optimizers whose parameters it goes through, as `versions` has them."""
    users: dict[int, set[int]] = field(default_factory=dict)
    """By backward pass, the other optimizers that have stepped on it before."""
    is_wrapped: bool = False
    """Whether the rank has a model that DDP wraps."""
    lost: int = 0
    """How many backward passes were cleared before its own, and after the step before."""
    again: dict[int, int] = field(default_factory=dict)
    """By parameters whose gradient is, bit by bit, one that an earlier step has used, the place of that step."""

    @property
    def places(self) -> list[int]:
        """Where in the stream its gradients came."""
        return [one.at for contributions in self.new.values() for one in contributions]

    def clipped(self, number: int, until: float = inf) -> list[Contribution]:
        """What clips have left of this rank's own gradient of a parameter, as far as it had come by then: a factor by
        norm, and what was recorded of the elements by value. until: the place from which on none is by value."""
        came = self.new.get(number, [])
        at, left = next((found for found in reversed(self.limited(number)) if found[0] < until), (0, None))
        before, later = [one for one in came if one.at < at], [one for one in came if one.at > at]
        if left is not None and before:
            later = [replace(before[-1], at=at, sketch=left[None], sums=1 + sum(one.sums for one in before)), *later]
        return [
            replace(one, sketch=one.sketch * self._factor(number, one.at), sums=one.sums + len(self.clips))
            for one in later
        ]

    def limited(self, number: int) -> list[tuple[int, Sketch]]:
        """What each clip by value has left of a parameter's gradient, and where it came."""
        return [
            (at, np.reshape(limit.after, (-1, WIDTH))[limit.parameters.index(number)])
            for at, limit in self.limits
            if number in limit.parameters and limit.samples[limit.parameters.index(number)] == self.sample(number)
        ]

    def _factor(self, number: int, since: int) -> float:
        """What clips by norm have multiplied with since this place."""
        return prod(
            factor_of(clip)
            for at, clip in self.clips
            if at > since and clip.how == "norm" and number in clip.parameters
        )

    # The line that a finding is about, where a call of it was recorded; else that of the step.

    @property
    def unreduced_at(self) -> records.Site:
        """Where gradients stay those of one rank: at a backward pass that DDP was told not to reduce after, or at a
        forward around the wrapper."""
        passes = [*self.backwards.values()]
        if passes and all(one.waits for one in passes):
            return passes[-1].site
        around = [one.site for one in self.moments if isinstance(one, records.Entered) and not one.wrapped]
        return around[0] if around and self.is_wrapped else self.site

    @property
    def scaled_at(self) -> records.Site:
        """Where a loss got another scale than its window: at an update since the first backward pass, or at the last
        backward pass."""
        seen, found = False, self.site
        for one in self.moments:
            if isinstance(one, records.Updated) and seen:
                return one.site
            if isinstance(one, records.Backward) and one.backward in self.backwards:
                seen, found = True, one.site
        return found

    @property
    def unscaled_at(self) -> records.Site:
        """Where gradients are unscaled for the second time."""
        return self.unscales[-1][1].site if len(self.unscales) > 1 else self.site

    @property
    def clipped_at(self) -> records.Site:
        """The last call that clips what the step uses."""
        held = [one.site for _, one in self.clips if not {*one.parameters}.isdisjoint(self.used)]
        return held[-1] if held else self.site

    def clips_of(self, number: int) -> tuple[int, ...]:
        """The numbers of the calls that clipped a parameter's gradient. Those that came before it had one clipped
        others, that another optimizer stepped."""
        came = min((one.at for one in self.new.get(number, [])), default=0)
        return tuple(n for n, (at, clip) in enumerate(self.clips) if at > came and number in clip.parameters)

    def sample(self, number: int) -> int:
        """What is looked at of a parameter."""
        return self.samples.get(number, WHOLE)

    def has_part(self, backward: records.Backward) -> bool:
        """Whether a backward pass is known to be of one of its micro-batches: it has a batch of the same loader, or its
        loss is divided by some number. What is of other data, such as a memory, may be there to compare with."""
        loaders = {one.loader for one in self.backwards.values() if one.backward != backward.backward}
        is_of_loader = backward.loader is not None and backward.loader in loaders
        return is_of_loader or any(divisor >= _PARTS for divisor in backward.divisors)

    def named(self, parameters: Iterable[int]) -> list[str]:
        return [self.names.get(number, f"parameter {number}") for number in parameters]

    @property
    def saw_several_weights(self) -> bool:
        """Whether weights that two of its backward passes go through were changed between them, and not by a step of
        another optimizer on the first."""
        return any(
            self.backwards[one].versions.get(number) != self.backwards[other].versions.get(number)
            for one, other in pairwise(sorted(self.backwards))
            for number in self.reached.get(one, set()) & self.reached.get(other, set())
            if int(number) not in self.users.get(one, ())
        )

    def version(self, backward: records.Backward) -> int | None:
        """Of the weights that it saw, of those that the optimizer has."""
        return backward.versions.get(str(self.optimizer))

    @property
    def scales(self) -> list[float]:
        return sorted({backward.scale or 1.0 for backward in self.backwards.values()})


@dataclass
class Cleared:
    """A backward whose gradients were cleared before any step used them. at: its place in the stream. parameters: what
    was cleared. fed: the rows that a model was fed for it, if that was seen."""

    rank: int
    at: int
    parameters: frozenset[int]
    backward: records.Backward
    site: records.Site
    after_steps: int
    fed: tuple[int, ...] | None = None


class Key(NamedTuple):
    """What an optimizer is known by on all ranks. shapes: of the parameters that it was made with. number: counts those
    that are alike."""

    type: str
    shapes: tuple[tuple[int, ...], ...]
    number: int


Pass: TypeAlias = tuple[int, int]
"""A rank, and the number of one of its backward passes."""


@dataclass(frozen=True)
class Scene:
    """The window `index` of an optimizer, known by the number that it has on the first of these ranks. of: by rank,
    what it did, without gradients. cut: how many earlier calls of the window are left out, for the rank with the most.
    """

    optimizer: int
    index: int
    of: dict[int, list[Record]]
    cut: int

    @classmethod
    def seen(cls, windows: Sequence[Window]) -> Scene:
        first = windows[0]
        of = {window.rank: window.moments for window in windows}
        return cls(first.optimizer, first.index, of, max(window.cut for window in windows))


def are_stages(here: Sequence[Window]) -> bool:
    """Whether the losses of all ranks come from different lines."""
    calls = [{one.calls for one in each.backwards.values()} for each in here]
    return len(here) > 1 and all(calls) and not set.intersection(*calls)
