"""Steps that not all ranks take: they are wrong where the ranks' weights are apart from then on, if they average."""

import pytest

from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import Script, gradients, sketches, total


def weigh(script, is_apart, last=False):
    for rank, stream in enumerate(script.streams):
        stream.append(records.Weighed(script.numbers, sketches(gradients(rank if is_apart else 0)), last))


@pytest.mark.parametrize(
    ("wraps", "apart", "at_the_end", "expected"),
    [
        (True, [1, 1, 1], [1], "DOES NOT CONFORM"),
        (True, [1, 1, 1], [0], "UNDECIDED"),
        (True, [1, 1, 1], [], "UNDECIDED"),
        (True, [1, 0, 1], [1], "UNDECIDED"),
        (True, [0, 0, 0], [0], "UNDECIDED"),
        (True, [1], [1], "UNDECIDED"),
        (False, [1, 1, 1], [1], "UNDECIDED"),
    ],
)
def test_rank_0_alone_steps(wraps, apart, at_the_end, expected):
    """It may send its weights to the others, before each backward pass or now and then."""
    script = Script()
    if wraps:
        script.each(records.Wrapped(0))
    for is_apart in [0, *apart]:
        weigh(script, is_apart)
        script.step([total(script.backward(), 0.5)] * 2, ranks=[0])
        script.clear()
    for is_apart in at_the_end:
        weigh(script, is_apart, last=True)
    findings = script.findings()
    assert verdict(findings) == expected
    assert {law for law, _ in findings.causes} == ({"watch/same-steps"} if "NOT" in expected else set())


def test_optimizers_that_look_alike_may_be_of_other_models():
    """Of those DDP wraps one, which has other partners than it seems."""
    script = Script()
    script.streams[1].append(records.Wrapped(0))
    for is_apart in [0, 1, 1, 1]:
        weigh(script, is_apart)
        script.step([total(script.backward(), 0.5)] * 2, ranks=[0])
        script.clear()
    weigh(script, is_apart=True, last=True)
    assert verdict(script.findings()) == "UNDECIDED"


@pytest.mark.parametrize(("is_apart", "expected"), [(False, "UNDECIDED"), (True, "DOES NOT CONFORM")])
def test_ranks_take_turns(is_apart, expected):
    script = Script()
    script.each(records.Wrapped(0))
    for turn in range(4):
        weigh(script, is_apart and turn)
        script.step([total(script.backward(), 0.5)] * 2, ranks=[turn % 2])
        script.clear()
    weigh(script, is_apart, last=True)
    findings = script.findings()
    assert verdict(findings) == expected
    assert {law for law, _ in findings.causes} == ({"watch/same-steps"} if is_apart else set())


def test_ranks_may_have_different_numbers_of_micro_batches():
    script = Script()
    for _ in range(3):
        computed = [script.backward(), script.backward()]
        del script.streams[1][-2:]
        of_all = [*computed[0], computed[1][0]]
        script.step([total(of_all, 0.5)] * 2)
        script.clear()
    assert verdict(script.findings()) == "CONFORMS"


def test_nobody_can_step_for_a_rank_that_holds_shards():
    script = Script()
    for stream in script.streams:
        for one in stream:
            if isinstance(one, records.Parameter):
                one.shards = 2
    for _ in range(2):
        script.step([gradients(1)] * 2, ranks=[0])
    assert {law for law, _ in script.findings().causes} == {"watch/same-steps"}
