"""Automatic mixed precision: what runs in half precision, and what float16 needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from conformance.laws.at_outputs import Term, at_outputs
from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import Plan, Window
from conformance.trace.events import (
    BackwardEnd,
    Forward,
    LossScaled,
    ScaleLossEnter,
    ScalerStep,
    Unscale,
    Update,
)

_SCALING = (LossScaled, Unscale, ScalerStep, Update, ScaleLossEnter)


@law(
    "amp/autocast-around-forward",
    "A trainer that is asked for bf16 or fp16 MUST run its forwards under autocast of that type.",
    why="""Without autocast everything runs in float32. The averages are right, but no time or memory is saved, and the
        half-precision code remains untested.""",
    source='PyTorch, torch.amp, section "Autocasting": it "should wrap only the forward pass(es) of your network, '
    'including the loss computation(s)"',
    fix="""
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(inputs), targets)
        loss.backward()
        """,
    latent="""Data that the type holds exactly give the same numbers in a wider type. Other data are rounded where the
        type is used, and in float16 they overflow beyond 65504.""",
)
def autocast_around_forward(window: Window) -> Outcomes:
    if window.plan.precision.amp != "torch":
        return
    wanted = window.plan.precision.compute.dtype
    seen = False
    # The forwards of reentrant checkpointing build no graph before the backward.
    for end in () if window.forwards else window.of(BackwardEnd):
        if end.recomputed and wanted not in end.recomputed and None not in end.recomputed:
            yield _not_autocast(end, end.recomputed[0], wanted)
            return
        seen |= wanted in end.recomputed
    # A penalty, say, may go forward in float32 beside the forward that trains in half precision.
    for forwards in _by_micro_batch(window):
        types = {forward.computes for forward in forwards}
        if wanted not in types and None not in types:
            yield _not_autocast(forwards[0], forwards[0].computes, wanted)
            return
        seen |= wanted in types
    if seen:
        yield OK


@law(
    "amp/autocast-only-if-asked",
    "A trainer that is asked for fp32 or fp64 MUST NOT run its forwards in bfloat16 or float16.",
    why="""Autocast that is always on rounds features, weights and outputs to 8 or 11 bits. Whoever asks for full
        precision gets gradients that are wrong by up to 0.4 percent.""",
    source="PyTorch, torch.autocast: its argument `enabled` says whether it should be in a region",
    fix="""
        with torch.autocast(device.type, enabled=use_amp):
            loss = criterion(model(inputs), targets)
        loss.backward()
        """,
    latent="""Data that the narrow type holds exactly give the same numbers in it. Other data are rounded, and in
        float16 they overflow beyond 65504.""",
)
def autocast_only_if_asked(window: Window) -> Outcomes:
    if window.plan.precision.mixed:
        return
    # A look at the model in half precision, say, may stand beside the forward that trains.
    for forwards in _by_micro_batch(window):
        if all(forward.computes in ("bfloat16", "float16") for forward in forwards):
            first = forwards[0]
            yield Broken(
                first,
                must=f"the forward must run in {window.plan.precision.compute.dtype}",
                because="the case asks for this precision",
                however=f"{first} of micro-batch {first.micro_batch} ran in {first.computes}",
                shows=(first,),
                effect=f"Its gradients are those of a run in {first.computes}.",
            )
            return
    if any(forward.computes for forward in window.forwards):
        yield OK


def _by_micro_batch(window: Window) -> Iterable[Sequence[Forward]]:
    found: defaultdict[int | None, list[Forward]] = defaultdict(list)
    for forward in window.forwards:
        found[forward.micro_batch].append(forward)
    return found.values()


def _not_autocast(event: Forward | BackwardEnd, computes: str | None, wanted: str) -> Broken:
    again = "" if isinstance(event, Forward) else ", which computed a forward again,"
    return Broken(
        event,
        must=f"the forward must run under autocast of {wanted}",
        because="the case asks for this precision",
        however=f"{event}{again} of micro-batch {event.micro_batch} ran in {computes}",
        shows=(event,),
        effect=f"Its gradients are those of a run in {computes}.",
    )


@law(
    "amp/scaler-with-fp16",
    "Losses of forwards in float16 SHOULD be scaled before their backward.",
    why="""The backward of a float16 forward computes float16 gradients, whose smallest positive number is 6e-8. Smaller
        gradients become zero, and their parameters silently stop learning.""",
    source='PyTorch, torch.amp, section "Gradient Scaling": "To prevent underflow, gradient scaling multiplies the '
    "network's loss(es) by a scale factor\"",
    fix="""
        scaler = torch.amp.GradScaler(device.type)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
)
def scaler_with_fp16(window: Window) -> Outcomes:
    if window.plan.spec["scaler"] is None:
        return
    half, ends = _in_half(window)
    if any(end.scaled is not None for end in ends):
        yield OK
    # A trainer may scale the loss by hand, and unscale gradients where nobody sees it.
    elif not window.rank.has(_SCALING) and (plain := next((end for end in ends if _is_plain(window, end)), None)):
        # Such a scale may come down to 1.
        scales = any(_is_larger(other, end) for other in window.rank.windows for end in _in_half(other)[1])
        yield OK if scales else _not_scaled(next(half[number] for number in plain.forwards if number in half), plain)


def _in_half(window: Window) -> tuple[Mapping[int, Forward], Sequence[BackwardEnd]]:
    """The forwards in float16, and the backwards through them."""
    half = {forward.forward: forward for forward in window.forwards if forward.computes == "float16"}
    return half, [end for end in window.of(BackwardEnd) if not half.keys().isdisjoint(end.forwards)]


def _is_plain(window: Window, end: BackwardEnd) -> bool:
    """Whether the gradients at the model's outputs are those of the mean over the window, by one rank or by all: then
    there is no scale in them."""
    factors, terms = _factors(window), _terms(window, end)
    return any(
        all(abs(term.gradient - factor * term.residual) <= _error(term, factor) for term in terms)
        # Else twice as much would fit too.
        and any(_error(term, factor) < abs(term.gradient) / 4 for term in terms)
        for factor in factors
    )


def _is_larger(window: Window, end: BackwardEnd) -> bool:
    """Whether the gradients at the model's outputs are larger than those of any mean."""
    largest, terms = max(_factors(window), default=0.0), _terms(window, end)
    return bool(terms) and all(
        abs(term.gradient) - _error(term, largest) > largest * abs(term.residual) for term in terms
    )


def _factors(window: Window) -> Sequence[float]:
    """What the mean over the window multiplies residuals by, by one rank or by all."""
    plan = window.plan
    shares = [plan.micro_batches(rank, window.number) for rank in range(plan.world_size)]
    samples = [sample for share in shares for micro_batch in share for sample in micro_batch]
    total = sum(plan.spec["samples"]["weight"][sample] for sample in samples) if _is_weighted(plan) else len(samples)
    return (2 / total, 2 * plan.world_size / total) if total else ()


def _terms(window: Window, end: BackwardEnd) -> Sequence[Term]:
    terms = [term for one in at_outputs(window.rank) if one.end is end for term in one.terms]
    return [term.weighted() if _is_weighted(window.plan) else term for term in terms]


def _is_weighted(plan: Plan) -> bool:
    return bool(plan.spec["loss"] == "weighted")


def _error(term: Term, factor: float) -> float:
    return term.gradient_error + factor * term.residual_error


def _not_scaled(forward: Forward, end: BackwardEnd) -> Broken:
    return Broken(
        end,
        must="the loss should be scaled before `backward()`",
        because="gradients are computed in float16, where numbers smaller than 6e-8 become zero",
        however=f"{forward} ran in float16, and {end} on its unscaled loss",
        shows=(forward, end),
        effect="Small gradients are lost; large ones are right.",
    )
