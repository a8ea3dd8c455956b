"""Are the gradients that a step used a multiple of those that were computed for it, and by which factor?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from conformance.watch.judging import diagnosis, limits, shares
from conformance.watch.judging.case import HOOKS, Case, Together
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.multiplied import factor_of, scale_of, weight_of
from conformance.watch.judging.system import AMPLE, System
from conformance.watch.judging.windows import Window
from conformance.watch.records import ENTROPIES
from conformance.watch.sizes import SMALL, WHOLE

SEVERAL_WEIGHTS = (
    "one step adds up gradients of backward passes between which weights were changed, or written once more: a "
    "`zero_grad` or a `detach` may be missing"
)

LATE = (
    "a step came between a forward and the backward pass through it: unless the script keeps the weights of that "
    "forward, its gradient is of neither weights"
)

BROKEN = (
    "weights are infinite or NaN: a rate may be too high, or the optimizer's state broken, as that of fused SGD is "
    "after a skip before its first step"
)

SUMMED = "gradients are summed over the {} ranks, not averaged: right if the loss is divided by a global count"

_SAME = 1e-4
"""Relative: what the sketches of two ranks may differ by beyond their bounds."""


def judge(together: Together, findings: Findings) -> None:
    """Look at the step of each rank."""
    for window in together.here:
        step = window.step
        if not all(np.isfinite(value).all() for value in window.weights.values()):
            findings.undecided(BROKEN)
        is_unread = step is not None and step.used and not window.used
        if step is None or step.found_inf or is_unread:
            continue
        findings.steps += 1
        if _is_judgeable(together, window, findings):
            of_others = {number for number in window.of_others - window.new.keys() if _is_as_it_was(window, number)}
            sets = [(clips, [n for n in parameters if n not in of_others]) for clips, parameters in _clip_sets(window)]
            cases = [Case(together, window, parameters, clips) for clips, parameters in sets if parameters]
            outcomes = [_judge_set(limits.undone(case) or case, findings) for case in cases]
            if of_others:
                findings.undecided(diagnosis.OF_OTHER)
            elif all(outcomes):
                findings.conserved += 1
                if window.saw_several_weights:
                    # On purpose for an average over disturbed weights; by mistake where one should have been cleared.
                    findings.undecided(SEVERAL_WEIGHTS)
                if window.is_late:
                    findings.undecided(LATE)
    clips = shares.clips_of(together)
    if not clips:
        _judge_ranks(together, findings)
    elif (found := shares.by_own_norms(together, clips)) is not None:
        findings.add(found)


def _judge_ranks(together: Together, findings: Findings) -> None:
    """Each rank used a multiple of the same sum: was it the same multiple?"""
    for parameters, by_rank in together.factors.items():
        if any((parameters, rank) in together.own for rank in by_rank):
            # The ranks' gradients are multiples of each other, and so of their sum, whatever became of it.
            continue
        lowest = min(by_rank, key=lambda rank: by_rank[rank].high)
        highest = max(by_rank, key=lambda rank: by_rank[rank].low)
        if by_rank[lowest].high * (1 + _SAME) < by_rank[highest].low:
            first = next(window for window in together.here if window.rank == lowest)
            ratio = by_rank[lowest].middle / by_rank[highest].middle
            findings.add(
                Finding(
                    "watch/one-factor",
                    f"of {len(parameters)} parameters, rank {lowest} uses {ratio:.3g} times what rank {highest} uses",
                    first.index,
                    (lowest, highest),
                    first.site,
                    f"the gradients of rank {lowest} are {ratio:.3g} of those of rank {highest}",
                    optimizer=first.optimizer,
                )
            )


def _is_judgeable(together: Together, window: Window, findings: Findings) -> bool:
    step = window.step
    assert step is not None

    def found(law: str, says: str, effect: str) -> None:
        findings.add(Finding(law, says, window.index, (window.rank,), window.site, effect, window.optimizer))

    held = len(step.parameters)
    if not step.used and not window.is_computed:
        findings.undecided(
            "an optimizer steps parameters that no backward pass has reached so far, as one kept for its schedule does"
        )
        return False
    if not step.used and (step.moved or step.closure):
        findings.factors.append((window.rank, None, False))
        findings.undecided("an optimizer gets its gradients in another way than by `.grad`")
        return False
    if not step.used:
        effect = f"0 of {held} parameters move along a gradient"
        says = "a step without any gradient"
        finding = Finding(
            "watch/has-gradient", says, window.index, (window.rank,), window.site, effect, window.optimizer
        )
        findings.factors.append((window.rank, finding, False))
        return False
    if not all(np.isfinite(sketch).all() for sketch in window.used.values()):
        # What `order.py` has found.
        return False
    if any(shards == 0 for shards in window.shards.values()):
        findings.undecided("parameters are split over ranks in a way that sketches do not follow")
        return False
    if not window.new and not window.captured:
        used = {number: sketch for number, sketch in window.used.items() if sketch[2]}
        again = used and all(_is_as_it_was(window, number) for number in used)
        if again and together.is_joined:
            # A rank that has run out of data goes on with the steps of the others.
            findings.undecided(diagnosis.RUN_OUT)
        elif again and window.is_of_other:
            findings.undecided(diagnosis.OF_OTHER)
        elif again and step.is_elsewhere:
            findings.undecided(
                "weights are changed between two steps along one gradient, as a search along a line does"
            )
        elif again and not step.closure and window.is_computed:
            effect = "the weights move along one gradient twice"
            found("watch/fresh", "a step without a backward pass since the last one", effect)
        elif used:
            findings.undecided(diagnosis.ELSEWHERE)
        elif window.is_computed:
            findings.undecided("a step on gradients that are zero, without a backward pass since the last one")
        else:
            # Horovod and DeepSpeed have an optimizer make its state so.
            return True
        return False
    return True


def _is_as_it_was(window: Window, number: int) -> bool:
    """Whether the step uses the gradient of the last step again, rather than one that was put there by hand."""
    old = window.old.get(number, [])
    is_same_sample = all(one.sample == window.samples.get(number, WHOLE) for one in old)
    if not old or number not in window.used or not is_same_sample:
        return False
    return np.array_equal(sum(one.sketch[0] for one in old), window.used[number])


def _clip_sets(window: Window) -> list[tuple[list[int], list[int]]]:
    """The parameters that were clipped by the same calls, after the numbers of these calls."""
    sets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number in window.used:
        sets[window.clips_of(number)].append(number)
    return [([*clips], parameters) for clips, parameters in sets.items()]


def _judge_set(case: Case, findings: Findings) -> bool:
    """Whether the step's gradients are conserved, with a factor that is right or may be."""
    window = case.window
    if not all(one.is_finite for number in case.parameters for one in case.all(number)):
        _judge_replaced(case, findings)
        return False
    if not any(window.used[number][2] for number in case.parameters):
        if not case.clipped or not any(case.sum(number)[:2].any() for number in case.parameters):
            return True
        findings.undecided("gradients that backward passes computed were set to zero before the step")
        return False
    if not case.is_of_one_sample:
        findings.undecided("ranks step a parameter in different windows, so that each looks at another sample of it")
        return False
    factor = case.fits(case.all) if any(case.all(number) for number in case.parameters) else None
    if factor is not None:
        if not factor.is_known:
            findings.undecided(
                "rounding may be as large as what there is to see: the gradients are too coarse or too small"
            )
            return False
        at = tuple(case.parameters)
        if case.independent >= 1 + AMPLE:
            case.together.factors[at][window.rank] = factor.within(case.after)
        if case.together.ranks > 1 and case.fits(case.own) is not None:
            case.together.own.add((at, window.rank))
        if not _judge_factor(case, factor, findings):
            return False
        if diagnosis.adds_to_the_last(case):
            says = "gradients were not cleared: those of the step before, which carry no loss scale, are in this one's"
            effect = f"the gradients of the step before count 1/{window.scales[0]:g} once more"
            findings.add(case.finding("watch/cleared", says, effect))
            return False
        return True
    if case.is_limited:
        if (early := limits.before_averaging(case)) is not None:
            findings.factors.append((window.rank, early, False))
        else:
            findings.undecided("gradients were clipped by value, element by element")
        return False
    unknown = [hook for hook in case.together.hooks if hook not in HOOKS]
    if unknown:
        findings.undecided(f"a communication hook changes what is averaged: {', '.join(sorted(unknown))}")
        return False
    if case.together.is_joined:
        findings.undecided(diagnosis.RUN_OUT)
        return False
    found = diagnosis.explain(case)
    if isinstance(found, str):
        findings.factors.append((window.rank, None, False))
        findings.undecided(found)
    elif isinstance(found, Finding) and not found.waits and _is_of_all_steps(case, found):
        findings.factors.append((window.rank, found, False))
    elif isinstance(found, System):
        findings.unsolved.append(found)
    else:
        findings.add(found)
    return False


def _is_of_all_steps(case: Case, found: Finding) -> bool:
    """Whether one step does not prove it."""
    return found.is_of_all_steps or case.independent < 1 + AMPLE


def _judge_replaced(case: Case, findings: Findings) -> None:
    """Gradients that are not finite became finite before the step.

    Without a loss scale that may be meant. With one they would be finite at a smaller scale, so that what is put in
    their place depends on the scale, and not on the loss; the step is to be left out, and the scale lowered."""
    scales = [backward.scale for backward in case.window.backwards.values() if backward.scale not in (None, 1.0)]
    rest = case.fits(case.finite)
    if not scales or (rest is not None and rest.is_known):
        findings.undecided("gradients that are not finite were replaced by finite ones by hand")
        return
    says = f"gradients overflowed at the loss scale {scales[0]:g}, and the step uses finite ones in their place"
    lost = sum(not all(one.is_finite for one in case.all(number)) for number in case.parameters)
    effect = f"the gradients of {lost} of {len(case.parameters)} parameters are made up"
    findings.add(case.finding("watch/finite", says, effect))


def _judge_factor(case: Case, factor: Factor, findings: Findings) -> bool:
    """kappa is what is left of the factor when the mean, the loss scale and clipping are taken out; 1 is right."""
    window, step, ranks = case.window, case.step, case.together.ranks
    error = max(1e-5, 16 * case.roundoff)
    if len(window.scales) > 1:
        says = f"backward passes of one window carry the loss scales {_list(window.scales)}"
        ratio = max(window.scales) / min(window.scales)
        findings.add(case.finding("watch/one-scale", says, f"some gradients count {ratio:g} times as much as others"))
        return False
    scale = window.scales[0] if window.scales else 1.0
    kappa = factor.within(case.after).times(ranks * scale / (step.grad_scale or 1.0) / case.clipped)
    hooked = case.hooked()
    if hooked is None:
        findings.note("hooks of the script's own change gradients before they are reduced: that is taken as computed")
    else:
        kappa = kappa.within(hooked)
    total, passes = _total(case), len(window.backwards)
    own, alive = scale_of(window) or 1.0, len(case.together.here)
    # Ranks that still have data may be averaged over, of those that train together.
    of_alive = ranks / alive if case.together.is_joined else 1.0
    numbers = (float(ranks), 1 / (total or 1.0), 1 / max(1, passes))
    likely = (1.0, of_alive, *numbers, 1 / own, ranks / own, 1 / ranks)
    case.together.kappas[window.rank].append(
        next((one for one in (1.0, 1 / (total or 1.0)) if kappa.contains(one, error)), kappa.middle)
    )
    if (after := _divided_after_clipping(case, likely)) is not None:
        findings.factors.append((window.rank, None, False))
        findings.undecided(
            f"gradients were clipped, and then divided by {after:g}: the limit was for so many times their norm"
        )
        return False
    if kappa.contains(1.0, error) or kappa.contains(of_alive, error):
        findings.factors.append((window.rank, None, True))
        return True
    if case.is_limited and kappa.high < 1:
        findings.undecided("gradients were clipped by value, element by element")
        return False
    # A scale may come down to such a number, by which a script may multiply or divide.
    is_number = any(kappa.contains(number, error) for number in numbers if number != 1)
    if scale != 1.0 and not is_number:
        if kappa.contains(scale, error) and step.is_own:
            findings.factors.append((window.rank, None, False))
            findings.undecided("an optimizer of the script's own is given scaled gradients, and may take signs of them")
            return False
        if kappa.contains(scale, error):
            says = f"the step uses gradients of the loss times {scale:g}"
            findings.add(case.finding("watch/unscaled", says, _off(scale)))
            return False
        if kappa.contains(1 / scale, error):
            says = f"the step uses gradients that were divided by the loss scale {scale:g} twice"
            findings.add(case.finding("watch/unscaled", says, _off(1 / scale)))
            return False
    unscaled = _unscaled(window)
    # By hand, a loss may be multiplied by it where its graph does not show it.
    is_seen = all((one.targets or one.summed) and max(one.factors, default=1) <= 1 for one in window.backwards.values())
    if scale == 1.0 and unscaled != 1.0 and is_seen and kappa.contains(1 / unscaled, error):
        says = f"no loss was multiplied by the loss scale {unscaled:g} that the gradients were divided by"
        findings.factors.append((window.rank, case.finding("watch/unscaled", says, _off(1 / unscaled)), False))
        return False
    divisor = step.grad_scale or unscaled
    if scale != 1.0 and divisor not in (1.0, scale) and kappa.contains(scale / divisor, error):
        # Nobody knows by how much a scale will have grown.
        says = f"gradients of the loss times {scale:g} were divided by {divisor:g}: the scale was updated before"
        findings.add(case.finding("watch/unscaled", says, _off(scale / divisor)))
        return False
    if ranks > 1 and kappa.contains(float(ranks), error):
        findings.note(SUMMED.format(ranks))
        findings.factors.append((window.rank, None, True))
        return True
    if passes > 1 and kappa.contains(1 / passes, error):
        divided = [math.prod(backward.factors) / (backward.scale or 1.0) for backward in window.backwards.values()]
        if all(math.isclose(one, 1 / passes, rel_tol=1e-6) for one in divided) and not _is_a_sum(case, total, passes):
            says = f"each loss was divided by {passes}, and so was the sum of their gradients"
            finding = case.finding("watch/divided-once", says, _off(1 / passes))
            findings.factors.append((window.rank, finding, False))
            return False
        findings.note("the sum over micro-batches is divided by their number, by hand")
        findings.factors.append((window.rank, None, True))
        return True
    # A number that losses are multiplied with, and gradients divided by, has no other use.
    if own > 1 and (kappa.contains(1 / own, error) or kappa.contains(ranks / own, error)):
        findings.note("losses are multiplied with a loss scale, and gradients divided by it, by hand")
        findings.factors.append((window.rank, None, True))
        return True
    if ranks > 1 and kappa.contains(1 / ranks, error) and not _is_a_sum(case, total, ranks):
        says = f"the sum over {ranks} ranks was divided by {ranks * ranks}"
        findings.factors.append((window.rank, case.finding("watch/averaged-once", says, _off(1 / ranks)), False))
        return False
    if total is not None and kappa.contains(1 / total, error):
        findings.note("sums of losses are divided by the number of their targets, by hand")
        findings.factors.append((window.rank, None, True))
        return True
    is_by_all = ranks > 1 and total is not None and kappa.contains(1 / (ranks * total), error)
    if total is not None and is_by_all and _are_apart(case):
        says = f"sums were divided by {ranks * total:g}, the targets of all ranks, and averaged over the ranks then"
        findings.factors.append((window.rank, case.finding("watch/averaged-once", says, _off(1 / ranks)), False))
        return False
    if not is_by_all:
        findings.factors.append((window.rank, None, False))
    # Where the ranks' numbers are equal, what divides may be each rank's own, times a factor of the script's.
    findings.undecided(f"gradients are multiplied, or changed in another way, as if by {kappa.middle:.4g}")
    return False


def _divided_after_clipping(case: Case, likely: Sequence[float]) -> float | None:
    """By which of these numbers, or of what they are 1 over, the norm of what a step used is less than that which a
    clip has left. Of a large parameter the norm is not known."""
    window = case.window
    clips = [window.clips[number][1] for number in case.clips]
    sizes = [window.sizes.get(number, 0) for number in case.parameters]
    if len(clips) != 1 or clips[0].how != "norm" or {*clips[0].parameters} != {*case.parameters}:
        return None
    if (
        clips[0].norm is None
        or case.clipped == 1
        or max(sizes) > SMALL
        or any(one > 1 for one in window.shards.values())
    ):
        return None
    ratio = clips[0].norm * case.clipped / math.hypot(*(float(window.used[one][2]) for one in case.parameters))
    numbers = {max(one, 1 / one) for one in likely if one}
    return next((one for one in numbers if one > 1 + _SAME and math.isclose(ratio, one, rel_tol=_SAME)), None)


def _total(case: Case) -> float | None:
    """What all targets weigh in the losses of a step, on average of the ranks, if these are sums; None if it is not
    known. What is divided by that is their mean."""
    here = case.together.here
    weights = [weight_of(window) for window in here]
    # A mean that is multiplied with the number of its targets is a sum.
    are_sums = any(
        one.summed or (one.targets and math.isclose(factor_of(one), one.targets))
        for window in here
        for one in window.backwards.values()
    )
    known = [weight for weight in weights if weight is not None]
    are_known = len(known) == len(here) == case.together.ranks
    return sum(known) / len(here) or None if are_sums and are_known else None


def _are_apart(case: Case) -> bool:
    """Whether the losses of ranks are cross entropies over different numbers of targets, each of which weighs 1. Half
    of a squared error may be meant."""
    passes = [one for window in case.together.here for one in window.backwards.values()]
    are_bare = all(math.isclose(factor_of(one), one.targets or 1) for one in passes if factor_of(one))
    are_entropies = all(one.made_by in ENTROPIES for one in passes)
    return are_bare and are_entropies and len({weight_of(window) for window in case.together.here}) > 1


def _is_a_sum(case: Case, total: float | None, number: int) -> bool:
    """Whether a loss may be a sum, to be divided by this number yet, which is that of the ranks or passes by chance."""
    if total is not None:
        return not math.isclose(total, 1, rel_tol=_SAME)
    passes = [one for window in case.together.here for one in window.backwards.values()]
    return any((one.of_any and not one.targets) or one.terms == number for one in passes)


def _unscaled(window: Window) -> float:
    """What a scaler divided the gradients by; 1 without one."""
    return math.prod(one.scale for _, one in window.unscales)


def _off(factor: float) -> str:
    return f"the gradients used are {factor:.3g} of what they should be"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
