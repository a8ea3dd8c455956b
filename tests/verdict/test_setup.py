"""Bugs of the adapter have their own verdict, but only if the numbers are wrong on ranks that agree."""

from __future__ import annotations

from fractions import Fraction

import pytest

from conformance.oracle.affine import Affine
from conformance.oracle.recurrence import Recurrence


class TwiceTheRate(Recurrence):
    def learning_rate(self, step: int, group: int = 0) -> Fraction:
        return 2 * super().learning_rate(step, group)


class ClipsAtOne(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return self.symbols.exactly([max(Fraction(-1), min(Fraction(1), one)) for one in vector.center])


def clip(run, kind="value", threshold=1.0, norm=None, ranks=None, norm_type=2.0):
    """Every window clips before its step."""
    for rank in range(run.case.world_size) if ranks is None else ranks:
        for step in run.of("step", rank):
            before = {
                "kind": kind,
                "threshold": threshold,
                "norm_type": norm_type if kind == "norm" else None,
                "norm": norm,
            }
            head = {name: step[name] for name in ("rank", "seq", "time", "window", "micro_batch", "where")}
            parameters = {"parameters": step["parameters"], "gradients": [4.0] * len(step["gradients"])}
            run.before(step, {"event": "clip", **head, **before, **parameters})


def test_another_learning_rate(follow):
    run = follow("ddp-w2-fp32-momentum", TwiceTheRate)
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "learning rate")
    assert "(times the number of ranks)" in judgement.headline
    assert judgement.headline.endswith("use `task.optimizer` and `task.scheduler`.")


def test_a_mistake_without_an_effect_is_none(follow):
    run = follow("single-acc2-fp32-sgd")
    for step in run.of("step"):
        step["lr"] *= 2
    clip(run)
    assert run.judged().verdict == "PASS (exact)"


@pytest.mark.parametrize(("foreign", "verdict"), [(True, "SETUP"), (False, "FAIL (numerics)")])
def test_inputs_that_are_not_the_tasks(follow, foreign, verdict):
    run = follow("ddp-w2-fp32-momentum", ClipsAtOne)
    for event in (*run.of("forward", 0), *run.of("forward", 1)):
        event |= {"rows": [None] * len(event["rows"]), "foreign": foreign}
    assert run.judged().verdict == verdict


def test_ranks_that_diverge_are_the_trainers(follow):
    run = follow("ddp-w2-fp32-momentum", ClipsAtOne)
    clip(run)
    run.ranks[1] = follow("ddp-w2-fp32-momentum").ranks[1]
    assert run.judged().verdict == "DIVERGED"


class NeverClips(Recurrence):
    def clip(self, vector: Affine) -> Affine:
        return vector


class Constant(Recurrence):
    def learning_rate(self, step: int, group: int = 0) -> Fraction:
        return super().learning_rate(0, group)


@pytest.mark.parametrize(
    ("name", "recurrence", "what", "kind"),
    [
        ("ddp-w2-acc2-fp32-clip-value", NeverClips, "clip", "clip"),
        ("single-acc2-fp32-momentum", Constant, "schedule", "learning rate"),
    ],
)
def test_what_an_adapter_never_takes_from_its_task_is_left_out_by_it(follow, name, recurrence, what, kind):
    """If it takes it, a framework may have lost it."""
    for taken, verdict in ((["model", what], "FAIL (numerics)"), (["model"], "SETUP")):
        run = follow(name, recurrence)
        for event in run.everywhere("finished", 0):
            event["asked"] = taken
        for step in (*run.of("step", 0), *run.of("step", -1)):
            step["lr"] = run.of("step")[0]["lr"]
        judgement = run.judged()
        assert judgement.verdict == verdict
    assert judgement.mistake.kind == kind
    assert judgement.headline.startswith("You left out the ")


KILLED = {"finished": False, "exit": "killed at the time limit of 60 s", "timed_out": True}


@pytest.mark.parametrize("ended", [{}, KILLED])
def test_a_run_that_is_read_again(follow, ended):
    run = follow("ddp-w2-acc2-fp32-momentum")
    wrong(run)
    windows = len(run.of("step"))
    for rank in range(2):
        again = [{**event, "window": event["window"] + windows} for event in run.of("forward", rank)]
        run.after(run.of("step", rank)[-1], *again[:-1])
    run.expect("SETUP", f"You trained on the whole run of {windows} windows, and then again", **ended)


@pytest.mark.parametrize(("taken", "verdict"), [(["model"], "FAIL (numerics)"), ([], "SETUP")])
def test_a_model_of_its_own(follow, taken, verdict):
    """A framework may train a copy of the task's model."""
    run = follow("single-acc2-fp32-momentum")
    run.remove(*run.of("step"))
    run.end(0, "foreign_optimizer", optimizer="SGD", shapes=[[4, 3], [4]])
    run.of("finished")[0] |= {"asked": taken, "weights": run.of("start")[0]["weights"]}
    run.expect(verdict, has="model")


def test_a_clip_that_was_not_asked_for(follow):
    run = follow("single-acc2-fp32-momentum", ClipsAtOne)
    clip(run)
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "clip")
    assert judgement.headline.startswith("You clipped gradients by value at 1 (train.py:")
    assert judgement.headline.endswith("; this case asks for no clipping: use `task.clip_`.")


def test_another_threshold(follow):
    run = follow("single-acc2-fp32-clip-value", ClipsAtOne)
    asked = float(run.case.problem.workload.clip.threshold)
    clip(run, threshold=4 * asked)
    run.of("step")[0]["weights"][0] += 1
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "clip")
    assert f"this case asks for clipping by value at {asked:g}" in judgement.headline


def test_another_kind(follow):
    run = follow("single-acc2-fp32-clip-value")
    clip(run, kind="norm", threshold=float(run.case.problem.workload.clip.threshold), norm=40.0)
    run.of("step")[0]["weights"][0] += 1
    assert "You clipped gradients at the norm" in run.judged().headline


@pytest.mark.parametrize(("kind", "norm_type"), [("value", None), ("norm", 2.0), ("norm", None)])
def test_the_asked_clip_is_no_mistake(follow, kind, norm_type):
    """`torch.nn.utils.clip_grads_with_norm_` gets a norm, and not of what type it is."""
    run = follow(f"single-acc2-fp32-clip-{kind}")
    clip(run, kind=kind, threshold=float(run.case.problem.workload.clip.threshold), norm_type=norm_type)
    run.of("step")[0]["weights"][0] += 1
    assert run.judged().verdict == "FAIL (numerics)"


def wrong(run):
    for step in run.everywhere("step", 0):
        step["weights"][0] += 1


def test_another_order(follow):
    run = follow("single-acc2-fp32-momentum")
    forwards = run.of("forward")
    forwards[0]["rows"], forwards[-1]["rows"] = forwards[-1]["rows"], forwards[0]["rows"]
    wrong(run)
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "rows")
    assert judgement.headline.startswith("You read the samples in another order than the task's")
    assert not judgement.findings


def test_other_shards(follow):
    run = follow("ddp-w2-fp32-momentum")
    one, two = run.of("forward", 0)[0], run.of("forward", 1)[1]
    one["rows"], two["rows"] = two["rows"], one["rows"]
    wrong(run)
    assert run.judged().headline.startswith("The ranks read other shards than the task's")


def test_weights_to_begin_with(follow):
    run = follow("single-acc2-fp32-momentum", TwiceTheRate)
    start = run.of("start")[0]
    right = start["weights"]
    start["weights"] = [right[0] + 0.25, *right[1:]]
    assert run.judged().mistake.kind == "start"
    start["weights"] = [right[0] + 2**-9, *right[1:]]
    assert run.judged().mistake.kind == "learning rate", "as of a model in 16 bits"


class Late(Recurrence):
    def learning_rate(self, step: int, group: int = 0) -> Fraction:
        return super().learning_rate(0, group)


def swapped_shards(run):
    for one, two in zip(run.of("forward", 0), run.of("forward", 1), strict=True):
        one["rows"], two["rows"] = two["rows"], one["rows"]
    wrong(run)


def first_rows(last):
    """The first forward reads what the last one should, which reads what ``last`` makes of its rows."""

    def tampered(run):
        forwards = run.of("forward")
        forwards[0]["rows"], forwards[-1]["rows"] = list(forwards[-1]["rows"]), last(forwards[-1]["rows"])
        wrong(run)

    return tampered


@pytest.mark.parametrize(
    ("name", "recurrence", "tamper"),
    [
        # A correct rate at the wrong step, and a clip of one rank.
        ("single-acc2-fp32-momentum", Late, lambda run: None),
        ("ddp-w2-fp32-momentum", ClipsAtOne, lambda run: clip(run, ranks=[1])),
        # Clips that change nothing.
        ("single-acc2-fp32-momentum", ClipsAtOne, lambda run: clip(run, threshold=4.0)),
        ("single-acc2-fp32-momentum", ClipsAtOne, lambda run: clip(run, kind="norm", threshold=9.0, norm=8.0)),
        # Shards that are swapped change no window; samples may be read twice, or cannot be told.
        ("ddp-w2-fp32-momentum", Recurrence, swapped_shards),
        ("single-acc2-fp32-momentum", Recurrence, first_rows(list)),
        ("single-acc2-fp32-momentum", Recurrence, first_rows(lambda rows: [None] * len(rows))),
    ],
)
def test_wrong_numbers_that_are_not_the_adapters(follow, name, recurrence, tamper):
    run = follow(name, recurrence)
    tamper(run)
    assert run.judged().verdict == "FAIL (numerics)"
