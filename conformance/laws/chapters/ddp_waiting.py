"""Averaging over ranks: what is asynchronous has to be waited for."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.laws.law import OK, Broken, Outcomes, law
from conformance.laws.run import Window, fact
from conformance.laws.sharing import brings_together
from conformance.trace.events import Collective, Event, Exchange, Receive, Step

_SOURCE = "PyTorch documentation, torch.distributed: synchronous and asynchronous collective operations"
_FIX = """
    handles = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
    for handle in handles:
        handle.wait()  # each of them: they may end in any order
    optimizer.step()
    """


@law(
    "ddp/wait-before-step",
    "What writes to gradients or weights asynchronously MUST be waited for before the step that uses them.",
    why="""`async_op=True` and functional collectives return at once, and another thread writes the result later. A step
        that does not wait, by the handle or by `wait_tensor`, uses the rank's own g_r, the average (1/N) Σ g_r, or a
        mixture of both, and each rank may get another one.""",
    source=_SOURCE,
    fix=_FIX,
    latent="""Whether the collective or the step comes first is a race, which a larger model or a slower network
        decides otherwise.""",
    needs=(Step,),
)
def wait_before_step(window: Window) -> Outcomes:
    steps = window.of(Step)
    late = next(((step, seq) for step in steps for seq in step.unfinished), None)
    if late is not None:
        step, seq = late
        yield _unwaited(step, window.rank.events[seq], "that is the memory that the step uses")
    elif steps and _averages(window, steps[-1]):
        yield OK


@law(
    "ddp/wait-before-use",
    "The result of an asynchronous collective MUST NOT be used before it has been waited for.",
    why="""`async_op=True` returns at once, and another thread writes the result later. Whoever copies it back into the
        gradients before that copies what was in the buffer before: zeros, or the rank's own g_r.""",
    source=_SOURCE,
    fix="""
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat, async_op=True).wait()
        """,
    latent="""Whether the collective ends before its result is read is a race, which a larger model or a slower network
        decides otherwise.""",
    unless=("ddp/wait-before-step",),
    needs=(Step,),
)
def wait_before_use(window: Window) -> Outcomes:
    for step in window.of(Step):
        exchanged = _averages(window, step)
        # If one was waited for, it may have brought the average, and the others may be for a log.
        if exchanged and all(event.seq in step.unfinished_elsewhere for event in exchanged):
            of_gradients = (event for event in exchanged if isinstance(event, Receive) or event.of == "gradients")
            if (event := next(of_gradients, None)) is not None:
                yield _unwaited(step, event, "nothing else can have brought the average, and it may not be there yet")
            return
        if exchanged:
            yield OK


def _averages(window: Window, step: Step) -> Sequence[Exchange]:
    return [event for event in _averaging(window) if event.seq < step.seq]


@fact
def _averaging(window: Window) -> Sequence[Exchange]:
    """What may average gradients in a window; a single number is more often a metric."""
    if window.plan.world_size == 1:
        return ()
    return [
        event
        for event in window.of(Exchange)
        if isinstance(event, Receive)
        or (
            isinstance(event, Collective) and brings_together(event) and (event.of == "gradients" or event.elements > 1)
        )
    ]


def _unwaited(step: Step, event: Event, because: str) -> Broken:
    return Broken(
        event,
        must="what is asynchronous must be waited for, by its handle or by `wait_tensor`",
        because=because,
        however=f"nobody waited for {event} before {step}",
        shows=(event, step),
        effect="The step uses what happens to be there: it may differ from run to run and from rank to rank.",
    )
