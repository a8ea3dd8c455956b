"""Answers that are kept on disk are those that would be computed, or they are computed again."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import conformance
from conformance.cases.case import Case
from conformance.oracle.accepted_readings import readings
from conformance.oracle.power import power
from conformance.verdict.answers import trajectory_of
from conformance.verdict.diagnosis import HORIZON
from conformance.workloads import kept_answers
from conformance.workloads.kept_answers import ANSWERS, COMPUTED_BY, Answers
from conformance.workloads.registry import made

from ..structure.imports import imports

KEY = ("made", "momentum", 8, 2)


@pytest.fixture
def answers(tmp_path, monkeypatch) -> Answers:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = Answers()
    found.keep()
    return found


def never() -> object:
    raise AssertionError("computed again")


def file_of(answers: Answers) -> Path:
    [file] = answers.folder.iterdir()
    return file


@pytest.mark.parametrize(
    "case",
    [
        Case("ddp", 2, 3, "fp32", "momentum"),
        Case("ddp", 3, 1, "bf16", "clip-norm"),
        Case("single", 1, 2, "fp16", "overflow"),
        Case("ddp", 2, 2, "fp32", "adamw", resumed_at=3),
        Case("ddp", 2, 1, "fp32", "many-tensors"),
    ],
    ids=lambda case: case.id,
)
def test_answers_of_a_case_are_the_same_from_disk(case, answers, monkeypatch):
    def computed():
        workload = made.__wrapped__(case.workload, case.problem.workload.batch_size, case.accumulation)
        right = trajectory_of.__wrapped__(reading, None)
        return workload, right, power.__wrapped__(reading, right, HORIZON)

    reading = readings(case.problem)[0]
    expected = computed()
    monkeypatch.setattr(ANSWERS, "folder", answers.folder)
    assert computed() == expected
    kept = {*answers.folder.iterdir()}
    assert kept
    assert computed() == expected
    assert {*answers.folder.iterdir()} == kept


def test_the_representation_of_a_reading_has_no_address():
    """Another object may get the same address."""
    case = Case("ddp", 2, 3, "fp16", "short-window")
    assert all(" at 0x" not in repr(one) for one in readings(case.problem))


def test_an_answer_is_computed_once(answers):
    assert answers.get(KEY, lambda: 5) == 5
    assert answers.get(KEY, never) == 5
    with pytest.raises(AssertionError, match="computed again"):
        answers.get((*KEY, "other"), never)


@pytest.mark.parametrize("tear", [lambda data: data[:-1], lambda data: b"", lambda data: data[:30] + b"0" + data[31:]])
def test_a_torn_file_is_computed_again(tear, answers):
    answers.get(KEY, lambda: list(range(100)))
    file = file_of(answers)
    file.write_bytes(tear(file.read_bytes()))
    assert answers.get(KEY, lambda: 5) == 5
    assert answers.get(KEY, never) == 5


def test_what_raises_is_not_kept(answers):
    with pytest.raises(AssertionError):
        answers.get(KEY, never)
    assert not [*answers.folder.iterdir()]


def test_several_processes_may_write_the_same_answer(answers):
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: answers.get(KEY, lambda: list(range(1000))), range(64))
    assert all(one == list(range(1000)) for one in found)
    assert len([*answers.folder.iterdir()]) == 1


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    answers = Answers()
    answers.keep()
    assert answers.folder is None
    assert answers.get(KEY, lambda: 5) == 5


def test_a_full_disk_leaves_no_file(answers, monkeypatch):
    class Full:
        name = str(answers.folder / "new")

        def __enter__(self):
            Path(self.name).touch()
            return self

        def __exit__(self, *raised):
            pass

        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_answers.tempfile, "NamedTemporaryFile", lambda **options: Full())
    assert answers.get(KEY, lambda: 5) == 5
    assert not [*answers.folder.iterdir()]


def test_a_folder_that_vanishes_is_no_error(answers):
    shutil.rmtree(answers.folder)
    assert answers.get(KEY, lambda: 5) == 5


def test_other_code_has_other_answers(tmp_path, monkeypatch):
    package = Path(conformance.__file__).parent
    for name in COMPUTED_BY:
        shutil.copytree(package / name, tmp_path / name)
    monkeypatch.setattr(kept_answers, "_PACKAGE", tmp_path)
    before = kept_answers.version.__wrapped__()
    assert kept_answers.version.__wrapped__() == before == kept_answers.version()
    with (tmp_path / "oracle" / "power.py").open("a") as code:
        code.write("#")
    assert kept_answers.version.__wrapped__() != before


def test_the_version_covers_all_code_that_computes_answers():
    graph = imports(Path(conformance.__file__).parent)
    computing = [module for module in graph if module.startswith(("conformance.oracle", "conformance.workloads"))]
    reached = {one for module in computing for one in graph[module]}
    assert {one.split(".")[1] for one in reached if "." in one} <= {*COMPUTED_BY}


def test_old_versions_and_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept_answers, "_MOST_FILES", 10)
    home = tmp_path / "trainer-conformance" / "answers"
    for age in range(5):
        (home / f"older{age}").mkdir(parents=True)
        os.utime(home / f"older{age}", (1000 - age, 1000 - age))
    (home.parent / "another").mkdir()
    os.utime(home.parent / "another", (0, 0))
    answers = Answers()
    answers.keep()
    assert (home.parent / "another").exists()
    assert {one.name for one in home.iterdir()} == {answers.folder.name, "older0", "older1"}
    for number in range(12):
        answers.get((number,), lambda number=number: number)
    answers.keep()
    assert len([*answers.folder.iterdir()]) == 5


def test_a_new_cache_starts_with_the_answers_that_are_shipped(answers, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_answers, "SHIPPED", tmp_path / "answers.xz")
    answers.get(KEY, lambda: [1, 2])
    kept_answers.ship(answers.folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    another = Answers()
    another.keep()
    assert another.folder != answers.folder
    assert another.get(KEY, never) == [1, 2]


def test_answers_of_other_code_are_not_used(answers, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_answers, "SHIPPED", tmp_path / "answers.xz")
    answers.get(KEY, lambda: [1, 2])
    kept_answers.ship(answers.folder)
    assert kept_answers.shipped()
    monkeypatch.setattr(kept_answers, "version", lambda: "0")
    assert kept_answers.shipped() == {}
