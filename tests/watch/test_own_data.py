"""Ranks, and micro-batches of a step, that use the same samples."""

import random
from types import SimpleNamespace

import pytest

from conformance.watch import records
from conformance.watch.judging.chapter import End
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.properties import Property
from conformance.watch.judging.same_samples import Samples

from .scripts import LINE, Script, laws, total

STEPS = 32
DATA = random.Random(1).sample(range(2**32), 2 * STEPS)


def batches(rows, size=2):
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def own(rank):
    """Data of only this rank."""
    return [1000 * (rank + 1) + row for row in range(2 * STEPS)]


def shuffled(rank, data=DATA):
    return random.Random(rank).sample(data, len(data))


def judged(reads, *, others=None, drawn=None, dealt=None, is_alike=False, wrapped=True, averages=True):
    """The findings of ranks that read these rows. others: of other inputs, like `reads`, as is drawn. dealt: the number
    of ranks that a sampler deals samples to. is_alike: the ranks' gradients are equal."""
    findings = Findings()
    samples = Samples(len(reads), findings)
    for rank in range(len(reads)) if dealt else ():
        samples.feed(rank, records.Epoch(0, 0, True, dealt), None)
    sampler = 0 if dealt else None
    for at in range(max(map(len, reads))):
        # Ranks may read in any order.
        for rank in shuffled(at, range(len(reads))):
            if at >= len(reads[rank]):
                continue
            made_of, of_others = (of[rank][at] if of else [] for of in (drawn, others))
            samples.feed(rank, records.Entered(reads[rank][at], wrapped, LINE, sampler, made_of, of_others), None)
        samples.judge_right(SimpleNamespace(here=[], is_alike=is_alike))
    samples.finish(End({}, True, averages))
    return findings


def data_facts(findings):
    return {code: one for code, one in findings.open.items() if code.startswith("data.")}


def found(findings):
    """The ranks and values of each cause, and the values of each fact about data."""
    causes = {
        (law, cause.first.says.code, tuple(sorted(cause.ranks))): cause.first.says.values
        for (law, _), cause in findings.causes.items()
    }
    return causes, {code: one.says.values for code, one in data_facts(findings).items()}


def shared(code, *ranks):
    return ("watch/own-data", code, ranks)


SAME = [batches(DATA)] * 2
OWN = [batches(own(rank)) for rank in range(2)]
APART = [batches(shuffled(rank)) for rank in range(2)]
STREAM = [batches(DATA * 2)[rank::3] for rank in range(3)]
"""One stream of two epochs, dealt to three ranks in turns, which do not divide an epoch."""
HALF = [OWN[0], batches(shuffled(0, own(0)[:STEPS] + own(1)[STEPS:]))]
FEW = [[[1, 2], [3, 4]] * 16] * 2
"""The same two batches, repeated."""


def mixed(common, all_of=STEPS):
    """Batches of both ranks: first different ones, then `common` equal ones."""
    return [batches(own(rank))[: all_of - common] + batches(DATA)[:common] for rank in range(2)]


@pytest.mark.parametrize(
    ("reads", "options", "cause", "values"),
    [
        (SAME, {"is_alike": True}, shared("data.same-inputs", 0, 1), {"alike": STEPS, "forwards": STEPS}),
        (SAME * 2, {"is_alike": True}, shared("data.same-inputs", 0, 1, 2, 3), {"alike": STEPS, "forwards": STEPS}),
        (
            SAME,
            {"is_alike": True, "wrapped": False},
            shared("data.same-inputs", 0, 1),
            {"alike": STEPS, "forwards": 32},
        ),
        (mixed(30), {"is_alike": True}, shared("data.same-inputs", 0, 1), {"alike": 30, "forwards": 32}),
        (SAME, {"is_alike": True, "others": OWN}, None, {}),
        (SAME, {"is_alike": True, "averages": False}, None, {}),
        (SAME[:1], {"is_alike": True}, None, {}),
        (APART, {}, shared("data.same-epoch", 0, 1), {"share": 1.0}),
        (APART, {"others": APART}, shared("data.same-epoch", 0, 1), {"share": 1.0}),
        (APART, {"others": OWN}, None, {}),
        (OWN, {}, None, {}),
        ([OWN[0], *APART], {}, shared("data.same-epoch", 1, 2), {"share": 1.0}),
        ([APART[0], OWN[0], APART[1]], {}, shared("data.same-epoch", 0, 2), {"share": 1.0}),
        (OWN, {"drawn": HALF, "dealt": 2}, shared("data.same-epoch", 0, 1), {"share": 0.5}),  # seeds of ranks differ
        (OWN, {"drawn": OWN, "dealt": 2}, None, {}),
        (STREAM, {}, None, {}),
    ],
)
def test_ranks_read_the_same_data(reads, options, cause, values):
    causes, facts = found(judged(reads, **options))
    assert (causes, facts) == ({cause: values} if cause else {}, {})


@pytest.mark.parametrize(
    ("reads", "options", "share"),
    [
        (SAME, {}, 1.0),  # with different targets
        (FEW, {"is_alike": True}, 1.0),  # a first try
        (mixed(16), {"is_alike": True}, 0.5),
        (mixed(4), {"is_alike": True}, 0.125),
        (mixed(3), {"is_alike": True}, None),  # as a sampler pads
        (OWN, {"drawn": SAME}, 1.0),  # augmented differently
        (OWN, {"drawn": APART}, 1.0),
        (OWN, {"drawn": HALF}, 0.5),
        (OWN, {"drawn": HALF, "dealt": 1}, 0.5),  # dealt to a group of ranks
        (OWN, {"drawn": [[[]] * STEPS] * 2}, None),
        (OWN, {"drawn": OWN}, None),
        ([batches(own(0)), batches(own(0)[:20] + own(1)[20:])], {}, 10 / STEPS),
        ([[[*range(at, at + 4)] for at in (0, 4, 8)], [[*range(at, at + 4)] for at in (8, 0, 4)]], {}, None),
    ],
)
def test_ranks_have_samples_in_common(reads, options, share):
    findings = judged(reads, **options)
    assert found(findings) == ({}, {"data.same-samples": {"share": share}} if share else {})
    assert bool(findings.seen[Property.DATA]) == (share is None)


def test_forwards_with_other_samples_are_counted():
    assert judged(OWN).seen == {Property.DATA: STEPS}
    assert judged(mixed(3)).seen == {Property.DATA: STEPS - 3}
    assert judged([[[]] * STEPS] * 2).seen == {Property.DATA: 0}


@pytest.mark.parametrize("reads_all", [False, True])
def test_a_learning_rate_finder_reads_the_same_on_all_ranks_before(reads_all):
    reads = [batches([*range(40)]) + batches(shuffled(rank) if reads_all else own(rank)) for rank in range(2)]
    causes, facts = found(judged(reads))
    assert bool(causes) == reads_all
    assert [*facts] == [] if reads_all else ["data.same-samples"]


def test_inputs_before_the_first_wrapped_model_do_not_count():
    findings = Findings()
    samples = Samples(2, findings)
    for wrapped, reads in ((False, SAME), (True, OWN), (False, SAME)):
        for rank, of_rank in enumerate(reads):
            for rows in of_rank:
                samples.feed(rank, records.Entered(rows, wrapped, LINE), None)
        samples.judge_right(SimpleNamespace(here=[], is_alike=True))
    samples.finish(End({}, True, True))
    assert found(findings) == ({}, {})


PASSES = 3


@pytest.mark.parametrize(
    ("size", "equal", "told"), [(1.0, PASSES, PASSES), (0.0, PASSES, 0), (1.0, PASSES - 1, PASSES - 1), (1.0, 1, 0)]
)
def test_micro_batches_give_the_same_gradients(size, equal, told):
    """size: of all gradients. equal: passes of a window with equal gradients. told: passes reported as repeated."""
    script, steps = Script(ranks=1), 4
    for _ in range(steps):
        passes = [script.backward(factors=[1 / PASSES])[0] for _ in range(PASSES)]
        local = [one for one in script.streams[0] if isinstance(one, records.Local)][-PASSES:]
        for place in range(PASSES):
            of = 0 if place < equal else place
            passes[place] = total([passes[of]], size)
            local[place].sketches = [[size * number for number in sketch] for sketch in local[of].sketches]
        script.step([total(passes)])
        script.clear()
    findings = script.findings()
    assert found(findings) == ({}, {"data.same-micro-batches": {"passes": told, "all": PASSES}} if told else {})
    facts = data_facts(findings).values()
    assert [(one.count, one.step, one.site) for one in facts] == [(steps, 0, LINE)] * bool(told)


@pytest.mark.parametrize(("is_same", "expected"), [(True, {"watch/own-data"}), (False, set())])
def test_equal_gradients_of_ranks_are_those_of_the_same_inputs(is_same, expected):
    """Different gradients may come from different losses or random numbers."""
    script = Script()
    for step in range(4):
        script.each(records.Entered([10 * step, 10 * step + 1], False, LINE))
        computed = script.backward()
        if is_same:
            script.streams[1][-1].sketches = script.streams[0][-1].sketches
            computed = [computed[0]] * 2
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    findings = script.findings()
    assert laws(findings) == expected
    assert [*data_facts(findings)] == ["data.same-samples"] * (not is_same)
