"""The table of hypotheses: the gradients that a step may have used, and the verdict on each.

Each part of the table explains a step in one way, by its first row that applies: the gradients of all ranks with one
factor, other gradients with one factor, each parameter alone, and last, by least squares, a factor for each rank and
backward pass. `solver.py` tries them in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from conformance.watch.judging.apart import Apart
from conformance.watch.judging.equations import Case, Choose
from conformance.watch.judging.findings import Finding, Said, said
from conformance.watch.judging.fit import Fit
from conformance.watch.judging.system import Shares, system_of
from conformance.watch.judging.targets import are_of_one_loss, is_mean_of_all, own_scale
from conformance.watch.records import Site

Of = TypeVar("Of", Case, Fit, Apart, Shares)
Values: TypeAlias = str | Callable[[Any], dict[str, Any]]
"""Values of a message: names of attributes of the row's subject, or a function of it."""


def tell(of: Any, code: str, values: Values = "") -> Said:
    return said(
        code, **({name: getattr(of, name) for name in values.split()} if isinstance(values, str) else values(of))
    )


@dataclass(frozen=True)
class Wrong:
    """A violation. once: one step proves it; otherwise all steps must show it."""

    law: str
    code: str
    values: Values = ""
    once: bool = False


@dataclass(frozen=True)
class Fact:
    """A fact that is left open. is_right: it does not contradict a violation that other steps show."""

    code: str
    values: Values = ""
    is_right: bool = False


RIGHT = None

_UNUSED = 0.9
"""A factor of clipping so far from 1 that `clipping.py` tells whether the step uses what the clip left."""


@dataclass(frozen=True)
class Row(Generic[Of]):
    """A hypothesis. what: the verdict. when: the steps it applies to. factor: the expected factor if it fits, None for
    any. effect: on the update, by default the factor. site: the blamed line, by default that of the step. amend: sets
    further fields of the finding."""

    what: Wrong | Fact | None
    when: Callable[[Of], bool] = lambda of: True
    factor: Callable[[Of], float | None] | None = None
    effect: Callable[[Of], Said | None] | None = None
    site: Callable[[Of], Site] | None = None
    amend: Callable[[Of, Finding], None] = lambda of, found: None


_SCALED, _ONCE, _CLEARED = "watch/unscaled", "watch/averaged-once", "watch/cleared"
_AVERAGED, _EVERY = "watch/averaged", "watch/every-backward"


def _scale(of: Case) -> float:
    """The loss scale, of a scaler or hand-written."""
    return of.scale if of.scale != 1 else own_scale(of.window, of.together.ranks) or 1.0


LEFT_OPEN: Sequence[Row[Case]] = (
    # At a smaller loss scale the gradients would be finite. Their replacement depends on the scale, not on the loss, so
    # the step must be skipped and the scale lowered.
    Row(
        Wrong("watch/finite", "overflow-replaced", lambda of: {"scale": _scale(of)}, once=True),
        when=lambda of: bool(of.overflows) and _scale(of) != 1 and not of.is_known(of.finite),
        effect=lambda of: said("made-up", lost=len(of.overflows), all=len(of.parameters)),
    ),
    Row(Fact("changed.not-finite"), lambda of: bool(of.overflows)),
    Row(RIGHT, lambda of: not of.used and not of.is_any_computed),
    Row(Fact("clearing.zeroed"), lambda of: not of.used),
    Row(Fact("ranks.sample"), lambda of: not of.is_of_one_sample),
)
"""Steps whose gradients cannot be compared."""

OF_ALL: Sequence[Row[Fit]] = (
    Row(
        Wrong("watch/one-scale", "some-not-scaled", lambda of: {"scale": max(of.scales)}, once=True),
        when=lambda of: len(of.scales) > 1 and 1 in of.scales,
        effect=lambda of: said("pass-counts", times=max(of.scales)),
        site=lambda of: of.case.window.not_scaled_at,
    ),
    Row(
        Wrong("watch/one-scale", "several-scales", "scales", once=True),
        when=lambda of: len(of.scales) > 1,
        effect=lambda of: said("pass-counts", times=max(of.scales) / min(of.scales)),
        site=lambda of: of.case.window.scaled_at,
    ),
    Row(
        Wrong(_CLEARED, "unscaled-old", once=True),
        when=lambda of: of.adds_to_the_last,
        effect=lambda of: said("counts-again", factor=1 / of.scale),
    ),
    # The average may be over all ranks or over those that still have data.
    Row(RIGHT, factor=lambda of: of.found(1.0, of.ranks / of.alive if of.case.together.is_joined else None)),
    # A few numbers are a multiple of any others.
    Row(
        Wrong(_CLEARED, "not-cleared", once=True),
        when=lambda of: not of.case.is_ample and of.case.keeps_old,
        effect=lambda of: None,
    ),
    Row(Fact("changed.by-element"), lambda of: of.case.is_limited and of.kappa.high < 1),
    # The loss scale.
    Row(
        Fact("loss-scale.own-optimizer", "scale"),
        when=lambda of: of.is_scaled and of.case.step.is_own,
        factor=lambda of: of.found(of.scale),
    ),
    Row(
        Wrong(_SCALED, "still-scaled", "scale", once=True),
        when=lambda of: of.is_scaled,
        factor=lambda of: of.found(of.scale),
    ),
    Row(
        Wrong(_SCALED, "unscaled-twice", "scale", once=True),
        when=lambda of: of.is_scaled,
        factor=lambda of: of.found(1 / of.scale),
        site=lambda of: of.case.window.unscaled_at,
    ),
    # A wrong divisor cannot be intended: the growth of a scale is not predictable.
    Row(
        Wrong(_SCALED, "unscaled-by-another", "scale divisor", once=True),
        when=lambda of: of.is_scaled and of.divisor not in (1.0, of.scale),
        factor=lambda of: of.found(of.scale / of.divisor),
        site=lambda of: of.case.window.scaled_at,
    ),
    Row(
        Wrong(_SCALED, "never-scaled", lambda of: {"scale": of.unscaled}),
        when=lambda of: of.scale == 1.0 != of.unscaled and of.is_scale_seen,
        factor=lambda of: of.found(1 / of.unscaled),
        site=lambda of: of.case.window.scaled_at,
    ),
    # The ranks.
    Row(RIGHT, lambda of: of.ranks > 1 and is_mean_of_all(of.case.together), lambda of: of.found(of.ranks)),
    Row(Fact("ranks.sum", "ranks", is_right=True), lambda of: of.ranks > 1, lambda of: of.found(of.ranks)),
    # The micro-batches.
    Row(
        Wrong("watch/divided-once", "divided-twice", "passes"),
        when=lambda of: of.are_divided and not of.is_a_sum(of.passes),
        factor=lambda of: of.found(1 / of.passes),
    ),
    Row(RIGHT, lambda of: of.passes > 1, lambda of: of.found(1 / of.passes)),
    # A factor of the losses by which gradients are divided is a hand-written loss scale.
    Row(RIGHT, lambda of: of.own > 1, lambda of: of.found(1 / of.own, of.ranks / of.own)),
    Row(
        Wrong(_ONCE, "averaged-twice", "ranks"),
        when=lambda of: of.ranks > 1 and not of.is_a_sum(of.ranks),
        factor=lambda of: of.found(1 / of.ranks),
    ),
    # The targets.
    Row(RIGHT, factor=lambda of: of.found(of.over_total)),
    Row(
        Wrong(_ONCE, "divided-by-all-and-averaged", "targets"),
        when=lambda of: of.are_apart,
        factor=lambda of: of.found(of.over_all_and_ranks),
        effect=lambda of: said("factor", factor=1 / of.ranks),
    ),
    Row(
        Fact("ranks.factor", lambda of: {"factor": of.kappa.middle}, is_right=True),
        factor=lambda of: of.found(of.over_all_and_ranks),
    ),
    # A clip of other tensors, or of gradients that were used before: `clipping.before-change`.
    Row(RIGHT, lambda of: of.case.clipped < _UNUSED, lambda of: of.found(1 / of.case.clipped)),
)
"""The gradients of all ranks, each once: the factor relative to their mean."""


def _table(of: Case) -> str:
    """The factor of each rank and backward pass, as far as the step shows them."""
    system = system_of(of)
    shares = system.solved() if system is not None and system.is_enough else None
    return shares.table if isinstance(shares, Shares) else "unknown weights"


CHANGED: Sequence[Row[Case]] = (
    Row(
        Wrong("watch/one-factor", "clipped-by-value-then-averaged", once=True),
        when=lambda of: of.are_clipped_apart,
        effect=lambda of: None,
        site=lambda of: of.window.clipped_at,
    ),
    Row(Fact("changed.by-element"), lambda of: of.is_limited),
    Row(Fact("ranks.hook", "hooks"), lambda of: bool(of.hooks)),
    Row(Fact("ranks.run-out", lambda of: {"table": _table(of)}), lambda of: of.together.is_joined),
    Row(Fact("changed.captured"), lambda of: of.window.captured),
    Row(Fact("clearing.shared"), lambda of: not of.has_new and of.window.of_others.issuperset(of.parameters)),
    Row(Fact("changed.by-hand"), lambda of: not of.has_new),
)
"""No multiple of them, and the gradients cannot be explained further."""


def _is_own(of: Fit, found: Finding) -> None:
    found.waits, found.alone = of.case.drifts, True
    if len(of.case.used) < len(of.case.window.used):
        # The others are clipped separately or have zero gradients, so these may be a layer of this rank only.
        found.parameters = frozenset(of.case.used)


def _are_replicas(of: Fit, found: Finding) -> None:
    found.waits, found.parameters = of.case.of(of.case.replicas).drifts, frozenset(of.case.replicas)


def _of_replicas(code: str, when: Callable[[Case], bool]) -> Row[Fit]:
    return Row(
        Wrong(_AVERAGED, code, lambda of: of.case.counted(of.case.replicas), once=True),
        when=lambda of: of.case.has_parts and bool(of.case.replicas) and when(of.case),
        effect=lambda of: said(
            "parameters-own", parameters=len(of.case.replicas), all=len(of.case.parameters), ranks=of.ranks
        ),
        amend=_are_replicas,
    )


_OWN: Sequence[Row[Fit]] = (
    # Parts of a model that the ranks compute together are correct.
    _of_replicas("some-not-summed", lambda case: are_of_one_loss(case.together.here)),
    _of_replicas("some-not-averaged", lambda case: True),
    Row(
        Wrong(_AVERAGED, "own-gradients", lambda of: of.case.counted(of.case.used), once=True),
        effect=lambda of: said("ranks-in-update", used=1, ranks=of.ranks, rank=of.case.window.rank),
        site=lambda of: of.case.window.unreduced_at,
        amend=_is_own,
    ),
)
_CLIPPED_APART: Sequence[Row[Fit]] = (
    Row(
        Wrong("watch/one-factor", "clipped-then-averaged", "factors", once=True),
        when=lambda of: len({*of.factors}) > 1,
        effect=lambda of: said("rank-counts", times=max(of.factors) / min(of.factors)),
        site=lambda of: of.case.window.clipped_at,
    ),
)
_WITH_OLD: Sequence[Row[Fit]] = (
    Row(Fact("clearing.kept", lambda of: {"table": ""}), lambda of: of.case.is_changed),
    Row(Fact("clearing.shared"), lambda of: of.case.is_old_of_others),
    Row(Wrong(_CLEARED, "not-cleared", once=True), effect=lambda of: of.longer),
)

OF_OTHERS: Sequence[tuple[Callable[[Case], Choose], Sequence[Row[Fit]]]] = (
    (lambda case: case.own, _OWN),
    (lambda case: case.clipped_apart, _CLIPPED_APART),
    (lambda case: case.with_old, _WITH_OLD),
    (lambda case: case.own_with_old, _WITH_OLD),
)
"""Other gradients, with one factor."""


OF_PARTS: Sequence[Row[Case]] = (
    # Weights that start different may be broadcast after the first step.
    Row(
        Wrong("watch/own-gradient", "parts-averaged", lambda of: of.counted(of.parts_apart), once=True),
        when=lambda of: of.window.index > 0 and bool(of.parts_apart),
        effect=lambda of: said("follow-others", parameters=len(of.parts_apart), all=len(of.parameters)),
    ),
    Row(Fact("ranks.parts", lambda of: of.counted(of.parts))),
)
"""Partitioned parameters that use the gradients of all ranks."""


def _are_own(of: Apart, found: Finding) -> None:
    found.waits, found.parameters = of.case.of(of.own).drifts, frozenset(of.own)
    found.alone = len(of.own) == len(of.all)


def _is_old(of: Apart, found: Finding) -> None:
    found.is_of_all_steps = of.is_of_the_last_step


APART: Sequence[Row[Apart]] = (
    Row(
        Wrong("watch/fresh", "used-again", lambda of: of.counted(again=of.again, used=of.case.used), once=True),
        when=lambda of: of.is_used_again,
        effect=lambda of: said("stale", stale=len(of.again), all=len(of.case.used)),
        amend=_is_old,
    ),
    Row(
        Wrong(_CLEARED, "not-cleared", once=True),
        when=lambda of: of.case.keeps_old,
        effect=lambda of: None,
    ),
    Row(
        Wrong(_AVERAGED, "some-not-averaged", lambda of: of.counted(parameters=of.own, all=of.all), once=True),
        when=lambda of: bool(of.own),
        effect=lambda of: said("parameters-own", parameters=len(of.own), all=len(of.all), ranks=of.case.together.ranks),
        site=lambda of: of.case.window.unreduced_at,
        amend=_are_own,
    ),
    Row(
        Wrong("watch/own-gradient", "exchanged", "names others", once=True),
        when=lambda of: bool(of.exchanged),
        effect=lambda of: said("follow-others", parameters=len(of.exchanged), all=len(of.all)),
    ),
    Row(
        Fact("ranks.own-some", lambda of: of.counted(parameters=of.of_groups, all=of.all)),
        when=lambda of: bool(of.of_groups),
    ),
    Row(RIGHT, lambda of: of.are_clipped),
    # A script may shrink or grow gradients of a layer on purpose, by any number of few digits.
    Row(
        Wrong("watch/divided-once", "some-divided-twice", "divisor named"),
        when=lambda of: of.are_few_divided_twice and not of.may_be_chosen,
        effect=lambda of: said("parameters-shorter", parameters=len(of.few), all=len(of.case.used), times=of.times),
    ),
    Row(Fact("ranks.some-parameters", "named times"), lambda of: bool(of.few)),
)
"""Each parameter alone."""


def _are_missing(of: Shares, found: Finding) -> None:
    """Requires that all steps miss the same passes: a script may filter micro-batches on purpose, such as those with a
    large loss, and these differ from step to step."""
    found.is_of_all_steps = bool(of.dropped) or of.are_common
    found.passes = of.passes_at(of.dropped or of.alone)
    if found.is_of_all_steps:
        found.pattern = str(sorted(column for column, factor in of.of.items() if not factor))
    elif not of.alone and of.are_ranks_lost:
        # A group's ranks may train a separate model.
        found.waits, found.alone = of.case.drifts, True


def _at(of: Shares) -> Site:
    """The line of the first missing backward pass."""
    numbers = sorted(number for _, number in of.passes_at(of.dropped or of.alone))
    window = of.case.window
    return window.backwards[numbers[0]].site if numbers else window.unreduced_at


def _loses(of: Shares) -> Said:
    return tell(of, "lost-gradients", "lost all rank")


def _counts(of: Shares) -> Said:
    return tell(of, "pass-counts", "times")


SHARES: Sequence[Row[Shares]] = (
    Row(Fact("clearing.kept", "table"), lambda of: bool(of.old) and not of.are_old_alike),
    Row(Wrong(_CLEARED, "old-in-step", "table", once=True), lambda of: bool(of.old), effect=_counts),
    # Passes and ranks that are left out.
    Row(Fact("clearing.restored", "table"), lambda of: bool(of.dropped) and not of.is_dropped_by_mistake),
    Row(
        Wrong(_EVERY, "micro-batches-missing", "places table"),
        when=lambda of: bool(of.dropped),
        effect=_loses,
        site=_at,
        amend=_are_missing,
    ),
    Row(
        Wrong(_AVERAGED, "micro-batches-own", "places table"),
        when=lambda of: bool(of.alone),
        effect=_loses,
        site=_at,
        amend=_are_missing,
    ),
    # There is nothing to average in the gradients of one rank.
    Row(Fact("ranks.left-out", "table"), lambda of: of.are_ranks_left_out and of.are_common),
    Row(Wrong(_AVERAGED, "ranks-missing", "rank table"), lambda of: bool(of.lost), None, _loses, _at, _are_missing),
    # Operations that belong once in a window but ran for each micro-batch.
    Row(Wrong(_EVERY, "divided-again", "table", once=True), lambda of: of.is_divided_again, effect=_counts),
    Row(Wrong(_EVERY, "summed-again", "table", once=True), lambda of: of.is_summed_again, effect=_counts),
    Row(Wrong(_EVERY, "added-again", "table"), lambda of: of.are_added_again, effect=_counts),
    Row(Fact("clipping.before-change", lambda of: {"ratio": of.times}), lambda of: of.case.clipped_between),
    Row(RIGHT, lambda of: of.are_targets_alike),
    Row(Fact("micro.weighted", "table"), lambda of: len(of.numbers) > 1),
    Row(Fact("ranks.weighted", "table")),
)
"""Each rank and backward pass with a separate factor."""
