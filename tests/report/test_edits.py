"""The line to edit, and the change itself: of each law, known bug and problem of a watch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.laws.law import catalogue
from conformance.oracle import faults
from conformance.report.case_edits import OF_CAUSES, OF_RESUMES
from conformance.report.edits import Edit, edit_of
from conformance.report.places import CALLED_FROM, SEEN, Place
from conformance.trace.state.site import AFTER, BEFORE, around
from conformance.watch.report.remedies import EDITS

ROOT = Path(__file__).parents[2]

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

ADDED = """   8 | x = 1
+    | # the average
   9 | optimizer.step()
  10 | print(x)"""

NAMED = """>  8 | x = 1
   9 | optimizer.step()
  10 | print(x)"""

#: All calls that a watch or a run can know.
EVERY = dict.fromkeys(
    [
        *("it", "origin", "exchange", "load", "save", "optimizer", "wrap", "no_sync", "forward"),
        *("backward", "unscale", "clip", "step", "update", "schedule", "zero_grad"),
        *("beginning", "loss", "division", "divisor", "between", "gradient", "leftover"),
        *("weights", "rate", "scheduler", "averaging", "average", "buffers", "outside", "loader", "state", "cast"),
        *(
            "epoch",
            "hook",
            "sync",
            "unused",
            "count",
            "called",
            "uncounted",
            "restored",
            "step_condition",
            "clip_condition",
            "twice",
            "part",
            "kept",
            "alias",
            "scaling",
            "rounding",
        ),
    ],
    Place(
        "at",
        "a.py:9",
        "\n".join(["pass"] * 6 + ["loss.backward()", "dampening(Sum)", "optimizer.step()"] + ["pass"] * 8),
    ),
) | {
    "backward": Place("at", "a.py:7", "loss.backward()"),
    "zero_grad": Place("at", "a.py:12", "optimizer.zero_grad()"),
    "save": Place("at", "a.py:3", "".join(f'"{one}": {one}.state_dict(),\n' for one in ("optimizer", "scheduler") * 3)),
}


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
        ("add the average above step", "before", "add the average above line 9", ADDED),
        ("add the average above forward|clip|step", "before", "add the average above line 4", "  3 | sc"),
        # Not located: where to look, with both ends.
        (
            "find the data at or above step",
            "at or above",
            "find the data: line 9 or above it",
            "  8 | x = 1\n> 9 | optimizer.step()",
        ),
        ("find the state from step", "from", "find the state: line 9 or below it", STEP.code),
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
    assert edit.code.startswith(code) if code.endswith("sc") or "sch" in code else edit.code == code


@pytest.mark.parametrize(
    ("line", "name"), [("self.inner.step()  # here", "self.inner"), ("loss.backward()", "optimizer")]
)
def test_a_new_call_has_the_optimizer_of_the_step(line: str, name: str) -> None:
    edit = edit_of("zero_grad below step", {"step": Place("step", "a.py:9", line)})
    assert edit is not None and edit.said("a.py") == f"add `{name}.zero_grad()` below line 9"


def test_lines_of_other_files_are_named() -> None:
    edit = edit_of("it above step", {"it": CLIP, "step": OTHER})
    assert edit is not None and edit.said("a.py") == "move line 4 above b.py:9"
    assert edit.code == "+   | clip(p)\n  9 | optimizer.step()"


@pytest.mark.parametrize("text", ["", "change wrap", "it above wrap", "wrap above step", "add the average above wrap"])
def test_without_its_lines_there_is_no_edit(text: str) -> None:
    assert edit_of(text, KNOWN) is None


def test_each_edit_of_laws_bugs_and_watches_names_calls_that_can_be_known() -> None:
    laws = {law.id: law.edits for law in catalogue()}
    bugs = {fault.name: fault.edit for fault in faults.KNOWN}
    edits = {name: text for name, text in (laws | bugs | EDITS).items() if text}
    assert len(edits) > 150
    parts = [(name, part) for name, text in edits.items() for part in text.split("; ")]
    assert [one for one in parts if edit_of(one[1], EVERY) is None] == []
    # A clip or an unscaling must see what is added.
    assert [one for one in parts if one[1].startswith("add ") and one[1].endswith(" above step")] == []


def test_a_known_bug_says_in_one_sentence_why_its_numbers_follow() -> None:
    assert [one.name for one in faults.KNOWN if not one.why or one.why.endswith(".")] == []
    assert [one.name for one in faults.KNOWN if one.why in (one.fix, one.text) or len(one.why.split()) > 20] == []


def test_code_that_is_not_located_is_looked_for_in_its_function(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    body = [f"    line_{number}()" for number in range(4, 20)]
    file.write_text("\n".join(["import torch", "", "def train():", *body]))
    for line, first, last in ((4, 3, 4), (6, 3, 6), (16, 11, 16), (19, 14, 19)):
        edit = edit_of("find the divisor at or above it", {"it": Place("at", f"a.py:{line}", around(str(file), line))})
        assert edit is not None
        shown = [int(number) for number in re.findall(r"^[> ] +(\d+) \|", edit.code, re.MULTILINE)]
        assert (shown[0], shown[-1]) == (first, last) and f"> {line:>{len(str(last))}} | " in edit.code


def test_a_name_in_the_recorded_lines_locates_the_edit(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "\n".join(["with no_sync():", "    out = model(x)", "    if big:", "        out += 1", "    out.sum()"])
    )
    edit = edit_of("find `no_sync` at or above it", {"it": Place("at", "a.py:5", around(str(file), 5))})
    assert edit is not None and edit.said("a.py") == "change `no_sync` in line 1"
    assert edit.code.splitlines()[0] == "> 1 | with no_sync():" and "5 |     out.sum()" in edit.code


@pytest.mark.parametrize(
    ("header", "said"),
    [("if is_last:", "indent line 4 under the `if` in line 2"), ("with scope:", "change line 4")],
)
def test_a_call_behind_the_condition_of_the_other_one_is_indented(tmp_path: Path, header: str, said: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for batch in data:\n    {header}\n        optimizer.step()\n    optimizer.zero_grad()\n")
    known = {name: Place("at", f"a.py:{at}", around(str(file), at)) for name, at in (("step", 3), ("it", 4))}
    edit = edit_of("it below step; change it", known)
    assert edit is not None and edit.said("a.py") == said
    assert ("+   |     optimizer.zero_grad()\n- 4 |" in edit.code) == header.startswith("if")


@pytest.mark.parametrize(
    ("lines", "said", "code"),
    [
        # The loop around it repeats it.
        (
            ["for batch in window:", "    clip(p)", "optimizer.step()"],
            "move line 2 above line 3",
            "  1 | for batch in window:\n- 2 |     clip(p)\n+   | clip(p)\n  3 | optimizer.step()",
        ),
        (
            ["clip(p)", "if is_last:", "    optimizer.step()"],
            "move line 1 under the `if` in line 2",
            "- 1 | clip(p)\n  2 | if is_last:\n+   |     clip(p)\n  3 |     optimizer.step()",
        ),
        (
            ["if limit:", "    clip(p)", "if is_last:", "    optimizer.step()"],
            "move line 2 under the `if` in line 3",
            "  1 | if limit:\n> 2 |     clip(p)\n  3 | if is_last:",
        ),
        # Another function, and the same `if`.
        (
            ["def helper():", "    clip(p)", "def train():", "    if is_last:", "        step()"],
            "change line 2",
            "  1 |",
        ),
        (["if is_last:", "    clip(p)", "    step()"], "change line 2", "  1 | if is_last:\n> 2 |"),
    ],
)
def test_a_call_above_the_other_one_that_is_made_more_often(tmp_path, lines, said, code) -> None:
    clip = next(number for number, line in enumerate(lines, 1) if "clip(" in line)
    edit = edit_of("it above step", _places(tmp_path, "\n".join(lines), it=clip, step=len(lines)))
    assert edit is not None and edit.said("a.py") == said and edit.code.startswith(code)


@pytest.mark.parametrize(
    ("text", "lines", "known", "said", "code"),
    [
        # The average is completed in between.
        (
            "clip right above step",
            ["backward()", "clip(p)", "sums.average()", "step()"],
            {"clip": 2, "step": 4},
            "move line 2 above line 4",
            "  1 | backward()\n- 2 | clip(p)\n  3 | sums.average()\n+   | clip(p)\n  4 | step()",
        ),
        (
            "remove the division between backward and step",
            ["backward()", "clip_unscaled(p)", "step()"],
            {"backward": 1, "step": 3},
            "remove the division between line 1 and line 3",
            "  1 | backward()\n> 2 | clip_unscaled(p)\n  3 | step()",
        ),
        # No line lies in between.
        (
            "remove the division between backward and step; find the division at or above step",
            ["backward()", "step()"],
            {"backward": 1, "step": 2},
            "find the division: line 2 or above it",
            "  1 | backward()\n> 2 | step()",
        ),
        (
            "zero_grad also if skipped",
            ["if overflow:", "    continue", "step()", "o.zero_grad()"],
            {"zero_grad": 4},
            "add `o.zero_grad()` above line 2",
            "  1 | if overflow:\n+   |     o.zero_grad()\n  2 |     continue\n  3 | step()",
        ),
        (
            "zero_grad also if skipped",
            ["step()", "o.zero_grad()"],
            {"zero_grad": 2},
            "make the call in line 2 also in skipped steps",
            "  1 | step()\n> 2 | o.zero_grad()",
        ),
        # A line without the call only notices it.
        ("zero_grad also if skipped; zero_grad below step", ["step()", "f(x)"], {"zero_grad": 2, "step": 1}, None, ""),
        (
            "restore optimizer",
            ["s = load()", 't.m.load_state_dict(s["m"])', "t.n = 1", "def save():", '{"o": t.optimizer.state_dict()}'],
            {"load": 1, "save": 5},
            "load the state below line 2: line 5 saves it",
            '  1 | s = load()\n  2 | t.m.load_state_dict(s["m"])\n+   | t.optimizer.load_state_dict(s["o"])\n  3 |',
        ),
        # The function has no such name.
        (
            "restore optimizer",
            ["s = load()", "", 'd["o"] = self.optimizer.state_dict()'],
            {"load": 1, "save": 3},
            "load the state below line 1: line 3 saves it",
            "  1 | s = load()\n+   | # load `self.optimizer`",
        ),
        # It is loaded, or not known to be saved.
        *(
            ("restore optimizer", lines, {"load": 1, "save": 3}, said, "> 1 |")
            for said in ["find the load of the optimizer's state: line 1 or below it"]
            for lines in (
                ["s = load()", 'optimizer.load_state_dict(s["o"])', '{"o": optimizer.state_dict()}'],
                ["s = load()", "", '{"m": model.state_dict()}'],
            )
        ),
        # The line with the problem counts, although the other one would move.
        (
            "unscale above it",
            ["def clean():", "    change()", "", "def step():", "    scaler.unscale_()"],
            {"it": 2, "unscale": 5},
            "let line 5 run before line 2",
            "  1 | def clean():\n> 2 |     change()",
        ),
        # The nearest line with a name; none if no line has it.
        (
            "change `Sum` near optimizer",
            ["options = {", '    "op": hvd.Sum,', "}", "o = Optimizer(**options)"],
            {"optimizer": 4},
            "change `Sum` in line 2",
            '  1 | options = {\n> 2 |     "op": hvd.Sum,\n  3 | }',
        ),
        ("change `Sum` near optimizer; change it", ["Summary(o)"], {"optimizer": 1, "it": 1}, "change line 1", "> 1 |"),
        # The line that computes what the condition tests may be the wrong one.
        (
            "schedule below step",
            ["skipped = scale() != old", "step()", "if not skipped:", "    schedule()"],
            {"schedule": 4, "step": 2, "schedule_flag": 1},
            "change line 1, or the condition in line 3",
            "> 1 | skipped",
        ),
        # The line that scales the loss.
        (
            "find the loss at or above backward",
            ["loss = f(x)", "loss = loss / 4", "log(loss)", "loss.backward()"],
            {"backward": 4},
            "change the loss in line 2",
            "  1 | loss = f(x)\n> 2 | loss = loss / 4\n  3 | log(loss)",
        ),
        (
            "find the loss at or above backward",
            ["loss /= 4", "fabric.backward(loss)"],
            {"backward": 2},
            "change the loss in line 1",
            "> 1 | loss /= 4",
        ),
        (
            "find the loss at or above backward",
            ["other = loss / 4", "loss.backward()"],
            {"backward": 2},
            "find the loss: line 2 or above it",
            "  1 | other = loss / 4\n> 2 | loss.backward()",
        ),
        # The lines that restore something are known.
        (
            "restore optimizer",
            ["s = load()", 'optimizer.load_state_dict(s["o"])', "", "step()"],
            {"load": 1, "restored_optimizer": 2, "restores": 2},
            "change line 2",
            '  1 | s = load()\n> 2 | optimizer.load_state_dict(s["o"])',
        ),
        (
            "restore random",
            ["s = load()", 'model.load_state_dict(s["m"])', "step()"],
            {"load": 1, "restores": 2},
            "add the load of the random state below line 2",
            '  1 | s = load()\n  2 | model.load_state_dict(s["m"])\n+   | # the load of the random state\n  3 | step()',
        ),
    ],
)
def test_an_edit_lies_between_calls_or_on_a_path_without_the_call(tmp_path, text, lines, known, said, code) -> None:
    edit = edit_of(text, _places(tmp_path, "\n".join(lines), **known))
    assert edit is not None
    assert said is None or edit.said("a.py") == said
    assert edit.code.startswith(code)


def test_records_with_one_neighbour_on_each_side_are_read() -> None:
    old = Place("at", "a.py:41", "step()\nclip(p)\nzero()")
    assert old.numbered == {40: "step()", 41: "clip(p)", 42: "zero()"}


def test_a_line_of_code_to_add_is_a_diff() -> None:
    edit = edit_of("add `sampler.set_epoch(epoch)` above it", {"it": CLIP})
    assert edit is not None and "+   |     sampler.set_epoch(epoch)\n  4 |" in edit.code


@pytest.mark.parametrize(
    ("header", "said"),
    [("if rank == 0:", "change the condition in line 3"), ("for _ in range(2):", "move line 4 below line 2")],
)
def test_a_condition_around_a_call_in_the_correct_order_is_the_edit(tmp_path: Path, header: str, said: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for batch in data:\n    optimizer.step()\n    {header}\n        scheduler.step()\n")
    known = {name: Place("at", f"a.py:{at}", around(str(file), at)) for name, at in (("step", 2), ("schedule", 4))}
    edit = edit_of("schedule below step", known)
    assert edit is not None and edit.said("a.py") == said


def _places(tmp_path: Path, text: str, **lines: int) -> dict[str, Place]:
    file = tmp_path / "train.py"
    file.write_text(text)
    return {name: Place("at", f"a.py:{at}", around(str(file), at)) for name, at in lines.items()}


def test_a_line_that_is_in_this_order_already_is_not_moved(tmp_path: Path) -> None:
    text = "for one in optimizers:\n    one.step()\n    print(one)\nscaler.update()\noptimizers[0].zero_grad()\n"
    edit = edit_of("zero_grad below step", _places(tmp_path, text, step=2, zero_grad=5))
    assert edit is not None and edit.said("a.py") == "change line 5" and "\n+" not in edit.code


def test_a_line_does_not_move_from_function_to_function(tmp_path: Path) -> None:
    text = "def hook():\n    clip(p)\n\ndef train():\n    loss.backward()\n    optimizer.step()\n"
    edit = edit_of("it above step", _places(tmp_path, text, it=2, step=6))
    assert edit is not None and edit.said("a.py") == "change line 2"
    edit = edit_of("it above step", _places(tmp_path, "def train():\n    step()\n    clip(p)\n", it=3, step=2))
    assert edit is not None and edit.said("a.py") == "move line 3 above line 2"


@pytest.mark.parametrize(("line", "is_shown"), [("window = next(data)", False), ("windows += 1", True)])
def test_a_size_of_a_name_that_changes_before_is_not_written(tmp_path: Path, line: str, is_shown: bool) -> None:
    places = _places(tmp_path, f"for window in data:\n    {line}\n    loss.backward()\n", backward=3)
    edit = edit_of("change backward to `({} / len(window)).backward()`", places)
    assert edit is not None and ("(loss / len(window)).backward()" in edit.code) == is_shown


@pytest.mark.parametrize(
    ("header", "body", "role"),
    [
        ("def update(loss, is_last):", "    pass", "in a caller of"),
        ("    def __call__(self, loss):", "        pass", "in a caller of"),
        ("def update(batch):", "    pass", "at or above"),
        ("def update(loss):", "    loss = loss + penalty(model)", "at or above"),
    ],
)
def test_the_division_of_a_loss_that_a_function_takes_is_in_its_caller(
    tmp_path: Path, header: str, body: str, role: str
) -> None:
    space = body[: len(body) - len(body.lstrip())]
    places = _places(tmp_path, f"{header}\n{body}\n{space}loss.backward()\n{space}step()\n", backward=3)
    edit = edit_of("find the division at or above backward", places)
    assert edit is not None and edit.role == role


def test_an_added_call_is_of_the_optimizer_that_steps(tmp_path: Path) -> None:
    edit = edit_of("zero_grad below step", _places(tmp_path, "optimizers[p].step()\n", step=1))
    assert edit is not None and edit.said("a.py") == "add `optimizers[p].zero_grad()` below line 1"


def test_lines_that_call_a_call_are_left_out_with_it():
    edit = Edit(Place("at", "train.py:26"), "at", "change {train.py:26}", "")
    call = Place("clip", "library.py:9"), Place(CALLED_FROM, "train.py:40")
    seen = Place(SEEN, "library.py:3"), Place(CALLED_FROM, "train.py:33")
    start = Place("starts at", "library.py:3"), Place(CALLED_FROM, "train.py:35")
    assert edit.others((*start, *call, *seen)) == edit.others((*call, *seen, *start)) == start


def test_edits_are_of_guards_and_setups_that_exist():
    verdict = "".join(path.read_text() for path in (ROOT / "conformance" / "verdict").glob("*.py"))
    for key in OF_RESUMES:
        what = key.removeprefix("resumed with other ")
        assert (f'"{key}"' in verdict) or (f'"{what}": lambda' in verdict and what != key)
    for _, key in OF_CAUSES:
        kind = key.removeprefix("factors by ")
        assert f'"{kind}"' in verdict
        assert f'"{key}"' in verdict or '"factors by {kind}"' in verdict


@pytest.mark.parametrize(
    ("step", "added"),
    [
        ("grad_scaler.step(opt)", "grad_scaler.unscale_(opt)"),
        ("    self.scaler.step(self.opts[0])  # skips", "self.scaler.unscale_(self.opts[0])"),
        ("opt.step()", "scaler.unscale_(opt)"),
        ("train(opt)", "scaler.unscale_(optimizer)"),
    ],
)
def test_an_added_call_has_the_names_of_the_step(step: str, added: str) -> None:
    known = {"clip": Place("at", "a.py:4", "clip(p)"), "step": Place("at", "a.py:6", step)}
    edit = edit_of("unscale above clip", known)
    assert edit is not None and edit.said("a.py") == f"add `{added}` above line 4"


CLIPS = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("more", "said"),
    [("", "change line 19"), ("    print(model)", "change line 7")],
    ids=["all of the helper", "a part of it"],
)
def test_of_a_helper_of_one_line_its_call_is_changed(more, said):
    known = {
        "it": between("a.py:7", "def clip_(model):", CLIPS, more),
        "step": between("a.py:20", "    clip_(model)", "    optimizer.step()", ""),
    }
    assert edit_of("it above step", known).said("a.py") == said


def between(at: str, before: str, own: str, after: str) -> Place:
    """A line with neighbours; another function begins below it."""
    first = int(at.rpartition(":")[2]) - 1
    lines = [*[""] * min(BEFORE - 1, first - 1), before, own, after, "", "def main():", *[""] * (AFTER - 3)]
    return Place("at", at, "\n".join(lines))
