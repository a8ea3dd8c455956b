"""Laws of automatic mixed precision: gradients keep the bits of the case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from conformance.laws.averaging import correct_gradients, seen_gradients
from conformance.laws.gradients import Gradient, held
from conformance.laws.law import OK, Broken, Outcome, law
from conformance.laws.run import Run, Window, fact
from conformance.trace import events as trace
from conformance.trace.words import number
from conformance.workloads.precision import BF16, FP16, FP32, Format


@law(
    "amp/full-precision",
    "A trainer in an fp32 or fp64 case MUST NOT round gradients, or what they are computed from, to a narrower format.",
    why="""A number keeps 8 significant bits in bfloat16, 11 in float16 and 24 in float32. Inputs, losses, buffers or
        messages in a narrower format make gradients wrong by up to 0.4 percent of their largest terms.""",
    source="PyTorch documentation, torch.finfo",
    advice="compute losses, inputs, buffers and messages in the format of the parameters",
    fix="""
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat)  # in the format of the parameters
        flat /= dist.get_world_size()
        """,
    unless=("acc/averaged-once", "amp/autocast-only-if-asked"),
)
def full_precision(window: Window) -> Outcome:
    found = _gradients(window.run).get(window)
    if found is None:
        return None
    event, seen, rights = found
    master = window.plan.precision.master
    if any(_fits(right, seen, master, master) for right in rights):
        return OK
    narrower = [one for one in (FP32, FP16, BF16) if one.p < master.p]
    for right in rights:
        fitting = {one.dtype: one for one in narrower if _fits(right, seen, one, master)}
        loss = _cast(window, event, fitting) or _sent(window, event, fitting)
        if loss is not None:
            return _rounded(window, loss, event, seen, right)
    return None


Seen = tuple[trace.Clip | trace.Attempt, Sequence[float | None], Sequence[Gradient]]


@fact
def _gradients(run: Run) -> Mapping[Window, Seen]:
    """The gradients of each window: the event that saw them, as it saw them, and as they should be."""
    if run.plan.precision.mixed or run.plan.precision.compressed:
        return {}
    found: dict[Window, Seen] = {}
    for at, rights in correct_gradients(run).items():
        for window in run.numbered[at]:
            sight = seen_gradients(window) if at in held(window.rank) else None
            if sight is not None:
                found[window] = (*sight, rights)
    return found


def _fits(right: Gradient, seen: Sequence[float | None], computed: Format, planned: Format) -> bool:
    """Whether the gradients are correct up to the rounding of the format ``computed``."""
    times = float(computed.unit_roundoff / planned.unit_roundoff)
    each = zip(seen, right.value, right.slack, strict=True)
    return all(one is None or abs(one - value) <= times * slack for one, value, slack in each)


def _cast(window: Window, event: trace.Event, formats: Mapping[str, Format]) -> tuple[trace.Narrowed, Format] | None:
    """The cast that lost the most bits before ``event``: of this window, or else before training."""
    before = window.previous.attempts[-1:] if window.previous else ()
    recent = window.rank.between(trace.Narrowed, after=before[0] if before else None, before=event)
    casts = recent or [one for one in window.rank.setup if isinstance(one, trace.Narrowed)]
    # A single number is more often logged than trained with.
    cast = max((one for one in casts if one.dtype in formats), key=attrgetter("elements"), default=None)
    return None if cast is None else (cast, formats[cast.dtype])


def _sent(
    window: Window, event: trace.Event, formats: Mapping[str, Format]
) -> tuple[trace.Contribution, Format] | None:
    """The first exchange of gradients in fewer bytes than they have."""
    for sent in window.between(trace.Contribution, before=event):
        for one in formats.values():
            if sent.of == "gradients" and not sent.integers and sent.bytes == one.width * sent.elements:
                return sent, one
    return None


def _rounded(
    window: Window,
    loss: tuple[trace.Event, Format],
    event: trace.Event,
    seen: Sequence[float | None],
    right: Gradient,
) -> Broken:
    (at, to), master = loss, window.plan.precision.master
    each = zip(window.plan.model.elements, seen, right.value, right.slack, strict=True)
    name, one, value = next(
        (name, one, value) for name, one, value, slack in each if one is not None and abs(one - value) > slack
    )
    return Broken(
        at,
        expected=f"gradient {number(value)} in {name}, computed in {master.dtype}",
        observed=f"{number(one)} at {event}, after {at}",
        why=f"{to.dtype} keeps {to.p} significant bits, {master.dtype} {master.p}",
        shows=(at, event),
        effect=f"The gradients of window {window.number} are correct to the precision of {to.dtype} only.",
    )
