"""The line to edit, and the change itself: of each law, known bug and problem of a watch."""

from __future__ import annotations

import pytest

from conformance.laws.law import catalogue
from conformance.oracle.faults import CATALOGUE
from conformance.report.edits import edit_of
from conformance.report.places import Place
from conformance.watch.report.remedies import EDITS

CLIP = Place("at", "a.py:4", "scaler.scale(loss).backward()\n    clip(p)\nscaler.unscale_(o)")
UNSCALE = Place("at", "a.py:5", "    clip(p)\nscaler.unscale_(o)\nscaler.step(o)")
STEP = Place("at", "a.py:9", "x = 1\noptimizer.step()\nprint(x)")
BACKWARD = Place("at", "a.py:2", "(loss / 4).backward()")
OTHER = Place("at", "b.py:9", "    optimizer.step()")
KNOWN = {
    "it": CLIP,
    "clip": CLIP,
    "unscale": UNSCALE,
    "step": STEP,
    "backward": BACKWARD,
    "update": Place("at", "a.py:7"),
}

MOVED_UP = """  3 | scaler.scale(loss).backward()
+   |     scaler.unscale_(o)
  4 |     clip(p)
- 5 | scaler.unscale_(o)
  6 | scaler.step(o)"""

MOVED_DOWN = """   3 | scaler.scale(loss).backward()
-  4 |     clip(p)
   5 | scaler.unscale_(o)
     | ...
   8 | x = 1
+    | clip(p)
   9 | optimizer.step()
  10 | print(x)"""

NAMED = """>  8 | x = 1
   9 | optimizer.step()
  10 | print(x)"""

#: All calls that a watch or a run can know.
EVERY = dict.fromkeys(
    [
        *("it", "origin", "load", "save", "optimizer", "wrap", "no_sync", "forward"),
        *("backward", "unscale", "clip", "step", "update", "schedule", "zero_grad"),
    ],
    STEP,
)


@pytest.mark.parametrize(
    ("text", "role", "said", "code"),
    [
        ("change clip", "at", "change line 4", CLIP.code),
        ("remove step", "at", "remove line 9", "   8 | x = 1\n-  9 | optimizer.step()\n  10 | print(x)"),
        (
            "change step to `scaler.step({})`",
            "at",
            "change line 9",
            "   8 | x = 1\n-  9 | optimizer.step()\n+    | scaler.step(optimizer)\n  10 | print(x)",
        ),
        (
            "change backward to `scaler.scale({}).backward()`",
            "at",
            "change line 2",
            "- 2 | (loss / 4).backward()\n+   | scaler.scale(loss / 4).backward()",
        ),
        (
            "unscale above it",
            "at",
            "move line 5 above line 4",
            MOVED_UP,
        ),
        # The line stands there already, so its place is not the problem.
        ("unscale below it", "at", "change line 5", UNSCALE.code),
        (
            "it above step",
            "at",
            "move line 4 above line 9",
            MOVED_DOWN,
        ),
        (
            "schedule below backward",
            "after",
            "add `scheduler.step()` below line 2",
            "  2 | (loss / 4).backward()\n+   | sch",
        ),
        ("add the average above step", "before", "add the average above line 9", STEP.code),
        # Not located: where to look, with both ends.
        ("find the data at or above step", "at or above", "find the data: line 9 or above it", STEP.code),
        ("find the state from step", "from", "find the state: line 9 or between it and the first step", STEP.code),
        # The nearest line that has the name.
        ("find `x` at or above step", "at", "change `x` in line 8", NAMED),
        # The text of the line is unknown.
        ("remove update", "at", "remove line 7", ""),
        ("update above step", "at", "move line 7 above line 9", STEP.code),
        ("step above update", "at", "move line 9 above line 7", STEP.code),
        # The first one whose lines are known.
        ("change wrap; change forward|clip; change step", "at", "change line 4", CLIP.code),
    ],
)
def test_an_edit_has_its_line_and_where_it_is_mechanical_the_change(text: str, role: str, said: str, code: str) -> None:
    edit = edit_of(text, KNOWN)
    assert edit is not None
    assert (edit.role, edit.said("a.py")) == (role, said)
    assert edit.code.startswith(code) if "sch" in code else edit.code == code
    assert edit.is_whole == (code.startswith(("+", "-")) or "\n+" in code or "\n-" in code)


def test_lines_of_other_files_are_named() -> None:
    edit = edit_of("it above step", {"it": CLIP, "step": OTHER})
    assert edit is not None and edit.said("a.py") == "move line 4 above b.py:9"
    assert edit.code == "+   |     clip(p)\n  9 |     optimizer.step()"


@pytest.mark.parametrize("text", ["", "change wrap", "it above wrap", "wrap above step", "add the average above wrap"])
def test_without_its_lines_there_is_no_edit(text: str) -> None:
    assert edit_of(text, KNOWN) is None


def test_each_edit_of_laws_bugs_and_watches_names_calls_that_can_be_known() -> None:
    laws = {law.id: law.edits for law in catalogue()}
    bugs = {fault.name: fault.edit for fault in CATALOGUE}
    edits = {name: text for name, text in (laws | bugs | EDITS).items() if text}
    assert len(edits) > 150
    parts = [(name, part) for name, text in edits.items() for part in text.split("; ")]
    assert [one for one in parts if edit_of(one[1], EVERY) is None] == []


def test_a_known_bug_says_in_one_sentence_why_its_numbers_follow() -> None:
    assert [one.name for one in CATALOGUE if not one.why or one.why.endswith(".")] == []
    assert [one.name for one in CATALOGUE if one.why in (one.fix, one.text) or len(one.why.split()) > 20] == []
