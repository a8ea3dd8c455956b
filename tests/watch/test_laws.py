"""The laws of a watch are listed and explained next to the others."""

import re
from pathlib import Path

import pytest

import conformance
from conformance.cli import main
from conformance.watch.judging.laws import LAWS

WATCH = Path(conformance.__file__).parent / "watch"


def test_the_list_has_all_of_them(capsys):
    assert main(["laws"]) == 0
    assert LAWS.keys() <= {*re.findall(r"watch/[\w-]+", capsys.readouterr().out)}


@pytest.mark.parametrize("name", ["watch", "watch/averaged"])
def test_one_is_explained(capsys, name):
    assert main(["explain", name]) == 0
    assert LAWS["watch/averaged"].says.split(".")[0] in " ".join(capsys.readouterr().out.split())


def test_each_is_judged_and_each_that_is_judged_exists():
    texts = [path.read_text() for path in WATCH.rglob("*.py") if path.name != "laws.py"]
    assert {law for text in texts for law in re.findall(r'"(watch/[\w-]+)"', text)} == LAWS.keys()
