"""Epochs that begin with the same batch, and data that is split by rank before a sampler splits it."""

import pytest
import torch

from conformance.watch import records
from conformance.watch.judging.epochs import _MOST
from conformance.watch.judging.properties import Property

from .scripts import LINE, Script, total

WRONG, OPEN, NEITHER = "wrong", "open", "neither"


def told(findings, law, code):
    """Whether it is wrong, open or neither, and the values."""
    [*causes] = [cause for (of, _), cause in findings.causes.items() if of == law]
    assert all(cause.first.says.code == code and cause.first.site == LINE for cause in causes)
    if causes:
        assert code not in findings.open
        return WRONG, causes[0].first.says.values
    return (OPEN, findings.open[code].says.values) if code in findings.open else (NEITHER, {})


def train(script, samplers):
    for _ in range(2):
        computed = script.backward()
        for stream in script.streams:
            stream[-2].samplers = samplers
        script.step([total(computed)])
        script.clear()


def starting(
    epochs, *, labelled=True, rows="same", drawn=True, data=None, trains=True, is_all=False, shuffles=True, replicas=2
):
    """The verdict, repetitions and correct epochs of a run. epochs: the argument of `set_epoch` and the first batch, or
    "model" for a new model. labelled: labels are known. rows: "same" for equal samples, "other" with augmentation,
    "none" for texts. drawn: the samples are known. data: of a new sampler in each epoch; None for one sampler. trains:
    its batches go backward. is_all: an epoch has one batch."""
    script = Script(ranks=1)
    for at, of in enumerate(epochs):
        if of == "model":
            script.each(records.Optimizer(at, "SGD", script.numbers))
            continue
        (epoch, batch), sampler = of, at if data else 0
        script.each(records.Epoch(sampler, epoch, shuffles, replicas, data))
        samples = [batch, batch + 1]
        made = {"same": samples, "other": [at + 1000, at + 2000], "none": []}[rows]
        script.each(records.First(sampler, epoch, made, samples if drawn else [], labelled, is_all, LINE))
        train(script, [sampler] if trains else [])
    findings = script.findings()
    found, values = told(findings, "watch/new-order", "data.same-order" if of[0] is not None else "data.same-shuffle")
    return found, values.get("times", 0), findings.seen[Property.DATA]


AUGMENTED = {"rows": "other"}


@pytest.mark.parametrize(
    ("epochs", "options", "expected"),
    [
        ([(0, 1), (1, 2), (2, 3)], {}, (NEITHER, 0, 2)),
        ([(0, 1), (0, 2), (0, 3)], {}, (NEITHER, 0, 2)),  # shuffled in another way
        ([(0, 1), (0, 1), (1, 2)], {}, (OPEN, 2, 1)),  # resumed
        ([(0, 1), (0, 1)], {}, (OPEN, 2, 0)),
        ([(0, 1), (0, 1), (0, 1)], {}, (WRONG, 3, 0)),
        ([(0, 1)] * 4 + [(0, 2), (0, 2)], {}, (WRONG, 4, 1)),
        ([(0, 1)] * 3 + [(1, 2)] * 3, {}, (OPEN, 3, 1)),  # three times each, on purpose
        ([(0, 1), (1, 1), (2, 1)], {}, (OPEN, 3, 0)),  # `set_epoch` has no effect
        (["model", (0, 1)] * 3, {}, (NEITHER, 0, 0)),  # a search
        (["model", (0, 1), (0, 1), (0, 1), "model", (0, 1)], {}, (WRONG, 3, 0)),
        ([(0, 1)] * 3, {"data": 5}, (WRONG, 3, 0)),
        ([(0, 1), (1, 2), (2, 3)], {"data": 5}, (NEITHER, 0, 2)),
        ([(0, 1)] * 4, {"trains": False}, (NEITHER, 0, 0)),
        ([(0, 1)] * 4, {"is_all": True}, (NEITHER, 0, 0)),
        ([(0, 1)] * 4, {"shuffles": False}, (NEITHER, 0, 0)),
        ([(0, 1)] * 4, AUGMENTED, (WRONG, 4, 0)),
        ([(0, 1)] * 4, AUGMENTED | {"labelled": False}, (OPEN, 4, 0)),  # these indices may have other samples
        ([(0, 1)] * 4, AUGMENTED | {"drawn": False}, (NEITHER, 0, 3)),
        ([(0, 1)] * 4, {"labelled": False}, (WRONG, 4, 0)),
        ([(0, 1)] * 4, {"drawn": False}, (WRONG, 4, 0)),
        ([(0, 1)] * 4, {"rows": "none", "labelled": False}, (OPEN, 4, 0)),
        ([(0, 1)] * 4, {"replicas": 0}, (OPEN, 4, 0)),  # a sampler of the script
        ([(None, 1), (None, 2), (None, 3)], {"replicas": 0}, (NEITHER, 0, 2)),
        ([(None, 1)] * 3, {"replicas": 0}, (OPEN, 3, 0)),  # it has no `set_epoch`
    ],
)
def test_epochs_begin_with_the_same_batch(epochs, options, expected):
    assert starting(epochs, **options) == expected


@pytest.mark.parametrize(
    ("sets_epoch", "epochs", "expected"),
    [
        ((True, True), 3, NEITHER),
        ((True, False), 3, WRONG),
        ((False, False), 3, WRONG),
        ((False, False, False), 1, NEITHER),  # each epoch is the first one
    ],
)
def test_samplers_take_turns_on_the_same_data(sets_epoch, epochs, expected):
    script, samplers = Script(ranks=1), [*enumerate(sets_epoch)]
    for epoch in range(epochs):
        for sampler, is_told in samplers:
            script.each(records.Epoch(sampler, epoch * is_told, True, 2, 5))
        for sampler, is_told in samplers:
            rows = [epoch * is_told, 7]
            script.each(records.First(sampler, epoch * is_told, rows, rows, True, False, LINE))
        train(script, [*range(len(sets_epoch))])
    assert told(script.findings(), "watch/new-order", "data.same-order")[0] == expected


def test_samplers_are_forgotten():
    script = Script(ranks=1)
    for number in [*range(3 * _MOST), 0]:
        script.each(records.Epoch(number, 0, True, 2, number // 2))
        script.each(records.First(number, 0, [1, 2], [1, 2], True, False, LINE))
    train(script, [0])
    assert not script.findings().open


def dealt(
    cut=True, epochs=4, rows=160, replicas=2, again=True, sets_epoch=True, shuffles=True, averages=True, data=(1, 2),
    wholes=(3, 3),
):  # fmt: skip
    """The verdict on a sampler that deals out rows. cut: the data is split by rank before. again: rows repeat, as
    without augmentation. data: contents of the ranks' data sets. wholes: contents of the data that these are cut
    from. The line of the sampler is wrong, not that of the forward."""
    script = Script()
    for epoch in range(epochs):
        number = epoch if sets_epoch else 0
        for stream, content, whole in zip(script.streams, data, wholes, strict=True):
            stream.append(records.Epoch(3, number, shuffles, replicas, content, whole, LINE))
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(number)).tolist()
        for at in range(0, rows // 2, rows // 8):
            for rank, stream in enumerate(script.streams):
                # If cut, each rank has different rows.
                first = 100_000 * rank * cut + 1_000_000 * epoch * (not again)
                part = [first + row for row in order[rank::2][at : at + rows // 8]]
                stream.append(records.Entered(part, True, ["forward.py", 1, "train"], 3))
            computed = script.backward()
            script.step([total(computed, 0.5)] * 2 if averages else computed)
            script.clear()
    return told(script.findings(), "watch/dealt-once", "data.cut-twice")[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, WRONG),
        ({"cut": False}, NEITHER),
        ({"rows": 20_000, "epochs": 2}, WRONG),
        ({"rows": 20_000, "epochs": 2, "cut": False}, NEITHER),
        ({"data": (1, 1)}, NEITHER),  # each rank augments it differently
        ({"data": (None, None)}, OPEN),
        ({"wholes": (3, 4)}, OPEN),  # each rank draws its data at random
        ({"wholes": (None, None)}, OPEN),
        ({"replicas": 1}, NEITHER),  # a sampler of only this rank's part
        ({"replicas": 4}, NEITHER),
        ({"again": False}, NEITHER),
        ({"sets_epoch": False}, NEITHER),
        ({"shuffles": False}, NEITHER),
        ({"epochs": 1}, NEITHER),
        ({"rows": 40, "epochs": 2}, NEITHER),  # too few
        ({"averages": False}, NEITHER),
    ],
)
def test_data_that_is_split_before_a_sampler_splits_it(options, expected):
    assert dealt(**options) == expected
