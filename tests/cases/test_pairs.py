"""Each place where trainers have code of their own meets each thing that they may forget there."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from conformance.cases.matrix import plan
from conformance.oracle.accepted_readings import readings
from conformance.oracle.power import bounded, separation
from conformance.oracle.recurrence import Deviation, Recurrence
from conformance.workloads.model import ManyTensors
from conformance.workloads.registry import asking
from conformance.workloads.workload import SGD, AdamW
from tests.cases.test_matrix import EVERYTHING

#: The windows in which such code runs, or after which it shows.
PLACES = {
    "short window": lambda problem, skips: {one.index for one in problem.windows if one.length < one.nominal},
    "resume": lambda problem, skips: {one.index for one in problem.windows[problem.resumed_at or 99 :]},
    "end of an epoch": lambda problem, skips: {one.index for one in problem.windows if one.epoch},
    "overflow": lambda problem, skips: {one.index for one in problem.windows if skips and one.index > min(skips)},
    "ten steps": lambda problem, skips: {one.index for one in problem.windows[10:]},
}


class Forgetful(Recurrence):
    places: frozenset[int] = frozenset()

    @property
    def forgets(self):
        return self.window.index in self.places


class Clip(Forgetful):
    def clip(self, vector):
        return vector if self.forgets else super().clip(vector)


class Weights(Forgetful):
    def counted(self, window):
        samples = len(window.batch)
        return (Fraction(1, samples),) * samples if self.forgets else super().counted(window)


class Schedule(Forgetful):
    def place(self, step):
        return super().place(0 if self.forgets else step)

    def learning_rate_of(self, tensor, step):
        return self.learning_rate(step, self.group_of(tensor))


class State(Forgetful):
    def update(self, weights, vector, step):
        for rule, _ in self.rules if self.forgets else ():
            rule.forget()
        return super().update(weights, vector, step)


class LastTensor(Forgetful):
    def update(self, weights, vector, step):
        moved, last = super().update(weights, vector, step), self.tensors[-1:]
        return self.joined([(moved, self.tensors[:-1]), (weights, last)]) if self.forgets else moved


#: Which workloads have it, and a trainer that forgets it.
FORGOTTEN = {
    "clip by value": (lambda job: job.clip is not None and job.clip.kind == "value", Clip),
    "clip by norm": (lambda job: job.clip is not None and job.clip.kind == "norm", Clip),
    "weights": (lambda job: job.loss == "weighted", Weights),
    "schedule": (lambda job: bool(job.schedules), Schedule),
    "momentum": (lambda job: isinstance(job.optimizer, SGD) and bool(job.optimizer.momentum), State),
    "AdamW": (lambda job: isinstance(job.optimizer, AdamW), State),
    "many tensors": (lambda job: isinstance(job.model, ManyTensors), LastTensor),
}
PAIRS = [
    *product([place for place in PLACES if place != "ten steps"], FORGOTTEN),
    ("ten steps", "momentum"),
    ("ten steps", "AdamW"),
]


def shows(case, place, forgetful):
    """Whether no correct numbers are those of a trainer that forgets it there."""
    strictest = readings(case.problem)[0]
    right = strictest.recurrence().run()
    places = frozenset(PLACES[place](case.problem, right.skips))
    wrong = Deviation("", type("At", (forgetful,), {"places": places}))
    steps = bounded(strictest.recurrence(right.history, wrong).steps())
    return bool(places) and any(separation(*pair) > 1 for pair in zip(right.steps, steps, strict=False))


@pytest.mark.in_turn
@pytest.mark.parametrize("backend", ["single", "ddp"])
@pytest.mark.parametrize(("place", "what"), PAIRS)
def test_the_default_run_shows_what_is_forgotten_in_one_place_alone(backend, place, what):
    has, forgetful = FORGOTTEN[what]
    cases = [one.case for one in plan(EVERYTHING, backend) if one.chosen and has(asking(one.case.workload))]
    assert any(shows(case, place, forgetful) for case in cases)
