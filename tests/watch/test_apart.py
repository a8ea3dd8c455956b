"""Two models of one script: one that all ranks train, and one beside it that each trains for itself."""

from dataclasses import fields, replace

import pytest

from conformance.watch import records
from conformance.watch.judging.incoming import OF_PARAMETERS
from conformance.watch.verdict import verdict

from .scripts import LINE, SHAPES, Script, gradients, sketches, total


class Beside(Script):
    """What the ranks do with another model and optimizer, in the streams of a script."""

    def __init__(self, script):
        super().__init__(script.ranks, drift=0.1)
        self.streams, self.backwards = script.streams, 1000
        self.numbers = [100 + number for number in self.numbers]
        for stream in self.streams:
            stream += [records.Parameter(100 + n, list(SHAPES[n]), "float32", 1, f"q{n}") for n in range(len(SHAPES))]
            stream.append(records.Optimizer(1, "Adam", self.numbers))

    def step(self, used):
        super().step(used)
        for stream in self.streams:
            stream[-1].optimizer, stream[-1].type = 1, "Adam"


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("shares", "expected"), [(False, "UNDECIDED"), (True, "DOES NOT CONFORM")])
def test_a_model_beside_may_be_each_rank_s_own(shares, expected, inside):
    """shares: both have a backward pass in common. inside: the first averages in its step, where it is not seen."""
    script = Script()
    beside = Beside(script)
    for _ in range(3):
        computed = script.backward()
        own = beside.backward()
        if shares:
            for stream in script.streams:
                stream[-1].backward = script.backwards
                del stream[-2]
        script.step(computed if inside else [total(computed, 0.5)] * 2)
        beside.step(own)
        script.clear()
        beside.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("ranks", "started", "expected"), [(1, 1, "CONFORMS"), (1, 2, "UNDECIDED"), (2, 2, "CONFORMS")]
)
def test_ranks_that_never_meet_may_each_train_alone(ranks, started, expected):
    script = Script(ranks=ranks)
    for stream in script.streams:
        stream[0].started = started
    for _ in range(3):
        script.step([total(script.backward(), 1 / ranks)] * ranks)
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("same_start", "sampled", "expected"),
    [(False, False, "UNDECIDED"), (True, False, "DOES NOT CONFORM"), (False, True, "DOES NOT CONFORM")],
)
def test_ranks_may_each_train_a_model_of_its_own(same_start, sampled, expected):
    """The members of an ensemble start apart; one who forgot to average has a sampler, or one start."""
    script = Script(drift=0.1)
    if sampled:
        script.each(records.Epoch(0, 0, True))
    script.steps = 0 if same_start else 1
    for _ in range(3):
        script.step([total([of_rank]) for of_rank in script.backward()])
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("starts", "elsewhere", "expected"),
    [
        (True, False, "UNDECIDED"),  # a model of each group's own
        (False, True, "UNDECIDED"),  # averaged over all ranks now and then
        (False, False, "DOES NOT CONFORM"),
    ],
)
def test_ranks_of_a_group_may_train_a_model_of_their_own(starts, elsewhere, expected):
    script = Script(ranks=4, drift=0.1)
    script.steps = int(starts)
    for _ in range(4):
        computed = script.backward()
        script.step([total(computed[:2], 0.5)] * 2 + [total(computed[2:], 0.5)] * 2)
        for stream in script.streams:
            stream[-1].is_elsewhere = elsewhere
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("stages", "expected"), [(True, "UNDECIDED"), (False, "DOES NOT CONFORM")])
def test_ranks_may_have_a_stage_each(stages, expected):
    """Of one shape and one start, as it happens: they go backward from other lines."""
    script = Script(drift=0.1)
    for _ in range(4):
        computed = script.backward()
        for rank, stream in enumerate(script.streams):
            stream[-2].calls = rank * stages
        script.step(computed)
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("averages", "expected"), [(False, "UNDECIDED"), (True, "DOES NOT CONFORM")])
def test_ranks_may_each_try_a_rate_of_its_own(averages, expected):
    script = Script(drift=0.1)
    for _ in range(3):
        computed = script.backward()
        used = [total(computed, 0.5)] * 2 if averages else computed
        for rank in range(2):
            script.step([used[rank]] * 2, ranks=[rank], rate=0.1 * (rank + 1))
            script.steps -= 1 - rank
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("averages", "expected"), [(True, set()), (False, {"watch/averaged"})])
@pytest.mark.parametrize("early", [0, 1])
def test_a_rank_may_make_an_optimizer_of_its_own_first(early, averages, expected):
    """Then it has other numbers for the parameters and the optimizer that all ranks have, and they are compared all the
    same. Of its own optimizer, nothing is known on the others. early: the rank whose records come first."""
    script = Script(drift=0.1 * (not averages))
    for _ in range(4):
        computed = script.backward()
        script.each(records.Clipped("norm", script.numbers, 1e6, 1.0, len(SHAPES), LINE))
        script.step([total(computed, 0.5)] * 2 if averages else computed)
        script.clear()
    began, *rest = script.streams[0]
    probe = [records.Parameter(0, [5, 7], "float32", 1, "probe"), records.Optimizer(0, "Adam", [0])]
    used = sketches(gradients(1, ((5, 7),)))
    own = records.Stepped(0, "Adam", [0.1], [0], [], False, None, False, False, "float32", [0], used, [], [], LINE)
    script.streams[0] = [began, *probe, *map(_renumbered, rest), own]
    script.streams.sort(key=lambda stream: stream[0].rank != early)
    findings = script.findings()
    assert {law for law, _ in findings.causes} - {"watch/same-weights"} == expected
    assert findings.conserved == (8 if averages else 0)
    assert findings.open["ranks.some"].says.values == {"type": "Adam"}
    assert "ranks.order" not in findings.open


def test_a_rank_that_adds_a_group_of_its_own_cannot_be_compared():
    script = Script()
    added = [records.Parameter(len(SHAPES) + number, [3], "float32", 1, None) for number in range(2)]
    script.streams[0].append(added[0])
    for stream in script.streams:
        stream.append(added[1])
    script.numbers = [*script.numbers, len(SHAPES) + 1]
    script.shapes = (*SHAPES, (3,))
    for _ in range(3):
        script.step([total(script.backward(), 0.5)] * 2)
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.causes) == ("UNDECIDED", {})
    assert [*findings.open] == ["ranks.order"]


def test_all_fields_that_hold_numbers_of_parameters_are_translated():
    """Others are lists of whole numbers, too."""
    others = {"beside", "drawn", "evaluated", "rows", "samplers", "samples", "shape"}
    # A class with slots is made of another one, which is a subclass, too, until it is collected.
    kinds = [kind for kind in records.Record.__subclasses__() if getattr(records, kind.__name__) is kind]
    assert len(kinds) > len(OF_PARAMETERS)
    for kind in kinds:
        lists = {one.name for one in fields(kind) if one.type == "list[int]"} - others
        assert lists == {*OF_PARAMETERS.get(kind, ())}, kind


def _renumbered(record):
    """With one parameter and one optimizer before its own."""
    changes = {}
    for name in ("parameter", "optimizer"):
        if hasattr(record, name):
            changes[name] = getattr(record, name) + 1
    for name in OF_PARAMETERS.get(type(record), ()):
        changes[name] = [number + 1 for number in getattr(record, name)]
    return replace(record, **changes)


@pytest.mark.parametrize("averages", [True, False])
def test_a_hook_lets_ranks_step_on_their_own_gradients(averages):
    script = Script(drift=0.1)
    script.steps = 1
    for step in range(6):
        script.each(records.Hooked("post_localSGD_hook"))
        script.drift = 0.0 if averages and step == 4 else 0.1
        script.step([total([of_rank]) for of_rank in script.backward()])
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert "ranks.own" in findings.open


@pytest.mark.parametrize(("right", "expected"), [(0, "UNDECIDED"), (1, "UNDECIDED"), (4, "DOES NOT CONFORM")])
def test_gradients_that_look_averaged_once_are_not(right, expected):
    """Those of a model of few numbers may, by chance: whether ranks average is said by more steps than that."""
    script = Script()
    beside = Beside(script)
    for step in range(8):
        script.step([total(script.backward(), 0.5)] * 2)
        own = beside.backward()
        beside.step([total(own, 0.5)] * 2 if step < right else own)
        script.clear()
        beside.clear()
    assert verdict(script.findings()) == expected
