"""Laws of checkpoints: which ranks write them."""

from __future__ import annotations

from collections import defaultdict

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.subjects import Run
from conformance.trace.events import Exchange, Save


@law(
    "save/one-writer",
    "A file of a checkpoint MUST be written by one rank at a time.",
    fault="writes one checkpoint file from several ranks at once",
    why="""Each rank that opens the file truncates it and writes at its own offset. The file ends up intact only if all
        ranks write the same bytes and finish.""",
    source="PyTorch, Getting Started with Distributed Data Parallel, Save and Load Checkpoints: save in one process",
    advice="write on rank 0 only, then call `dist.barrier()`",
    fix="""
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), folder / "checkpoint.pt")
        dist.barrier()
        """,
    latent="If one rank is slower, or is killed, the file is corrupt or mixes two ranks.",
)
def one_writer(run: Run) -> Outcomes:
    # Between two collectives or messages, the ranks' writes have no order.
    writers: defaultdict[tuple[str, int], list[Save]] = defaultdict(list)
    for rank in run.ranks:
        for event in rank.of(Save):
            together = writers[event.path, len(rank.between(Exchange, before=event))]
            if not any(one.rank == event.rank for one in together):
                together.append(event)
    for (path, _), events in writers.items():
        ranks = ", ".join(str(event.rank) for event in events)
        yield (
            OK
            if len(events) == 1
            else Broken(
                events[1],
                expected="one rank writes the file",
                observed=f"ranks {ranks} all write {path} ({events[1].line})",
                why="ranks that write at the same time truncate and overwrite each other's bytes",
                shows=tuple(events[:2]),
            )
        )
