"""Divisors, targets and terms in the graph of a loss, and findings in trainings with such losses."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, log_softmax, one_hot
from torch.utils.data import DataLoader, TensorDataset

from conformance.watch import records
from conformance.watch.recording import losses

from .scripts import laws
from .trained import records_in, watched

WINDOW, LENGTH, SUM, MEANS = 4, {"watch/window-length"}, {"micro-batches.sum"}, {"watch/means-averaged"}


def mean(output, target, number):
    return cross_entropy(output, target) / number


def elements(output, target, number):
    return (cross_entropy(output, target, reduction="none") / number).mean()


def weighed_elements(output, target, number):
    weights = torch.full((len(target),), 1 / number)
    return (cross_entropy(output, target, reduction="none") * weights).mean()


def weighed_targets(output, target, number):
    return binary_cross_entropy_with_logits(output, one_hot(target, 3).float(), torch.full_like(output, 1 / number))


def smoothed(output, target, number):
    return cross_entropy(output, target, label_smoothing=0.1) / number


def terms(output, target, number):
    return sum([cross_entropy(output, target) / number, output.square().mean() / number])


def one_term(output, target, number):
    return cross_entropy(output, target) / number + 0.01 * output.square().mean()


def half(output, target, number):
    return 0.5 * cross_entropy(output, target) / number


def batch_mean(output, target, number):
    ahead = torch.eye(3)[target] * 0.7 + 0.1
    return 9.0 * kl_div(log_softmax(output / 3, 1), ahead, reduction="batchmean") / number


def hooked(output, target, number):
    loss = cross_entropy(output, target)
    loss.register_hook(lambda gradient: gradient / number)
    return loss


def made_up_for(output, target, number):
    """A mean over all, times the number by which a framework divides."""
    return cross_entropy(output, target) * WINDOW / number / WINDOW


def made_up_for_at_once(output, target, number):
    """The same for ranks and micro-batches in one number."""
    return cross_entropy(output, target) * (2 * WINDOW) / number / WINDOW / 2


def twice(output, target, number):
    return cross_entropy(output, target) / number / number


def train(loss, batches, divisor, given):
    inputs = torch.randn(batches * 4, 6)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), 4)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for number, (batch, target) in enumerate(loader):
            length = divisor or min(WINDOW, batches - number // WINDOW * WINDOW)
            of, by = (1, 1.0 / length) if given else (length, 1.0)
            loss(model(batch), target, of).backward(torch.tensor(by) if given else None)
            if number % WINDOW == WINDOW - 1 or number == batches - 1:
                optimizer.step()
                optimizer.zero_grad()


def found(loss, batches=12, divisor=None, given=False):
    """Violated laws and open facts. batches: of an epoch, whose last window is short if they are no multiple of WINDOW.
    divisor: None for the length of the window. given: passed as the gradient of the loss."""
    findings = watched(train, loss, batches, divisor, given)
    return laws(findings) | findings.open.keys()


@pytest.mark.parametrize(
    ("loss", "divided", "usual", "undivided"),
    [
        (mean, set(), LENGTH, MEANS),
        (elements, set(), LENGTH, MEANS),
        (smoothed, set(), LENGTH, MEANS),
        (terms, set(), LENGTH, SUM),
        (half, set(), LENGTH, SUM),
        (weighed_targets, SUM, None, SUM),  # the values in a tensor of weights are unknown
        (weighed_elements, SUM, None, None),
        (one_term, set(), None, SUM),
        (batch_mean, set(), LENGTH, None),
    ],
)
def test_losses_are_divided(loss, divided, usual, undivided):
    """By the length of the window, by the usual length if a window is short, and by nothing."""
    assert found(loss, 10) == divided
    assert usual is None or found(loss, 10, divisor=WINDOW) == usual
    assert undivided is None or found(loss, divisor=1) == undivided


@pytest.mark.parametrize(
    ("loss", "batches", "options", "expected"),
    [
        (mean, 10, {"given": True}, set()),
        (mean, 10, {"given": True, "divisor": WINDOW}, LENGTH),
        (hooked, 12, {}, set()),  # the effect of a hook is unknown
        (made_up_for, 10, {}, set()),
        (made_up_for_at_once, 10, {}, set()),
        (twice, 12, {}, {"watch/divided-once"}),
    ],
)
def test_divisors_that_are_hidden_or_compensated(loss, batches, options, expected):
    assert found(loss, batches, **options) == expected


@pytest.mark.parametrize(
    ("loss", "of_any"),
    [
        (nn.MSELoss(), False),
        (nn.L1Loss(), False),
        (lambda output, target: (output - target).abs().mean(), False),
        (nn.HuberLoss(), False),
        (nn.SmoothL1Loss(), False),
        (lambda output, target: (output - target).square().mean(), True),  # its half is usual
        (lambda output, target: output.abs().mean(), True),
    ],
)
def test_a_mean_over_targets_of_a_regression(loss, of_any):
    output, target = torch.randn(6, 2, requires_grad=True), torch.randn(6, 2)
    found = losses.of((loss(output, target) / 2).grad_fn)
    assert (found.targets, found.of_any, found.divisors) == (12, of_any, [2.0])


TARGETS = torch.tensor([[0, 1, -100], [2, 1, 0], [1, 1, -100], [0, 2, 2]])
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("add_up", "count"),
    [
        (lambda of: of.sum(), 10),
        (lambda of: (of * MASK).sum(), 7),
        (lambda of: (MASK * of).sum(), 7),
        (lambda of: of.masked_fill(MASK == 0, 0.0).sum(), 7),
        (lambda of: torch.where(MASK > 0, of, 0.0).sum(), 7),
        (lambda of: torch.where(MASK == 0, 0.0, of).sum(), 7),
        (lambda of: of[MASK > 0].sum(), 8),
        (lambda of: (of.mean(1) * MASK[:, 1]).sum(), 3),
        (lambda of: (of * MASK.cumsum(0)).sum(), None),  # weights
        (lambda of: (of * MASK[:, :1]).sum(), 7),
        (lambda of: (of * MASK * MASK).sum(), None),
        (lambda of: of.square().sum(), None),
    ],
)
@pytest.mark.parametrize("is_divided", [False, True])
def test_a_sum_by_hand_over_the_elements_of_a_loss(add_up, count, is_divided):
    """The same as `reduction="sum"`, or a mean if it is divided by the number of its targets."""
    of = cross_entropy(torch.randn(4, 3, 3, requires_grad=True), TARGETS, reduction="none")
    loss = add_up(of) / (count or 7) / 2 if is_divided else add_up(of)
    found = losses.of(loss.grad_fn)
    assert (found.summed, found.of_any) == ((count, False) if count else (0, True))
    read = records.Backward(1, None, versions={}, contains=False, probe=False, site=None, **vars(found)).as_mean()
    assert (read.targets or 0) == (count or 0) * is_divided
    assert read.divisors == [2.0, *[7] * (count is None)] * is_divided


def test_a_sum_over_the_number_that_collectives_made_is_no_mean_of_its_own():
    of = records.Backward(1, None, [0.125], 0, {}, False, False, None, summed=8, divisors=[8.0])
    assert (of.as_mean().targets, of.as_mean().factors) == (8, [])
    of.global_divisors = [[8.0, 4.0]]
    assert of.as_mean() is of


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_label_smoothing_does_not_hide_targets(reduction):
    output = torch.randn(8, 3, requires_grad=True)
    target = torch.tensor([0, 1, 2, -100, 0, 1, 2, -100])
    of = losses.of(cross_entropy(output, target, label_smoothing=0.1, reduction=reduction).grad_fn)
    assert (of.targets, of.summed) == ((6, 0) if reduction == "mean" else (0, 6))


@pytest.mark.parametrize(("reduction", "is_hidden"), [("mean", False), ("sum", True)])
def test_a_sum_with_class_weights_has_a_hidden_divisor(reduction, is_hidden):
    output, target = torch.randn(8, 3, requires_grad=True), torch.randint(3, (8,))
    loss = cross_entropy(output, target, weight=torch.tensor([1.0, 2.0, 3.0]), reduction=reduction)
    assert losses.of(loss.grad_fn).is_hidden == is_hidden


@pytest.mark.parametrize(("number", "divisors", "of_terms"), [(3, [4.0], 3), (64, [4.0], 64), (3000, [], 0)])
def test_divisors_of_all_terms_of_a_sum(number, divisors, of_terms):
    weight = torch.ones(2, requires_grad=True)
    found = losses.of(sum((weight.sum() / 4 for _ in range(number - 1)), weight.sum() / 4).grad_fn)
    assert (found.divisors, found.of_terms) == (divisors, [4.0] * of_terms)


def test_divisors_of_one_term_of_a_sum():
    of = torch.ones(2, requires_grad=True).sum()
    for loss in (of / 4 + of, (of + of / 4) + of * 2, of + (of + of / 4) * 0.5):
        found = losses.of(loss.grad_fn)
        assert (found.divisors, found.of_terms) == ([], [4.0])


FIRST, LAST = torch.tensor([0, 1]), torch.tensor([1, 2])


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
def test_summed_losses_of_one_kind_are_counted(loss, terms):
    assert losses.of(loss(torch.randn(2, 3, requires_grad=True)).grad_fn).terms == terms


@pytest.mark.parametrize(
    ("loss", "weighs"),
    [
        (lambda one, other: (one + 2.0 * other) / 2, True),
        (lambda one, other: sum(weight * of for weight, of in ((1.0, one), (0.5, other))), True),
        (lambda one, other: (one + other) / 2, False),
        (lambda one, other: (0.5 * one + other * 0.5) / 2, False),
        (lambda one, other: one / 8 + other / 4, False),  # sums that are divided by their targets
        (lambda one, other: 2.0 * one, False),
    ],
)
def test_summed_losses_with_different_factors(loss, weighs):
    one, other = torch.ones(2, requires_grad=True).sum(), torch.ones(2, requires_grad=True).square().sum()
    assert losses.of(loss(one, other).grad_fn).weighs == weighs


class Sink(torch.autograd.Function):
    """Like DDP's node."""

    @staticmethod
    def forward(ctx, *inputs):
        return inputs

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


Sink._backward_cls.__name__ = "_DDPSinkBackward"


def test_a_loss_returned_by_a_model_in_ddp_is_read():
    logits = torch.randn(4, 3, requires_grad=True)
    inner = cross_entropy(logits, torch.tensor([0, 1, 2, 0]), reduction="sum") / 4
    _, alone = Sink.apply(logits, inner)
    assert alone.grad_fn.name() == "_DDPSinkBackward"
    found = losses.of((alone / 2).grad_fn)
    assert (found.divisors, found.summed) == ([2, 4], 4)
    _, several, _ = Sink.apply(logits, inner, logits.sum())
    assert losses.of((several / 2).grad_fn).divisors == [2]


class Halving(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Own(torch.optim.Optimizer):
    def step(self, closure=None):
        pass


@pytest.mark.parametrize(("kind", "is_own"), [(torch.optim.SGD, False), (Halving, False), (Own, True)])
def test_the_class_whose_step_reads_the_gradients(kind, is_own, tmp_path):
    """torch's class, also if a class of the script calls it, or the script's class."""
    torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with records_in(tmp_path) as found:
        weight = nn.Parameter(torch.ones(3))
        optimizer = kind([weight], {"lr": 0.1}) if kind is Own else kind([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
    assert [one.is_own for one in found if isinstance(one, records.Stepped)] == [is_own]
