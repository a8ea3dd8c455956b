"""Are the parameters that get gradients those that optimizers hold?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.stream import Stream

_OFTEN = 2
_MOST_NAMED = 3
_LONG = 0.25
"""Of all steps."""
_MANY_STEPS = 14
"""From the second one to the 16th."""


def judge(rank: int, stream: Stream, findings: Findings) -> None:
    """After the end of a process."""
    for optimizer, held in stream.held.items():
        _judge_left(rank, stream, optimizer, findings)
        _judge_copies(rank, stream, optimizer, findings)
        _judge_taken_away(stream, optimizer, findings)
        _note_stopped(stream, optimizer, findings)
        silent = {number for number in held - stream.frozen if number not in stream.used_ever | stream.ever}
        if not silent:
            continue
        shapes = sorted(stream.parameters[number].shape for number in silent)
        unheld = stream.unheld
        if unheld is not None and sorted(unheld.shapes) == shapes:
            says = (
                f"{len(silent)} parameters of the optimizer never got a gradient, and as many of the model, alike, "
                f"got gradients that no optimizer holds: {', '.join(unheld.names[:3])}"
            )
            effect = f"{len(silent)} parameters of the model stay what they were"
            findings.add(Finding("watch/held", says, None, (rank,), None, effect, optimizer))
        elif _size(stream, silent) > _size(stream, held) / 2:
            findings.undecided("an optimizer holds parameters that never got a gradient, and they are most of it")
        else:
            findings.note(f"{len(silent)} parameters of an optimizer never got a gradient")
    if stream.unheld is not None and stream.unheld.unfrozen:
        # What is to stay as it is stays frozen, and what is looked at now and then is frozen again.
        names = ", ".join(stream.unheld.unfrozen[:3])
        says = (
            f"{len(stream.unheld.unfrozen)} parameters were unfrozen while others trained, and no optimizer was given "
        )
        effect = f"{len(stream.unheld.unfrozen)} parameters of the model get gradients, and stay what they were"
        findings.add(Finding("watch/held", f"{says}them: {names}", None, (rank,), None, effect))
    elif stream.unheld is not None:
        names = ", ".join(stream.unheld.names[:3])
        findings.undecided(f"no optimizer holds parameters that get gradients, such as {names}")


def _note_stopped(stream: Stream, optimizer: int, findings: Findings) -> None:
    """Parameters may be frozen in the midst of a training, and are not to stay so by mistake."""
    # A script may also give its optimizer others in their place.
    steps, held = stream.steps.get(optimizer, 0), stream.stepped_last.get(optimizer, frozenset())
    last = {stream.last_used[number] for number in held & stream.last_used.keys()}
    stopped = [one for one in held if steps - stream.last_used.get(one, steps) >= max(_MANY_STEPS, _LONG * steps)]
    if stopped and max(last) > max(stream.last_used[one] for one in stopped):
        names, since = ", ".join(_named(stream, stopped)), max(stream.last_used[one] for one in stopped)
        findings.note(
            f"{len(stopped)} of {len(held)} parameters of an optimizer have no gradients any more after step "
            f"{since - 1}: {names}"
        )


def judge_unstepped(stream: Stream, streams: Iterable[Stream], findings: Findings) -> None:
    """Does an optimizer that was made never step parameters that get gradients, nor does another one, on any rank?
    Its turn may not have come yet."""
    left = (stream.made & stream.ever) - {number for one in streams for number in one.used_ever}
    left -= {number for held in stream.held.values() for number in held}
    if left and stream.steps:
        names = ", ".join(_named(stream, left))
        findings.undecided(f"an optimizer never steps parameters that get gradients, such as {names}")


def judge_stale(rank: int, stream: Stream, stale: records.Stale, findings: Findings) -> None:
    """A gradient may be a step late on purpose. FSDP2 gathers nothing anew as long as it has what it gathered before,
    so that gradients are later with every step."""
    says = f"FSDP2 still has what it gathered of {len(stale.parameters)} parameters before the last steps: let it "
    says += "reshard after the last backward pass of a window (`set_reshard_after_backward(True)`)"
    step = max(stream.steps.values(), default=0)
    effect = f"gradients are of weights that are {stale.steps} steps old"
    findings.add(Finding("watch/held", says, step, (rank,), stale.site, effect))


def _judge_left(rank: int, stream: Stream, optimizer: int, findings: Findings) -> None:
    """Did all parameters of an optimizer, which goes on stepping, stop getting gradients, and others that are alike and
    that no optimizer holds get them? Who trains others on purpose has an optimizer for them, or steps this one no
    more. What got gradients beside them, as a teacher does that is not detached, has not taken their place."""
    held = stream.held[optimizer] - stream.frozen
    last = max((stream.last_used.get(number, 0) for number in held), default=0)
    since = stream.steps.get(optimizer, 0) - last
    shapes = Counter(tuple(stream.parameters[number].shape) for number in held)
    unheld = _shapes(stream.unheld) - _shapes(stream.unheld_then.get(optimizer))
    if not last or since < _OFTEN or not shapes or shapes - unheld:
        return
    says = f"the last {since} steps found no gradients, and as many parameters of a model, alike, got those that no "
    says += "optimizer holds"
    effect = f"{len(held)} parameters of the model stay what they were after step {last - 1}"
    findings.add(Finding("watch/held", says, last, (rank,), None, effect, optimizer))


def _judge_copies(rank: int, stream: Stream, optimizer: int, findings: Findings) -> None:
    """Does an optimizer step copies of the parameters that a model has, on gradients that are put there by hand, and
    never give the model what becomes of them? One that has masters of its own copies them back, if only now and then:
    gradients at weights that stay what they were lead nowhere. What is no copy may be how far to go from these weights,
    in a model that is linear around them."""
    held, unheld = stream.held[optimizer], stream.unheld
    if unheld is None or not unheld.are_copies or unheld.constant < _MANY_STEPS:
        return
    if held & stream.ever or not held & stream.used_ever:
        return
    if sorted(unheld.here) == sorted(stream.parameters[number].shape for number in held):
        says = f"an optimizer steps {len(held)} copies of parameters of the model, which itself stays as it was for "
        says += f"{unheld.constant} steps: {', '.join(unheld.names[:3])}"
        effect = f"{len(held)} parameters of the model stay what they were"
        findings.add(Finding("watch/held", says, None, (rank,), None, effect, optimizer))


def _shapes(unheld: records.Unheld | None) -> Counter[tuple[int, ...]]:
    return Counter() if unheld is None else Counter(tuple(shape) for shape in unheld.shapes)


def _judge_taken_away(stream: Stream, optimizer: int, findings: Findings) -> None:
    """Did no step ever use gradients that were computed? To take them away keeps a part of a model as it is."""
    held = stream.held[optimizer] - stream.frozen
    taken = [n for n in held & stream.ever - stream.used_ever if stream.parameters[n].shards == 1]
    if taken and held & stream.used_ever:
        names = ", ".join(_named(stream, taken))
        findings.undecided(f"gradients are computed and taken away before each step, such as those of {names}")


def _named(stream: Stream, numbers: Iterable[int]) -> list[str]:
    return [stream.parameters[number].name or f"parameter {number}" for number in sorted(numbers)[:_MOST_NAMED]]


def _size(stream: Stream, numbers: set[int]) -> int:
    total = 0
    for number in numbers:
        size = 1
        for length in stream.parameters[number].shape:
            size *= length
        total += size
    return total
