"""Why gradients that a step used are no multiple of those that were computed for it.

First single hypotheses, each with one unknown factor; then least squares with one for each rank and backward pass. What
neither explains is undecided: the script may have changed gradients by hand, and rightly.
"""

from __future__ import annotations

import numpy as np

from conformance.watch.judging.case import Case
from conformance.watch.judging.factor import Factor
from conformance.watch.judging.findings import Finding

_MOST_COLUMNS = 200
_ZERO = 1e-3


def explain(case: Case) -> Finding | str:
    """The mistake, or why none is proved."""
    own = None
    if case.together.ranks > 1:
        own = case.fits(case.own)
        if own is not None and own.is_known:
            found = _found(
                case,
                "watch/averaged",
                "the step uses this rank's gradients alone",
                "the gradients of the other ranks are missing",
            )
            found.waits = case.step.type != "ZeroRedundancyOptimizer"
            return found
    for choose in (case.with_old, case.own_with_old):
        if _has_old(case) and (factor := case.fits(choose)) is not None and factor.is_known:
            return _found(
                case, "watch/cleared", "the step also uses gradients of earlier windows, which were not cleared"
            )
    if case.together.ranks > 1:
        some = _some_not_averaged(case)
        if some is not None:
            return some
    if case.window.captured:
        return "gradients come from torch.autograd.grad, and what becomes of them is not seen"
    return _by_least_squares(case)


def _has_old(case: Case) -> bool:
    return any(case.old(number) for number in case.parameters)


def _some_not_averaged(case: Case) -> Finding | None:
    """Whether each parameter alone is a multiple of all ranks' gradients or of this rank's, and some are the latter."""
    alone = []
    for number in case.parameters:
        single = Case(case.together, case.window, [number], case.clips)
        if not case.window.used[number][2] or _is_known(single.fits(single.all)):
            continue
        if not _is_known(single.fits(single.own)):
            return None
        alone.append(number)
    if not alone:
        return None
    return _found(
        case,
        "watch/averaged",
        f"{len(alone)} of {len(case.parameters)} parameters were not averaged over the ranks: "
        + case.window.named(alone),
        "for these the gradients of the other ranks are missing",
    )


def _is_known(factor: Factor | None) -> bool:
    return factor is not None and factor.is_known


def _by_least_squares(case: Case) -> Finding | str:
    terms = [
        (place, (rank, one.backward, is_old), one.sketch[min(case.shard(number), len(one.sketch) - 1)])
        for place, number in enumerate(case.parameters)
        for is_old, found in ((False, case.by_rank(number)), (True, case.old(number)))
        for rank, one in found
    ]
    columns = sorted({column for _, column, _ in terms})
    rows = 2 * len(case.parameters)
    if not columns or len(columns) > min(rows - 2, _MOST_COLUMNS):
        return "gradients were changed between backward and step, and there are too few parameters to say how"
    at = {column: number for number, column in enumerate(columns)}
    matrix, used, bounds = np.zeros((rows, len(columns))), np.zeros(rows), np.zeros(rows)
    equations = case.equations(case.with_old)
    for row, equation in enumerate(equations):
        used[row] = equation.used
        bounds[row] = max(equation.slack, 1e-300)
    for place, column, sketch in terms:
        matrix[2 * place : 2 * place + 2, at[column]] += sketch[:2]
    # Rounding of what was computed counts with the factor that it is used with, which is about this.
    typical = np.abs(used).sum() / max(np.abs(matrix).sum(), 1e-300) * len(columns)
    for row, equation in enumerate(equations):
        bounds[row] += typical * equation.spread
    solution, _, rank, _ = np.linalg.lstsq(matrix / bounds[:, None], used / bounds, rcond=1e-9)
    if rank < len(columns):
        return "gradients were changed between backward and step, and those of some passes are too alike to say how"
    if np.max(np.abs(matrix @ solution - used) / bounds) > 1:
        return "gradients were changed between backward and step, and not by factors: by hand, a hook, or noise"
    top = np.abs(solution).max()
    kept = np.where(np.abs(solution) < _ZERO * top, 0.0, solution)
    return _in_words(case, columns, kept)


def _in_words(case: Case, columns: list[tuple[int, int, bool]], factors: np.ndarray) -> Finding | str:
    of = {column: float(factor) for column, factor in zip(columns, factors, strict=True)}
    table = _table(case, of)
    if any(factor for (_, _, is_old), factor in of.items() if is_old):
        return _found(case, "watch/cleared", f"gradients of earlier windows are in the step: {table}")
    new = {column[:2]: factor for column, factor in of.items() if not column[2]}
    kept = {column: factor for column, factor in new.items() if factor}
    ranks = {rank for rank, _ in new}
    missing = sorted(new.keys() - kept.keys())
    if (
        missing
        and any(rank == case.window.rank for rank, _ in missing)
        and len({rank for rank, _ in missing}) == len(ranks)
    ):
        return _found(
            case,
            "watch/every-backward",
            f"backward passes are missing in the step: {table}",
            f"{len(missing)} of {len(new)} gradients are not in the update",
        )
    if missing:
        return _found(
            case,
            "watch/averaged",
            f"not every rank's gradient of each backward pass is in the step: {table}",
            f"{len(missing)} of {len(new)} gradients are not in the update",
        )
    if any(backward.contains for backward in case.window.backwards.values()):
        return _found(
            case, "watch/every-backward", f"a backward pass goes again through the graph of an earlier one: {table}"
        )
    return f"backward passes count with different weights, as if by their numbers of samples: {table}"


def _table(case: Case, of: dict[tuple[int, int, bool], float]) -> str:
    """The factors relative to the right one, by rank, in order of the backward passes."""
    right = max(of.values(), key=abs)
    ranks: dict[int, list[str]] = {}
    for (rank, _, is_old), factor in sorted(of.items()):
        ranks.setdefault(rank, []).append(f"{factor / right:.3g}{' (earlier)' if is_old else ''}")
    return "; ".join(f"rank {rank}: {', '.join(factors)}" for rank, factors in ranks.items())


def _found(case: Case, law: str, says: str, effect: str | None = None) -> Finding:
    window = case.window
    return Finding(law, says, window.index, (window.rank,), window.site, effect, optimizer=window.optimizer)
