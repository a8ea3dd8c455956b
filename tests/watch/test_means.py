"""A mean of means over micro-batches that are not equally large."""

import random

import pytest

from conformance.watch import records
from conformance.watch.judging.losses import PARTLY
from conformance.watch.judging.means import OF_ONE
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, total


@pytest.mark.parametrize("loader", [7, None])
@pytest.mark.parametrize(
    ("targets", "broken"),
    [
        ((4, 4, 4), set()),
        ((4, 4, 2), set()),  # the last batch of the data
        ((2, 4, 4), {"watch/mean-of-all"}),
        ((4, 3, 4), {"watch/mean-of-all"}),
    ],
)
def test_a_smaller_last_batch_is_a_note_and_others_are_wrong(targets, broken, loader):
    """Without a loader, micro-batches may be graphs, or tasks."""
    script = Script(ranks=1)
    for number in range(3):
        counts = targets[number:] + targets[:number] if broken else targets
        computed = [script.backward(factors=[1 / 3], targets=count, loader=loader) for count in counts]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    findings = script.findings()
    assert {law for law, _ in findings.causes} == (broken if loader else set())
    assert any("as samples, tasks or groups may be meant to" in why for why in findings.open) == bool(
        broken and not loader
    )
    assert bool(findings.notes) == ((targets[-1] < targets[0] and loader is not None) or bool(broken))


@pytest.mark.parametrize(("every", "expected"), [(1, "UNDECIDED"), (3, "CONFORMS")])
def test_the_last_part_of_a_batch_is_smaller(every, expected):
    """A batch that is cut is cut so each time, and the last one of an epoch comes now and then."""
    script = Script(ranks=1)
    for number in range(6):
        counts = (12, 12, 12 if number % every else 6)
        computed = [script.backward(factors=[1 / 3], targets=count) for count in counts]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.causes) == (expected, {})
    assert any("the last micro-batch of a window is smaller" in one for one in [*findings.notes, *findings.open])


def shuffled(window, place):
    return random.Random(window).sample(range(24), 9)[3 * place : 3 * place + 3]


def of_tasks(window, place):
    return [100 * place + row for row in shuffled(window, place)]


@pytest.mark.parametrize(
    ("counts", "rows", "facts", "accused"),
    [
        ((20, 12, 16), of_tasks, {"loader": 7, "batches": 1}, True),
        ((20, 12, 16), shuffled, {"padded": 24}, True),
        ((20, 12, 16), of_tasks, {"padded": 24}, False),  # each of which has rows of its own
        ((20, 12, 16), lambda *_: [1, 2, 3], {"padded": 24}, False),  # groups of the same rows
        ((20, 12, 16), shuffled, {}, False),  # graphs, for all that is known
        ((20, 12, 16), of_tasks, {"loader": 7, "batches": 1, "draws": True}, False),  # of a loader of tasks
        ((20, 12, 16), lambda *_: [1], {"padded": 24}, False),  # samples, each of which may count as one
        ((1000, 980, 991), shuffled, {"padded": 1000}, False),  # a few targets of some are missing
    ],
)
def test_what_may_count_alike(counts, rows, facts, accused):
    script = Script(ranks=1)
    for number in range(6):
        computed = []
        for place, count in enumerate(counts[number % 3 :] + counts[: number % 3]):
            script.each(records.Entered(rows(number, place), False, LINE))
            computed.append(script.backward(factors=[1 / 3], targets=count))
            begins = script.streams[0][-2]
            begins.ignored = facts.get("padded", count) - count
            for name in facts.keys() - {"padded"}:
                setattr(begins, name, facts[name])
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    findings = script.findings()
    assert bool(findings.causes) == accused
    assert (OF_ONE in findings.open) == (len(rows(0, 0)) == 1)
    assert any("up to 1.02 times" in note for note in findings.notes) == (counts[0] == 1000)


@pytest.mark.parametrize(("windows", "broken"), [(5, set()), (1, {"watch/mean-of-all"})])
def test_an_epoch_may_end_within_a_window(windows, broken):
    """Of so many windows one has the last batch of the data, in another place each time."""
    script = Script(ranks=1)
    for number in range(3 * windows):
        counts = [4, 4, 4]
        if number % windows == 0:
            counts[number // windows % 2] = 3
        computed = [script.backward(factors=[1 / 3], targets=count, loader=7) for count in counts]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    findings = script.findings()
    assert {law for law, _ in findings.causes} == broken
    assert bool(findings.notes) != bool(broken)


@pytest.mark.parametrize(("passes", "told"), [((3, 2), True), ((3, 3), False)])
def test_ranks_with_different_numbers_of_micro_batches(passes, told):
    """Each rank divides its losses by how many it has."""
    script = Script()
    for _ in range(3):
        computed = []
        for number in range(max(passes)):
            ranks = [rank for rank in range(2) if number < passes[rank]]
            gradients = script.backward(targets=8, ranks=ranks)
            for rank in ranks:
                script.streams[rank][-2].factors = [1 / passes[rank]]
                computed.append(gradients[rank])
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert any("different numbers of micro-batches" in note and "1.5 times" in note for note in findings.notes) == told


@pytest.mark.parametrize(("numbers", "told"), [((6, 8), True), ((7, 7), False)])
def test_ranks_divide_by_numbers_of_their_own(numbers, told):
    """As by how many boxes there are in the images of each."""
    script = Script()
    for _ in range(3):
        computed = script.backward()
        for rank, number in enumerate(numbers):
            begins = script.streams[rank][-2]
            begins.factors, begins.divisors = [1 / number], [number]
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert any("a number of its own, from 6 to 8" in note for note in findings.notes) == told


def test_data_sets_with_batches_of_their_own_sizes_may_count_alike():
    """Each window has the same sizes in the same places."""
    script = Script(ranks=1)
    for _ in range(3):
        computed = [script.backward(factors=[1 / 3], targets=count) for count in (4, 2, 8)]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    assert verdict(script.findings()) == "UNDECIDED"


@pytest.mark.parametrize(
    ("lengths", "broken", "is_open"),
    [
        ((2, 2, 2), set(), False),
        ((2, 2, 1), {"watch/window-length"}, False),
        ((2, 2, 3), set(), True),  # with what an epoch has left
        ((2, 2, 1, 2, 2, 1, 2), {"watch/window-length"}, False),
        ((1, 2, 2, 2), {"watch/window-length"}, False),
        ((2, 1, 2, 2, 2, 1, 2), set(), True),  # what has no labels now and then
    ],
)
def test_a_window_of_another_length(lengths, broken, is_open):
    script = Script(ranks=1)
    for length in lengths:
        computed = [script.backward(factors=[1 / 2]) for _ in range(length)]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    findings = script.findings()
    assert {law for law, _ in findings.causes} == broken
    assert bool(findings.open) == is_open


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ((2, 3, 5, 6, 2), "each loss is divided by 4, and its window has 2 to 6 backward passes"),
        ((2, 2, 2, 2, 4), "each loss is divided by 4, and its window has 2 backward passes"),
        ((2, 3, 4, 4, 4, 4), None),
        ((2, 3, 4, 2), "each loss is divided by 4, and its window has 2 to 3 backward passes"),
    ],
)
def test_windows_that_are_not_as_long_as_losses_are_divided_by(lengths, says):
    script = Script(ranks=1)
    for length in lengths:
        computed = []
        for _ in range(length):
            computed += script.backward(factors=[0.25], targets=8)
            script.streams[0][-2].divisors = [4]
        script.step([total(computed)])
        script.clear()
    found = [why for why in script.findings().open if why.startswith("each loss is divided")]
    assert found == ([says] if says else [])


@pytest.mark.parametrize(("factor", "expected"), [(0.25, "CONFORMS"), (1.0, "UNDECIDED")])
def test_gradients_may_be_divided_in_place_of_the_losses(factor, expected):
    script = Script(ranks=1)
    for _ in range(3):
        computed = [script.backward(targets=8) for _ in range(4)]
        script.step([total([of_rank for [of_rank] in computed], factor)])
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("divisors", "passes", "expected"),
    [
        ([4], 4, "CONFORMS"),
        ([4], 1, "UNDECIDED"),  # as without the block that accumulates
        ([8], 4, "UNDECIDED"),  # as by the number of ranks, too
        ([4, 4], 4, "DOES NOT CONFORM"),
        ([2, 2], 2, "UNDECIDED"),
        ([2.5], 1, "CONFORMS"),  # as a temperature
    ],
)
def test_a_mean_is_divided_by_another_number_than_that_of_its_window(divisors, passes, expected):
    script = Script(ranks=1)
    for _ in range(3):
        computed = []
        for _ in range(passes):
            computed += script.backward(factors=[1 / one for one in divisors], targets=8)
            script.streams[0][-2].divisors = divisors
        script.step([total(computed)])
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("changes", "expected"), [(False, "CONFORMS"), (True, "UNDECIDED")])
def test_gradients_at_different_weights_are_added_up(changes, expected):
    script = Script(ranks=1)
    for _ in range(3):
        computed = [*script.backward(factors=[0.5]), *script.backward(factors=[0.5])]
        script.streams[0][-2].versions = {"0": script.steps + changes}
        script.step([total(computed)])
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("divisors", "expected"),
    [
        ([[2.0, 5.0], [2.0, 7.0]], "UNDECIDED"),
        ([[2.0, 5.0], [2.0, 5.0]], "CONFORMS"),
        ([[12.0], [12.0]], "CONFORMS"),
        ([[1.0, 5.0], [1.0, 7.0]], "CONFORMS"),  # terms of a sum
    ],
)
def test_micro_batches_that_are_divided_by_numbers_of_their_own_count_alike(divisors, expected):
    """Their losses show no number of targets, as those that a mask is multiplied with."""
    script = Script(ranks=1)
    for _ in range(3):
        computed = []
        for numbers in divisors:
            computed += script.backward(factors=[1 / number for number in numbers])
            script.streams[0][-2].divisors = numbers
        script.step([total(computed)])
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(
    ("factors", "loader", "is_open"),
    [
        ((1 / 4, 1, 1 / 4, 1 / 4), 0, True),
        ((1 / 4, 1, 1 / 4, 1 / 4), None, False),  # of other data
        ((1 / 4, 1 / 2, 1 / 4, 1 / 4), 0, False),  # a weight
        ((1 / 4, 1 / 4, 1 / 4, 1 / 4), 0, False),
        ((1 / 4, 0, 1 / 4, 1 / 4), 0, False),  # one that is left out
    ],
)
def test_some_losses_are_not_divided_by_the_number_of_micro_batches(factors, loader, is_open):
    script = Script(ranks=1)
    for _ in range(3):
        computed = [script.backward(factors=[factor], targets=8, loader=loader) for factor in factors]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert not findings.notes
    assert (PARTLY in findings.open) == is_open


ADDED_UP = "losses of micro-batches are added up, and nothing that is seen divides them by how many there are"


@pytest.mark.parametrize("is_one", [True, False])
def test_losses_of_one_batch_are_those_of_several_tasks(is_one):
    script = Script(ranks=1)
    for step in range(3):
        computed = []
        for task in range(2):
            script.each(records.Entered([step if is_one else 2 * step + task], False, LINE))
            computed += script.backward(targets=8)
        script.step([total(computed)])
        script.clear()
    assert verdict(script.findings()) == ("CONFORMS" if is_one else "UNDECIDED")


@pytest.mark.parametrize(
    ("factors", "divisors", "loader", "calls", "is_open"),
    [
        ([0.5], [], 7, 1, True),  # half of each loss, four times
        ([0.9], [], 7, 1, True),
        ([0.25], [], 7, 1, False),  # its share
        ([0.5, 0.25], [], 7, 1, False),
        ([0.5], [2.0], 7, 1, False),  # by two of something
        ([0.5], [], None, 1, False),  # no batches of a loader
        ([0.5], [], 7, 4, False),  # losses of several lines
    ],
)
def test_losses_that_nothing_divides_by_their_number(factors, divisors, loader, calls, is_open):
    script = Script(ranks=1)
    for _ in range(4):
        computed = []
        for number in range(4):
            computed += script.backward(factors=factors, targets=None, loader=loader)
            begins = script.streams[0][-2]
            begins.divisors, begins.calls = divisors, number % calls
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert (ADDED_UP in findings.open, findings.causes) == (is_open, {})
