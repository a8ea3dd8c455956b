"""Compares quantities between loss scales: what should follow the scale, and is the same at several, is wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isclose

from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.windows import Window
from conformance.watch.records import Site

OFTEN = 3
"""Windows at a scale that have the same value."""

_MOST_VALUES, _MOST_SCALES = 64, 16


@dataclass(frozen=True)
class Row:
    """A quantity. law: the one that a script breaks if the quantity is constant. near: up to which relative difference
    two values are equal. only: the single value that proves it; None if each does. least: times a scale, the smallest
    value that anybody would choose to follow it: one scale proves a smaller one."""

    law: str
    near: float
    only: float | None = None
    least: float = 0.0


ROWS: Mapping[str, Row] = {
    # What is unscaled: its largest element, and its norm, which rounds. Both grow with the scale, unless limited.
    "largest": Row("watch/unscale-before-clip", 1e-6),
    "norm": Row("watch/unscale-before-clip", 1e-4),
    # The limit of a clip call that gets scaled gradients. Nobody limits the norm of a model to less than a thousandth;
    # that of a small layer may have such a limit.
    "limit": Row("watch/unscale-before-clip", 1e-9, least=1e-3 * (1 - 1e-6)),
    "part-limit": Row("watch/unscale-before-clip", 1e-9),
    "element-limit": Row("watch/unscale-before-clip", 1e-9),
    # The weights' share in the gradients times the scale. The share itself is constant if it is added after unscaling.
    "weights": Row("watch/unscaled", 0.02),
    # The factor of a step times the loss scale of the next window, by the ratio of this scale to the own one.
    "next": Row("watch/unscaled", 0.02, only=1.0),
}


@dataclass
class _Quantity:
    """A row, for an optimizer on a rank. of: by loss scale, the first values. first, scale: what shows the first of
    them, and its scale. is_meant: whether the script undoes what makes it constant."""

    row: Row
    of: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: Finding | None = None
    scale: float = 1.0
    is_meant: bool = False

    def add(self, scale: float, value: float) -> None:
        if (scale in self.of or len(self.of) < _MOST_SCALES) and len(self.of[scale]) < _MOST_VALUES:
            self.of[scale].append(value)

    @property
    def same(self) -> tuple[float, list[float]]:
        """The value that most windows have at the most scales, and these scales."""
        found: dict[float, list[float]] = {}
        for scale, values in sorted(self.of.items()):
            middle = sorted(values)[len(values) // 2]
            count = sum(isclose(value, middle, rel_tol=self.row.near) for value in values)
            if count >= OFTEN and 2 * count > len(values):
                equal = next((one for one in found if isclose(one, middle, rel_tol=self.row.near)), middle)
                found.setdefault(equal, []).append(scale)
        return max(found.items(), key=lambda item: len(item[1]), default=(0.0, []))

    @property
    def is_wrong(self) -> bool:
        value, scales = self.same
        is_proof = self.row.only is None or isclose(value, self.row.only, rel_tol=self.row.near)
        is_constant = len(scales) > 1 or any(value < self.row.least * scale for scale in scales if scale != 1.0)
        return is_constant and is_proof and not self.is_meant and self.first is not None


class ByScale:
    """All rows of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int, str], _Quantity] = {}

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(quantity.is_wrong for quantity in self._of.values())

    def add(self, row: str, window: Window, scale: float, value: float, site: Site, *, shows: bool = True) -> None:
        """shows: whether the window would be wrong if the quantity is constant."""
        quantity = self._quantity(row, window)
        quantity.add(scale, value)
        if shows and quantity.first is None:
            says, rank, law = said(f"scale.{row}"), (window.rank,), quantity.row.law
            quantity.first = Finding(law, says, window.index, rank, site, None, window.optimizer)
            quantity.scale = scale

    def is_meant(self, row: str, window: Window) -> None:
        self._quantity(row, window).is_meant = True

    def is_wrong(self, row: str, optimizer: int, rank: int) -> bool:
        quantity = self._of.get((optimizer, rank, row))
        return quantity is not None and quantity.is_wrong

    def finish(self) -> None:
        for (_, _, row), quantity in self._of.items():
            if quantity.first is None or not quantity.is_wrong:
                continue
            value, scales = quantity.same
            values = {"scale": quantity.scale, "value": value, "scales": scales}
            says, effect = said(f"scale.{row}", **values), said(f"scale.{row}.effect", **values)
            count = sum(len(quantity.of[scale]) for scale in scales)
            self._findings.add(replace(quantity.first, says=says, effect=effect), count=count)

    def _quantity(self, row: str, window: Window) -> _Quantity:
        return self._of.setdefault((window.optimizer, window.rank, row), _Quantity(ROWS[row]))
