"""``conformance exercise``: check answers to the gradient-averaging exercise."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from conformance.cli.exits import CONFORMING, NOT_CONFORMING, USAGE, say
from conformance.suite.options import time_limit

SUMMARY = "check answers to the gradient-averaging exercise"
DESCRIPTION = (
    "Check answers to the gradient-averaging exercise: loss_mse, grad_point, grad_multi, train_loop, "
    "train_loop_batches and train_loop_distributed, called as the exercise calls them, on its own test cases and "
    "on others. What is missing is listed."
)
TIME_LIMIT = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("answers", type=Path, help="a Python file with some of these functions")
    parser.add_argument(
        "--time-limit",
        type=time_limit,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help="how long one call may take (default: %(default)g)",
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.exercise.asking import Answers, UnreadableAnswers

    if find_spec("hypothesis") is None:
        install = 'pip install "trainer-conformance[exercise]"'
        return say(f"hypothesis, which looks for inputs that an answer gets wrong, is not installed: {install}", USAGE)
    from conformance.exercise.explanation import rendered
    from conformance.exercise.marking import checked
    from conformance.exercise.questions import QUESTIONS

    try:
        with Answers(options.answers, options.time_limit) as answers:
            if answers.names.isdisjoint(QUESTIONS):
                trouble = f" (reading it ended early, at {answers.trouble})" if answers.trouble else ""
                asked = ", ".join(QUESTIONS)
                return say(f"{options.answers} defines none of the exercise's functions{trouble}: {asked}", USAGE)
            findings = checked(answers)
    except UnreadableAnswers as error:
        return say(str(error), USAGE)
    console.print(rendered(answers, findings))
    wrong = answers.trouble is not None or any(finding.state == "wrong" for finding in findings)
    return NOT_CONFORMING if wrong else CONFORMING
