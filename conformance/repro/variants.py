"""Of what the parts of a script have in several variants, those that a case needs."""

from __future__ import annotations

from conformance.adapter.backends import BACKENDS
from conformance.cases.case import Case
from conformance.repro.kinds import Calls, Counts, Ending, Numbers, Reading, Shows

_RUNS = {Ending: "run_within_limit", Calls: "run_for_calls", Reading: "run_for_reading", Counts: "run_for_buffers"}
_RESUMED = {"twice": "resumed_twice", "killed": "killed_and_resumed"}


def variants(case: Case, shows: Shows, *, is_resumed: bool) -> dict[str, str]:
    """By the names under which the other parts use them."""
    in_one_life = "under_horovod" if BACKENDS[case.backend].rendezvous == "horovod" else "in_processes"
    return {
        "in_one_life": in_one_life,
        "launch": _launch(case, shows, in_one_life, is_resumed=is_resumed),
        "run": _run(case, shows),
        "watch": shows.watch if isinstance(shows, Calls) else "watch",
        "Batch": "WeightedBatch" if case.problem.workload.loss == "weighted" else "Batch",
    }


def main_of(shows: Shows) -> str:
    """What ends a script."""
    if isinstance(shows, Calls):
        return shows.compares
    if isinstance(shows, Numbers) and shows.others:
        return "compare_with_others"
    return {Ending: "end", Reading: "compare_with_plain", Counts: "compare_buffers"}.get(type(shows), "compare")


def _launch(case: Case, shows: Shows, in_one_life: str, *, is_resumed: bool) -> str:
    if isinstance(shows, Calls) and shows.watch == "watch_saves":
        return "saved"
    if isinstance(shows, Calls) and shows.launch is not None:
        return shows.launch
    if is_resumed and isinstance(shows, Reading):
        return "read_in_both_lives"
    if is_resumed and case.world_sizes[1] != case.world_size:
        return "resumed_on_others"
    if is_resumed:
        return _RESUMED.get(case.resumed, "resumed")
    if in_one_life == "under_horovod" or case.world_size > 1 or isinstance(shows, Ending):
        return in_one_life
    return "in_this_process"


def _run(case: Case, shows: Shows) -> str:
    if type(shows) in _RUNS and getattr(shows, "watch", True):
        return _RUNS[type(shows)]
    if isinstance(shows, Numbers) and shows.quantity == "gradient":
        return "run_for_gradients"
    return "run_sharded" if case.backend == "fsdp2" else "run"
