"""Steps on sums, shares and multiples of the gradients of ranks and micro-batches."""

import pytest
import torch

from conformance.watch import records
from conformance.watch.judging.findings import said
from conformance.watch.verdict import verdict

from .scripts import LINE, SHAPES, Script, averaged, gradients, laws, shown, sketches, total, trained

AGAIN, ONCE = {"watch/every-backward"}, {"watch/averaged-once"}


def code_of(findings):
    [cause] = findings.causes.values()
    return cause.first.law, cause.first.says.code


def accumulated(after_each, ranks, micro_batches, **options):
    """after_each: the factor of the accumulated gradients after each micro-batch."""

    def window(script):
        used = None
        for _ in range(micro_batches):
            computed = total(script.backward(), 1 / ranks)
            used = total([computed if used is None else total([used, computed])], after_each)
        return [used] * ranks

    return trained(window, ranks=ranks, **options)


@pytest.mark.parametrize(
    ("after_each", "ranks", "micro_batches", "expected"),
    [
        (2.0, 2, 4, "summed-again"),
        (0.25, 1, 4, "divided-again"),
        (0.25, 2, 4, "divided-again"),
        (1 / 3, 1, 3, "divided-again"),
        (0.9, 1, 4, None),  # an intended decay
        (0.5, 2, 4, None),
        (2.0, 1, 4, None),
        (2.0, 2, 2, None),  # two factors always form a series
        (0.5, 1, 2, None),
    ],
)
def test_an_operation_repeated_after_each_micro_batch(after_each, ranks, micro_batches, expected):
    findings = accumulated(after_each, ranks, micro_batches)
    if expected:
        assert code_of(findings) == (*AGAIN, expected)
    else:
        assert shown(findings) == "UNDECIDED"


def test_all_steps_count_that_are_solved_together():
    """Two steps of few parameters have enough equations."""
    [cause] = accumulated(2.0, 2, 4, times=6, shapes=((6, 5), (4, 6), (9, 3))).causes.values()
    assert (cause.first.says.code, cause.steps, cause.first.step) == ("summed-again", 6, 0)


def weighed(*weights, counts=(None,) * 9, ranks=2):
    """weights: of the micro-batches of a window, in an average over the ranks. counts: of their targets."""

    def window(script):
        passes = [
            total(script.backward(targets=count), weight / ranks)
            for weight, count in zip(weights, counts, strict=False)
        ]
        return [total(passes)] * ranks

    return trained(window, ranks=ranks)


EQUAL = (8, 8, 8)


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (weighed(1 / 9, 1 / 3, 1.0, ranks=1), "UNDECIDED"),  # an intended decay, with the newest in full
        (weighed(4 / 7, 2 / 7, 1 / 7, ranks=1), "UNDECIDED"),
        (weighed(0.5, 0.25, 0.125), "UNDECIDED"),  # the first counts most
        (weighed(3, 2, 1, counts=EQUAL), AGAIN),
        (weighed(4, 2, 1, counts=EQUAL), AGAIN),  # summed over two ranks each time
        (weighed(3, 2, 1, counts=(24, 16, 8)), "UNDECIDED"),  # weights by the number of samples
        (weighed(3, 2, 1), "UNDECIDED"),
        (weighed(5, 2, 1, counts=EQUAL), "UNDECIDED"),
    ],
)
def test_micro_batches_have_weights(findings, expected):
    assert shown(findings) == expected


def of_one(source):
    """All ranks step on the gradients of one rank."""
    return trained(lambda script: [script.backward()[source]] * 2)


@pytest.mark.parametrize("source", [0, 1])
def test_gradients_of_one_rank_are_sent_to_all(source):
    findings = of_one(source)
    assert laws(findings) == {"watch/averaged"}
    [cause] = findings.causes.values()
    assert cause.ranks == {1 - source}


def by_samples(script):
    one, other = script.backward()
    return [total([total([one], 0.625), total([other], 0.375)])] * 2


def kept_while_cleared(script):
    kept = script.backward()
    script.clear()
    return averaged(kept, script.backward(), factor=0.25)


def clipped_and_cleared(script):
    script.backward()
    script.each(records.Clipped("norm", script.numbers, 1.0, 4.0, len(script.numbers), LINE))
    script.clear()
    return [gradients(script.steps)] * 2


def own_after_the_end_of_data(script):
    script.each(records.Joined())
    return script.backward()


def of_two_numbers_of_micro_batches(script):
    both, alone = script.backward(), script.backward()
    del script.streams[1][-2:]
    return averaged(both, alone[:1])


def made_small(script):
    [[first], [second]] = script.backward(scale=65536.0), script.backward()
    return [total([total([first], 1 / 65536), second])]


def clamped(script):
    return [[gradient.clamp(-0.3, 0.3) for gradient in averaged(script.backward())[0]]] * 2


def zeros(_=None):
    return [0 * gradient for gradient in gradients(0)]


@pytest.mark.parametrize(
    ("window", "options", "expected"),
    [
        (lambda script: averaged(script.backward(), script.backward()), {}, "CONFORMS"),
        (of_two_numbers_of_micro_batches, {}, "CONFORMS"),
        (lambda script: script.backward(), {}, "UNDECIDED"),  # ranks that stay equal
        (lambda script: script.backward(), {"drift": 0.1}, {"watch/averaged"}),  # so weights differ later
        (by_samples, {}, "UNDECIDED"),
        (kept_while_cleared, {}, "CONFORMS"),  # added up elsewhere
        (clipped_and_cleared, {}, "UNDECIDED"),
        (lambda script: [gradients(script.steps)] * 2, {}, "UNDECIDED"),  # assigned by hand
        (own_after_the_end_of_data, {"drift": 0.1}, "UNDECIDED"),
        (made_small, {"ranks": 1}, "UNDECIDED"),
        (clamped, {}, "UNDECIDED"),
    ],
)
def test_what_a_step_uses(window, options, expected):
    assert shown(trained(window, **options)) == expected


@pytest.mark.parametrize(
    ("drift", "expected"), [(1e-5, "watch/same-weights"), (1e-7, "agreement.rounding"), (0.0, None)]
)
def test_weights_may_differ_by_rounding(drift, expected):
    """For example, each rank perturbs its weights and restores them."""
    findings = trained(lambda script: averaged(script.backward()), times=2, drift=drift)
    assert [*laws(findings), *findings.open] == [expected] * (expected is not None)


def test_a_missing_micro_batch_is_named():
    def window(script):
        first, second = script.backward(), script.backward()
        return [total([first[rank], total(second, 0.5)]) for rank in (0, 1)]

    [cause] = trained(window, times=1).causes.values()
    table = "rank 0: 1, 0.5; rank 1: 0, 0.5"
    assert (cause.first.law, cause.first.says) == ("watch/averaged", said("micro-batches-own", places=[1], table=table))


def test_a_model_of_one_parameter_is_diagnosed_over_several_steps():
    """Only the first of four micro-batches is averaged: eight unknowns, and two equations a step."""

    def window(script):
        first, *others = [script.backward() for _ in range(4)]
        return [total([total(first, 0.5), *(of[rank] for of in others)]) for rank in (0, 1)]

    findings = trained(window, times=6, shapes=((4, 3),), drift=0.1)
    causes = {law: cause.first.says for (law, _), cause in findings.causes.items()}
    table = "rank 0: 0.5, 1, 1, 1; rank 1: 0.5, 0, 0, 0"
    assert causes["watch/averaged"] == said("micro-batches-own", places=[2, 3, 4], table=table)


@pytest.mark.parametrize(("drift", "broken"), [(0.1, {"watch/averaged"}), (0.0, set())])
def test_one_parameter_that_is_not_averaged(drift, broken):
    """Its weights drift apart; otherwise something else averages it."""

    def window(script):
        computed = script.backward()
        return [[*averaged(computed)[rank][:-1], computed[rank][-1]] for rank in (0, 1)]

    findings = trained(window, times=2, drift=drift)
    assert laws(findings) == broken
    says = [cause.first.says for (law, _), cause in findings.causes.items() if law == "watch/averaged"]
    assert [(one.code, one.values["parameters"], one.values["all"]) for one in says] == (
        [("some-not-averaged", 1, 6)] if broken else []
    )


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([0.25, 0.25, 0.25], ONCE),
        ([0.25], ONCE),
        ([0.25, 0.5, 0.25], ONCE),
        ([0.5, 0.25, 0.5], "UNDECIDED"),
        ([0.25, 0.25, 0.3], "UNDECIDED"),
        ([0.5, 0.5, 0.5], "CONFORMS"),
    ],
)
def test_gradients_of_two_ranks_are_divided_by_four(factors, expected):
    left = iter(factors)
    findings = trained(lambda script: averaged(script.backward(), factor=next(left)), times=len(factors))
    assert shown(findings) == expected
    if len({*factors}) == 1 and expected == ONCE:
        [cause] = findings.causes.values()
        assert (cause.count, cause.ranks, cause.first.step) == (2 * len(factors), {0, 1}, 0)
        assert cause.first.effect == said("factor", factor=0.5)


def test_steps_without_gradients_next_to_right_ones():
    script = Script()
    for step in range(6):
        if step % 2:
            script.step([[], []])
        else:
            script.step(averaged(script.backward()))
        script.clear()
    assert "coverage.some-steps" in script.findings().open


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (((1, 2), (0, 2), (0, 1), (0, 2)), "UNDECIDED"),  # a filter by gradients excludes different ranks
        (((0, 2),) * 4, "UNDECIDED"),  # a rank with wrong gradients in each step, or with other data
        (((0,),) * 4, {"watch/averaged"}),  # one rank is no average
    ],
)
def test_ranks_are_left_out(kept, expected):
    left = iter(kept)

    def window(script):
        computed, ranks = script.backward(), next(left)
        return [total([computed[rank] for rank in ranks], 1 / len(ranks))] * 3

    assert shown(trained(window, times=4, ranks=3)) == expected


def test_parameters_with_a_different_factor_are_named():
    def window(script):
        used = total(script.backward(), 0.5)
        return [[one * 0.5 if number in (1, 4) else one for number, one in enumerate(used)]] * 2

    says = trained(window).open["ranks.some-parameters"].says
    assert says.values == {"named": ["p1", "p4"], "times": pytest.approx(0.5, rel=1e-3)}


@pytest.mark.parametrize(
    ("ranks", "share", "expected"),
    [
        (3, 1 / 9, {"watch/divided-once"}),
        (2, 1 / 4, {"ranks.some-parameters"}),  # a half is a number that a script may choose
        (3, 1.0, {"ranks.some-parameters"}),
        (3, 1 / 3, set()),
    ],
)
def test_parameters_with_the_factor_of_another_division(ranks, share, expected):
    """share: of each rank in the gradient of one parameter."""

    def window(script):
        mean = total(script.backward(), 1 / ranks)
        return [[one * (share * ranks if n == 4 else 1) for n, one in enumerate(mean)]] * ranks

    findings = trained(window, ranks=ranks)
    assert laws(findings) | findings.open.keys() == expected


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([2, 1, 2, 1, 2, 1], "3 of 6 parameters: 2x; 3 of 6 parameters: 1x"),
        ([2, 1, 0.3, 2, 1, 0.3], "2 of 6 parameters: 2x; 2 of 6 parameters: 1x; 2 of 6 parameters: 0.3x"),
        ([2, 1, 2, 1, 0.3, 0.7], None),  # a number for each
    ],
)
def test_parameters_with_multiples_of_the_mean(factors, expected):
    def window(script):
        mean = total(script.backward(), 0.5)
        return [[one * factor for one, factor in zip(mean, factors, strict=True)]] * 2

    fact = trained(window).open.get("ranks.by-parameter")
    assert (fact and fact.says.values["table"]) == expected


def taken(order, but=1.0):
    """Gradients unpacked from a flat buffer in this order. but: a further factor of the first."""

    def window(script):
        computed = total(script.backward(), 0.5)
        return [[computed[order[0]] * but, *(computed[number] for number in order[1:])]] * 2

    return trained(window, shapes=(*SHAPES, *SHAPES))


IN_ORDER = [*range(2 * len(SHAPES))]
EXCHANGED = [6, 1, 2, 3, 4, 5, 0, *IN_ORDER[7:]]


@pytest.mark.parametrize(
    ("order", "but", "expected"),
    [
        (IN_ORDER, 1.0, "CONFORMS"),
        (EXCHANGED, 1.0, {"watch/own-gradient"}),
        ([*IN_ORDER[6:], *IN_ORDER[:6]], 1.0, {"watch/own-gradient"}),
        ([0, 1, 2, 3, 4, 5, 0, *IN_ORDER[7:]], 1.0, "UNDECIDED"),  # two share one, such as copies of a layer
        (EXCHANGED, 0.3, "UNDECIDED"),  # several factors
    ],
)
def test_parameters_have_each_others_gradients(order, but, expected):
    assert shown(taken(order, but)) == expected


def test_parameters_that_are_exchanged_are_named():
    [cause] = taken(EXCHANGED).causes.values()
    assert cause.first.says == said("exchanged", names=["p0", "p6"], others=["p6", "p0"])


ENTROPY, SQUARES = "NllLossBackward0", "MseLossBackward0"


def summed(used, factors, made_by=ENTROPY):
    """Two ranks sum up losses over 8 and 9 targets and more. factors: of the losses. used: the factor of the mean over
    the ranks in the step. Both are functions of the number of all targets."""
    script = Script()
    for step in range(4):
        counts = [8 + step * rank + rank for rank in range(2)]
        computed = script.backward(factors=factors(sum(counts)))
        for stream, count in zip(script.streams, counts, strict=True):
            stream[-2].summed, stream[-2].made_by = count, made_by
        script.step(averaged(computed, factor=0.5 * used(sum(counts))))
        script.clear()
    return script.findings()


@pytest.mark.parametrize(
    ("used", "factors", "made_by", "expected"),
    [
        (lambda count: 2 / count, lambda count: [], ENTROPY, "CONFORMS"),
        (lambda count: 1 / count, lambda count: [], ENTROPY, ONCE),
        (lambda count: 1 / count, lambda count: [], SQUARES, "UNDECIDED"),  # half of a squared error
        (lambda count: 1 / (3 * count), lambda count: [], ENTROPY, "UNDECIDED"),
        (lambda count: 1, lambda count: [1 / count], ENTROPY, ONCE),
        (lambda count: 1, lambda count: [2.0, 1 / count], ENTROPY, "CONFORMS"),
        (lambda count: 1, lambda count: [0.5, 2.0, 1 / count], ENTROPY, "UNDECIDED"),  # half of a loss
    ],
)
def test_sums_are_divided_by_all_targets(used, factors, made_by, expected):
    assert shown(summed(used, factors, made_by)) == expected


def test_a_made_up_batch_counts_as_nothing():
    script = Script()
    for step in range(4):
        first = script.backward(factors=[0.0])
        rest = script.backward(factors=[1.0])
        for stream in script.streams:
            stream[-4].summed, stream[-2].summed = 5, 7 + step
            stream[-3].sketches = [[0.0] * 3 for _ in script.numbers]
        script.step([total([total(first, 0.0), total(rest, 1 / (14 + 2 * step))])] * 2)
        script.clear()
    assert shown(script.findings()) == "CONFORMS"


@pytest.mark.parametrize("scale", [2.0, 4.0])
def test_a_hand_written_loss_scale_that_equals_the_number_of_ranks(scale):
    def window(script):
        computed = [total([of_rank], scale) for of_rank in script.backward(factors=[scale], targets=6)]
        for stream in script.streams:
            stream[-1].sketches = [[scale * number for number in row] for row in stream[-1].sketches]
        return averaged(computed, factor=0.5 / scale)

    assert verdict(trained(window, times=4)) == "CONFORMS"


@pytest.mark.parametrize(
    ("summed", "factor", "of_any", "terms", "expected"),
    [
        (2, None, False, 0, "CONFORMS"),  # the sum over two sentences, divided by two
        (2, 0.5, False, 0, ONCE),  # their mean
        (4, None, False, 0, "UNDECIDED"),
        (0, None, True, 0, "UNDECIDED"),  # a sum of anything
        (0, None, False, 2, "UNDECIDED"),  # the losses of two views
        (0, None, False, 3, ONCE),
        (0, None, False, 0, ONCE),
    ],
)
def test_averaged_gradients_are_divided_by_the_number_of_ranks(summed, factor, of_any, terms, expected):
    def window(script):
        computed = script.backward(factors=[] if factor is None else [factor])
        for one in (stream[-2] for stream in script.streams):
            one.summed, one.targets, one.of_any, one.terms = summed, 0 if summed else None, of_any, terms
        return averaged(computed, factor=0.25)

    assert shown(trained(window)) == expected


def test_one_rank_uses_less_of_the_sum():
    def window(script):
        computed = script.backward()
        return [total(computed, 0.5), total(computed, 0.2)]

    assert laws(trained(window)) == {"watch/one-factor"}


def test_gradients_that_cancel_over_the_ranks():
    script = Script()
    for step in range(3):
        computed = gradients(step)
        for rank, stream in enumerate(script.streams):
            begins = records.Backward(step + 1, None, [], None, script.versions, False, False, LINE)
            own = [-one if rank else one for one in computed]
            stream += [begins, records.Local(step + 1, script.numbers, [], "float32", sketches(own))]
        script.step([zeros()] * 2)
        script.clear()
    findings = script.findings()
    assert (verdict(findings), findings.conserved) == ("CONFORMS", 6)


def test_zeros_replace_the_computed_gradients():
    def window(script):
        script.backward()
        return [zeros()] * 2

    findings = trained(window)
    assert (verdict(findings), [*findings.open], findings.conserved) == ("UNDECIDED", ["clearing.zeroed"], 0)


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_rank_whose_shards_have_no_elements(is_summed):
    """Each parameter has two shards, and the second is empty: that rank cannot lose gradients."""
    script = Script(shared=False)
    for rank, stream in enumerate(script.streams):
        stream[1:-1] = [
            records.Parameter(n, list(shape), "float32", 2, f"p{n}", rank) for n, shape in enumerate(script.shapes)
        ]
    for step in range(3):
        computed = [gradients(10 * step + rank) for rank in range(2)]
        for rank, stream in enumerate(script.streams):
            begins = records.Backward(step + 1, None, [], None, script.versions, False, False, LINE)
            cut = [part for one in computed[rank] for part in sketches([one, 0 * one])]
            stream += [begins, records.Local(step + 1, script.numbers, [], "float32", cut)]
        script.step([total(computed, 1.0 if is_summed else 0.5), zeros()])
        script.clear()
    findings = script.findings()
    assert [*findings.open] == ["ranks.sum"] * is_summed
    assert findings.conserved == (3 if is_summed else 6)


def test_parameters_that_no_factor_explains_are_named():
    """For example, entries of sparse gradients are assigned instead of added."""

    def window(script):
        average = total(script.backward(), 0.5)
        return [[one * one if number == 4 else one for number, one in enumerate(average)]] * 2

    says = trained(window).open["changed.some"].says
    assert says.values == {"some": 1, "all": 6, "names": ["p4"]}


def norm(tensors):
    return float(torch.cat([one.flatten() for one in tensors]).norm())


@pytest.mark.parametrize(
    ("factors", "expected", "facts"),
    [
        (lambda norms: [norms[0] / 2 / one for one in norms], "CONFORMS", set()),
        (lambda norms: [0.5 for one in norms], {"watch/averaged-once"}, set()),
        (lambda norms: [0.5, 0.3, 0.25, 0.2], "UNDECIDED", {"ranks.factor", "ranks.varies"}),
    ],
)
def test_a_clip_by_hand_may_halve_the_gradients_of_a_step(factors, expected, facts):
    """factors: of each step, from the norms of the means."""
    script, of_all = Script(), Script()
    for factor in factors([norm(total(of_all.backward(), 0.5)) for _ in range(4)]):
        script.step([total(script.backward(), 0.5 * factor)] * 2)
        script.clear()
    findings = script.findings()
    assert (shown(findings), {*findings.open}) == (expected, facts)


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (lambda own, both: total([both], 0.5), set()),  # averages
        (lambda own, both: [one.clamp(-0.5, 0.5) for one in own], {"clipping.hooks"}),
    ],
)
def test_hooks_of_the_script_may_average(hook, expected):
    script = Script()
    for _ in range(3):
        computed = script.backward()
        left = [hook(own, total(computed)) for own in computed]
        for stream, own, of_rank in zip(script.streams, computed, left, strict=True):
            stream.insert(-1, records.Hooks(script.numbers, sketches(own)))
            stream[-1].sketches = sketches(of_rank)
        script.step(averaged(left))
        script.clear()
    findings = script.findings()
    assert ({*findings.open}, findings.conserved) == (expected, 6)


@pytest.mark.parametrize(
    ("left", "expected"),
    [(0.2, set()), (1.0, {"clipping.before-change"}), (0.5, {"clipping.before-change", "ranks.factor"})],
)
def test_a_step_may_use_gradients_from_before_a_clip(left, expected):
    """left: the factor of the used gradients, after a clip to 0.2 of their norm."""
    script = Script()
    for _ in range(3):
        used = averaged(script.backward(), factor=0.5 * left)
        before = norm(used[0]) / left
        script.each(records.Clipped("norm", script.numbers, 0.2 * before, before, len(SHAPES), LINE))
        script.step(used)
        script.clear()
    assert {*script.findings().open} == expected
