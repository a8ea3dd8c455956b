"""Where the code of a failed case changes: as the law, the guard, the known bugs or the error say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from conformance.laws.law import Law
from conformance.oracle.faults import KNOWN
from conformance.results.result_lines import ONLY, PAIR, CaseRecord, Finding, Lines, Reason

from .places import Place, calls_of, kind_of, own_place
from .signs import Cause

#: By the guard of a resume.
OF_RESUMES = {
    "resumes at another place in the data": "find the restored place in the data from load",
    "resumed with other weights": "restore weights",
    "resumed with other state of the optimizer": "change rounding; restore optimizer",
    "resumed at the same loss scale": "restore scaler",
    "random numbers after the resume": "restore random",
    "averages of weights after the resume": "restore average",
}

_FACTOR = "find the factor at or above scaling|gradient|loss|backward"
#: By the kind of a cause and its key.
OF_CAUSES: Mapping[tuple[str, str], str] = {
    ("guard", "weights changed outside the steps"): "change kept; change outside",
    ("guard", "factors by parameter"): f"change twice; {_FACTOR}",
    ("guard", "each parameter"): "change part",
    ("guard", "factors by rank"): _FACTOR,
    ("guard", "factors by micro-batch"): _FACTOR,
    ("guard", "learning rate of each step"): "change rate|scheduler",
    ("guard", "all samples read"): "change loader",
    ("guard", "steps undone"): "change part; change weights",
    ("guard", "all parameters stepped"): "change optimizer",
    ("guard", "precision of the loss"): "change cast; find the rounding at or above backward",
    ("setup", "optimizer"): "change optimizer",
    ("setup", "learning rate"): "change rate; change scheduler",
    ("setup", "clip"): "change clip",
    ("setup", "loss"): "change loss",
    ("setup", "start"): "change beginning",
}

OF_REASONS = {"overflow kept": "zero_grad also if skipped; find the skipped step at or above step"}


def known_lines(case: CaseRecord, law: Finding | None) -> dict[str, Place]:
    """The lines that an edit may name."""
    lines = calls_of(case)
    if law is not None and law.where is not None:
        lines["it"] = Lines(law.where, law.source)
    elif case.verdict == "CRASH" and case.reason is not None and case.reason.where is not None:
        lines["it"] = Lines(case.reason.where, case.reason.source)
    if law is not None and law.origin is not None:
        lines["origin"] = law.origin
    places = {call: place for call, line in lines.items() if (place := own_place(case, line)) is not None}
    # A scaler's step also unscales.
    if "scaler_step" in places and "unscale" in places and places["scaler_step"].at == places["unscale"].at:
        del places["unscale"]
    # Another call of this kind in the file may be correct.
    where = ((law and law.where) or "").partition(", called from ")[0]
    same = [kind_of(one.event) for one in (law.slice if law else ()) if one.marked and one.where == where]
    if "gradient_change" in same and (by_hand := places.get("gradient", places.get("between"))) is not None:
        # The event has the line that notices the change.
        places["it"] = by_hand
    return places | {kind: places["it"] for kind in same if kind in places and places[kind].file == places["it"].file}


def edits_of(
    law: Finding | None, text: Law | None, bugs: Sequence[str], cause: Cause, reason: Reason, *, is_known: bool
) -> str:
    """The data of the edit: of the law, of the guard, of the reason, or of the known bugs if they agree."""
    if cause.key in OF_RESUMES:
        return OF_RESUMES[cause.key]
    if (edit := OF_CAUSES.get((cause.kind, cause.key))) is not None:
        return edit
    if cause.kind == "guard" and reason.edit:
        return reason.edit
    if law is not None and text is not None and not is_known:
        return "; ".join(filter(None, (law.edit, "change origin", text.edits)))
    if law is None and cause.kind == "reason" and reason.code in OF_REASONS:
        return OF_REASONS[reason.code]
    edits = {fault.name: fault.edit for fault in KNOWN}
    found = {"; ".join(dict.fromkeys(edits.get(name, "") for name in single_bugs(one))) for one in bugs}
    edit = found.pop() if len(found) == 1 else ""
    return "; ".join(filter(None, (edit, _FACTOR))) if cause.kind in ("factor", "factors") else edit


def edit_of_call(advice: str, known: Mapping[str, Place]) -> str:
    """The edit of the call that an error's advice names."""
    names = [name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", advice)]
    calls = (call for call, place in known.items() for name in names if f"{name}(" in place.own)
    return "".join(f"change {call}" for call in [*calls][:1])


def single_bugs(bug: str) -> list[str]:
    """The single bugs of a pair, without the windows that they are in."""
    return [one.partition(ONLY)[0] for one in bug.split(PAIR)]
