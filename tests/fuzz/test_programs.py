"""Random correct programs pass, and every random edit of one is noticed: a small part of `nox -s fuzz`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.programs import session
from fixtures.programs.edits import edits
from fixtures.programs.generate import programs
from fixtures.programs.meaning import Change, change
from fixtures.programs.program import Op, Program, block, op
from fixtures.programs.session import FalseAlarm, try_edits, try_programs
from fixtures.programs.tally import Tally, report
from fixtures.programs.trial import Result, Trials

PASS = Result("PASS (exact)", "", ())
#: Two ranks are enough here; the session also tries three and four.
PLACES = (("single", 1), ("ddp", 2), ("horovod", 2))
#: Judging costs more than running, mostly once per case.
QUICK = ("sgd", "weighted", "overflow", "clip-norm")
ALL = st.one_of([programs(*place) for place in PLACES])
CLIP, UNSCALE, UPDATE = op("clip", by="task"), op("unscale"), op("update")
ZERO = op("zero_grad", by="hand", set_to_none=True)
MASTERS, TO, FROM = op("make_masters", copy="stepped"), op("to_masters"), op("from_masters")
NOT_LAST = block("but_in", [FROM], what="window", number=5)


class Always:
    """Trials with a known outcome."""

    def __init__(self, result) -> None:
        self.result = result

    def run(self, program: Program) -> Result:
        return self.result(program) if callable(self.result) else self.result


def find(program: Program, kind: str, what: str) -> Program:
    return next(edit.program for edit in edits(program)[kind] if edit.what == what)


@pytest.fixture
def textbook() -> Program:
    """The loop of PyTorch's documentation on one device: accumulation, fp16, clipping."""
    text = """{
        "case": {"backend": "single", "world_size": 1, "accumulation": 2,
                 "precision": "fp16", "workload": "clip-value"},
        "setup": [
            {"op": "make_model"},
            {"op": "make_optimizers", "parts": "one", "unused": false},
            {"op": "make_schedulers"},
            {"op": "make_scaler"}
        ],
        "window": [
            {"op": "zero_grad", "by": "optimizer", "set_to_none": true},
            {"op": "each", "body": [
                {"op": "autocast", "body": [
                    {"op": "forward", "through": "model", "checkpoint": false},
                    {"op": "loss", "reduction": "mean"},
                    {"op": "divide_loss", "by": "length"}
                ]},
                {"op": "scale_loss"},
                {"op": "backward"}
            ]},
            {"op": "unscale"},
            {"op": "clip", "by": "task"},
            {"op": "step", "by": "scaler"},
            {"op": "update"},
            {"op": "schedule", "when": "stepped"}
        ]
    }"""
    return Program.from_json(text)


def test_no_program_gives_an_alarm_and_no_edit_goes_unnoticed() -> None:
    tally = Tally()
    with Trials() as trials:
        for place in PLACES:
            strategy = programs(*place, QUICK)
            try_programs(strategy, trials, tally, 10, seed=0)
            try_edits(strategy, trials, tally, 10, seed=0)
    assert not tally.disturbed
    assert not (tally.escaped or tally.surprising), "\n".join(report(tally))
    assert tally.programs.total() == tally.edits.total() == 30
    assert set(tally.programs) == set(tally.edits) == {"single", "ddp", "horovod"}


@settings(max_examples=50)
@given(ALL)
def test_a_program_survives_being_written_down(program: Program) -> None:
    assert Program.from_json(program.to_json()) == program


@settings(max_examples=50)
@given(ALL)
def test_a_program_has_a_meaning(program: Program) -> None:
    assert change(program, program) is Change.NONE


@settings(max_examples=20)
@given(ALL)
def test_an_edit_makes_another_program(program: Program) -> None:
    for found in edits(program).values():
        assert all(edit.program != program and edit.program.case == program.case for edit in found)


def test_a_false_alarm_comes_with_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(program: Program) -> Result:
        return Result("FAIL (law)", "", (("acc/x", "MUST"),)) if program.has("evaluate") else PASS

    monkeypatch.setattr(session, "alone", fails)
    with pytest.raises(FalseAlarm) as alarm:
        try_programs(ALL, Always(fails), Tally(), 100, seed=0)
    assert "evaluate(" in str(alarm.value)
    assert "breaks MUST acc/x" in str(alarm.value)
    assert "--replay" in str(alarm.value)


def test_what_fails_beside_others_only_is_no_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "alone", lambda program: PASS)
    tally = Tally()
    try_programs(ALL, Always(Result("CRASH", "", ())), tally, 5, seed=0)
    assert len(tally.disturbed) == 5


def test_a_broken_should_is_an_alarm_unless_the_program_means_it(textbook: Program) -> None:
    should = Result("PASS (exact)", "", (("ddp/all-reduce-once", "SHOULD"),))
    assert session.broken(textbook, should) == {"ddp/all-reduce-once"}
    every = Program(textbook.case, (*textbook.setup, op("wrap")), textbook.window)
    assert not session.broken(every, should)


def test_what_goes_unnoticed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Harmless edits by name, others with a program."""
    monkeypatch.setattr(session, "alone", lambda program: PASS)
    tally = Tally()
    try_edits(ALL, Always(PASS), tally, 40, seed=0)
    assert len(tally.unnoticed) == 40
    assert tally.escaped
    text = "\n".join(report(tally))
    assert "unnoticed and harmless" in text
    assert text.count("ESCAPED") == text.count("--replay") == len(tally.escaped)


@pytest.mark.parametrize(
    ("verdict", "laws", "surprises"),
    [
        ("FAIL (law)", True, False),
        ("INCONCLUSIVE", True, False),
        ("INCONCLUSIVE", False, True),
        ("DIVERGED", True, True),
    ],
)
def test_a_step_that_stays_as_it_was_is_caught_by_a_law_alone(
    monkeypatch: pytest.MonkeyPatch, textbook: Program, verdict: str, laws: bool, surprises: bool
) -> None:
    result = Result(verdict, "", (("acc/x", "MUST"),) * laws)
    monkeypatch.setattr(session, "alone", lambda program: result)
    monkeypatch.setattr(session, "change", lambda origin, edited: Change.NONE)
    tally = Tally()
    try_edits(st.just(textbook), Always(result), tally, 1, seed=0)
    assert bool(tally.surprising) is surprises
    assert bool(tally.order_only) is not surprises


@pytest.mark.parametrize("caught", [False, True])
def test_what_is_less_than_the_error_bound_has_to_show_where_numbers_are_exact(
    monkeypatch: pytest.MonkeyPatch, textbook: Program, caught: bool
) -> None:
    bounded = replace(textbook, case=replace(textbook.case, workload="clip-norm"))
    passes = Result("PASS (bounded)", "", ())

    def result(program: Program) -> Result:
        is_edited = program.setup != bounded.setup or program.window != bounded.window
        return Result("FAIL (numerics)", "", ()) if caught and is_edited and program.case != bounded.case else passes

    monkeypatch.setattr(session, "alone", result)
    tally = Tally()
    try_edits(st.just(bounded), Always(result), tally, 40, seed=0)
    assert bool(tally.escaped) is not caught
    assert ("unnoticed within the error bound" in "\n".join(report(tally))) is caught


def test_what_an_edit_changes(textbook: Program) -> None:
    """Only by symbols, without a run."""

    def of(kind: str, what: str) -> Change:
        return change(textbook, find(textbook, kind, what))

    assert of("swap", "update and schedule") is Change.NONE
    assert of("duplicate", "zero_grad") is Change.NONE
    assert of("move out", "divide_loss after autocast") is Change.NONE
    assert of("unwrap", "autocast") is Change.FORMATS
    assert of("delete", "make_scaler") is Change.NO_SCALE
    assert of("delete", "zero_grad") is Change.SOME
    assert of("delete", "unscale") is Change.SOME
    assert of("swap", "unscale and clip") is Change.SOME
    assert of("move in", "zero_grad to the beginning") is Change.SOME
    assert of("duplicate", "backward") is Change.SOME
    assert of("change", "divide_loss by 3") is Change.SOME


def _with(ops: Sequence[Op], name: str, *instead: Op, **settings: object) -> list[Op]:
    """``ops`` with others instead of the one of that name, anywhere; or with other settings of it."""
    result: list[Op] = []
    for one in ops:
        if one.name == name:
            result += [one.with_(**settings)] if settings else instead
        else:
            result.append(
                one if one.body is None else replace(one, body=tuple(_with(one.body, name, *instead, **settings)))
            )
    return result


def _other(program: Program, add: Sequence[Op] = (), **instead: Sequence[Op]) -> Program:
    """The program with ``add`` at the end of the setup, and other operations instead of these names."""
    window: Sequence[Op] = program.window
    for name, ops in instead.items():
        window = _with(window, name, *ops)
    return replace(program, setup=(*program.setup, *add), window=tuple(window))


@pytest.mark.parametrize(
    ("setup", "window"),
    [
        pytest.param([op("eval_mode")], {}, id="eval mode"),
        pytest.param([block("before_step", [CLIP])], {"clip": []}, id="the optimizer clips"),
        pytest.param([block("before_step", [CLIP])], {"clip": [], "unscale": []}, id="behind the scaler"),
        pytest.param([op("tensor_hook", by="length")], {"divide_loss": []}, id="hooks divide"),
        pytest.param([op("grad_hook", does="norm")], {"zero_grad": [op("train_rival"), ZERO]}, id="bystanders"),
        pytest.param(
            [MASTERS], {"zero_grad": [ZERO], "unscale": [TO, UNSCALE], "update": [UPDATE, FROM]}, id="masters"
        ),
        pytest.param([], {"backward": [op("backward", by="grad")]}, id="gradients by torch.autograd.grad"),
    ],
)
def test_other_ways_to_the_same_steps(textbook: Program, setup: list[Op], window: dict[str, list[Op]]) -> None:
    assert change(textbook, _other(textbook, setup, **window)) is Change.NONE


@pytest.mark.parametrize(
    ("setup", "window"),
    [
        pytest.param([block("before_step", [CLIP])], {"clip": [], "update": [op("clip", by="hand")]}, id="no update"),
        pytest.param([op("tensor_hook", by="length")], {}, id="hooks divide too"),
        pytest.param([MASTERS], {"zero_grad": [ZERO], "update": [UPDATE, FROM]}, id="masters without gradients"),
        pytest.param([MASTERS], {"zero_grad": [ZERO], "unscale": [TO, UNSCALE]}, id="masters that nobody copies back"),
        pytest.param(
            [MASTERS],
            {"zero_grad": [ZERO], "unscale": [TO, UNSCALE], "update": [UPDATE, NOT_LAST]},
            id="nor in the last window",
        ),
        pytest.param(
            [MASTERS],
            {"unscale": [TO, UNSCALE], "update": [UPDATE, FROM], "zero_grad": [ZERO.with_(by="optimizer")]},
            id="masters' gradients cleared",
        ),
        pytest.param([], {"backward": [op("backward", keeps_graph=True), op("backward")]}, id="twice through a graph"),
        pytest.param([], {"forward": [op("forward", through="average", checkpoint=False)]}, id="another model"),
        pytest.param([], {"clip": [CLIP.with_(over="first")]}, id="half a clip"),
    ],
)
def test_ways_to_other_steps(textbook: Program, setup: list[Op], window: dict[str, list[Op]]) -> None:
    assert change(textbook, _other(textbook, setup, **window)) is Change.SOME


def test_a_function_of_its_own_gets_its_own_forward(textbook: Program) -> None:
    each = next(one for one in textbook.window if one.name == "each")
    *inside, _ = each.body or ()
    differentiated = _other(textbook, each=[block("each", [block("differentiate", inside)])])
    assert change(textbook, differentiated) is Change.NONE
    forward = op("forward", through="functional", checkpoint=False)
    outside = _with(inside, "forward")
    assert (
        change(textbook, _other(textbook, each=[block("each", [forward, block("differentiate", outside)])]))
        is Change.SOME
    )


def test_half_an_unscale_changes_what_is_clipped_and_else_nothing(textbook: Program) -> None:
    """The scaler's step unscales gradients that are still scaled."""

    def halved(program: Program) -> Change:
        window = tuple(one.with_(first=True) if one.name == "unscale" else one for one in program.window)
        return change(program, replace(program, window=window))

    assert halved(textbook) is Change.SOME
    unclipped = tuple(one for one in textbook.window if one.name != "clip")
    assert halved(replace(textbook, window=unclipped)) is Change.NONE


def test_a_step_that_a_scaler_would_skip_may_be_left_out(textbook: Program) -> None:
    """In the last window of this workload the bias's gradient overflows."""
    overflowing = replace(textbook, case=replace(textbook.case, workload="overflow-in-part"))

    def left_out(window: int) -> Change:
        but_in = [
            block("but_in", [one], what="window", number=window) if one.name == "step" else one
            for one in overflowing.window
        ]
        return change(overflowing, replace(overflowing, window=tuple(but_in)))

    assert left_out(5) is Change.NONE
    assert left_out(0) is Change.SOME


def on_horovod(textbook: Program) -> Program:
    return replace(
        textbook,
        case=replace(textbook.case, backend="horovod", world_size=2, workload="momentum"),
        setup=(*textbook.setup, op("distribute", reduce="Average", passes=2, compression=False)),
        window=(
            *textbook.window[:2],
            op("synchronize"),
            op("unscale"),
            block("skip_synchronize", [op("step", by="scaler")]),
            *textbook.window[5:],
        ),
    )


def test_horovod_may_wait_for_more_backwards_than_come_but_not_for_fewer(textbook: Program) -> None:
    """`synchronize` averages the gradients that still wait."""
    horovod = on_horovod(textbook)
    assert change(horovod, find(horovod, "change", "distribute, passes +1")) is Change.NONE
    assert change(horovod, find(horovod, "change", "distribute, passes -1")) is Change.SOME


def test_an_unscale_while_horovod_averages_changes_who_knows_what(textbook: Program) -> None:
    """Before the averages start, and after they end, it would make no difference."""
    horovod = on_horovod(textbook)
    assert change(horovod, horovod) is Change.NONE
    assert change(horovod, find(horovod, "swap", "synchronize and unscale")) is Change.SOME


def test_all_reducing_in_two_hooks_counts_every_rank_twice(textbook: Program) -> None:
    ddp = replace(
        textbook,
        case=replace(textbook.case, backend="ddp", world_size=2),
        setup=(op("start"), *textbook.setup, op("broadcast"), op("grad_hook", does="all_reduce")),
    )
    twice = replace(ddp, setup=(*ddp.setup, op("grad_hook", does="all_reduce")))
    assert change(ddp, ddp) is Change.NONE
    assert change(ddp, twice) is Change.SOME
