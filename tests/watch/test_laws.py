"""The laws of a watch are listed and explained next to the others."""

import re
from pathlib import Path

import pytest

import conformance
from conformance.cli import main
from conformance.laws.chapters.watch_scripts import AS_EXPECTED, LAWS
from conformance.watch.judging.properties import VALUES, Property

WATCH = Path(conformance.__file__).parent / "watch"


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
    shown = [law.shows for law in LAWS.values()]
    assert [one for one in shown if one[1] not in (None, *[*VALUES[Property(one[0])]][1:])] == []


def test_the_help_lists_each_property_and_its_values(capsys):
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert [of for of in Property if f"{of.value} {', '.join(VALUES[of])}" not in printed] == []


def test_each_is_judged_and_each_that_is_judged_exists():
    judged = {law for path in (WATCH / "judging").glob("*.py") for law in re.findall(r"watch/[\w-]+", path.read_text())}
    assert judged == LAWS.keys() - {AS_EXPECTED}
