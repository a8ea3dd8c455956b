"""The picture of ring all-reduce: what each rank holds of each segment, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from conformance.adapter.backends import exchange_of
from conformance.oracle.ring import Message, contributions, schedule
from conformance.results import Results

from .figure import CLASSES

WORLD_SIZE = 3

CELL, GAP, ROW = (46, 22), 8, 42
LEFT, TOP = 44, 26
SIZE = LEFT + WORLD_SIZE * (CELL[0] + GAP), TOP + (WORLD_SIZE - 1) * ROW + CELL[1] + 18
"""Width and height of a panel."""


@dataclass(frozen=True)
class Panel:
    """The state after one step, and the messages that led to it."""

    title: str
    drawing: Markup
    messages: tuple[Message, ...]


def travels(results: Results) -> bool:
    """Whether ranks exchanged gradients in any case, by a ring or by what a ring could replace."""
    return any(exchange_of(case.backend) for case in results.cases)


def panels() -> tuple[Panel, ...]:
    """The start, and the state after each step of both phases."""
    titles = ["start", *(f"{phase} {n}" for phase in ("reduce-scatter", "all-gather") for n in range(1, WORLD_SIZE))]
    return tuple(
        Panel(title, _drawn(state, messages), messages)
        for title, state, messages in zip(titles, contributions(WORLD_SIZE), ((), *schedule(WORLD_SIZE)), strict=True)
    )


def _drawn(state: tuple[tuple[tuple[int, ...], ...], ...], messages: tuple[Message, ...]) -> Markup:
    arrived = {(message.receiver, message.segment) for message in messages}
    parts = [f'<text class="rn" x="{_x(s) + CELL[0] // 2}" y="9">seg {s}</text>' for s in range(WORLD_SIZE)]
    for rank, segments in enumerate(state):
        parts.append(f'<text class="rr" x="{LEFT - 8}" y="{_y(rank) + 15}">rank {rank}</text>')
        for segment, held in enumerate(segments):
            whole = " whole" if len(held) == WORLD_SIZE else ""
            new = " new" if (rank, segment) in arrived else ""
            box = f'x="{_x(segment)}" y="{_y(rank)}" width="{CELL[0]}" height="{CELL[1]}" rx="3"'
            parts.append(f'<rect class="rc{whole}{new}" {box}/>')
            parts += (_mark(origin, segment, rank) for origin in held)
    parts += map(_arrow, messages)
    return Markup("".join(parts))


def _mark(origin: int, segment: int, rank: int) -> str:
    """The number of the rank that contributed the gradient."""
    x = _x(segment) + round(CELL[0] * (origin + 0.5) / WORLD_SIZE)
    return f'<text class="rm {CLASSES[origin % len(CLASSES)]}" x="{x}" y="{_y(rank) + 15}">{origin}</text>'


def _arrow(message: Message) -> str:
    """From one row to the next; from the last row out at the bottom, and in again at the top."""
    x = _x(message.segment) + CELL[0] // 2
    below = _y(message.sender) + CELL[1]
    if message.receiver:
        return f'<path class="ra" d="M{x} {below + 2}V{_y(message.receiver) - 3}{_HEAD}"/>'
    return f'<path class="ra" d="M{x} {below + 2}v12{_HEAD}M{x} {TOP - 14}V{TOP - 3}{_HEAD}"/>'


_HEAD = "m-3-4l3 4l3-4"


def _x(segment: int) -> int:
    return LEFT + segment * (CELL[0] + GAP)


def _y(rank: int) -> int:
    return TOP + rank * ROW
