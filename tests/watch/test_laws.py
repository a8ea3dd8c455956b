"""The laws of a watch are listed and explained beside the others."""

import re
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.watch.judging import laws as module
from conformance.watch.judging.laws import LAWS

JUDGING = Path(module.__file__).parent


def test_the_list_has_all_of_them(capsys):
    assert main(["laws"]) == 0
    assert LAWS.keys() <= {*re.findall(r"watch/[\w-]+", capsys.readouterr().out)}


@pytest.mark.parametrize("name", ["watch", "watch/averaged"])
def test_one_is_explained(capsys, name):
    assert main(["explain", name]) == 0
    assert LAWS["watch/averaged"].says.split(".")[0] in " ".join(capsys.readouterr().out.split())


def test_each_is_judged_and_each_that_is_judged_exists():
    judged = {
        law
        for path in JUDGING.glob("*.py")
        if path.name != "laws.py"
        for law in re.findall(r"watch/[\w-]+", path.read_text())
    }
    assert judged == LAWS.keys()
