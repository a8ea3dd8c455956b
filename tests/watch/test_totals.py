"""What all targets weigh together: means that are summed up, and sums that are divided by too much."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from conformance.watch import records
from conformance.watch.judging.losses import TIMES
from conformance.watch.judging.totals import OF_TASKS
from conformance.watch.ledger import Ledger
from conformance.watch.lines import decoded
from conformance.watch.recording import losses
from conformance.watch.recording.settings import Settings
from conformance.watch.recording.start import recorded
from conformance.watch.verdict import verdict

from .scripts import Script, total

FIRST, LAST = torch.tensor([0, 1]), torch.tensor([1, 2])


def judged(script):
    findings = script.findings()
    return {law for law, _ in findings.causes}, findings


@pytest.mark.parametrize(
    ("factors", "targets", "is_open"),
    [
        ([2.0], 16, True),
        ([], 16, False),
        ([0.5], 16, False),
        ([2.0], None, False),  # of what is not known to be a mean
        ([2.0, 1 / 16], 0, False),  # a sum over the targets of all ranks
    ],
)
def test_means_are_multiplied_with_the_number_of_ranks(factors, targets, is_open):
    script = Script()
    for _ in range(3):
        computed = script.backward(factors=factors, targets=targets)
        for stream in script.streams:
            stream[-2].summed = 8 if targets == 0 else 0
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    findings = script.findings()
    assert not findings.causes
    assert (TIMES in findings.open) == is_open


@pytest.mark.parametrize(("of_tasks", "broken"), [(True, set()), (False, {"watch/means-averaged"})])
def test_a_sum_over_ranks_with_tasks_of_their_own(of_tasks, broken):
    """The last parameters are those of each rank's own head, or of all."""
    script = Script()
    for _ in range(3):
        computed = script.backward(targets=16)
        for rank, stream in enumerate(script.streams if of_tasks else ()):
            local, other = stream[-1], 4 + rank
            at = local.parameters.index(other)
            local.parameters = [number for number in local.parameters if number != other]
            local.sketches = [one for place, one in enumerate(local.sketches) if place != at]
            computed[rank][other] = torch.zeros_like(computed[rank][other])
        script.step([total(computed)] * 2)
        script.clear()
    found, findings = judged(script)
    assert found == broken
    assert (OF_TASKS in findings.open) == of_tasks


@pytest.mark.parametrize(
    ("factors", "targets", "broken"),
    [
        ([], 16, {"watch/means-averaged"}),
        ([0.5], 16, set()),  # divided by the ranks before
        ([], None, set()),  # a loss that shows nothing
        ([1 / 32], 0, set()),  # a sum, divided by the targets of all ranks
    ],
)
def test_a_sum_over_ranks(factors, targets, broken):
    script = Script()
    for _ in range(3):
        computed = script.backward(factors=factors, targets=targets)
        for stream in script.streams:
            stream[-2].summed = 16 if targets == 0 else 0
        script.step([total(computed)] * 2)
        script.clear()
    laws, findings = judged(script)
    assert laws == broken
    assert any("summed over the 2 ranks" in note for note in findings.notes) != bool(broken)


@pytest.mark.parametrize("is_own", [False, True])
def test_an_optimizer_of_the_scripts_own_may_divide(is_own):
    script = Script(ranks=1)
    for _ in range(3):
        computed = []
        for _ in range(2):
            computed += script.backward(targets=8)
            script.streams[0][-2].loader, script.streams[0][-2].batches = 3, 1
        script.step([total(computed)])
        script.streams[0][-1].is_own = is_own
        script.clear()
    laws, findings = judged(script)
    assert laws == (set() if is_own else {"watch/means-averaged"})
    assert bool(findings.open) == is_own


class Halving(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Own(torch.optim.Optimizer):
    def step(self, closure=None):
        pass


@pytest.mark.parametrize(("kind", "is_own"), [(torch.optim.SGD, False), (Halving, False), (Own, True)])
def test_whose_step_reads_the_gradients(kind, is_own, tmp_path):
    """That of torch's class, which the script's own calls once it has changed them, or the script's own."""
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    Ledger.made(tmp_path)
    with recorded(str(tmp_path), Settings()):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([weight], {"lr": 0.1}) if kind is Own else kind([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
    [file] = tmp_path.glob("*.jsonl")
    found = [decoded(line) for line in file.read_bytes().splitlines(keepends=True)]
    assert [one.is_own for one in found if isinstance(one, records.Stepped)] == [is_own]


def test_as_many_ranks_as_micro_batches():
    """The losses are divided by these, and multiplied by those."""
    script = Script()
    for _ in range(3):
        computed = []
        for _ in range(2):
            computed += script.backward(factors=[2.0, 0.5], targets=8)
            for stream in script.streams:
                stream[-2].loader, stream[-2].batches = 3, 1
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    assert judged(script)[0] == set()


@pytest.mark.parametrize(
    ("summed", "factor", "of_any", "terms", "expected"),
    [
        (2, None, False, 0, "CONFORMS"),  # the sum over two sentences, divided by two
        (2, 0.5, False, 0, "DOES NOT CONFORM"),  # their mean
        (4, None, False, 0, "UNDECIDED"),
        (0, None, True, 0, "UNDECIDED"),  # a sum of anything
        (0, None, False, 2, "UNDECIDED"),  # the losses of two views
        (0, None, False, 3, "DOES NOT CONFORM"),
        (0, None, False, 0, "DOES NOT CONFORM"),
    ],
)
def test_gradients_are_divided_by_as_many_as_there_are_ranks(summed, factor, of_any, terms, expected):
    script = Script()
    for _ in range(3):
        computed = script.backward(factors=[] if factor is None else [factor])
        for one in (stream[-2] for stream in script.streams):
            one.summed, one.targets, one.of_any, one.terms = summed, 0 if summed else None, of_any, terms
        script.step([total(computed, 0.25)] * 2)
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize(("between", "expected"), [(True, set()), (False, {"watch/means-averaged"})])
def test_an_optimizer_may_step_more_rarely_than_another(between, expected):
    """Its gradients are added up meanwhile; those of a window that both step along are micro-batches."""
    script = Script(ranks=1)
    other = records.Stepped(1, "SGD", [0.1], [], [], False, None, False, False, "float32", [], [], [], [], None)
    script.each(records.Optimizer(1, "SGD", []))
    for _ in range(3):
        computed = script.backward(targets=8, loader=3)
        if between:
            script.each(other)
        computed += script.backward(targets=8, loader=3)
        script.each(other)
        script.step([total(computed)])
        script.clear()
    assert judged(script)[0] == expected


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_sum_over_the_ranks_that_still_have_data(is_joined):
    """Whose mean it is, as Join divides by their number."""
    script = Script()
    if is_joined:
        script.each(records.Joined())
    for _ in range(3):
        script.step([total(script.backward(targets=16))] * 2)
        script.clear()
    assert judged(script)[0] == (set() if is_joined else {"watch/means-averaged"})


@pytest.mark.parametrize(
    ("loaders", "factor", "draws", "broken"),
    [
        ((3, 3), 1.0, False, {"watch/means-averaged"}),
        ((3, 3), 0.5, False, set()),
        ((3, 3), 1.0, True, set()),  # episodes, put together by the script
        ((3, 4), 1.0, False, set()),  # two tasks, each with a loader of its own
        ((None, None), 1.0, False, set()),
    ],
)
def test_micro_batches_of_one_loader(loaders, factor, draws, broken):
    script = Script(ranks=1)
    for _ in range(3):
        computed = [script.backward(factors=[factor], targets=8) for _ in loaders]
        passes = [one for one in script.streams[0] if isinstance(one, records.Backward)][-2:]
        for one, loader in zip(passes, loaders, strict=True):
            one.loader, one.batches, one.draws = loader, 1, draws
            one.factors = [] if factor == 1 else [factor]
        script.step([total([of_rank for [of_rank] in computed])])
        script.clear()
    laws, findings = judged(script)
    assert laws == broken
    assert bool(findings.open) == (factor == 1 and not broken)


@pytest.mark.parametrize(
    ("batches", "is_broken"),
    [((3, 0, 0), True), ((1, 1, 1), True), ((4, 0, 0), False), ((1, 0, 0), False)],
)
def test_all_batches_of_a_window_may_come_first(batches, is_broken):
    """Of fewer batches than passes, or more, the passes are no micro-batches."""
    script = Script(ranks=1)
    for _ in range(3):
        computed = []
        for count in batches:
            computed += script.backward(targets=8)
            script.streams[0][-2].loader, script.streams[0][-2].batches = (3 if count else None), count
        script.step([total(computed)])
        script.clear()
    assert judged(script)[0] == ({"watch/means-averaged"} if is_broken else set())


@pytest.mark.parametrize(
    ("counts", "times", "broken"),
    [
        ((12, 20), 1, {"watch/averaged-once"}),
        ((12, 20), 2, set()),  # times the ranks, as it is averaged over them
        ((16, 16), 1, set()),  # half a mean over the rank's own is the same number
    ],
)
def test_a_global_count_is_averaged_over_ranks_again(counts, times, broken):
    script = Script()
    for _ in range(3):
        computed = script.backward(factors=[times / sum(counts)], targets=0)
        for stream, count in zip(script.streams, counts, strict=True):
            stream[-2].summed = count
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    assert judged(script)[0] == broken


@pytest.mark.parametrize(
    ("counts", "times", "broken"),
    [
        ((12, 20), 1, {"watch/averaged-once"}),
        ((12, 20), 2, set()),
        ((16, 16), 1, set()),
    ],
)
def test_means_that_count_by_their_share_of_all(counts, times, broken):
    """A mean times the rank's own number over that of all is a sum that is divided by the latter."""
    script = Script()
    for _ in range(3):
        computed = script.backward()
        for stream, count in zip(script.streams, counts, strict=True):
            stream[-2].targets, stream[-2].factors = count, [count * times / sum(counts)]
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    assert judged(script)[0] == broken


@pytest.mark.parametrize(
    ("factors", "counts", "is_told"), [([], (8, 12), True), ([2], (8, 12), False), ([], (0, 0), False)]
)
def test_sums_that_are_averaged_over_ranks_are_told(factors, counts, is_told):
    script = Script()
    for _ in range(3):
        computed = script.backward(factors=factors, targets=0)
        for stream, count in zip(script.streams, counts, strict=True):
            stream[-2].summed = count
        script.step([total(computed, 0.5)] * 2)
        script.clear()
    laws, findings = judged(script)
    assert laws == set()
    assert any("the update is 1/2 of that of the sum over all" in note for note in findings.notes) == is_told


@pytest.mark.parametrize(
    ("loss", "terms"),
    [
        (lambda x: cross_entropy(x, FIRST) + cross_entropy(x, LAST), 2),
        (lambda x: sum(cross_entropy(x, targets) for targets in (FIRST, LAST, FIRST)), 3),
        (lambda x: (cross_entropy(x, FIRST) + cross_entropy(x, LAST)) / 3, 2),
        (lambda x: cross_entropy(x, FIRST) + x.square().sum(), 0),
        (lambda x: cross_entropy(x, FIRST) + 0.5 * cross_entropy(x, LAST), 0),
        (lambda x: cross_entropy(x, FIRST), 0),
    ],
)
def test_how_many_losses_of_one_kind_are_added_up(loss, terms):
    assert losses.of(loss(torch.randn(2, 3, requires_grad=True)).grad_fn).terms == terms
