"""Weights of backward passes and targets: wrong scripts, and correct ones that look similar."""

import random
from dataclasses import replace

import pytest

from conformance.watch import records
from conformance.watch.judging.properties import Property
from conformance.watch.records import ENTROPIES
from conformance.watch.report.sentences import sentence
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, laws, sketches, total

MEANS, SUM, DIVIDED = "watch/means-averaged", "micro-batches.sum", "micro-batches.divided"
TWICE, TIMES = "micro-batches.divided-twice", "micro-batches.times-ranks"
TOTAL, TOTALS, CONSTANT = "micro-batches.total", "micro-batches.totals", "denominator.constant"
LENGTH, OF_ALL, ONCE = "watch/window-length", "watch/mean-of-all", "watch/averaged-once"


def fed(script, passes, ranks):
    """Adds a window and returns the gradients of each pass. passes: fields of each, or a list of these by rank."""
    computed = []
    for facts in passes:
        by_rank = facts if isinstance(facts, list) else [facts] * ranks
        if "rows" in by_rank[0]:
            script.each(records.Entered(by_rank[0]["rows"], False, LINE))
        gradients = script.backward()
        for stream, of_rank in zip(script.streams, by_rank, strict=True):
            one = stream[-2]
            one.divisors = of_rank.get("divisors", [])
            one.factors = [1 / divisor for divisor in one.divisors]
            one.batches = int(of_rank.get("loader") is not None)
            for name, value in of_rank.items():
                if name != "rows":
                    setattr(one, name, value)
        computed += gradients
    return computed


def judged(windows, ranks=1, times=None, prepare=None):
    """times: the factor of the sum of all gradients in a step."""
    script = Script(ranks=ranks)
    for passes in windows:
        computed = fed(script, passes, ranks)
        script.step([total(computed, times or 1 / ranks)] * ranks)
        if prepare:
            prepare(script)
        script.clear()
    return script.findings()


def shown(findings):
    """Violated laws and open facts, after a check that all have their sentences."""
    for one in findings.open.values():
        assert sentence(one.says)
    for cause in findings.causes.values():
        assert sentence(cause.first.says)
        assert sentence(cause.first.effect)
    return laws(findings) | findings.open.keys()


def of(targets=8, **facts):
    return {"targets": targets, **facts}


def by(*divisors, targets=8, **facts):
    return {"targets": targets, "divisors": [*divisors], **facts}


def lengths(numbers, *divisors, **facts):
    return [[by(*divisors, **facts)] * number for number in numbers]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (lengths((2, 2, 2), 2), set()),
        (lengths((2, 2, 1), 2), {LENGTH}),
        (lengths((2, 2, 3), 2), {DIVIDED}),  # the rest of an epoch is included
        (lengths((2, 2, 3, 2, 3, 2), 2, loader=7), {LENGTH}),  # in each later epoch
        (lengths((2, 2, 3, 2, 3, 2), 2), {DIVIDED}),
        (
            [
                [by(2, loader=7, calls=at) for at in calls]
                for calls in ((0, 0), (0, 0), (0, 0, 1), (0, 0), (0, 0, 1), (0, 0))
            ],
            {DIVIDED},
        ),
        (lengths((2, 2, 3, 2, 2, 3, 2), 2, loader=7), {DIVIDED}),
        (lengths((2, 2, 3, 2, 4, 2), 2, loader=7), {DIVIDED}),
        ([[by(2, calls=1), by(2, calls=2)] * 2] * 3, set()),  # two losses of each micro-batch
        ([[by(2, calls=1, loader=3), by(2, calls=2, loader=3)] * 2] * 3, {DIVIDED}),  # each has its own
        ([[by(4, calls=1), by(4, calls=2)] * number for number in (4, 4, 2)], {DIVIDED}),
        ([[by(2, calls=1), by(2, calls=1), by(2, calls=1), by(2, calls=2)]] * 3, {DIVIDED}),
        (lengths((2, 2, 1, 2, 2, 1, 2), 2), {LENGTH}),
        (lengths((1, 2, 2, 2), 2), {LENGTH}),
        (lengths((2, 1, 2, 2, 2, 1, 2), 2), {DIVIDED}),  # some batches have no labels
        (lengths((4, 4, 3, 4, 4, 2), 4, loader=7), {LENGTH}),
        (
            [*lengths((4, 4), 4, loader=7), [by(4, loader=7, batches=n) for n in (2, 1, 1)]],
            {DIVIDED},
        ),  # one is left out
        (lengths((2, 3, 5, 6, 2), 4), {DIVIDED}),
        (lengths((2, 2, 2, 2, 4), 4), {DIVIDED}),
        (lengths((2, 3, 4, 2), 4, targets=None), {DIVIDED}),  # the correct length once
        (lengths((2, 2, 2), 4, targets=None), set()),  # a quarter of a loss
        (lengths((1, 1, 1), 4), {DIVIDED}),
        (lengths((4, 4, 4), 8), {DIVIDED}),
        (lengths((4, 4, 4), 4, 4), {"watch/divided-once"}),
        (lengths((2, 2, 2), 2, 2), {TWICE}),  # half of a loss, or a bug
        (lengths((2, 2, 2), 2, 2, made_by=ENTROPIES[0]), {DIVIDED}),
        (lengths((4, 4, 4), 4, 2), set()),
        (lengths((4, 4, 2), 4, 2), {LENGTH}),
        (lengths((1, 1, 1), 2.5), set()),  # a temperature
        (lengths((1, 1, 1), 3, loader=7, batches=3), {"watch/every-backward", DIVIDED}),
        (lengths((1, 1, 1), 3, loader=7, batches=2), {DIVIDED}),
    ],
)
def test_divisors_of_losses(windows, expected):
    assert shown(judged(windows)) == expected


def test_a_fact_and_a_finding_have_their_numbers():
    found = judged(lengths((2, 2, 3), 2))
    assert found.open[DIVIDED].says.values == {"number": 2, "passes": [3], "times": 1.5}
    [cause] = judged(lengths((4, 4, 3, 4, 4, 3), 4), ranks=2).causes.values()
    first = cause.first
    assert (cause.count, cause.steps) == (4, 2)
    assert (first.says.values, first.effect.values) == ({"passes": 3, "number": 4}, {"factor": 0.75})
    assert (first.law, first.step, first.site, cause.ranks) == (LENGTH, 2, LINE, {0, 1})


@pytest.mark.parametrize(
    ("passes", "times", "expected"),
    [
        ([of()] * 4, 1, {SUM}),
        ([of()] * 4, 0.25, set()),  # divides the gradients
        ([of(loader=3)] * 2, 1, {MEANS}),
        ([of(loader=3 if count else None, batches=count) for count in (3, 0, 0)], 1, {MEANS}),
        ([of(loader=3 if count else None, batches=count) for count in (4, 0, 0)], 1, {SUM}),
        ([of(loader=3, draws=True)] * 2, 1, {SUM}),  # episodes
        ([of(loader=3), of(loader=4)], 1, {SUM}),  # two tasks
        ([of(rows=[1]), of(rows=[1])], 1, set()),  # losses of one batch
        ([of(rows=[1]), of(rows=[2])], 1, {SUM}),
        ([{"factors": [0.5], "loader": 7}] * 4, 1, {SUM}),
        ([{"factors": [0.25], "loader": 7}] * 4, 1, set()),
        ([{"factors": [0.5, 0.25], "loader": 7}] * 4, 1, set()),
        ([{"factors": [0.9], "of_terms": [8.0], "loader": 7}] * 4, 1, set()),
        ([{"factors": [0.9], "is_hidden": True, "loader": 7}] * 4, 1, set()),
        ([{"factors": [0.5]}] * 4, 1, set()),
        ([{"factors": [0.5], "loader": 7, "calls": n} for n in range(4)], 1, set()),
        ([by(4, loader=0)] * 3 + [of(loader=0)], 1, {"micro-batches.uneven"}),
        ([by(4)] * 3 + [of(loader=0)], 1, set()),  # of other data
        ([by(4, loader=0)] * 3 + [by(2, loader=0)], 1, set()),  # a weight
        ([by(4, loader=0)] * 3 + [of(factors=[0], loader=0)], 1, set()),  # left out
    ],
)
def test_micro_batches_are_averaged_or_summed(passes, times, expected):
    assert shown(judged([passes] * 4, times=times)) == expected


def test_summed_losses_may_be_expected():
    found = judged([[of(loader=3)] * 2] * 4)
    assert laws(found) == {MEANS}
    assert verdict(found, {Property.MICRO_BATCHES: "sum"}) == "CONFORMS"
    assert verdict(found, {Property.RANKS: "sum"}) == "DOES NOT CONFORM"


def own_means(*divisors):
    return [{"divisors": [divisor], "of_any": True} for divisor in divisors]


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([of()] * 4, {SUM}),
        ([by(4, loader=7)] * 4, set()),
        ([by(4, loader=0)] * 3 + [of(loader=0)], {"micro-batches.uneven"}),
        (own_means(5.2, 4.4, 5.5), {SUM}),  # divided by the weights of its own samples
        (own_means(27.5, 27.5, 27.5), set()),  # by those of all
        (own_means(5.2, 4.4)[:1], set()),
    ],
)
def test_weights_of_micro_batches_do_not_depend_on_the_ranks(passes, expected):
    for times, of_ranks in ((0.5, set()), (1.0, {"ranks.sum"})):
        found = shown(judged([passes] * 4, ranks=2, times=times))
        assert expected <= found <= expected | of_ranks | {MEANS}


WAITS = (True, True, True, False)
"""DDP synchronizes only in the last micro-batch."""


@pytest.mark.parametrize(
    ("calls", "facts", "expected"),
    [
        ((1, 1, 1, 1), {}, {MEANS}),
        ((1, 1, 1, 2), {"waits": WAITS}, {MEANS}),  # the last one synchronizes in another line
        ((1, 1, 1, 2), {"waits": WAITS, "made_by": "aaab"}, set()),  # and is another loss
        ((1, 1, 1, 2), {"waits": WAITS, "factors": ([], [], [], [0.1])}, set()),
        ((1, 1, 1, 2), {"waits": WAITS, "loader": (3, 3, 3, 4)}, set()),
        ((1, 1, 1, 2), {"waits": WAITS, "batches": (1, 1, 1, 0)}, set()),  # of an earlier batch
        ((1, 1, 1, 2), {}, {SUM}),
        ((1, 2), {"waits": WAITS[-2:]}, {SUM}),  # two losses look the same
        ((1, 2), {"own_calls": (7, 7)}, {MEANS}),  # within a library, below one line
        ((1, 2, 1, 2), {}, set()),
    ],
)
def test_passes_of_one_loss(calls, facts, expected):
    each = {"loader": [3] * len(calls), "calls": calls, "own_calls": calls, "made_by": "a" * len(calls), **facts}
    passes = [of(**{name: values[place] for name, values in each.items()}) for place in range(len(calls))]
    assert shown(judged([passes] * 4)) == expected


def test_sums_that_are_the_same_up_to_rounding_are_one():
    script = Script()
    for _ in range(4):
        both = total(fed(script, [of()], 2))
        script.step([total([both], 1 + rank * 2e-6) for rank in range(2)])
        script.clear()
    assert laws(script.findings()) == {MEANS}


def share(number, counts, times=1):
    return [by(sum(counts) / times, targets=0, summed=count) for count in counts] if number else counts


@pytest.mark.parametrize(
    ("of_ranks", "times", "expected"),
    [
        ([of(16), of(16)], 0.5, set()),
        ([of(16), of(16)], 1, {MEANS}),
        ([of(16, is_of_all=True)] * 2, 1, set()),
        ([of(16, is_of_all=True)] * 2, 0.5, set()),
        ([by(2), by(2)], 1, set()),
        ([{}, {}], 1, {"ranks.sum"}),  # shows nothing
        ([by(2, targets=None, added=3)] * 2, 1, set()),
        ([by(2, targets=None, added=2)] * 2, 1, {"ranks.sum"}),  # may be the mean of its terms
        ([by(2, targets=None, added=2, weighs=True)] * 2, 1, set()),
        ([by(2, targets=None, added=2, weighs=True)] * 2, 0.5, {"micro-batches.divided-by-ranks"}),
        ([by(2, targets=None, added=2)] * 2, 0.5, set()),
        ([by(3, targets=None, added=2, weighs=True)] * 2, 0.5, set()),
        ([of(factors=[0.5])] * 2, 1, {"ranks.sum"}),  # may be half of an error
        ([by(3, targets=None)] * 2, 1, {"ranks.sum"}),
        ([of(factors=[2.0])] * 2, 0.5, {TIMES}),
        ([of(factors=[0.5])] * 2, 0.5, set()),  # half of a loss
        ([{"factors": [2.0]}] * 2, 0.5, set()),
        ([by(2), by(2)], 0.5, {"micro-batches.divided-by-ranks"}),
        ([by(4), by(4)], 0.5, {DIVIDED}),
        (share(1, (12, 20)), 1, set()),
        (share(1, (12, 20)), 0.5, {ONCE}),
        (share(1, (12, 20), 2), 0.5, set()),
        (share(1, (16, 16)), 0.5, set()),  # equal to half a mean over the rank's targets
        ([of(12, factors=[12 / 32]), of(20, factors=[20 / 32])], 0.5, {ONCE}),
        ([of(12, factors=[24 / 32]), of(20, factors=[40 / 32])], 0.5, set()),
        ([by(32, targets=0, summed=n, factors=[0.5, 2.0, 1 / 32]) for n in (12, 20)], 0.5, set()),  # half of a loss
        ([{"summed": 8}, {"summed": 12}], 0.5, set()),  # bare sums
    ],
)
def test_weights_of_ranks(of_ranks, times, expected):
    assert shown(judged([[of_ranks]] * 3, ranks=2, times=times)) == expected


def test_one_of_two_equal_divisors_is_the_number_of_ranks():
    windows = [[[{"divisors": [2.0] * times, "factors": [0.5] * times}] * 2] * 2 for times in (1, 2)]
    assert [shown(judged([of] * 3, ranks=2, times=1)) for of in windows] == [{"ranks.sum"}, set()]


@pytest.mark.parametrize(("summed", "expected"), [((32, 32), set()), ((12, 20), {ONCE})])
def test_ranks_that_each_compute_the_loss_of_all(summed, expected):
    """Each counts its own share, and divides the sum over all samples by the count of all ranks."""
    passes = [
        by(32, targets=0, summed=targets, global_divisors=[(32, own)])
        for targets, own in zip(summed, (12, 20), strict=True)
    ]
    assert shown(judged([[passes]] * 3, ranks=2, times=0.5)) == expected


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([[of(factors=[2.0])]] * 3, TIMES),
        (lengths((2, 2, 2), 2, 2), TWICE),
        ([[of()] * 2] * 3, SUM),
    ],
)
def test_an_unusual_weight_of_losses_leaves_the_verdict_open(windows, expected):
    found = judged(windows, ranks=2)
    [code] = found.open
    assert (code, verdict(found)) == (expected, "UNDECIDED")
    assert sentence(found.open[code].says)


def sums(divisors, counts):
    return [[{"divisors": [divisor], "summed": count}] for divisor, count in zip(divisors, counts, strict=True)]


RISING = [8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("divisors", "counts", "times", "expected"),
    [
        ([8, 9, 10, 11, 12, 13], [7, 8, 9, 10, 11, 12], 0.5, [7 / 8, 12 / 13]),  # counts of the previous step
        (RISING, RISING, 0.5, None),
        ([2 * one for one in RISING], RISING, 1.0, None),  # of both ranks
        ([32] * 6, RISING, 0.5, [8 / 32, 13 / 32]),  # a constant of the script
        ([16] * 6, [8] * 6, 0.5, None),
        ([8] * 6, [8, 8, 12, 8, 8, 8], 0.5, [1.5]),  # some targets count twice
        ([8] * 6, [8, 8, 8, 8, 8, 4], 0.5, [0.5]),
    ],
)
def test_sums_whose_divisor_is_not_the_number_of_targets(divisors, counts, times, expected):
    found = judged(sums(divisors, counts), ranks=2, times=times)
    assert not found.causes
    said = [one.says for code, one in found.open.items() if code in (TOTAL, TOTALS, CONSTANT)]
    assert [[*one.values.values()] for one in said] == ([pytest.approx(expected)] if expected else [])


@pytest.mark.parametrize(("counts", "expected"), [((10, 12, 14, 16), None), ((12, 15, 18, 20), [14 / 18, 10 / 12])])
def test_means_that_a_factor_weighs_by_their_targets_are_sums(counts, expected):
    """counts: what each window divides by."""
    targets = [(4, 6), (5, 7), (6, 8), (7, 9)]
    windows = [
        [{"targets": one, "factors": [one / count]} for one in own] for own, count in zip(targets, counts, strict=True)
    ]
    found = judged(windows, ranks=2)
    assert not found.causes
    said = [[*one.says.values.values()] for one in found.open.values()]
    assert said == ([pytest.approx(expected)] if expected else [])
    assert found.seen[Property.DENOMINATOR] == len(windows)


def shuffled(window, place):
    return random.Random(window).sample(range(24), 9)[3 * place : 3 * place + 3]


def of_tasks(window, place):
    return [100 * place + row for row in shuffled(window, place)]


def sized(counts, rows=None, padded=None, **facts):
    """A window for each of `counts`, of micro-batches with these numbers of targets, which count equally."""
    windows = []
    for number, of_window in enumerate(counts):
        passes = [by(len(of_window), targets=count, **facts) for count in of_window]
        for place, one in enumerate(passes):
            one |= {"rows": rows(number, place)} if rows else {}
            one |= {"ignored": padded - one["targets"]} if padded else {}
        windows.append(passes)
    return windows


def turned(*counts, times=6):
    return [counts[number % 3 :] + counts[: number % 3] for number in range(times)]


RAGGED = turned(20, 12, 16)
APART = "denominator.apart"


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (sized(turned(4, 4, 4), loader=7), set()),
        (sized([(4, 4, 2)] * 3, loader=7), {APART}),  # the last batch of the data, in each window
        (sized([(4, 4, 2)] * 3), {APART}),  # chunks of a batch
        (sized([(4, 4, 2), (4, 4, 4), (4, 4, 4), (4, 4, 4)]), set()),
        (sized([(2, 4, 4), (4, 4, 2), (4, 2, 4)], loader=7), {OF_ALL}),
        (sized([(4, 3, 4)] + [(4, 4, 4)] * 4 + [(3, 4, 4)] + [(4, 4, 4)] * 4, loader=7), set()),  # ends of epochs
        (sized(RAGGED, loader=7), {OF_ALL}),
        ([[by(3, targets=8 - 4 * (n == 1), loader=7 + n) for n in range(3)]] * 3, set()),  # data sets
        ([[by(3, targets=8 - 4 * (n == 1), loader=None if n else 7) for n in range(3)]] * 3, {APART}),  # of one batch
        (sized(RAGGED, of_tasks, loader=7), {OF_ALL}),
        (sized(RAGGED, shuffled, padded=24), {OF_ALL}),
        (sized(RAGGED, of_tasks, padded=24), {APART}),  # each task has different rows
        (sized(RAGGED, lambda *_: [1, 2, 3], padded=24), {APART}),  # groups of the same rows
        (sized(RAGGED, shuffled), {APART}),  # these may be graphs
        (sized(RAGGED, of_tasks, loader=7, draws=True), {APART}),  # tasks
        (sized(RAGGED, lambda *_: [1], padded=24), {APART}),  # samples, which may count as one each
        (sized(RAGGED, loader=7, of_any=True), set()),
        (sized(turned(1000, 980, 991), loader=7), set()),  # a few missing targets
        ([[of(factors=[count / 48], targets=count, loader=7) for count in (20, 12, 16)]] * 3, set()),
    ],
)
def test_micro_batches_of_different_sizes_count_equally(windows, expected):
    assert shown(judged(windows)) == expected


def own(script):
    script.streams[0][-1].is_own = True


def test_an_optimizer_class_of_the_script_may_divide():
    assert shown(judged([[of(loader=3)] * 2] * 3, prepare=own)) == {SUM}


def test_an_optimizer_may_step_more_rarely_than_another():
    """Gradients between its steps are no micro-batches, unless both optimizers use the whole window."""
    other = records.Stepped(1, "SGD", [0.1], [], [], False, None, False, "float32", [], [], [], [], None)
    for between in (True, False):
        script = Script(ranks=1)
        script.each(records.Optimizer(1, "SGD", []))
        for _ in range(3):
            computed = fed(script, [of(loader=3)], 1)
            if between:
                script.each(other)
            computed += fed(script, [of(loader=3)], 1)
            script.each(other)
            script.step([total(computed)])
            script.clear()
        assert (MEANS in shown(script.findings())) != between


def test_ranks_may_have_different_tasks():
    """The last parameters are the heads of the ranks."""
    script = Script()
    for _ in range(3):
        computed = script.backward(targets=16)
        for rank, stream in enumerate(script.streams):
            local, other = stream[-1], 4 + rank
            at = local.parameters.index(other)
            local.parameters = [number for number in local.parameters if number != other]
            local.sketches = [one for place, one in enumerate(local.sketches) if place != at]
            computed[rank][other] = 0 * computed[rank][other]
        script.step([total(computed)] * 2)
        script.clear()
    assert shown(script.findings()) == {"ranks.sum"}


def test_means_over_different_numbers_of_several_heads():
    """Each micro-batch goes through a different head."""
    script = Script(ranks=1)
    for _ in range(3):
        computed = []
        for place, count in enumerate((8, 4, 8)):
            [gradients] = fed(script, [by(3, targets=count, loader=7)], 1)
            local = script.streams[0][-1]
            local.parameters, local.sketches = [0, place + 1], [local.sketches[0], local.sketches[place + 1]]
            computed.append([one if n in (0, place + 1) else 0 * one for n, one in enumerate(gradients)])
        script.step([total(computed)])
        script.clear()
    assert laws(script.findings()) == set()


@pytest.mark.parametrize(
    ("values", "exchanged", "times", "expected"),
    [
        ((0.25, 0.25), 96, 1, set()),  # one loss, each rank has a part of its gradient
        ((0.25, 0.25 * (1 + 1e-7)), 96, 1, set()),
        ((0.25, 0.25), 96, 0.5, set()),  # its backward pass sums up over the ranks
        ((0.25, 0.25), 1, 1, {MEANS}),  # the loss was averaged for a log, or is a constant
        ((0.25, 0.5), 96, 1, {MEANS}),
        ((0.25, None), 96, 1, {MEANS}),
        ((0.25, 0.5), 96, 0.5, set()),
    ],
)
def test_one_loss_of_all_ranks(values, exchanged, times, expected):
    of_ranks = [[{"targets": 8, "value": value, "exchanged": exchanged} for value in values]]
    assert shown(judged([of_ranks] * 4, ranks=2, times=times)) == expected


def test_ranks_on_the_same_samples_have_no_loss_together():
    script = Script()
    for _ in range(4):
        computed = fed(script, [{"targets": 8, "value": 0.25, "exchanged": 96}], 2)
        for stream in script.streams:
            stream[-1] = replace(stream[-1], sketches=sketches(computed[0]))
        script.step([total(computed[:1] * 2)] * 2)
        script.clear()
    assert MEANS in shown(script.findings())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (((3, 5), (9, 7)), {APART}),  # targets of rank 0 weigh twice as much
        (((3, 5), (4, 4)), set()),
        (((4, 4), (8, 8)), {APART}),
        (((4, 4), (4, 4)), set()),
    ],
)
def test_ranks_that_count_their_own_targets(counts, expected):
    window = [
        [{"summed": count, "targets": 0, "divisors": [sum(of_rank)]} for count, of_rank in zip(at, counts, strict=True)]
        for at in zip(*counts, strict=True)
    ]
    assert shown(judged([window] * 4, ranks=2)) & {APART} == expected


@pytest.mark.parametrize(("divisors", "expected"), [([], {SUM}), ([4.0], set())])
def test_micro_batches_of_a_pipeline(divisors, expected):
    """Each rank has its own optimizer; only the last stage has losses, and the first gets gradients from it."""
    script = Script()
    for rank, stream in enumerate(script.streams):
        for one in stream:
            if isinstance(one, records.Optimizer):
                one.type = f"Stage{rank}"
    for _ in range(4):
        passes = []
        for _ in range(4):
            passes.append(script.backward(targets=8))
            first, last = (stream[-2] for stream in script.streams)
            first.targets, first.is_hidden = None, True
            last.divisors, last.factors, last.value = divisors, [1 / one for one in divisors], 0.5
        script.step([total([of[rank] for of in passes]) for rank in range(2)])
        script.clear()
    assert script.findings().open.keys() == expected
