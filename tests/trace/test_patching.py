"""Functions are replaced for a while, and are then what they were."""

from __future__ import annotations

import functools

import pytest

from conformance.trace.patching import replaced_inside


def loudly(function):
    def wrapper(*args):
        return f"{function(*args)}!"

    return functools.update_wrapper(wrapper, function)


@loudly
def greet(name):
    return f"Hello {name}"


def twice(original, *args):
    return f"{original(*args)} {original(*args)}"


def test_who_has_the_function_already_is_seen():
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
def test_without_an_original_it_says_so(function):
    with pytest.raises(ValueError, match="keeps no original"), replaced_inside(function, twice):
        pass
