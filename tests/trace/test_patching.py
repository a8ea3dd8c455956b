"""Functions are replaced temporarily, now or once their modules are imported."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from contextlib import contextmanager

import pytest

from conformance.trace.seams.patching import leaving_seams, replaced, replaced_inside, when_imported


def loudly(function):
    def wrapper(*args):
        return f"{function(*args)}!"

    return functools.update_wrapper(wrapper, function)


@loudly
def greet(name):
    return f"Hello {name}"


def twice(original, *args):
    return f"{original(*args)} {original(*args)}"


def test_earlier_imports_of_the_function_are_covered():
    mine, before = greet, dict(vars(greet))
    cells = [cell.cell_contents for cell in greet.__closure__]
    with replaced_inside(greet, twice):
        assert mine("you") == "Hello you Hello you!"
    assert mine("you") == "Hello you!"
    assert vars(greet) == before
    assert [cell.cell_contents for cell in greet.__closure__] == cells


def test_it_is_put_back_after_an_error():
    with pytest.raises(MemoryError), replaced_inside(greet, twice):
        raise MemoryError
    assert greet("you") == "Hello you!"


@pytest.mark.parametrize("function", [len, twice, functools.partial(greet, "you")])
def test_without_an_original_it_raises(function):
    with pytest.raises(ValueError, match="keeps no original"), replaced_inside(function, twice):
        pass


class Greeting:
    def to(self, name):
        return f"Hello {name}"


@pytest.mark.parametrize("place", [lambda: replaced(Greeting, "to", twice), lambda: replaced_inside(greet, twice)])
def test_a_seam_left_in_place_is_idle_and_reused(place, monkeypatch):
    monkeypatch.setattr(Greeting, "to", Greeting.to)
    monkeypatch.setattr(greet.__closure__[0], "cell_contents", greet.__wrapped__)

    def places():
        return vars(Greeting)["to"], greet.__closure__[0].cell_contents

    def said():
        return Greeting().to("you"), greet("you")

    before = places()
    with leaving_seams(), place():
        pass
    left = places()
    assert left != before
    assert said() == ("Hello you", "Hello you!")
    with place():
        assert places() == left
        assert said() != ("Hello you", "Hello you!")
    assert places() == left
    assert said() == ("Hello you", "Hello you!")


NAME = "imported_by_a_test"


@pytest.fixture
def acted(tmp_path, monkeypatch):
    """The modules acted on so far. Makes the test's module importable during a test."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield []
    sys.modules.pop(NAME, None)


def acting(acted):
    """Seams that add their module to `acted` while they are entered."""

    @contextmanager
    def seam(module):
        acted.append(module)
        yield
        acted.remove(module)

    return lambda module: [seam(module)]


def test_an_import_after_the_seams(acted):
    with when_imported(NAME, acting(acted)):
        assert acted == []
        module = importlib.import_module(NAME)
        assert acted == [module]
        importlib.import_module(NAME)
        assert acted == [module]
    assert module.value == 1


def test_seams_of_two_observers(acted):
    with when_imported(NAME, acting(acted)), when_imported(NAME, acting(acted)):
        module = importlib.import_module(NAME)
        assert acted == [module, module]


def test_a_loader_that_other_modules_share(acted, tmp_path, monkeypatch):
    """Like pytest's own loader of test files."""

    class Shared:
        loader = importlib.machinery.SourceFileLoader(NAME, str(tmp_path / f"{NAME}.py"))

        def find_spec(self, name, path, target=None):
            return importlib.util.spec_from_loader(name, self.loader) if name == NAME else None

    monkeypatch.setattr(sys, "meta_path", [Shared(), *sys.meta_path])
    with when_imported(NAME, acting(acted)):
        importlib.util.find_spec(NAME)
        module = importlib.import_module(NAME)
        assert acted == [module]


def test_an_import_before_the_seams(acted):
    module = importlib.import_module(NAME)
    with when_imported(NAME, acting(acted)):
        assert acted == [module]


def test_a_lookup_before_the_import(acted):
    """As frameworks look for Horovod before they import it."""
    with when_imported(NAME, acting(acted)):
        assert importlib.util.find_spec(NAME) is not None
        assert acted == []
        module = importlib.import_module(NAME)
        assert acted == [module]


def test_the_module_looks_the_same_as_without_seams(acted):
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


def test_a_missing_module(acted):
    with when_imported("no_such_module_anywhere", acting(acted)), pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
    assert acted == []
