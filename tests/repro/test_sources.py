"""Statements copied from a source: with their comments, without our decorator, names and annotations."""

from __future__ import annotations

import pytest

from conformance.repro.sources import CannotCopy, Imported, Source, names_in

TEXT = """
import torch.nn.functional as functional
from conformance import Task, trainer

if __name__ == "__main__":
    print("left out")

# Why.
@trainer(
    backends=["single"],
)
@torch.no_grad()
def train(task: Task, *, often: int | None = None) -> dict[str, int]:
    # Inside.
    found: dict[str, Task] = {}
    return helper(task, found)


def helper(task, found): return conformance.Batch


class Holds:
    size: int


os.environ["NAME"] = "value"
"""
SOURCE = Source("mine.py", TEXT)
TRAIN = SOURCE.definitions["train"]


def test_a_statement_is_copied_with_its_comments_and_without_our_decorator():
    copied = SOURCE.copied(TRAIN, {}, frozenset({"trainer"}))
    assert copied.splitlines()[:4] == [
        "# Why.",
        "@torch.no_grad()",
        "def train(task: Task, *, often: int | None = None) -> dict[str, int]:",
        "    # Inside.",
    ]


def test_names_and_expressions_are_replaced_by_others():
    copied = SOURCE.copied(TRAIN, {"helper": "other", "Task": "T"}, frozenset({"trainer"}))
    assert "return other(task, found)" in copied
    assert "task: T," in copied
    helper = SOURCE.copied(SOURCE.definitions["helper"], {"helper": "other", "conformance.Batch": "Batch"})
    assert helper == "def other(task, found): return Batch"


def test_the_names_of_a_statement_are_those_that_a_script_keeps():
    assert set(names_in(TRAIN, frozenset({"trainer"}))) == {
        "torch",
        "Task",
        "int",
        "dict",
        "str",
        "helper",
        "task",
        "found",
    }
    assert "Task" in set(names_in(TRAIN))
    assert "conformance" not in set(names_in(SOURCE.definitions["helper"], absent={"conformance.Batch"}))


def test_what_a_file_defines_imports_and_does_besides():
    assert set(SOURCE.definitions) == {"train", "helper", "Holds"}
    assert SOURCE.imports["functional"] == [Imported("torch.nn", "functional")]
    assert [SOURCE.copied(node, {}) for node in SOURCE.others] == ['os.environ["NAME"] = "value"']


@pytest.mark.parametrize(("text", "why"), [("def train(:\n", "invalid syntax"), ("-" * 20_000 + "1", r"\w+")])
def test_what_is_no_python_is_said_in_one_line(tmp_path, text, why):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(CannotCopy, match=rf"mine\.py cannot be parsed: {why}"):
        _ = Source.of(path).tree
    with pytest.raises(CannotCopy, match="cannot be read"):
        Source.of(tmp_path / "none.py")
