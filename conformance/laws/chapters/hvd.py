"""Horovod: its optimizer averages in the background, and what reads or writes gradients has to wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.laws.event import Event
from conformance.laws.horovod import reduced_again, since_the_step, stepped_inside, uses
from conformance.laws.labels import number, placed
from conformance.laws.law import Broken, Check, broken, kept, law
from conformance.laws.run import Run
from conformance.laws.sharing import in_turn

SEED = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'
DOCS = "Horovod documentation, horovod.torch.DistributedOptimizer"


@law(
    "hvd/synchronize-at-most-once",
    "`synchronize()` MUST be called zero or one times for each step of Horovod's optimizer.",
    why="""Each call all-reduces the gradients, and averages them again that were averaged before. Under op=Sum N
        ranks then multiply by N twice, N² ḡ in place of N ḡ; under an average it is communication for nothing.""",
    source=f'{SEED}: "call .synchronize() zero or one times per optimizer.step()"',
    mend="""
        optimizer.synchronize()  # once, after the last backward of the window
        clip_grad_norm_(model.parameters(), max_norm)
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def synchronize_at_most_once(run: Run) -> Iterator[Check]:
    for use in uses(run):
        calls = [event for event in use.synchronizes if not event["in_step"]]
        again = next((call for call in calls if len(since_the_step(use, call, calls)) > 0), None)
        if again is not None:
            yield broken(use.window, reduced_again(use, since_the_step(use, again, calls)[-1], again))
        elif use.synchronizes:
            yield kept(use.window)


@law(
    "hvd/step-in-skip-synchronize",
    "After an explicit `synchronize()` the step of Horovod's optimizer MUST be inside of `skip_synchronize()`.",
    why="""A plain step synchronizes by itself, so the gradients are all-reduced a second time. Under op=Sum N ranks
        then multiply by N twice, N² ḡ in place of N ḡ; under an average what was clipped in between is averaged
        again, which costs time and no more.""",
    source=f'{SEED}: "If you do call it, wrap the .step() in a `with optimizer.skip_synchronize()` call"; {DOCS}',
    mend="""
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def step_in_skip_synchronize(run: Run) -> Iterator[Check]:
    for use in uses(run):
        # With apex this is apex/step-in-skip-synchronize.
        if not use.window.of("scale_loss_enter"):
            yield from stepped_inside(use)


@law(
    "hvd/synchronize-before-clip",
    "Gradients of Horovod's optimizer MUST be synchronized before they are clipped.",
    why="""Until `synchronize()` returns, gradients are a rank's own, or are being averaged this moment. Each rank
        then clips by a norm of its own, mean over r of c_r g_r in place of c ḡ, or writes into numbers that are on
        their way.""",
    source=f'{SEED}: "always synchronize before gradient clipping; otherwise each worker clips differently"',
    mend="""
        optimizer.synchronize()
        clip_grad_norm_(model.parameters(), max_norm)
        with optimizer.skip_synchronize():
            optimizer.step()
        """,
)
def synchronize_before_clip(run: Run) -> Iterator[Check]:
    for use in uses(run):
        clips = [event for event in use.after if event.kind == "clip" and use.holds(event["parameters"])]
        early = next((event for event in clips if use.precedes_synchronize(event)), None)
        if early is None:
            if clips:
                yield kept(use.window)
            continue
        norms = [
            f"rank {event.rank} saw the norm {number(event['norm'])}"
            for event in _first_after_backward(run, use.window.number, "clip")
            if event["norm"] is not None
        ]
        yield broken(
            use.window,
            Broken(
                early,
                must="`synchronize()` must come before gradients are clipped",
                because=f"until then they are those of rank {early.rank} alone, or half averaged",
                however=f"{placed(early)} came {use.before_synchronize}",
                shows=use.slice(early),
                effect=f"{in_turn(norms).capitalize()}: each clips by a factor of its own." if len(norms) > 1 else None,
            ),
        )


@law(
    "hvd/synchronize-before-unscale",
    "Gradients of Horovod's optimizer MUST be synchronized before `unscale_` and before `scaler.step`.",
    why="""GradScaler looks for overflows in the gradients as it finds them, and until `synchronize()` returns these
        are a rank's own. Where ∞ is in g_r of one rank only, that rank skips the step and lowers its scale, and the
        others step on an average that ∞ is in.""",
    source=f'{SEED}: "always synchronize before scaler.step(optimizer); otherwise each worker steps differently"',
    mend="""
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        """,
)
def synchronize_before_unscale(run: Run) -> Iterator[Check]:
    for use in uses(run):
        reads = [e for e in use.after if e.kind in ("unscale", "scaler_step") and e["optimizer"] == use.optimizer]
        early = next((event for event in reads if use.precedes_synchronize(event)), None)
        if early is None:
            if reads:
                yield kept(use.window)
            continue
        what = "`unscale_`" if early.kind == "unscale" else "`scaler.step`"
        yield broken(
            use.window,
            Broken(
                early,
                must=f"`synchronize()` must come before {what}",
                because=f"overflows are looked for in what rank {early.rank} holds, which is not averaged yet",
                however=f"{placed(early)} came {use.before_synchronize}",
                shows=use.slice(early),
                effect=_overflow_on_some(run),
            ),
        )


@law(
    "hvd/not-cleared-before-synchronize",
    "Gradients MUST not be cleared between a backward and the `synchronize()` or the step that waits for its average.",
    why="""Horovod averages in the background, in the gradients' own memory. What is cleared meanwhile is averaged
        as 0, or is 0 on one rank and ḡ on another, or is gone when Horovod wants to write to it.""",
    source="Horovod, horovod/torch/optimizer.py: zero_grad raises where this is noticed",
    mend="""
        optimizer.zero_grad()  # before the first backward of the window
        for batch in window:
            criterion(model(batch.inputs), batch.targets).div(len(window)).backward()
        optimizer.step()
        """,
)
def not_cleared_before_synchronize(run: Run) -> Iterator[Check]:
    for use in uses(run):
        attempt = next((e for e in use.after if e.kind in ("step", "skip") and e["optimizer"] == use.optimizer), None)
        # A window may be given up; then there is nothing to wait for.
        if use.synchronize is None and (use.window.ended or attempt is not None):
            continue
        until = use.synchronize or attempt
        cleared = [
            event
            for event in use.after
            if event.kind == "zero_grad" and use.holds(event["parameters"]) and (until is None or event.seq < until.seq)
        ]
        if not cleared:
            if use.synchronize is not None:
                yield kept(use.window)
            continue
        yield broken(
            use.window,
            Broken(
                cleared[0],
                must="gradients must not be cleared before Horovod has averaged them",
                because="it averages in the background, in the gradients' own memory",
                however=f"{placed(cleared[0])} came {use.before_synchronize}",
                shows=use.slice(cleared[0]),
                effect="The step takes zeros in place of the average, or there is no step.",
            ),
        )


def _first_after_backward(run: Run, number: int, kind: str) -> list[Event]:
    """Of each rank the first event of this kind after the last backward of this window."""
    windows = [window for window in run.windows if window.number == number and window.backwards]
    events = [[e for e in window.between(window.backwards[-1], None) if e.kind == kind][:1] for window in windows]
    return [event for found in events for event in found]


def _overflow_on_some(run: Run) -> str | None:
    """The first window in which some ranks found an overflow and others did not."""
    for window in sorted({window.number for window in run.windows}):
        found = _first_after_backward(run, window, "unscale")
        hit = [f"rank {event.rank}" for event in found if event["found_inf"]]
        clean = [f"rank {event.rank}" for event in found if event["found_inf"] is False]
        if hit and clean:
            return f"In window {window} {in_turn(hit)} found an overflow and {in_turn(clean)} none: their steps part."
    return None
