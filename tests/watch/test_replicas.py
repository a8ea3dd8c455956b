"""Ranks that train one model or separate ones, partitioned parameters, and replicas that drift apart."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from conformance.watch import records
from conformance.watch.judging.findings import said
from conformance.watch.judging.incoming import OF_PARAMETERS
from conformance.watch.judging.properties import Property
from conformance.watch.judging.targets import losses_of
from conformance.watch.verdict import verdict

from .scripts import LINE, SHAPES, Script, averaged, gradients, laws, shown, sketches, stepped, total, trained


class Second(Script):
    """A second model and optimizer in the streams of a script."""

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
def test_a_second_model_may_be_separate_on_each_rank(shares, expected, inside):
    """shares: both have the same backward pass. inside: the first averages out of sight, in its step."""
    script = Script()
    second = Second(script)
    for _ in range(3):
        computed = script.backward()
        own = second.backward()
        if shares:
            for stream in script.streams:
                stream[-1].backward = script.backwards
                del stream[-2]
        script.step(computed if inside else averaged(computed))
        second.step(own)
        script.clear()
        second.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("shared", "expected"), [(True, {"watch/averaged"}), (False, "UNDECIDED")])
def test_models_that_start_equal_may_be_separate(shared, expected):
    """For example in a cross validation, where ranks exchange nothing."""
    assert shown(trained(Script.backward, drift=0.1, shared=shared)) == expected


def test_a_fact_about_all_ranks_counts_the_steps_of_each():
    findings = trained(Script.backward, drift=0.1, shared=False)
    assert (findings.open["ranks.own"].count, findings.steps) == (6, 6)


@pytest.mark.parametrize(
    ("ranks", "started", "expected"), [(1, 1, "CONFORMS"), (1, 2, "UNDECIDED"), (2, 2, "CONFORMS")]
)
def test_ranks_without_a_group_may_each_train_alone(ranks, started, expected):
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
def test_ranks_may_each_train_a_separate_model(same_start, sampled, expected):
    """The members of an ensemble start different; a script that forgot to average has a sampler, or equal starts."""
    script = Script(drift=0.1)
    if sampled:
        script.each(records.Epoch(0, 0, True, 2))
    script.steps = 0 if same_start else 1
    for _ in range(3):
        computed = script.backward()
        for stream in script.streams:
            stream[-2].samplers = [0] if sampled else []
        script.step(computed)
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("starts", "elsewhere", "expected"),
    [
        (True, False, "UNDECIDED"),  # a separate model of each group
        (False, True, "UNDECIDED"),  # weights are averaged over all ranks from time to time
        (False, False, "DOES NOT CONFORM"),
    ],
)
def test_ranks_of_a_group_may_train_a_separate_model(starts, elsewhere, expected):
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
    """With equal shapes and starts by chance, but losses of different lines."""
    script = Script(drift=0.1)
    for _ in range(4):
        computed = script.backward()
        for rank, stream in enumerate(script.streams):
            stream[-2].calls = rank * stages
        script.step(computed)
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("averages", "expected"), [(False, "UNDECIDED"), (True, "DOES NOT CONFORM")])
def test_ranks_may_each_try_a_different_rate(averages, expected):
    script = Script(drift=0.1)
    for _ in range(3):
        computed = script.backward()
        used = averaged(computed) if averages else computed
        for rank in range(2):
            script.step([used[rank]] * 2, ranks=[rank], rate=0.1 * (rank + 1))
            script.steps -= 1 - rank
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("averages", "expected"), [(True, set()), (False, {"watch/averaged"})])
@pytest.mark.parametrize("early", [0, 1])
def test_one_rank_may_first_make_another_optimizer(early, averages, expected):
    """The common parameters and optimizer then have different numbers on this rank, but are still compared. Its other
    optimizer is unknown on the others. early: the rank whose records come first."""
    script = Script(drift=0.1 * (not averages))
    for _ in range(4):
        computed = script.backward()
        script.each(records.Clipped("norm", script.numbers, 1e6, 1.0, len(SHAPES), LINE))
        script.step(averaged(computed) if averages else computed)
        script.clear()
    began, *rest = script.streams[0]
    probe = [records.Parameter(0, [5, 7], "float32", 1, "probe"), records.Optimizer(0, "Adam", [0])]
    own = stepped([0], gradients(1, ((5, 7),)), kind="Adam")
    script.streams[0] = [began, *probe, *map(_renumbered, rest), own]
    script.streams.sort(key=lambda stream: stream[0].rank != early)
    findings = script.findings()
    assert laws(findings) - {"watch/same-weights"} == expected
    assert findings.conserved == (8 if averages else 0)
    assert findings.open["ranks.some"].says.values == {"type": "Adam"}
    assert findings.seen[Property.COVERAGE] == len(SHAPES) + 1
    assert "ranks.order" not in findings.open


def test_a_rank_that_adds_a_parameter_group_cannot_be_compared():
    script = Script()
    added = [records.Parameter(len(SHAPES) + number, [3], "float32", 1, None) for number in range(2)]
    script.streams[0].append(added[0])
    for stream in script.streams:
        stream.append(added[1])
    script.numbers = [*script.numbers, len(SHAPES) + 1]
    script.shapes = (*SHAPES, (3,))
    for _ in range(3):
        script.step(averaged(script.backward()))
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.causes) == ("UNDECIDED", {})
    assert [*findings.open] == ["ranks.order"]


def test_a_parameter_group_comes_after_optimizers_of_different_parts():
    """As in `ZeroRedundancyOptimizer`, whose inner optimizer has a part of the parameters on each rank."""
    script = Script()
    for rank, stream in enumerate(script.streams):
        stream.append(records.Optimizer(1, "Adam", script.numbers[rank::2]))
        stream.append(records.Parameter(len(SHAPES), [3], "float32", 1, None))
    script.numbers, script.shapes = [*script.numbers, len(SHAPES)], (*SHAPES, (3,))
    for _ in range(3):
        script.step(averaged(script.backward()))
        script.clear()
    assert verdict(script.findings()) == "CONFORMS"


def _renumbered(record):
    """The record with all numbers of parameters and optimizers increased by one."""
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
        script.step(script.backward())
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert "agreement.weights" in findings.open


@pytest.mark.parametrize(("right", "expected"), [(0, "UNDECIDED"), (1, "UNDECIDED"), (4, "DOES NOT CONFORM")])
def test_gradients_that_look_averaged_once_are_not(right, expected):
    """In a tiny model they may look so by chance, so several steps decide whether ranks average."""
    script = Script()
    second = Second(script)
    for step in range(8):
        script.step(averaged(script.backward()))
        own = second.backward()
        second.step(averaged(own) if step < right else own)
        script.clear()
        second.clear()
    assert verdict(script.findings()) == expected


SAME_STEPS = {"watch/same-steps"}


def weigh(script, is_apart, last=False):
    for rank, stream in enumerate(script.streams):
        stream.append(records.Weighed(script.numbers, sketches(gradients(rank if is_apart else 0)), last))


@pytest.mark.parametrize(
    ("wraps", "apart", "at_the_end", "expected"),
    [
        (True, [1, 1, 1], [1], SAME_STEPS),
        (True, [1, 1, 1], [0], "UNDECIDED"),
        (True, [1, 1, 1], [], "UNDECIDED"),
        (True, [1, 0, 1], [1], "UNDECIDED"),
        (True, [0, 0, 0], [0], "UNDECIDED"),
        (True, [1], [1], "UNDECIDED"),
        (False, [1, 1, 1], [1], "UNDECIDED"),
    ],
)
def test_only_rank_0_steps(wraps, apart, at_the_end, expected):
    """It may send its weights to the others, before each backward pass or from time to time."""
    script = Script()
    if wraps:
        script.each(records.Wrapped(0))
    for is_apart in [0, *apart]:
        weigh(script, is_apart)
        script.step(averaged(script.backward()), ranks=[0])
        script.clear()
    for is_apart in at_the_end:
        weigh(script, is_apart, last=True)
    assert shown(script.findings()) == expected


@pytest.mark.parametrize(
    ("line", "apart", "expected"),
    [(LINE, True, SAME_STEPS), (LINE, False, "UNDECIDED"), (["train.py", 99, "main"], True, "UNDECIDED")],
)
def test_one_rank_takes_the_last_step(line, apart, expected):
    """In another loop it may continue by itself."""
    script = Script()
    for ranks in [(0, 1)] * 4 + [(0,)]:
        weigh(script, is_apart=False)
        script.step(averaged(script.backward(ranks=ranks)), ranks=ranks)
        script.clear()
    script.streams[0][-2].site = line
    weigh(script, apart, last=True)
    assert shown(script.findings()) == expected


@pytest.mark.parametrize(
    ("inside", "apart", "expected"),
    [
        (True, [0, 1, 1, 1], {"watch/same-weights"}),
        (True, [0, 1, 0, 1], "UNDECIDED"),  # it gets them later
        (True, [0, 0, 0, 0], "UNDECIDED"),
        (False, [0, 1, 1, 1], "UNDECIDED"),
    ],
)
def test_parameters_that_only_one_rank_steps(inside, apart, expected):
    """Its optimizer is of another class, as a part of a sharded one."""
    script = Script()
    for stream, kind in zip(script.streams, ("SGD", "Adam"), strict=True):
        stream.append(records.Optimizer(1, kind, script.numbers))
        stream.append(records.Wrapped(1, inside=script.numbers if inside else []))
    for is_apart in apart:
        weigh(script, is_apart)
        script.step(averaged(script.backward()))
        for stream, kind in zip(script.streams, ("SGD", "Adam"), strict=True):
            stream[-1].optimizer, stream[-1].type = 1, kind
        script.clear()
    assert shown(script.findings()) == expected


def test_optimizers_that_look_alike_may_train_different_models():
    """DDP wraps only one of them, so they do not belong together."""
    script = Script()
    script.streams[1].append(records.Wrapped(0))
    for is_apart in [0, 1, 1, 1]:
        weigh(script, is_apart)
        script.step(averaged(script.backward()), ranks=[0])
        script.clear()
    weigh(script, is_apart=True, last=True)
    assert verdict(script.findings()) == "UNDECIDED"


@pytest.mark.parametrize(("is_apart", "expected"), [(False, "UNDECIDED"), (True, SAME_STEPS)])
def test_ranks_take_turns(is_apart, expected):
    script = Script()
    script.each(records.Wrapped(0))
    for turn in range(4):
        weigh(script, is_apart and turn)
        script.step(averaged(script.backward()), ranks=[turn % 2])
        script.clear()
    weigh(script, is_apart, last=True)
    assert shown(script.findings()) == expected


def test_steps_count_that_only_some_ranks_take():
    """After a skip of one rank, the k-th steps of the ranks come at different times until the other one skips."""
    script = Script()
    script.each(records.Wrapped(0))
    for place in range(12):
        weigh(script, place > 3)
        script.step(averaged(script.backward()), ranks={3: [0], 8: [1], 9: [1]}.get(place))
        script.clear()
    weigh(script, is_apart=True, last=True)
    [cause] = script.findings().causes.values()
    assert (cause.first.law, cause.first.effect, cause.steps) == (*SAME_STEPS, said("steps-of-some", steps=3), 3)


def test_no_rank_can_step_for_a_rank_with_shards():
    script = Script()
    for stream in script.streams:
        for one in stream:
            if isinstance(one, records.Parameter):
                one.shards = 2
    for _ in range(2):
        script.step([gradients(1)] * 2, ranks=[0])
    assert laws(script.findings()) == SAME_STEPS


def ranks_with_own(
    numbers, *, start=False, names, wraps=False, left=(), inside=(), exchanges=None, apart=(), shapes=SHAPES
):
    """Each rank steps these parameters on its own gradients, and the others on the average. start: they differ between
    ranks from the start. apart: others with equal gradients but different weights on the ranks. exchanges: the
    parameters that get gradients before the backward pass has collectives."""
    script = Script(shapes=shapes)
    script.each(records.Named({str(number): name for number, name in enumerate(names)}))
    if wraps:
        script.each(records.Wrapped(0, [*left], [*inside]))
    if exchanges is not None:
        script.each(records.Exchanged([*exchanges]))
    for step in range(4):
        computed = script.backward()
        average = total(computed, 0.5)
        script.step([[own[n] if n in numbers else average[n] for n in script.numbers] for own in computed])
        for rank, stream in enumerate(script.streams):
            for number in (*numbers, *apart) if start or step else ():
                stream[-1].values[number] = [one + rank for one in stream[-1].values[number]]
        script.clear()
    return script.findings()


OF_MODELS = ("weight", "bias", "weight", "weight", "weight", "bias")
"""The names in four models, one after the other."""

ALIKE = (*SHAPES[:2], *SHAPES[4:5] * 4)

NAMES = ("body.weight", "body.bias", "body.other", "more.weight", "head.weight", "head.bias")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"numbers": (4, 5), "start": True}, "UNDECIDED"),
        ({"numbers": (4, 5)}, "UNDECIDED"),  # experts that start as copies, or a layer forgotten
        ({"numbers": (4, 5), "names": OF_MODELS}, "UNDECIDED"),
        ({"numbers": (4,), "apart": (5,), "shapes": ALIKE}, "UNDECIDED"),  # one without samples
        ({"numbers": (4,), "apart": (3, 5), "shapes": ALIKE}, "UNDECIDED"),
        ({"numbers": (4,), "apart": (2, 5), "shapes": ALIKE}, "DOES NOT CONFORM"),  # a part of the body
        ({"numbers": (4, 5), "apart": (3,)}, "DOES NOT CONFORM"),  # no copy of an expert
        ({"numbers": (5,), "start": True}, "DOES NOT CONFORM"),  # half of one
        ({"numbers": (5,)}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "wraps": True}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "start": True, "wraps": True}, "DOES NOT CONFORM"),  # a head outside of DDP
        ({"numbers": (4, 5), "start": True, "wraps": True, "left": (4, 5)}, "CONFORMS"),  # DDP ignores it
        ({"numbers": (4, 5), "start": True, "exchanges": ()}, "CONFORMS"),  # partitioned
        ({"numbers": (4, 5), "start": True, "exchanges": (), "wraps": True}, "CONFORMS"),
        ({"numbers": (4, 5), "start": True, "exchanges": (), "wraps": True, "inside": (3, 4, 5)}, "DOES NOT CONFORM"),
        ({"numbers": (4, 5), "exchanges": (5,)}, "DOES NOT CONFORM"),  # replicas
        ({"numbers": (4, 5), "exchanges": (2, 3)}, "UNDECIDED"),  # experts that start as copies
    ],
)
def test_modules_that_each_rank_may_have_for_itself(options, expected):
    assert verdict(ranks_with_own(**{"names": NAMES, **options})) == expected


@pytest.mark.parametrize(("numbers", "has_parts"), [((), False), ((4, 5), True)])
def test_parts_of_parameters_are_known_as_such(numbers, has_parts):
    assert ranks_with_own(numbers=numbers, names=NAMES, start=True, exchanges=()).has_parts == has_parts


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_groups_of_ranks_may_have_a_module_each(size, cancels):
    """Each group starts from its own weights and averages their gradients. cancels: the gradients of another parameter
    add up to almost nothing, so its factor is unknown."""
    script = Script(ranks=2 * size)
    script.each(records.Named({str(number): name for number, name in enumerate(NAMES)}))
    for _ in range(4):
        computed = script.backward()
        first = computed[0][2]
        for rank, stream in enumerate(script.streams if cancels else ()):
            computed[rank][2] = first * (1 if rank % 2 else 1e-6 - 1)
            stream[-1].sketches = sketches(computed[rank])
        all_ranks = total(computed, 0.5 / size)
        of_groups = [total(computed[begin : begin + size], 1 / size) for begin in (0, size)]
        of_each = [of_groups[rank // size] for rank in range(script.ranks)]
        script.step([[own[n] if n > 3 else all_ranks[n] for n in script.numbers] for own in of_each])
        for rank, stream in enumerate(script.streams):
            for number in (4, 5):
                stream[-1].values[number] = [one + rank // size for one in stream[-1].values[number]]
        script.clear()
    assert {*script.findings().open} == {"ranks.own-some", "agreement.weights"}


@pytest.mark.parametrize(
    ("times", "starts_apart", "drift", "expected"),
    [
        (2, False, 0.1, [("watch/one-factor", "ranks-by-factor", 0)]),
        (None, False, 0.1, [("watch/averaged", "used-differ", 0)]),
        ("returned", False, 0.1, [("watch/averaged", "returned-differ", 0)]),
        (None, True, 0.1, [("watch/same-weights", "weights-start-apart", 0)]),
        (None, False, 0.0, []),  # weights stay equal: an average within the step
    ],
)
def test_replicas_that_step_on_different_gradients_drift_apart(times, starts_apart, drift, expected):
    """Different weights are only the consequence."""
    script = Script(drift=drift)
    script.steps = int(starts_apart)
    for step in range(4):
        if times == "returned":
            script.each(records.Captured(script.numbers))
        else:
            script.backward()
        noise = gradients(900 + step)
        script.step([noise, total([noise], times) if times == 2 else gradients(950 + step)])
        script.clear()
    found = [cause.first for cause in script.findings().causes.values()]
    assert [(one.law, one.says.code, one.step) for one in found] == expected


def test_a_reason_replaces_the_finding_that_gradients_differ():
    script = Script(drift=0.1)
    for step in range(4):
        computed = script.backward()
        script.step(computed if step else [gradients(900), gradients(901)])
        script.clear()
    [cause] = script.findings().causes.values()
    assert (cause.first.says.code, cause.first.step) == ("own-gradients", 0)


class Parted(Script):
    """Ranks with parts of the last parameters, which start different, and replicas of the others."""

    def __init__(self, exchanges=True, stages=False, parts=(4, 5), drift=0.0, losses=(None, None)):
        super().__init__()
        self.parts, self.stages, self.moved, self.losses = parts, stages, drift, losses
        self.each(records.Named({str(number): f"m{number}.weight" for number in self.numbers}))
        if exchanges:
            self.each(records.Exchanged([]))

    def run(self, use, times=4):
        """use: the gradient in a rank's step, of a parameter, its own gradient and the sum over the ranks."""
        for step in range(times):
            computed = self.backward()
            for rank, stream in enumerate(self.streams):
                stream[-2].calls, stream[-2].value = rank * self.stages, self.losses[rank]
            both = total(computed)
            self.step([[use(n, own[n], both[n]) for n in self.numbers] for own in computed])
            for rank, stream in enumerate(self.streams):
                for number in self.numbers:
                    moves = 2.0 if number in self.parts else self.moved * step
                    stream[-1].values[number] = [one + rank * moves for one in stream[-1].values[number]]
            self.clear()
        findings = self.findings()
        return sorted(laws(findings)), sorted(findings.open)


PARTS = (4, 5)
STAGES = {"stages": True, "exchanges": False}


@pytest.mark.parametrize(
    ("options", "use", "expected"),
    [
        # One factor for parts and sums of replicas: one loss of all ranks, and hand-written clipping.
        (STAGES, lambda n, own, both: own if n in PARTS else both, ([], [])),
        ({}, lambda n, own, both: own / 2 if n in PARTS else both / 2, ([], [])),
        # Parts that sum up the gradients of the ranks' losses, beside means of the replicas.
        ({"losses": (2.0, 3.0)}, lambda n, own, both: own if n in PARTS else both / 2, ([], ["ranks.parts-summed"])),
        ({"losses": (2.0, 3.0)}, lambda n, own, both: own / 2 if n in PARTS else both / 2, ([], [])),
        ({"losses": (2.0, 2.0)}, lambda n, own, both: own if n in PARTS else both / 2, ([], [])),
        # Stages of one loss: a replica has the sum of its parts, not their mean.
        ({**STAGES, "losses": (None, 2.0)}, lambda n, own, both: own if n in PARTS else both, ([], [])),
        (
            {**STAGES, "losses": (None, 2.0)},
            lambda n, own, both: own if n in PARTS else both / 2,
            ([], ["ranks.one-loss-averaged"]),
        ),
        # A part uses the gradient of another one.
        ({}, lambda n, own, both: both / 2, (["watch/own-gradient"], ["ranks.parts"])),
        # Wrong replicas and correct parts.
        ({"drift": 0.1}, lambda n, own, both: own, (["watch/averaged"], [])),
        ({"drift": 0.1, **STAGES}, lambda n, own, both: own, (["watch/averaged"], [])),
        # Vectors start as the same constants on all stages by chance.
        (
            {**STAGES, "parts": (1, 3, 4, 5)},
            lambda n, own, both: own if n % 2 or n in PARTS else both,
            ([], []),
        ),
    ],
)
def test_parts_and_replicas_are_judged_differently(options, use, expected):
    assert Parted(**options).run(use) == expected


@pytest.mark.parametrize(
    ("values", "expected"), [([[], [2.0]], 1), ([[None], [2.0]], 1), ([[2.0], [2.0 + 1e-9]], 1), ([[2.0], [3.0]], 2)]
)
def test_only_ranks_with_known_losses_have_one(values, expected):
    windows = [SimpleNamespace(passes=[SimpleNamespace(value=value) for value in of_rank]) for of_rank in values]
    assert losses_of(windows) == expected


def test_weights_that_may_differ_on_purpose_are_a_separate_fact():
    script = Script(drift=0.1)
    script.steps = 1
    for _ in range(3):
        script.step(script.backward())
        script.clear()
    assert {*script.findings().open} == {"ranks.own", "agreement.weights"}


def test_steps_of_one_rank_do_not_hide_that_the_others_average():
    """Only the steps of all ranks decide whether ranks average."""
    script = Script()
    for turn in range(12):
        weigh(script, is_apart=turn > 2)
        used = averaged(script.backward())
        script.step(used, ranks=[0] if turn in (2, 3) else None)
        script.clear()
    weigh(script, is_apart=True, last=True)
    assert laws(script.findings()) == SAME_STEPS
