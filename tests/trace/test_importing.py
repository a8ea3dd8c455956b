"""Acting on modules when they are imported."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager

import pytest

from conformance.trace.seams.patching import when_imported

NAME = "imported_by_a_test"


@pytest.fixture
def acted(tmp_path, monkeypatch):
    """The modules that were acted on; the module can be imported, and is forgotten afterwards."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield []
    sys.modules.pop(NAME, None)


def acting(acted):
    """Seams that only tell of which module they are, and when."""

    @contextmanager
    def seam(module):
        acted.append(module)
        yield
        acted.remove(module)

    return lambda module: [seam(module)]


def test_later(acted):
    with when_imported(NAME, acting(acted)):
        assert acted == []
        module = importlib.import_module(NAME)
        assert acted == [module]
        importlib.import_module(NAME)
        assert acted == [module]
    assert module.value == 1


def test_already(acted):
    module = importlib.import_module(NAME)
    with when_imported(NAME, acting(acted)):
        assert acted == [module]


def test_looking_whether_it_is_there_does_not_use_it_up(acted):
    """As frameworks do with Horovod before they import it."""
    with when_imported(NAME, acting(acted)):
        assert importlib.util.find_spec(NAME) is not None
        assert acted == []
        module = importlib.import_module(NAME)
        assert acted == [module]


def test_the_module_is_what_it_would_be_without(acted):
    plain = importlib.import_module(NAME)
    del sys.modules[NAME]
    with when_imported(NAME, acting(acted)):
        module = importlib.import_module(NAME)
    assert type(module.__loader__) is type(plain.__loader__)
    assert module.__spec__.loader is module.__loader__
    assert vars(module).keys() == vars(plain).keys()


def test_nothing_stays(acted):
    before = list(sys.meta_path)
    with when_imported(NAME, acting(acted)):
        assert sys.meta_path != before
        importlib.import_module(NAME)
        assert acted != []
    assert sys.meta_path == before
    assert acted == []
    del sys.modules[NAME]
    importlib.import_module(NAME)
    assert acted == []


def test_what_is_not_there(acted):
    with when_imported("no_such_module_anywhere", acting(acted)), pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
    assert acted == []
