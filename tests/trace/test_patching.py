"""Functions are replaced for a while, and are then what they were."""

from __future__ import annotations

import functools

import pytest

from conformance.trace.seams.patching import leaving_seams, replaced, replaced_inside


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


class Greeting:
    def to(self, name):
        return f"Hello {name}"


@pytest.mark.parametrize("place", [lambda: replaced(Greeting, "to", twice), lambda: replaced_inside(greet, twice)])
def test_a_seam_that_was_left_is_idle_and_found_again(place, monkeypatch):
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
