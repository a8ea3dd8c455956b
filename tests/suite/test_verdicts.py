"""Trainers that fail in every way: each gets its verdict and a headline that says where, and the run continues."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from conformance.results import read_results

CASE = "single-batched-fp32-momentum"
DDP = "ddp-w2-acc2-fp32-momentum"

#: name: (before, inside, case, verdict, start of the headline)
WRONG = {
    "raises": (
        "raise ValueError('not\\ntoday')",
        "",
        CASE,
        "CRASH",
        "rank 0 raised ValueError: not today (raises.py:10)",
    ),
    "exits": (
        "if task.rank == 1: print('no config', flush=True); os._exit(3)",
        *("", DDP, "CRASH", "rank 1 exited 3 before it finished; it last printed: no config"),
    ),
    "returns": ("return", "", CASE, "FAIL (numerics)", "rank 0 never stepped the task's model"),
    "nan": (
        "",
        "with torch.no_grad(): model.weight.fill_(float('nan'))",
        *(CASE, "FAIL (numerics)", "step 0, rank 0: the gradient of weight[0] is nan, expected "),
    ),
    "shape": (
        "m = torch.nn.Linear(5, 2); m(torch.ones(5)).sum().backward(); torch.optim.SGD(m.parameters()).step(); return",
        *("", CASE, "SETUP"),
        "You trained another model than the task's",
    ),
    "alone": (
        "task.world_size = 1",
        *("", DDP, "DIVERGED", "the trainer has world size 1 instead of 2"),
    ),
    "ascends": (
        "",
        "for group in optimizer.param_groups: group['maximize'] = True",
        *(CASE, "FAIL (numerics)", "step 0, rank 0: the gradient of weight["),
    ),
}


def test_wrong_trainers(conformance, write, cases):
    """Trainers with the same case in one run, which continues after each."""
    for asked in (CASE, DDP):
        names = [name for name, (_, _, case, _, _) in WRONG.items() if case == asked]
        targets = [write(*WRONG[name][:2], name=f"{name}.py") for name in names]
        ended = conformance("run", *targets, "--case", asked)
        assert (ended.code, ended.err) == (1, "")
        assert "Traceback" not in ended.out
        assert f"0 of {len(names)} cases passed, {len(names)} failed" in ended.out
        for name in names:
            *_, verdict, headline = WRONG[name]
            result = cases()[name, asked]
            assert result["verdict"] == verdict, result["headline"]
            assert result["headline"].startswith(headline)
            assert verdict in ended.out


def test_declined(conformance, write, cases):
    """By one rank for all, within the first window, and after a step, which is too late."""
    write(
        """
        from conformance import Unsupported
        if task.rank == 1 and task.optimizer_settings.arguments["momentum"]:
            raise Unsupported("no momentum")
        """,
        """
        if task.clip:
            raise Unsupported("no clip")
        if task.accumulation == 1 and scheduler.last_epoch:
            raise Unsupported("late")
        """,
        name="declines.py",
    )
    names = [DDP, "single-acc2-fp32-clip-norm", CASE]
    ended = conformance("run", "declines.py", *(part for name in names for part in ("--case", name)))
    by_one, in_time, late = (cases()["declines", name] for name in names)
    assert (by_one["verdict"], by_one["headline"]) == ("UNSUPPORTED", "no momentum")
    assert (in_time["verdict"], in_time["headline"]) == ("UNSUPPORTED", "no clip")
    assert (late["verdict"], ended.code) == ("CRASH", 1)
    assert late["headline"].startswith("rank 0 raised Unsupported: late (declines.py:")


def test_hang(conformance, write, cases):
    write("", "while task.rank == 1 and task.world_size > 1: time.sleep(60)", name="hangs.py")
    ended = conformance("run", "hangs.py", "--case", DDP, "--case", CASE, "--time-limit", "3")
    hung, passed = cases()["hangs", DDP], cases()["hangs", CASE]
    assert (hung["verdict"], passed["verdict"], ended.code) == ("HANG", "PASS (exact)", 1)
    assert "rank 1 did not finish: killed at the time limit of 3 s, at hangs.py:" in hung["headline"]
    assert "time.sleep" in Path("hangs.py").read_text().splitlines()[int(hung["headline"].rpartition(":")[2]) - 1]
    assert all(rank["stack"] for rank in hung["ranks"])


def test_what_is_killed_by_a_signal(conformance, write, cases):
    write("os.kill(os.getpid(), 11)", name="dies.py")
    conformance("run", "dies.py", "--case", CASE)
    died = cases()["dies", CASE]
    assert (died["verdict"], died["headline"]) == ("CRASH", "rank 0 was killed by SIGSEGV, at dies.py:10")


def test_the_command_that_is_printed_runs_that_one_case_again(conformance, write, cases):
    write("", "model.weight.data += 1", name="a folder/my trainer.py")
    patterns = ("single-acc2-fp32-clip", "single-acc2-fp16-clip", CASE)
    conformance("run", "a folder/my trainer.py", *(word for pattern in patterns for word in ("--case", pattern)))
    assert len(cases()) > 3
    printed = cases()["my trainer", CASE]["command"]
    assert printed == f"conformance run 'a folder/my trainer.py' --case {CASE}"
    ended = conformance(*shlex.split(printed)[1:], "--output", "again")
    assert (ended.code, [*cases("again")]) == (1, [("my trainer", CASE)])
    assert cases("again")["my trainer", CASE]["headline"] == cases()["my trainer", CASE]["headline"]
    assert f"rerun: {printed}" in ended.out


@pytest.mark.parametrize("processes", ["1", "2"])
def test_names_of_files(conformance, write, cases, processes):
    """A colon, which also separates a function from its file, and bytes that are not UTF-8."""
    names = ("with:colon.py", os.fsdecode(b"no-utf8-\xff\xc3.py"))
    for name in names:
        write(name=name)
    ended = conformance("run", names[0], f"{names[1]}:train", "--case", CASE, "-n", processes)
    assert (ended.code, ended.err) == (0, "")
    assert sorted(trainer for trainer, _ in cases()) == ["no-utf8-\udcff\udcc3", "with:colon"]
    assert "no-utf8-\\udcff\\udcc3" in ended.out
    command = cases()["no-utf8-\udcff\udcc3", CASE]["command"]
    assert command == rf"conformance run $'no-utf8-\xff\xc3.py:train' --case {CASE}"
    [record] = [case for case in read_results("conformance-results.jsonl").cases if case.trainer != "with:colon"]
    assert record.repro_command == rf"conformance repro {CASE} $'no-utf8-\xff\xc3.py:train'"


def test_trainers_of_one_name_are_told_apart(conformance, write, cases):
    write(name="one/train.py")
    write("return", name="two/train.py")
    ended = conformance("run", "one/train.py", "two/train.py", "one/train.py", "--case", CASE)
    verdicts = {trainer: case["verdict"] for (trainer, _), case in cases().items()}
    assert (verdicts, ended.code) == ({"one/train.py": "PASS (exact)", "two/train.py": "FAIL (numerics)"}, 1)


def test_what_is_not_declared_is_listed_and_never_passed(conformance, write, cases):
    target = write(name="mine.py")
    ended = conformance("run", target, "--backend", "horovod")
    [(_, result)] = cases().items()
    assert (result["verdict"], ended.code) == ("UNSUPPORTED", 1)
    assert result["headline"] == "not supported by this trainer: backend horovod (supported: single, ddp)"
    assert "UNDECIDED: mine.py: No case ran." in ended.out


def test_conforming(conformance, write, cases):
    """In the working folder, which is also the trainers'; and rendered again from the file."""
    target = write(f"assert os.getcwd() == {os.getcwd()!r}, os.getcwd()", name="mine.py")
    ended = conformance("run", target, "--case", CASE, "--output", "new/folder")
    assert (ended.code, ended.err) == (0, "")
    assert "CONFORMS: mine.py: The only case passed." in ended.out
    assert cases("new/folder")["mine", CASE]["verdict"] == "PASS (exact)"
    results = read_results("new/folder/conformance-results.jsonl")
    assert results.conforming
    assert results.header.command == f"conformance run mine.py --case {CASE} --output new/folder -n 1"
    assert set(results.header.machine) >= {"python", "platform", "cpus", "torch"}
    assert (results.header.planned, results.header.seed, results.header.notes) == (1, 42, ())
    page = Path("new/folder/conformance-report.html").read_text()
    assert "<!doctype html>" in page.lower()
    Path("new/folder/conformance-report.html").unlink()
    again = conformance("report", "new/folder/conformance-results.jsonl")
    assert (again.code, again.out, again.err) == (0, ended.out, "")
    assert Path("new/folder/conformance-report.html").read_text() == page
