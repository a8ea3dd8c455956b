"""The picture of ring all-reduce: the segments of each rank, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tools.ring import Message, contributions, schedule

WORLD_SIZE = 3
BOX, WHOLE = "#ffffff", "#d5ecdf"


def ring(figure: Any) -> None:
    """A panel for the start, and one for the state after each step of both phases."""
    titles = ["start", *(f"{phase} {n}" for phase in ("reduce-scatter", "all-gather") for n in range(1, WORLD_SIZE))]
    steps = zip(titles, contributions(WORLD_SIZE), ((), *schedule(WORLD_SIZE)), strict=True)
    for axes, (title, state, messages) in zip(figure.subplots(1, len(titles)), steps, strict=True):
        axes.set_title(title, fontsize="small")
        axes.set_axis_off()
        axes.set_xlim(-1.2, WORLD_SIZE - 0.4)
        axes.set_ylim(WORLD_SIZE - 0.3, -0.9)
        for segment in range(WORLD_SIZE):
            axes.text(segment, -0.75, f"seg {segment}", ha="center", fontsize="x-small")
        for rank, segments in enumerate(state):
            axes.text(-0.55, rank, f"rank {rank}", ha="right", va="center", fontsize="x-small")
            for segment, held in enumerate(segments):
                box = {"boxstyle": "round", "facecolor": WHOLE if len(held) == WORLD_SIZE else BOX, "linewidth": 0.6}
                text = " ".join(map(str, held))
                axes.text(segment, rank, text, ha="center", va="center", fontsize="small", bbox=box)
        for begin, end in _arrows(messages):
            axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "linewidth": 0.8})


def _arrows(messages: Iterable[Message]) -> Iterable[tuple[tuple[float, float], tuple[float, float]]]:
    """Arrows from one row to the next; from the last row out at the bottom, and in again at the top."""
    for message in messages:
        below = message.segment, message.sender + 0.25
        if message.receiver:
            yield below, (message.segment, message.receiver - 0.22)
        else:
            yield below, (message.segment, message.sender + 0.6)
            yield (message.segment, -0.6), (message.segment, -0.22)
