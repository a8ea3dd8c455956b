"""Calls the answers, compares the results with exact arithmetic, and finds the mistakes that explain them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from conformance.exercise.asking import Answer, Answers
from conformance.exercise.questions import CASES, DISTINGUISHING, QUESTIONS, Call, Question, calls
from conformance.exercise.right import answer as right_answer
from conformance.exercise.wrong import Mistake, answering, candidates


@dataclass(frozen=True)
class Tried:
    """One call, what it gave, and what is right."""

    call: Call
    answer: Answer
    right: Fraction
    conforms: bool


@dataclass(frozen=True)
class Finding:
    """The result of checking one function.

    ``shown`` is the simplest call that it gets wrong; ``mistakes`` are those whose numbers it gives on every input
    that was tried. ``own`` counts the exercise's cases, ``own_wrong`` those of them that it gets wrong, and ``others``
    the further inputs.
    """

    question: Question
    state: Literal["right", "wrong", "missing"]
    own: int = 0
    own_wrong: int = 0
    others: int = 0
    shown: Tried | None = None
    mistakes: tuple[Mistake, ...] = ()


def checked(answers: Answers) -> list[Finding]:
    """A finding for each function that the exercise asks for."""
    return [_check(answers, question) for question in QUESTIONS.values()]


def _check(answers: Answers, question: Question) -> Finding:
    if question.function not in answers.names:
        return Finding(question, "missing")
    asked = _Asked(answers)
    own = asked.all_of(CASES[question.function])
    others = asked.all_of(DISTINGUISHING[question.function])
    simplest = asked.simplest(question.function)
    wrong = [one for one in [*own, *others] if not one.conforms]
    # A function that hangs, dies or cannot be called is not called again to look for a simpler example.
    hopeless = [one for one in wrong if one.answer.kind in ("endless", "died", "signature")]
    shown = next(iter(hopeless), None) or simplest or next(iter(wrong), None)
    return Finding(
        question,
        "wrong" if shown else "right",
        own=len(CASES[question.function]),
        own_wrong=sum(not one.conforms for one in own),
        others=asked.count - len(own),
        shown=shown,
        mistakes=diagnosed(question.function, [*own, *others, *([simplest] if simplest else [])]) if shown else (),
    )


class _Asked:
    """Asks one function, until it once runs without end, dies or cannot be called: then it is not asked again."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.count, self.over = answers, 0, False

    def all_of(self, wanted: Sequence[Call]) -> list[Tried]:
        return [self.one(call) for call in wanted if not self.over]

    def one(self, call: Call) -> Tried:
        self.count += 1
        answer = self.answers.ask(call)
        self.over = answer.kind in ("endless", "died", "signature")
        return judged(call, answer)

    def simplest(self, function: str) -> Tried | None:
        """The simplest call that Hypothesis finds and that the function gets wrong; None if it finds none."""
        tried: list[Tried] = []

        def goes_wrong(call: Call) -> bool:
            if self.over:
                return False
            tried.append(self.one(call))
            return not tried[-1].conforms and not self.over

        search = settings(
            max_examples=100,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        try:
            found = find(calls(function), goes_wrong, settings=search, random=random.Random(0))
        except NoSuchExample:
            return next((one for one in tried if not one.conforms), None)
        return next(one for one in reversed(tried) if one.call == found)


def judged(call: Call, answer: Answer) -> Tried:
    """Whether ``answer`` is right: within what rounding explains, and what the exercise's own comparison accepts."""
    enclosure = right_answer(call.function, call.arguments)
    [right] = enclosure.center
    value = answer.value
    conforms = value is not None and enclosure.holds((value,))
    if value is not None and call.golden is not None:
        # Compared as the exercise does it: with == where it wants no rounding.
        seen = float(value) if call.digits is None else round(float(value), call.digits)
        conforms = conforms and seen == call.golden
    return Tried(call, answer, right, conforms)


def diagnosed(function: str, tried: Sequence[Tried]) -> tuple[Mistake, ...]:
    """The mistakes whose numbers were given on all inputs that gave one: one mistake, or two at once, or none."""
    if all(one.conforms for one in tried if one.answer.value is not None):
        return ()
    # The cheap ones first: nearly all mistakes are ruled out by the first number.
    cheap_first = sorted(tried, key=lambda one: int(one.call.arguments.get("iterations", 0)))
    numbers = [(one.call, one.answer.value) for one in cheap_first if one.answer.value is not None]
    return next((mistakes for mistakes in candidates(function) if _explain(mistakes, numbers)), ())


def _explain(mistakes: Sequence[Mistake], numbers: Sequence[tuple[Call, Fraction]]) -> bool:
    mistaken = answering(mistakes)
    try:
        return all(mistaken(call.function, call.arguments).holds((value,)) for call, value in numbers)
    except (ArithmeticError, ValueError):
        # The mistake has no number for some input; whoever makes it has none there either.
        return False
