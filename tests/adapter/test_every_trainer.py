"""`--trainer all`: every trainer of a file that has several."""

from __future__ import annotations

import pytest

from conformance.adapter.loading import every_trainer
from conformance.adapter.trainer_files import TrainerError, trainers_in

SEVERAL = """
import functools
import conformance
from conformance import trainer

def helper(task): ...

@trainer()
def first(task): ...

if True:
    @conformance.trainer(backends=["ddp"])
    def second(task): ...

third = trainer(name="third")(functools.partial(helper))

@trainer
def fourth(task): ...

fifth = conformance.trainer(functools.partial(helper))
marked = trainer(backends=["ddp"])
"""


@pytest.fixture
def several(tmp_path):
    path = tmp_path / "several.py"
    path.write_text(SEVERAL)
    return path


def test_all_of_a_file(several):
    assert trainers_in(several) == ["first", "second", "third", "fourth", "fifth"]
    assert every_trainer([str(several), "all", "ddp"]) == [
        *(f"{several}:{name}" for name in ("first", "second", "third", "fourth", "fifth")),
        "ddp",
    ]


def test_all_of_a_module(several, monkeypatch):
    monkeypatch.syspath_prepend(several.parent)
    assert every_trainer(["several", "all"])[:2] == ["several:first", "several:second"]


def test_what_names_one_trainer_stays(several, tmp_path):
    one = tmp_path / "one.py"
    one.write_text("from conformance import trainer\n@trainer()\ndef train(task): ...\n")
    named = [str(one), f"{several}:first", str(tmp_path / "none.py"), "package.module"]
    assert every_trainer([*named, "all"]) == named
    assert every_trainer([str(several)]) == [str(several)]


def test_all_of_nothing():
    with pytest.raises(TrainerError, match="all needs a file: name it too"):
        every_trainer(["all"])
