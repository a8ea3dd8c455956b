"""What becomes of the weights that ranks step by themselves."""

from dataclasses import replace

import pytest

from conformance.watch import records

from .scripts import LINE, Script, gradients, sketches, total


def trained(becomes, steps=14, averages=False, samples=True):
    """The findings of a script whose ranks step on their own gradients; `becomes` makes of what the ranks have
    after a step, a list of tensors each, what they have before the next one. samples: whether a sampler deals the data
    out."""
    script = Script()
    if samples:
        script.each(records.Epoch(0, 0, False))
    weights = [gradients(7)] * 2
    for step in range(steps):
        computed = script.backward()
        script.step([total(computed, 0.5)] * 2 if averages else computed)
        after = [
            [one - 0.1 * gradient for one, gradient in zip(own, of_rank, strict=True)]
            for own, of_rank in zip(weights, computed, strict=True)
        ]
        for stream, before, now in zip(script.streams, weights, after, strict=True):
            assert isinstance(stream[-1], records.Stepped)
            stream[-1] = replace(stream[-1], values=sketches(before), after=sketches(now))
        weights = becomes(step, weights, after)
        script.clear()
    return script.findings()


def laws(findings):
    return {law for law, _ in findings.causes}


def says(findings, code):
    return any(cause.first.says.code == code for cause in findings.causes.values())


def of_rank_0(_, __, after):
    return [after[0]] * 2


def of_the_best(step, _, after):
    return [after[step % 2]] * 2


def averaged(_, __, after):
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
        (averaged, set()),
        (summed_in_part, {"watch/averaged"}),
        (sums_of_changes, set()),
        (taken_back, set()),
    ],
)
def test_ranks_that_step_on_their_own_gradients(becomes, expected):
    assert laws(trained(becomes)) == expected


def test_rank_0_may_be_what_averages():
    """And the others step for nothing, as they get its weights."""
    assert laws(trained(of_rank_0, averages=True)) == set()


def test_rank_0_may_be_the_best_each_time():
    """Where each rank has data of another kind."""
    findings = trained(of_rank_0, samples=False)
    assert laws(findings) == set()
    assert "ranks.taken-over" in findings.open


def test_a_few_steps_prove_nothing():
    assert laws(trained(of_rank_0, steps=8)) == set()


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
    assert says(trained(becomes, averages=averages), "step-undone") == expected


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
            script.streams[rank].append(
                records.Stepped(
                    0, "SGD", [0.1], numbers, [], False, None, False, False, "float32", numbers,
                    sketches([used[number] for number in numbers]), numbers, sketches(own), LINE, after=sketches(after),
                )
            )  # fmt: skip
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
