"""What a loss is divided by, wherever its graph shows it: right scripts beside wrong ones that look much like them."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, log_softmax
from torch.utils.data import DataLoader, TensorDataset

import conformance
from conformance.watch.recording import losses

WINDOW = 4
SUM = "micro-batches.sum"


def mean(output, target, number):
    return cross_entropy(output, target) / number


def elements(output, target, number):
    return (cross_entropy(output, target, reduction="none") / number).mean()


def weighed_elements(output, target, number):
    weights = torch.full((len(target),), 1 / number)
    return (cross_entropy(output, target, reduction="none") * weights).mean()


def weighed_targets(output, target, number):
    weights = torch.full_like(output, 1 / number)
    return binary_cross_entropy_with_logits(output, nn.functional.one_hot(target, 3).float(), weights)


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


def found(loss, batches=12, divisor=None, given=False):
    """batches: of an epoch, whose last window is short if they are no multiple of WINDOW. divisor: None for the length
    of the window. given: it comes as the gradient of the loss."""
    torch.manual_seed(0)
    inputs = torch.randn(batches * 4, 6)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), 4)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(3):
            for number, (batch, target) in enumerate(loader):
                length = divisor or min(WINDOW, batches - number // WINDOW * WINDOW)
                if given:
                    loss(model(batch), target, 1).backward(torch.tensor(1.0 / length))
                else:
                    loss(model(batch), target, length).backward()
                if number % WINDOW == WINDOW - 1 or number == batches - 1:
                    optimizer.step()
                    optimizer.zero_grad()
    return {law for law, _ in findings.causes} | findings.open.keys()


ALL = [mean, elements, weighed_elements, weighed_targets, smoothed, terms, one_term, half, batch_mean]


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("batches", [12, 10])
def test_losses_that_are_divided_are_right(loss, batches):
    # A tensor of weights hides what they come to.
    expected = {SUM} if loss in (weighed_elements, weighed_targets) else set()
    assert found(loss, batches) == expected


@pytest.mark.parametrize("loss", [mean, elements, smoothed, terms, half, batch_mean])
def test_a_short_window_is_divided_by_the_usual_length(loss):
    assert found(loss, 10, divisor=WINDOW) == {"watch/window-length"}


@pytest.mark.parametrize("loss", [terms, one_term, half, weighed_targets])
def test_nothing_divides_losses_that_may_be_terms(loss):
    assert found(loss, divisor=1) == {SUM}


@pytest.mark.parametrize("loss", [mean, elements, smoothed])
def test_nothing_divides_means(loss):
    assert found(loss, divisor=1) == {"watch/means-averaged"}


@pytest.mark.parametrize(("divisor", "expected"), [(None, set()), (WINDOW, {"watch/window-length"})])
def test_what_backward_is_given_divides(divisor, expected):
    assert found(mean, 10, divisor=divisor, given=True) == expected


def test_what_a_hook_makes_of_a_loss_is_not_known():
    def hooked(output, target, number):
        loss = cross_entropy(output, target)
        loss.register_hook(lambda gradient: gradient / number)
        return loss

    assert found(hooked) == set()


def made_up_for(output, target, number):
    """A mean over all is multiplied with what a framework divides by."""
    return cross_entropy(output, target) * WINDOW / number / WINDOW


def made_up_for_at_once(output, target, number):
    """By as many ranks and micro-batches as there are, in one number."""
    return cross_entropy(output, target) * (2 * WINDOW) / number / WINDOW / 2


def twice(output, target, number):
    return cross_entropy(output, target) / number / number


def twice_smoothed(output, target, number):
    return smoothed(output, target, number) / number


@pytest.mark.parametrize("loss", [made_up_for, made_up_for_at_once])
@pytest.mark.parametrize("batches", [12, 10])
def test_what_a_factor_makes_up_for_is_no_division(loss, batches):
    assert found(loss, batches) == set()


@pytest.mark.parametrize("loss", [twice, twice_smoothed])
def test_a_mean_is_divided_twice(loss):
    assert found(loss) == {"watch/divided-once"}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_smoothed_labels_hide_no_targets(reduction):
    output = torch.randn(8, 3, requires_grad=True)
    target = torch.tensor([0, 1, 2, -100, 0, 1, 2, -100])
    loss = cross_entropy(output, target, label_smoothing=0.1, reduction=reduction)
    of = losses.of(loss.grad_fn)
    assert (of.targets, of.summed) == ((6, 0) if reduction == "mean" else (0, 6))


@pytest.mark.parametrize(("reduction", "is_hidden"), [("mean", False), ("sum", True)])
def test_a_sum_with_weights_of_classes_is_divided_by_the_sum_of_these(reduction, is_hidden):
    output, target = torch.randn(8, 3, requires_grad=True), torch.randint(3, (8,))
    loss = cross_entropy(output, target, weight=torch.tensor([1.0, 2.0, 3.0]), reduction=reduction)
    assert losses.of(loss.grad_fn).is_hidden == is_hidden


@pytest.mark.parametrize(("number", "divisors", "of_terms"), [(3, [4.0], 3), (64, [4.0], 64), (3000, [], 0)])
def test_what_the_terms_of_a_sum_are_divided_by(number, divisors, of_terms):
    weight = torch.ones(2, requires_grad=True)
    found = losses.of(sum((weight.sum() / 4 for _ in range(number - 1)), weight.sum() / 4).grad_fn)
    assert (found.divisors, found.of_terms) == (divisors, [4.0] * of_terms)


def test_what_one_of_the_terms_is_divided_by():
    weight = torch.ones(2, requires_grad=True)
    of = weight.sum()
    for loss in (of / 4 + of, (of + of / 4) + of * 2, of + (of + of / 4) * 0.5):
        found = losses.of(loss.grad_fn)
        assert (found.divisors, found.of_terms) == ([], [4.0])


class Sink(torch.autograd.Function):
    """As DDP's own."""

    @staticmethod
    def forward(ctx, *inputs):
        return inputs

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


Sink._backward_cls.__name__ = "_DDPSinkBackward"


def test_a_loss_that_a_model_in_ddp_returns_is_looked_into():
    logits = torch.randn(4, 3, requires_grad=True)
    inner = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0]), reduction="sum") / 4
    _, alone = Sink.apply(logits, inner)
    assert alone.grad_fn.name() == "_DDPSinkBackward"
    found = losses.of((alone / 2).grad_fn)
    assert (found.divisors, found.summed) == ([2, 4], 4)
    _, several, _ = Sink.apply(logits, inner, logits.sum())
    assert losses.of((several / 2).grad_fn).divisors == [2]
