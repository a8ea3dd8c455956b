"""A script is kept only if it ends as the case did and shows the same value."""

from __future__ import annotations

import pytest

from conformance.repro.proof import Run, is_shown, run
from conformance.repro.showing import Ending, Numbers

NUMBERS = Numbers(1, 0, "weights", ((0.5, 0.0),), ((1, 0, 0.25),))
SAYS = "after step 0, bias on rank 1: observed 0.25, expected 0.5"


@pytest.mark.parametrize(
    ("ran", "shows", "is_one"),
    [
        (Run(1, SAYS), NUMBERS, True),
        (Run(0, SAYS), NUMBERS, False),
        (Run(1, SAYS.replace("0.25", "0.125")), NUMBERS, False),
        (Run(1, SAYS.replace("rank 1", "rank 0")), NUMBERS, False),
        (Run(1, "AttributeError: 'Task' object has no attribute 'rank'"), NUMBERS, False),
        (Run(1, "ValueError: no such thing\n"), Ending(1, ("ValueError: no such thing",)), True),
        (Run(1, "NameError: no such thing\n"), Ending(1, ("ValueError: no such thing",)), False),
        (Run(1, "Timeout (0:00:20)!\n"), Ending(1), True),
        (Run(1, "RuntimeError: something else\n"), Ending(1), False),
        (
            Run(1, "RuntimeError: read error [127.0.0.1]:41681\n"),
            Ending(1, ("RuntimeError: read error [127.0.0.1]:9",)),
            True,
        ),
        (Run(1, "OSError: no file '/tmp/one/a.pt'\n"), Ending(1, ("OSError: no file '/tmp/two/a.pt'",)), True),
        (Run(1, "OSError: no file '/tmp/one/b.pt'\n"), Ending(1, ("OSError: no file '/tmp/one/a.pt'",)), False),
        (Run(1, "OSError: no file \\udcff\\ud800\n"), Ending(1, ("OSError: no file \udcff\ud800",)), True),
        (Run(None, ""), Ending(1), False),
    ],
)
def test_shown(ran, shows, is_one):
    assert is_shown(ran, shows, ["bias"]) is is_one


def test_a_script_cannot_import_us(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import conformance\n")
    ran = run(path, tmp_path)
    assert ran.code == 1
    assert "ImportError: a standalone script imports no conformance" in ran.output


def test_a_script_finds_the_modules_beside_it(tmp_path):
    (tmp_path / "helper.py").write_text("print('found')\n")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "script.py"
    path.write_text("import helper\n")
    assert run(path, tmp_path) == Run(0, "found\n")
    assert run(path, tmp_path / "elsewhere").lines[-1] == "ModuleNotFoundError: No module named 'helper'"
