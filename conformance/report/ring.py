"""The picture of ring all-reduce: what each rank holds of each segment, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from markupsafe import Markup

from conformance.adapter.backends import exchange_of
from conformance.oracle.ring import Message, contributions, schedule
from conformance.results import Results

from .figure import CLASSES

WORLD_SIZE = 3

CELL, GAP, ROW = (46, 22), 8, 42
LEFT, TOP = 44, 26


@dataclass(frozen=True)
class Panel:
    """The state after one step, and the messages that led to it."""

    title: str
    drawing: Markup
    messages: tuple[Message, ...]


def travels(results: Results) -> bool:
    """Whether gradients travelled in any case, on a path that the ring explains."""
    # By all-reduce, or by a path that a ring could replace.
    return any(exchange_of(case.backend) for case in results.cases)


@cache
def panels(world_size: int = WORLD_SIZE) -> tuple[Panel, ...]:
    """The start, and the state after each step of both phases."""
    states, steps = contributions(world_size), ((), *schedule(world_size))
    phase = world_size - 1
    titles = [
        "at first",
        *(f"reduce-scatter {n + 1}" for n in range(phase)),
        *(f"all-gather {n + 1}" for n in range(phase)),
    ]
    return tuple(
        Panel(title, _drawn(state, messages), messages)
        for title, state, messages in zip(titles, states, steps, strict=True)
    )


def size(world_size: int = WORLD_SIZE) -> tuple[int, int]:
    """Width and height of a panel."""
    return LEFT + world_size * (CELL[0] + GAP), TOP + (world_size - 1) * ROW + CELL[1] + 18


def _drawn(state: tuple[tuple[tuple[int, ...], ...], ...], messages: tuple[Message, ...]) -> Markup:
    last = len(state) - 1
    arrived = {(message.receiver, message.segment) for message in messages}
    parts = [f'<text class="rn" x="{_x(s) + CELL[0] // 2}" y="9">seg {s}</text>' for s in range(last + 1)]
    for rank, segments in enumerate(state):
        parts.append(f'<text class="rr" x="{LEFT - 8}" y="{_y(rank) + 15}">rank {rank}</text>')
        for segment, held in enumerate(segments):
            whole = " whole" if len(held) == len(state) else ""
            new = " new" if (rank, segment) in arrived else ""
            box = f'x="{_x(segment)}" y="{_y(rank)}" width="{CELL[0]}" height="{CELL[1]}" rx="3"'
            parts.append(f'<rect class="rc{whole}{new}" {box}/>')
            parts += (_mark(origin, segment, rank, len(state)) for origin in held)
    parts += (_arrow(message, last) for message in messages)
    return Markup("".join(parts))


def _mark(origin: int, segment: int, rank: int, ranks: int) -> str:
    """The number of the rank that contributed the gradient."""
    x = _x(segment) + round(CELL[0] * (origin + 0.5) / ranks)
    return f'<text class="rm {CLASSES[origin % len(CLASSES)]}" x="{x}" y="{_y(rank) + 15}">{origin}</text>'


def _arrow(message: Message, last: int) -> str:
    """From one row to the next; from the last row out at the foot, and in at the head of the first."""
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
