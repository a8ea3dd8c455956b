"""Weights of ranks that each step by themselves: taken over, averaged now and then, sent by those that step them."""

from dataclasses import replace

import pytest

from conformance.watch import records
from conformance.watch.judging.judge import judged

from .scripts import LINE, Script, averaged, gradients, laws, sketches, stepped, total


def kept(becomes, steps=14, averages=False, samples=True):
    """The findings of a script whose ranks step on their own gradients; `becomes` makes of what the ranks have
    after a step, a list of tensors each, what they have before the next one. samples: whether a sampler deals the data
    out."""
    script = Script()
    if samples:
        script.each(records.Epoch(0, 0, False))
    weights = [gradients(7)] * 2
    for step in range(steps):
        computed = script.backward()
        script.step(averaged(computed) if averages else computed)
        after = along(script, weights, computed)
        weights = becomes(step, weights, after)
        script.clear()
    return script.findings()


def along(script, weights, computed, **more):
    """The weights of the ranks after a step along these gradients, which is recorded."""
    after = [
        [one - 0.1 * gradient for one, gradient in zip(own, of_rank, strict=True)]
        for own, of_rank in zip(weights, computed, strict=True)
    ]
    for stream, before, now in zip(script.streams, weights, after, strict=True):
        stream[-1] = replace(stream[-1], values=sketches(before), after=sketches(now), **more)
    return after


def says(findings, code):
    return any(cause.first.says.code == code for cause in findings.causes.values())


def of_rank_0(_, __, after):
    return [after[0]] * 2


def of_the_best(step, _, after):
    return [after[step % 2]] * 2


def of_all(_, __, after):
    return [total(after, 0.5)] * 2


def summed_in_part(_, __, after):
    return [[*total(after, 0.5)[:-1], total(after)[-1]]] * 2


def sums_of_changes(_, before, after):
    return [[sum(new) - old for old, *new in zip(before[0], *after, strict=True)]] * 2


def of_rank_0_and_what_was(_, before, after):
    return [after[0], before[1]]


def taken_back(_, before, __):
    return before


@pytest.mark.parametrize(
    ("becomes", "expected"),
    [
        (of_rank_0, {"watch/averaged"}),
        (of_the_best, set()),
        (of_all, set()),
        (summed_in_part, {"watch/averaged"}),
        (sums_of_changes, set()),
        (taken_back, set()),
    ],
)
def test_ranks_that_step_on_their_own_gradients(becomes, expected):
    assert laws(kept(becomes)) == expected


def test_rank_0_may_be_what_averages():
    """And the others step for nothing, as they get its weights."""
    assert laws(kept(of_rank_0, averages=True)) == set()


def test_rank_0_may_be_the_best_each_time():
    """Where each rank has data of another kind."""
    findings = kept(of_rank_0, samples=False)
    assert laws(findings) == set()
    assert "ranks.taken-over" in findings.open


def test_a_few_steps_prove_nothing():
    assert laws(kept(of_rank_0, steps=8)) == set()


@pytest.mark.parametrize(
    ("becomes", "averages", "expected"),
    [
        (of_rank_0_and_what_was, True, True),
        (of_rank_0_and_what_was, False, False),  # a rank that tries steps for itself
        (taken_back, True, False),
    ],
)
def test_steps_of_one_rank_that_are_gone(becomes, averages, expected):
    """Where each rank has parameters of its own to step, and then gets all of them from one that has not stepped
    them."""
    assert says(kept(becomes, averages=averages), "step-undone") == expected


def dealt(becomes, ends_as_it_began=True, steps=14):
    """The findings of a script whose ranks step three parameters each, on the sum of all gradients."""
    script = Script()
    begin = gradients(7)
    weights = [*begin]
    for step in range(steps):
        used = total(script.backward())
        for rank, numbers in enumerate(([0, 1, 2], [3, 4, 5])):
            own = [weights[number] for number in numbers]
            after = [one - 0.1 * used[number] for one, number in zip(own, numbers, strict=True)]
            of_rank = [used[number] for number in numbers]
            script.streams[rank].append(stepped(numbers, of_rank, own, after=sketches(after)))
            for number, before, now in zip(numbers, own, after, strict=True):
                weights[number] = becomes(step, before, now)
        script.clear()
    last = begin if ends_as_it_began else weights
    script.each(records.Weighed(script.numbers, sketches(last), last=True))
    return script.findings()


@pytest.mark.parametrize(
    ("becomes", "ends_as_it_began", "expected"),
    [
        (lambda step, before, after: before, True, True),  # sent by a rank that does not step it
        (lambda step, before, after: after, False, False),
        (lambda step, before, after: after, True, False),  # put back at the end
        (lambda step, before, after: after if step == 10 else before, False, False),  # one try is kept
    ],
)
def test_parameters_that_are_dealt_out_and_never_move(becomes, ends_as_it_began, expected):
    assert says(dealt(becomes, ends_as_it_began), "step-undone") == expected


LAYERS = ("0.weight", "0.bias", "1.weight", "1.bias", "head.weight", "head.bias")


def averaged_now_and_then(forgets, *, every=1, steps=12, names=LAYERS, late=()):
    """What is wrong with the weights of ranks that step on their own gradients, and average their weights after each
    `every`th step, but for those that it forgets; `late`: those of them that it averages in the end all the same."""
    script = Script()
    script.each(records.Named({str(number): name for number, name in enumerate(names)}))
    weights = [gradients(7)] * 2
    for step in range(steps):
        computed = script.backward()
        script.step(computed)
        after = along(script, weights, computed, is_elsewhere=step > 0)
        mean = total(after, 0.5)
        left = {number for number in forgets if number not in late or step < steps - 2}
        meets = step % every == every - 1
        weights = [[of_rank[n] if n in left or not meets else mean[n] for n in range(len(mean))] for of_rank in after]
        script.clear()
    return [one.first.says for one in script.findings().causes.values()]


@pytest.mark.parametrize(
    ("forgets", "options", "expected"),
    [
        ((5,), {}, True),
        ((1, 2), {}, True),
        ((5,), {"every": 3}, True),
        ((), {}, False),
        ((4, 5), {}, False),  # a head of each rank's own
        ((1, 3, 5), {}, False),  # biases of its own
        ((5,), {"late": (5,)}, False),  # in turns
        ((5,), {"steps": 3}, False),
        ((5,), {"names": (*LAYERS[:5], "temperature")}, False),
    ],
)
def test_what_is_left_out_of_an_average(forgets, options, expected):
    assert bool(averaged_now_and_then(forgets, **options)) == expected


OWNED = ("first.weight", "first.bias", "second.weight", "second.bias", "third.weight", "third.bias", "head.weight")
OWNED_SHAPES = ((6, 5), (6,), (4, 6), (4,), (9, 4), (9,), (3, 9))
ALL = frozenset(range(len(OWNED)))


def owned(shares, moves=(), names=OWNED, reached=ALL, unknown=False, still=True, steps=4):
    """The laws that ranks break that each step a share and send it to the others. moves: what is stepped in another
    way. reached: what gets gradients. unknown: no optimizer was ever given what is left over."""
    left = sorted(reached - {number for share in shares for number in share})
    streams = []
    for rank, share in enumerate(shares):
        stream = [records.Began(rank, rank, len(shares), "launch")]
        known = [number for number in range(len(OWNED)) if not unknown or number not in left]
        stream += [records.Parameter(n, list(OWNED_SHAPES[n]), "float32", 1, names[n]) for n in known]
        stream.append(records.Optimizer(0, "SGD", known))
        stream.append(records.Optimizer(1 + rank, "SGD", [*share]))
        for step in range(steps):
            changing = {number for of_rank in shares for number in of_rank} | {*moves}
            weights = [gradients(7 + (step if n in changing else 0), [OWNED_SHAPES[n]])[0] for n in known]
            stream.append(records.Weighed(known, sketches(weights)))
            stream.append(records.Backward(step + 1, None, [], None, {"0": step}, False, False, False, LINE))
            computed = [number for number in known if number in reached]
            local = sketches(gradients(step, [OWNED_SHAPES[n] for n in computed]))
            stream.append(records.Local(step + 1, computed, computed, "float32", local))
            used = gradients(step, [OWNED_SHAPES[n] for n in share])
            stream.append(stepped(share, used, used, optimizer=1 + rank))
        if unknown:
            unheld = [names[number] for number in left]
            shapes = [[*OWNED_SHAPES[number]] for number in left]
            stream.append(records.Unheld(unheld, shapes, still=unheld if still else []))
        stream.append(records.Ended())
        streams.append(stream)
    return [cause.first.says.code for (law, _), cause in judged(streams).causes.items() if law == "watch/held"]


@pytest.mark.parametrize(
    ("shares", "options", "expected"),
    [
        (((0, 1), (2, 3), (4, 5)), {}, False),  # a module of its own may stay
        (((0, 1), (2, 3), (4, 6)), {}, True),
        (((0, 1), (2, 3), (4, 6)), {"unknown": True}, True),
        (((0, 1), (2, 3), (4, 6)), {"unknown": True, "still": False}, False),
        (((0, 1), (2, 3), (4, 6)), {"moves": (5,)}, False),  # by hand
        (((0, 1), (2, 3), (4, 6)), {"reached": ALL - {5}}, False),  # frozen
        (((0, 1), (2, 3), (4, 5, 6)), {}, False),
        (((0, 1, 2), (3, 4)), {}, False),  # shares that are not alike
        (((0, 1), (2, 3)), {}, False),  # more is left over than a division leaves
        (((0, 1, 2), (2, 3, 4)), {}, False),  # they step something together
        (((0, 1), (2, 3), (4, 6)), {"names": (*OWNED[:4], None, *OWNED[5:])}, False),
        (((0, 1, 2, 3, 4, 6),), {}, False),  # one process, which leaves a bias out
    ],
)
def test_what_is_left_over(shares, options, expected):
    assert bool(owned(shares, **options)) == expected


# Each rank steps a share of the parameters, and clips what it steps.


SHARES, SHARED = ([0, 1, 2], [3, 4, 5]), "ZeroRedundancyOptimizer"


@pytest.mark.parametrize(
    ("kind", "parts", "norms", "limit", "expected"),
    [
        (SHARED, SHARES, (3.0, 8.0), 4.0, {"watch/one-factor"}),
        # The norm may be the largest element, and then the limit is above that of all.
        (SHARED, SHARES, (3.0, 3.5), 4.0, set()),
        (SHARED, SHARES, (3.0, 8.0), 10.0, set()),
        (SHARED, SHARES, (5.0, 5.0), 4.0, set()),  # that of all, as it was told
        ("SGD", SHARES, (5.0, 5.0), 4.0, {"watch/one-factor"}),  # here each rank steps all of them
        (SHARED, ([0, 1, 2, 3, 4, 5],) * 2, (8.0, 8.0), 4.0, set()),
    ],
)
def test_shares_that_are_clipped_by_their_own_norms(kind, parts, norms, limit, expected):
    script = Script()
    for _ in range(3):
        used = total(script.backward(), 0.5)
        steps = []
        for stream, numbers, norm in zip(script.streams, parts, norms, strict=True):
            stream.append(records.Clipped("norm", [*numbers], limit, norm, len(numbers), LINE))
            factor = min(1.0, limit / (norm + 1e-6))
            steps.append([one * factor if n in numbers else one for n, one in enumerate(used)])
        script.step(steps)
        for stream in script.streams:
            stream[-1].type = kind
        script.clear()
    assert laws(script.findings()) & {"watch/one-factor"} == expected
