"""`conformance smoke`: one case per backend and precision, in this process, without a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.adapter.declaration import Declaration
from conformance.cases.matrix import plan
from conformance.cli.smoke import chosen
from conformance.suite.items import Item

#: Steps with its own settings instead of the case's.
OTHER_OPTIMIZER = """
import torch
from conformance import Task, trainer

@trainer(precisions=["fp32"], layouts=["batched"])
def train(task: Task) -> None:
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for window in task.windows():
        for batch in window:
            loss = task.loss(model(batch.inputs), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""


#: What a trainer declares, and the cases that show it.
DECLARED = [
    ({}, []),
    ({"losses": ("mean", "weighted")}, ["single-batched-fp32-weighted"]),
    ({"schedules": ("step", "epoch")}, ["single-batched-fp32-epoch-schedule"]),
    ({"resume": True}, ["single-batched-fp32-momentum-resumed-at-4"]),
    ({"own_order": True}, ["single-batched-fp32-own-order"]),
    ({"averages": ("ema",)}, ["single-batched-fp32-ema"]),
    ({"sparse": True, "clips": ()}, ["single-batched-fp32-sparse"]),
]


@pytest.mark.parametrize(("declares", "more"), DECLARED)
def test_the_smallest_case_of_each_backend_precision_and_feature(declares, more):
    declaration = Declaration(backends=("single", "ddp"), precisions=("fp32", "fp16"), **declares)
    items = [
        Item("mine.py", "mine", planned.case)
        for backend in declaration.backends
        for planned in plan(declaration, backend)
        if planned.unsupported is None
    ]
    plain, rest = (found := [item.case.id for item in chosen(items)])[:4], found[4:]
    assert plain == [
        "single-batched-fp32-momentum",
        "single-batched-fp16-momentum",
        "ddp-w2-fp32-momentum",
        "ddp-w2-fp16-momentum",
    ]
    clip = [] if declares.get("clips") == () else ["single-acc2-fp32-clip-value"]
    assert {*rest} == {"single-acc2-fp32-short-epochs", *clip, *more}


def test_an_adapter_that_works(conformance, folder):
    ended = conformance("smoke", "batched")
    assert (ended.code, ended.err) == (0, "")
    tried = [line.split()[2] for line in ended.out.splitlines() if line.startswith("✓")]
    assert tried[:4] == [f"single-batched-{precision}-momentum" for precision in ("fp64", "fp32", "bf16", "fp16")]
    assert f"{len(tried)} cases passed, which is no proof yet: conformance run has " in ended.out
    assert list(Path(folder).iterdir()) == []


def test_an_adapter_that_does_not(conformance, folder):
    Path(folder, "mine.py").write_text(OTHER_OPTIMIZER)
    ended = conformance("smoke", "mine.py")
    assert ended.code == 1
    assert "\n◇ SETUP  " in ended.out
    assert "  rerun: conformance run mine.py --case single-batched-fp32-momentum\n" in ended.out
    assert ended.out.startswith("◇ mine  single-batched-fp32-momentum")
    assert "1 of 1 case failed." in ended.out


def test_a_crash_is_one_problem_in_all_precisions(conformance, folder):
    crashes = OTHER_OPTIMIZER.replace('["fp32"]', '["fp32", "fp64", "bf16"]')
    Path(folder, "mine.py").write_text(
        crashes.replace("    model = task.model()", "    raise KeyError(task.precision)")
    )
    ended = conformance("smoke", "mine.py")
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:3]] == ["✗"] * 3
    assert [line for line in lines if "CRASH" in line] == [lines[4]]
    assert lines[-1].startswith("3 of 3 cases failed.")


#: A correct loop.
RIGHT = """
from itertools import islice
from conformance import Task, trainer

@trainer(resume={resume})
def train(task: Task) -> None:
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    scheduler = task.scheduler(optimizer)
    for window in task.windows():
        for batch in window:
            (task.loss(model(batch.inputs), batch) / len(window)).backward()
        task.clip_(model.parameters())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("{resume}", "False"),
        ("        task.clip_(model.parameters())\n", ""),
        ("in task.windows()", "in (window for _ in range(task.epoch_count) for window in task.windows())"),
        (" / len(window)", " / task.accumulation"),
        ("{resume}", "True"),
    ],
)
def test_what_a_plain_case_does_not_show(conformance, folder, right, wrong):
    Path(folder, "mine.py").write_text(RIGHT.replace(right, wrong).replace("{resume}", "False"))
    ended = conformance("smoke", "mine.py", "-n", "2", "--output", "out")
    assert (ended.code, ended.err) == (int(wrong != "False"), ""), ended.out
    assert sorted(file.name for file in Path(folder, "out").iterdir()) == [
        "conformance-report.html", "conformance-results.jsonl"
    ]  # fmt: skip


def test_an_adapter_that_declines_holds_in_nothing(conformance, folder):
    declines = OTHER_OPTIMIZER.replace("    model = task.model()", "    raise Unsupported('not today')")
    Path(folder, "mine.py").write_text(declines.replace("import Task", "import Task, Unsupported"))
    ended = conformance("smoke", "mine.py")
    assert ended.code == 1
    assert ended.err.startswith("conformance: no case of these trainers can run here")


def test_a_missing_dependency_is_one_line(conformance, folder):
    needs = OTHER_OPTIMIZER.replace("import torch", "import no_such_framework", 1)
    Path(folder, "mine.py").write_text(needs.replace("precisions=", 'requires=["no_such_framework"], precisions='))
    ended = conformance("smoke", "mine.py")
    assert (ended.code, ended.out) == (1, "")
    why = "no_such_framework is not installed; install it with: pip install no_such_framework"
    assert ended.line == f"conformance: no case of these trainers can run here: {why}"


def test_bad_input(conformance):
    ended = conformance("smoke", "none.py")
    assert ended.code == 2
    assert ended.line.startswith("conformance: none.py: no such file")


def test_what_init_writes_works(conformance, folder):
    """From scratch, and for scripts in several styles."""
    scripts = Path(__file__).parents[1] / "init" / "scripts"
    adapters = ["my_trainer.py"]
    assert conformance("init").code == 0
    for style in ("plain", "ddp_class", "amp_flat", "trainer_class"):
        adapters.append(f"{style}_adapter.py")
        assert conformance("init", str(scripts / f"{style}.py"), "--output", adapters[-1]).code == 0
    ended = conformance("smoke", *adapters)
    assert (ended.code, ended.err) == (0, ""), ended.out
    assert "24 cases passed, which is no proof yet" in ended.out
