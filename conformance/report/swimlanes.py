"""The picture of a timeline: a lane for each rank, a box for each event in order, the broken laws at their boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from markupsafe import Markup, escape

from conformance.results.records import Finding, Moment, Timeline

from .figure import HEIGHT, RIGHT
from .lanes import Lanes, lanes
from .text import visible

LEFT, TOP, BOTTOM = 40, 12, HEIGHT - 22
LABEL = 11
MOST_LAWS = 3

KINDS = (("forward", "s0"), ("backward", "s1"), ("collective", "s2"), ("step", "s3"), ("else", "s5"))
"""What boxes show, with the colour of each."""


def legend() -> Markup:
    """What the colours mean, and in which direction time goes: the same below each picture, so that it stands once."""
    at = LEFT
    parts = []
    for name, colour in KINDS:
        parts.append(
            f'<path class="box {colour}" d="M{at} {HEIGHT - 9}h8"/><text x="{at + 11}" y="{HEIGHT - 6}">{name}</text>'
        )
        at += 24 + 5 * len(name)
    return Markup("".join(parts) + f'<text class="end" x="{RIGHT}" y="{HEIGHT - 6}">time →</text>')


def broken_at(findings: Sequence[Finding]) -> dict[tuple[object, ...], str]:
    """The law that each marked moment of a timeline breaks, by `key`."""
    return {key(moment): finding.law for finding in reversed(findings) for moment in finding.slice if moment.marked}


def key(moment: Moment) -> tuple[object, ...]:
    """What a moment of a finding and the same one of the timeline have in common."""
    return moment.rank, moment.event, moment.label, moment.where, moment.micro_batch


def drawing(timeline: Timeline | None, laws: Mapping[tuple[object, ...], str]) -> Markup | None:
    """The inside of an `<svg viewBox="0 0 360 216">`; None without a timeline. laws: as from `broken_at`."""
    if timeline is None or not timeline.moments:
        return None
    laid = lanes(timeline)
    broken = {
        laws[key(cell)]: (column, rank)
        for column, row in reversed([*enumerate(laid.rows)])
        for rank, cell in enumerate(row.cells)
        if cell is not None and key(cell) in laws
    }
    shown = [*reversed(broken.items())][:MOST_LAWS]
    top = TOP + LABEL * len(shown)
    step = (RIGHT - LEFT - 6) / len(laid.rows)
    across = [round(LEFT + 6 + (column + 0.5) * step) for column in range(len(laid.rows))]
    down = [round(top + (rank + 0.5) * (BOTTOM - top) / len(laid.ranks)) for rank in range(len(laid.ranks))]
    half = max(1, min(5, int(step / 2) - 1))
    labels = ((law, across[column], down[rank]) for law, (column, rank) in shown)
    parts = (_frame(laid, down), _meetings(laid, across, down), _boxes(laid, across, down, half), _labels(labels))
    return Markup("".join(chain.from_iterable(parts)))


def _frame(laid: Lanes, down: list[int]) -> Iterator[str]:
    lines = "".join(f"M{LEFT} {y}H{RIGHT}" for y in down)
    names = "".join(
        f'<text x="{LEFT - 6}" y="{y + 3}">rank {rank}</text>' for rank, y in zip(laid.ranks, down, strict=True)
    )
    yield f'<path class="fg" d="{lines}"/><g class="fy">{names}</g><use href="#lanes-key"/>'


def _meetings(laid: Lanes, across: list[int], down: list[int]) -> Iterator[str]:
    """A line between the ranks that meet in a collective."""
    path = ""
    for x, row in zip(across, laid.rows, strict=True):
        met = [y for y, cell in zip(down, row.cells, strict=True) if cell is not None]
        if row.joined:
            path += f"M{x} {met[0]}V{met[-1]}"
    yield f'<path class="fs" d="{path}"/>'


def _boxes(laid: Lanes, across: list[int], down: list[int], half: int) -> Iterator[str]:
    paths: defaultdict[str, str] = defaultdict(str)
    for x, row in zip(across, laid.rows, strict=True):
        for y, cell in zip(down, row.cells, strict=True):
            if cell is not None:
                paths["marked" if cell.marked else _colour(cell.event)] += f"M{x - half} {y}h{2 * half}"
    for name, path in sorted(paths.items()):
        yield f'<path class="box {name}" d="{path}"/>'


def _colour(event: str) -> str:
    return next((colour for kind, colour in KINDS if event.startswith(kind) or event.endswith(kind)), KINDS[-1][1])


def _labels(labels: Iterable[tuple[str, int, int]]) -> Iterator[str]:
    """Each law by name, with a line to the first box that breaks it."""
    for number, (law, x, y) in enumerate(labels):
        end = " end" if x > (LEFT + RIGHT) / 2 else ""
        height = TOP + LABEL * number
        yield f'<path class="fp" d="M{x} {height - 3}V{y}"/>'
        yield f'<text class="fl{end}" x="{x - 4 if end else x + 4}" y="{height}">{escape(visible(law))}</text>'
