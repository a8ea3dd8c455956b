"""Loading the trainer of a target."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from conformance.adapter.loading import load, missing_requirements, reference_names

from .sources import ONE, TWO


@pytest.mark.parametrize("target", ["my_trainer.py", "./my_trainer.py", "my_trainer.py:train"])
def test_a_file_is_loaded(write, target):
    write("my_trainer.py", ONE)
    function, declaration = load(target)
    assert function(None) == "one"
    assert declaration.backends == ("single", "ddp")
    assert declaration.name == "my_trainer"


def test_a_file_is_loaded_by_its_absolute_path(write):
    assert load(str(write("somewhere/my_trainer.py", ONE)))[1].name == "my_trainer"


def test_a_file_hides_no_installed_module(write):
    """It gets its own module name."""
    write("json.py", ONE)
    function, _ = load("json.py")
    assert function.__module__ != "json"
    assert sys.modules["json"].__file__ != function.__code__.co_filename


def test_siblings_of_a_file_import(write):
    write("folder/sibling_of_trainer.py", "ANSWER = 42")
    write(
        "folder/mine.py",
        "from sibling_of_trainer import ANSWER\n" + ONE.replace('return "one"', "return ANSWER"),
    )
    assert load("folder/mine.py")[0](None) == 42


def test_relative_imports_work_in_a_file_that_lies_in_a_package(write):
    write("package_of_mine/__init__.py", "")
    write("package_of_mine/deeper/__init__.py", "")
    write("package_of_mine/values.py", "ANSWER = 42")
    write(
        "package_of_mine/deeper/mine.py",
        "from ..values import ANSWER\n" + ONE.replace('return "one"', "return ANSWER"),
    )
    function, declaration = load("package_of_mine/deeper/mine.py")
    assert function(None) == 42
    assert declaration.name == "mine"


def test_an_object_that_has_no_such_attribute_in_its_own_way(write):
    """Such as a settings dict whose items are attributes."""
    settings = "class Settings(dict):\n    def __getattr__(self, name): return self[name]\nsettings = Settings()\n"
    write("mine.py", settings + ONE)
    assert load("mine.py")[0](None) == "one"


def test_a_partial_function_is_a_trainer_of_the_file_of_its_function(write):
    write(
        "mine.py",
        "from functools import partial\nfrom conformance import trainer\n"
        "def run(words, task): return words\ntrain = trainer(partial(run, 'three'))\n",
    )
    assert load("mine.py")[0](None) == "three"


@pytest.mark.parametrize("target", ["package_of_mine.mine", "package_of_mine.mine:train"])
def test_a_module_is_loaded_from_the_working_directory(write, target):
    write("package_of_mine/__init__.py", "")
    write("package_of_mine/mine.py", ONE)
    function, declaration = load(target)
    assert function(None) == "one"
    assert declaration.name == "mine"


def test_of_several_trainers_one_is_named(write):
    write("several.py", TWO)
    assert load("several.py:train")[1].name == "train"
    function, declaration = load("several.py:other")
    assert function(None) == "other"
    assert declaration.name == "the other"


def test_an_imported_trainer_is_not_the_files_own(write):
    """`from conformance.trainers.batched import train as base` does not make a file ambiguous."""
    write("extends.py", "from conformance.trainers.batched import train as base\n" + ONE)
    assert load("extends.py")[0](None) == "one"


def test_reference_trainers_have_bare_names():
    assert {"single", "batched", "accumulated", "ddp", "horovod", "horovod_plain"} <= set(reference_names())
    assert not {"task", "batches", "declaration", "loading"} & set(reference_names())
    function, declaration = load("accumulated")
    assert function.__module__ == "conformance.trainers.accumulated"
    assert declaration.name == "accumulated"


@pytest.mark.parametrize("source", ["sys.modules[__name__].__spec__ = None", "sys.modules['magic_of_mine'] = object()"])
def test_a_required_module_without_a_spec_is_there(write, monkeypatch, source):
    """Some frameworks replace themselves in `sys.modules`."""
    monkeypatch.delitem(sys.modules, "magic_of_mine", raising=False)
    write("magic_of_mine.py", f"import sys\n{source}\n")
    _, declaration = load(str(write("mine.py", "import magic_of_mine\n" + ONE.replace('["single"', '["ddp"'))))
    assert missing_requirements(replace(declaration, requires=("magic_of_mine", "magic_of_mine.deeper"))) == (
        "magic_of_mine.deeper",
    )
    del sys.modules["magic_of_mine"]


def test_a_module_without_a_spec_is_loaded_by_its_name(write, monkeypatch):
    write("without_spec.py", ONE)
    assert load("without_spec:train")[0](None) == "one"
    monkeypatch.setattr(sys.modules["without_spec"], "__spec__", None)
    assert load("without_spec:train")[0](None) == "one"
