"""Does each rank step other parameters, which all of them train with, and never send them?"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.pairing import Pairing
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window


def judge(streams: Mapping[int, Stream], ranks: int, pairing: Pairing, first: Window, findings: Findings) -> None:
    """After the end. first: a window of the first step.

    Ranks that each step all parameters may average them now and then; of one that a single rank steps, the others have
    nothing new until they get it, and go on computing gradients of what it was."""
    if ranks == 1 or len(streams) < ranks:
        return
    common = set.intersection(*(stream.ever for stream in streams.values()))
    alone = {n for n in common if 0 < sum(n in stream.used_ever for stream in streams.values()) < ranks}
    names = {n: {stream.parameters[n].name for stream in streams.values()} for n in alone}
    # Ranks number parameters as they come; one is the same on all where it has one name.
    alone = {n for n in alone if len(names[n]) == 1 and None not in names[n]}
    unsent = sorted(pairing.stay_apart(alone, first.clock))
    if unsent:
        says = f"{len(unsent)} parameters are stepped on some ranks alone, and never sent to the others, which train "
        says += f"with them: {first.named(unsent)}"
        effect = f"{len(unsent)} parameters differ between the ranks"
        findings.add(Finding("watch/same-weights", says, first.index, tuple(streams), first.site, effect))
