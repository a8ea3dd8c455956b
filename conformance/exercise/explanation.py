"""Shows the findings on the answers in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from conformance.exercise.asking import Answers
from conformance.exercise.marking import Finding, Tried
from conformance.exercise.questions import QUESTIONS
from conformance.exercise.wrong import Mistake
from conformance.report.text import plural, visible

_STYLES = {"right": "green", "wrong": "red", "missing": "yellow"}
_LONGEST_CALL = 300


def rendered(answers: Answers, findings: Sequence[Finding]) -> RenderableType:
    """All findings, the explanation of each below it, and the sum of them."""
    parts: list[RenderableType] = []
    if answers.trouble is not None:
        parts.append(Text(f"Reading {answers.file.name} ended early, at {visible(answers.trouble)}"))
        parts.append(Text("What it defined until then was checked.\n"))
    for finding in findings:
        parts.append(_head(finding))
        parts += (Padding(line, (0, 0, 0, 6)) for line in _explained(finding, findings, answers))
    states = [finding.state for finding in findings]
    missing = f", {states.count('missing')} missing" if "missing" in states else ""
    parts.append(
        Text(f"\n{states.count('right')} of {len(states)} right, {states.count('wrong')} wrong{missing}", "bold")
    )
    return Group(*parts)


def _head(finding: Finding) -> RenderableType:
    question = finding.question
    notes = {
        "right": f"{plural(finding.own, 'test case')}, {plural(finding.others, 'other input')}",
        "wrong": f"{finding.own_wrong} of {plural(finding.own, 'test case')} wrong",
        "missing": "not in the file",
    }
    width = max(map(len, QUESTIONS)) + 2
    return Text.assemble(
        f"{question.number:<5}",
        (f"{question.function:<{width}}", "bold"),
        (f"{finding.state:<9}", _STYLES[finding.state]),
        notes[finding.state],
    )


def _explained(finding: Finding, findings: Sequence[Finding], answers: Answers) -> Iterator[Text]:
    if finding.shown is None:
        return
    yield Text(f"{_shortened(str(finding.shown.call))} {_outcome(finding.shown, answers)}")
    for index, mistake in enumerate(finding.mistakes):
        also = "also " if index else ""
        text = mistake.text.format(item="point" if finding.question.function == "train_loop" else "batch")
        yield Text(f"It {also}looks as if it {text}".replace("`", ""))
        before = _made_before(mistake, finding, findings)
        if before is not None:
            yield Text(f"{before} has the same mistake: if this calls it, fix that first.")
    if not finding.mistakes and finding.shown.answer.kind == "number":
        yield Text("No common mistake gives these numbers: follow this call by hand, step by step.")


def _outcome(shown: Tried, answers: Answers) -> str:
    answer, right = shown.answer, f"right is {_number(shown.right)}"
    at = "" if answer.line is None else f", in line {answer.line} of {answers.file.name}"
    text = visible(answer.text)
    if answer.kind == "number":
        return f"returned {text}; {right}"
    if answer.kind == "raised":
        hint = ""
        many = shown.call.arguments.get("dataset", shown.call.arguments.get("shards"))
        if text.startswith("IndexError") and many is not None:
            hint = ". After the end of the dataset, begin again with its first: i % len(dataset)"
        return f"raised {text}{at}; {right}{hint}"
    if answer.kind == "endless":
        return f"was still running after {answers.limit:g} s{at}; {right}. Does its loop ever end?"
    if answer.kind == "died":
        return f"ended the process ({text}); {right}"
    if answer.kind == "signature":
        return f"is how the exercise calls it, and it cannot be called so: {text}"
    if text == "None":
        return f"returned None; {right}. Is its return statement missing?"
    return f"returned {text}, which is not a finite number; {right}"


def _made_before(mistake: Mistake, finding: Finding, findings: Sequence[Finding]) -> str | None:
    """An earlier function that makes the same mistake."""
    for earlier in findings[: findings.index(finding)]:
        if any((one.right, one.wrong) == (mistake.right, mistake.wrong) for one in earlier.mistakes):
            return earlier.question.function
    return None


def _number(value: Fraction) -> str:
    return repr(float(value)) if value.denominator > 1 else str(value)


def _shortened(call: str) -> str:
    return call if len(call) <= _LONGEST_CALL else f"{call[:_LONGEST_CALL]} ..."
