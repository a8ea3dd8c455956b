"""``pytest --pyargs conformance.suite``: one item per case, with readable ids, markers, reasons and a clear message."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

# A run in this process forgets its imports, and numpy cannot be imported twice.
import numpy  # noqa: F401
import pytest

from fixtures.written import file_of

SUITE = ("--pyargs", "conformance.suite", "-p", "no:cacheprovider")
NEEDS = """
import a_framework_nobody_has
from conformance import trainer

@trainer(requires=["a_framework_nobody_has"])
def train(task): ...
"""
PASSES, FAILS = "single-batched-fp32-momentum", "single-acc2-fp32-momentum"


@pytest.fixture
def items(pytester, write):
    """The ids that a call collects, without the file and the function."""

    def collected(*arguments):
        result = pytester.runpytest_inprocess(*SUITE, "--collect-only", "-q", *arguments)
        assert result.ret == 0
        return [line.partition("test_case[")[2].removesuffix("]") for line in result.outlines if "test_case[" in line]

    return collected


def test_ids(items, write):
    target = write()
    assert set(items("--trainer", target, "--case", "single-acc2-fp16")) == {
        f"single-acc2-fp16-{workload}"
        for workload in (
            *("momentum", "clip-value", "sgd", "decay", "clip-norm", "adamw", "overflow", "growing-scale"),
            *("adamw-overflow", "cast-weights", "infinite-loss", "short-window", "uneven-batch", "short-clip-value"),
            *("overflow-clip", "overflow-clip-value", "overflow-in-part"),
            *("many-tensors", "many-clip-value", "many-overflow", "two-groups", "two-groups-clip", "many-groups"),
            *("two-layers", "two-layers-clip-value", "two-layers-decay", "two-layers-overflow"),
            *(f"{kind}-{recipe}" for kind in ("frozen", "groups", "large") for recipe in ("clip-value", "overflow")),
        )
    }


def test_ids_of_several_trainers(items, write):
    assert items("--trainer", write(name="mine.py"), "--trainer", "batched", "--case", PASSES) == [
        f"mine:{PASSES}",
        f"batched:{PASSES}",
    ]


def test_markers(items, write):
    target = write()
    everything = items("--trainer", target)
    assert len(everything) > 100
    for expression, chosen in (
        ("fp16", lambda item: "-fp16-" in item),
        ("ddp and fp32 and not cuda", lambda item: item.startswith("ddp-") and "-fp32-" in item),
        ("cuda", lambda item: item.startswith("cuda-")),
    ):
        expected = [item for item in everything if chosen(item)]
        assert 0 < len(expected) < len(everything)
        assert items("--trainer", target, "-m", expression) == expected


def test_a_run_chooses_cases_and_a_thorough_one_more(items, write):
    target = write()
    chosen, thorough = (set(items("--trainer", target, *more)) for more in ((), ("--thorough",)))
    assert len(chosen) < len(thorough)
    [left_out, *_] = sorted(thorough - chosen)
    assert items("--trainer", target, "--case", left_out) == [left_out]


def test_one_backend(items, write):
    assert {item.split("-")[0] for item in items("--trainer", write(), "--backend", "single")} == {"single", "cuda"}


def test_two_workers(pytester, write):
    """Passed, failed, skipped with a reason; the JUnit file and the exit code."""
    mine = Path(write("", "if task.accumulation > 1: model.weight.data += 1", name="mine.py")).resolve()
    needs = Path("needs.py").resolve()
    needs.write_text(NEEDS)
    unsupported, cuda = "single-samples-fp64-momentum", f"cuda-{PASSES}"
    chosen = [word for case in (PASSES, FAILS, unsupported, cuda) for word in ("--case", case)]
    result = pytester.runpytest_subprocess(
        *SUITE, "-n", "2", "-rs", "--junitxml", "junit.xml", "--trainer", mine, "--trainer", needs, *chosen
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    suite = ET.parse("junit.xml").getroot()[0]
    said = {}
    for testcase in suite.iter("testcase"):
        name = testcase.get("name", "").partition("[")[2].removesuffix("]")
        said[name] = [(child.tag, child.get("message"), child.text) for child in testcase]

    assert said[f"mine:{PASSES}"] == []
    [(tag, _, text)] = said[f"mine:{FAILS}"]
    assert tag == "failure"
    assert text.splitlines()[0].startswith("FAIL (numerics): The weights changed outside the optimizer's steps: ")
    assert text.splitlines()[-1] == f"rerun: conformance run {mine} --case {FAILS}"
    assert "Traceback" not in text

    skipped = {name: entries[0][1] for name, entries in said.items() if entries and entries[0][0] == "skipped"}
    assert skipped[f"needs:{PASSES}"] == (
        "UNAVAILABLE: a_framework_nobody_has is not installed; install it with: pip install a_framework_nobody_has"
    )
    assert skipped[f"mine:{unsupported}"] == (
        "UNSUPPORTED: not supported by this trainer: layout samples (supported: batched, accumulated)"
    )
    assert f"mine:{cuda}" in said
    result.stdout.fnmatch_lines(["SKIPPED * UNAVAILABLE: *pip install a_framework_nobody_has"])


def test_a_trainer_that_cannot_be_run(pytester, write):
    result = pytester.runpytest_inprocess(*SUITE, "--trainer", "nosuch.py", "--trainer", Path(write()).resolve())
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["nosuch.py: no such file*"])
    assert "Traceback" not in result.stdout.str()


def test_a_time_limit_that_is_none(pytester):
    result = pytester.runpytest_inprocess(*SUITE, "--trainer", "batched", "--time-limit", "0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*argument --time-limit: '0' is not a time limit; write seconds*"])


def test_cuda_is_unavailable_with_a_reason_or_runs(conformance, write, cases):
    """On any machine: it is never omitted, and never passed without running."""
    conformance("run", write(name="mine.py"), "--case", f"cuda-{PASSES}")
    result = cases()["mine", f"cuda-{PASSES}"]
    if result["verdict"] == "UNAVAILABLE":
        assert result["headline"].startswith("no CUDA device: ")
        assert result["device"] == "cuda"
    else:
        assert result["verdict"] == "PASS (exact)"
        assert result["ranks"]


def test_what_costs_the_user_and_is_not_declared_is_a_warning(pytester):
    """Once for all cases, with any warning filters; no filter makes it an error."""
    target = Path("mine.py")
    target.write_text(file_of("short_window_dropped").read_text().replace('last_window="drop",', ""))
    selected = [f"--case=single-acc2-{precision}-short-window" for precision in ("fp32", "fp64")]
    result = pytester.runpytest_inprocess(*SUITE, "-W", "error", "--trainer", target, *selected)
    result.assert_outcomes(passed=2, warnings=2)
    told = "mine drops a short last window. Its samples train nothing. If this is intended, add"
    assert result.stdout.str().count(told) == 1
