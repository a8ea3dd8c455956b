"""The report of a watch has the parts of a run's: cards, timelines, formats for CI; all text is escaped."""

import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from rich.console import Console

from conformance.report.ci import markdown, sarif, workflow_commands
from conformance.report.places import Place
from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.history import MOST_HISTORIES, Curve
from conformance.watch.judging.watch_judge import judged
from conformance.watch.judging.windows import Scene
from conformance.watch.report.digest import digest, lines
from conformance.watch.report.junit import junit
from conformance.watch.report.sentences import sentence
from conformance.watch.report.watch_cards import cards
from conformance.watch.report.watch_page import page
from conformance.watch.report.watch_terminal import render
from conformance.watch.verdict import outcome

from .scripts import Script, accused, stepped, total

COMMAND = ["python", "<train>.py"]
SCHEMA = json.loads((Path(__file__).parents[1] / "report" / "sarif-schema-2.1.0.json").read_text())


@pytest.fixture
def findings():
    return accused()


def cards_of(findings):
    return cards(outcome(findings).causes, findings, "python train.py")


@pytest.mark.parametrize(("factors", "ending"), [((0.5, 0.5), "correct one"), ((0.5, 0.25), "correct one in step 3")])
def test_an_effect_that_varies_is_that_of_the_first_step(factors, ending):
    findings, site = Findings(), ["a.py", 1, "f"]
    for step, factor in enumerate(factors, 3):
        effect = said("factor", factor=factor)
        findings.add(Finding("watch/averaged-once", effect, step, (0,), site, effect, 0))
    [card] = cards_of(findings)
    assert card.effect.endswith(ending)


@pytest.mark.parametrize(
    ("line", "said_"),
    [
        ("dist.all_reduce(p.grad)", "below line 3"),
        # It is still on its way.
        ("dist.all_reduce(p.grad, async_op=True)", "above line 7"),
    ],
)
def test_a_sum_over_the_ranks_is_divided_where_it_is_made(line, said_):
    findings, at = Findings(), ["train.py", 7, "main"]
    findings.shared_at[0] = ["train.py", 3, "main"]
    findings.sources |= {("train.py", 3): ("train.py", line), ("train.py", 7): ("train.py", "optimizer.step()")}
    findings.steps_at[0] = at
    findings.add(Finding("watch/means-averaged", said("ranks.means-added"), 0, (0, 1), at, None, 0))
    [card] = cards_of(findings)
    assert card.edit.said("train.py") == f"add the division by the number of ranks {said_}"


def test_a_card_has_line_effect_fix_and_where_it_shows(findings):
    [averaged] = cards_of(findings)
    assert averaged.rule == "watch/averaged"
    assert averaged.own_line == ("/home/me/train.py", 7)
    # All calls of this script are in one line.
    assert (averaged.edit.said("train.py"), averaged.edit.code) == (
        "add the average over the ranks above line 7",
        "+   | # the average over the ranks\n  7 | optimizer.step()  # <b>",
    )
    assert averaged.headline.endswith("(before train.py:7)") and averaged.places == ()
    assert averaged.effect == sentence(said("ranks-in-update", used=1, ranks=2, rank=0))
    assert averaged.advice
    assert averaged.seen_in == "in 2 of 3 steps, first at step 1, on both ranks"


@pytest.mark.parametrize(
    ("steps", "count", "extent"),
    [
        ([3], 9, "in 9 of 12 steps, first at step 3"),
        # Two calls in one step.
        ([3, 3, 5], 1, "in 2 of 12 steps, first at step 3"),
        ([3], 1, "first at step 3 of 12"),
        ([None], 14, "in the whole run"),
    ],
)
def test_a_count_has_a_whole_to_compare_with(steps, count, extent):
    findings = Findings(stepped=Counter({0: 12}))
    for step in steps:
        findings.add(Finding("watch/averaged", said("own-gradients"), step, (0,), optimizer=0), count=count)
    [card] = cards([*findings.causes.values()], findings, "")
    assert card.extent == extent
    assert card.seen_in == extent
    findings.ranks = 2
    assert cards([*findings.causes.values()], findings, "")[0].seen_in == f"{extent}, on rank 0"


@pytest.mark.parametrize(
    ("optimizers", "does"), [({0: ("train.py", 3)}, "indent line 4 under the `if` in line 2"), ({}, "change line 4")]
)
def test_an_edit_without_a_scene_names_the_step_of_the_only_optimizer(optimizers, does):
    source = "loss.backward()\nif is_last:\n    optimizer.step()\noptimizer.zero_grad()"
    findings = Findings(sources={("train.py", line): ("train.py", source) for line in (3, 4)}, steps_at=optimizers)
    findings.add(Finding("watch/used", said("used.cleared-before"), 0, (0,), ("train.py", 4)))
    [card] = cards([*findings.causes.values()], findings, "")
    assert card.edit.said("train.py") == does


@pytest.mark.parametrize(
    ("optimizer", "line", "does"),
    [
        (0, 5, "move line 5 above line 4"),
        (1, 5, "add `scaler.unscale_(optimizer)` above line 4"),  # of another optimizer
        (0, 6, "add `scaler.unscale_(optimizer)` above line 4"),  # by `scaler.step`
    ],
)
def test_an_edit_moves_only_a_call_of_the_optimizer(optimizer, line, does):
    findings = Findings()
    found = Finding("watch/unscale-before-clip", said("clipping.scaled-norm", limit=1.0, scale=8.0), 0, (0,), ["a", 4])
    found.optimizer = 0
    findings.add(found)
    calls = [records.Unscaled(optimizer, 8.0, ["a", line]), stepped([0])]
    calls[1].site = ["a", 6]
    findings.scenes[found.key] = Scene(0, 0, {0: calls}, 0)
    [card] = cards([*findings.causes.values()], findings, "")
    assert card.edit.said("a") == does


@pytest.mark.parametrize(
    ("types", "made", "said_"),
    [
        ({0: "SGD"}, {0: 3}, "in 2 of 4 steps, first"),
        ({0: "SGD", 1: "AdamW"}, {0: 3, 1: 4}, "in 2 of 4 steps of SGD (x.py:3), first"),
        ({0: "SGD", 1: "SGD"}, {0: 3, 1: 4}, "in 2 of 4 steps of SGD (x.py:3), first"),
        ({0: "SGD", 1: "SGD"}, {0: 3, 1: 3}, "in 2 of 4 steps of the first SGD (x.py:3), first"),
        ({0: "SGD", 1: "SGD"}, {}, "in 2 of 4 steps of the first SGD, first"),
    ],
)
def test_one_of_several_optimizers_is_named_by_its_class_and_line(types, made, said_):
    findings = Findings(types=types, made={number: ["x.py", line, "f"] for number, line in made.items()})
    for step in (1, 3):
        findings.add(Finding("watch/averaged", said("own-gradients"), step, (0,), optimizer=0))
    findings.stepped[0] = 4
    [card] = cards_of(findings)
    assert card.extent.startswith(said_)


def test_factors_of_micro_batches_are_observed_and_not_in_the_title():
    findings = Findings()
    says = said("micro-batches-own", places=[2, 3], table="rank 0: 1, 1; rank 1: 1, 0")
    findings.add(Finding("watch/averaged", says, 0, (0,)))
    [card] = cards_of(findings)
    assert card.title == "gradients of micro-batches 2, 3 were not averaged over the ranks"
    assert ("observed", "factors of micro-batches in the step: rank 0: 1, 1; rank 1: 1, 0") in card.facts


def test_the_number_of_steps_is_unknown_if_differences_show_only_at_first():
    findings = Findings(stepped=Counter({0: 12}))
    for step in (0, 1):
        findings.add(Finding("watch/averaged", said("own-gradients"), step, (0,), optimizer=0, is_bare=True))
    [card] = cards([*findings.causes.values()], findings, "")
    assert card.extent == "first at step 0 of 12"


@pytest.mark.parametrize(("times", "shown"), [(1.0, "1x"), (1.002, "1.002x"), (0.99997, "0.99997x"), (1.2345, "1.23x")])
def test_a_factor_is_not_rounded_to_1(times, shown):
    assert shown in sentence(said("steps-farther", times=times))


def test_the_first_wrong_window_is_beside_a_right_one(findings):
    [card] = cards_of(findings)
    assert (card.good.timeline.window, card.bad.timeline.window) == (0, 1)
    assert card.good.laws == {}
    shown = [(one.rank, one.event, one.marked) for one in card.bad.timeline.moments]
    # This script has all its calls in one line.
    of_rank = ["zero_grad", "backward", "backward", "step"]
    assert shown == [(rank, event, True) for rank in (0, 1) for event in of_rank]
    assert {*card.bad.laws.values()} == {"watch/averaged"}


def test_lines_are_named_from_the_folder_of_the_run(findings, monkeypatch, tmp_path):
    script = tmp_path / "scripts" / "train.py"
    monkeypatch.chdir(tmp_path)
    findings.sources["train.py", 7] = str(script), "load('https://me:s3cret@host/x')"
    [card] = cards_of(findings)
    assert (card.where, card.own_line) == ("scripts/train.py:7", ("scripts/train.py", 7))
    assert card.edit.place == Place("at", "scripts/train.py:7", "load('https://REDACTED@host/x')")
    assert {one.where for one in card.bad.timeline.moments} == {"scripts/train.py:7"}
    # Other files have the names of their imports.
    monkeypatch.chdir("/")
    findings.sources["train.py", 7] = "train.py", ""
    assert cards_of(findings)[0].where == "train.py:7"


def test_what_a_finding_is_about_is_marked_alone(findings):
    first = next(iter(findings.causes.values())).first
    first.passes = frozenset({(1, 4)})
    [card] = cards_of(findings)
    assert [(one.rank, one.micro_batch) for one in card.bad.timeline.moments if one.marked] == [(1, 1)]


def test_the_page_has_verdict_causes_timelines_and_curves(findings):
    text = page(findings, COMMAND)
    assert '<h1 class="t-bad">&lt;train&gt;.py does not conform</h1>' in text
    # A list of one problem would repeat its card.
    assert len(findings.causes) == 1 and 'class="why"' not in text
    assert "Correct: ranks in window 0" in text
    assert "First wrong: ranks in window 1" in text
    assert text.count('<table class="lanes">') == 2
    # The rate and the factor are constant, so they have no curves.
    assert text.count('class="fig"') == 2
    assert "optimizer.step()  # &lt;b&gt;" in text
    assert "<train>" not in text
    assert "<b>&quot;" not in text
    assert "default-src &#39;none&#39;" in text


def test_all_formats_say_the_same(findings):
    whole = digest(findings, COMMAND)
    text = markdown(whole)
    assert text.startswith("## DOES NOT CONFORM: 1 problem")
    assert text.count("### FAIL") == 1
    found = json.loads(sarif(whole))
    jsonschema.validate(found, SCHEMA)
    [run] = found["runs"]
    assert [one["ruleId"] for one in run["results"]] == ["watch/averaged"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 7}
    [suite] = ElementTree.fromstring(junit(findings, COMMAND))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    lines = [line.split(",title")[0] for line in workflow_commands(whole)]
    assert lines == ["::error file=/home/me/train.py,line=7"]


def test_the_terminal_prints_the_same_cards(findings):
    console = Console(width=100, record=True)
    render(findings, COMMAND, console)
    text = console.export_text()
    plain = "\n".join(lines(findings, COMMAND))
    for line in ("DOES NOT CONFORM: ", "watch/averaged", "7 | optimizer.step()", "effect: ", "fix: "):
        assert line in text
        assert line in plain
    # A correct script has a row for each, with its count.
    rows = [("ranks", "WRONG", "1 problem"), ("others", "PROVEN", "micro-batches, clearing, coverage")]
    for shown in (text, plain):
        assert re.findall(r"^  (\S+) +(PROVEN|WRONG|OPEN) +(.+)$", shown, re.MULTILINE) == rows


@pytest.mark.parametrize("width", [60, 100])
def test_a_line_is_named_whole_and_ends_without_blanks(findings, width, monkeypatch):
    path = f"/home/{'a' * 90}/train.py"
    monkeypatch.chdir("/home")
    findings.sources["train.py", 7] = path, "optimizer.step()"
    console = Console(width=width, record=True)
    render(findings, COMMAND, console)
    lines = console.export_text().splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(len(line) for line in lines if path[6:] not in line) <= width
    assert sum(f"{path.removeprefix('/home/')}:7" in line for line in lines) == 1


def test_an_open_fact_is_no_failure_of_a_law_and_has_a_way_out():
    script = Script()
    script.step([total(script.backward(), 0.37)] * 2)
    findings = script.findings()
    fact = sentence(findings.open["ranks.factor"].says)
    text = "\n".join(lines(findings, COMMAND))
    assert text.startswith("UNDECIDED: <train>.py: 0 of 1 step proven correct")
    assert f"  ranks         OPEN    {fact} (1 of 1 step); if intended: --expect ranks=weighted" in text
    assert fact in page(findings, COMMAND)
    [suite] = ElementTree.fromstring(junit(findings, COMMAND))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert fact in suite.find(".//failure").text


def test_a_right_script_leaves_no_failure():
    script = Script()
    script.step([total(script.backward(), 0.5)] * 2)
    findings = script.findings()
    [suite] = ElementTree.fromstring(junit(findings, COMMAND))
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert list(workflow_commands(digest(findings, COMMAND))) == []
    assert '<h1 class="t-good">&lt;train&gt;.py conforms</h1>' in page(findings, COMMAND)


def test_a_long_window_keeps_its_end():
    script = Script(ranks=1)
    computed = [script.backward(factors=[0.01])[0] for _ in range(100)]
    script.step([total(computed, 0.01)])
    findings = script.findings()
    [effect] = [cause.first.effect for cause in findings.causes.values()]
    assert (effect.code, effect.values["factor"]) == ("factor", pytest.approx(0.01))
    [scene] = findings.scenes.values()
    assert len(scene.of[0]) == 64
    assert isinstance(scene.of[0][-1], records.Stepped)
    assert scene.cut == 101 - 64


def test_a_curve_stays_small():
    curve = Curve()
    for step in range(100_000):
        curve.add(step, 1.0)
    assert len(curve.points) <= 512
    assert curve.points[0] == (0, 1.0)
    assert curve.points[-1][0] > 99_000


def test_processes_that_train_apart_have_curves_of_their_own():
    script = Script(ranks=1)
    for _ in range(3):
        script.step([total(script.backward())])
        script.clear()
    findings = judged(script.streams * 2)
    curves = [history.curves["local"].points for history in findings.histories]
    assert [[step for step, _ in points] for points in curves] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("optimizers", [MOST_HISTORIES - 1, MOST_HISTORIES, MOST_HISTORIES + 3])
def test_the_first_of_many_optimizers_have_curves(optimizers):
    script = Script(ranks=1, shapes=((3, 2),))
    for number in range(optimizers):
        script.numbers = [number + 1]
        script.each(records.Parameter(number + 1, [3, 2], "float32", 1, f"p{number}"))
        script.each(records.Optimizer(number + 1, "SGD", script.numbers))
        for _ in range(2):
            computed = script.backward()
            script.step([total(computed)])
            script.streams[0][-1].optimizer = number + 1
            script.clear()
    findings = script.findings()
    assert (findings.steps, len(findings.histories)) == (2 * optimizers, min(optimizers, MOST_HISTORIES))
    told = f"Only the first {MOST_HISTORIES} optimizers have curves." in page(findings, COMMAND)
    assert told == (optimizers >= MOST_HISTORIES)
