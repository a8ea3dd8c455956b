"""Findings in synthetic streams with gradients that are stale, scaled, clipped or not finite."""

import inspect
import math
import re

import pytest

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter, OneRank
from conformance.watch.judging.findings import said
from conformance.watch.judging.replicas import Models
from conformance.watch.judging.watch_judge import judged
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, averaged, gradients, laws, shown, sketches, total, trained

FINITE, FRESH, CLEARED = {"watch/finite"}, {"watch/fresh"}, {"watch/cleared"}


def clip(norm, limit=1.0, how="norm", numbers=range(6)):
    return records.Clipped(how, [*numbers], limit, norm, 6, LINE)


def infinite(tensors):
    return [one * math.inf for one in tensors]


def test_nothing_seen_is_undecided():
    assert verdict(Script().findings()) == "UNDECIDED"


@pytest.mark.parametrize("chapter", [Models, *Chapter.__subclasses__(), *OneRank.__subclasses__()])
def test_a_chapter_gets_all_records_that_it_names(chapter):
    for method, kinds in (("feed", chapter.fed), ("follow", getattr(chapter, "followed", ()))):
        source = inspect.getsource(getattr(chapter, method)) if hasattr(chapter, method) else ""
        assert {*re.findall(r"records\.(\w+)", source)} - {"Record"} <= {kind.__name__ for kind in kinds}


def test_steps_are_counted_by_rank():
    findings = trained(lambda script: averaged(script.backward(), script.backward()))
    assert (verdict(findings), findings.steps, findings.conserved) == ("CONFORMS", 6, 6)


def test_a_step_cut_off_by_the_end_of_the_script_is_not_judged():
    script = Script()
    script.step(averaged(script.backward()))
    script.clear()
    script.step(averaged(script.backward()), ranks=[0])
    findings = judged(script.streams, is_whole=False)
    assert (findings.causes, findings.steps, findings.conserved) == ({}, 2, 2)


def test_gradients_that_were_not_cleared():
    script = Script()
    first = averaged(script.backward())
    script.step(first)
    script.step([total([first[0], averaged(script.backward())[0]])] * 2)
    assert laws(script.findings()) == CLEARED


@pytest.mark.parametrize(("kept", "broken"), [(True, CLEARED), (False, set())])
def test_old_gradients_of_a_window_that_was_not_watched(kept, broken):
    script = Script()
    first = averaged(script.backward())
    script.step(first)
    script.clear()
    left = [gradient * 3 for gradient in first[0]]
    script.each(records.Passed(0))
    script.each(records.Left(script.numbers, script.numbers * kept, "float32", sketches(left * kept)))
    second = averaged(script.backward())
    script.step([total([left, second[0]])] * 2 if kept else second)
    findings = script.findings()
    assert (laws(findings), findings.steps) == (broken, 4)


def test_a_second_step_without_a_backward():
    script = Script()
    used = averaged(script.backward())
    script.step(used)
    script.step(used)
    assert laws(script.findings()) == FRESH


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda window: gradients(100), FRESH),  # used by the first window
        (lambda window: [one.sign() for one in gradients(100)], "UNDECIDED"),  # signs may repeat
        (lambda window: gradients(100 * window + 50), "UNDECIDED"),  # of another thread or window, once
    ],
)
def test_gradients_of_an_earlier_step(make, expected):
    def window(script):
        script.backward()
        return [make(script.steps)]

    assert shown(trained(window, times=4, ranks=1)) == expected


def test_clamped_gradients_of_some_parameters_may_repeat():
    """They are new, but reach the limit in each step."""
    findings = trained(lambda script: [[*script.backward()[0][:-1], gradients(3)[-1]]], ranks=1)
    assert laws(findings) == set()


@pytest.mark.parametrize("is_computed", [False, True])
def test_an_unused_parameter_steps_on_its_stale_gradient(is_computed):
    script = Script(ranks=1)
    [first] = script.backward()
    script.step([first])
    script.clear()
    [second] = script.backward()
    if not is_computed:
        local = script.streams[0][-1]
        local.parameters, local.sketches = local.parameters[:-1], local.sketches[:-1]
        second = [*second[:-1], first[-1]]
    script.step([second])
    assert laws(script.findings()) == (set() if is_computed else FRESH)


# Loss scales and clipping.


def test_a_step_with_all_correct_factors():
    script = Script()
    computed = script.backward(scale=1024.0)
    script.each(records.Unscaled(0, 1024.0, LINE))
    script.each(clip(4.0))
    script.step(averaged(computed, factor=0.5 / 1024 * 1 / (4 + 1e-6)))
    assert verdict(script.findings()) == "CONFORMS"


@pytest.mark.parametrize("factor", [256.0, 1 / 256, 1.0])
def test_the_loss_scale_is_divided_out_once(factor):
    findings = trained(lambda script: averaged(script.backward(scale=256.0), factor=0.5 / 256 * factor))
    assert laws(findings) == (set() if factor == 1.0 else {"watch/unscaled"})


@pytest.mark.parametrize(("is_own", "expected"), [(False, "watch/unscaled"), (True, "loss-scale.own-optimizer")])
def test_an_optimizer_class_of_the_script_may_take_signs(is_own, expected):
    script = Script()
    script.step(averaged(script.backward(scale=256.0)))
    for stream in script.streams:
        stream[-1].is_own = is_own
    findings = script.findings()
    assert [*laws(findings), *findings.open] == [expected]


@pytest.mark.parametrize(
    ("scale", "targets", "factors", "expected"),
    [
        (None, 8, [0.5], {"watch/unscaled"}),
        (256.0, 8, [256.0], set()),
        (None, None, [], set()),  # an unknown loss may be scaled by hand
        (None, 8, [128.0], set()),
    ],
)
def test_a_loss_that_was_not_scaled(scale, targets, factors, expected):
    def window(script):
        computed = script.backward(scale=scale, targets=targets, factors=factors)
        script.each(records.Unscaled(0, 256.0, LINE))
        return [total(computed, 1 / 256)]

    assert laws(trained(window, ranks=1)) == expected


@pytest.mark.parametrize(
    ("makes_up", "fused", "expected"),
    [
        (1.0, False, {"watch/unscaled"}),
        (1.0, True, {"watch/unscaled"}),
        (2.0, False, set()),  # compensates for the growth
        (0.7, False, set()),  # another factor of the script
    ],
)
def test_a_scale_that_grows_before_the_gradients_of_another_optimizer_are_divided(makes_up, fused, expected):
    script = Script(ranks=1)
    computed = script.backward(scale=256.0)
    if not fused:
        script.each(records.Unscaled(0, 512.0, LINE))
    script.step([total(computed, makes_up if fused else makes_up / 512)])
    script.streams[0][-1].grad_scale = 512.0 if fused else None
    assert laws(script.findings()) == expected


def test_a_rank_without_data_has_no_loss_scale():
    script = Script()
    script.step(averaged(script.backward()))
    script.clear()
    computed = script.backward()
    del script.streams[1][-2:]
    script.step([total(computed[:1], 0.5)] * 2)
    assert "watch/one-scale" not in laws(script.findings())


@pytest.mark.parametrize(
    ("ranks", "use", "expected"),
    [((0,), (0,), {"watch/one-factor"}), ((0, 1), (0, 1), set()), ((0,), (0, 1), set())],
)
def test_some_ranks_clip(ranks, use, expected):
    """Or one rank for all. use: the ranks that use the clipped gradients."""
    script, factor = Script(), 0.25
    used = total(script.backward(), 0.5)
    clipped = total([used], 1 / (1 / factor + 1e-6))
    for rank in ranks:
        script.streams[rank].append(clip(1 / factor))
    script.step([clipped if rank in use else used for rank in (0, 1)])
    assert laws(script.findings()) & {"watch/one-factor"} == expected


LIMIT = 0.5


def by_value(script, given):
    """Clips the gradients of each rank."""
    after = [[one.clamp(-LIMIT, LIMIT) for one in of_rank] for of_rank in given]
    for stream, of_rank, clipped in zip(script.streams, given, after, strict=True):
        stream.append(records.Limited(script.numbers, sketches(of_rank), sketches(clipped), [-1] * len(of_rank)))
        stream.append(clip(None, LIMIT, "value"))
    return after


def each_its_own(first, second):
    return [total(of_rank) for of_rank in zip(first, second, strict=True)]


@pytest.mark.parametrize(
    ("given", "drift", "expected"),
    [
        (averaged, 0.0, "CONFORMS"),
        (lambda first, second: averaged(second), 0.0, {"watch/every-backward"}),
        (each_its_own, 0.1, {"watch/averaged"}),
        (lambda first, second: averaged(first, second, factor=0.3), 0.0, "UNDECIDED"),
    ],
)
def test_gradients_before_clipping_by_value_are_judged(given, drift, expected):
    findings = trained(lambda script: by_value(script, given(script.backward(), script.backward())), drift=drift)
    assert shown(findings) == expected


def test_each_rank_clips_by_value_before_the_average():
    findings = trained(lambda script: averaged(by_value(script, script.backward())))
    assert shown(findings) == {"watch/one-factor"}


def test_an_average_of_some_gradients_that_ranks_clipped_by_value():
    findings = trained(lambda script: averaged(by_value(script, script.backward())[:1]))
    assert (shown(findings), "changed.by-element" in findings.open) == ("UNDECIDED", True)


# Gradients and weights that are not finite.


@pytest.mark.parametrize(
    ("scale", "by_hand", "drops_pass", "expected"),
    [
        (1024.0, [], False, FINITE),
        (None, [], False, set()),
        (1024.0, [], True, set()),
        (None, [1024.0], False, FINITE),
        (None, [2.0], False, set()),  # may weight the loss
    ],
)
def test_an_overflow_that_is_replaced(scale, by_hand, drops_pass, expected):
    """Without a loss scale it may be intended, and so may dropping the pass."""
    script = Script(ranks=1)
    [[first], [overflown]] = (script.backward(scale=scale, factors=by_hand) for _ in range(2))
    script.streams[0][-1].sketches = sketches(infinite(overflown))
    script.step([total([first], 1 / (scale or 1.0)) if drops_pass else [one.clamp(-1, 1) for one in first]])
    findings = script.findings()
    assert laws(findings) == expected
    assert bool(findings.open) != bool(expected)


@pytest.mark.parametrize(
    ("skipped", "clears", "expected"), [(4, False, {"watch/cleared"}), (4, True, set()), (1, False, set())]
)
def test_an_overflow_that_is_never_cleared(skipped, clears, expected):
    script = Script(ranks=1)
    for overflows in [False] * 3 + [True] * skipped:
        [computed] = script.backward()
        if overflows:
            script.streams[0][-1].sketches = sketches(infinite(computed))
        else:
            script.step([computed])
        if clears or not overflows:
            script.clear()
    assert laws(script.findings()) == expected


def test_a_rank_steps_on_an_overflow_that_another_leaves_out():
    script = Script()
    script.backward()
    script.step([infinite(gradients(1))] * 2, ranks=[0])
    assert laws(script.findings()) == FINITE


def test_infinite_gradients_may_be_replaced_by_hand():
    script = Script()
    computed = script.backward()
    script.streams[1][-1].sketches = sketches(infinite(computed[1]))
    script.step([total([computed[0]], 0.5)] * 2)
    findings = script.findings()
    assert (findings.causes, [*findings.open]) == ({}, ["changed.not-finite"])


@pytest.mark.parametrize(
    ("broken", "expected"),
    [((), "CONFORMS"), ((0, 1), "UNDECIDED"), ((1,), {"watch/same-weights"}), ((0,), {"watch/same-weights"})],
)
def test_weights_that_are_nan_on_these_ranks(broken, expected):
    """They cannot be judged, but all ranks must have them."""
    script = Script()
    for step in range(4):
        script.step(averaged(script.backward()))
        for rank in broken if step > 1 else ():
            one = script.streams[rank][-1]
            one.values = [[math.nan] * 3, *one.values[1:]]
        script.clear()
    findings = script.findings()
    assert ("changed.weights" in findings.open) == bool(broken)
    assert shown(findings) == expected


def skipped(script, *, overflows):
    """A window whose step the scaler skips. overflows: the first gradients of rank 1 are infinite."""
    computed = script.backward(scale=256.0)
    if overflows:
        script.streams[1][-1].sketches = sketches(infinite(computed[1]))
    script.each(records.Skipped(0, 256.0, LINE))
    return computed


def test_infinite_gradients_were_cleared_by_hand():
    def window(script):
        skipped(script, overflows=True)
        return averaged(script.backward(scale=256.0), factor=0.5 / 256)

    findings = trained(window)
    assert (findings.causes, findings.conserved, findings.steps) == ({}, 6, 6)


@pytest.mark.parametrize(("kept", "broken"), [(True, CLEARED), (False, set())])
def test_old_gradients_of_a_skipped_step(kept, broken):
    script = Script()
    left = skipped(script, overflows=False)
    new = script.backward(scale=256.0)
    script.step(averaged(left * kept, new, factor=0.5 / 256))
    assert laws(script.findings()) == broken


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_sum_over_the_ranks_that_still_have_data(is_joined):
    """With Join, which divides by their number, it is their mean."""
    script = Script()
    if is_joined:
        script.each(records.Joined())
    for _ in range(3):
        script.step(averaged(script.backward(targets=16), factor=1.0))
        script.clear()
    assert laws(script.findings()) == (set() if is_joined else {"watch/means-averaged"})


# Rates, and buffers.


def test_learning_rates_of_the_ranks():
    script = Script()
    used = averaged(script.backward())
    script.step(used, ranks=[0], rate=0.1)
    script.step(used, ranks=[1], rate=0.2)
    assert "watch/same-rates" in laws(script.findings())


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("frozen", "code"), [(0, "agreement.buffers"), (1, "agreement.frozen")])
def test_buffers_that_differ_between_ranks_are_reported(offset, frozen, code):
    script = Script()
    for rank, stream in enumerate(script.streams):
        values = [1.0, 2.0, 3.0, 4.0 + rank * offset, 5.0, 6.0]
        stream.append(records.Buffers(["mean", "bn.running_var"], values, frozen))
    script.step(averaged(script.backward()))
    findings = script.findings()
    fact = said(code, apart=1, all=frozen or 2, names=["bn.running_var"])
    assert [one.says for one in findings.open.values()] == ([fact] if offset else [])
    assert findings.conserved == 2
