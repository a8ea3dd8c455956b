"""``--case`` selects cases by id, start of ids, pattern or values of fields; if none match, an error says why."""

from __future__ import annotations

import pytest

from conformance.adapter.declaration import BACKEND_NAMES, LAYOUTS, PRECISIONS, Declaration
from conformance.cases.matrix import plan
from conformance.suite.selection import selected, selects_nothing

EVERYTHING = Declaration(
    backends=BACKEND_NAMES,
    precisions=PRECISIONS,
    layouts=LAYOUTS,
    losses=("mean", "weighted"),
    resume=True,
    survives_kill=True,
    resumes_inside_windows=True,
    random_state=True,
    elastic=True,
)
PATHS = [(backend, device) for backend in BACKEND_NAMES for device in ("cpu", "cuda")]
CASES = [planned.case for backend, device in PATHS for planned in plan(EVERYTHING, backend, device)]


def chosen(pattern):
    return selected(pattern, CASES)


@pytest.mark.parametrize(
    ("pattern", "fields"),
    [
        ("ring", {"backend": "ring", "device": "cpu"}),
        ("ring-gather", {"backend": "ring-gather", "device": "cpu"}),
        ("ray", {"backend": "ray", "device": "cpu"}),
        ("horovod-w2-fp16", {"backend": "horovod", "world_size": 2, "accumulation": 1, "precision": "fp16"}),
        ("horovod-w2-fp16-compression", {"backend": "horovod", "world_size": 2, "precision": "fp16-compression"}),
        ("ddp-w2", {"backend": "ddp", "world_size": 2, "device": "cpu"}),
        ("cuda", {"device": "cuda"}),
        ("backend=ring", {"backend": "ring"}),
        ("backend=ddp,world_size=2,precision=fp16", {"backend": "ddp", "world_size": 2, "precision": "fp16"}),
        ("workload=clip-value, device=cpu", {"workload": "clip-value", "device": "cpu"}),
        ("layout=samples", {"layout": "samples"}),
        ("resumed_at=3", {"resumed_at": 3}),
        ("single-acc2-fp32-momentum", {"resumed_at": None}),
    ],
)
def test_only_these(pattern, fields):
    assert chosen(pattern)
    for case in chosen(pattern):
        assert {name: getattr(case, name) for name in fields} == fields


@pytest.mark.parametrize("pattern", ["backend=ring", "precision=fp16", "world_size=3", "accumulation=2"])
def test_all_of_these(pattern):
    name, value = pattern.split("=")
    assert chosen(pattern) == [case for case in CASES if str(getattr(case, name)) == value]


def test_every_id_selects_its_case_and_no_other():
    assert len({case.id for case in CASES}) == len(CASES)
    for case in CASES[:: len(CASES) // 50]:
        assert chosen(case.id) == [case]


def test_a_beginning_may_end_within_a_field():
    assert {case.workload for case in chosen("ddp-w2-acc2-fp16-clip")} == {"clip-norm", "clip-value"}
    assert {case.backend for case in chosen("rin")} == {"ring", "ring-gather"}
    assert {case.world_size for case in chosen("ddp-w")} == {2, 3, 4}


def test_a_pattern_is_of_whole_ids():
    found = chosen("ddp-w[23]-*-clip-*")
    assert {case.world_size for case in found} == {2, 3} and {case.device for case in found} == {"cpu"}
    assert all("-clip-" in case.id for case in found)
    assert chosen("*-w2-fp32-sgd") != chosen("w2-fp32-sgd") == []


@pytest.mark.parametrize("pattern", ["", "w2", "=", "backend=", "-*", "clip*"])
def test_none(pattern):
    assert not chosen(pattern)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("ddp-w2-fp32-momentun", "no case matches ddp-w2-fp32-momentun for these trainers; did you mean "),
        ("dpp-w2", "no case matches dpp-w2 for these trainers; did you mean 'ddp-w2'?"),
        ("worldsize=2", "--case worldsize=2: unknown field 'worldsize'; did you mean 'world_size'?"),
        ("x=2", "--case x=2: unknown field 'x'; use one of backend, layout, world_size, accumulation, "),
        ("precision=fp61", "no case of these trainers has precision=fp61; did you mean 'fp64'?"),
        ("world_size=9", "no case of these trainers has world_size=9; use one of 1, 2, 3, 4"),
        (
            "backend=single,world_size=2",
            "each of these values has cases, but no case of these trainers has all of them",
        ),
    ],
)
def test_what_is_said(pattern, told):
    assert told in selects_nothing(pattern, CASES)
