"""Helpers for the results of laws on a run."""

from __future__ import annotations

import pytest

from conformance.laws.checking import check
from conformance.laws.law import laws


def broken_of(chapters, run):
    """The laws of these chapters that a run breaks. None may fail on it."""
    found = check(run)
    assert [one.failure for one in found if one.failure] == []
    return {one.law.id for one in found if one.findings and one.law.chapter in chapters}


def the(run, id):
    """The result of one law."""
    return next(one for one in check(run) if one.law.id == id)


def checked(run, id):
    """The number of windows that a law was checked on."""
    return the(run, id).checked


def all_checked(chapter, run):
    """The number of windows that each law of a chapter was checked on."""
    return {one.law.id: one.checked for one in check(run) if one.law.chapter == chapter}


def found(run, id):
    """The first finding: each event of a trace by hand has its own line, so each window has a finding."""
    return the(run, id).findings[0]


def the_finding(run, id):
    """The only finding."""
    [finding] = the(run, id).findings
    return finding


def laws_in(*modules):
    """The laws of these modules of `conformance.laws.chapters`."""
    return {law.id for law in laws() if law.judges.__module__.rpartition(".")[2] in modules}


def laws_of(chapter):
    return {law.id for law in laws() if law.chapter == chapter}


def tables(breaking, allowed, *chapters):
    """Two tests: each run of ``breaking`` breaks only its law among those of these chapters; none
    of ``allowed`` breaks any. Runs are made when they are called."""
    runs = [
        pytest.param(law, run, id=f"{law}: {name}") for law, named in breaking.items() for name, run in named.items()
    ]

    @pytest.mark.parametrize(("law", "run"), runs)
    def test_broken(law, run):
        assert broken_of(chapters, run()) == {law}

    @pytest.mark.parametrize("run", allowed.values(), ids=allowed)
    def test_allowed(run):
        assert broken_of(chapters, run()) == set()

    return test_broken, test_allowed
