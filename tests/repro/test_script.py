"""The text of a script: it contains the parts of the case that its trainer uses, and no code of this package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
import torch

from conformance.adapter.loading import file_of
from conformance.adapter.task import Task
from conformance.cases.case import Case
from conformance.repro.case_data import cut, literal
from conformance.repro.script import function_in, script
from conformance.repro.showing import CannotShow, Ending, Numbers
from conformance.repro.sources import CannotCopy, Source

MINE = """
from conformance import Task, trainer
from torch.utils.data import DataLoader

RATE = 0.1
UNUSED = 1

def run(model):
    return model

@trainer()
def fit(task: Task) -> None:
    model = run(task.model())
    for batch in DataLoader(task.dataset(), task.micro_batch_size, sampler=task.sampler()):
        RATE * task.loss(model(batch.inputs), batch)
"""


def written(case, text=None, windows=1, package="", shows=None):
    size = case.problem.workload.model.size
    source = Source("mine.py", text) if text else Source.of(file_of("ddp" if case.world_size > 1 else "accumulated"))
    shows = shows or Numbers(windows, windows - 1, "weights", ((0.0, 0.0),) * size, ((0, 0, 1.0),))
    return script(case, shows, source, function_in(source, None), package)


def namespace(text):
    """The definitions of a script, which is not run."""
    found: dict = {"__name__": "script"}
    exec(compile(text, "script", "exec"), found)
    return found


@pytest.mark.parametrize(
    "workload", ["momentum", "weighted", "clip-norm", "adamw", "adamw-groups", "many-tensors", "large-tensors"]
)
@pytest.mark.parametrize("precision", ["fp64", "fp16"])
def test_a_script_has_the_data_and_settings_of_the_case(workload, precision):
    case = Case("single", 1, 2, precision, workload)
    text = written(case, windows=2)
    assert "conformance" not in text
    mine = namespace(text)
    task, right = mine["Task"](0), Task(cut(case.spec(), 2), 0)
    starts = zip(task.model().parameters(), right.model().parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in starts)
    for window, expected in zip(task.windows(), right.windows(), strict=True):
        assert [[part.tolist() for part in batch] for batch in window] == [
            [part.tolist() for part in batch] for batch in expected
        ]
    optimizer, other = task.optimizer(task.model().parameters()), right.optimizer(right.model().parameters())
    schedule, other_schedule = task.scheduler(optimizer), right.scheduler(other)
    settings = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    assert settings == [{**group, "params": len(group["params"])} for group in other.param_groups]
    optimizer.step(), other.step()
    schedule.step(), other_schedule.step()
    assert schedule.get_last_lr() == other_schedule.get_last_lr()
    assert task.grad_scaler().state_dict() == right.grad_scaler().state_dict()


def test_a_script_has_only_what_its_trainer_uses():
    text = written(Case("single", 1, 2, "fp32", "momentum"))
    assert "def windows" in text
    for unused in ("epochs", "dataloader", "token_labels", "report", "sampler", "collate", "in_processes"):
        assert unused not in text
    assert "if __name__" in text
    assert "in_processes" not in text
    assert "get_context" in written(Case("ddp", 2, 1, "fp32", "momentum"))


def test_ranks_meet_on_loopback_alone():
    """`horovod.run` listens on all interfaces, even if others are named."""
    under_horovod = written(Case("horovod", 2, 1, "fp32", "momentum"))
    assert "horovod.run(" not in under_horovod
    assert 'RendezvousHTTPServer(("127.0.0.1", 0)' in under_horovod and '"GLOO_IFACE": "lo"' in under_horovod
    assert 'os.environ["GLOO_SOCKET_IFNAME"] = "lo"' in written(Case("ddp", 2, 1, "fp32", "momentum"))


def test_numbers_in_a_row_are_a_range():
    assert literal([3, 4, 5, 6, 7]) == "[*range(3, 8)]"
    assert literal([3, 4, 5, 6]) == "[3, 4, 5, 6]"
    assert literal([0.0, 1.0, 2.0, 3.0, 4.0]) == "[0.0, 1.0, 2.0, 3.0, 4.0]"
    assert literal([True, 1, 2, 3, 4]) == "[True, 1, 2, 3, 4]"


def test_the_trainer_comes_before_the_data():
    text = written(Case("ddp", 2, 2, "fp32", "momentum"))
    assert text.index("# The trainer, as it is in ddp.py.") < text.index("def train(") < text.index("SAMPLES = [")


def test_names_of_the_trainer_come_first_and_what_it_does_not_need_is_left_out():
    text = written(Case("single", 1, 1, "fp32", "momentum"), MINE)
    assert "RATE = 0.1" in text
    assert "UNUSED" not in text
    assert "def run(model):" in text
    assert "def run_(rank: int, **life: Any)" in text
    assert "    fit(task)" in text
    ast.parse(text)


def test_a_loop_over_the_data_set_has_whole_epochs():
    case = Case("ddp", 2, 2, "fp32", "many-tensors")
    spec = case.spec()
    text = written(case, MINE, windows=1)
    mine = namespace(text)
    assert len(mine["SAMPLES"][0]) == len(spec["samples"]["y"])
    sampler, right = mine["Task"](1).sampler(1), Task(spec, 1).sampler(1)
    assert list(sampler) == list(right)


def test_a_script_counts_epochs_as_the_task_does(monkeypatch):
    case = Case("single", 1, 1, "fp32", "many-tensors", resumed_at=3)
    text = MINE.replace("RATE *", "task.epochs_until_stop() * task.epoch_count *")
    text = text.replace("    model =", "    task.leave_torchrun()\n    model =")
    mine = namespace(written(case, text, windows=5))
    monkeypatch.setenv("LOCAL_RANK", "0")
    task, right = mine["Task"](0, **mine["STOP"]), Task({**case.spec(), "life": mine["STOP"]}, 0)
    task.leave_torchrun()
    assert "LOCAL_RANK" not in os.environ
    assert task.epochs_until_stop() == right.epochs_until_stop() == 1
    assert task.epoch_count == right.epoch_count


def test_a_case_is_cut_inside_an_epoch_and_after_one():
    spec = Case("ddp", 2, 2, "fp32", "many-tensors").spec()
    length = len(spec["orders"][0][0]) // 2
    whole, more = cut(spec, length), cut(spec, length + 1)
    assert len(whole["epochs"]) == 1
    assert whole["steps"] == length
    assert len(more["epochs"]) == 2
    assert [len(share) for share in more["orders"][more["epochs"][1]]] == [2, 2]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "from conformance.cli import main as task_main",
            "uses main of conformance.cli, which is not available in a script",
        ),
        ("from conformance import enter as task_main", "uses enter of conformance, which is not available in a script"),
        ("from .mine import task_main", "is not in a package: name the trainer as package.module:function"),
    ],
)
def test_what_a_script_cannot_have_is_said(line, why):
    text = MINE.replace("RATE = 0.1", line).replace("RATE *", "task_main *")
    with pytest.raises(CannotCopy, match=why):
        written(Case("single", 1, 1, "fp32", "momentum"), text)


def test_relative_imports_of_a_package_become_absolute():
    text = MINE.replace("RATE = 0.1", "from .mine import rate").replace("RATE *", "rate *")
    assert "from package.mine import rate" in written(Case("single", 1, 1, "fp32", "momentum"), text, package="package")


def test_a_trainer_that_is_not_decorated_where_it_is_defined():
    with pytest.raises(CannotCopy, match="no function that is decorated"):
        function_in(Source("mine.py", "def train(task): pass\n"), None)
    with pytest.raises(CannotCopy, match="no function `other`"):
        function_in(Source("mine.py", MINE), "other")


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case("ray", 2, 1, "fp32", "momentum"), "cannot start the workers of ray"),
        (Case("ddp", 2, 1, "fp32", "momentum", "cuda"), "a script runs on the CPU"),
        (
            Case("ddp", 2, 2, "fp32", "momentum", resumed_at=3, resumed="killed-between-files"),
            "does not kill training while it saves",
        ),
        (
            Case("ddp", 2, 2, "fp32", "momentum", resumed_at=4, resumed="on-3-ranks"),
            "does not resume on another number of ranks",
        ),
    ],
)
def test_cases_that_no_script_can_show(case, why):
    with pytest.raises(CannotShow, match=why):
        written(case)


def test_a_case_is_resumed_only_if_it_goes_wrong_after_that():
    case = Case("single", 1, 2, "fp32", "momentum", resumed_at=3)
    assert "def resumed" not in written(case, windows=3)
    assert '"stop_after": 3' in written(case, windows=4)


def test_training_that_does_not_end_runs_in_processes_with_a_limit():
    text = written(Case("single", 1, 1, "fp32", "momentum"), MINE, shows=Ending(3))
    assert "faulthandler.dump_traceback_later(LIMIT, exit=True)" in text
    assert text.endswith("    end()\n")


@pytest.mark.parametrize(
    ("shows", "case", "has"),
    [
        (
            Numbers(8, 7, "weights", ((0.0, 0.0),) * 4, (), (("last_window=drop", ((1.0, 0.0),) * 4),)),
            Case("ddp", 2, 2, "fp32", "momentum"),
            "last_window=drop",
        ),
    ],
)
def test_what_is_shown_otherwise_than_by_numbers(shows, case, has):
    """All names in such a script are defined: ruff finds no other."""
    text = written(case, shows=shows)
    assert has in text
    assert "conformance" not in text
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F811", "--quiet", "-"]
    ended = subprocess.run(checked, input=text, text=True, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (0, "")
