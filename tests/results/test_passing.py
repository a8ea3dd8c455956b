"""Each command that reads results refuses a PASS without all evidence of passing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.results import Results, ResultsError

from . import synthetic
from .regression import Case


def bounded() -> Case:
    return synthetic.passing("ddp", "ddp", 2, 2, "fp32", "adamw-noisy")


def exact() -> Case:
    return synthetic.passing("ddp", "ddp", 2, 2, "fp32", "line")


def in_step(name: str, change: Callable[[list[float | None]], object]) -> Callable[[Case], None]:
    """Changes the vector `name` of the third step."""

    def changed(case: Case) -> None:
        case["steps"][2][name] = change(case["steps"][2][name])

    return changed


def first(value: float | None) -> Callable[[list[float | None]], object]:
    return lambda vector: [value, *vector[1:]]


def more(amount: float) -> Callable[[list[float | None]], object]:
    return lambda vector: [(vector[0] or 0) + amount, *vector[1:]]


CONTRADICTIONS: dict[str, tuple[Callable[[], Case], Callable[[Case], object], str]] = {
    "no id": (exact, lambda case: case.update(id=""), "it has no id"),
    "no guards": (exact, lambda case: case.update(guards=[]), "it has no guards"),
    "no parameters": (exact, lambda case: case.update(parameters=[]), "it has no parameters"),
    "no steps": (exact, lambda case: case.update(steps=[]), "it has no steps"),
    "no certificate": (exact, lambda case: case.update(certificate=None), "it has no certificate"),
    "exact without proof": (
        exact, lambda case: case["certificate"].update(exact=False), "its certificate says not exact"
    ),
    "bounded and exact": (bounded, lambda case: case["certificate"].update(exact=True), "its certificate says exact"),
    "nan": (exact, in_step("observed", first(math.nan)), "step 2 has a number in observed that is not finite"),
    "infinite": (bounded, in_step("bound", first(math.inf)), "step 2 has a number in bound that is not finite"),
    "infinite gradient": (exact, in_step("gradient_observed", first(-math.inf)),
                          "step 2 has a number in gradient_observed that is not finite"),
    "a weight that was not seen": (exact, in_step("observed", first(None)), "the weights after step 2 are wrong"),
    "half a gradient": (exact, in_step("gradient_observed", first(None)), "the gradients in step 2 are wrong"),
    "ragged": (exact, in_step("observed", lambda vector: vector[1:]),
               "step 2 has 2 numbers in observed, but the case has 3 parameters"),
    "too long": (exact, in_step("ulp", lambda vector: [*vector, 0.0]),
                 "step 2 has 4 numbers in ulp, but the case has 3 parameters"),
    "empty": (exact, in_step("observed", lambda vector: []),
              "step 2 has 0 numbers in observed, but the case has 3 parameters"),
    "wrong weight": (exact, in_step("observed", more(2**-30)), "the weights after step 2 are wrong"),
    "wrong gradient": (exact, in_step("gradient_observed", more(2**-30)), "the gradients in step 2 are wrong"),
    "an error": (exact, in_step("error", more(2**-30)), "the weights after step 2 are wrong"),
    "out of bounds": (bounded, in_step("observed", more(1.0)), "the weights after step 2 are wrong"),
    "error out of bounds": (bounded, in_step("error", more(-1.0)), "the weights after step 2 are wrong"),
    "an error in its place": (bounded, in_step("error", more(2**-40)), "the weights after step 2 are wrong"),
    "no error": (bounded, in_step("error", first(0.0)), "the weights after step 2 are wrong"),
    "exact with a bound": (exact, lambda case: case["steps"][2].update(bound=[0.0, 1.0, 0.0]), "step 2 has a bound"),
    "exact with a bound on gradients": (exact, lambda case: case["steps"][2].update(gradient_bound=[1.0] * 3),
                                        "step 2 has a bound"),
    "a stage that rounds": (exact, lambda case: case["certificate"]["stages"][1].update(exact=False),
                            "its certificate says that backward is not exact"),
    "no power": (exact, lambda case: case.update(power=None), "it has no power"),
    "little power": (bounded, lambda case: case["power"].update(value=1.0),
                     "its power is 1: a known bug would also pass"),
    "power of nan": (exact, lambda case: case["power"].update(value="nan"),
                     "its power is nan: a known bug would also pass"),
    "no ranks": (exact, lambda case: case.update(ranks=[]), "it has no ranks"),
    "a rank twice": (exact, lambda case: case["ranks"][1].update(rank=0), "its ranks are not one each from 0"),
    "a rank that is missing": (exact, lambda case: case["ranks"].pop(0), "its ranks are not one each from 0"),
    "an exit": (exact, lambda case: case["ranks"][1].update(exit="killed by SIGKILL"), "rank 1 failed"),
    "a traceback": (exact, lambda case: case["ranks"][1].update(traceback=synthetic.TRACEBACK), "rank 1 failed"),
    "a stack": (exact, lambda case: case["ranks"][1].update(stack=synthetic.STACK), "rank 1 failed"),
    "a bug of the adapter": (exact, lambda case: case.update(mistake="stop"), "it has mistake"),
    "explained": (exact, lambda case: case.update(explained_by=["summed"]), "it has explained_by"),
    "gradient factors": (exact, lambda case: case.update(gradient_factors=[2.0]), "it has gradient_factors"),
    "step factors": (exact, lambda case: case.update(step_factors=[2.0]), "it has step_factors"),
    "not declared": (exact, lambda case: case.update(undeclared="fp16"), "it has undeclared"),
    "a step twice": (exact, lambda case: case["steps"].insert(1, case["steps"][1]),
                     "its steps are not in order from 0"),
    "windows that go back": (exact, lambda case: case["steps"][3].update(window=0),
                             "its steps are not in order from 0"),
    "steps that start late": (exact, lambda case: case["steps"].pop(0), "its steps are not in order from 0"),
    "a MUST as a SHOULD": (exact, lambda case: case.update(findings=[synthetic.finding("MUST") | {"level": "SHOULD"}]),
                           "it broke amp/unscale-before-clip"),
    "no bound": (bounded, in_step("bound", lambda vector: None), "the weights after step 2 are wrong"),
}  # fmt: skip


@pytest.fixture(params=CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def contradiction(request: pytest.FixtureRequest) -> tuple[Case, str]:
    """A case that contradicts its verdict, and the error."""
    make, change, said = request.param
    case = copy.deepcopy(make())
    change(case)
    return case, said


def test_a_pass_that_contradicts_itself(read: Callable[..., Results], contradiction: tuple[Case, str]) -> None:
    case, said = contradiction
    with pytest.raises(ResultsError, match="line 2 says PASS") as caught:
        read([case])
    assert str(caught.value).endswith(f", but {said}")
    # Only a pass is checked: a failed case may have any evidence.
    assert read([case | {"verdict": "CRASH"}]).failed == 1


@pytest.mark.parametrize("command", [["report"], ["merge"], ["diff"]], ids=" ".join)
def test_commands_that_read_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.write(Path("good.jsonl"), [bounded()])
    synthetic.write(Path("bad.jsonl"), [exact() | {"parameters": []}])
    files = ["bad.jsonl"] if command == ["report"] else ["good.jsonl", "bad.jsonl"]
    assert main([*command, *files]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "conformance: bad.jsonl: line 2 says PASS (exact), but it has no parameters\n"


def test_gradients_that_could_not_be_seen(read: Callable[..., Results]) -> None:
    """They are null or absent."""
    case = exact()
    for step in case["steps"]:
        step |= {"gradient_observed": [None] * 3, "gradient_error": []}
    case["steps"][0] |= {"gradient_observed": None, "gradient_error": None}
    assert read([case]).conforming
