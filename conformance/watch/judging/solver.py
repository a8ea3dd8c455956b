"""Explains the step of a rank by the table of hypotheses."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.watch.judging.apart import Apart
from conformance.watch.judging.equations import Case, Shortened
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding, Findings, Said, Shown, said
from conformance.watch.judging.fit import Fit
from conformance.watch.judging.hypotheses import (
    APART,
    CHANGED,
    LEFT_OPEN,
    OF_ALL,
    OF_OTHERS,
    OF_PARTS,
    SHARES,
    Fact,
    Of,
    Row,
    tell,
)
from conformance.watch.judging.properties import FACTS, Property
from conformance.watch.judging.system import System, system_of
from conformance.watch.judging.targets import are_of_one_loss, differs, is_of_all_ranks, losses_of
from conformance.watch.judging.windows import Contribution, are_stages

COARSE: Shown = (Property.RANKS, "too coarse to tell")
"""The outcome of a step whose factor cannot be determined, so it is not judged."""


def explain(case: Case, findings: Findings) -> set[Shown]:
    """What a rank's step shows beyond the usual, empty if it is correct."""
    if (shows := _by(LEFT_OPEN, case, case, findings, is_ample=True)) is not None:
        return shows
    # Each part of a tensor or model has its own gradient, which does not concern the other parts.
    parts = case.parts
    if parts and (kappa := _of_parts(case)) is not None:
        if case.known(case.of_parts) is None and (says := _divided_apart(case)) is not None:
            findings.leave_open(says, case.steps, case.since, case.window.site)
        return _judge_factor(case, kappa, findings)
    if case.has_new and (factor := case.fits(case.all)) is not None:
        if not factor.is_known:
            return {COARSE}
        if parts:
            shows = _by(OF_PARTS, case, case, findings)
            assert shows is not None, "the last row always applies"
            return shows
        case.remember(factor)
        return _judge_factor(case, case.kappa(factor), findings)
    if (of_one := _of_one_loss(case)) is not None:
        return _judge_factor(case, of_one, findings)
    if (shows := _by(CHANGED, case, case, findings)) is not None:
        return shows
    if (shows := _of_others(case, findings)) is not None:
        return shows
    if (shows := _by(APART, Apart(case), case, findings)) is not None:
        return shows
    system = system_of(case)
    if system is None:
        return _state(case, said("changed.few"), findings)
    if system.is_ample:
        return solve(system, findings)
    findings.unsolved.append(system)
    return {(case.window.optimizer, case.window.rank)}


def solve(system: System, findings: Findings) -> set[Shown]:
    """What the factors of the ranks and backward passes show."""
    shares, case = system.solved(), system.case
    if isinstance(shares, str):
        apart = Apart(case)
        if table := apart.multiples:
            return _state(case, said("ranks.by-parameter", table=table), findings)
        some = said("changed.some", **apart.counted(some=apart.strange, all=case.used))
        return _state(case, some if apart.are_some_strange else said(shares), findings)
    shows = _by(SHARES, shares, case, findings, is_ample=system.is_ample)
    assert shows is not None, "the last row always applies"
    return shows


def _of_others(case: Case, findings: Findings, *, is_exact: bool = False) -> set[Shown] | None:
    """What other gradients show, if the step used a multiple of them; None if it used none. is_exact: it must use
    their sum or mean."""
    for of_case, rows in OF_OTHERS:
        choose = of_case(case)
        if all([*map(id, choose(number))] == [*map(id, case.all(number))] for number in case.parameters):
            continue
        factor = case.known(choose)
        is_sum_or_mean = factor is not None and any(factor.contains(1 / of) for of in (1, case.together.over))
        if factor is not None and (is_sum_or_mean or not is_exact):
            shows = _by(rows, Fit(case, factor), case, findings)
            if shows is not None:
                return shows
    return None


def _of_parts(case: Case) -> Factor | None:
    """The factor if some parameters are partitioned: the division by the ranks may include these parts or not."""
    factors = [case.known(choose) for choose in (case.of_parts, case.of_whole_parts)]
    kappas = [case.kappa(factor) for factor in factors if factor is not None]
    if len(kappas) == 1 and factors[0] is not None and kappas[0].low > 1:
        # Parts and sums of the replicas have one factor, so the ranks compute one loss, and a clip made the factor.
        is_clipped = kappas[0].high < case.together.ranks
        return kappas[0].times(1 / case.together.over if is_clipped or are_stages(case.together.here) else 1.0)
    return next((one for one in kappas if one.contains(1)), kappas[-1] if kappas else None)


def _divided_apart(case: Case) -> Said | None:
    """What the division of the replicas, but not of the parts, shows: both are sums over the losses of all ranks."""
    here, ranks = case.together.here, case.together.ranks
    copies = {len(case.together.with_same(number, case.window.rank)) for number in case.parts}
    if (losses := losses_of(here)) > max(copies):
        return said("ranks.parts-summed", losses=losses, **case.counted(case.parts))
    shared = [number for number in case.shared if differs(here, number)]
    if are_of_one_loss(here) and shared:
        return said("ranks.one-loss-averaged", ranks=ranks, **case.counted(shared))
    return None


def _of_one_loss(case: Case) -> Factor | None:
    """The factor if all ranks compute one loss, and each has its part of a parameter's gradient, or already all of it;
    relative to their sum, with the loss scale and clipping undone."""
    here = case.together.here
    if not is_of_all_ranks(here) and not case.step.partial:
        return None

    def choose(number: int) -> list[Contribution]:
        is_whole = number in case.together.partitioned or not differs(here, number)
        return case.own(number) if is_whole else case.all(number)

    factor = case.known(choose)
    return None if factor is None else case.kappa(factor).times(1 / case.together.over)


def _judge_factor(case: Case, kappa: Factor, findings: Findings) -> set[Shown]:
    """Judges the factor. kappa: relative to the mean over the ranks, with the loss scale and clipping undone."""
    window = case.window
    hooked = case.hooked()
    if hooked is None and not case.are_averaged_by_hooks:
        findings.leave_open(said("clipping.hooks"), step=window.index, site=window.site)
    of = Fit(case, kappa if hooked is None else kappa.within(hooked))
    if len(window.scales) <= 1:
        case.together.kappas[window.rank].append(of.right)
    before = len(findings.factors)
    shows, norm = _by(OF_ALL, of, case, findings, is_ample=True), case.norm if of.kappa.high < 1 else None
    suspected = next((found for _, found, _ in findings.factors[before:]), None)
    if shows is not None and (suspected is None or norm is None):
        return shows
    # Almost parallel gradients fit with any factor. Those that need none explain the step better, unless hooks of the
    # script made the factor.
    is_hooked = hooked is not None and not hooked.contains(1)
    if shows is None and not is_hooked and (shows := _of_others(case, findings, is_exact=True)) is not None:
        return shows
    if norm is not None:
        # Hand-written clipping, if the norm is the same in each such step.
        if suspected is None:
            findings.factors.append((window.rank, None, False))
        case.together.shortened[window.rank].append(Shortened(of.kappa.middle, norm, suspected))
        return {(window.optimizer, window.rank)}
    return _state(case, said("ranks.factor", factor=of.kappa.middle), findings)


def _by(
    rows: Sequence[Row[Of]], of: Of, case: Case, findings: Findings, *, is_ample: bool | None = None
) -> set[Shown] | None:
    """Applies the first row that fits; None if none does. is_ample: the equations prove it in one step."""
    fitting = (one for one in rows if (one.factor is None or one.factor(of) is not None) and one.when(of))
    if (row := next(fitting, None)) is None:
        return None
    what, window = row.what, case.window
    if what is None:
        findings.factors.append((window.rank, None, True))
        return set()
    says = tell(of, what.code, what.values)
    if isinstance(what, Fact):
        return _state(case, says, findings, is_right=what.is_right)
    factor = row.factor(of) if row.factor is not None else None
    effect = said("factor", factor=factor) if row.effect is None else row.effect(of)
    site = (row.site(of) if row.site is not None else None) or window.site
    found = Finding(what.law, says, case.since, (window.rank,), site, effect, window.optimizer, steps=case.steps)
    found.is_of_all_steps = not what.once
    row.amend(of, found)
    is_ample = case.is_ample if is_ample is None else is_ample
    if found.waits or (is_ample and not found.is_of_all_steps):
        findings.add(found)
    else:
        findings.factors.append((window.rank, found, False))
    return {found.shows}


def _state(case: Case, says: Said, findings: Findings, *, is_right: bool = False) -> set[Shown]:
    """Leaves the step open with a fact."""
    window = case.window
    findings.factors.append((window.rank, None, is_right))
    findings.leave_open(says, case.steps, case.since, window.site)
    return {FACTS[says.code]}
