"""Checkpoints: who writes them."""

from __future__ import annotations

from collections import defaultdict

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import Run
from conformance.trace.events import Exchange, Save


@law(
    "save/one-writer",
    "A file of a checkpoint MUST be written by one rank at a time.",
    why="""Each rank that opens the file cuts off what another has written, and writes at a place of its own. What is in
        it in the end is whole only if all ranks write the same bytes and none is stopped meanwhile.""",
    source="PyTorch, Getting Started with Distributed Data Parallel, Save and Load Checkpoints: save in one process",
    fix="""
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), folder / "checkpoint.pt")
        dist.barrier()
        """,
    latent="If ranks do not write at the same pace, or one is killed, the file is broken, or of two ranks.",
)
def one_writer(run: Run) -> Outcomes:
    # Between two collectives or messages, nothing says which rank writes first.
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
                must="only one rank must write a file",
                because="ranks that write it at the same time cut off and overwrite what the others have written",
                however=f"ranks {ranks} all write {path} ({events[1].line})",
                shows=tuple(events[:2]),
            )
        )
