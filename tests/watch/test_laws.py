"""The laws of a watch are listed and explained next to the others."""

import re
from pathlib import Path

import pytest

import conformance
from conformance.cli import main
from conformance.watch.judging.laws import AS_EXPECTED, LAWS
from conformance.watch.judging.properties import VALUES, Property

WATCH = Path(conformance.__file__).parent / "watch"


def test_the_list_has_all_of_them(capsys):
    assert main(["laws"]) == 0
    assert LAWS.keys() <= {*re.findall(r"watch/[\w-]+", capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("watch/averaged", "ranks: if intended, --expect ranks=own"),
        ("watch/own-gradient", "ranks: no option makes this right"),
        (AS_EXPECTED, "each property"),
    ],
)
def test_the_property_and_the_value_are_shown(capsys, name, shown):
    for of in ("watch", name):
        assert main(["explain", of]) == 0
        assert shown in " ".join(capsys.readouterr().out.partition(name)[2].partition("watch/")[0].split())


def test_the_value_of_each_is_one_that_can_be_stated():
    """With it, the law's violation is as expected, so it is not the usual one."""
    stated = [law for law in LAWS.values() if law.value is not None]
    assert [law.id for law in stated if law.value not in [*VALUES[law.property]][1:]] == []


@pytest.mark.parametrize("name", ["watch", "watch/averaged"])
def test_one_is_explained(capsys, name):
    assert main(["explain", name]) == 0
    assert LAWS["watch/averaged"].says.split(".")[0] in " ".join(capsys.readouterr().out.split())


def test_the_help_lists_each_property_and_its_values(capsys):
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert [of for of in Property if f"{of.value} {', '.join(VALUES[of])}" not in printed] == []


def test_each_is_judged_and_each_that_is_judged_exists():
    judged = {
        law
        for path in (WATCH / "judging").glob("*.py")
        if path.name != "laws.py"
        for law in re.findall(r"watch/[\w-]+", path.read_text())
    }
    assert judged == LAWS.keys() - {AS_EXPECTED}
