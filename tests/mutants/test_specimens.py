"""Mutants and variants as patches: they are read and written out; a patch that does not fit is refused."""

from __future__ import annotations

import ast
import re

import pytest

from fixtures import specimens
from fixtures.specimens import SpecimenError, named, read
from fixtures.written import source, written

BASE = '''"""A trainer."""

from conformance import Task, trainer


@trainer(backends=("single",), layouts=("batched",))
def train(task: Task) -> None:
    for batch in task.dataloader():
        step()
        step()
        clip()
'''
FIELDS = "Base: base\nCases: single-batched-fp32-sgd\nExpected: CRASH"
MESSAGE = f"It clips first.\n\nSeen in nobody/nothing#1.\n\n{FIELDS}\n"
PATCH = f"{MESSAGE}\n@@\n     for batch in task.dataloader():\n+        clip()\n         step()\n@@\n-        clip()\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a mutant next to the base; returns its path."""
    monkeypatch.setattr(specimens, "BASES", (tmp_path,))
    (tmp_path / "base.py").write_text(BASE)

    def write_mutant(text, file="mutants/mine.patch"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write_mutant


def test_a_patch_is_read_and_applied(write):
    mutant = read(write(PATCH))
    assert (mutant.name, mutant.what) == ("mine", "It clips first.")
    assert (mutant.cases, mutant.expected, mutant.laws) == (("single-batched-fp32-sgd",), "CRASH", frozenset())
    text = source(mutant)
    assert ast.get_docstring(ast.parse(text)) == MESSAGE.strip()
    assert text.endswith("dataloader():\n        clip()\n        step()\n        step()\n")


def test_it_is_written_out_once_and_again_when_it_changes(write, tmp_path, monkeypatch):
    monkeypatch.setattr("fixtures.written.FOLDER", tmp_path / "out")
    first = written(read(write(PATCH)))
    assert first.read_text() == source(read(write(PATCH)))
    inode = first.stat().st_ino
    assert written(read(write(PATCH))).stat().st_ino == inode
    changed = read(write(PATCH.replace("+        clip()", "+        clip(task)")))
    assert "clip(task)" in written(changed).read_text()
    assert [path.name for path in first.parent.iterdir()] == ["mine.py"]


def test_a_whole_file_is_run_as_it_is(write):
    mutant = read(write(f'"""{MESSAGE.replace("Base: base", "Time limit: 8")}"""\n', "mutants/mine.py"))
    assert mutant.time_limit == 8.0
    assert written(mutant) == mutant.path


def hunk(text):
    return f"{MESSAGE}\n@@\n{text}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (hunk("-        walk()"), "a hunk must match exactly once, but matches 0 times:\n            walk()"),
        (hunk("-        step()"), "a hunk must match exactly once, but matches 2 times:\n            step()"),
        (hunk("-        clip()\n@@\n-    for batch in task.dataloader():"), "this comes too late:\n        for batch"),
        (hunk("         clip()\n-        step()"), "a hunk must match exactly once, but matches 0 times"),
    ],
)
def test_a_patch_that_does_not_fit_its_base_is_refused(write, text, line):
    mutant = read(write(text))
    with pytest.raises(SpecimenError, match=re.escape(line)) as raised:
        source(mutant)
    assert str(raised.value).startswith(f"{mutant.path} on base.py: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (hunk("         clip()"), "a hunk changes nothing"),
        (hunk("-        clip()\n+        clip()"), "a hunk changes nothing"),
        (hunk("+        walk()"), "a hunk only adds; keep a neighbouring line"),
        (hunk("clip()"), "a line of a hunk must start with `-`, `+` or a space: clip()"),
        (MESSAGE, "no hunk: start one with a line `@@`"),
        (PATCH.replace("Base: base", "Base: other"), "`Base: other` is neither a reference trainer"),
        (PATCH.replace("Base: base\n", ""), "`Base: NAME` is missing"),
        (PATCH.replace("Cases: single-batched-fp32-sgd\n", ""), "`Cases: ID, ...` is missing"),
        (PATCH.replace("\nExpected: CRASH", ""), "a mutant must be caught"),
        (
            PATCH.replace("Expected", "Verdict"),
            "Laws, Cause, Time limit), but has `Verdict: CRASH`",
        ),
        (PATCH.replace("Base: base", "Base: base\nBase: base"), "each once"),
    ],
)
def test_a_mutant_that_cannot_be_read_is_refused(write, text, line):
    path = write(text)
    with pytest.raises(SpecimenError, match=re.escape(line)) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_variant_that_is_to_fail_is_refused(write):
    with pytest.raises(SpecimenError, match="a correct variant passes"):
        read(write(PATCH, "variants/mine.patch"))


def test_a_whole_file_has_no_base(write):
    with pytest.raises(SpecimenError, match="a whole file has no `Base`"):
        read(write(f'"""{MESSAGE}"""\n', "mutants/mine.py"))


def test_two_of_one_name_are_refused(write, tmp_path, monkeypatch):
    monkeypatch.setattr(specimens, "HERE", tmp_path)
    write(PATCH)
    write(PATCH.replace("\nExpected: CRASH", ""), "variants/mine.patch")
    with pytest.raises(SpecimenError, match="has the same name"):
        named("mutants", "variants")


def test_every_specimen_is_python_and_says_what_it_shows():
    for name, specimen in named(*specimens.FOLDERS).items():
        assert ast.get_docstring(ast.parse(source(specimen))) == specimen.message, name
        assert specimen.what.endswith("."), name
