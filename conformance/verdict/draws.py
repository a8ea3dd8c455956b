"""The random numbers that a model draws where training was stopped and resumed."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.run import Run
from conformance.trace.events import Draw
from conformance.verdict.buffers import Fate


def resumed_draws(runs: Sequence[Run]) -> Fate:
    """What ranks draw after a resume; ``runs``: one for each life. The first draw begins in the state that the last
    one left. In one of those from which it drew before, it draws the same again; in others, it may still be right, as
    the trainer may have drawn in between."""
    first, second = runs
    drawn = [_once(rank.of(Draw)) for rank in first.ranks]
    left = [draws[-1].after if draws else None for draws in drawn]
    for rank, resumed in enumerate(second.ranks):
        earlier, later = drawn[rank], resumed.of(Draw)
        if not earlier or not later:
            return Fate(
                unknown=f"no forward of rank {rank} that draws random numbers is seen before and after the stop: call "
                "the module that task.model() returns, in training mode"
            )
        begins = later[0].before
        if begins == left[rank]:
            continue
        again = next((number for number, draw in enumerate(earlier, start=1) if draw.before == begins), None)
        if again is not None:
            return Fate(
                f"rank {rank} draws the random numbers of its forward {again} again after the resume, and not those "
                "that come next: save `torch.get_rng_state()` on each rank, and set it last when the checkpoint is "
                "loaded"
            )
        if begins in left:
            return Fate(
                f"rank {rank} goes on with the random numbers of rank {left.index(begins)} after the resume: save the "
                "state of each rank's generator, and load its own"
            )
        return Fate(
            unknown=f"rank {rank} draws other random numbers after the resume than those that come next for its model, "
            "which may be right if it draws some itself in between: set the state of the generator last, before the "
            "first forward"
        )
    return Fate()


def _once(draws: Sequence[Draw]) -> Sequence[Draw]:
    """Without those that draw the same again, as activation checkpointing does in a backward, and sets back."""
    first: dict[str, Draw] = {}
    for draw in draws:
        first.setdefault(draw.before, draw)
    return list(first.values())
