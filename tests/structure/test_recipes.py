"""CONTRIBUTING's recipes work: the diff of each makes the new thing, in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
#: Code that must run in a copy with the diff of a recipe.
SHOWN = {
    "trainer": """
        from conformance.adapter.loading import stated

        assert stated("summed").losses == ("mean", "weighted")
    """,
    "framework": """
        from conformance.adapter.loading import stated
        from pathlib import Path

        assert stated("lightning_manual").backends == ("single", "ddp")
        assert '"lightning_manual"' in Path("tests/frameworks/test_verdicts.py").read_text()
        assert "lightning-manual = " in Path("pyproject.toml").read_text()
        assert '"lightning-manual": ' in Path("noxfile.py").read_text()
    """,
    "backend": """
        from conformance.adapter.loading import stated
        from conformance.cases.matrix import plan

        planned = plan(stated("butterfly"), "butterfly")
        assert {one.case.world_size for one in planned if one.undeclared is None} == {2, 4}
    """,
    "workload": """
        from conformance.adapter.loading import stated
        from conformance.cases.matrix import plan
        from conformance.workloads.registry import made

        assert made("dampening", 24).optimizer.dampening == 1 / 2
        planned = plan(stated("ddp"), "ddp")
        assert "ddp-w2-acc2-fp32-dampening" in {one.case.id for one in planned if one.undeclared is None}
    """,
    "law": """
        from conformance.laws.law import laws
        from fixtures.specimens import named

        assert "clip/positive-threshold" in {law.id for law in laws()}
        assert named("mutants")["clipped_to_nothing"].laws == {"clip/positive-threshold"}
    """,
    "observer": """
        from conformance.trace.events import SetEpoch
        from conformance.trace.recorder import Recorder
        from torch.utils.data import DistributedSampler

        events = []
        with Recorder(events.append):
            DistributedSampler([1.0], num_replicas=1, rank=0).set_epoch(3)
        assert [(one["event"], one["epoch"]) for one in events] == [(SetEpoch.event, 3)]
    """,
    "hypothesis": """
        from types import SimpleNamespace

        from conformance.watch.judging import hypotheses
        from conformance.watch.judging.findings import Findings, said
        from conformance.watch.judging.properties import Property
        from conformance.watch.report.sentences import sentence
        from conformance.watch.verdict import outcome

        case = SimpleNamespace(window=SimpleNamespace(rank=1), by_rank=lambda number: [(0, "first"), (1, "second")])
        [(choose, [row])] = [one for one in hypotheses.OF_OTHERS if one[0] is hypotheses._of_rank_0]
        assert row.when(SimpleNamespace(case=case)) and choose(case)(0) == ["first"]
        findings = Findings()
        findings.leave_open(said(row.what.code))
        [shown] = outcome(findings).rows
        assert (shown.of, shown.state) == (Property.RANKS, "OPEN")
        assert sentence(shown.open[0].says) == "each rank uses the gradients of rank 0"
    """,
    "property": """
        from conformance.watch.judging.findings import Findings, said
        from conformance.watch.judging.properties import Property
        from conformance.watch.verdict import outcome

        findings = Findings()
        findings.leave_open(said("agreement.buffers"))
        [row] = outcome(findings).rows
        assert (row.of, row.value, row.state) == (Property.BUFFERS, "equal", "OPEN")
        assert outcome(findings, {Property.BUFFERS: "equal"}).verdict == "DOES NOT CONFORM"
    """,
    "known bug": """
        from conformance.oracle.faults import CATALOGUE

        [added] = [one for one in CATALOGUE if one.name == "divided-by-one-rank-more"]
        assert added.text == "divides by the number of ranks plus one"
    """,
    "mutant": """
        from fixtures.specimens import named
        from fixtures.written import source

        mutant = named("mutants")["schedule_before_step"]
        assert mutant.laws == {"acc/schedule-per-step"}
        assert source(mutant).index("scheduler.step()") < source(mutant).index("scaler.step(optimizer)")
    """,
}


def recipes() -> dict[str, str]:
    """The diff of each section "Add a ..."."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = {}
    for title, body in re.findall(r"^## Add an? (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        [found[title]] = re.findall(r"^```diff\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
    return found


RECIPES = recipes()


def test_every_part_that_grows_has_a_recipe():
    assert set(RECIPES) == set(SHOWN)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name, tmp_path):
    for entry in ("conformance", "fixtures"):
        shutil.copytree(ROOT / entry, tmp_path / entry)
    for changed in re.findall(r"^--- a/(\S+)", RECIPES[name], re.MULTILINE):
        (tmp_path / changed).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / changed, tmp_path / changed)
    # If CI builds in a folder of the clone, git would use the clone as the diff's repository.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTHONPATH": str(tmp_path)}
    subprocess.run(["git", "apply", "-"], input=RECIPES[name], cwd=tmp_path, env=environment, text=True, check=True)
    command = [sys.executable, "-c", dedent(SHOWN[name])]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr


def test_each_place_exists():
    """The table "Where is what?"."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.split("## Where is what?")[1].split("\n## ")[0]
    places = [place for place in re.findall(r"`(\S+)`", table) if "/" in place]
    assert len(places) > 20
    assert [place for place in places if not (ROOT / "conformance" / place).exists()] == ["conformance/"]
