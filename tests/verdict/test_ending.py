"""Not every rank delivered its evidence, or it cannot be read: HANG or CRASH, blamed on the rank that failed first."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
import torch

from conformance.adapter.batches import Batch
from conformance.adapter.declaration import Unsupported, UnsupportedGroups
from conformance.adapter.models import module
from conformance.runner.rank.reporting import described
from conformance.verdict.judge import judge

TORCH = f"{sysconfig.get_paths()['purelib']}/torch/_tensor.py"

TRACEBACK = f"""Traceback (most recent call last):
  File "/home/me/my_trainer.py", line 26, in train
    fit(task)
  File "/home/me/loop.py", line 14, in fit
    loss.backward()
  File "{TORCH}", line 623, in backward
    torch.autograd.backward(
ValueError: what
"""

STACK = f"""Current thread 0x00007f (most recent call first):
  File "{TORCH}", line 623 in backward
  File "/home/me/loop.py", line 14 in fit
  File "/home/me/my_trainer.py", line 26 in train
  File "<string>", line 1 in <module>
"""

LOST = "RuntimeError", "Connection closed by peer"


def raises(run, rank, kind, message, traceback=TRACEBACK):
    run.remove(*run.of("finished", rank))
    run.end(rank, "raised", type=kind, message=message, traceback=traceback)


def test_raised(follow):
    run = follow("single-batched-fp32-sgd")
    raises(run, 0, "ValueError", "  what\nin detail")
    run.expect(
        "CRASH",
        headline="rank 0 raised ValueError: what in detail (loop.py:14)",
        finished=False,
        exit="exited 1 before it finished",
    )


def test_a_model_that_the_trainer_cannot_take(follow):
    with pytest.raises(AttributeError) as raised:
        module({"kind": "many-tensors", "features": 18, "scalars": True}).weight  # noqa: B018
    run = follow("single-batched-fp32-sgd")
    run.remove(*run.of("finished"), *run.of("step"), *run.of("forward"))
    run.end(0, "raised", **described(raised.value))
    judgement = run.expect(
        "UNSUPPORTED", finished=False, exit="exited 1", has="'ManyTensors' object has no attribute 'weight'"
    )
    assert '`@trainer(models=["linear"])`' in judgement.headline


@pytest.mark.parametrize(
    ("workload", "note"),
    [
        ("frozen", "temperature, scale and convolution.weight are frozen in this case: their `.grad` is None"),
        (
            "unused",
            "some samples of this case do not use experts.0.weight and experts.1.weight: their `.grad` may be None",
        ),
    ],
)
def test_a_crash_where_parameters_have_no_gradient_says_so(follow, workload, note):
    run = follow(f"single-acc2-fp32-{workload}")
    raises(run, 0, "TypeError", "None is no tensor")
    assert run.judged(finished=False, exit="exited 1").notes == [note]


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("single-batched-fp32-line", 1, "1 parameter, weight: take as many as `model.parameters()` has"),
        (
            "single-acc2-fp32-two-layers",
            2,
            (
                "2 parameters, first.weight and second.weight: take as many as `model.parameters()` has, or list "
                "the `models` that the trainer supports"
            ),
        ),
    ],
)
def test_a_crash_for_another_number_of_parameters_says_so(follow, name, count, said):
    run = follow(name)
    with pytest.raises(ValueError, match="unpack") as raised:
        _weight, _bias, _gain = range(count)
    raises(run, 0, "ValueError", str(raised.value))
    assert run.judged(finished=False, exit="exited 1").headline.endswith(f"; the model of this case has {said}")


def test_a_crash_on_the_weights_of_a_batch_says_so(follow):
    run = follow("single-acc2-fp32-weighted")
    with pytest.raises(ValueError, match="unpack") as raised:
        _inputs, _targets = Batch(torch.ones(1, 2), torch.ones(1, 1), torch.ones(1, 1))
    raises(run, 0, "ValueError", str(raised.value))
    headline = run.judged(finished=False, exit="exited 1").headline
    assert headline.endswith(
        "(loop.py:14); the loss of this case is weighted: unpack a batch as `inputs, targets, weights = batch`"
    )


def test_a_crash_on_weights_that_a_batch_does_not_have_says_so(follow):
    run = follow("single-acc2-fp32-momentum")
    with pytest.raises(ValueError, match="unpack") as raised:
        _inputs, _targets, _weights = Batch(torch.ones(1, 2), torch.ones(1, 1))
    raises(run, 0, "ValueError", str(raised.value))
    headline = run.judged(finished=False, exit="exited 1").headline
    assert "; the loss of this case is not weighted: unpack a batch as `inputs, targets = batch`" in headline


def test_a_line_that_unpacks_a_batch_says_nothing_of_parameters(follow):
    trace = 'File "/mine/loop.py", line 14, in train\n    {}\nValueError: no\n'
    ends = {"for x, y, z in loader:": "`inputs, targets = batch`", "a, b, c = f():": "as `model.parameters()` has"}
    for line, end in ends.items():
        run = follow("single-acc2-fp32-momentum")
        raises(run, 0, "ValueError", "not enough values to unpack (expected 3, got 2)", trace.format(line))
        assert run.judged(finished=False, exit="exited 1").headline.endswith(end)


def test_a_crash_on_shapes_says_which_there_are(follow):
    run = follow("single-acc2-fp32-momentum")
    raises(run, 0, "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (32x10 and 3x1)")
    headline = run.judged(finished=False, exit="exited 1").headline
    assert headline.endswith("takes only inputs of shape (m, 3), and predictions and targets have shape (m, 1)")


def declines(run, rank, error, *, after=()):
    """A rank raises, and no rank has done more than the events `after`."""
    gone = ("forward", "step", "finished")
    for events in run.ranks:
        events[:] = [event for event in events if event["event"] not in gone or event in after]
    run.end(rank, "raised", **described(error))


@pytest.mark.parametrize("error", [UnsupportedGroups("no dampening"), Unsupported("no dampening")])
def test_a_case_that_the_trainer_declines(follow, error):
    run = follow("single-batched-fp32-sgd")
    declines(run, 0, error, after=run.of("forward")[:1])
    run.expect("UNSUPPORTED", headline="no dampening", finished=False, exit="exited 1")


def test_a_case_that_the_trainer_declines_without_a_reason(follow):
    run = follow("single-batched-fp32-sgd")
    declines(run, 0, Unsupported())
    run.expect("UNSUPPORTED", headline="the trainer declines this case", finished=False, exit="exited 1")


def test_one_rank_declines_for_all(follow):
    run = follow("ddp-w2-fp32-sgd")
    declines(run, 1, Unsupported("no dampening"))
    run.end(0, "raised", type=LOST[0], message=LOST[1], traceback=TRACEBACK)
    ended = {"exit": "exited 1, after rank 1 failed", "after": 1, "rank1_exit": "exited 1", "rank1_after": None}
    run.expect("UNSUPPORTED", headline="no dampening", finished=False, **ended)


class OfAFramework(Unsupported):
    pass


@pytest.mark.parametrize("kind", [Unsupported, UnsupportedGroups, OfAFramework])
@pytest.mark.parametrize("shown", ["step", "forward"])
def test_who_declines_after_a_step_hides_nothing(follow, kind, shown):
    """If a decline is not seen, the next window shows it."""
    run = follow("single-batched-fp32-sgd")
    declines(run, 0, kind("no dampening"), after=run.of(shown)[:2])
    run.expect(
        "CRASH",
        f"rank 0 raised {kind.__name__}: no dampening; this came after an optimizer",
        finished=False,
        exit="exited 1",
    )


@pytest.mark.parametrize(("moved", "verdict"), [(0.0, "UNSUPPORTED"), (0.5, "CRASH")])
def test_who_declines_after_a_step_by_hand_hides_nothing(follow, moved, verdict):
    """The weights of the moment show it."""
    run = follow("single-batched-fp32-sgd")
    now = [weight + moved for weight in run.of("start")[0]["weights"]]
    declines(run, 0, Unsupported("no dampening"), after=run.of("forward")[:1])
    run.of("raised")[0]["weights"] = now
    assert run.judged(finished=False, exit="exited 1").verdict == verdict


def test_who_declines_after_a_report_hides_nothing(follow):
    run = follow("single-batched-fp32-sgd")
    first = run.of("forward")[0]
    declines(run, 0, Unsupported("no dampening"), after=[first])
    run.after(
        first,
        {
            **{name: first[name] for name in ("rank", "seq", "time", "window", "micro_batch", "where")},
            "event": "report",
            "step": 0,
            "weights": None,
        },
    )
    assert run.judged(finished=False, exit="exited 1").verdict == "CRASH"


def test_an_error_of_that_name_is_not_ours(follow):
    """`torch._dynamo.exc.Unsupported`, for instance."""
    run = follow("single-batched-fp32-sgd")
    declines(run, 0, type("Unsupported", (RuntimeError,), {})("no graph"))
    assert run.judged(finished=False, exit="exited 1").verdict == "CRASH"


def test_an_attribute_that_no_model_has(follow):
    with pytest.raises(AttributeError) as raised:
        module({"kind": "many-tensors", "features": 18, "scalars": True}).generate()
    run = follow("single-batched-fp32-sgd")
    raises(run, 0, type(raised.value).__name__, str(raised.value))
    run.expect("CRASH", finished=False, exit="exited 1", has="'ManyTensors' object has no attribute 'generate'")


def test_raised_without_a_message_or_a_place(follow):
    run = follow("single-batched-fp32-sgd")
    raises(run, 0, "KeyboardInterrupt", "", traceback="")
    assert run.judged(finished=False, exit="exited 1").headline == "rank 0 raised KeyboardInterrupt"


def test_the_rank_that_failed_first_is_blamed_and_not_its_peers(follow):
    run = follow("ddp-w2-fp32-sgd")
    raises(run, 0, *LOST)
    raises(run, 1, "ValueError", "what")
    run.expect(
        "CRASH",
        headline="rank 1 raised ValueError: what (loop.py:14)",
        finished=False,
        exit="exited 1 before it finished, after rank 1 failed",
        after=1,
        rank1_exit="exited 1 before it finished",
        rank1_after=None,
    )


def test_a_silent_exit_is_blamed_and_not_its_peers(follow):
    run = follow("ddp-w2-fp32-sgd")
    raises(run, 0, *LOST)
    run.expect(
        "CRASH",
        headline="rank 1 exited 3 before it finished; it last printed: config is missing",
        finished=False,
        exit="exited 1 before it finished, after rank 1 failed",
        after=1,
        rank1_exit="exited 3 before it finished",
        rank1_after=None,
        rank1_output="config is missing\n\n",
    )


def test_killed_by_a_signal(follow):
    follow("ddp-w2-fp32-sgd").expect(
        "CRASH",
        headline="rank 1 was killed by SIGSEGV, at loop.py:14",
        finished=False,
        exit="killed after rank 1 failed",
        after=1,
        rank1_exit="killed by SIGSEGV",
        rank1_after=None,
        rank1_output="Fatal Python error: Segmentation fault\n\n" + STACK,
    )


def test_the_server_died(follow):
    run = follow("ddp-w2-fp32-sgd")
    run.ranks = [[], []]
    exit = "the trainer's server died (killed by SIGKILL); it last printed: out of memory"
    run.expect("CRASH", headline=exit, finished=False, exit=exit)


@pytest.mark.parametrize(
    ("ended", "headline"),
    [
        ({}, "ranks 0, 1 and 2 did not finish: killed, at loop.py:14"),
        (
            {"rank1_stack": None},
            (
                "rank 0 did not finish: killed, at loop.py:14; rank 1 did not finish: killed; "
                "rank 2 did not finish: killed, at loop.py:14"
            ),
        ),
    ],
)
def test_where_ranks_were_at_the_time_limit(follow, ended, headline):
    follow("ddp-w3-fp32-sgd").expect(
        "HANG", headline=headline, finished=False, timed_out=True, exit="killed", stack=STACK, **ended
    )


@pytest.mark.parametrize(
    ("file", "function", "what"),
    [
        ("torch/utils/file_baton.py", "wait", "the lock file of a build of a torch extension"),
        ("torch/distributed/distributed_c10d.py", "all_reduce", "the other ranks in all_reduce"),
        ("torch/distributed/distributed_c10d.py", "init_process_group", "the other ranks in init_process_group"),
        ("torch/autograd/graph.py", "_engine_run_backward", "its backward, where ranks may wait for each other"),
        ("threading.py", "wait", "another thread"),
    ],
)
def test_what_a_rank_that_timed_out_waits_for(follow, file, function, what):
    """The innermost call of the trainer's own thread says it, and nothing in another thread."""
    folder = Path(TORCH).parents[1]
    another = f'  File "{folder}/torch/utils/file_baton.py", line 1 in wait'
    inner = f'  File "{folder}/{file}", line 9 in {function}'
    stack = f"Thread 0x00007e (most recent call first):\n{another}\n\n" + STACK.replace(":\n", f":\n{inner}\n", 1)
    judgement = follow("ddp-w2-fp32-sgd").judged(finished=False, timed_out=True, exit="killed", stack=stack)
    assert judgement.headline == f"ranks 0 and 1 did not finish: killed, at loop.py:14, waiting for {what}"


def test_only_the_rank_that_hangs_is_named(follow):
    follow("ddp-w2-fp32-sgd").expect(
        "HANG",
        "rank 1 did not finish",
        timed_out=True,
        rank1_finished=False,
        rank1_exit="killed at the time limit of 3 s",
    )


def test_dead_before_it_delivered_never_passes(follow):
    """Even if every number that arrived is correct."""
    follow("ddp-w2-fp32-momentum").expect(
        "CRASH",
        headline="rank 1 exited 0 before it finished",
        rank1_finished=False,
        rank1_exit="exited 0 before it finished",
    )


@pytest.mark.parametrize(
    "exit",
    [
        "aborted after it delivered: SIGABRT",
        "exited 3 after it delivered",
        "killed because it did not leave after it delivered",
    ],
)
def test_what_becomes_of_a_rank_after_it_delivered_is_a_note(follow, exit):
    judgement = follow("ddp-w2-fp32-momentum").expect("PASS (exact)", rank1_exit=exit)
    assert judgement.notes == [f"rank 1 {exit}; its evidence was complete, so the verdict stands"]


FORGED = "ddp-w2-acc2-fp32-momentum"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [("step", "weights", ["x"]), ("forward", "rows", [{}]), ("step", "gradients", [[1.0]])],
)
def test_a_field_with_something_else_inside(follow, kind, field, value):
    run = follow(FORGED)
    run.of(kind, rank=1)[0][field] = value
    run.expect("CRASH", "the evidence of rank 1 has event ", has=f"has an invalid value in the field {field!r}")


def test_an_event_that_fits_no_class(follow):
    run = follow(FORGED)
    run.of("forward")[0]["wrapper"] = 1
    judgement = judge(run.case, run.outcome().placed(run.case.spec()))
    assert judgement.verdict == "CRASH"
    assert judgement.headline.startswith("the evidence of rank 0 has event ")
    assert "'wrapper'" in judgement.headline
