"""`[tool.conformance]`: its options, errors in it, and the precedence of the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.cli import _configured
from conformance.suite.configuration import Configuration, ConfigurationError, configuration

EVERYTHING = """
[tool.conformance]
trainer = ["trainers/mine.py:train", "accelerate", "package.module"]
backend = "ddp"
case = ["ddp-w2", "precision=fp32"]
thorough = true
time-limit = 30
output = "out"
processes = 2

[tool.conformance.expected-failures]
"ddp-w2-fp32-momentum" = "issue 7"

[tool.conformance.watch]
expect = {ranks = "sum", data = "same"}
"""


def read(text: str) -> Configuration:
    Path("pyproject.toml").write_text(text)
    return configuration()


def options(*given: str):
    return _configured(given)[0]


def test_all_options(folder):
    found = read(EVERYTHING)
    assert found.values == {
        "trainer": ["trainers/mine.py:train", "accelerate", "package.module"],
        "backend": ["ddp"],
        "case": ["ddp-w2", "precision=fp32"],
        "thorough": True,
        "time-limit": 30.0,
        "output": "out",
        "processes": 2,
    }
    assert found.expected == {"ddp-w2-fp32-momentum": "issue 7"}
    assert found.watch == {"ranks": "sum", "data": "same"}


def test_files_are_named_from_the_folder_of_the_configuration(folder, monkeypatch):
    read(EVERYTHING)
    os.mkdir("below")
    monkeypatch.chdir("below")
    found = configuration()
    assert found.file == Path("../pyproject.toml")
    assert found.values["trainer"] == ["../trainers/mine.py:train", "accelerate", "package.module"]
    assert found.values["output"] == "../out"


def test_a_nearer_file_without_the_table_does_not_count(folder, monkeypatch):
    read(EVERYTHING)
    os.mkdir("below")
    Path("below/pyproject.toml").write_text("[project]\nname = 'below'\n")
    monkeypatch.chdir("below")
    assert configuration().file == Path("../pyproject.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backends = 'ddp'", "backends: unknown option; did you mean 'backend'?"),
        ("colour = 1", "colour: unknown option; use one of trainer, backend, case"),
        ("backend = 'dpd'", "backend: unknown backend 'dpd'; did you mean 'ddp'?"),
        ("case = 3", "case: 3 is not a text or a list of texts"),
        ("case = []", "case: [] is not a text or a list of texts"),
        ("thorough = 'yes'", "thorough: 'yes' is neither true nor false"),
        ("time-limit = 'long'", "time-limit: \"'long'\" is not a time limit; write seconds"),
        ("time-limit = true", "time-limit: 'True' is not a time limit; write seconds"),
        ("time-limit = -1", "time-limit: '-1' is not a time limit; write seconds"),
        ("processes = 0", "processes: 0 is not a number of processes; write a whole number of at least 1"),
        ("output = ''", "output: '' is not a text; write it in quotes"),
        (
            "expected-failures = ['x']",
            "expected-failures: ['x'] is not a table; below [tool.conformance.expected-failures]",
        ),
        (
            "expected-failures = {x = ''}",
            'expected-failures: x has no reason; write "x" = "why it is expected to fail"',
        ),
        ("watch = 'ranks=sum'", "watch: 'ranks=sum' is not valid; write expect = {ranks = \"sum\"}"),
        ("watch = {expect = 'ranks=sum'}", "watch: {'expect': 'ranks=sum'} is not valid; write expect = "),
        ("watch = {expected = {ranks = 'sum'}}", "watch: {'expected': {'ranks': 'sum'}} is not valid"),
        ("watch = {expect = {ranks = 2}}", "watch: 2 is not a text; write it in quotes"),
    ],
)
def test_what_is_wrong_is_one_line(folder, text, said):
    with pytest.raises(ConfigurationError) as caught:
        read(f"[tool.conformance]\n{text}\n")
    assert str(caught.value).startswith(f"pyproject.toml: [tool.conformance] {said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.conformance", "pyproject.toml is not TOML: "),
        ("[tool]\nconformance = 3", "pyproject.toml: [tool.conformance] is not a table"),
    ],
)
def test_what_is_no_table(folder, text, said):
    with pytest.raises(ConfigurationError, match=said.replace("[", r"\[")):
        read(text)


def test_a_mistake_ends_a_command_with_one_line(conformance):
    Path("pyproject.toml").write_text("[tool.conformance]\ntime-limit = 'long'\n")
    ended = conformance("list", "cases")
    assert (ended.code, ended.out) == (2, "")
    assert ended.line.startswith("conformance: pyproject.toml: [tool.conformance] time-limit")


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ("{rank = 'sum'}", "'rank' is no property; write one of ranks, micro-batches"),
        ("{ranks = 'median'}", "ranks has no value 'median'; write one of mean, sum"),
    ],
)
def test_what_a_watch_cannot_expect_ends_it_with_one_line(conformance, expect, said):
    Path("pyproject.toml").write_text(f"[tool.conformance.watch]\nexpect = {expect}\n")
    ended = conformance("watch", "--", "true")
    assert (ended.code, ended.out) == (2, "")
    assert ended.line.startswith(f"conformance: pyproject.toml: [tool.conformance.watch] expect: {said}")


def test_the_command_line_wins(folder):
    read(EVERYTHING)
    found = options("run")
    assert found.trainer == ["trainers/mine.py:train", "accelerate", "package.module"]
    assert (found.backend, found.time_limit, found.thorough, found.output) == (["ddp"], 30.0, True, Path("out"))
    found = options("run", "other.py", "--time-limit", "60", "--backend", "single", "--output", "elsewhere")
    assert (found.trainer, found.time_limit, found.backend) == (["other.py"], 60.0, ["single"])
    assert found.output == Path("elsewhere")
    assert options("smoke").trainer == ["trainers/mine.py:train", "accelerate", "package.module"]


def test_the_whole_command_is_recorded(folder):
    """So a run can be resumed only with its own configuration."""
    read("[tool.conformance]\ntrainer = 'mine.py'\ntime-limit = 30\n")
    assert _configured(["run", "--case", "x"])[1] == [
        "run", "--case", "x", "--trainer=mine.py", "--time-limit=30.0",
    ]  # fmt: skip


def test_without_a_table_there_are_the_defaults(folder):
    found = options("run")
    assert (found.trainer, found.backend, found.case, found.time_limit, found.thorough) == ([], (), (), 60.0, False)


def test_a_run_and_pytest_end_alike(conformance, write, cases, pytester):
    """Neither fails for an expected failure; both fail if it no longer occurs."""
    target = write(inside="if task.accumulation == 3: model.weight.data += 1", name="mine.py")
    chosen = ["single-acc2-fp32-momentum", "single-acc3-fp32-momentum"]
    table = f'[tool.conformance]\ntrainer = "{target}"\ncase = {chosen}\n[tool.conformance.expected-failures]\n'
    pytest_run = ("--pyargs", "conformance.suite", "-p", "no:cacheprovider")
    Path("pyproject.toml").write_text(table + '"single-acc3-fp32-momentum" = "issue 7"\n')
    ended = conformance("run")
    assert (ended.code, ended.err) == (0, "")
    assert "DOES NOT CONFORM: " in ended.out
    assert ended.out.endswith("1 failure expected by pyproject.toml.\n")
    pytester.runpytest_inprocess(*pytest_run).assert_outcomes(passed=1, xfailed=1)
    Path("pyproject.toml").write_text(table + '"single-acc2-fp32-momentum" = "issue 8"\n"acc/none" = "issue 9"\n')
    ended = conformance("run")
    assert ended.code == 1
    holds, nothing = ended.err.splitlines()
    assert holds.startswith("conformance: mine:single-acc2-fp32-momentum passed, but a failure is expected; remove")
    assert nothing.startswith("conformance: no case has the id or problem acc/none; correct or remove")
    result = pytester.runpytest_inprocess(*pytest_run)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["no case has the id or problem acc/none; *"])


def test_other_commands_have_the_defaults(folder):
    read(EVERYTHING)
    assert options("repro", "ddp-w2-fp32-momentum").time_limit == 60.0
