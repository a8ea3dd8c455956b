"""Cases that are stopped and resumed: what shows at the seam, without false positives."""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from conformance.laws.subjects import Events
from conformance.oracle.faults import CATALOGUE
from conformance.oracle.faults.checkpoints import WindowLeftOut
from conformance.oracle.overflow import Scaler
from conformance.oracle.recurrence import Recurrence
from conformance.results.result_lines import PASSED, Lines
from conformance.trace.events import read
from conformance.verdict.evidence import Update
from conformance.verdict.judge import judge
from conformance.verdict.judgement import POSITION
from conformance.verdict.record import record
from conformance.verdict.scaling import other_scale
from conformance.verdict.stop_and_resume import counted_wrongly, other_state
from conformance.workloads.workload import LossScale

FAULTS = {fault.name: fault for fault in CATALOGUE}
MOMENTUM = "ddp-w2-acc2-fp32-momentum-resumed-at-3"
GROWING = "single-acc2-fp16-growing-scale-resumed-at-3"


@pytest.mark.parametrize(
    "name", [MOMENTUM, f"{MOMENTUM}-inside-window", GROWING, "single-acc2-fp16-overflow-resumed-at-4"]
)
def test_a_run_that_goes_on_where_it_stopped_passes(follow, name):
    judgement = follow(name).expect("PASS (exact)")
    assert len(judgement.runs) == 2
    assert {window.number for window in judgement.runs[1].windows} == set(range(judgement.runs[1].windows[0].number, 6))
    assert judgement.findings == ()


def second_life(run, rank):
    starts = [number for number, event in enumerate(run.ranks[rank]) if event["event"] == "started"]
    return run.ranks[rank][starts[1] :]


@pytest.mark.parametrize(("windows", "count"), [(1, "1 window"), (4, "4 windows")])
def test_a_stop_elsewhere_is_the_adapters_mistake(follow, windows, count):
    """The windows of the second life come after the stop, so the numbers are correct anyway."""
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    [finished, *_] = run.of("finished")
    seam = run.ranks[0][run.ranks[0].index(finished) : run.ranks[0].index(run.of("start")[1]) + 1]
    run.remove(*seam)
    run.after(run.of("zero_grad")[windows - 1], *seam)
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "stop")
    assert judgement.headline.startswith(f"You stopped after {count} instead of 3: ")


def test_a_window_that_is_lost_before_the_stop_is_no_mistake_of_the_adapter(follow):
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    run.remove(*(event for event in run.ranks[0] if event["window"] == 2 and event["event"] != "finished"))
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake) == ("FAIL (numerics)", None)
    assert judgement.headline.startswith("5 optimizer steps instead of 6")


def test_another_place_in_the_data(follow):
    judgement = follow("single-acc2-fp32-momentum-resumed-at-3", WindowLeftOut).expect(
        "FAIL (numerics)", "after the resume, the trainer skips window 3"
    )
    assert judgement.suspects.explained_by == ("window-left-out",)
    assert {*broken(judgement)} == {POSITION}


def broken(judgement):
    """The diagnoses of failed guards."""
    return [guard.diagnosis for guard in judgement.guards if not guard.passed]


@pytest.mark.parametrize("workload", ["momentum", "own-order"])
def test_nothing_is_trained_after_the_resume(follow, workload):
    """With its own order, an epoch is also never read."""
    run = follow(f"single-acc2-fp32-{workload}-resumed-at-3")
    run.remove(*second_life(run, 0)[1:-1])
    judgement = run.expect("FAIL (numerics)", "no window was trained after the resume")
    assert broken(judgement)[0] == POSITION


def test_other_weights_on_one_rank(follow):
    """The ranks average gradients at two different weights."""
    run = follow(MOMENTUM)
    [start] = [event for event in second_life(run, 1) if event["event"] == "start"]
    start["weights"] = [weight + 1 for weight in start["weights"]]
    for event in second_life(run, 1):
        if event["event"] in ("step", "finished"):
            event["weights"] = [weight + 1 for weight in event["weights"]]
    judgement = run.expect("DIVERGED", "rank 1 resumed with other weights than at the stop")
    assert broken(judgement) == ["resumed with other weights"]


def test_weights_that_are_read_otherwise_are_no_harm(follow):
    """Correct numbers show that they were restored."""
    run = follow(MOMENTUM)
    [start] = [event for event in second_life(run, 1) if event["event"] == "start"]
    start["weights"] = [weight + 1 for weight in start["weights"]]
    assert run.judged().verdict in PASSED


def scaled(run, change):
    """Change the scale of each window of the second life."""
    for event in second_life(run, 0):
        for name in ("scale", "scale_before", "scale_after", "scaled"):
            if isinstance(event.get(name), float):
                event[name] = change(event["window"], event[name])


def test_another_loss_scale(follow):
    run = follow(GROWING)
    scaled(run, lambda window, scale: scale / 2)
    run.expect("FAIL (numerics)", "rank 0 was stopped at a loss scale of 32, and resumed at 16")


def test_a_loss_scale_that_counts_from_zero_again(follow):
    """It doubles every second window, and was stopped in between."""
    run = follow(GROWING)
    begins = {3: 32.0, 4: 32.0, 5: 64.0}
    for event in second_life(run, 0):
        window = event["window"]
        for name in ("scale", "scaled", "scale_before"):
            if name in event:
                event[name] = begins[window]
        if "scale_after" in event:
            event["scale_after"] = {3: 32.0, 4: 64.0, 5: 64.0}[window]
    run.expect("FAIL (numerics)", "the loss scale of rank 0 is wrong after window 3")


def test_a_loss_scale_that_the_trainer_gives_is_its_own(follow):
    run = follow(GROWING)
    scaled(run, lambda window, scale: 16.0)
    for update in run.of("update"):
        update["given"] = True
    assert run.judged().verdict in PASSED


@pytest.mark.parametrize("took_model", [False, True])
def test_what_another_model_is_resumed_for_cannot_be_seen(follow, took_model):
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    initial = {**run.of("start")[0], "event": "model", "model": 0, "shapes": []}
    backward = {**run.of("backward_begin")[-1], "window": None, "micro_batch": None}
    run.remove(*second_life(run, 0)[1:-1])
    if took_model:
        run.before(run.ranks[0][-1], dict(initial), backward)
    run.before(run.of("start")[0], initial)
    judgement = run.expect("INCONCLUSIVE")
    how = "and trained another module than" if took_model else "without calling"
    assert how in judgement.headline.replace("resumed, ", "")
    assert not any("no window was trained" in guard.text for guard in judgement.guards)


@pytest.mark.parametrize("written_back", [True, False])
def test_steps_that_only_forwards_show(follow, written_back):
    """The last one before the stop shows in the weights that the model ends with, if they are written back."""
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    initial = weights = run.of("start")[0]["weights"]
    for event in list(run.ranks[0]):
        if event["event"] == "step":
            weights = event["weights"]
            run.remove(event)
        elif event["event"] == "forward" and event["micro_batch"] == 0:
            event["weights"] = weights
    if not written_back:
        run.of("finished")[0]["weights"] = initial
    judgement = run.expect("PASS (exact)" if written_back else "INCONCLUSIVE")
    if not written_back:
        assert "that the model's own parameters never had, so the last step is not visible" in judgement.headline


def test_a_rank_that_fails_after_the_resume(follow):
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    run.remove(*second_life(run, 0)[1:])
    run.end(0, "raised", type="ValueError", message="no file", traceback="", at=None)
    judgement = run.expect(
        "CRASH", headline="rank 0 raised ValueError: no file", finished=False, exit="exited 1 before it finished"
    )
    assert judgement.notes == ["this came after training was stopped and resumed"]


def kept(event, parameter=0, values=(-3.0, 1.0), state=(2.0, 0.5), **settings):
    """What the optimizer has at the time of an event."""
    one = {"parameter": parameter, "values": list(values), "settings": {"momentum": 0.5, **settings}}
    common = {name: event[name] for name in ("rank", "seq", "time", "window", "micro_batch", "where")}
    return {**common, "event": "optimizer_state", "kept": [{**one, "state": {"momentum_buffer": list(state)}}]}


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (
            {"state": (2.0, 0.0)},
            "rank 0 resumed with another `momentum_buffer` of weight in the optimizer's state, 0 in",
        ),
        ({"momentum": 0.9}, "rank 0 resumed with other settings of parameter groups: weight has momentum=0.9 instead"),
        ({"values": (-3.0, 0.0)}, "the optimizer of rank 0 resumed with other values of weight than at the stop"),
        ({}, "step 3, rank 0"),
        ({"parameter": 1, "state": (0.0,)}, "step 3, rank 0"),
    ],
)
def test_what_the_optimizer_was_not_given_back(follow, after, cause):
    """Only if no known bug makes the wrong numbers."""
    for error in (0, 1):
        run = follow("single-acc2-fp32-momentum-resumed-at-3")
        first, *others = [event for event in second_life(run, 0) if event["event"] in ("step", "finished")]
        for event in (first, *others):
            event["weights"] = [event["weights"][0] + error, *event["weights"][1:]]
        run.before(first, kept(first, **after))
        run.before(run.of("finished")[0], kept(run.of("step")[2]))
        judgement = run.judged()
        if error:
            assert judgement.headline.startswith(cause)
        else:
            assert judgement.verdict == "PASS (exact)"


@pytest.mark.parametrize(
    ("state", "moved", "initial", "cause"),
    [
        ("exp_avg", 0, 0, "rank 0 resumed with another `exp_avg` of weight in the optimizer's state, 2.00000012 in"),
        ("mine", 0, 0, None),
        (None, 1e-7, 1e-7, "rank 0 resumed with other weights than at the stop: one of them is "),
        (None, 1e-7, 0, None),
        (None, 0, 1e-7, None),
    ],
)
def test_what_a_checkpoint_rounds_by_less_than_the_bound(follow, state, moved, initial, cause):
    """Weights are others only if both the forwards and the optimizer show it: hooks and hands may change either."""
    run = follow("single-acc2-fp32-adamw-resumed-at-3")
    first = next(event for event in second_life(run, 0) if event["event"] == "step")
    [start] = [event for event in second_life(run, 0) if event["event"] == "start"]
    ended, events = run.of("step")[2]["weights"], []
    run.of("finished")[0]["weights"] = start["weights"] = list(ended)
    start["weights"] = [ended[0] + initial, *ended[1:]]
    for event, by, value in ((run.of("finished")[0], 0, 2.0), (first, moved, 2.0 if state is None else 2 + 2**-23)):
        events.append(kept(event, values=[ended[0] + by, ended[1]]))
        events[-1]["kept"][0]["state"] = {state or "exp_avg": [value, 0.5]}
        run.before(event, events[-1])
    judgement = run.judged()
    if cause is None:
        assert judgement.verdict == "PASS (bounded)", judgement.headline
    else:
        assert judgement.verdict == "FAIL (numerics)"
        assert judgement.headline.startswith(cause)


@pytest.mark.parametrize("error", [0, 1])
def test_gradients_from_before_the_resume(follow, error):
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    first, *_ = [event for event in second_life(run, 0) if event["event"] == "backward_begin"]
    first["gradients"] = "some"
    for event in second_life(run, 0):
        if event["event"] in ("step", "finished"):
            event["weights"] = [event["weights"][0] + error, *event["weights"][1:]]
    judgement = run.judged()
    if error:
        assert judgement.verdict == "FAIL (numerics)"
        assert judgement.headline.startswith("the first backward of rank 0 after the resume adds to older gradients")
    else:
        assert judgement.verdict in PASSED


def test_ranks_that_wait_for_each_other_since_one_lost_its_place(follow):
    run = follow(MOMENTUM)
    run.remove(*(event for event in second_life(run, 1) if event["window"] == 3))
    del run.ranks[1][-1]
    judgement = run.expect("HANG", rank1_finished=False, timed_out=True, rank1_exit="killed")
    assert "after the resume, rank 1 skips window 3" in judgement.notes[0]


def fails(run):
    """Have rank 0 fail once it is resumed."""
    run.remove(*second_life(run, 0)[1:])
    run.end(0, "raised", type="ValueError", message="no file", traceback="", at=None)
    return {"finished": False, "exit": "exited 1 before it finished"}


@pytest.mark.parametrize(
    ("how", "altered", "text"),
    [
        (
            "killed",
            (),
            "; before this, the processes were killed while saving the next checkpoint (the one of 3",
        ),
        (
            "killed-between-files",
            (),
            "; before this, the processes were killed between two files of the next checkpoint (the one of 3",
        ),
        (
            "twice",
            ("w.pt",),
            "; this was the second run from one checkpoint, and the first run changed or removed w.pt",
        ),
        ("twice", (), ""),
    ],
)
def test_what_came_before_a_resume_that_fails(follow, how, altered, text):
    name = f"single-acc2-fp32-momentum-resumed-at-3-{how}"
    run = follow(name)
    run.expect("CRASH", f"rank 0 raised ValueError: no file{text}", **fails(run), altered=altered)
    assert follow(name).judged(altered=altered).verdict == "PASS (exact)"
    judgement = follow(name, WindowLeftOut).judged(altered=altered)
    assert judgement.headline.startswith("after the resume, the trainer skips window 3")
    assert text in judgement.headline


@pytest.mark.parametrize(
    ("name", "kind", "trains", "fits"),
    [
        ("killed", "ValueError", False, True),
        ("killed", "NameError", False, False),
        ("killed", "ValueError", True, False),
        ("on-2-ranks", "ValueError", True, True),
        ("on-2-ranks", "ImportError", True, False),
    ],
)
def test_what_came_before_has_nothing_to_do_with_it(follow, name, kind, trains, fits):
    """Code that cannot run, and what fails once the checkpoint is read, but for another number of ranks."""
    run = follow(f"single-acc2-fp32-momentum-resumed-at-3-{name}" if name == "killed" else FEWER)
    run.remove(*(second_life(run, 0)[-1:] if trains else second_life(run, 0)[1:]))
    run.end(0, "raised", type=kind, message="no", traceback="", at=None)
    ended = {"finished": False, "exit": "exited 1 before it finished"}
    headline = run.judged(**ended).headline
    assert headline.startswith(f"rank 0 raised {kind}: no")
    assert ("; before this" in headline or "; training was stopped on 3 ranks" in headline) == fits


@pytest.mark.parametrize(
    ("stop", "clean", "told"),
    [
        (4, 0, ("restarts", "save and load")),
        (4, 2, ("is one behind", "save `scaler.state_dict()` after `scaler.update()`")),
        (4, 1, ("is wrong", "save and load")),
        (2, 0, ("restarts, or is one behind", "save `scaler.state_dict()` after")),
        (4, 3, None),
    ],
)
def test_with_which_count_a_loss_scale_goes_on(stop, clean, told):
    """It doubles after five windows."""

    def life(number, scale, clean):
        rule = LossScale(Fraction(scale), 5)
        scaler, updates, attempts = Scaler(rule, clean), [], []
        for window in range(number):
            before = scaler.scale
            scaler.update(overflowed=False)
            updates.append(Update(float(before), float(scaler.scale), 2.0, 0.5, 5))
            attempts.append(SimpleNamespace(window=window, scale=float(before), stepped=True))
        return SimpleNamespace(updates=updates, attempts=attempts)

    lives = life(stop - 1, 8, 0), life(6, 8, clean)
    rank = SimpleNamespace(lives=lives, updates=lives[0].updates, number=0)
    other = other_scale([rank])
    assert (other is None) == (told is None)
    if told is not None:
        assert other.text.endswith(told[0]) and other.advice.startswith(told[1])


def test_the_first_of_two_runs_from_one_checkpoint_is_judged_too(follow):
    name = "single-acc2-fp32-momentum-resumed-at-3-twice"
    right, wrong = follow(name), follow(name, WindowLeftOut)
    assert judge(right.case, replace(right.outcome(), earlier=right.outcome())).verdict == "PASS (exact)"
    judgement = judge(right.case, replace(right.outcome(), earlier=wrong.outcome()))
    assert judgement.headline.startswith("after the resume, the trainer skips window 3")
    assert judgement.notes[-1].endswith("this is the first resume")


def test_a_mistake_before_the_stop_has_nothing_to_do_with_the_kill(follow):
    judgement = follow("ddp-w2-acc2-fp32-momentum-resumed-at-3-killed", FAULTS["sum-over-ranks"].textbook).expect(
        "FAIL (numerics)"
    )
    assert "killed" not in judgement.headline


def test_a_checkpoint_whose_other_files_are_not_there_may_be_gone_on_from(follow):
    run = follow("single-acc2-fp32-momentum-resumed-at-4")
    run.case = replace(run.case, resumed_at=3, resumed="killed-between-files")
    assert run.judged().verdict == "PASS (exact)"


@pytest.mark.parametrize("wrong", [False, True])
def test_a_checkpoint_of_one_file_is_not_killed_between_two(follow, wrong):
    run = follow("single-acc2-fp32-momentum", FAULTS["momentum-lost"].textbook if wrong else Recurrence)
    run.case = replace(run.case, resumed_at=3, resumed="killed-between-files")
    judgement = run.expect("FAIL (numerics)" if wrong else "PASS (exact)")
    assert any("no kill between two files" in note for note in judgement.notes)


def test_a_process_that_was_not_killed_shows_nothing(follow):
    run = follow("single-acc2-fp32-momentum-resumed-at-3-killed")
    run.remove(*run.of("finished")[:1], *second_life(run, 0)[:1])
    run.expect("INCONCLUSIVE", "rank 0's process wrote no file over 64 bytes")


INSIDE = "single-acc2-fp32-momentum-resumed-at-3-inside-window"


@pytest.mark.parametrize("where", ["the last window", "further inside"])
def test_a_stop_elsewhere_in_a_window_is_the_adapters_mistake(follow, where):
    run = follow(INSIDE)
    [finished, *_] = run.of("finished")
    seam = run.ranks[0][run.ranks[0].index(finished) : run.ranks[0].index(run.of("start")[1]) + 1]
    run.remove(*seam)
    last = run.of("zero_grad")[2] if where == "the last window" else run.of("backward_end")[7]
    run.after(last, *seam)
    judgement = run.judged()
    assert (judgement.verdict, judgement.mistake.kind) == ("SETUP", "stop")
    place = "micro-batch 1 of window 2" if where == "the last window" else "micro-batch 1 of window 3"
    was = f"You stopped after {place} instead of micro-batch 0 of window 3"
    assert judgement.headline.startswith(was)


def test_a_window_that_is_trained_again_from_its_beginning(follow):
    run = follow(INSIDE)
    [_, started] = run.of("started")
    first = [event for event in run.ranks[0] if (event["window"], event["micro_batch"]) == (3, 0)]
    run.after(run.of("start")[1], *(dict(event) for event in first[:3]))
    assert started in run.ranks[0]
    assert run.judged().verdict == "PASS (exact)"


def test_a_window_that_no_step_ends_after_the_resume(follow):
    run = follow(INSIDE, FAULTS["half-window-lost"].textbook)
    run.remove(run.of("step")[3])
    assert "rank 0 was stopped inside window 3, and no step ends it after the resume" in run.judged().headline


MORE = "ddp-w2-acc2-fp32-momentum-resumed-at-4-on-3-ranks"
FEWER = "ddp-w3-acc2-fp32-many-tensors-resumed-at-4-on-2-ranks"


@pytest.mark.parametrize("name", [MORE, FEWER, MORE.replace("4-on-3-ranks", "3-on-1-rank")])
def test_a_run_that_goes_on_with_other_ranks_passes(follow, name):
    judgement = follow(name).expect("PASS (exact)")
    assert [len(run.ranks) for run in judgement.runs] == list(follow(name).case.world_sizes)
    assert judgement.findings == ()


@pytest.mark.parametrize("name", [MORE, FEWER])
@pytest.mark.parametrize("fault", ["divides-by-ranks-of-the-stop", "multiplies-by-ranks-of-the-stop"])
def test_the_ranks_of_the_stop_are_named(follow, name, fault):
    assert follow(name, FAULTS[fault].textbook).judged().suspects.explained_by == (fault,)


def test_windows_that_other_ranks_train_again_are_no_ones_else(follow):
    """Their shares are others than before the stop."""
    judgement = follow(FEWER, FAULTS["window-read-again"].textbook).judged()
    assert judgement.headline.startswith("after the resume, rank 0 repeats window 3")
    assert "training was stopped on 3 ranks, and resumed on 2" in judgement.headline


def test_all_other_ranks_must_be_there(follow):
    run = follow(MORE)
    for rank in range(3):
        for event in run.of("topology", rank)[-1:]:
            event["world_size"] = 2
    assert run.judged().headline.startswith("the trainer has world size 2 instead of 3")


def test_a_rank_that_was_not_there_before_the_stop_may_diverge(follow):
    run = follow(MORE)
    for event in (*run.of("start", 2), *run.of("step", 2), *run.of("finished", 2)):
        event["weights"] = [weight + 1 for weight in event["weights"]]
    run.expect("DIVERGED", "rank 2 resumed with other weights than at the stop")


def test_ranks_that_read_the_same_once_there_are_others(follow):
    run = follow(MORE)
    for own, others in zip(second_life(run, 1), run.ranks[2], strict=False):
        if own["event"] == "forward":
            others["rows"] = own["rows"]
    assert run.judged().headline.startswith("ranks 1 and 2 read the same samples")


def holding(number, *lives):
    """A rank with these elements of the first parameter in each life, and their momentum."""

    def life(shard, momentum):
        state = {"momentum_buffer": momentum, "step": [2.0]}
        kept = [{"parameter": 0, "settings": {}, "values": [0.0] * len(momentum), "state": state}]
        events = Events((read({"event": "optimizer_state", "kept": kept}),))
        return SimpleNamespace(shard=frozenset(shard), events=events, final_weights=None)

    return SimpleNamespace(lives=tuple(life(*one) for one in lives), number=number)


def test_weights_that_another_rank_sends_after_the_last_step(case):
    """The optimizer's own last values are older than those that training ends with, and is resumed with."""
    model = case(MOMENTUM).problem.workload.model
    rank = holding(0, ({0, 1, 2}, [1.0, 2.0, 3.0]), ({0, 1, 2}, [1.0, 2.0, 3.0]))
    for life in rank.lives:
        life.shard, life.final_weights = None, [7.0] * model.size
    rank.lives[1].events.events[0].kept[0]["values"] = [7.0] * 3
    assert other_state(model, [rank]) is None
    rank.lives[0].final_weights = [0.0] * model.size
    assert "resumed with other values of weight" in other_state(model, [rank]).text


@pytest.mark.parametrize(("momentum", "named"), [([2.0, 3.0], None), ([3.0, 3.0], "3 instead of 2")])
def test_states_that_are_split_otherwise_are_compared_as_wholes(case, momentum, named):
    model = case(MOMENTUM).problem.workload.model
    ranks = [holding(0, ({0, 1}, [1.0, 2.0]), ({0}, [1.0])), holding(1, ({2}, [3.0]), ({1, 2}, momentum))]
    other = other_state(model, ranks)
    assert other is None if named is None else named in other.text


@pytest.mark.parametrize(
    ("gradients", "passes", "change"),
    [("some", 2, "skip"), ("some", 1, None), ("none", 2, None), ("none", 1, "restore"), (None, 2, None)],
)
def test_what_to_change_where_a_window_does_not_count_the_samples_before_its_stop_once(
    follow, gradients, passes, change
):
    """Its two micro-batches count by restored gradients, or by new ones."""
    events = [SimpleNamespace(window=window, gradients=gradients) for window in [3] * passes + [4]]
    life = SimpleNamespace(events=SimpleNamespace(of=lambda kind: events))
    advice = counted_wrongly(follow(INSIDE).case, [SimpleNamespace(number=0, lives=(None, life))])
    assert (advice and advice.partition(", ")[2].split()[0]) == change


def test_the_lines_that_save_and_load_are_recorded(follow):
    run = follow("single-acc2-fp32-momentum-resumed-at-3")
    second = run.of("started")[1]
    line = {**second, "path": "checkpoint.pt", "where": None}
    run.before(second, {**line, "event": "save", "where": ["train.py", 92, "train"]})
    run.after(second, {**line, "event": "load"}, {**line, "event": "load", "where": ["train.py", 41, "train"]})
    written = record(run.case, "t", "train.py", "c", run.judged(), 0.0)
    assert (written.saved_at, written.read_at) == (Lines("train.py:92"), None)
    run.remove(*run.of("load")[:1])
    assert record(run.case, "t", "train.py", "c", run.judged(), 0.0).read_at == Lines("train.py:41")
